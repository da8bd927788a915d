//! Matrix products on the GPU.
//!
//! | adapter | rows or columns | form |
//! |---|---|---|
//! | software | any | tiles in registers only: [`registers`] |
//! | GPU | at most 4 | `matmul_few.wgsl`: k split over the threads of a workgroup |
//! | GPU | more | `matmul_tiled.wgsl`: tiles of 32 or 64 rows in workgroup memory |
//! | GPU | more, but few tiles and a long k | the same, with k split over several sets of threads of a workgroup |
//! | GPU with too little workgroup memory | more than 4 | tiles in registers only |

use super::registers;
use crate::ir::{InnerOp, Operand, Strides};
use crate::kernel::wgsl::tile::{PRODUCT, RegisterTile};
use crate::kernel::wgsl::{Builder, grid};
use crate::kernel::{Caps, Launch, MatMulKernel, Step, Variant, Variants, choose, wgsl_type};

/// Maximum number of rows or columns for the `few` form.
pub(crate) const FEW: usize = 4;
/// Columns of a workgroup's tile in [`tiled`]. A tile has as many rows, or half as many.
const TILE: usize = 64;
/// Bytes of workgroup memory that [`tiled`] uses.
const TILE_BYTES: u32 = 2 * 16 * 17 * 16;
/// Threads of a workgroup in [`few`].
const FEW_THREADS: u32 = 256;
/// `put`: stores four neighbouring columns of a row, as far as they exist.
pub(crate) const PUT: &str = include_str!("../../../assets/kernels/matmul_put.wgsl");
/// A product in registers with fewer columns than this, and more rows, would leave lanes idle.
const NARROW: usize = 32;

/// The launch of a matrix product.
pub(crate) fn lower(step: &Step, kernel: &MatMulKernel, caps: &Caps) -> Option<Launch> {
    let variant = choose(&variants(kernel, caps), caps)?;
    let product = Product::of(step, kernel, swaps(kernel, matches!(variant, Variant::Registers { .. })))?;
    let y_aligned = kernel.n.is_multiple_of(4) && step.outputs[0].layout.offset.is_multiple_of(4);
    let [left, right] = [&product.left, &product.right].map(|side| (side.name, side.along != Along::Neither));
    let quads = [left, right, ("y", y_aligned)];
    let mut builder = Builder::with_quads(step, &quads, caps);
    builder.variant(variant).alias("T", wgsl_type(kernel.class)).code(match kernel.inner {
        InnerOp::Product => PRODUCT,
        InnerOp::SquaredDifference => {
            "fn combine(sum: vec4<T>, a: vec4<T>, b: vec4<T>) -> vec4<T> { let d = a - b; return sum + d * d; }"
        }
    });
    Some(match variant {
        Variant::Tiled { rows, slices } => tiled(builder, &product, rows, slices, caps),
        Variant::Few => few(builder, &product, caps),
        Variant::Registers { rows, quads } => registers::lower(builder, &product, rows, quads, caps),
        // All other variants are not forms of products.
        _ => return None,
    })
}

/// Whether the columns of `b` become the left-hand lines.
fn swaps(kernel: &MatMulKernel, registers: bool) -> bool {
    kernel.n < kernel.m && if registers { kernel.n <= NARROW } else { kernel.m.min(kernel.n) <= FEW }
}

/// The forms that can run a product on this device, the default first.
pub(crate) fn variants(kernel: &MatMulKernel, caps: &Caps) -> Variants {
    let few_fit = caps.invocations >= FEW_THREADS && caps.workgroup_memory >= FEW_THREADS * 16;
    let tiles_fit = caps.invocations >= 64 && caps.workgroup_memory >= TILE_BYTES;
    let is_few = kernel.m.min(kernel.n) <= FEW;
    let lines = |swap: bool| if swap { [kernel.n, kernel.m] } else { [kernel.m, kernel.n] };
    let registers = registers::variants(lines(swaps(kernel, true)), caps);
    let mut shared = Variants::new();
    if is_few && few_fit {
        shared.push(Variant::Few);
    } else if !is_few && tiles_fit {
        let [left, right] = lines(swaps(kernel, false));
        let tiles = kernel.batch.iter().product::<usize>() * left.div_ceil(TILE / 2) * right.div_ceil(TILE);
        // Bytes of both tiles of a slice: 16 steps of k, with one vector of padding.
        let bytes = 16 * 16 * (9 + 17);
        let fits = |slices: u32| caps.invocations >= 64 * slices && caps.workgroup_memory >= bytes * slices;
        // Several sets of threads share a tile if there are too few tiles to keep a GPU busy.
        let slices = match kernel.k {
            512.. if tiles <= 64 && fits(4) => 4,
            256.. if tiles <= 64 && fits(2) => 2,
            _ => 1,
        };
        let rows = if left <= TILE / 2 || slices > 1 { TILE / 2 } else { TILE } as u8;
        shared.push(Variant::Tiled { rows, slices: slices as u8 });
        for (rows, slices) in [(64, 1), (32, 1), (32, 2), (32, 4)] {
            let variant = Variant::Tiled { rows, slices: slices as u8 };
            if fits(slices) && !shared.contains(&variant) {
                shared.push(variant);
            }
        }
    }
    let (first, second) = if caps.software || shared.is_empty() { (registers, shared) } else { (shared, registers) };
    first.into_iter().chain(second).collect()
}

/// A product as kernels see it: lines of the left operand times lines of the right one. Rows of `a` are left and
/// columns of `b` right, or the reverse if swapped.
pub(crate) struct Product<'a> {
    kernel: &'a MatMulKernel,
    pub left: Side,
    pub right: Side,
    pub batches: usize,
    swapped: bool,
}

/// One operand of a product.
pub(crate) struct Side {
    name: &'static str,
    pub lines: usize,
    batch: Strides,
    /// Stride between lines.
    line: isize,
    /// Stride along k.
    k: isize,
    pub along: Along,
}

/// The axis along which elements are contiguous, with all quads aligned to four elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Along {
    K,
    /// Also, the number of lines is a multiple of four.
    Lines,
    Neither,
}

impl Side {
    fn of(
        name: &'static str,
        operand: &Operand,
        lines: usize,
        strides: impl Fn(&[isize; 2]) -> [isize; 2],
    ) -> Option<Self> {
        let layout = &operand.layout;
        let (batch, last) = layout.strides.split_last_chunk::<2>()?;
        let [line, k] = strides(last);
        let aligned = |stride: isize| {
            layout.offset.is_multiple_of(4) && batch.iter().chain([&stride]).all(|stride| stride.rem_euclid(4) == 0)
        };
        let along = match (line, k) {
            (_, 1) if aligned(line) => Along::K,
            (1, _) if aligned(k) && lines.is_multiple_of(4) => Along::Lines,
            _ => Along::Neither,
        };
        Some(Self { name, lines, batch: batch.into(), line, k, along })
    }
}

impl<'a> Product<'a> {
    fn of(step: &Step, kernel: &'a MatMulKernel, swapped: bool) -> Option<Self> {
        let [a, b] = &step.inputs[..] else { return None };
        let mut left = Side::of("a", a, kernel.m, |&[row, column]| [row, column])?;
        let mut right = Side::of("b", b, kernel.n, |&[row, column]| [column, row])?;
        if swapped {
            core::mem::swap(&mut left, &mut right);
        }
        Some(Self { kernel, left, right, batches: kernel.batch.iter().product(), swapped })
    }

    /// Adds sizes and strides, and the functions `left(i)`, `right(i)`, `left4(i)`, `right4(i)` and
    /// `sides_offset(batch)`. The latter returns the offsets of the matrices of a batch element. Strides are wrapping
    /// words, so negative ones work too.
    pub(crate) fn params(&self, builder: &mut Builder) {
        let n = self.kernel.n;
        let [y_left, y_right] = if self.swapped { [1, n] } else { [n, 1] };
        builder.params.size("batches", self.batches).size("k", self.kernel.k);
        builder.params.size("y_left", y_left).size("y_right", y_right);
        builder.constant("SWAPPED", u32::from(self.swapped));
        for (name, side) in [("left", &self.left), ("right", &self.right)] {
            builder.params.size(&format!("{name}_lines"), side.lines);
            builder.params.size(&format!("{name}_line"), side.line as usize);
            builder.params.size(&format!("{name}_k"), side.k as usize);
            builder.code(&format!("fn {name}(i: u32) -> T {{ return load_{}(i); }}", side.name));
            builder.code(&format!("fn {name}4(i: u32) -> vec4<T> {{ return load_{}4(i); }}", side.name));
        }
        let mut text = format!(
            "fn sides_offset(batch: u32) -> vec2<u32> {{
    var rest = batch;
    var at = vec2<u32>(params.{}_offset, params.{}_offset);
",
            self.left.name, self.right.name
        );
        for (axis, &size) in self.kernel.batch.iter().enumerate().rev() {
            builder.params.size(&format!("batch{axis}"), size);
            builder.params.size(&format!("left_batch{axis}"), self.left.batch[axis] as usize);
            builder.params.size(&format!("right_batch{axis}"), self.right.batch[axis] as usize);
            text.push_str(&format!(
                "    at += rest % params.batch{axis} * vec2<u32>(params.left_batch{axis}, params.right_batch{axis});
    rest = rest / params.batch{axis};\n"
            ));
        }
        text.push_str("    return at;\n}");
        builder.code(&text);
    }
}

/// Tiles in workgroup memory, with k split over `slices` sets of threads.
fn tiled(mut builder: Builder, product: &Product, rows: u8, slices: u8, caps: &Caps) -> Launch {
    product.params(&mut builder);
    let rows = usize::from(rows);
    builder.constant("SLICES", u32::from(slices));
    for (name, lines, side) in [("left", rows, &product.left), ("right", TILE, &product.right)] {
        // Neighbouring threads load neighbouring elements.
        let along = match side.along {
            Along::K => 0,
            Along::Lines => 1,
            Along::Neither if side.line != 1 => 2,
            Along::Neither => 3,
        };
        builder.constant(&format!("{name}_ALONG"), along).constant(&format!("{name}_LINES"), lines as u32);
        builder.code(&include_str!("../../../assets/kernels/matmul_tile.wgsl").replace("SIDE", name));
    }
    let tiles = product.batches * product.left.lines.div_ceil(rows) * product.right.lines.div_ceil(TILE);
    let tile = RegisterTile { rows, slices: slices.into() };
    let body = [PUT, &tile.expand(include_str!("../../../assets/kernels/matmul_tiled.wgsl"))].concat();
    builder.finish(&body, grid(tiles, caps))
}

/// Few lines on the left.
fn few(mut builder: Builder, product: &Product, caps: &Caps) -> Launch {
    product.params(&mut builder);
    let k_fast = product.right.k == 1 && product.right.line != 1;
    let (columns, slices) = if k_fast { (4, 64) } else { (64, 4) };
    builder.constant("ROWS", product.left.lines as u32).constant("COLS", columns).constant("SLICES", slices);
    builder.constant("K_FAST", u32::from(k_fast));
    let groups = product.batches * product.right.lines.div_ceil(columns as usize);
    builder.finish(include_str!("../../../assets/kernels/matmul_few.wgsl"), grid(groups, caps))
}
