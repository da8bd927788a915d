//! Fused elementwise chains on the CPU. The program is interpreted over tiles that fit the L1 cache, with one simple
//! loop per expression and tile. Contiguous 32-bit operands are read and written in place, without a tile.

use smallvec::SmallVec;

use self::blocks::Blocks;
use self::lines::Lines;
use self::split::chunks;
use crate::ir::{Expr, Program, Reg};
use crate::kernel::MapKernel;
use crate::kernel::host::CpuPool;
use crate::kernel::host::memory::{Elements, ElementsMut};
use crate::kernel::host::scratch::with_scratch;

mod blocks;
mod lines;
mod ops;
mod split;

pub(crate) use self::split::Chunk;

/// Elements per tile. The registers of a typical chain then fit the L1 cache.
const TILE: usize = 1024;
/// Distance between buffers. It is larger than a tile, so that the same position in two buffers does not map to the
/// same cache line.
const PITCH: usize = TILE + 48;

/// Where the elements of an input are.
#[derive(Clone, Copy)]
pub(crate) enum MapSource<'a> {
    Elements(Elements<'a>),
    /// In the memory of an output with exactly the same layout. A tile is read before it is overwritten.
    InPlace(usize),
    /// The value of each element is its position.
    Iota,
}

/// An input over the iteration shape.
pub(crate) struct MapInput<'a> {
    pub source: MapSource<'a>,
    pub strides: &'a [isize],
    pub offset: isize,
}

/// An output over the iteration shape, in one of the memories.
pub(crate) struct MapOutput<'a> {
    pub memory: usize,
    pub strides: &'a [isize],
    pub offset: isize,
}

/// 32 well-mixed bits of a position and a seed. Keep in sync with the WGSL version.
#[inline(always)]
pub(crate) fn hash(position: u32, seed: u32) -> u32 {
    let mut h = position.wrapping_mul(0x9E37_79B1) ^ seed.wrapping_mul(0x85EB_CA77).wrapping_add(0xC2B2_AE3D);
    h ^= h >> 16;
    h = h.wrapping_mul(0x7FEB_352D);
    h ^= h >> 15;
    h = h.wrapping_mul(0x846C_A68B);
    h ^ (h >> 16)
}

/// Runs the kernel. If several outputs share a memory, everything runs on the calling thread.
pub(crate) fn map(
    kernel: &MapKernel,
    inputs: &[MapInput],
    outputs: &[MapOutput],
    memories: Vec<ElementsMut>,
    scalars: &[u32],
    pool: &CpuPool,
) {
    let elements = kernel.shape.elements();
    if elements == 0 || outputs.is_empty() {
        return;
    }
    let code = Code::new(&kernel.program, inputs);
    let parts = pool.parts(elements * kernel.program.exprs.len().max(1));
    let chunks = chunks(&kernel.shape, inputs, outputs, memories, parts);
    pool.each(chunks, |chunk| code.run(chunk, inputs, outputs, scalars));
}

/// Iterates over the tiles of a chunk and accesses its operands.
trait Walk<'a> {
    /// Advances to the next tile, or to the first one on the first call. Returns its number of elements, or 0 after the
    /// last tile.
    fn next(&mut self) -> usize;
    /// The tile of an input where it is in memory, instead of [`Self::load`], if it is contiguous and 32 bits wide.
    fn borrow(&mut self, _input: usize, _count: usize) -> Option<&'a [u32]> {
        None
    }
    /// The tile of an output where it is in memory, instead of [`Self::store`].
    fn borrow_out<'m>(
        &mut self,
        _memories: &'m mut [ElementsMut],
        _output: usize,
        _count: usize,
    ) -> Option<&'m mut [u32]> {
        None
    }
    /// Fills a tile from an input. Called once per input and tile.
    fn load(&mut self, memories: &[ElementsMut], input: usize, tile: &mut [u32]);
    /// Writes a tile to an output.
    fn store(&mut self, memories: &mut [ElementsMut], output: usize, tile: &[u32]);
}

/// A program with a tile buffer assigned to every register.
pub(crate) struct Code<'a> {
    program: &'a Program,
    /// The buffer of each register. Unused registers have none.
    buffers: SmallVec<[Option<usize>; 32]>,
    /// Whether the register has the same value for all elements.
    fixed: SmallVec<[bool; 32]>,
    count: usize,
}

impl<'a> Code<'a> {
    /// Assigns buffers. A buffer is reused after the last read of its register. Buffers of fixed registers are not
    /// reused.
    pub(crate) fn new(program: &'a Program, inputs: &[MapInput]) -> Self {
        let n = program.exprs.len();
        // Loading an input advances its walk, so it must happen only once.
        debug_assert!(
            (0..n).all(
                |i| !matches!(program.exprs[i], Expr::Input(..)) || !program.exprs[..i].contains(&program.exprs[i])
            ),
            "a program loads an input twice"
        );
        let mut last: SmallVec<[Option<usize>; 32]> = SmallVec::from_elem(None, n);
        for (i, expr) in program.exprs.iter().enumerate() {
            for reg in expr.operands() {
                last[reg.0 as usize] = Some(i);
            }
        }
        for reg in &program.outputs {
            last[reg.0 as usize] = Some(n);
        }
        let fixed: SmallVec<[bool; 32]> = program
            .exprs
            .iter()
            .map(|expr| match expr {
                Expr::Scalar(..) | Expr::Const(..) => true,
                Expr::Input(i, _) => {
                    let input = &inputs[*i as usize];
                    input.strides.iter().all(|&s| s == 0) && !matches!(input.source, MapSource::InPlace(_))
                }
                _ => false,
            })
            .collect();
        let mut buffers: SmallVec<[Option<usize>; 32]> = SmallVec::from_elem(None, n);
        let (mut free, mut count) = (SmallVec::<[usize; 32]>::new(), 0);
        for (i, expr) in program.exprs.iter().enumerate() {
            if last[i].is_none() {
                continue;
            }
            buffers[i] = if fixed[i] { None } else { free.pop() }.or_else(|| {
                count += 1;
                Some(count - 1)
            });
            // Freed after the buffer was chosen, so that an expression never writes a buffer that it reads.
            let mut ended: SmallVec<[usize; 4]> = expr.operands().map(|reg| reg.0 as usize).collect();
            ended.sort_unstable();
            ended.dedup();
            free.extend(ended.into_iter().filter(|&r| last[r] == Some(i) && !fixed[r]).filter_map(|r| buffers[r]));
        }
        Self { program, buffers, fixed, count }
    }

    /// Runs all tiles of a chunk.
    pub(crate) fn run(&self, mut chunk: Chunk, inputs: &[MapInput], outputs: &[MapOutput], scalars: &[u32]) {
        let mut memories = core::mem::take(&mut chunk.memories);
        let longest = TILE.min(chunk.shape.iter().product());
        let (mut lines, mut blocks);
        let walk: &mut dyn Walk = match Blocks::new(&chunk, inputs, outputs) {
            Some(walk) => {
                blocks = walk;
                &mut blocks
            }
            None => {
                lines = Lines::new(&chunk, inputs, outputs);
                &mut lines
            }
        };
        with_scratch(self.count * PITCH, |tiles: &mut [u32]| {
            let mut first = true;
            loop {
                let count = walk.next();
                if count == 0 {
                    break;
                }
                let mut borrowed: SmallVec<[Option<&[u32]>; 32]> = SmallVec::from_elem(None, self.buffers.len());
                let longest = first.then_some(longest);
                first = false;
                if self.compute(longest, count, &mut memories, walk, tiles, &mut borrowed, scalars) {
                    continue;
                }
                for (output, reg) in self.program.outputs.iter().enumerate() {
                    let Some(buffer) = self.buffers[reg.0 as usize] else { continue };
                    let tile = borrowed[reg.0 as usize].unwrap_or(&tiles[buffer * PITCH..][..count]);
                    walk.store(&mut memories, output, tile);
                }
            }
        });
    }

    /// Computes all registers of one tile of `count` elements. For the first tile, `longest` is the maximum tile
    /// length. Inputs that need no tile are put into `borrowed`. Returns whether the only output was written directly.
    #[expect(clippy::too_many_arguments, reason = "the state of one chunk")]
    fn compute<'i>(
        &self,
        longest: Option<usize>,
        count: usize,
        memories: &mut [ElementsMut],
        walk: &mut dyn Walk<'i>,
        tiles: &mut [u32],
        borrowed: &mut [Option<&'i [u32]>],
        scalars: &[u32],
    ) -> bool {
        for (i, expr) in self.program.exprs.iter().enumerate() {
            let Some(buffer) = self.buffers[i] else { continue };
            // A fixed register is filled once for all tiles.
            let length = match longest {
                Some(longest) if self.fixed[i] => longest,
                None if self.fixed[i] => continue,
                _ => count,
            };
            let (before, rest) = tiles.split_at_mut(buffer * PITCH);
            let (tile, after) = rest.split_at_mut(PITCH);
            let tile = &mut tile[..length];
            match *expr {
                Expr::Const(bits, _) => tile.fill(bits),
                Expr::Scalar(s, _) => tile.fill(scalars[s as usize]),
                Expr::Input(input, _) if self.fixed[i] => {
                    walk.load(memories, input as usize, &mut tile[..1]);
                    let value = tile[0];
                    tile.fill(value);
                }
                Expr::Input(input, _) => match walk.borrow(input as usize, count) {
                    None => walk.load(memories, input as usize, tile),
                    found => borrowed[i] = found,
                },
                _ => {
                    let (before, after) = (&*before, &*after);
                    let operand = |reg: Reg| match (borrowed[reg.0 as usize], self.buffers[reg.0 as usize]) {
                        (Some(words), _) => words,
                        (None, Some(b)) if b < buffer => &before[b * PITCH..][..count],
                        (None, Some(b)) => &after[(b - buffer - 1) * PITCH..][..count],
                        (None, None) => &[],
                    };
                    // The last expression can write its result where it belongs: nothing is read after it.
                    if i + 1 == self.program.exprs.len()
                        && matches!(self.program.outputs[..], [reg] if reg.0 as usize == i)
                        && let Some(out) = walk.borrow_out(memories, 0, count)
                    {
                        ops::step(self.program, expr, operand, out);
                        return true;
                    }
                    ops::step(self.program, expr, operand, tile);
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests;
