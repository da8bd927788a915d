//! What a kernel becomes on the GPU: a WGSL text, its parameters, its bindings and its grid. Pure data; `gpu` carries it out.

use smallvec::SmallVec;

use super::variants::Variant;
use crate::ir::{Class, DType, Source};

/// What the device offers to kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Caps {
    /// Whether WGSL subgroup operations may be used, and the size of every subgroup if it is fixed.
    pub subgroup: Option<u32>,
    /// Whether the adapter is a CPU in disguise: barriers and workgroup memory cost much, wide registers little.
    pub software: bool,
    /// Whether texts may use 64-bit integers.
    pub wide: bool,
    /// Whether texts may use 16-bit floats.
    pub halves: bool,
    /// Invocations per workgroup.
    pub invocations: u32,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u32,
    /// Workgroups per dimension.
    pub workgroups: u32,
    /// The form that kernels take if they have it; else the default for the device.
    pub variant: Option<Variant>,
}

impl Caps {
    /// On a software adapter, the size of its subgroups if kernels have a form for it: a workgroup of one subgroup, whose lanes share loads.
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

/// A storage buffer binding. Binding 0 is the parameters; storage binding `i` of the list is binding `i + 1`; if the launch counts faults, the
/// counter (`array<atomic<u32>>`, one word) comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Binding {
    /// One that [has memory](Source::has_memory). A slot or constant is bound whole, a scratch value as its region.
    pub source: Source,
    pub access: Access,
    /// The part of it that is bound instead: its first word and its words.
    pub part: Option<(usize, usize)>,
}

/// One dispatch. Launches with equal `wgsl` share a pipeline, so texts that differ in their entry point or checks say so.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Launch {
    /// The kernel's name, for labels.
    pub name: &'static str,
    /// The form of the kernel, where it has several.
    pub variant: Option<Variant>,
    pub wgsl: String,
    pub entry: &'static str,
    /// Whether the text is a user's, or has parts that are, and so runs with bounds checked and memory cleared.
    pub checked: bool,
    /// Whether the parameters are bound as storage, as a user's kernel may have it.
    pub params_in_storage: bool,
    pub bindings: SmallVec<[Binding; 4]>,
    /// Words of the uniform parameter block, a multiple of 4.
    pub params: Vec<u32>,
    /// Words of `params` that take scalars of the batch: (word, position in the batch's scalars).
    pub patches: SmallVec<[(u32, u32); 4]>,
    /// Empty launches (any dimension 0) are left out by whoever makes them.
    pub workgroups: [u32; 3],
    pub counts_faults: bool,
}

/// Parameters by name: makes the WGSL struct and the words together, so the two cannot disagree.
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

    /// A size or position. Tensors have at most 2³¹ elements, so any such number fits.
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

    /// A number of the batch: `scalar` is its position there.
    pub(crate) fn scalar(&mut self, name: &str, class: Class, scalar: u32) -> &mut Self {
        self.patches.push((self.words.len() as u32, scalar));
        self.field(name, class, 0)
    }

    /// The struct and its binding.
    pub(crate) fn wgsl(&self) -> String {
        let fields = if self.fields.is_empty() { "    unused: u32,\n" } else { &self.fields };
        format!("struct Params {{\n{fields}}}\n@group(0) @binding(0) var<uniform> params: Params;\n")
    }

    /// The words, padded to the 16 bytes that uniform blocks are made of, and the patches.
    pub(crate) fn finish(mut self) -> (Vec<u32>, SmallVec<[(u32, u32); 4]>) {
        let padded = self.words.len().next_multiple_of(4).max(4);
        self.words.resize(padded, 0);
        (self.words, self.patches)
    }
}

/// The WGSL type a class is computed in.
pub(crate) fn wgsl_type(class: Class) -> &'static str {
    match class {
        Class::Float => "f32",
        Class::Int => "i32",
        Class::Uint => "u32",
    }
}

/// The WGSL element type of a buffer of `dtype`: narrow types are packed in words.
pub(crate) fn buffer_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::I32 => "i32",
        _ => "u32",
    }
}
