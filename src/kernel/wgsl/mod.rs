//! Lowers each step to a [`Launch`] with WGSL text. Pure: the tests here validate the texts with naga, and `gpu` runs
//! them.
//!
//! Shapes, strides and offsets are passed as parameters, so one text (and one pipeline) serves all shapes. The text
//! depends only on the kind of work: dtypes, variants, and which operands are contiguous.
//!
//! Conditions with two cheap sides are written `(a) & (b)`. `a && b` is a branch, and SwiftShader takes minutes to
//! compile a dozen of these in a loop.

pub(crate) mod blocks;
pub(crate) mod fused;
pub(crate) mod gguf_blocks;
pub(crate) mod non_finite;
pub(crate) mod quads;
pub(crate) mod rows;
pub(crate) mod scalar;
pub(crate) mod tile;

#[cfg(test)]
mod tests;

use core::fmt::Write;

use smallvec::SmallVec;

use self::fused::{Named, named_operands};
pub(crate) use self::non_finite::non_finite;
use self::quads::{QUAD_WORDS, Quad, load_four};
pub(crate) use self::scalar::{MODULES, module_text};

use self::scalar::Library;
use super::{Access, Binding, Caps, Launch, Params, Variant, buffer_type, wgsl_type};
use crate::ir::{Class, DType, Program, Source};
use crate::kernel::Step;

/// The launch for `step`, or `None` if there is nothing to do because the output is empty.
pub(crate) fn lower(step: &Step, caps: &Caps) -> Option<Launch> {
    if step.outputs.iter().all(|output| output.layout.elements() == 0) {
        return None;
    }
    let mut launch = step.kernel.spec().wgsl(step, caps)?;
    if let Some((bound, kernels)) = step.loops() {
        // Pipelines are identified by their texts, and the bound is not in the text otherwise.
        launch.wgsl = format!("// at most {} iterations\n{}", bound.turns, launch.wgsl);
        launch.counts_faults = true;
        launch.loops = Some((bound, kernels));
    }
    Some(launch)
}

/// Builds the text of a kernel: named inputs, 32-bit results, parameters, and a body from `assets/kernels`.
///
/// For an input `x`, the text has `fn load_x(i: u32)`, which returns element `i` of the whole binding in the type of
/// its class, and the parameter `x_offset`. Results are written with `store_y(i, value)`, once for each element `i` of
/// the contiguous output. Fused work happens inside these two functions, so a body must not access memory in any other
/// way. Kernels that read their own output back (see [`Fusing::after`](super::spec::Fusing::after)) use
/// `y[params.y_offset + i]`. Kernels that count faults also get `faults: array<atomic<u32>>`.
///
/// Kernels that process four neighbouring elements at a time use [`Builder::with_quads`] and also get `load_x4(i)` and
/// `store_y4(i, vec4)`. Both are equivalent to four single calls in order. If every call is aligned, they access the
/// four elements at once.
pub(crate) struct Builder<'a> {
    /// The parameters. Offsets are already included.
    pub params: Params,
    step: &'a Step,
    variant: Option<Variant>,
    bindings: SmallVec<[Binding; 4]>,
    /// The types of quads that bindings are declared with.
    quads: SmallVec<[Quad; 4]>,
    /// Bindings, loads and stores.
    declarations: String,
    /// Constants, aliases and raw code.
    code: String,
    /// The library files and custom functions that the text calls.
    library: Library,
}

impl<'a> Builder<'a> {
    /// Declares the bindings of `step`. Operands with the same source share one.
    pub fn new(step: &'a Step) -> Self {
        Self::declare_all(step, &[], |_, _| None)
    }

    /// Like [`Builder::new`], with `load_NAME4` or `store_y4` for each operand in `quads`. The flag is whether all
    /// calls access quads that are aligned to four elements of the array, offsets included.
    pub fn with_quads(step: &'a Step, quads: &[(&str, bool)], caps: &Caps) -> Self {
        Self::declare_all(step, quads, |dtype, written| Quad::of(caps, dtype, written))
    }

    fn declare_all(step: &'a Step, quads: &[(&str, bool)], best: impl Fn(DType, bool) -> Option<Quad>) -> Self {
        let mut builder = Self {
            params: Params::default(),
            step,
            variant: None,
            bindings: SmallVec::new(),
            quads: SmallVec::new(),
            declarations: String::new(),
            code: String::new(),
            library: Library::default(),
        };
        let operands = named_operands(step, quads);
        let mut variables: SmallVec<[&str; 4]> = SmallVec::new();
        let mut results: SmallVec<[fused::Target; 2]> = SmallVec::new();
        // The arrays and types whose block functions are declared.
        let mut on: SmallVec<[(usize, DType); 4]> = SmallVec::new();
        for Named { name, operand, output, wanted } in &operands {
            builder.params.size(&format!("{name}_offset"), operand.layout.offset);
            match operand.source {
                // Defined together with the prologue.
                Source::Fused => continue,
                Source::Iota => {
                    // Writing to a string cannot fail.
                    let _ =
                        writeln!(builder.declarations, "fn load_{name}(i: u32) -> i32 {{ return bitcast<i32>(i); }}");
                    continue;
                }
                _ => {}
            }
            let sharers = || operands.iter().filter(|o| o.operand.source == operand.source);
            let ty = shared_type(sharers().map(|o| o.operand.dtype));
            // An array is declared as quads if all operands that share it use aligned quads of the array's type.
            let in_quads = |o: &Named| {
                let dtype = o.operand.dtype;
                let same = match operand.dtype {
                    DType::F16 => dtype == DType::F16,
                    _ => dtype.per_word() == 1 && wgsl_type(dtype.class()) == ty,
                };
                o.wanted == Some(true) && same
            };
            let written = sharers().find(|o| o.output);
            let quad = best(operand.dtype, written.is_some()).filter(|_| sharers().all(in_quads));
            let at = builder.bindings.iter().position(|b| b.source == operand.source).unwrap_or_else(|| {
                // An output keeps its name even if it is shared.
                let variable = written.map_or(name, |o| &o.name);
                let access = access(operand.source, written.is_some());
                builder.bindings.push(Binding { source: operand.source, access, part: None });
                builder.quads.extend(quad);
                variables.push(variable);
                let element = quad.map_or(ty.to_owned(), |quad| quad.wgsl(ty));
                let array = format!("array<{element}>");
                declare(&mut builder.declarations, builder.bindings.len(), access, variable, &array);
                builder.bindings.len() - 1
            });
            if *output {
                results.push(fused::Target { name, variable: variables[at], ty, quad: quad.is_some(), operand });
            } else {
                let text = load_functions(name, variables[at], ty, operand.dtype, quad, *wanted);
                builder.declarations.push_str(&text);
                if !on.contains(&(at, operand.dtype)) {
                    on.push((at, operand.dtype));
                    builder.declarations.push_str(&blocks::functions_on(variables[at], ty, operand.dtype));
                }
            }
        }
        builder.declarations.push_str(&blocks::functions(operands.iter().map(|named| named.operand.dtype)));
        if builder.quads.contains(&Quad::Words) {
            builder.declarations.push_str(QUAD_WORDS);
        }
        let Self { params, declarations, library, .. } = &mut builder;
        let four = |name: &str| quads.iter().find(|wanted| wanted.0 == name).map(|wanted| wanted.1);
        declarations.push_str(&fused::store(step.epilogue.as_ref(), &results, four("y"), params, library));
        if let Some(prologue) = &step.prologue {
            declarations.push_str(&fused::load(prologue, four("x"), params, library));
        }
        if step.kernel.spec().counts_faults() {
            let binding = builder.bindings.len() + 1;
            declare(&mut builder.declarations, binding, Access::ReadWrite, "faults", "array<atomic<u32>>");
        }
        builder
    }

    /// Adds `const NAME: u32 = value;`. It is part of the pipeline's identity, so use it only for variants, never for
    /// shapes.
    pub fn constant(&mut self, name: &str, value: u32) -> &mut Self {
        let _ = writeln!(self.code, "const {name}: u32 = {value}u;");
        self
    }

    /// Adds `alias name = ty;`.
    pub fn alias(&mut self, name: &str, ty: &str) -> &mut Self {
        let _ = writeln!(self.code, "alias {name} = {ty};");
        self
    }

    /// Adds a file of `assets/kernels/lib` and its dependencies.
    pub fn need(&mut self, file: &'static str) -> &mut Self {
        self.library.need(file);
        self
    }

    /// The function `name`, which computes a program: see [`scalar::element`]. The caller adds it to the text.
    pub fn element(&mut self, name: &str, program: &Program, inputs: &[Class], scalars: &[u32]) -> String {
        scalar::element(name, program, inputs, scalars, &mut self.params, &mut self.library)
    }

    /// Sets the variant, for kernels that have several.
    pub fn variant(&mut self, variant: Variant) -> &mut Self {
        self.variant = Some(variant);
        self
    }

    /// Adds raw WGSL.
    pub fn code(&mut self, text: &str) -> &mut Self {
        self.code.push_str(text);
        self.code.push('\n');
        self
    }

    /// Finishes with a body that has `fn run(thread: u32)`, which is called once by each of `threads` threads. The body
    /// must not contain barriers, because surplus threads do not call it.
    pub fn finish_threads(mut self, body: &str, threads: usize, caps: &Caps) -> Launch {
        self.params.size("threads", threads);
        self.finish(&[body, "\n", THREADS].concat(), grid(threads.div_ceil(64), caps))
    }

    /// Finishes with a body that has `fn run(work: u32, lane: u32)`, which is called by all `lanes` threads of a
    /// workgroup for each `work` item.
    pub fn finish_workgroups(mut self, body: &str, lanes: u32, work: usize, caps: &Caps) -> Launch {
        self.params.size("work", work);
        self.constant("LANES", lanes);
        self.finish(&[body, "\n", WORKGROUPS].concat(), grid(work, caps))
    }

    /// Finishes with the body and the grid.
    pub fn finish(self, body: &str, workgroups: [u32; 3]) -> Launch {
        let text = [&self.params.wgsl(), &self.declarations, WORKGROUP_INDEX, &self.code, body].concat();
        let checked = self.library.needs_checks();
        let halves = if self.quads.contains(&Quad::Halves) { "enable f16;\n" } else { "" };
        let wgsl = [head(checked), halves, &self.library.text(), &text].concat();
        let (params, patches) = self.params.finish();
        Launch {
            name: self.step.kernel.spec().name(),
            variant: self.variant,
            wgsl,
            entry: "main",
            checked,
            params_in_storage: false,
            bindings: self.bindings,
            params,
            patches,
            workgroups,
            counts_faults: self.step.kernel.spec().counts_faults(),
            loops: None,
        }
    }
}

/// Generates `load_x(i)`, and `load_x4(i)` if quads are `wanted`, which is whether all of them are aligned to four
/// elements.
fn load_functions(
    name: &str,
    variable: &str,
    ty: &str,
    dtype: DType,
    quad: Option<Quad>,
    wanted: Option<bool>,
) -> String {
    let class = wgsl_type(dtype.class());
    let (one, four) = match quad {
        Some(quad) => (quad.one(variable, ty, "i"), quad.four(variable, ty, "i >> 2u")),
        None => {
            let aligned = wanted == Some(true);
            (load(variable, ty, dtype, "i"), load_four(variable, ty, dtype, class, "i", aligned))
        }
    };
    let mut text = format!("fn load_{name}(i: u32) -> {class} {{ return {one}; }}\n");
    if wanted.is_some() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "fn load_{name}4(i: u32) -> vec4<{class}> {{ return {four}; }}");
    }
    text
}

/// The first line of texts that contain custom code. Pipelines are cached by text, so those with runtime checks must
/// differ.
pub(crate) fn head(checked: bool) -> &'static str {
    if checked { "// checked\n" } else { "" }
}

/// In every text: the linear index of a workgroup in a folded [`grid`].
pub(crate) const WORKGROUP_INDEX: &str =
    "fn workgroup_index(wid: vec3<u32>, nwg: vec3<u32>) -> u32 { return wid.x + wid.y * nwg.x; }\n";

/// The entry point of kernels with one index per thread.
const THREADS: &str = include_str!("../../../assets/kernels/lib/threads.wgsl");

/// The entry point of kernels with one index per workgroup.
const WORKGROUPS: &str = include_str!("../../../assets/kernels/lib/workgroups.wgsl");

/// A grid of at least `workgroups` workgroups, folded into x and y so that no dimension exceeds the device limit.
/// Kernels compute their index with `workgroup_index` and guard against surplus workgroups.
pub(crate) fn grid(workgroups: usize, caps: &Caps) -> [u32; 3] {
    let limit = caps.workgroups.max(1) as usize;
    let y = workgroups.div_ceil(limit).max(1);
    [workgroups.div_ceil(y) as u32, y as u32, 1]
}

/// How a source is bound. Scratch regions share one buffer, which a launch must not bind both read-only and writable,
/// so all are writable.
pub(crate) fn access(source: Source, written: bool) -> Access {
    match source {
        Source::Scratch(_) => Access::ReadWrite,
        _ if written => Access::ReadWrite,
        _ => Access::Read,
    }
}

/// The element type of a binding shared by operands of these dtypes: their common type, or words if they differ.
pub(crate) fn shared_type(mut dtypes: impl Iterator<Item = DType>) -> &'static str {
    let first = dtypes.next().map_or("u32", buffer_type);
    if dtypes.all(|dtype| buffer_type(dtype) == first) { first } else { "u32" }
}

/// Declares storage binding number `binding`. The parameters are binding 0.
pub(crate) fn declare(text: &mut String, binding: usize, access: Access, variable: &str, ty: &str) {
    let mode = match access {
        Access::Read => "read",
        Access::ReadWrite => "read_write",
    };
    let _ = writeln!(text, "@group(0) @binding({binding}) var<storage, {mode}> {variable}: {ty};");
}

/// The expression that reads element `index` of `dtype` from the array `variable` of `ty`, in the type of its class.
pub(crate) fn load(variable: &str, ty: &str, dtype: DType, index: &str) -> String {
    if dtype.is_quantized() {
        return blocks::load(variable, ty, dtype, index);
    }
    match dtype.per_word() {
        1 => convert(format!("{variable}[{index}]"), ty, wgsl_type(dtype.class())),
        2 => unpack(dtype, &convert(format!("{variable}[({index}) >> 1u]"), ty, "u32"), index),
        _ => unpack(dtype, &convert(format!("{variable}[({index}) >> 2u]"), ty, "u32"), index),
    }
}

/// The expression that extracts the element selected by `index` from its `word`, for narrow types.
pub(crate) fn unpack(dtype: DType, word: &str, index: &str) -> String {
    match dtype {
        DType::F16 => format!("unpack2x16float({word} >> ((({index}) & 1u) * 16u)).x"),
        DType::BF16 => format!("bitcast<f32>(({word} >> ((({index}) & 1u) * 16u)) << 16u)"),
        DType::I8 => format!("(bitcast<i32>({word} << (24u - (({index}) & 3u) * 8u)) >> 24u)"),
        DType::U8 => format!("(({word} >> ((({index}) & 3u) * 8u)) & 255u)"),
        // Any nonzero byte is true.
        DType::Bool => format!("min(({word} >> ((({index}) & 3u) * 8u)) & 255u, 1u)"),
        _ => word.to_owned(),
    }
}

/// Reinterprets the bits as another 32-bit type.
pub(crate) fn convert(value: String, from: &str, to: &str) -> String {
    if from == to { value } else { format!("bitcast<{to}>({value})") }
}
