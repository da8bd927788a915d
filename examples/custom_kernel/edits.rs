//! Without a display: runs some hundred steps, with an invalid and then a valid edit of the shader, and prints a line
//! about each.

use bevy::prelude::*;
use bevy::shader::{Shader, Source};
use bevy_tensor_compute::prelude::*;

use crate::{Plane, Progress, next_picture};

/// Steps after which the shader is broken, fixed, and the run ends.
const MARKS: [usize; 3] = [180, 360, 600];

pub fn plugin(app: &mut App) {
    app.add_systems(Update, run.run_if(crate::ready).after(crate::react));
}

fn run(
    plane: Res<Plane>,
    support: Res<TensorSupport>,
    diagnostics: Res<TensorDiagnostics>,
    mut progress: ResMut<Progress>,
    mut shaders: ResMut<Assets<Shader>>,
    mut mark: Local<usize>,
    mut exit: MessageWriter<AppExit>,
) -> Result {
    let Some(picture) = next_picture(&mut progress)? else { return Ok(()) };
    if progress.steps < MARKS[*mark] {
        return Ok(());
    }
    *mark += 1;
    let lit = picture.bytes().chunks(4).filter(|pixel| pixel[0] > 128).count();
    let share = 100.0 * lit as f32 / picture.shape().elements() as f32;
    println!(
        "{} steps: {share:.1} % of the plane is lit, version {} of the kernel",
        progress.steps,
        plane.step.version()
    );
    match *mark {
        // Edits the asset, as an editor would.
        1 => edit(&mut shaders, |text| text.replace("0.2 * sides", "0.2 * * sides")),
        2 => {
            let error = plane.step.error().map(|error| error.to_string());
            println!("invalid edit: {}; version {} stays in use", error.unwrap_or_default(), plane.step.version());
            edit(&mut shaders, |text| {
                text.replace("0.2 * * sides", "0.2 * sides").replace("4.0 * (height", "8.0 * (height")
            });
        }
        _ => {
            let figures = diagnostics.figures();
            println!("fixed: version {}, error {:?}", plane.step.version(), plane.step.error());
            println!("on the {}: {}", support.backend, support.reason);
            println!("{} plans built, {} found again", figures.plans_built, figures.plan_hits);
            exit.write(AppExit::Success);
        }
    }
    Ok(())
}

/// Changes the text of the example's shader.
fn edit(shaders: &mut Assets<Shader>, change: impl Fn(&str) -> String) {
    let found = shaders.iter().find(|(_, shader)| shader.path.ends_with("gray_scott.wgsl")).map(|(id, _)| id);
    let Some(mut shader) = found.and_then(|id| shaders.get_mut(id)) else { return };
    let Source::Wgsl(text) = &shader.source else { return };
    *shader = Shader::from_wgsl(change(text), shader.path.clone());
}
