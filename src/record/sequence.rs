//! Sequences: attention and rotary position embeddings. A key/value cache is a tensor that
//! [`append`](TensorCommands::append) writes.

use super::{Arg, Recorder, TensorCommands, TensorOperand, TensorValue};
use crate::error::{OpError, OpResult};
use crate::ir::{BinaryOp, DType, NodeId, Op, Shape, UnaryOp};
use crate::tensor::pack;

/// The largest head size that the fused kernel can keep in registers.
const MAX_HEAD: usize = 256;

/// Settings of [`attention`](TensorCommands::attention).
#[derive(Clone, Debug, Default)]
pub struct AttentionSettings<'a> {
    /// Whether query `i` sees only keys up to `i + position`.
    pub causal: bool,
    /// Factor of the scores. `None` means 1 / √(head size).
    pub scale: Option<f32>,
    /// Scores become `softcap · tanh(score / softcap)`. 0 turns this off.
    pub softcap: f32,
    /// A float mask is added to the scores. A `bool` mask is true where a key is visible. Broadcasts to `[b, h, s, t]`.
    pub mask: Option<TensorOperand<'a>>,
    /// Number of valid keys, for a cache that is not full. `None` means all. Changing it needs no new plan.
    pub valid_keys: Option<usize>,
    /// Position of the first query among the keys: the number of keys before this call. `None` means 0. Changing it
    /// needs no new plan.
    pub position: Option<usize>,
}

/// Which elements of a row form a pair that is rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum RopeLayout {
    /// Elements `i` and `i + d/2` (GPT-NeoX, Llama in most formats).
    #[default]
    Half,
    /// Elements `2i` and `2i + 1` (GPT-J, the original).
    Interleaved,
}

/// Settings of [`rope`](TensorCommands::rope).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSettings {
    /// Position of the first row. 0 by default. Changing it needs no new plan.
    pub position: usize,
    /// Base of the frequencies. 10,000 by default.
    pub base: f32,
    /// Which elements form a pair.
    pub layout: RopeLayout,
    /// How many elements of a row are rotated; the others stay as they are. `None`, the default, means all.
    pub rotary: Option<usize>,
}

impl Default for RopeSettings {
    fn default() -> Self {
        Self { position: 0, base: 10_000.0, layout: RopeLayout::default(), rotary: None }
    }
}

/// Attention and rotary position embeddings.
impl TensorCommands<'_, '_> {
    /// `softmax(q · kᵀ · scale) · v` for `q [b, h, s, d]`, `k [b, g, t, d]` and `v [b, g, t, e]`: `[b, h, s, e]`.
    ///
    /// With fewer key heads than query heads, each key head is used by `h / g` consecutive query heads.
    #[doc(alias = "scaled_dot_product_attention")]
    #[track_caller]
    pub fn attention<'a>(
        &'a self,
        q: impl Into<TensorOperand<'a>>,
        k: impl Into<TensorOperand<'a>>,
        v: impl Into<TensorOperand<'a>>,
        settings: AttentionSettings<'a>,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "attention";
        let (q, k, v) = (q.into(), k.into(), v.into());
        let rec = &mut self.recorder();
        let (q, k, v) = (rec.float_arg(OP, q)?, rec.float_arg(OP, k)?, rec.float_arg(OP, v)?);
        let mask = match settings.mask {
            Some(mask) => Some(rec.arg(OP, mask)?),
            None => None,
        };
        let mut args = [q, k, v, mask.unwrap_or(q)];
        let backend = rec.same_backend(OP, &mut args)?;
        let [q, k, v, other] = args;
        let mask = mask.map(|_| other);

        let (of_q, of_k, of_v) = (rec.shape_of_arg(q), rec.shape_of_arg(k), rec.shape_of_arg(v));
        let (&[b, h, s, d], &[b_k, g, t, d_k], &[b_v, g_v, t_v, e]) = (&of_q[..], &of_k[..], &of_v[..]) else {
            return Err(rec.shape_error(OP, &[q, k, v], "all must be [batch, heads, length, size]"));
        };
        let reason = if b != b_k || b != b_v {
            format!("batch sizes {b}, {b_k} and {b_v} differ")
        } else if d != d_k {
            format!("head sizes {d} and {d_k} of queries and keys differ")
        } else if (g, t) != (g_v, t_v) {
            "keys and values must have the same heads and length".to_owned()
        } else if g == 0 || h % g != 0 {
            format!("{h} query heads do not divide over {g} key heads")
        } else {
            String::new()
        };
        if !reason.is_empty() {
            return Err(rec.shape_error(OP, &[q, k, v], reason));
        }
        let argument = |reason: String| OpError::Argument { op: OP, reason };
        if d == 0 || d > MAX_HEAD || e > MAX_HEAD {
            return Err(argument(format!("head sizes {d} and {e} are not supported; they must be 1 to {MAX_HEAD}")));
        }
        let valid = settings.valid_keys.unwrap_or(t);
        if valid > t {
            return Err(argument(format!("there are {t} keys, but {valid} are said to be valid")));
        }
        let position = i32::try_from(settings.position.unwrap_or(0))
            .map_err(|_| argument("the position is too large to address".to_owned()))?;
        let mask = match mask {
            Some(mask) => Some(rec.attention_mask(OP, mask, &Shape::from([b, h, s, t]))?),
            None => None,
        };
        let dtype = rec.dtype_of_arg(q);
        let out = Shape::from([b, h, s, e]);
        let scale = settings.scale.unwrap_or(1.0 / (d as f32).sqrt());
        let scalars = [scale.to_bits(), settings.softcap.to_bits(), valid as u32, position as u32];
        let part = rec.part(q);
        let node = if t == 0 {
            part.full(0.0, &out, dtype)
        } else {
            let op = Op::Attention { causal: settings.causal, mask: mask.is_some() };
            let inputs = [q.node, k.node, v.node, mask.unwrap_or(q.node)];
            part.push(op, &inputs[..3 + usize::from(mask.is_some())], out, dtype, &scalars)
        };
        rec.value(backend, node)
    }

    /// Rotates rows of `x […, s, d]` by their position: pair `i` of row `j` by the angle
    /// `(position + j) · base^(−2i / rotary)`.
    #[doc(alias = "rotary_embedding")]
    #[track_caller]
    pub fn rope<'a>(&'a self, x: impl Into<TensorOperand<'a>>, settings: RopeSettings) -> OpResult<TensorValue<'a>> {
        const OP: &str = "rope";
        let RopeSettings { position, base, layout, rotary } = settings;
        let x = x.into();
        let rec = &mut self.recorder();
        let x = rec.float_arg(OP, x)?;
        let shape = rec.shape_of_arg(x);
        let [.., s, d] = shape[..] else {
            return Err(rec.shape_error(OP, &[x], "it must be […, length, size]"));
        };
        let rotary = rotary.unwrap_or(d);
        if rotary > d || !rotary.is_multiple_of(2) {
            return Err(rec.shape_error(
                OP,
                &[x],
                format!("{rotary} of {d} elements cannot be rotated; the number must be even and at most {d}"),
            ));
        }
        let position = i32::try_from(position)
            .map_err(|_| OpError::Argument { op: OP, reason: "the position is too large to address".to_owned() })?;
        let pairs = rotary / 2;
        let frequency = |i: usize| f64::from(base).powf(-2.0 * i as f64 / rotary as f64) as f32;
        let frequencies: Vec<f32> = (0..pairs).map(frequency).collect();
        let part = rec.part(x);
        let row = part.iota(s);
        let row = part.binary_number(BinaryOp::Add, row, f64::from(position));
        let row = part.cast(row, DType::F32);
        let row = part.reshape(row, &Shape::from([s, 1]));
        let frequencies = part.constant(pack(&frequencies), Shape::from([1, pairs]), DType::F32);
        let angle = part.binary_broadcast(BinaryOp::Mul, row, frequencies);
        let (cos, sin) = (part.unary(UnaryOp::Cos, angle), part.unary(UnaryOp::Sin, angle));
        let node = rec.rotate(x, cos, sin, layout);
        rec.value(x.backend, node)
    }

    /// Rotates rows of `x […, s, d]` by given angles. `cos` and `sin` broadcast to `[…, s, r / 2]`. Elements from `r`
    /// on stay as they are.
    #[track_caller]
    pub fn rope_with<'a>(
        &'a self,
        x: impl Into<TensorOperand<'a>>,
        cos: impl Into<TensorOperand<'a>>,
        sin: impl Into<TensorOperand<'a>>,
        layout: RopeLayout,
    ) -> OpResult<TensorValue<'a>> {
        const OP: &str = "rope_with";
        let (x, cos, sin) = (x.into(), cos.into(), sin.into());
        let rec = &mut self.recorder();
        let mut args = [rec.float_arg(OP, x)?, rec.float_arg(OP, cos)?, rec.float_arg(OP, sin)?];
        rec.same_backend(OP, &mut args)?;
        let [x, cos, sin] = args;
        let (mut angles, of_cos) = (rec.shape_of_arg(x), rec.shape_of_arg(cos));
        let (Some(&d), Some(&pairs)) = (angles.last(), of_cos.last()) else {
            return Err(rec.shape_error(OP, &[x, cos], "both need an axis"));
        };
        if pairs.saturating_mul(2) > d {
            return Err(rec.shape_error(OP, &[x, cos], format!("{pairs} pairs do not fit in rows of {d}")));
        }
        if let Some(last) = angles.dims_mut().last_mut() {
            *last = pairs;
        }
        let cos = rec.broadcast_arg(OP, cos, &angles)?;
        let sin = rec.broadcast_arg(OP, sin, &angles)?;
        let node = rec.rotate(x, cos, sin, layout);
        rec.value(x.backend, node)
    }
}

impl<'a> Recorder<'a> {
    /// A mask as numbers to add, broadcast to the shape of the scores.
    fn attention_mask(&mut self, op: &'static str, mask: Arg, scores: &Shape) -> OpResult<NodeId> {
        let dtype = self.dtype_of_arg(mask);
        let mask = if dtype == DType::Bool {
            let shape = self.shape_of_arg(mask);
            let part = self.part(mask);
            let seen = part.full(0.0, &shape, DType::F32);
            let hidden = part.full(f64::NEG_INFINITY, &shape, DType::F32);
            Arg { node: part.select(mask.node, seen, hidden), ..mask }
        } else if dtype.is_float() {
            mask
        } else {
            return Err(self.type_error(op, &[mask], "a mask is bool, or floats to add"));
        };
        self.broadcast_arg(op, mask, scores)
    }

    /// Rotates the first pairs of each row, as many as there are angles. All of it fuses into one kernel: each element
    /// is `x · cos ± partner · sin`, and the partner is a flipped view.
    fn rotate(&mut self, x: Arg, cos: NodeId, sin: NodeId, layout: RopeLayout) -> NodeId {
        let (shape, dtype) = (self.shape_of_arg(x), self.dtype_of_arg(x));
        let part = self.part(x);
        let last = shape.rank() - 1;
        let pairs = part.shape(cos).last().copied().unwrap_or(0);
        if pairs == 0 {
            return x.node;
        }
        // `[…, r]` as `[…, 2, r / 2]` or `[…, r / 2, 2]`; `side` is the axis of the two.
        let (split, side) = match layout {
            RopeLayout::Half => ([2, pairs], last),
            RopeLayout::Interleaved => ([pairs, 2], last + 1),
        };
        let head = part.slice(x.node, last, 0, 2 * pairs, 1);
        let of_head = part.shape(head).clone();
        let paired = Shape::new(of_head[..last].iter().copied().chain(split));
        let head = part.reshape(head, &paired);
        let partner = part.flip(head, side);
        let (head, partner) = (part.cast(head, DType::F32), part.cast(partner, DType::F32));
        // The first of a pair subtracts its partner.
        let signs = match layout {
            RopeLayout::Half => Shape::from([2, 1]),
            RopeLayout::Interleaved => Shape::from([2]),
        };
        let signs = part.constant(pack(&[-1.0f32, 1.0]), signs, DType::F32);
        let [cos, sin] = [cos, sin].map(|angle| {
            let mut shape = part.shape(angle).clone();
            let at = shape.rank() - usize::from(layout == RopeLayout::Half);
            shape.dims_mut().insert(at, 1);
            let angle = part.cast(angle, DType::F32);
            let angle = part.reshape(angle, &shape);
            part.broadcast(angle, &paired)
        });
        let signs = part.broadcast(signs, &paired);
        let kept = part.binary(BinaryOp::Mul, head, cos);
        let signed = part.binary(BinaryOp::Mul, partner, signs);
        let turned = part.binary(BinaryOp::Mul, signed, sin);
        let node = part.binary(BinaryOp::Add, kept, turned);
        let node = part.cast(node, dtype);
        let node = part.reshape(node, &of_head);
        let rest = shape[last] - 2 * pairs;
        if rest == 0 {
            return node;
        }
        let rest = part.slice(x.node, last, 2 * pairs, rest, 1);
        part.concat(&[node, rest], last)
    }
}
