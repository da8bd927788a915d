//! The border: the only file that sees both worlds. Recordings move over whole; tensors that exist cost nothing.

use bevy::prelude::*;
use bevy::render::MainWorld;

use crate::cpu::CpuExecutor;
use crate::record::{FrameRecordings, Part};

/// Recorded work for the GPU, waiting to be extracted.
#[derive(Resource, Default)]
pub(crate) struct OutgoingParts(Vec<Part>);

/// Recorded work in the render world.
#[derive(Resource, Default)]
pub(crate) struct ExtractedParts(pub Vec<Part>);

/// Hands the frame's recordings to the backends: the CPU's at once, the GPU's with the next extraction.
pub(crate) fn hand_over_recordings(
    mut frame: ResMut<FrameRecordings>,
    mut outgoing: ResMut<OutgoingParts>,
    cpu: Res<CpuExecutor>,
) {
    let mut cpu_parts = Vec::new();
    for recording in frame.0.drain(..) {
        if !recording.gpu.graph.nodes.is_empty() {
            outgoing.0.push(recording.gpu);
        }
        if !recording.cpu.graph.nodes.is_empty() {
            cpu_parts.push(recording.cpu);
        }
    }
    if !cpu_parts.is_empty() {
        cpu.send(cpu_parts);
    }
}

/// Moves recorded work to the render world.
pub(crate) fn extract_recordings(mut main_world: ResMut<MainWorld>, mut extracted: ResMut<ExtractedParts>) {
    if let Some(mut outgoing) = main_world.get_resource_mut::<OutgoingParts>() {
        extracted.0.append(&mut outgoing.0);
    }
}
