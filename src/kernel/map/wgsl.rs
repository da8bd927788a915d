//! Fused elementwise kernels on the GPU. There is no `map.wgsl`: the text is generated from the program and the
//! addressing of each operand.
//!
//! A thread computes [`LANES`] consecutive elements, so that it owns whole words of narrow outputs. In *quad* form,
//! those elements always exist and lie in one row: indices are computed once for all, and aligned operands are accessed
//! as `vec4`s or whole words. Otherwise each lane is guarded and computes its own index.

use core::fmt::Write;

use smallvec::SmallVec;

use crate::ir::{Class, DType, Operand, Source};
use crate::kernel::wgsl::quads::{QUAD_WORDS, Quad, load_four};
use crate::kernel::wgsl::scalar::Library;
use crate::kernel::wgsl::{access, convert, declare, grid, scalar, shared_type, unpack};
use crate::kernel::{Binding, Caps, Launch, MapKernel, Params, Step, Variant, Variants, choose, wgsl_type};

/// Elements per thread: as many as fit a word in the narrowest type.
const LANES: usize = 4;
/// Threads per workgroup, unless another variant is chosen.
const WORKGROUP: u16 = 64;

/// How the position of an element is computed from its index.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Addressing {
    /// `offset + i`.
    Flat,
    /// Always `offset`.
    Same,
    /// Computed from coordinates.
    Strided,
}

/// An operand and how the shader accesses it.
struct Place<'a> {
    /// `in0`, `out1`, …
    name: String,
    operand: &'a Operand,
    addressing: Addressing,
    /// Number of its binding, or `None` for positions, which need no memory.
    binding: Option<usize>,
    /// If the elements of a thread are contiguous: the alignment of the first one (at most [`LANES`]). Otherwise 0.
    aligned: usize,
    /// Whether this is the output that `dynamic_out` moves.
    dynamic: bool,
}

/// A buffer and its declaration.
struct Buffer {
    source: Source,
    written: bool,
    ty: &'static str,
    /// Declared as quads.
    quads: Option<Quad>,
    /// Declared as atomic words, because lanes of different threads may write to the same word.
    atomic: bool,
}

/// The variants of maps on this device, the default first.
pub(crate) fn variants(caps: &Caps) -> Variants {
    let wide = caps.software && caps.wide;
    let form = |threads, wide| Variant::Map { threads, wide };
    let fits = |variant: &Variant| match variant {
        Variant::Map { threads, .. } => *threads == WORKGROUP || u32::from(*threads) <= caps.invocations,
        _ => false,
    };
    let plain = [form(WORKGROUP, wide), form(128, wide), form(256, wide)];
    plain.into_iter().chain(wide.then_some(form(WORKGROUP, false))).filter(fits).collect()
}

/// The launch of a map.
pub(crate) fn lower(step: &Step, kernel: &MapKernel, caps: &Caps) -> Option<Launch> {
    let count = kernel.shape.elements();
    if count == 0 {
        return None;
    }
    let variant = choose(&variants(caps), caps)?;
    let (threads, wide) = match variant {
        Variant::Map { threads, wide } => (usize::from(threads), wide),
        _ => (usize::from(WORKGROUP), caps.wide),
    };
    let caps = &Caps { wide, ..*caps };
    let mut map = Map::new(step, kernel, count, threads, caps);
    let text = map.text(kernel);
    let bindings =
        map.buffers.iter().map(|b| Binding { source: b.source, access: access(b.source, b.written), part: None });
    let workgroups = grid(count.div_ceil(LANES * threads), caps);
    let bindings = bindings.collect();
    let wgsl = crate::kernel::wgsl::head(map.checked).to_owned() + &map.params.wgsl() + &text;
    let (params, patches) = map.params.finish();
    Some(Launch {
        name: "map",
        variant: Some(variant),
        wgsl,
        entry: "main",
        checked: map.checked,
        params_in_storage: false,
        bindings,
        params,
        patches,
        workgroups,
        counts_faults: false,
        loops: None,
    })
}

/// A map while its text is generated.
struct Map<'a> {
    step: &'a Step,
    inputs: Vec<Place<'a>>,
    outputs: Vec<Place<'a>>,
    buffers: SmallVec<[Buffer; 4]>,
    params: Params,
    /// Whether all lanes of all threads exist and the lanes of a thread lie in one row.
    quad: bool,
    rank: usize,
    /// Threads per workgroup.
    threads: usize,
    /// Whether the text contains custom code that is not trusted.
    checked: bool,
}

impl<'a> Map<'a> {
    fn new(step: &'a Step, kernel: &MapKernel, count: usize, threads: usize, caps: &Caps) -> Self {
        let addressing = |operand: &Operand| {
            let layout = &operand.layout;
            if layout.is_contiguous() {
                Addressing::Flat
            } else if layout.shape.iter().zip(&layout.strides).all(|(&n, &stride)| n == 1 || stride == 0) {
                Addressing::Same
            } else {
                Addressing::Strided
            }
        };
        let operands = || step.inputs.iter().chain(&step.outputs);
        let strided = operands().any(|operand| addressing(operand) == Addressing::Strided);
        let row = if strided { kernel.shape.last().copied().unwrap_or(1) } else { count };
        let quad = row.is_multiple_of(LANES);

        let mut buffers: SmallVec<[Buffer; 4]> = SmallVec::new();
        for operand in operands().filter(|operand| operand.source.has_memory()) {
            if buffers.iter().all(|b| b.source != operand.source) {
                let ty = shared_type(operands().filter(|o| o.source == operand.source).map(|o| o.dtype));
                let written = step.outputs.iter().any(|o| o.source == operand.source);
                buffers.push(Buffer { source: operand.source, written, ty, quads: None, atomic: false });
            }
        }
        let place = |name: String, operand: &'a Operand, dynamic: Option<isize>| {
            let addressing = addressing(operand);
            let aligned = alignment(operand, addressing, quad, dynamic.unwrap_or(0));
            let binding = buffers.iter().position(|b| b.source == operand.source);
            Place { name, operand, addressing, binding, aligned, dynamic: dynamic.is_some() }
        };
        let inputs = step.inputs.iter().enumerate().map(|(i, o)| place(format!("in{i}"), o, None)).collect();
        let outputs =
            step.outputs.iter().enumerate().map(|(i, o)| place(format!("out{i}"), o, kernel.dynamic_out)).collect();
        let (params, rank) = (Params::default(), kernel.shape.rank());
        let mut map = Self { step, inputs, outputs, buffers, params, quad, rank, threads, checked: false };
        map.choose_declarations(count, caps);
        map
    }

    /// Decides which buffers are declared as quads and which as atomics.
    fn choose_declarations(&mut self, count: usize, caps: &Caps) {
        for (i, buffer) in self.buffers.iter_mut().enumerate() {
            let places = || self.inputs.iter().chain(&self.outputs).filter(|p| p.binding == Some(i));
            let wide = |p: &Place| {
                let dtype = p.operand.dtype;
                dtype.per_word() == 1 && p.aligned == LANES && wgsl_type(dtype.class()) == buffer.ty
            };
            buffer.quads =
                (self.quad && places().all(wide)).then(|| Quad::of(caps, DType::F32, buffer.written)).flatten();
            // Outputs that share a word with another output need atomics too. Only an unaligned end can be shared.
            let mut narrow = self.outputs.iter().filter(|p| p.binding == Some(i) && p.operand.dtype.per_word() > 1);
            let several = self.outputs.iter().filter(|p| p.binding == Some(i)).count() > 1;
            buffer.atomic =
                narrow.any(|p| !p.packed() || several && !(p.operand.layout.offset + count).is_multiple_of(LANES));
        }
    }

    /// Generates the text and fills in the parameters.
    fn text(&mut self, kernel: &MapKernel) -> String {
        let mut library = Library::default();
        self.params.size("count", kernel.shape.elements());
        if self.any_strided() {
            for (axis, &n) in kernel.shape.iter().enumerate() {
                self.params.size(&format!("n{axis}"), n);
            }
        }
        for place in self.inputs.iter().chain(&self.outputs) {
            place.parameters(&mut self.params);
        }
        if let (Some(stride), Some(&scalar)) = (kernel.dynamic_out, self.step.scalars.last()) {
            self.params.scalar("dynamic", Class::Uint, scalar);
            self.params.size("dynamic_stride", stride as usize);
        }
        let classes: Vec<_> = self.step.inputs.iter().map(|o| o.dtype.class()).collect();
        let element =
            scalar::element("element", &kernel.program, &classes, &self.step.scalars, &mut self.params, &mut library);

        self.checked = library.needs_checks();
        let mut text = String::new();
        for (i, buffer) in self.buffers.iter().enumerate() {
            declare(&mut text, i + 1, access(buffer.source, buffer.written), &format!("b{i}"), &buffer.wgsl());
        }
        let used = scalar::live_inputs(&kernel.program, self.inputs.len());
        for (place, _) in self.inputs.iter().zip(&used).filter(|(_, used)| **used) {
            self.load_function(&mut text, place);
        }
        for place in &self.outputs {
            self.store_function(&mut text, place, &mut library);
        }
        self.block_functions(&mut text, &used);
        text.push_str(&crate::kernel::wgsl::blocks::functions(self.step.inputs.iter().map(|input| input.dtype)));
        if self.buffers.iter().any(|buffer| buffer.quads == Some(Quad::Words)) {
            text.push_str(QUAD_WORDS);
        }
        text.push_str(crate::kernel::wgsl::WORKGROUP_INDEX);
        text.push_str(&library.text());
        text.push_str(&element);
        self.strided_function(&mut text);
        let threads = self.threads;
        let body = if self.quad { self.quad_body(&used) } else { self.lane_body(&used) };
        let _ = write!(
            text,
            "@compute @workgroup_size({threads})
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {{
    let first = (workgroup_index(wid, nwg) * {threads}u + lid) * {LANES}u;
    if (first >= params.count) {{
        return;
    }}
{body}}}
"
        );
        text
    }

    fn places(&self) -> impl Iterator<Item = &Place<'a>> {
        self.inputs.iter().chain(&self.outputs)
    }

    fn any_strided(&self) -> bool {
        self.places().any(|p| p.addressing == Addressing::Strided)
    }

    /// `load_in0(i)`: the element at position `i` of its binding, in the type of its class.
    fn load_function(&self, text: &mut String, place: &Place) {
        let class = wgsl_type(place.operand.dtype.class());
        let dtype = place.operand.dtype;
        let value = match place.buffer(&self.buffers) {
            None => "bitcast<i32>(i)".to_owned(),
            // Quads are loaded directly.
            Some((_, buffer)) if buffer.quads.is_some() => return,
            Some((b, buffer)) if dtype.is_quantized() => {
                crate::kernel::wgsl::load(&format!("b{b}"), buffer.ty, dtype, "i")
            }
            Some((b, buffer)) => match dtype.per_word() {
                1 => convert(buffer.read(b, "i"), buffer.ty, class),
                n => unpack(dtype, &convert(buffer.read(b, &format!("i / {n}u")), buffer.ty, "u32"), "i"),
            },
        };
        let _ = writeln!(text, "fn load_{}(i: u32) -> {class} {{ return {value}; }}", place.name);
    }

    /// What the loads of quantised inputs call, once for each array and type.
    fn block_functions(&self, text: &mut String, used: &[bool]) {
        let mut seen = Vec::new();
        for (place, _) in self.inputs.iter().zip(used).filter(|(_, used)| **used) {
            let dtype = place.operand.dtype;
            let Some((b, buffer)) = place.buffer(&self.buffers).filter(|_| dtype.is_quantized()) else { continue };
            if !seen.contains(&(b, dtype)) {
                seen.push((b, dtype));
                text.push_str(&crate::kernel::wgsl::blocks::functions_on(&format!("b{b}"), buffer.ty, dtype));
            }
        }
    }

    /// Generates `store_out0(i, value)` for one element or, for packed elements, `store_out0(word, value, lanes)`,
    /// which preserves elements after the last lane. If a scalar moves the output, the position is checked against the
    /// end of the buffer.
    fn store_function(&self, text: &mut String, place: &Place, library: &mut Library) {
        let Some((b, buffer)) = place.buffer(&self.buffers) else { return };
        let dtype = place.operand.dtype;
        let class = wgsl_type(dtype.class());
        let name = &place.name;
        let check = |index: &str| match place.dynamic {
            true => format!("if ({index} >= arrayLength(&b{b})) {{ return; }} "),
            false => String::new(),
        };
        if dtype.per_word() > 1 {
            let bits = match dtype {
                DType::F16 => {
                    library.need("bits_f16");
                    "bits_f16(v)"
                }
                DType::BF16 => {
                    library.need("round_bf16");
                    "bitcast<u32>(round_bf16(v)) >> 16u"
                }
                DType::I8 => "bitcast<u32>(v) & 255u",
                DType::Bool => "min(v, 1u)",
                _ => "v & 255u",
            };
            let _ = writeln!(text, "fn bits_{name}(v: {class}) -> u32 {{ return {bits}; }}");
        }
        let (per_word, size) = (dtype.per_word(), 8 * dtype.size());
        let check_word = check("word");
        let _ = if buffer.quads.is_some() {
            let check = check("i");
            writeln!(text, "fn store_{name}(i: u32, v: vec4<{class}>) {{ {check}b{b}[i] = v; }}")
        } else if per_word == 1 {
            let value = convert("v".to_owned(), class, buffer.ty);
            let check = check("i");
            let store = match buffer.atomic {
                true => format!("atomicStore(&b{b}[i], {value});"),
                false => format!("b{b}[i] = {value};"),
            };
            writeln!(text, "fn store_{name}(i: u32, v: {class}) {{ {check}{store} }}")
        } else if buffer.atomic {
            let mask = u32::MAX >> (32 - size);
            writeln!(
                text,
                "fn store_{name}(i: u32, v: {class}) {{
    let word = i / {per_word}u;
    let shift = (i % {per_word}u) * {size}u;
    {check_word}atomicAnd(&b{b}[word], ~({mask}u << shift));
    atomicOr(&b{b}[word], bits_{name}(v) << shift);
}}"
            )
        } else {
            let (old, value) =
                (convert(format!("b{b}[word]"), buffer.ty, "u32"), |v: &str| convert(v.into(), "u32", buffer.ty));
            let (all, some) = (value("v"), value(&format!("({old} & ~mask) | (v & mask)")));
            writeln!(
                text,
                "fn store_{name}(word: u32, v: u32, lanes: u32) {{
    {check_word}if (lanes >= {per_word}u) {{
        b{b}[word] = {all};
    }} else if (lanes > 0u) {{
        let mask = (1u << (lanes * {size}u)) - 1u;
        b{b}[word] = {some};
    }}
}}"
            )
        };
    }

    /// `strided(i)`: the positions of element `i` in all strided operands, with shared coordinates.
    fn strided_function(&self, text: &mut String) {
        let strided: Vec<_> = self.places().filter(|p| p.addressing == Addressing::Strided).collect();
        if strided.is_empty() {
            return;
        }
        text.push_str("struct Strided {\n");
        for place in &strided {
            let _ = writeln!(text, "    {}: u32,", place.name);
        }
        text.push_str("}\nfn strided(i: u32) -> Strided {\n    var rest = i;\n");
        for axis in (1..self.rank).rev() {
            let _ = writeln!(text, "    let c{axis} = rest % params.n{axis};\n    rest = rest / params.n{axis};");
        }
        text.push_str("    let c0 = rest;\n    return Strided(\n");
        for place in &strided {
            text.push_str("        ");
            text.push_str(&place.offset());
            for axis in 0..self.rank {
                let _ = write!(text, " + c{axis} * params.{}_s{axis}", place.name);
            }
            text.push_str(",\n");
        }
        text.push_str("    );\n}\n");
    }

    /// The position of element `i` of `place`.
    fn position(place: &Place, i: &str) -> String {
        match place.addressing {
            Addressing::Flat => format!("{} + {i}", place.offset()),
            Addressing::Same => place.offset(),
            Addressing::Strided => format!("at.{}", place.name),
        }
    }

    /// The body of a thread whose lanes all exist and lie in one row.
    fn quad_body(&self, used: &[bool]) -> String {
        let mut text = String::new();
        if self.any_strided() {
            text.push_str("    let at = strided(first);\n");
        }
        for place in self.places() {
            let _ = writeln!(text, "    let {}_at = {};", place.name, Self::position(place, "first"));
        }
        for (place, _) in self.inputs.iter().zip(used).filter(|(_, used)| **used) {
            let _ = writeln!(text, "    let {} = {};", place.name, self.quad_load(place));
        }
        for lane in 0..LANES {
            let argument = |(place, used): (&Place, &bool)| match (used, place.addressing) {
                (false, _) => format!("{}(0)", wgsl_type(place.operand.dtype.class())),
                (true, Addressing::Same) => place.name.clone(),
                (true, _) => format!("{}[{lane}]", place.name),
            };
            let arguments: Vec<_> = self.inputs.iter().zip(used).map(argument).collect();
            let _ = writeln!(text, "    let e{lane} = element({});", arguments.join(", "));
        }
        for (i, place) in self.outputs.iter().enumerate() {
            self.quad_store(&mut text, i, place);
        }
        text
    }

    /// The four elements of an input, or the one shared by all lanes.
    fn quad_load(&self, place: &Place) -> String {
        let (name, dtype) = (&place.name, place.operand.dtype);
        let at = format!("{name}_at");
        let Some((b, buffer)) = place.buffer(&self.buffers) else {
            return self.four_loads(place);
        };
        if place.addressing == Addressing::Same {
            format!("load_{name}({at})")
        } else if let Some(quads) = buffer.quads {
            quads.four(&format!("b{b}"), buffer.ty, &format!("{at} / 4u"))
        } else if dtype.per_word() > 1 && place.packed() && !buffer.atomic {
            load_four(&format!("b{b}"), buffer.ty, dtype, wgsl_type(dtype.class()), &at, true)
        } else {
            self.four_loads(place)
        }
    }

    fn four_loads(&self, place: &Place) -> String {
        let name = &place.name;
        let step = self.step_of(place);
        if place.addressing == Addressing::Same {
            return format!("load_{name}({name}_at)");
        }
        let lanes: Vec<_> = (0..LANES).map(|l| format!("load_{name}({name}_at + {l}u * {step})")).collect();
        format!("vec4<{}>({})", wgsl_type(place.operand.dtype.class()), lanes.join(", "))
    }

    /// The distance between neighbouring lanes.
    fn step_of(&self, place: &Place) -> String {
        match place.addressing {
            Addressing::Flat => "1u".to_owned(),
            Addressing::Same => "0u".to_owned(),
            Addressing::Strided => format!("params.{}_s{}", place.name, self.rank.saturating_sub(1)),
        }
    }

    fn quad_store(&self, text: &mut String, i: usize, place: &Place) {
        let Some((_, buffer)) = place.buffer(&self.buffers) else { return };
        let (name, dtype) = (&place.name, place.operand.dtype);
        let class = wgsl_type(dtype.class());
        if buffer.quads.is_some() {
            let _ =
                writeln!(text, "    store_{name}({name}_at / 4u, vec4<{class}>(e0.v{i}, e1.v{i}, e2.v{i}, e3.v{i}));");
        } else if dtype.per_word() > 1 && !buffer.atomic {
            let (per_word, size) = (dtype.per_word(), 8 * dtype.size());
            for word in 0..LANES / per_word {
                let lanes: Vec<_> = (0..per_word)
                    .map(|l| format!("(bits_{name}(e{}.v{i}) << {}u)", word * per_word + l, l * size))
                    .collect();
                let value = lanes.join(" | ");
                let _ = writeln!(text, "    store_{name}({name}_at / {per_word}u + {word}u, {value}, {per_word}u);");
            }
        } else {
            let step = self.step_of(place);
            for lane in 0..LANES {
                let _ = writeln!(text, "    store_{name}({name}_at + {lane}u * {step}, e{lane}.v{i});");
            }
        }
    }

    /// The body of a thread that handles each lane separately.
    fn lane_body(&self, used: &[bool]) -> String {
        let mut text = String::new();
        let packed = |p: &&Place| {
            p.operand.dtype.per_word() > 1 && p.buffer(&self.buffers).is_some_and(|(_, buffer)| !buffer.atomic)
        };
        let _ = writeln!(text, "    let lanes = min(params.count - first, {LANES}u);");
        for place in self.outputs.iter().filter(packed) {
            for word in 0..LANES / place.operand.dtype.per_word() {
                let _ = writeln!(text, "    var {}_w{word} = 0u;", place.name);
            }
        }
        text.push_str("    for (var lane = 0u; lane < lanes; lane++) {\n        let i = first + lane;\n");
        if self.any_strided() {
            text.push_str("        let at = strided(i);\n");
        }
        let argument = |(place, used): (&Place, &bool)| match used {
            true => format!("load_{}({})", place.name, Self::position(place, "i")),
            false => format!("{}(0)", wgsl_type(place.operand.dtype.class())),
        };
        let arguments: Vec<_> = self.inputs.iter().zip(used).map(argument).collect();
        let _ = writeln!(text, "        let e = element({});", arguments.join(", "));
        for (i, place) in self.outputs.iter().enumerate() {
            let (name, dtype) = (&place.name, place.operand.dtype);
            let _ = match (packed(&place), dtype.per_word()) {
                (false, _) => writeln!(text, "        store_{name}({}, e.v{i});", Self::position(place, "i")),
                (true, 2) => writeln!(
                    text,
                    "        let {name}_bits = bits_{name}(e.v{i}) << ((lane & 1u) * 16u);
        {name}_w0 |= select(0u, {name}_bits, lane < 2u);
        {name}_w1 |= select(0u, {name}_bits, lane >= 2u);"
                ),
                (true, _) => writeln!(text, "        {name}_w0 |= bits_{name}(e.v{i}) << (lane * 8u);"),
            };
        }
        text.push_str("    }\n");
        for place in self.outputs.iter().filter(packed) {
            let (name, n) = (&place.name, place.operand.dtype.per_word());
            let _ = writeln!(text, "    let {name}_word = ({}) / {n}u;", Self::position(place, "first"));
            let _ = writeln!(text, "    store_{name}({name}_word, {name}_w0, lanes);");
            if n == 2 {
                let _ = writeln!(text, "    store_{name}({name}_word + 1u, {name}_w1, max(lanes, 2u) - 2u);");
            }
        }
        text
    }
}

impl Place<'_> {
    /// The buffer and its number.
    fn buffer<'b>(&self, buffers: &'b [Buffer]) -> Option<(usize, &'b Buffer)> {
        self.binding.and_then(|i| buffers.get(i).map(|b| (i, b)))
    }

    /// Whether the elements of a thread fill whole words.
    fn packed(&self) -> bool {
        self.aligned >= self.operand.dtype.per_word()
    }

    /// Adds offset and strides. They are wrapping words, so negative strides work too.
    fn parameters(&self, params: &mut Params) {
        let layout = &self.operand.layout;
        params.size(&format!("{}_offset", self.name), layout.offset);
        if self.addressing == Addressing::Strided {
            for (axis, &stride) in layout.strides.iter().enumerate() {
                params.size(&format!("{}_s{axis}", self.name), stride as usize);
            }
        }
    }

    fn offset(&self) -> String {
        match self.dynamic {
            true => format!("params.{}_offset + params.dynamic * params.dynamic_stride", self.name),
            false => format!("params.{}_offset", self.name),
        }
    }
}

impl Buffer {
    fn wgsl(&self) -> String {
        match self {
            Buffer { atomic: true, .. } => "array<atomic<u32>>".to_owned(),
            Buffer { quads: Some(quads), ty, .. } => format!("array<{}>", quads.wgsl(ty)),
            Buffer { ty, .. } => format!("array<{ty}>"),
        }
    }

    /// The expression that reads an element of array `b`.
    fn read(&self, b: usize, index: &str) -> String {
        if self.atomic { format!("atomicLoad(&b{b}[{index}])") } else { format!("b{b}[{index}]") }
    }
}

/// See [`Place::aligned`]. `dynamic` is the stride by which a scalar moves the position.
fn alignment(operand: &Operand, addressing: Addressing, quad: bool, dynamic: isize) -> usize {
    let layout = &operand.layout;
    let rank = layout.rank();
    let outer: &[isize] = match addressing {
        Addressing::Flat => &[],
        Addressing::Strided if quad && layout.strides.last() == Some(&1) => &layout.strides[..rank - 1],
        _ => return 0,
    };
    let steps = outer.iter().copied().chain([dynamic, layout.offset as isize]);
    // The lowest set bit of a number is the largest power of two that divides it.
    let low_bits = steps.fold(LANES, |bits, step| bits | step as usize);
    low_bits & low_bits.wrapping_neg()
}
