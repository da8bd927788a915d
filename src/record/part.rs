//! A recording under construction, without checks: what [`TensorCommands`](crate::TensorCommands) builds after its rules have passed.

use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use bevy::platform::collections::HashMap;
use smallvec::SmallVec;

use super::graph::{BinaryOp, Graph, Node, NodeId, Op, UnaryOp, View};
use crate::readback::ReadRequest;
use crate::support::Backend;
use crate::tensor::{DType, Layout, Shape, Storage};

/// What one system recorded in one run, split by the backend it is for.
#[derive(Debug)]
pub(crate) struct Recording {
    /// Values carry this, so that one of another recording is noticed.
    pub id: u64,
    pub gpu: Part,
    pub cpu: Part,
}

impl Default for Recording {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), gpu: Part::default(), cpu: Part::default() }
    }
}

impl Recording {
    pub(crate) fn part(&mut self, backend: Backend) -> &mut Part {
        match backend {
            Backend::Gpu => &mut self.gpu,
            Backend::Cpu => &mut self.cpu,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.gpu.graph.nodes.is_empty() && self.cpu.graph.nodes.is_empty()
    }
}

/// A graph with everything it refers to.
#[derive(Debug)]
pub(crate) struct Part {
    pub graph: Graph,
    /// The storages that loads and stores name by number.
    pub slots: Vec<Arc<Storage>>,
    /// The data that [`Op::Host`] names by number.
    pub host: Vec<Arc<[u32]>>,
    /// The requests that [`Op::Read`] names by number.
    pub requests: Vec<ReadRequest>,
    slot_of: HashMap<u64, u32>,
    /// The public op being recorded, and where.
    pub name: &'static str,
    pub site: &'static Location<'static>,
}

impl Default for Part {
    #[track_caller]
    fn default() -> Self {
        Self {
            graph: Graph::default(),
            slots: Vec::new(),
            host: Vec::new(),
            requests: Vec::new(),
            slot_of: HashMap::default(),
            name: "generate",
            site: Location::caller(),
        }
    }
}

impl Part {
    pub(crate) fn push(&mut self, op: Op, inputs: &[NodeId], shape: Shape, dtype: DType, scalars: &[u32]) -> NodeId {
        debug_assert_eq!(op.scalars(), scalars.len(), "{op:?}");
        let id = NodeId(self.graph.nodes.len() as u32);
        let scalar = self.graph.scalars.len() as u32;
        self.graph.scalars.extend_from_slice(scalars);
        self.graph.nodes.push(Node {
            op,
            inputs: SmallVec::from_slice(inputs),
            shape,
            dtype,
            scalar,
            name: self.name,
            site: self.site,
        });
        id
    }

    pub(crate) fn shape(&self, id: NodeId) -> &Shape {
        &self.graph.node(id).shape
    }

    pub(crate) fn dtype(&self, id: NodeId) -> DType {
        self.graph.node(id).dtype
    }

    /// The number of a storage in this recording.
    pub(crate) fn slot(&mut self, storage: &Arc<Storage>) -> u32 {
        *self.slot_of.entry(storage.id()).or_insert_with(|| {
            self.slots.push(storage.clone());
            self.slots.len() as u32 - 1
        })
    }

    pub(crate) fn load(&mut self, storage: &Arc<Storage>, layout: Layout) -> NodeId {
        let slot = self.slot(storage);
        let shape = layout.shape.clone();
        self.push(Op::Load { slot, layout }, &[], shape, storage.dtype(), &[])
    }

    /// Data of this recording alone.
    pub(crate) fn host(&mut self, words: Arc<[u32]>, shape: Shape, dtype: DType) -> NodeId {
        self.host.push(words);
        let index = self.host.len() as u32 - 1;
        self.push(Op::Host { index }, &[], shape, dtype, &[])
    }

    /// Data that is part of the structure; kept by the plan.
    pub(crate) fn constant(&mut self, words: Arc<[u32]>, shape: Shape, dtype: DType) -> NodeId {
        self.push(Op::Const { words }, &[], shape, dtype, &[])
    }

    /// A number that may differ next time; `bits` are of `dtype`'s 32-bit type.
    pub(crate) fn scalar(&mut self, dtype: DType, bits: u32) -> NodeId {
        self.push(Op::Scalar, &[], Shape::default(), dtype, &[bits])
    }

    /// 0, 1, 2, … as `i32 [count]`.
    pub(crate) fn iota(&mut self, count: usize) -> NodeId {
        self.push(Op::Iota, &[], Shape::from([count]), DType::I32, &[])
    }

    pub(crate) fn random(&mut self, op: UnaryOp, count: usize, seed: u32) -> NodeId {
        let index = self.iota(count);
        self.push(Op::Unary(op), &[index], Shape::from([count]), DType::F32, &[seed])
    }

    /// `x · scale + shift`.
    pub(crate) fn scale_shift(&mut self, x: NodeId, scale: f32, shift: f32) -> NodeId {
        let shape = self.shape(x).clone();
        let scale = self.scalar(DType::F32, scale.to_bits());
        let shift = self.scalar(DType::F32, shift.to_bits());
        let (scale, shift) = (self.broadcast(scale, &shape), self.broadcast(shift, &shape));
        let scaled = self.binary(BinaryOp::Mul, x, scale);
        self.binary(BinaryOp::Add, scaled, shift)
    }

    /// A function without scalars that keeps its input's type (or gives a truth value).
    pub(crate) fn unary(&mut self, op: UnaryOp, x: NodeId) -> NodeId {
        self.unary_with(op, x, &[])
    }

    pub(crate) fn unary_with(&mut self, op: UnaryOp, x: NodeId, scalars: &[u32]) -> NodeId {
        let dtype = match op {
            UnaryOp::IsNan | UnaryOp::IsInf => DType::Bool,
            _ => self.dtype(x),
        };
        let shape = self.shape(x).clone();
        self.push(Op::Unary(op), &[x], shape, dtype, scalars)
    }

    /// Of two values of one shape and type.
    pub(crate) fn binary(&mut self, op: BinaryOp, a: NodeId, b: NodeId) -> NodeId {
        debug_assert_eq!(self.shape(a), self.shape(b));
        let dtype = if op.is_comparison() { DType::Bool } else { self.dtype(a) };
        let shape = self.shape(a).clone();
        self.push(Op::Binary(op), &[a, b], shape, dtype, &[])
    }

    /// Of two values of one type whose shapes broadcast; the caller has checked that they do.
    pub(crate) fn binary_broadcast(&mut self, op: BinaryOp, a: NodeId, b: NodeId) -> NodeId {
        let shape = self.shape(a).broadcast(self.shape(b)).unwrap_or_else(|| self.shape(a).clone());
        let (a, b) = (self.broadcast(a, &shape), self.broadcast(b, &shape));
        self.binary(op, a, b)
    }

    pub(crate) fn select(&mut self, condition: NodeId, yes: NodeId, no: NodeId) -> NodeId {
        let (shape, dtype) = (self.shape(yes).clone(), self.dtype(yes));
        self.push(Op::Select, &[condition, yes, no], shape, dtype, &[])
    }

    pub(crate) fn cast(&mut self, x: NodeId, dtype: DType) -> NodeId {
        if self.dtype(x) == dtype {
            return x;
        }
        let shape = self.shape(x).clone();
        self.push(Op::Cast, &[x], shape, dtype, &[])
    }

    pub(crate) fn broadcast(&mut self, x: NodeId, shape: &Shape) -> NodeId {
        if self.shape(x) == shape {
            return x;
        }
        let dtype = self.dtype(x);
        self.push(Op::View(View::Broadcast), &[x], shape.clone(), dtype, &[])
    }

    pub(crate) fn reshape(&mut self, x: NodeId, shape: &Shape) -> NodeId {
        if self.shape(x) == shape {
            return x;
        }
        let dtype = self.dtype(x);
        self.push(Op::View(View::Reshape), &[x], shape.clone(), dtype, &[])
    }

    pub(crate) fn permute(&mut self, x: NodeId, order: &[usize]) -> NodeId {
        if order.iter().enumerate().all(|(i, &axis)| i == axis) {
            return x;
        }
        let shape = Shape::new(order.iter().map(|&axis| self.shape(x)[axis]));
        let dtype = self.dtype(x);
        self.push(Op::View(View::Permute(SmallVec::from_slice(order))), &[x], shape, dtype, &[])
    }

    pub(crate) fn slice(&mut self, x: NodeId, axis: usize, start: usize, count: usize, step: isize) -> NodeId {
        let mut shape = self.shape(x).clone();
        if start == 0 && count == shape[axis] && step == 1 {
            return x;
        }
        shape.dims_mut()[axis] = count;
        let dtype = self.dtype(x);
        self.push(Op::View(View::Slice { axis, start, step }), &[x], shape, dtype, &[])
    }

    pub(crate) fn store(&mut self, value: NodeId, slot: u32, layout: Layout) -> NodeId {
        let (shape, dtype) = (self.shape(value).clone(), self.dtype(value));
        self.push(Op::Store { slot, layout, at: None }, &[value], shape, dtype, &[])
    }

    pub(crate) fn read(&mut self, value: NodeId, request: ReadRequest) -> NodeId {
        let (shape, dtype) = (self.shape(value).clone(), self.dtype(value));
        self.requests.push(request);
        let request = self.requests.len() as u32 - 1;
        self.push(Op::Read { request }, &[value], shape, dtype, &[])
    }
}
