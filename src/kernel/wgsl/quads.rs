//! Arrays read four elements at a time.

use super::{convert, load, unpack};
use crate::ir::DType;
use crate::kernel::Caps;

/// How an array of 32-bit elements or f16 is declared if aligned groups of four elements are accessed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quad {
    /// Vectors of the element type.
    Vector,
    /// Pairs of 64-bit words. A software adapter loads the components of each lane one by one, whatever their size.
    /// Halving their number nearly halves the time of a kernel that mostly reads. Only for read-only arrays.
    Words,
    /// Vectors of four f16, if the device supports them. They are widened when read. Only for read-only arrays.
    Halves,
}

/// Unpacks the four words of a quad that was read as two. Part of texts that use [`Quad::Words`].
pub(crate) const QUAD_WORDS: &str = include_str!("../../../assets/kernels/lib/quad_words.wgsl");

impl Quad {
    /// The best declaration for an array of `dtype` on this device, or `None` if its words must be unpacked.
    pub(crate) fn of(caps: &Caps, dtype: DType, written: bool) -> Option<Self> {
        match dtype {
            // Unpacking words costs nothing on a software adapter.
            DType::F16 => (caps.halves && !caps.software && !written).then_some(Self::Halves),
            _ if dtype.per_word() > 1 => None,
            _ if caps.software && caps.wide && !written => Some(Self::Words),
            _ => Some(Self::Vector),
        }
    }

    /// The element type of the array.
    pub(crate) fn wgsl(self, ty: &str) -> String {
        match self {
            Self::Vector => format!("vec4<{ty}>"),
            Self::Words => "vec2<u64>".to_owned(),
            Self::Halves => "vec4<f16>".to_owned(),
        }
    }

    /// The expression that reads quad number `at`.
    pub(crate) fn four(self, array: &str, ty: &str, at: &str) -> String {
        match self {
            Self::Vector => format!("{array}[{at}]"),
            Self::Words => convert(format!("quad_words({array}[{at}])"), "vec4<u32>", &format!("vec4<{ty}>")),
            Self::Halves => format!("vec4<f32>({array}[{at}])"),
        }
    }

    /// The expression that reads element `index`.
    pub(crate) fn one(self, array: &str, ty: &str, index: &str) -> String {
        match self {
            Self::Vector => format!("{array}[({index}) >> 2u][({index}) & 3u]"),
            Self::Halves => format!("f32({array}[({index}) >> 2u][({index}) & 3u])"),
            Self::Words => {
                let word = format!("{array}[({index}) >> 2u][(({index}) >> 1u) & 1u]");
                convert(format!("u32({word} >> ((({index}) & 1u) * 32u))"), "u32", ty)
            }
        }
    }
}

/// The expression that reads elements `index` to `index + 3` of `dtype` from the plain array `variable` of `ty`, as a
/// vector of `class`. If they `fill` whole words, narrow elements are extracted from these.
pub(crate) fn load_four(variable: &str, ty: &str, dtype: DType, class: &str, index: &str, fill: bool) -> String {
    let word = |at: String| convert(format!("{variable}[{at}]"), ty, "u32");
    if fill && dtype == DType::F16 {
        let (low, high) = (word(format!("({index}) >> 1u")), word(format!("(({index}) >> 1u) + 1u")));
        return format!("vec4<f32>(unpack2x16float({low}), unpack2x16float({high}))");
    }
    if fill && dtype == DType::BF16 {
        let (low, high) = (word(format!("({index}) >> 1u")), word(format!("(({index}) >> 1u) + 1u")));
        return format!(
            "bitcast<vec4<f32>>(vec4<u32>({low} << 16u, {low} & 0xffff0000u, {high} << 16u, {high} & 0xffff0000u))"
        );
    }
    let lane = |lane: usize| match fill && dtype.per_word() == 4 {
        // Reads the same word four times. Compilers merge the reads.
        true => unpack(dtype, &word(format!("({index}) >> 2u")), &format!("{lane}u")),
        false => load(variable, ty, dtype, &format!("{index} + {lane}u")),
    };
    format!("vec4<{class}>({}, {}, {}, {})", lane(0), lane(1), lane(2), lane(3))
}
