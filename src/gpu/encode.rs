//! Encodes the launches of a program: all in one compute pass, or one pass each where timestamps can only be taken
//! around passes.

use super::program::Program;
use super::timing::Queries;

/// Encodes all launches of a bound program. Returns the number of passes.
pub(crate) fn encode(encoder: &mut wgpu::CommandEncoder, program: &Program, queries: Option<&Queries>) -> u64 {
    let label = Some("tensor:batch");
    let bound = program.groups().iter().enumerate();
    if let Some(queries) = queries.filter(|queries| !queries.inside()) {
        for (at, group) in bound {
            let timestamp_writes = Some(queries.around(at));
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label, timestamp_writes });
            launch(&mut pass, program, at, group);
        }
        return program.launches.len() as u64;
    }
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label, timestamp_writes: None });
    for (at, group) in bound {
        if let Some(queries) = queries {
            queries.stamp(&mut pass, at);
        }
        launch(&mut pass, program, at, group);
    }
    if let Some(queries) = queries {
        queries.stamp(&mut pass, program.launches.len());
    }
    1
}

/// Encodes one launch. In debug mode it has a debug group with its name.
fn launch(pass: &mut wgpu::ComputePass, program: &Program, at: usize, group: &wgpu::BindGroup) {
    if program.debug {
        pass.push_debug_group(&program.debug_label(at));
    }
    pass.set_pipeline(&program.pipelines[at].pipeline);
    pass.set_bind_group(0, group, &[]);
    let [x, y, z] = program.launches[at].launch.workgroups;
    pass.dispatch_workgroups(x, y, z);
    if program.debug {
        pass.pop_debug_group();
    }
}
