//! Attention and rotary positions. The cache of keys and values is a tensor that [`append`](TensorCommands::append) writes to.

use super::{Arg, TensorCommands, TensorOperand, TensorValue};
use crate::error::OpError;
use crate::ir::{BinaryOp, DType, NodeId, Op, Shape, UnaryOp};
use crate::tensor::pack;

/// The largest head the fused kernel keeps in registers.
const MAX_HEAD: usize = 256;

/// How attention weighs keys.
#[derive(Clone, Debug, Default)]
pub struct AttentionSettings {
    /// Whether query `i` sees only keys up to `i + position`.
    pub causal: bool,
    /// Factor of the scores; 1 / √(head size) if `None`.
    pub scale: Option<f32>,
    /// Scores become `softcap · tanh(score / softcap)`; 0 for none.
    pub softcap: f32,
    /// Added to the scores if of floats, or `true` where a key is seen; broadcasts to `[b, h, s, t]`.
    pub mask: Option<TensorOperand>,
    /// How many of the keys count, as in a cache that is not full; all if `None`. May change from frame to frame at no cost.
    pub valid_keys: Option<usize>,
    /// The position of the first query among the keys, 0 if `None`: the number of keys that came before this call. May change from frame
    /// to frame at no cost.
    pub position: Option<usize>,
}

/// Which elements of a row turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum RopeLayout {
    /// Element `i` with `i + d/2` (GPT-NeoX, Llama in most formats).
    #[default]
    Half,
    /// Element `2i` with `2i + 1` (GPT-J, the original).
    Interleaved,
}

/// Attention.
impl TensorCommands<'_, '_> {
    /// `softmax(q · kᵀ · scale) · v` for `q [b, h, s, d]`, `k [b, g, t, d]`, `v [b, g, t, e]`: `[b, h, s, e]`. With fewer key heads than query
    /// heads, each serves `h / g` neighbouring ones.
    #[track_caller]
    pub fn attention(
        &mut self,
        q: impl Into<TensorOperand>,
        k: impl Into<TensorOperand>,
        v: impl Into<TensorOperand>,
        settings: AttentionSettings,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "attention";
        let (q, k, v) = (self.float_arg(OP, q)?, self.float_arg(OP, k)?, self.float_arg(OP, v)?);
        let mask = match settings.mask {
            Some(mask) => Some(self.arg(OP, mask)?),
            None => None,
        };
        let mut args = [q, k, v, mask.unwrap_or(q)];
        let backend = self.same_backend(OP, &mut args)?;
        let [q, k, v, other] = args;
        let mask = mask.map(|_| other);

        let (of_q, of_k, of_v) = (self.shape_of_arg(q), self.shape_of_arg(k), self.shape_of_arg(v));
        let (&[b, h, s, d], &[b_k, g, t, d_k], &[b_v, g_v, t_v, e]) = (&of_q[..], &of_k[..], &of_v[..]) else {
            return Err(self.shape_error(OP, &[q, k, v], "all must be [batch, heads, length, size]"));
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
            return Err(self.shape_error(OP, &[q, k, v], reason));
        }
        let argument = |reason: String| OpError::Argument { op: OP, reason };
        if d == 0 || d > MAX_HEAD || e > MAX_HEAD {
            return Err(argument(format!("heads of {d} and {e} elements were given; 1 to {MAX_HEAD} are supported")));
        }
        let valid = settings.valid_keys.unwrap_or(t);
        if valid > t {
            return Err(argument(format!("{valid} valid keys were promised but there are {t}")));
        }
        let position = i32::try_from(settings.position.unwrap_or(0))
            .map_err(|_| argument("the position is too large to address".to_owned()))?;
        let mask = match mask {
            Some(mask) => Some(self.attention_mask(OP, mask, &Shape::from([b, h, s, t]))?),
            None => None,
        };
        let dtype = self.dtype_of_arg(q);
        let out = Shape::from([b, h, s, e]);
        let scale = settings.scale.unwrap_or(1.0 / (d as f32).sqrt());
        let scalars = [scale.to_bits(), settings.softcap.to_bits(), valid as u32, position as u32];
        let part = self.part(q);
        let node = if t == 0 {
            part.full(0.0, &out, dtype)
        } else {
            let op = Op::Attention { causal: settings.causal, mask: mask.is_some() };
            let inputs = [q.node, k.node, v.node, mask.unwrap_or(q.node)];
            part.push(op, &inputs[..3 + usize::from(mask.is_some())], out, dtype, &scalars)
        };
        self.sized(OP, backend, node)
    }

    /// A mask as numbers to add, stretched to the scores.
    fn attention_mask(&mut self, op: &'static str, mask: Arg, scores: &Shape) -> Result<NodeId, OpError> {
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
            return Err(self.type_error(op, &[mask], "a mask is bool, or f32 or f16 to add"));
        };
        self.broadcast_arg(op, mask, scores)
    }

    /// Turns rows of `x […, s, d]` by their position: pair `i` of the row at `position + j` by `(position + j) · base^(−2i / r)`. `r` is
    /// `rotary`, or `d` if `None`; elements from `r` on stay. The position may change from frame to frame at no cost.
    #[track_caller]
    pub fn rope(
        &mut self,
        x: impl Into<TensorOperand>,
        position: usize,
        base: f32,
        layout: RopeLayout,
        rotary: Option<usize>,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "rope";
        let x = self.float_arg(OP, x)?;
        let shape = self.shape_of_arg(x);
        let [.., s, d] = shape[..] else {
            return Err(self.shape_error(OP, &[x], "it must be […, length, size]"));
        };
        let rotary = rotary.unwrap_or(d);
        if rotary > d || !rotary.is_multiple_of(2) {
            return Err(self.shape_error(OP, &[x], format!("{rotary} of {d} elements do not make pairs")));
        }
        let position = i32::try_from(position)
            .map_err(|_| OpError::Argument { op: OP, reason: "the position is too large to address".to_owned() })?;
        let pairs = rotary / 2;
        let frequency = |i: usize| f64::from(base).powf(-2.0 * i as f64 / rotary as f64) as f32;
        let frequencies: Vec<f32> = (0..pairs).map(frequency).collect();
        let part = self.part(x);
        let row = part.iota(s);
        let row = part.binary_number(BinaryOp::Add, row, f64::from(position));
        let row = part.cast(row, DType::F32);
        let row = part.reshape(row, &Shape::from([s, 1]));
        let frequencies = part.constant(pack(&frequencies), Shape::from([1, pairs]), DType::F32);
        let angle = part.binary_broadcast(BinaryOp::Mul, row, frequencies);
        let (cos, sin) = (part.unary(UnaryOp::Cos, angle), part.unary(UnaryOp::Sin, angle));
        let node = self.rotate(x, cos, sin, layout);
        Ok(self.value(x.backend, node))
    }

    /// Turns rows of `x […, s, d]` by given angles: `cos` and `sin` broadcast to `[…, s, r / 2]`, and elements from `r` on stay.
    #[track_caller]
    pub fn rope_with(
        &mut self,
        x: impl Into<TensorOperand>,
        cos: impl Into<TensorOperand>,
        sin: impl Into<TensorOperand>,
        layout: RopeLayout,
    ) -> Result<TensorValue, OpError> {
        const OP: &str = "rope_with";
        let mut args = [self.float_arg(OP, x)?, self.float_arg(OP, cos)?, self.float_arg(OP, sin)?];
        self.same_backend(OP, &mut args)?;
        let [x, cos, sin] = args;
        let (mut angles, of_cos) = (self.shape_of_arg(x), self.shape_of_arg(cos));
        let (Some(&d), Some(&pairs)) = (angles.last(), of_cos.last()) else {
            return Err(self.shape_error(OP, &[x, cos], "both need an axis"));
        };
        if pairs.saturating_mul(2) > d {
            return Err(self.shape_error(OP, &[x, cos], format!("{pairs} pairs do not fit in rows of {d}")));
        }
        if let Some(last) = angles.dims_mut().last_mut() {
            *last = pairs;
        }
        let cos = self.broadcast_arg(OP, cos, &angles)?;
        let sin = self.broadcast_arg(OP, sin, &angles)?;
        let node = self.rotate(x, cos, sin, layout);
        Ok(self.value(x.backend, node))
    }

    /// Turns the pairs of the first elements of each row, as many as there are angles. One kernel: each element is `x · cos ± partner · sin`,
    /// where the partner is a flipped view.
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
