//! A graph from bytes: operands that mostly fit, arguments that mostly make sense, and some that do not.

use bevy::prelude::Entity;
use bevy_tensor_compute::prelude::*;

use super::source::Source;
use super::table::{Exact, ROWS, Row};
use crate::common::Rig;

/// Elements of each pool.
const POOL: usize = 1 << 13;
/// Larger values are recorded and not used further.
const MOST: usize = 1 << 13;

/// Long tensors of every type on a backend; operands are views of them.
pub struct Pools {
    entities: Vec<(DType, Entity)>,
    backend: Backend,
}

impl Pools {
    pub fn spawn(rig: &mut Rig) -> Self {
        let noise = |i: usize| {
            let mut z = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678;
            z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (z ^ (z >> 32)) as u32
        };
        // Quarters of small integers: their sums and products are exact in any order.
        let quarter = |i: usize| (noise(i) % 65) as f32 / 4.0 - 8.0;
        let all = 0..POOL;
        let f32s: Vec<f32> = all.clone().map(quarter).collect();
        let f16s: Vec<half::f16> = f32s.iter().map(|&v| half::f16::from_f32(v)).collect();
        let bf16s: Vec<half::bf16> = f32s.iter().map(|&v| half::bf16::from_f32(v)).collect();
        let i32s: Vec<i32> = all
            .clone()
            .map(|i| if noise(i) % 61 == 0 { noise(i + 7) as i32 } else { (noise(i) % 7) as i32 - 2 })
            .collect();
        let u32s: Vec<u32> =
            all.clone().map(|i| if noise(i) % 61 == 0 { noise(i + 7) } else { noise(i) % 5 }).collect();
        let i8s: Vec<i8> = all
            .clone()
            .map(|i| if noise(i) % 9 == 0 { noise(i + 7) as i8 } else { (noise(i) % 7) as i8 - 2 })
            .collect();
        let u8s: Vec<u8> =
            all.clone().map(|i| if noise(i) % 9 == 0 { noise(i + 7) as u8 } else { (noise(i) % 5) as u8 }).collect();
        let bools: Vec<Truth> = all.map(|i| Truth::from(noise(i) & 4 == 0)).collect();
        let tensors = [
            (DType::F32, Tensor::from_slice(&f32s, [POOL])),
            (DType::F16, Tensor::from_slice(&f16s, [POOL])),
            (DType::BF16, Tensor::from_slice(&bf16s, [POOL])),
            (DType::I32, Tensor::from_slice(&i32s, [POOL])),
            (DType::U32, Tensor::from_slice(&u32s, [POOL])),
            (DType::I8, Tensor::from_slice(&i8s, [POOL])),
            (DType::U8, Tensor::from_slice(&u8s, [POOL])),
            (DType::Bool, Tensor::from_slice(&bools, [POOL])),
        ];
        let entities = tensors.map(|(dtype, tensor)| (dtype, rig.spawn(tensor.expect("it is small")))).to_vec();
        Self { entities, backend: rig.backend }
    }

    fn of(&self, dtype: DType) -> Entity {
        self.entities.iter().find(|(kind, _)| *kind == dtype).map(|(_, entity)| *entity).expect("every plain type")
    }
}

/// A value of the graph.
#[derive(Clone, Copy)]
struct Made<'a> {
    value: TensorValue<'a>,
    /// Whether both backends must give the same bits.
    exact: bool,
    /// Multiplications so far: a product of many quarters is not exact.
    products: u32,
}

/// Ops that were recorded.
pub struct Graph<'a> {
    pub steps: Vec<String>,
    made: Vec<(String, Made<'a>)>,
    /// Whether every value is read, so that none is fused away.
    all: bool,
    backend: Backend,
}

/// What to do with a value that is read.
pub type Read = (String, bool, OpResult<TensorReceiver>);

impl<'a> Graph<'a> {
    pub fn record(ops: &'a TensorCommands, pools: &Pools, bytes: &[u8]) -> Self {
        let mut source = Source::new(bytes);
        let all = source.rare(4);
        let mut graph = Self { steps: Vec::new(), made: Vec::new(), all, backend: pools.backend };
        let steps = 1 + source.below(5);
        for _ in 0..steps {
            let row = &ROWS[source.below(ROWS.len())];
            graph.step(ops, pools, row, &mut source);
            if source.is_empty() {
                break;
            }
        }
        graph
    }

    /// Asks for the last value, or for all. The CPU gives all of them: their size is the scale of errors.
    pub fn read(&self, ops: &'a TensorCommands) -> Vec<Read> {
        let last = self.made.len().saturating_sub(1);
        let skip = if self.all || self.backend == Backend::Cpu { 0 } else { last };
        // The last one comes first, so that both lists begin with what both backends read.
        let mut reads: Vec<Read> = self.made[skip.min(self.made.len())..]
            .iter()
            .map(|(what, made)| (what.clone(), made.exact, ops.read(made.value)))
            .collect();
        reads.reverse();
        reads
    }

    fn step(&mut self, ops: &'a TensorCommands, pools: &Pools, row: &'static Row, source: &mut Source) {
        let mut sizes = Sizes::default();
        let common = source.byte();
        let mut operands = Vec::new();
        for pattern in row.operands {
            match self.operand(ops, pools, pattern, common, &mut sizes, source) {
                Ok(operand) => operands.push(operand),
                Err(error) => {
                    self.steps.push(format!("operand of {}: {error}", row.name));
                    return;
                }
            }
        }
        let exact = operands.iter().all(|operand| operand.exact);
        if row.exact == Exact::Steps && !exact {
            // A rounding error could turn the result.
            return;
        }
        let products =
            operands.iter().map(|operand| operand.products).sum::<u32>() + u32::from(row.exact == Exact::Product);
        let any = |test: fn(DType) -> bool| operands.iter().any(|operand| ops.dtype(operand.value).is_ok_and(test));
        let exact = match row.exact {
            Exact::Moves | Exact::Steps => exact,
            // Integers wrap everywhere alike. Halves are rounded after every kernel, and kernels differ.
            Exact::Sum | Exact::Product => {
                exact
                    && (!any(DType::is_float)
                        || (products < 3 && !any(|dtype| dtype.is_float() && dtype != DType::F32)))
            }
            Exact::No => false,
        };
        let values: Vec<TensorValue> = operands.iter().map(|operand| operand.value).collect();
        match (row.run)(ops, &values, source) {
            Ok(made) => {
                let shapes: Vec<String> =
                    made.iter().map(|v| ops.shape(*v).map_or_else(|e| e.to_string(), |s| s.to_string())).collect();
                self.steps.push(format!("{} -> {}", row.name, shapes.join(" ")));
                for value in made {
                    let small = ops.shape(value).is_ok_and(|shape| shape.elements() <= MOST);
                    let plain = ops.dtype(value).is_ok_and(|dtype| !dtype.is_quantized());
                    if small && plain {
                        self.made.push((row.name.to_owned(), Made { value, exact, products }));
                    }
                }
            }
            Err(error) => self.steps.push(format!("{}: {error}", row.name)),
        }
    }

    /// An operand for a pattern such as `f[a,b]`: an earlier value that fits, or a view of a pool.
    fn operand(
        &self,
        ops: &'a TensorCommands,
        pools: &Pools,
        pattern: &str,
        common: u8,
        sizes: &mut Sizes,
        source: &mut Source,
    ) -> OpResult<Made<'a>> {
        let (kind, letters) = pattern.split_at(1);
        let mut dtype = dtype_of(kind, common);
        let mut shape: Vec<usize> = letters
            .trim_matches(['[', ']'])
            .split(',')
            .filter(|s| !s.is_empty())
            .map(|s| sizes.of(s, source))
            .collect();
        if source.rare(3) {
            // Any earlier value, or one that fits, goes before a new one.
            let fits = |made: &&(String, Made<'a>)| source_fits(ops, made.1.value, dtype, &shape);
            let earlier = if source.rare(8) { self.made.last() } else { self.made.iter().rev().find(fits) };
            if let Some((_, made)) = earlier {
                return Ok(*made);
            }
        }
        if source.rare(40) {
            dtype = source.one_of(&DType::ALL);
        }
        if source.rare(32) {
            let at = source.below(shape.len() + 1);
            match source.below(3) {
                0 => shape.insert(at, source.below(4)),
                1 if at < shape.len() => drop(shape.remove(at)),
                _ if at < shape.len() => shape[at] = source.below(6),
                _ => {}
            }
        }
        let n: usize = shape.iter().product();
        if n * 4 > POOL {
            shape = vec![2; shape.len().min(6)];
        }
        view(ops, pools, dtype, &shape, source).map(|value| Made { value, exact: true, products: 0 })
    }
}

fn source_fits(ops: &TensorCommands, value: TensorValue, dtype: DType, shape: &[usize]) -> bool {
    ops.dtype(value).is_ok_and(|d| d == dtype) && ops.shape(value).is_ok_and(|s| s[..] == *shape)
}

/// The type for a letter: float, number, any, truth, index, byte.
fn dtype_of(kind: &str, common: u8) -> DType {
    let common = usize::from(common);
    match kind {
        "f" => [DType::F32, DType::F32, DType::F16, DType::BF16][common % 4],
        "n" => [DType::F32, DType::F16, DType::I32, DType::U32, DType::I8, DType::U8, DType::BF16][common % 7],
        "t" => DType::Bool,
        "i" => [DType::I32, DType::I32, DType::U32, DType::I8, DType::U8][common % 5],
        "b" => DType::I8,
        _ => DType::ALL[common % 8],
    }
}

/// The sizes of letters, the same for all operands of an op. Digits are themselves, and `4a` is four times `a`.
#[derive(Default)]
struct Sizes(Vec<(char, usize)>);

impl Sizes {
    fn of(&mut self, text: &str, source: &mut Source) -> usize {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        let factor = digits.parse().unwrap_or(1);
        let Some(letter) = text.chars().find(char::is_ascii_alphabetic) else { return factor };
        if let Some((_, size)) = self.0.iter().find(|(known, _)| *known == letter) {
            return factor * size;
        }
        let size = match letter {
            // Windows are small.
            'k' | 'l' | 'm' => source.one_of(&[1, 2, 3, 1, 2, 5]),
            _ => source.one_of(&[1, 2, 3, 4, 5, 2, 3, 4, 6, 7, 8, 9, 17, 33, 65, 0]),
        };
        self.0.push((letter, size));
        factor * size
    }
}

/// A view of a pool with this shape: contiguous, turned, stepped, reversed or broadcast.
fn view<'a>(
    ops: &'a TensorCommands,
    pools: &Pools,
    dtype: DType,
    shape: &[usize],
    source: &mut Source,
) -> OpResult<TensorValue<'a>> {
    let n: usize = shape.iter().product();
    let from = source.below(64) as isize;
    let part = |count: usize, shape: &[usize]| {
        let sizes: Vec<isize> = shape.iter().map(|&size| size as isize).collect();
        let flat = ops.slice(pools.of(dtype), 0, from, from + count as isize)?;
        ops.reshape(flat, &sizes)
    };
    let axis = source.below(shape.len().max(1));
    match source.below(8) {
        0 if shape.len() > 1 => {
            let mut turned = shape.to_vec();
            turned.rotate_left(axis);
            let order: Vec<isize> =
                (0..shape.len()).map(|i| ((i + shape.len() - axis) % shape.len()) as isize).collect();
            ops.permute(part(n, &turned)?, &order)
        }
        1 if !shape.is_empty() => {
            let mut wide = shape.to_vec();
            wide[axis] = 2 * wide[axis] + 1;
            let whole = part(wide.iter().product(), &wide)?;
            ops.slice_step(whole, axis, 1, isize::MAX, 2)
        }
        2 if !shape.is_empty() => ops.flip(part(n, shape)?, axis),
        3 if !shape.is_empty() && shape[axis] > 0 => {
            let mut one = shape.to_vec();
            one[axis] = 1;
            ops.broadcast_to(part(n / shape[axis], &one)?, shape.to_vec())
        }
        4 => ops.copy(part(n, shape)?),
        _ => part(n, shape),
    }
}
