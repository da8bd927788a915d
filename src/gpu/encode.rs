//! A plan's launches as commands: one pass, or one each where the device's clock can only be read around passes.

use super::compiled::Compiled;
use super::timing::Queries;

/// Encodes all launches of a plan that is bound; gives the number of passes. With `groups` every launch has a debug group of its name.
pub(crate) fn encode(
    encoder: &mut wgpu::CommandEncoder,
    compiled: &Compiled,
    queries: Option<&Queries>,
    groups: bool,
) -> u64 {
    let label = Some("tensor:batch");
    let bound = compiled.groups().iter().enumerate();
    let launch = |pass: &mut wgpu::ComputePass, at: usize, group: &wgpu::BindGroup| {
        let launch = &compiled.launches[at];
        if groups {
            pass.push_debug_group(&compiled.debug_label(at));
        }
        pass.set_pipeline(&compiled.pipelines[at].pipeline);
        pass.set_bind_group(0, group, &[]);
        let [x, y, z] = launch.workgroups;
        pass.dispatch_workgroups(x, y, z);
        if groups {
            pass.pop_debug_group();
        }
    };
    if let Some(queries) = queries.filter(|queries| !queries.inside()) {
        for (at, group) in bound {
            let timestamp_writes = Some(queries.around(at));
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label, timestamp_writes });
            launch(&mut pass, at, group);
        }
        return compiled.launches.len() as u64;
    }
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label, timestamp_writes: None });
    for (at, group) in bound {
        if let Some(queries) = queries {
            queries.stamp(&mut pass, at);
        }
        launch(&mut pass, at, group);
    }
    if let Some(queries) = queries {
        queries.stamp(&mut pass, compiled.launches.len());
    }
    1
}
