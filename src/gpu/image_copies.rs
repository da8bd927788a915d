//! Copies between textures and tensors, in order with all other work.

use std::sync::Arc;

use super::device::{ErrorScope, Gpu};
use super::frame::Outlets;
use super::image_kernels::{CompiledKernel, ImageKernel, ImageKernels, LABEL, SIDE};
use super::programs::Programs;
use super::work::{Outcome, Work};
use super::workspace::Workspace;
use crate::error::RunError;
use crate::figures::Count;
use crate::ir::Backend;
use crate::mailbox::{CopyWay, ImageCopy, PixelRows};
use crate::plan::Effect;
use crate::tensor::Storage;

/// A copy and its texture.
#[derive(Debug)]
pub(crate) struct ImageJob {
    pub copy: ImageCopy,
    pub texture: wgpu::Texture,
}

impl ImageJob {
    /// Whether the copy still applies. If the image has another size by now, a later copy knows it. If the tensor has
    /// moved to the CPU, there is nothing to copy on the device.
    fn is_current(&self) -> bool {
        let PixelRows { width, height, .. } = self.copy.rows;
        [width, height] == [self.texture.width() as usize, self.texture.height() as usize]
            && self.copy.pixels.storage().home(Backend::Gpu) == Backend::Gpu
    }
}

/// Runs image copies.
pub(super) struct ImageCopies {
    gpu: Gpu,
    kernels: ImageKernels,
    outlets: Outlets,
}

impl ImageCopies {
    pub(super) fn new(gpu: Gpu, synchronous: bool, outlets: Outlets) -> Self {
        Self { kernels: ImageKernels::new(gpu.clone(), synchronous), gpu, outlets }
    }

    /// Runs copies in one pass. A copy that fails does not affect the others.
    pub(super) fn copy(
        &mut self,
        programs: &mut Programs,
        workspace: &mut Workspace,
        mut jobs: Vec<ImageJob>,
    ) -> Result<Outcome, RunError> {
        jobs.retain(ImageJob::is_current);
        let Some(pipelines) = self.pipelines(&mut jobs) else { return Ok(Outcome::Wait(Work::Images(jobs))) };
        if jobs.is_empty() {
            return Ok(Outcome::Done);
        }
        let params = jobs.iter().map(|job| self.kernels.missing_bytes(job)).sum();
        match bring_in_pixels(programs, workspace, &jobs, params) {
            Ok(Some(fills)) if fills.is_empty() => self.submit(&jobs, &pipelines).map(|()| Outcome::Done),
            Ok(Some(fills)) => Ok(Outcome::After(fills, Work::Images(jobs))),
            Ok(None) => Ok(Outcome::Wait(Work::Images(jobs))),
            // Either one of them fails, or they do not fit together. Both show when they are tried separately.
            Err(_) if jobs.len() > 1 => {
                let rest = jobs.split_off(jobs.len() / 2);
                Ok(Outcome::After(vec![Work::Images(jobs)], Work::Images(rest)))
            }
            Err(error) => Err(error),
        }
    }

    /// The pipelines of all jobs, or `None` while one compiles. Jobs whose kernel failed to compile are reported and
    /// removed.
    fn pipelines(&mut self, jobs: &mut Vec<ImageJob>) -> Option<Vec<wgpu::ComputePipeline>> {
        let kernels: Vec<Option<CompiledKernel>> =
            jobs.iter().map(|job| self.kernels.kernel(ImageKernel::of(job))).collect();
        let kernels: Vec<CompiledKernel> = kernels.into_iter().collect::<Option<_>>()?;
        let mut pipelines = Vec::with_capacity(jobs.len());
        let mut kernels = kernels.into_iter();
        jobs.retain(|_| match kernels.next() {
            Some(Ok(pipeline)) => {
                pipelines.push(pipeline);
                true
            }
            Some(Err(error)) => {
                self.outlets.report(error);
                false
            }
            None => false,
        });
        Some(pipelines)
    }

    fn submit(&mut self, jobs: &[ImageJob], pipelines: &[wgpu::ComputePipeline]) -> Result<(), RunError> {
        let scope = ErrorScope::new(&self.gpu.device);
        let mut encoder = self.gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: LABEL });
        let descriptor = wgpu::ComputePassDescriptor { label: LABEL, timestamp_writes: None };
        let mut pass = encoder.begin_compute_pass(&descriptor);
        for (job, pipeline) in jobs.iter().zip(pipelines) {
            let storage = job.copy.pixels.storage();
            let missing = || RunError::Device("the pixels of an image copy have no buffer".to_owned());
            let buffer = self.gpu.buffer(storage).ok_or_else(missing)?;
            let bound = self.kernels.bind(job, pipeline, &buffer)?;
            pass.set_pipeline(pipeline);
            for (group, rows) in &bound.groups {
                pass.set_bind_group(0, group, &[]);
                pass.dispatch_workgroups(job.texture.width().div_ceil(SIDE), rows.div_ceil(SIDE), 1);
            }
            self.gpu.counters.dispatches.add(bound.groups.len() as u64);
            if job.copy.way == CopyWay::IntoTensor {
                storage.wrote(None, &self.gpu.counters);
            }
        }
        drop(pass);
        self.gpu.queue.submit([encoder.finish()]);
        self.gpu.counters.submits.add(1);
        self.gpu.counters.passes.add(1);
        scope.pop().map_or(Ok(()), |error| Err(RunError::Device(error.to_string())))
    }

    pub(super) fn end_frame(&mut self) {
        self.kernels.end_frame();
    }
}

/// Brings the tensors of all copies to the device. Returns the work that has to run first, or `None` while there is no
/// room.
fn bring_in_pixels(
    programs: &mut Programs,
    workspace: &mut Workspace,
    jobs: &[ImageJob],
    params: u64,
) -> Result<Option<Vec<Work>>, RunError> {
    let mut slots: Vec<Arc<Storage>> = Vec::with_capacity(jobs.len());
    let mut effects: Vec<Effect> = Vec::with_capacity(jobs.len());
    for ImageJob { copy, .. } in jobs {
        let storage = copy.pixels.storage();
        if slots.iter().all(|slot| slot.id() != storage.id()) {
            let writes = copy.way == CopyWay::IntoTensor;
            let layout = copy.pixels.layout();
            let whole = layout.is_contiguous() && layout.elements() == storage.elements();
            slots.push(storage.clone());
            effects.push(Effect { writes, replaces: writes && whole, host: None });
        }
    }
    if !workspace.admit_with(programs, &slots, None, params)? {
        return Ok(None);
    }
    let fills = workspace.bring_in(&slots, &effects)?;
    workspace.residents.touch(&slots);
    Ok(Some(fills))
}
