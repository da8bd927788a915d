//! The work of all contestants: inputs, our recording, the implementation of each rival, and tolerances.

pub mod attention;
pub mod convolution;
pub mod elementwise;
pub mod encoder;
pub mod lines;
pub mod matmul;
pub mod overhead;
pub mod transfer;

use std::rc::Rc;

use bevy::prelude::Entity;
use bevy_tensor_compute::error::OpResult;
use bevy_tensor_compute::ops::{TensorCommands, TensorValue};
use bevy_tensor_compute::support::Backend;

use crate::array::Array;
use crate::burn::{BurnDevice, BurnRun, BurnWork, Held};
use crate::cpu_rivals::{Candle, CandleRun, Gemm, GemmSize, Plain, PlainRun};
use crate::measure::Contestant;
use crate::ort::{OnnxGraph, Ort};
use crate::ours::{End, Ours, Record, Rig};

/// The available rivals.
pub struct Field {
    pub backend: Backend,
    pub burn: Option<BurnDevice>,
    pub ort: Option<Ort>,
}

/// A piece of work that all contestants run.
pub trait Work {
    fn name(&self) -> &str;

    /// Whether the work is meaningful on a backend.
    fn runs_on(&self, _backend: Backend) -> bool {
        true
    }

    fn ours<'a>(&self, rig: &'a mut Rig) -> Box<dyn Contestant + 'a>;

    /// The rivals that support it on the backend of the field.
    fn rivals(&self, field: &Field) -> Vec<Box<dyn Contestant>>;

    /// Largest allowed difference from our result: absolute, and relative to it.
    fn tolerance(&self) -> (f32, f32) {
        (0.0, 0.0)
    }

    /// Floating-point operations of one repetition, if meaningful.
    fn flops(&self) -> Option<f64> {
        None
    }
}

/// All work, in table order.
pub fn all() -> Vec<Box<dyn Work>> {
    let mut list: Vec<Box<dyn Work>> = Vec::new();
    let computed = [matmul::all(), elementwise::all(), lines::all(), convolution::all(), attention::all()];
    list.extend(computed.into_iter().flatten().map(|work| Box::new(work) as Box<dyn Work>));
    list.push(Box::new(overhead::dependent_ops(100)));
    list.push(Box::new(overhead::FrameOverhead));
    list.extend([16, 128].map(|tokens| Box::new(encoder::mini_lm(tokens)) as Box<dyn Work>));
    list.extend(transfer::all());
    list
}

/// Work composed of ops.
pub struct Compute {
    name: String,
    inputs: Vec<Array>,
    record: Record,
    burn: Option<BurnRun>,
    gemm: Option<GemmSize>,
    candle: Option<CandleRun>,
    plain: Option<PlainRun>,
    onnx: Option<OnnxGraph>,
    tolerance: (f32, f32),
    flops: Option<f64>,
    end: End,
}

impl Compute {
    /// Our side of the work. The methods below add rivals.
    pub fn new(
        name: impl Into<String>,
        inputs: Vec<Array>,
        record: impl for<'a> Fn(&'a TensorCommands, &[Entity]) -> OpResult<TensorValue<'a>> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            inputs,
            record: Rc::new(record),
            burn: None,
            gemm: None,
            candle: None,
            plain: None,
            onnx: None,
            tolerance: (1e-5, 1e-5),
            flops: None,
            end: End::Corner,
        }
    }

    pub fn burn(mut self, run: impl Fn(&[Held]) -> Held + 'static) -> Self {
        self.burn = Some(Rc::new(run));
        self
    }

    pub fn gemm(mut self, size: GemmSize) -> Self {
        self.gemm = Some(size);
        self
    }

    pub fn candle(
        mut self,
        run: impl Fn(&[candle_core::Tensor]) -> candle_core::Result<candle_core::Tensor> + 'static,
    ) -> Self {
        self.candle = Some(Rc::new(run));
        self
    }

    pub fn plain(mut self, run: impl Fn(&[Vec<f32>]) -> Vec<f32> + 'static) -> Self {
        self.plain = Some(Rc::new(run));
        self
    }

    pub fn onnx(mut self, graph: OnnxGraph) -> Self {
        self.onnx = Some(graph);
        self
    }

    pub fn tolerance(mut self, absolute: f32, relative: f32) -> Self {
        self.tolerance = (absolute, relative);
        self
    }

    pub fn flops(mut self, flops: usize) -> Self {
        self.flops = Some(flops as f64);
        self
    }

    /// One repetition per turn, including all overhead and reading its result.
    pub fn whole(mut self) -> Self {
        self.end = End::Result;
        self
    }
}

impl Work for Compute {
    fn name(&self) -> &str {
        &self.name
    }

    fn ours<'a>(&self, rig: &'a mut Rig) -> Box<dyn Contestant + 'a> {
        Box::new(Ours::new(rig, &self.inputs, self.record.clone(), self.end))
    }

    fn rivals(&self, field: &Field) -> Vec<Box<dyn Contestant>> {
        let mut rivals: Vec<Box<dyn Contestant>> = Vec::new();
        if let (Some(device), Some(run)) = (&field.burn, &self.burn) {
            rivals.push(Box::new(BurnWork::new(device, &self.inputs, run.clone(), self.end)));
        }
        if field.backend == Backend::Gpu {
            return rivals;
        }
        if let Some(size) = self.gemm {
            rivals.push(Box::new(Gemm::new(size, &self.inputs)));
        }
        if let Some(run) = &self.candle {
            rivals.push(Box::new(Candle::new(&self.inputs, run.clone())));
        }
        if let Some(run) = &self.plain {
            rivals.push(Box::new(Plain::new(&self.inputs, run.clone())));
        }
        if let (Some(ort), Some(graph)) = (&field.ort, &self.onnx) {
            match ort.load(&self.inputs, graph) {
                Ok(work) => rivals.push(Box::new(work)),
                Err(error) => eprintln!("{}: onnxruntime: {error}", self.name),
            }
        }
        rivals
    }

    fn tolerance(&self) -> (f32, f32) {
        self.tolerance
    }

    fn flops(&self) -> Option<f64> {
        self.flops
    }
}
