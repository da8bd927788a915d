//! A plain array on the host that results are compared with. Slow, simple, and in `f64`.

use bevy_tensor_compute::error::TensorError;
use bevy_tensor_compute::prelude::*;
use half::{bf16, f16};

/// Row-major values with a shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

/// A view of the same elements, supported by tensors, recordings and arrays.
#[derive(Clone, Debug, PartialEq)]
pub enum View {
    Slice { axis: usize, start: isize, end: isize, step: isize },
    Permute(Vec<usize>),
    Broadcast(Vec<usize>),
    Reshape(Vec<usize>),
}

impl View {
    /// Reverses an axis.
    pub fn flip(axis: usize) -> Self {
        View::Slice { axis, start: -1, end: isize::MIN / 2, step: -1 }
    }

    pub fn of_tensor(&self, tensor: &Tensor) -> Result<Tensor, TensorError> {
        match self {
            &View::Slice { axis, start, end, step } => tensor.slice_step(axis as isize, start, end, step),
            View::Permute(order) => tensor.permute(&signed(order)),
            View::Broadcast(shape) => tensor.broadcast_to(shape.as_slice()),
            View::Reshape(shape) => tensor.reshape(shape.as_slice()),
        }
    }

    pub fn of_value<'a>(&self, ops: &'a TensorCommands, x: impl Into<TensorOperand<'a>>) -> OpResult<TensorValue<'a>> {
        match self {
            &View::Slice { axis, start, end, step } => ops.slice_step(x, axis, start, end, step),
            View::Permute(order) => ops.permute(x, &signed(order)),
            View::Broadcast(shape) => ops.broadcast_to(x, shape.as_slice()),
            View::Reshape(shape) => ops.reshape(x, &signed(shape)),
        }
    }

    pub fn of_array(&self, x: &Array) -> Array {
        match self {
            &View::Slice { axis, start, end, step } => {
                let positions = python_range(x.shape[axis], start, end, step);
                let mut shape = x.shape.clone();
                shape[axis] = positions.len();
                Array::from_fn(&shape, |index| {
                    let mut index = index.to_vec();
                    index[axis] = positions[index[axis]];
                    x.at(&index)
                })
            }
            View::Permute(order) => {
                let shape: Vec<usize> = order.iter().map(|&axis| x.shape[axis]).collect();
                Array::from_fn(&shape, |index| {
                    let mut from = vec![0; index.len()];
                    for (i, &axis) in order.iter().enumerate() {
                        from[axis] = index[i];
                    }
                    x.at(&from)
                })
            }
            View::Broadcast(shape) => x.broadcast(shape),
            View::Reshape(shape) => Array { shape: shape.clone(), values: x.values.clone() },
        }
    }
}

fn signed(sizes: &[usize]) -> Vec<isize> {
    sizes.iter().map(|&size| size as isize).collect()
}

fn python_range(size: usize, start: isize, end: isize, step: isize) -> Vec<usize> {
    let n = size as isize;
    let from_back = |i: isize| if i < 0 { i + n } else { i };
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let (mut at, end) = (from_back(start).clamp(low, high), from_back(end).clamp(low, high));
    let mut positions = Vec::new();
    while (step > 0 && at < end) || (step < 0 && at > end) {
        positions.push(at as usize);
        at += step;
    }
    positions
}

/// Every index of a shape, in row-major order.
pub fn indices(shape: &[usize]) -> impl Iterator<Item = Vec<usize>> + '_ {
    let count: usize = shape.iter().product();
    (0..count).map(move |mut flat| {
        let mut index = vec![0; shape.len()];
        for axis in (0..shape.len()).rev() {
            index[axis] = flat % shape[axis];
            flat /= shape[axis];
        }
        index
    })
}

/// The shape that two shapes broadcast to.
pub fn broadcast_shape(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let size = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
    (0..rank).map(|i| if size(a, i) == 1 { size(b, i) } else { size(a, i) }).collect()
}

impl Array {
    pub fn new(shape: &[usize], values: Vec<f64>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), values.len());
        Self { shape: shape.to_vec(), values }
    }

    pub fn from_fn(shape: &[usize], f: impl Fn(&[usize]) -> f64) -> Self {
        Self { shape: shape.to_vec(), values: indices(shape).map(|index| f(&index)).collect() }
    }

    /// The result of a readback.
    pub fn from_data(data: &TensorData) -> Self {
        let shape = data.shape().to_vec();
        let values = match data.dtype() {
            DType::I32 => data.as_slice::<i32>().expect("i32").iter().map(|&v| f64::from(v)).collect(),
            DType::U32 => data.as_slice::<u32>().expect("u32").iter().map(|&v| f64::from(v)).collect(),
            _ => data.to_f32().into_iter().map(f64::from).collect(),
        };
        Self { shape, values }
    }

    /// Converts to host data of a type, as a cast would.
    pub fn to_data(&self, dtype: DType) -> TensorData {
        let (v, shape) = (&self.values, self.shape.as_slice());
        let data = match dtype {
            DType::F32 => TensorData::new(&v.iter().map(|&v| v as f32).collect::<Vec<_>>(), shape),
            DType::F16 => TensorData::new(&v.iter().map(|&v| f16::from_f64(v)).collect::<Vec<_>>(), shape),
            DType::BF16 => TensorData::new(&v.iter().map(|&v| bf16::from_f64(v)).collect::<Vec<_>>(), shape),
            DType::I32 => TensorData::new(&v.iter().map(|&v| v as i32).collect::<Vec<_>>(), shape),
            DType::U32 => TensorData::new(&v.iter().map(|&v| v as u32).collect::<Vec<_>>(), shape),
            DType::I8 => TensorData::new(&v.iter().map(|&v| v as i8).collect::<Vec<_>>(), shape),
            DType::U8 => TensorData::new(&v.iter().map(|&v| v as u8).collect::<Vec<_>>(), shape),
            DType::Bool => TensorData::new(&v.iter().map(|&v| Truth::from(v != 0.0)).collect::<Vec<_>>(), shape),
            _ => TensorData::quantized(dtype, shape, &v.iter().map(|&v| v as f32).collect::<Vec<_>>()),
        };
        data.expect("as many as the shape has")
    }

    pub fn at(&self, index: &[usize]) -> f64 {
        self.values[self.position(index)]
    }

    pub fn position(&self, index: &[usize]) -> usize {
        index.iter().zip(&self.shape).fold(0, |at, (&i, &n)| at * n + i)
    }

    pub fn broadcast(&self, shape: &[usize]) -> Array {
        let lead = shape.len() - self.shape.len();
        Array::from_fn(shape, |index| {
            let own: Vec<usize> =
                index[lead..].iter().zip(&self.shape).map(|(&i, &n)| if n == 1 { 0 } else { i }).collect();
            self.at(&own)
        })
    }

    pub fn map(&self, f: impl Fn(f64) -> f64) -> Array {
        Array { shape: self.shape.clone(), values: self.values.iter().map(|&v| f(v)).collect() }
    }

    pub fn zip(&self, other: &Array, f: impl Fn(f64, f64) -> f64) -> Array {
        let shape = broadcast_shape(&self.shape, &other.shape);
        let (a, b) = (self.broadcast(&shape), other.broadcast(&shape));
        Array { values: a.values.iter().zip(&b.values).map(|(&a, &b)| f(a, b)).collect(), shape }
    }

    pub fn view(&self, view: View) -> Array {
        view.of_array(self)
    }

    /// Reduces the elements along some axes, which keep size 1.
    pub fn reduce(&self, axes: &[usize], f: impl Fn(&[f64]) -> f64) -> Array {
        let mut shape = self.shape.clone();
        axes.iter().for_each(|&axis| shape[axis] = 1);
        let mut groups = vec![Vec::new(); shape.iter().product()];
        let out = Array { values: vec![0.0; groups.len()], shape: shape.clone() };
        for (index, &value) in indices(&self.shape).zip(&self.values) {
            let index: Vec<usize> = index.iter().zip(&shape).map(|(&i, &n)| if n == 1 { 0 } else { i }).collect();
            groups[out.position(&index)].push(value);
        }
        Array { shape, values: groups.iter().map(|group| f(group)).collect() }
    }

    /// Replaces each line along an axis by the same number of values.
    pub fn along(&self, axis: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Array {
        let mut out = self.clone();
        let mut firsts = self.shape.clone();
        firsts[axis] = firsts[axis].min(1);
        for index in indices(&firsts) {
            let places: Vec<usize> = (0..self.shape[axis])
                .map(|i| {
                    let mut index = index.clone();
                    index[axis] = i;
                    self.position(&index)
                })
                .collect();
            let line: Vec<f64> = places.iter().map(|&place| self.values[place]).collect();
            for (&place, value) in places.iter().zip(f(&line)) {
                out.values[place] = value;
            }
        }
        out
    }

    pub fn softmax(&self, axis: usize) -> Array {
        self.along(axis, |line| {
            let top = line.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = line.iter().map(|v| (v - top).exp()).sum();
            line.iter().map(|v| (v - top).exp() / sum).collect()
        })
    }

    /// Swaps the last two axes.
    pub fn transpose(&self) -> Array {
        let mut order: Vec<usize> = (0..self.shape.len()).collect();
        let rank = order.len();
        order.swap(rank - 1, rank - 2);
        self.view(View::Permute(order))
    }

    /// Product of matrices. The axes before them broadcast.
    pub fn matmul(&self, other: &Array) -> Array {
        let (ra, rb) = (self.shape.len(), other.shape.len());
        let [m, k, n] = [self.shape[ra - 2], self.shape[ra - 1], other.shape[rb - 1]];
        let batch = broadcast_shape(&self.shape[..ra - 2], &other.shape[..rb - 2]);
        let full = |last: [usize; 2]| batch.iter().copied().chain(last).collect::<Vec<_>>();
        let (a, b) = (self.broadcast(&full([m, k])), other.broadcast(&full([k, n])));
        let mut out = Array { shape: full([m, n]), values: Vec::new() };
        for of in 0..batch.iter().product() {
            for row in 0..m {
                for column in 0..n {
                    let (a, b) = (&a.values[of * m * k + row * k..][..k], &b.values[of * k * n..]);
                    out.values.push(a.iter().enumerate().map(|(i, a)| a * b[i * n + column]).sum());
                }
            }
        }
        out
    }

    /// Convolution of `[n, c, h, w]` with `[out, c, kh, kw]`, stride 1, zero padding on both sides of both axes.
    pub fn conv2d(&self, weight: &Array, padding: [usize; 2]) -> Array {
        let [n, c, h, w] = self.shape[..] else { panic!("an image") };
        let [out, _, kh, kw] = weight.shape[..] else { panic!("a window") };
        let (oh, ow) = (h + 2 * padding[0] + 1 - kh, w + 2 * padding[1] + 1 - kw);
        let mut values = vec![0.0; n * out * oh * ow];
        for ((image, to), y, x) in
            (0..n * out).flat_map(|i| (0..oh).flat_map(move |y| (0..ow).map(move |x| ((i / out, i % out), y, x))))
        {
            let mut sum = 0.0;
            for (from, ky, kx) in
                (0..c).flat_map(|from| (0..kh).flat_map(move |ky| (0..kw).map(move |kx| (from, ky, kx))))
            {
                let (sy, sx) = ((y + ky).wrapping_sub(padding[0]), (x + kx).wrapping_sub(padding[1]));
                if sy < h && sx < w {
                    sum += self.values[((image * c + from) * h + sy) * w + sx]
                        * weight.values[((to * c + from) * kh + ky) * kw + kx];
                }
            }
            values[((image * out + to) * oh + y) * ow + x] = sum;
        }
        Array { shape: vec![n, out, oh, ow], values }
    }
}

/// The error function, by its series.
pub fn erf(x: f64) -> f64 {
    if x.abs() > 4.5 || x.is_nan() {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}
