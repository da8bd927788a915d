//! The rows of a crowd's input on the host, and which of them have changed.

use crate::error::TensorError;
use crate::tensor::TensorData;

/// The smallest number of rows. Crowds below it share one plan.
const LEAST: usize = 16;

/// The observations of all members, one row each.
pub(super) struct Rows {
    /// Numbers per row.
    width: usize,
    values: Vec<f32>,
    /// Rows that a member had and has no more.
    free: Vec<u32>,
    /// Rows below this number have been given out.
    used: usize,
    changed: Vec<u32>,
    is_changed: Vec<bool>,
}

/// What has to be uploaded.
pub(super) enum Upload {
    Nothing,
    All(TensorData),
    /// Row numbers `[k, 1]` and rows `[k, width]`. Some rows may be there twice.
    Some(TensorData, TensorData),
}

impl Rows {
    pub(super) fn new(width: usize) -> Self {
        Self { width, values: Vec::new(), free: Vec::new(), used: 0, changed: Vec::new(), is_changed: Vec::new() }
    }

    pub(super) fn members(&self) -> usize {
        self.used - self.free.len()
    }

    /// Number of rows of the input, a power of two. Zero without members.
    pub(super) fn capacity(&self) -> usize {
        self.values.len() / self.width
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// A free row.
    pub(super) fn take(&mut self) -> u32 {
        let row = self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            self.used as u32 - 1
        });
        if self.used > self.capacity() {
            self.resize(self.used.next_power_of_two().max(LEAST));
        }
        row
    }

    /// Gives a row back.
    pub(super) fn give_back(&mut self, row: u32) {
        self.free.push(row);
        if self.free.len() == self.used {
            self.restart();
        }
    }

    /// Whether so many rows are unused that it pays to number the members anew.
    pub(super) fn is_sparse(&self) -> bool {
        self.capacity() > LEAST && self.members() * 4 <= self.capacity()
    }

    /// Forgets all rows, because the members are numbered anew.
    pub(super) fn restart(&mut self) {
        self.free.clear();
        self.used = 0;
        self.values.clear();
        self.changed.clear();
        self.is_changed.clear();
    }

    fn resize(&mut self, capacity: usize) {
        self.values.resize(capacity * self.width, 0.0);
        self.is_changed.resize(capacity, false);
    }

    pub(super) fn set(&mut self, row: u32, values: &[f32]) {
        let at = row as usize;
        self.values[at * self.width..(at + 1) * self.width].copy_from_slice(values);
        if !core::mem::replace(&mut self.is_changed[at], true) {
            self.changed.push(row);
        }
    }

    /// What has changed since the last call. With `all`, everything; a part only if it is less than half.
    pub(super) fn take_changes(&mut self, all: bool) -> Result<Upload, TensorError> {
        let capacity = self.capacity();
        // As with the rows themselves, a power of two keeps the number of different plans small.
        let count = self.changed.len().next_power_of_two().max(LEAST);
        let upload = if all || count * 2 > capacity {
            Upload::All(TensorData::new(&self.values, [capacity, self.width])?)
        } else if let Some(&last) = self.changed.last() {
            self.changed.resize(count, last);
            let numbers: Vec<i32> = self.changed.iter().map(|&row| row as i32).collect();
            let row = |&row: &u32| &self.values[row as usize * self.width..(row as usize + 1) * self.width];
            let rows: Vec<f32> = self.changed.iter().flat_map(row).copied().collect();
            Upload::Some(TensorData::new(&numbers, [count, 1])?, TensorData::new(&rows, [count, self.width])?)
        } else {
            Upload::Nothing
        };
        self.changed.clear();
        self.is_changed.fill(false);
        Ok(upload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(upload: Upload) -> Option<Vec<i32>> {
        match upload {
            Upload::Some(numbers, _) => Some(numbers.as_slice::<i32>().unwrap().to_vec()),
            Upload::All(_) => None,
            Upload::Nothing => Some(Vec::new()),
        }
    }

    #[test]
    fn rows_are_reused_and_the_capacity_is_a_power_of_two() {
        let mut rows = Rows::new(2);
        assert_eq!((rows.capacity(), rows.members()), (0, 0));
        let taken: Vec<u32> = (0..17).map(|_| rows.take()).collect();
        assert_eq!(taken, (0..17).collect::<Vec<_>>());
        assert_eq!((rows.capacity(), rows.members()), (32, 17));
        rows.give_back(3);
        assert_eq!((rows.take(), rows.members()), (3, 17));
        (0..17).for_each(|row| rows.give_back(row));
        assert_eq!((rows.capacity(), rows.members(), rows.take()), (0, 0, 0));
    }

    #[test]
    fn few_changes_are_uploaded_alone_and_only_once() {
        let mut rows = Rows::new(1);
        let taken: Vec<u32> = (0..64).map(|_| rows.take()).collect();
        assert_eq!(taken.len(), rows.members());
        (0..64).for_each(|row| rows.set(row, &[row as f32]));
        assert_eq!(numbers(rows.take_changes(false).unwrap()), None, "all have changed");
        rows.set(9, &[1.0]);
        rows.set(40, &[2.0]);
        rows.set(9, &[3.0]);
        let Upload::Some(numbers_of, values) = rows.take_changes(false).unwrap() else { panic!("two rows of 64") };
        let (numbers_of, values) = (numbers_of.as_slice::<i32>().unwrap(), values.as_slice::<f32>().unwrap());
        assert_eq!((numbers_of.len(), numbers_of[0], numbers_of[1], numbers_of[15]), (16, 9, 40, 40));
        assert_eq!((values[0], values[1], values[15]), (3.0, 2.0, 2.0));
        assert_eq!(numbers(rows.take_changes(false).unwrap()), Some(Vec::new()), "nothing has changed");
        assert_eq!(numbers(rows.take_changes(true).unwrap()), None, "all were asked for");
    }
}
