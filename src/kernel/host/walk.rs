//! Row-major iteration over strided layouts without a division per element.

use smallvec::SmallVec;

use crate::ir::Layout;

/// A position in a strided layout that advances in row-major order.
#[derive(Clone)]
pub(crate) struct Cursor {
    /// Sizes and strides, with axes merged where possible. At least one axis.
    axes: SmallVec<[(usize, isize); 6]>,
    index: SmallVec<[usize; 6]>,
    at: isize,
}

impl Cursor {
    /// Starts at the first element of the layout with these sizes and strides.
    pub(crate) fn new(shape: &[usize], strides: &[isize], offset: isize) -> Self {
        let mut axes: SmallVec<[(usize, isize); 6]> = SmallVec::new();
        for (&n, &stride) in shape.iter().zip(strides) {
            match axes.last_mut() {
                _ if n == 1 => {}
                // An outer axis whose stride spans exactly one inner axis is merged with it.
                Some(outer) if outer.1 == stride * n as isize => *outer = (outer.0 * n, stride),
                _ => axes.push((n, stride)),
            }
        }
        if axes.is_empty() {
            axes.push((1, 0));
        }
        let index = SmallVec::from_elem(0, axes.len());
        Self { axes, index, at: offset }
    }

    /// Starts at the first element of a layout.
    pub(crate) fn of(layout: &Layout) -> Self {
        Self::new(&layout.shape, &layout.strides, layout.offset as isize)
    }

    /// Like [`Self::runs`], without advancing.
    pub(crate) fn peek(&self, count: usize, mut run: impl FnMut(isize, isize, core::ops::Range<usize>)) {
        match self.axes[..] {
            [(n, stride)] if self.index[0] + count <= n => run(self.at, stride, 0..count),
            _ => self.clone().runs(count, run),
        }
    }

    /// Advances past the next `count` elements and returns the position of the first, if they are contiguous. Otherwise
    /// stays.
    pub(crate) fn contiguous_run(&mut self, count: usize) -> Option<usize> {
        let last = self.axes.len() - 1;
        let (n, stride) = self.axes[last];
        if stride != 1 || self.index[last] + count > n {
            return None;
        }
        let at = self.at as usize;
        self.runs(count, |_, _, _| {});
        Some(at)
    }

    /// Splits the next `count` elements into runs. Passes the first position, the stride, and the range of the run
    /// within `count`.
    pub(crate) fn runs(&mut self, count: usize, mut run: impl FnMut(isize, isize, core::ops::Range<usize>)) {
        let last = self.axes.len() - 1;
        let (n, stride) = self.axes[last];
        let mut done = 0;
        while done < count {
            let length = (n - self.index[last]).min(count - done);
            if length == 0 {
                return;
            }
            run(self.at, stride, done..done + length);
            done += length;
            self.at += length as isize * stride;
            self.index[last] += length;
            let mut axis = last;
            while self.index[axis] == self.axes[axis].0 && axis > 0 {
                self.at += self.axes[axis - 1].1 - self.axes[axis].0 as isize * self.axes[axis].1;
                self.index[axis] = 0;
                axis -= 1;
                self.index[axis] += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_visit_positions_in_row_major_order() {
        let base = Layout::contiguous([3, 5, 7]);
        for layout in [
            base.clone(),
            base.permute(&[2, 0, 1]),
            base.slice(1, 4, 3, -2),
            base.slice(2, 1, 3, 2).permute(&[1, 0, 2]),
            Layout::contiguous([7]).broadcast_to(&[3, 7].into()).expect("fits"),
            Layout::contiguous([]),
        ] {
            for step in [1, 2, 63, 1000] {
                let mut cursor = Cursor::of(&layout);
                let mut seen = Vec::new();
                let mut left = layout.elements();
                while left > 0 {
                    let count = step.min(left);
                    let start = seen.len();
                    let mut ahead = Vec::new();
                    let first = layout.position(seen.len());
                    let run = cursor.clone().contiguous_run(count);
                    assert!(
                        run.is_none_or(|at| at == first && layout.position(seen.len() + count - 1) == at + count - 1)
                    );
                    assert!(run.is_some() || !layout.is_contiguous() || layout.rank() == 0);
                    cursor.peek(count, |at, stride, range| {
                        ahead.extend((0..range.len()).map(|i| (at + i as isize * stride) as usize));
                    });
                    cursor.runs(count, |at, stride, range| {
                        assert_eq!(range.start + start, seen.len());
                        seen.extend((0..range.len()).map(|i| (at + i as isize * stride) as usize));
                    });
                    assert_eq!(seen[start..], ahead);
                    left -= count;
                }
                let expected: Vec<usize> = (0..layout.elements()).map(|i| layout.position(i)).collect();
                assert_eq!(seen, expected, "{layout:?}");
            }
        }
    }
}
