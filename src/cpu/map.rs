//! Fused elementwise chains: the program is interpreted over tiles that fit the nearest cache, one plain loop per step and tile.

mod ops;
mod split;

use smallvec::SmallVec;

use self::split::{Chunk, chunks};
use super::CpuPool;
use super::memory::{Elements, ElementsMut};
use super::walk::Cursor;
use crate::kernel::{Expr, MapKernel, Program, Reg};

/// Elements per tile. The registers of a typical chain then fit the first-level cache.
const TILE: usize = 512;
/// Elementary operations that make a task worth its start.
const GRAIN: usize = 1 << 15;

/// Where an input's elements are.
#[derive(Clone, Copy)]
pub(super) enum MapSource<'a> {
    Elements(Elements<'a>),
    /// In the memory of an output with the very same layout, so a tile is read before it is overwritten.
    InPlace(usize),
    /// The element at a position is the position.
    Iota,
}

/// An input over the iteration shape.
pub(super) struct MapInput<'a> {
    pub source: MapSource<'a>,
    pub strides: &'a [isize],
    pub offset: isize,
}

/// An output over the iteration shape, in one of the memories.
pub(super) struct MapOutput<'a> {
    pub memory: usize,
    pub strides: &'a [isize],
    pub offset: isize,
}

/// 32 well-mixed bits of a position and a seed; the WGSL twin has the same lines.
#[inline(always)]
pub(crate) fn hash(position: u32, seed: u32) -> u32 {
    let mut h = position.wrapping_mul(0x9E37_79B1) ^ seed.wrapping_mul(0x85EB_CA77).wrapping_add(0xC2B2_AE3D);
    h ^= h >> 16;
    h = h.wrapping_mul(0x7FEB_352D);
    h ^= h >> 15;
    h = h.wrapping_mul(0x846C_A68B);
    h ^ (h >> 16)
}

/// Runs the kernel. Several outputs may share a memory; then everything runs on this thread.
pub(super) fn map(
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
    let parts = (elements * kernel.program.exprs.len().max(1) / GRAIN).min(pool.threads() * 4);
    let chunks = chunks(&kernel.shape, inputs, outputs, memories, if pool.threads() > 1 { parts } else { 1 });
    pool.each(chunks, |chunk| code.run(chunk, inputs, outputs, scalars));
}

/// A program with a tile buffer chosen for every register.
struct Code<'a> {
    program: &'a Program,
    /// The buffer of each register; a register that nothing reads has none.
    buffers: Vec<Option<usize>>,
    /// Whether the register is the same for all elements.
    fixed: Vec<bool>,
    count: usize,
}

impl<'a> Code<'a> {
    /// Buffers are reused once the last reader of their register is past; those of fixed registers never.
    fn new(program: &'a Program, inputs: &[MapInput]) -> Self {
        let n = program.exprs.len();
        let mut last = vec![None; n];
        for (i, expr) in program.exprs.iter().enumerate() {
            for reg in operands(expr) {
                last[reg.0 as usize] = Some(i);
            }
        }
        for reg in &program.outputs {
            last[reg.0 as usize] = Some(n);
        }
        let fixed: Vec<bool> = program
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
        let (mut buffers, mut free, mut count) = (vec![None; n], Vec::new(), 0);
        for (i, expr) in program.exprs.iter().enumerate() {
            if last[i].is_none() {
                continue;
            }
            buffers[i] = if fixed[i] { None } else { free.pop() }.or_else(|| {
                count += 1;
                Some(count - 1)
            });
            // After choosing, so that a step never writes a buffer it reads.
            let mut ended: SmallVec<[usize; 3]> = operands(expr).map(|reg| reg.0 as usize).collect();
            ended.sort_unstable();
            ended.dedup();
            free.extend(ended.into_iter().filter(|&r| last[r] == Some(i) && !fixed[r]).filter_map(|r| buffers[r]));
        }
        Self { program, buffers, fixed, count }
    }

    /// All tiles of a chunk.
    fn run(&self, mut chunk: Chunk, inputs: &[MapInput], outputs: &[MapOutput], scalars: &[u32]) {
        let mut tiles = vec![vec![0u32; TILE]; self.count];
        let mut reads: SmallVec<[Cursor; 4]> = inputs
            .iter()
            .zip(&chunk.input_offsets)
            .map(|(input, &offset)| Cursor::new(&chunk.shape, &input.strides[chunk.axis..], offset))
            .collect();
        // An input may be read by several steps, so all of them start from the same place and the tile's end moves it.
        let mut nexts = reads.clone();
        let mut writes: SmallVec<[Cursor; 1]> = outputs
            .iter()
            .zip(&chunk.output_offsets)
            .map(|(output, &offset)| Cursor::new(&chunk.shape, &output.strides[chunk.axis..], offset))
            .collect();
        let total: usize = chunk.shape.iter().product();
        let mut start = 0;
        while start < total {
            let count = TILE.min(total - start);
            for (i, expr) in self.program.exprs.iter().enumerate() {
                let Some(buffer) = self.buffers[i] else { continue };
                if self.fixed[i] && start > 0 {
                    continue;
                }
                let mut tile = core::mem::take(&mut tiles[buffer]);
                match *expr {
                    // A fixed register fills its whole tile once.
                    Expr::Const(bits, _) => tile.fill(bits),
                    Expr::Scalar(s, _) => tile.fill(scalars[s as usize]),
                    Expr::Input(input, _) => {
                        let count = if self.fixed[i] { TILE } else { count };
                        let tile = &mut tile[..count];
                        let input = input as usize;
                        match inputs[input].source {
                            _ if self.fixed[i] => {
                                let at = chunk.input_offsets[input];
                                match inputs[input].source {
                                    MapSource::Elements(elements) => elements.load(at, 0, tile),
                                    _ => tile.fill(at as u32),
                                }
                            }
                            MapSource::Elements(elements) => {
                                let next = &mut nexts[input];
                                next.clone_from(&reads[input]);
                                next.runs(count, |at, stride, range| elements.load(at, stride, &mut tile[range]));
                            }
                            MapSource::InPlace(output) => {
                                let memory = chunk.memories[outputs[output].memory].view();
                                writes[output].clone().runs(count, |at, stride, range| {
                                    memory.load(at, stride, &mut tile[range]);
                                });
                            }
                            MapSource::Iota => {
                                let next = &mut nexts[input];
                                next.clone_from(&reads[input]);
                                next.runs(count, |at, stride, range| {
                                    for (i, value) in tile[range].iter_mut().enumerate() {
                                        *value = (at + i as isize * stride) as u32;
                                    }
                                });
                            }
                        }
                    }
                    _ => ops::step(self.program, expr, |reg| self.tile(&tiles, reg, count), &mut tile[..count]),
                }
                tiles[buffer] = tile;
            }
            for ((output, reg), cursor) in outputs.iter().zip(&self.program.outputs).zip(&mut writes) {
                let values = self.tile(&tiles, *reg, count);
                let memory = &mut chunk.memories[output.memory];
                cursor.runs(count, |at, stride, range| memory.store(at, stride, &values[range]));
            }
            core::mem::swap(&mut reads, &mut nexts);
            start += count;
        }
    }

    fn tile<'t>(&self, tiles: &'t [Vec<u32>], reg: Reg, count: usize) -> &'t [u32] {
        self.buffers[reg.0 as usize].map_or(&[], |b| &tiles[b][..count])
    }
}

/// The registers a step reads.
fn operands(expr: &Expr) -> impl Iterator<Item = Reg> + use<> {
    let regs: SmallVec<[Reg; 3]> = match *expr {
        Expr::Input(..) | Expr::Scalar(..) | Expr::Const(..) => SmallVec::new(),
        Expr::Unary(_, x) | Expr::Cast(x, _) => SmallVec::from_slice(&[x]),
        Expr::Binary(_, a, b) | Expr::Hash(a, b) => SmallVec::from_slice(&[a, b]),
        Expr::Select(c, a, b) => SmallVec::from_slice(&[c, a, b]),
    };
    regs.into_iter()
}

#[cfg(test)]
mod tests;
