//! The results that a thread of a product keeps in registers if the operands are tiled in workgroup memory: matrix
//! products and convolutions.
//!
//! 64 threads compute `rows` (32 or 64) × 64 results from 16 steps of k at a time. A thread has 8 columns, in two quads
//! that lie half a tile apart, and 4 rows, or 8 rows that are split in the same way. The text is fully unrolled because
//! drivers only keep variables in registers that are never indexed.
//!
//! The body provides `T` and `combine` (see [`PRODUCT`]). For each side it provides `left_tile`, vectors of four
//! neighbouring lines with `left_PITCH` of them per step, and `left_at`, the index of the thread's first vector. These
//! lines of the body are replaced:
//!
//! | line | replaced by |
//! |---|---|
//! | `#sums` | the variables, initially 0 |
//! | `#products` | a loop that adds the products of all steps of the tiles |
//! | `#slices` | the sum over all `slices` sets of threads, in order; only the first set (`slice` 0) continues |
//! | `#results` | an array of all sums, `rows / 4` of them: two quads per row |

use core::fmt::Write;

/// `combine` of ordinary products.
pub(crate) const PRODUCT: &str = "fn combine(sum: vec4<T>, a: vec4<T>, b: vec4<T>) -> vec4<T> { return sum + a * b; }";

/// The tile of a product.
#[derive(Clone, Copy)]
pub(crate) struct RegisterTile {
    /// Rows of the workgroup's tile: 32 or 64.
    pub rows: usize,
    /// Number of sets of threads that split k. If there are several, `rows` is 32.
    pub slices: usize,
}

impl RegisterTile {
    /// Replaces the marked lines of a body.
    pub(crate) fn expand(self, body: &str) -> String {
        let marks = [
            ("#sums", self.declarations()),
            ("#products", self.products()),
            ("#slices", self.add_slices()),
            ("#results", self.results()),
        ];
        marks.into_iter().fold(body.to_owned(), |text, (mark, lines)| text.replace(mark, lines.trim()))
    }

    /// Row and quad of each sum of a thread.
    fn sums(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.rows / 8).flat_map(|row| [(row, 0), (row, 1)])
    }

    fn declarations(self) -> String {
        self.sums().map(|(row, quad)| format!("    var sum{row}_{quad} = vec4<T>();\n")).collect()
    }

    fn products(self) -> String {
        let mut text = "for (var k = 0u; k < 16u; k++) {
            let right0 = right_tile[right_at + k * right_PITCH];
            let right1 = right_tile[right_at + k * right_PITCH + 8u];\n"
            .to_owned();
        // Writing to a string cannot fail.
        for (row, quad) in self.sums() {
            let (vector, member) = (row / 4, ["x", "y", "z", "w"][row % 4]);
            if row % 4 == 0 && quad == 0 {
                let vector_at = format!("left_at + k * left_PITCH + {}u", vector * 8);
                let _ = writeln!(text, "            let left{vector} = left_tile[{vector_at}];");
            }
            let sum = format!("sum{row}_{quad}");
            let _ = writeln!(text, "            {sum} = combine({sum}, vec4<T>(left{vector}.{member}), right{quad});");
        }
        text + "        }"
    }

    fn add_slices(self) -> String {
        if self.slices == 1 {
            return String::new();
        }
        // The tiles are no longer needed, so their memory holds one slice after the other.
        let (mut give, mut take) = (String::new(), String::new());
        for (i, (row, quad)) in self.sums().enumerate() {
            let at = 64 * i;
            let _ = writeln!(give, "            right_tile[{at}u + lid] = sum{row}_{quad};");
            let _ = writeln!(take, "            sum{row}_{quad} += right_tile[{at}u + lid];");
        }
        format!(
            "for (var later = 1u; later < {}u; later++) {{
        if (slice == later) {{
{give}        }}
        workgroupBarrier();
        if (slice == 0u) {{
{take}        }}
        workgroupBarrier();
    }}
    if (slice > 0u) {{
        return;
    }}",
            self.slices
        )
    }

    fn results(self) -> String {
        let sums: Vec<_> = self.sums().map(|(row, quad)| format!("sum{row}_{quad}")).collect();
        format!("array<vec4<T>, {}>({})", sums.len(), sums.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_has_the_sums_of_its_rows_and_adds_up_slices_only_if_there_are_several() {
        let body = "#sums\n#products\n#slices\nlet all = #results;";
        for (rows, slices) in [(32, 1), (32, 4), (64, 1)] {
            let text = RegisterTile { rows, slices }.expand(body);
            assert!(!text.contains('#'), "{text}");
            assert_eq!(text.matches("var sum").count(), rows / 4);
            assert_eq!(text.matches("combine(").count(), rows / 4);
            assert_eq!(text.contains("workgroupBarrier"), slices > 1);
        }
    }
}
