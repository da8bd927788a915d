//! The GPU form of a kernel: WGSL text, parameters, bindings and grid. Plain data that `gpu` executes.

use smallvec::SmallVec;

use super::variants::Variant;
use crate::ir::{Class, DType, Source};

/// Device capabilities that kernels depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Caps {
    /// The subgroup size, if WGSL subgroup operations are available and the size is fixed.
    pub subgroup: Option<u32>,
    /// Whether the adapter is a software rasteriser. Barriers and workgroup memory are then expensive, and wide
    /// registers are cheap.
    pub software: bool,
    /// Whether shaders may use 64-bit integers.
    pub wide: bool,
    /// Whether shaders may use 16-bit floats.
    pub halves: bool,
    /// Maximum invocations per workgroup.
    pub invocations: u32,
    /// Maximum bytes of workgroup memory.
    pub workgroup_memory: u32,
    /// Maximum workgroups per dimension.
    pub workgroups: u32,
    /// The variant to use if the kernel has it, instead of the device's default.
    pub variant: Option<Variant>,
}

impl Caps {
    /// The subgroup size of a software adapter, if kernels have a form for it: a workgroup of one subgroup whose lanes
    /// share loads.
    pub(crate) fn software_lanes(&self) -> Option<usize> {
        self.subgroup.filter(|size| self.software && matches!(size, 4 | 8 | 16)).map(|size| size as usize)
    }
}

/// How a binding is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    Read,
    ReadWrite,
}

/// A storage buffer binding. Binding 0 holds the parameters, and entry `i` of the list is binding `i + 1`. If the
/// launch counts faults, the counters (`array<atomic<u32>>`, two words) come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Binding {
    /// A source that [has memory](Source::has_memory). Slots and constants are bound as a whole, scratch values as
    /// their region.
    pub source: Source,
    pub access: Access,
    /// Binds only this part: its first word and its number of words.
    pub part: Option<(usize, usize)>,
}

/// One dispatch. Launches with equal `wgsl` share a pipeline, so texts that differ in entry point or checks must say
/// so.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Launch {
    /// The kernel's name, for labels.
    pub name: &'static str,
    /// The variant, for kernels that have several.
    pub variant: Option<Variant>,
    pub wgsl: String,
    pub entry: &'static str,
    /// Whether the shader is or contains custom code. It then runs with bounds checks and zero-initialised memory.
    pub checked: bool,
    /// Whether the parameters are bound as a storage buffer, which custom kernels may request.
    pub params_in_storage: bool,
    pub bindings: SmallVec<[Binding; 4]>,
    /// Words of the uniform parameter block, a multiple of 4.
    pub params: Vec<u32>,
    /// Words of `params` that are replaced by scalars of the batch: (word, index of the scalar).
    pub patches: SmallVec<[(u32, u32); 4]>,
    /// Never 0 in any dimension: empty launches are not created.
    pub workgroups: [u32; 3],
    pub counts_faults: bool,
    /// The bound of loops that users wrote, and the kernels that have them. The launch then also counts faults.
    pub loops: Option<(LoopBound, Vec<&'static str>)>,
}

/// How many iterations of its loops a thread may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LoopBound {
    pub turns: u32,
    /// Whether the whole text is a user's. If not, only some functions are.
    pub whole: bool,
}

/// Parameters by name. Builds the WGSL struct and the words together, so the two cannot disagree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params {
    fields: String,
    words: Vec<u32>,
    patches: SmallVec<[(u32, u32); 4]>,
}

impl Params {
    fn field(&mut self, name: &str, class: Class, word: u32) -> &mut Self {
        use core::fmt::Write;
        let ty = wgsl_type(class);
        // Writing to a string cannot fail.
        let _ = writeln!(self.fields, "    {name}: {ty},");
        self.words.push(word);
        self
    }

    /// A size or position. Tensors have at most 2³¹ elements, so it always fits.
    pub(crate) fn size(&mut self, name: &str, value: usize) -> &mut Self {
        self.field(name, Class::Uint, value as u32)
    }

    /// A stride or other signed number.
    pub(crate) fn signed(&mut self, name: &str, value: isize) -> &mut Self {
        self.field(name, Class::Int, value as i32 as u32)
    }

    pub(crate) fn float(&mut self, name: &str, value: f32) -> &mut Self {
        self.field(name, Class::Float, value.to_bits())
    }

    /// A scalar of the batch, by its index there.
    pub(crate) fn scalar(&mut self, name: &str, class: Class, scalar: u32) -> &mut Self {
        self.patches.push((self.words.len() as u32, scalar));
        self.field(name, class, 0)
    }

    /// The WGSL struct and its binding.
    pub(crate) fn wgsl(&self) -> String {
        let fields = if self.fields.is_empty() { "    unused: u32,\n" } else { &self.fields };
        format!("struct Params {{\n{fields}}}\n@group(0) @binding(0) var<uniform> params: Params;\n")
    }

    /// The words, padded to the 16-byte size of uniform blocks, and the patches.
    pub(crate) fn finish(mut self) -> (Vec<u32>, SmallVec<[(u32, u32); 4]>) {
        let padded = self.words.len().next_multiple_of(4).max(4);
        self.words.resize(padded, 0);
        (self.words, self.patches)
    }
}

/// The WGSL type used for computations of a class.
pub(crate) fn wgsl_type(class: Class) -> &'static str {
    match class {
        Class::Float => "f32",
        Class::Int => "i32",
        Class::Uint => "u32",
    }
}

/// The WGSL element type of a buffer of `dtype`. Narrow types are packed into words.
pub(crate) fn buffer_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::I32 => "i32",
        _ => "u32",
    }
}
