//! The CPU rivals that run in this process.

use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

use candle_core::Device;

use crate::array::Array;
use crate::measure::Contestant;
use crate::ours::SETS;

/// Number of threads for everyone on the CPU, the same as for our own backend.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The `gemm` crate, called directly with existing memory: `batch` products `[m, k] · [k, n]`.
pub struct Gemm {
    size: GemmSize,
    sets: Vec<[Vec<f32>; 3]>,
}

#[derive(Clone, Copy)]
pub struct GemmSize {
    pub batch: usize,
    pub m: usize,
    pub k: usize,
    pub n: usize,
}

impl Gemm {
    pub fn new(size: GemmSize, inputs: &[Array]) -> Self {
        let GemmSize { batch, m, k, n } = size;
        let [a, b] = inputs else { panic!("a product has two operands") };
        assert_eq!((a.values.len(), b.values.len()), (batch * m * k, batch * k * n));
        let set = || [a.values.to_vec(), b.values.to_vec(), vec![0.0; batch * m * n]];
        Self { size, sets: (0..SETS).map(|_| set()).collect() }
    }
}

impl Contestant for Gemm {
    fn name(&self) -> String {
        "gemm".to_owned()
    }

    fn run(&mut self, repetitions: usize) -> Duration {
        let GemmSize { batch, m, k, n } = self.size;
        let parallelism = gemm::Parallelism::Rayon(threads());
        let start = Instant::now();
        for repetition in 0..repetitions {
            let [a, b, y] = &mut self.sets[repetition % SETS];
            for i in 0..batch {
                let (a, b, y) = (&a[i * m * k..][..m * k], &b[i * k * n..][..k * n], &mut y[i * m * n..][..m * n]);
                let (rows, columns) = (n as isize, k as isize);
                // SAFETY: the slices are exactly the row-major matrices that the sizes and strides describe, and `y`
                // overlaps neither.
                unsafe {
                    gemm::gemm(
                        m,
                        n,
                        k,
                        y.as_mut_ptr(),
                        1,
                        rows,
                        false,
                        a.as_ptr(),
                        1,
                        columns,
                        b.as_ptr(),
                        1,
                        rows,
                        0.0,
                        1.0,
                        false,
                        false,
                        false,
                        parallelism,
                    );
                }
            }
            black_box(&self.sets[repetition % SETS][2]);
        }
        start.elapsed()
    }

    fn result(&mut self) -> Vec<f32> {
        self.sets[0][2].clone()
    }
}

/// Runs the work once with candle.
pub type CandleRun = Rc<dyn Fn(&[candle_core::Tensor]) -> candle_core::Result<candle_core::Tensor>>;

/// candle on the CPU, op by op.
pub struct Candle {
    run: CandleRun,
    sets: Vec<Vec<candle_core::Tensor>>,
    last: Option<candle_core::Tensor>,
}

impl Candle {
    pub fn new(inputs: &[Array], run: CandleRun) -> Self {
        let make = |array: &Array| {
            candle_core::Tensor::from_slice(&array.values[..], array.shape.clone(), &Device::Cpu).expect("shapes fit")
        };
        let shared: Vec<_> = inputs.iter().map(|array| array.shared.then(|| make(array))).collect();
        let set = || inputs.iter().zip(&shared).map(|(a, s)| s.clone().unwrap_or_else(|| make(a))).collect();
        Self { run, sets: (0..SETS).map(|_| set()).collect(), last: None }
    }
}

impl Contestant for Candle {
    fn name(&self) -> String {
        "candle".to_owned()
    }

    fn run(&mut self, repetitions: usize) -> Duration {
        let start = Instant::now();
        for set in self.sets.iter().cycle().take(repetitions) {
            self.last = Some(black_box((self.run)(set).expect("candle does the work")));
        }
        start.elapsed()
    }

    fn result(&mut self) -> Vec<f32> {
        let last = self.last.as_ref().map(|tensor| tensor.flatten_all().and_then(|flat| flat.to_vec1()));
        last.transpose().expect("candle's result is f32").unwrap_or_default()
    }
}

/// Runs the work once with plain loops.
pub type PlainRun = Rc<dyn Fn(&[Vec<f32>]) -> Vec<f32>>;

/// One pass and one new vector per op, as ndarray evaluates expressions.
pub struct Plain {
    run: PlainRun,
    sets: Vec<Vec<Vec<f32>>>,
    last: Vec<f32>,
}

impl Plain {
    pub fn new(inputs: &[Array], run: PlainRun) -> Self {
        let set = || inputs.iter().map(|array| array.values.to_vec()).collect();
        Self { run, sets: (0..SETS).map(|_| set()).collect(), last: Vec::new() }
    }
}

impl Contestant for Plain {
    fn name(&self) -> String {
        "plain".to_owned()
    }

    fn run(&mut self, repetitions: usize) -> Duration {
        let start = Instant::now();
        for set in self.sets.iter().cycle().take(repetitions) {
            self.last = black_box((self.run)(set));
        }
        start.elapsed()
    }

    fn result(&mut self) -> Vec<f32> {
        self.last.clone()
    }
}
