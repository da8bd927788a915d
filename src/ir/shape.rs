//! Shapes and layouts: how an n-dimensional index maps to a position in a storage. All view operations are here.

use core::fmt;
use core::ops::Deref;

use smallvec::SmallVec;

/// Sizes of a tensor's axes, outermost first. Rank 0 is a scalar with one element.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(SmallVec<[usize; 6]>);

impl Shape {
    /// Creates a shape from axis sizes.
    pub fn new(dims: impl IntoIterator<Item = usize>) -> Self {
        Self(dims.into_iter().collect())
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements, or `None` if it overflows `usize`.
    pub fn checked_elements(&self) -> Option<usize> {
        // An axis of size 0 makes the tensor empty, even if the other sizes would overflow.
        if self.0.contains(&0) {
            return Some(0);
        }
        self.0.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
    }

    /// Whether a tensor of this shape can be addressed: it has at most 2³¹ − 1 elements, and so does every axis of an empty
    /// tensor. Positions and strides are 32-bit on the device, and signed because strides can be negative.
    pub(crate) fn is_addressable(&self) -> bool {
        const MOST: usize = i32::MAX as usize;
        self.checked_elements().is_some_and(|n| n <= MOST) && self.0.iter().all(|&size| size <= MOST)
    }

    /// The number of elements. Saturates on overflow (a tensor of that size cannot be created).
    pub fn elements(&self) -> usize {
        self.checked_elements().unwrap_or(usize::MAX)
    }

    /// Broadcasts two shapes by NumPy's rules. Returns `None` if they are incompatible.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let dim = |s: &Shape, i: usize| (i + s.rank()).checked_sub(rank).map_or(1, |i| s[i]);
        (0..rank)
            .map(|i| match (dim(self, i), dim(other, i)) {
                (a, b) if a == b => Some(a),
                (1, b) => Some(b),
                (a, 1) => Some(a),
                _ => None,
            })
            .collect::<Option<SmallVec<_>>>()
            .map(Shape)
    }

    /// Mutable access to the axis sizes.
    pub(crate) fn dims_mut(&mut self) -> &mut SmallVec<[usize; 6]> {
        &mut self.0
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter()).finish()
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Self::new(dims)
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Self::new(dims.iter().copied())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Self::new(dims)
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

impl PartialEq<[usize]> for Shape {
    fn eq(&self, other: &[usize]) -> bool {
        **self == *other
    }
}

impl<const N: usize> PartialEq<[usize; N]> for Shape {
    fn eq(&self, other: &[usize; N]) -> bool {
        **self == *other
    }
}

/// Strides per axis, in elements. Negative for a flipped axis, 0 for a broadcast axis.
pub type Strides = SmallVec<[isize; 6]>;

/// Maps an n-dimensional index to an element position in a storage: `offset + Σ index·stride`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// Sizes of the axes.
    pub shape: Shape,
    /// Stride of each axis, in elements.
    pub strides: Strides,
    /// Position of the element at index `[0, 0, …]`.
    pub offset: usize,
}

impl Layout {
    /// A row-major layout with offset 0.
    pub fn contiguous(shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        let mut strides: Strides = SmallVec::from_elem(1, shape.rank());
        for i in (1..shape.rank()).rev() {
            strides[i - 1] = strides[i].wrapping_mul(shape[i].max(1) as isize);
        }
        Self { shape, strides, offset: 0 }
    }

    /// Whether the elements are row-major without gaps, at any offset.
    pub fn is_contiguous(&self) -> bool {
        if self.shape.elements() == 0 {
            return true;
        }
        let mut expected = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&n, &stride)| {
            let fits = n == 1 || stride == expected;
            expected = expected.wrapping_mul(n as isize);
            fits
        })
    }

    /// Whether the layout covers consecutive whole blocks of a quantised type.
    pub(crate) fn is_run_of_blocks(&self, block: usize) -> bool {
        let rows = self.shape.last().is_some_and(|n| n.is_multiple_of(block));
        rows && self.is_contiguous() && self.offset.is_multiple_of(block)
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// The number of elements of the view.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// The range of element positions that the view covers. Empty for an empty view.
    pub fn span(&self) -> core::ops::Range<usize> {
        if self.elements() == 0 {
            return self.offset..self.offset;
        }
        let (mut low, mut high) = (self.offset as isize, self.offset as isize);
        for (&n, &stride) in self.shape.iter().zip(&self.strides) {
            // Axes of one element may have any stride.
            let reach = if n == 1 { 0 } else { (n as isize - 1) * stride };
            low += reach.min(0);
            high += reach.max(0);
        }
        low as usize..high as usize + 1
    }

    /// Whether two indices of the view can map to the same element, for example on a broadcast axis.
    pub fn overlaps_itself(&self) -> bool {
        if self.elements() <= 1 {
            return false;
        }
        let mut axes: SmallVec<[(usize, usize); 6]> = self
            .shape
            .iter()
            .zip(&self.strides)
            .filter(|(n, _)| **n > 1)
            .map(|(&n, &s)| (s.unsigned_abs(), n))
            .collect();
        axes.sort_unstable();
        let mut reach = 0;
        axes.iter().any(|&(stride, n)| {
            let overlaps = stride <= reach;
            reach += stride * (n - 1);
            overlaps
        })
    }

    /// Reorders axes: axis `i` of the result is axis `order[i]` of this layout. `order` must be a permutation.
    pub fn permute(&self, order: &[usize]) -> Layout {
        Layout {
            shape: Shape::new(order.iter().map(|&i| self.shape[i])),
            strides: order.iter().map(|&i| self.strides[i]).collect(),
            offset: self.offset,
        }
    }

    /// Takes `count` elements of `axis`, starting at `start`, with step `step` (negative reverses). The caller checks
    /// bounds.
    pub fn slice(&self, axis: usize, start: usize, count: usize, step: isize) -> Layout {
        let mut view = self.clone();
        // An empty view keeps its offset, because a moved offset could be outside of the storage.
        if count > 0 && self.elements() > 0 {
            view.offset = (self.offset as isize + start as isize * self.strides[axis]) as usize;
        }
        view.shape.dims_mut()[axis] = count;
        // A step beyond the axis leaves at most one element, whose stride is not used.
        view.strides[axis] = if count > 1 { self.strides[axis].wrapping_mul(step) } else { self.strides[axis] };
        view
    }

    /// Broadcasts to `shape` by NumPy's rules. Returns `None` if the shapes are incompatible.
    pub fn broadcast_to(&self, shape: &Shape) -> Option<Layout> {
        let new = shape.rank().checked_sub(self.rank())?;
        let strides = shape
            .iter()
            .enumerate()
            .map(|(i, &n)| match i.checked_sub(new) {
                None => Some(0),
                Some(i) if self.shape[i] == n => Some(self.strides[i]),
                Some(i) if self.shape[i] == 1 => Some(0),
                Some(_) => None,
            })
            .collect::<Option<Strides>>()?;
        Some(Layout { shape: shape.clone(), strides, offset: self.offset })
    }

    /// Views the same elements with another shape. Returns `None` if no strides can express it, so that a copy is
    /// needed.
    pub fn reshape(&self, shape: &Shape) -> Option<Layout> {
        if shape.elements() != self.elements() {
            return None;
        }
        if self.elements() == 0 || self.is_contiguous() {
            return Some(Layout { offset: self.offset, ..Layout::contiguous(shape.clone()) });
        }
        // Walk both shapes from the innermost axis, in groups with equal element counts. The strides of the old axes in
        // a group must be consecutive.
        let old: SmallVec<[(usize, isize); 6]> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(n, _)| n != 1).collect();
        let mut strides: Strides = SmallVec::from_elem(0, shape.rank());
        let mut j = old.len();
        let mut i = shape.rank();
        while i > 0 {
            if shape[i - 1] == 1 {
                i -= 1;
                continue;
            }
            j = j.checked_sub(1)?;
            let (mut old_n, old_stride) = old[j];
            let mut stride = old_stride;
            let mut new_n = 1;
            loop {
                if new_n < old_n {
                    i = i.checked_sub(1)?;
                    strides[i] = stride;
                    stride *= shape[i] as isize;
                    new_n *= shape[i];
                } else if new_n > old_n {
                    let (n, s) = old[j.checked_sub(1)?];
                    if s != old_stride * old_n as isize {
                        return None;
                    }
                    j -= 1;
                    old_n *= n;
                } else {
                    break;
                }
            }
        }
        Some(Layout { shape: shape.clone(), strides, offset: self.offset })
    }

    /// The element position of a row-major index of the view. Slow: for single values and tests.
    pub fn position(&self, mut index: usize) -> usize {
        let mut at = self.offset as isize;
        for (&n, &stride) in self.shape.iter().zip(&self.strides).rev() {
            at += (index % n) as isize * stride;
            index /= n;
        }
        at as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(layout: &Layout) -> Vec<usize> {
        (0..layout.elements()).map(|i| layout.position(i)).collect()
    }

    #[test]
    fn broadcast_follows_numpy() {
        let b = |a: &[usize], b: &[usize]| Shape::from(a).broadcast(&Shape::from(b));
        assert_eq!(b(&[3, 1, 4], &[2, 4]), Some(Shape::from([3, 2, 4])));
        assert_eq!(b(&[3, 4], &[2, 4]), None);
        assert_eq!(b(&[], &[5]), Some(Shape::from([5])));
        assert_eq!(b(&[0], &[1]), Some(Shape::from([0])));
        assert_eq!(b(&[0], &[3]), None);
    }

    #[test]
    fn reshape_keeps_row_major_order_or_refuses() {
        let base = Layout::contiguous([4, 6]);
        for view in [base.clone(), base.permute(&[1, 0]), base.slice(0, 1, 2, 1), base.slice(1, 5, 3, -2)] {
            let n = view.elements();
            for shape in [vec![n], vec![n, 1], vec![2, n / 2], vec![1, n / 2, 1, 2], vec![n / 3, 3]] {
                let shape = Shape::from(shape);
                if shape.elements() != n {
                    continue;
                }
                if let Some(reshaped) = view.reshape(&shape) {
                    assert_eq!(positions(&reshaped), positions(&view), "{view:?} as {shape}");
                }
            }
        }
        assert!(base.permute(&[1, 0]).reshape(&Shape::from([24])).is_none());
        assert!(base.slice(1, 0, 3, 2).reshape(&Shape::from([2, 2, 3])).is_some());
    }

    #[test]
    fn span_and_overlap_see_negative_and_zero_strides() {
        let base = Layout::contiguous([4, 6]);
        assert_eq!(base.slice(1, 5, 6, -1).span(), 0..24);
        assert_eq!(base.slice(0, 2, 1, 1).span(), 12..18);
        assert!(!base.permute(&[1, 0]).overlaps_itself());
        let row = Layout::contiguous([6]).broadcast_to(&Shape::from([4, 6])).expect("fits");
        assert!(row.overlaps_itself());
    }
}
