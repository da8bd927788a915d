//! The variants of kernels. `KernelSpec::forms` lists those that a launch can use, with the default for the device
//! first. The tuner measures all of them and forces the fastest through [`Caps::variant`].
//!
//! | kernel | variants | default on a GPU | default on a software adapter |
//! |---|---|---|---|
//! | matmul | registers R×Q, tiled R×S, few | tiled 32×1 … 64×4; few up to 4 rows or columns | registers, by size |
//! | reduce | column thread ×1 ×4, column workgroup, and those of rows | by number of columns | column threads |
//! | softmax, row_norm, reduce | row thread, subgroup, subgroups, workgroup | subgroups or workgroup | row thread |
//! | conv | depthwise, registers R×Q, tiled, direct ×1 ×4 ×8 | tiled | registers |
//! | fft | stockham, sums | stockham; sums up to 8 points | the same |
//! | map | 64, 128 or 256 threads, wide loads or not | 64 threads | 64 threads, wide |
//!
//! The defaults for rows also depend on their number and length: see `wgsl/rows.rs`.

use core::fmt;

use smallvec::SmallVec;

use super::Caps;
use crate::kernel::Step;

/// One variant of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Variant {
    /// Products: a tile of `rows` rows and `quads` quads of columns per lane, in registers only.
    Registers { rows: u8, quads: u8 },
    /// Products: tiles of `rows` rows in workgroup memory, with k split over `slices` sets of threads.
    Tiled { rows: u8, slices: u8 },
    /// Products of few rows or columns: k split over the threads of a workgroup.
    Few,
    /// One thread per row.
    RowThread,
    /// One workgroup per row that consists of a single subgroup.
    RowSubgroup,
    /// One workgroup per row, reduced within subgroups first.
    RowSubgroups,
    /// One workgroup per row, reduced in workgroup memory.
    RowWorkgroup,
    /// One thread for this many quads of columns.
    ColumnThread(u8),
    /// One workgroup for a few quads of columns.
    ColumnWorkgroup,
    /// Depthwise convolution, in strips of a plane.
    Depthwise,
    /// Convolution as a product, tiled in registers.
    ConvRegisters,
    /// Convolution as a product, tiled in workgroup memory.
    ConvTiled,
    /// Convolution with one thread for this many channels at a few positions.
    ConvDirect(u8),
    /// Fourier transforms in workgroup memory, stage by stage.
    Stockham,
    /// Fourier transforms as sums, with one thread for each result.
    Sums,
    /// Elementwise work: threads per workgroup, and whether quads are read as 64-bit words.
    Map { threads: u16, wide: bool },
}

/// The variants that a launch can use, the default first. Empty if there is no choice.
pub(crate) type Variants = SmallVec<[Variant; 12]>;

/// All variants except tiles in registers, for parsing names.
pub(super) const ALL: &[Variant] = &{
    use Variant::*;
    [
        Tiled { rows: 32, slices: 1 },
        Tiled { rows: 32, slices: 2 },
        Tiled { rows: 32, slices: 4 },
        Tiled { rows: 64, slices: 1 },
        Few,
        RowThread,
        RowSubgroup,
        RowSubgroups,
        RowWorkgroup,
        ColumnThread(1),
        ColumnThread(4),
        ColumnWorkgroup,
        Depthwise,
        ConvRegisters,
        ConvTiled,
        ConvDirect(1),
        ConvDirect(4),
        ConvDirect(8),
        Stockham,
        Sums,
        Map { threads: 64, wide: false },
        Map { threads: 128, wide: false },
        Map { threads: 256, wide: false },
        Map { threads: 64, wide: true },
        Map { threads: 128, wide: true },
        Map { threads: 256, wide: true },
    ]
};

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Registers { rows, quads } => write!(f, "registers {rows}x{quads}"),
            Self::Tiled { rows, slices } => write!(f, "tiled {rows}x{slices}"),
            Self::Few => f.write_str("few"),
            Self::RowThread => f.write_str("row thread"),
            Self::RowSubgroup => f.write_str("row subgroup"),
            Self::RowSubgroups => f.write_str("row subgroups"),
            Self::RowWorkgroup => f.write_str("row workgroup"),
            Self::ColumnThread(each) => write!(f, "column thread x{each}"),
            Self::ColumnWorkgroup => f.write_str("column workgroup"),
            Self::Depthwise => f.write_str("depthwise"),
            Self::ConvRegisters => f.write_str("registers"),
            Self::ConvTiled => f.write_str("tiled"),
            Self::ConvDirect(channels) => write!(f, "direct x{channels}"),
            Self::Stockham => f.write_str("stockham"),
            Self::Sums => f.write_str("sums"),
            Self::Map { threads, wide } => write!(f, "{threads} threads{}", if *wide { ", wide" } else { "" }),
        }
    }
}

impl Variant {
    /// The variant of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        if let Some((rows, quads)) = name.strip_prefix("registers ").and_then(|tile| tile.split_once('x')) {
            return Some(Self::Registers { rows: rows.parse().ok()?, quads: quads.parse().ok()? });
        }
        ALL.iter().copied().find(|variant| variant.to_string() == name)
    }
}

/// The variants that a step can use, the default first.
pub(crate) fn variants(step: &Step, caps: &Caps) -> Variants {
    step.kernel.spec().forms(&Caps { variant: None, ..*caps })
}

/// The variant that a launch uses: the forced one if it is in `fitting`, else the default.
pub(crate) fn choose(fitting: &[Variant], caps: &Caps) -> Option<Variant> {
    caps.variant.filter(|variant| fitting.contains(variant)).or(fitting.first().copied())
}

/// A key for steps that should use the same variant: kernel, types, operand layouts, and sizes rounded up to powers of
/// two.
pub(crate) fn bucket(step: &Step) -> String {
    use fmt::Write;
    let about = |n: usize| n.max(1).next_power_of_two();
    let mut text = step.kernel.spec().name().to_owned();
    // Writing to a string cannot fail.
    for operand in step.inputs.iter().chain(&step.outputs) {
        let lies = match operand.layout.strides.last() {
            _ if operand.layout.is_contiguous() => "",
            Some(1) => "'",
            _ => "\"",
        };
        let _ = write!(text, " {}{lies}", operand.dtype);
    }
    for (name, size) in step.kernel.spec().sizes() {
        let _ = write!(text, " {name}{}", about(size));
    }
    for (name, fused) in [("before", &step.prologue), ("after", &step.epilogue)] {
        if let Some(fused) = fused {
            let _ = write!(text, " {name}{}", about(fused.map.program.exprs.len()));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_has_a_name_of_its_own_that_leads_back_to_it() {
        for variant in ALL.iter().chain(&[Variant::Registers { rows: 7, quads: 2 }]) {
            assert_eq!(Variant::named(&variant.to_string()), Some(*variant));
        }
        assert_eq!(Variant::named("imaginary"), None);
    }
}
