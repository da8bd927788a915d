//! A recording being built. Nothing is checked here: the rules of the ops have passed before.

use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use bevy::platform::collections::HashMap;
use smallvec::SmallVec;

use super::aside::Aside;
use crate::ir::{Backend, BinaryOp, DType, Graph, Layout, Node, NodeId, Op, Shape, UnaryOp, View, scalar_bits};
use crate::readback::ReadRequest;
use crate::schedule::{Owner, Owners, Ticket};
use crate::tensor::{Storage, pack};

/// What one system recorded in one run, split by backend.
#[derive(Debug)]
pub(crate) struct Recording {
    /// Values have this id too, so that a value of another recording is detected.
    pub id: u64,
    pub gpu: Part,
    pub cpu: Part,
    /// Parts that a crossing to the other backend has closed, in order. They run before the two above.
    pub sealed: Vec<(Backend, Part)>,
    /// Values of sealed parts that later parts use.
    pub carried: HashMap<(Backend, u32, NodeId), Arc<Storage>>,
    /// Whether this is prepared, not run, so that no content arrives.
    pub is_aside: bool,
    /// Work that is prepared, not run.
    pub asides: Vec<Aside>,
    /// What reports call the ops that are recorded now, if not by their own names.
    pub label: Option<&'static str>,
    /// The models whose tensors it uses.
    pub owners: Owners,
    /// The node of a model's graph that is recorded now.
    pub node: Option<Arc<str>>,
}

impl Default for Recording {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            gpu: Part::default(),
            cpu: Part::default(),
            sealed: Vec::new(),
            carried: HashMap::default(),
            is_aside: false,
            asides: Vec::new(),
            label: None,
            owners: Owners::new(),
            node: None,
        }
    }
}

impl Recording {
    pub(crate) fn part(&mut self, backend: Backend) -> &mut Part {
        match backend {
            Backend::Gpu => &mut self.gpu,
            Backend::Cpu => &mut self.cpu,
        }
    }

    pub(crate) fn part_ref(&self, backend: Backend) -> &Part {
        match backend {
            Backend::Gpu => &self.gpu,
            Backend::Cpu => &self.cpu,
        }
    }

    /// Counts the recording for a model.
    pub(crate) fn add_owner(&mut self, owner: Owner) {
        if let Err(at) = self.owners.binary_search(&owner) {
            self.owners.insert(at, owner);
        }
    }

    /// How many parts of a backend are sealed: values with this number are in the backend's open part.
    pub(crate) fn segment(&self, backend: Backend) -> u32 {
        self.sealed.iter().filter(|(of, _)| *of == backend).count() as u32
    }

    /// The part that values with a segment number are in.
    pub(crate) fn part_of(&self, backend: Backend, segment: u32) -> &Part {
        let mut sealed = self.sealed.iter().filter(|(of, _)| *of == backend);
        sealed.nth(segment as usize).map_or_else(|| self.part_ref(backend), |(_, part)| part)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.sealed.is_empty()
            && self.gpu.graph.nodes.is_empty()
            && self.cpu.graph.nodes.is_empty()
            && self.asides.is_empty()
    }
}

/// A graph and everything it refers to.
#[derive(Debug)]
pub(crate) struct Part {
    pub graph: Graph,
    /// The storages that loads and stores refer to by index.
    pub slots: Vec<Arc<Storage>>,
    /// The moves of each storage that come before this work.
    pub moves: Vec<u64>,
    /// The data that [`Op::Host`] refers to by index.
    pub host: Vec<Arc<[u32]>>,
    /// The requests that [`Op::Read`] refers to by index.
    pub requests: Vec<ReadRequest>,
    slot_of: HashMap<u64, u32>,
    /// The first shape of the current op that is too large to address.
    pub too_large: Option<Shape>,
    /// The public op being recorded, and where it was called.
    pub name: &'static str,
    pub site: &'static Location<'static>,
    /// The frame that it was recorded in. Only parts of one frame run together.
    pub frame: u64,
    /// Counts it as in flight, once a backend has it.
    pub ticket: Option<Arc<Ticket>>,
    /// The node of a model's graph that is being recorded.
    pub label: Option<Arc<str>>,
}

impl Default for Part {
    #[track_caller]
    fn default() -> Self {
        Self {
            graph: Graph::default(),
            slots: Vec::new(),
            moves: Vec::new(),
            host: Vec::new(),
            requests: Vec::new(),
            slot_of: HashMap::default(),
            too_large: None,
            name: "generate",
            site: Location::caller(),
            frame: 0,
            ticket: None,
            label: None,
        }
    }
}

impl Part {
    /// Whether some content that this work needs has not arrived from the other backend yet.
    pub(crate) fn awaits_content(&self) -> bool {
        self.slots.iter().zip(&self.moves).any(|(storage, moves)| !storage.has_moved(*moves))
    }

    pub(crate) fn push(&mut self, op: Op, inputs: &[NodeId], shape: Shape, dtype: DType, scalars: &[u32]) -> NodeId {
        debug_assert_eq!(op.scalars(), scalars.len(), "{op:?}");
        if self.too_large.is_none() && !shape.is_addressable() {
            self.too_large = Some(shape.clone());
        }
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
            label: self.label.clone(),
        });
        id
    }

    pub(crate) fn shape(&self, id: NodeId) -> &Shape {
        &self.graph.node(id).shape
    }

    pub(crate) fn dtype(&self, id: NodeId) -> DType {
        self.graph.node(id).dtype
    }

    /// The index of a storage in this recording.
    pub(crate) fn slot(&mut self, storage: &Arc<Storage>) -> u32 {
        *self.slot_of.entry(storage.id()).or_insert_with(|| {
            self.slots.push(storage.clone());
            self.moves.push(storage.moves());
            self.slots.len() as u32 - 1
        })
    }

    pub(crate) fn load(&mut self, storage: &Arc<Storage>, layout: Layout) -> NodeId {
        let slot = self.slot(storage);
        let shape = layout.shape.clone();
        self.push(Op::Load { slot, layout }, &[], shape, storage.dtype(), &[])
    }

    /// Host data of this recording.
    pub(crate) fn host(&mut self, words: Arc<[u32]>, shape: Shape, dtype: DType) -> NodeId {
        self.host.push(words);
        let index = self.host.len() as u32 - 1;
        self.push(Op::Host { index }, &[], shape, dtype, &[])
    }

    /// Data that is part of the structure and kept by the plan.
    pub(crate) fn constant(&mut self, words: Arc<[u32]>, shape: Shape, dtype: DType) -> NodeId {
        self.push(Op::Const { words }, &[], shape, dtype, &[])
    }

    /// A number that may change without a new plan. `bits` have the 32-bit type of `dtype`.
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

    /// A function without scalars. The result has the input's type, or is `bool`.
    pub(crate) fn unary(&mut self, op: UnaryOp, x: NodeId) -> NodeId {
        self.unary_with(op, x, &[])
    }

    pub(crate) fn unary_with(&mut self, op: UnaryOp, x: NodeId, scalars: &[u32]) -> NodeId {
        let dtype = match op {
            UnaryOp::IsNan | UnaryOp::IsInf | UnaryOp::IsPosInf | UnaryOp::IsNegInf => DType::Bool,
            _ => self.dtype(x),
        };
        let shape = self.shape(x).clone();
        self.push(Op::Unary(op), &[x], shape, dtype, scalars)
    }

    /// A function of two values with the same shape and type.
    pub(crate) fn binary(&mut self, op: BinaryOp, a: NodeId, b: NodeId) -> NodeId {
        debug_assert_eq!(self.shape(a), self.shape(b));
        let dtype = if op.is_comparison() { DType::Bool } else { self.dtype(a) };
        let shape = self.shape(a).clone();
        self.push(Op::Binary(op), &[a, b], shape, dtype, &[])
    }

    /// A function of two values with the same type. The caller has checked that their shapes broadcast.
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
        // With one element there is nothing to step over, and a huge step would overflow strides.
        let step = if count > 1 { step } else { 1 };
        if start == 0 && count == shape[axis] && step == 1 {
            return x;
        }
        shape.dims_mut()[axis] = count;
        let dtype = self.dtype(x);
        self.push(Op::View(View::Slice { axis, start, step }), &[x], shape, dtype, &[])
    }

    /// Reverses an axis.
    pub(crate) fn flip(&mut self, x: NodeId, axis: usize) -> NodeId {
        match self.shape(x)[axis] {
            0 | 1 => x,
            n => self.slice(x, axis, n - 1, n, -1),
        }
    }

    /// Swaps the last two axes. There must be two.
    pub(crate) fn transpose(&mut self, x: NodeId) -> NodeId {
        let rank = self.shape(x).rank();
        let mut order: SmallVec<[usize; 6]> = (0..rank).collect();
        order.swap(rank - 1, rank - 2);
        self.permute(x, &order)
    }

    /// Moves an axis to the end. [`Part::axis_from_end`] moves it back.
    pub(crate) fn axis_to_end(&mut self, x: NodeId, axis: usize) -> NodeId {
        let rank = self.shape(x).rank();
        let order: SmallVec<[usize; 6]> = (0..rank).filter(|&i| i != axis).chain([axis]).collect();
        self.permute(x, &order)
    }

    /// Moves the last axis to `axis`.
    pub(crate) fn axis_from_end(&mut self, x: NodeId, axis: usize) -> NodeId {
        let rank = self.shape(x).rank();
        let order: SmallVec<[usize; 6]> = (0..axis).chain([rank - 1]).chain(axis..rank - 1).collect();
        self.permute(x, &order)
    }

    /// A number as a rank-0 value of `dtype`, converted as by a cast.
    pub(crate) fn number(&mut self, value: f64, dtype: DType) -> NodeId {
        self.scalar(dtype, scalar_bits(value, dtype))
    }

    /// A value filled with one number.
    pub(crate) fn full(&mut self, value: f64, shape: &Shape, dtype: DType) -> NodeId {
        let number = self.number(value, dtype);
        self.broadcast(number, shape)
    }

    /// A function of a value and a number of its type.
    pub(crate) fn binary_number(&mut self, op: BinaryOp, x: NodeId, number: f64) -> NodeId {
        let number = self.number(number, self.dtype(x));
        self.binary_broadcast(op, x, number)
    }

    /// Elements of an axis by a table of positions, which are in range and part of the structure.
    pub(crate) fn gather_table(&mut self, x: NodeId, axis: usize, table: &[i32]) -> NodeId {
        let index = self.constant(pack(table), Shape::from([table.len()]), DType::I32);
        let (mut shape, dtype) = (self.shape(x).clone(), self.dtype(x));
        shape.dims_mut()[axis] = table.len();
        self.push(Op::Gather { axis }, &[x, index], shape, dtype, &[])
    }

    /// Weighted sums along an axis, with tables of `[out, taps]`.
    pub(crate) fn taps(&mut self, x: NodeId, axis: usize, out: usize, positions: &[i32], weights: &[f32]) -> NodeId {
        let table = Shape::from([out, positions.len() / out.max(1)]);
        let positions = self.constant(pack(positions), table.clone(), DType::I32);
        let weights = self.constant(pack(weights), table, DType::F32);
        let (mut shape, dtype) = (self.shape(x).clone(), self.dtype(x));
        shape.dims_mut()[axis] = out;
        self.push(Op::Taps { axis }, &[x, positions, weights], shape, dtype, &[])
    }

    /// Joins values of one type along an axis. All other sizes are equal.
    pub(crate) fn concat(&mut self, parts: &[NodeId], axis: usize) -> NodeId {
        let [first, ..] = *parts else { return self.full(0.0, &Shape::from([0]), DType::F32) };
        if parts.len() == 1 {
            return first;
        }
        let (mut shape, dtype) = (self.shape(first).clone(), self.dtype(first));
        shape.dims_mut()[axis] = parts.iter().map(|&part| self.shape(part)[axis]).sum();
        let whole = Layout::contiguous(shape.clone());
        let mut start = 0;
        let places = parts
            .iter()
            .map(|&part| {
                let count = self.shape(part)[axis];
                start += count;
                whole.slice(axis, start - count, count, 1)
            })
            .collect();
        self.push(Op::Assemble { places, fill: false }, parts, shape, dtype, &[])
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
