//! Elementwise work fused into other kernels: an epilogue is applied in `store_y` before a value is written, and a
//! prologue is computed by `load_x` in place of a read.

use core::fmt::Write;

use super::convert;
use super::scalar::{self, Library};
use crate::ir::{Layout, Operand, Shape, Source};
use crate::kernel::{Fused, Params, Step, wgsl_type};

/// An operand and its name in the text.
pub(crate) struct Named<'a> {
    pub name: String,
    pub operand: &'a Operand,
    pub output: bool,
    /// Whether it is accessed four elements at a time and, if so, whether all groups of four are aligned to four
    /// elements.
    pub wanted: Option<bool>,
}

/// Every operand of a step. Inputs have the names that the kernel gives them. Results are `y`, `y1x`, …. Operands of
/// fused work are `e1x`, … (number 0 is the kernel's own value, which has no memory) and `p0x`, …. `quads` are the
/// operands that the kernel accesses four at a time, as in `Builder::with_quads`.
pub(crate) fn named_operands<'a>(step: &'a Step, quads: &[(&str, bool)]) -> Vec<Named<'a>> {
    let wanted = |name: &str| quads.iter().find(|quad| quad.0 == name).map(|quad| quad.1);
    let fours = |fused: &Option<Fused>, name: &str| match fused {
        Some(fused) => goes_by_fours(fused, wanted(name)),
        None => false,
    };
    let (stores, loads) = (fours(&step.epilogue, "y"), fours(&step.prologue, "x"));
    let inputs = step.kernel.spec().input_names().into_iter().zip(&step.inputs).map(|(name, operand)| Named {
        name: name.to_owned(),
        operand,
        output: false,
        wanted: wanted(name),
    });
    let outputs = step.outputs.iter().enumerate().map(|(i, operand)| Named {
        name: if i == 0 { "y".to_owned() } else { operand_name("y", i) },
        operand,
        output: true,
        wanted: match step.epilogue {
            Some(_) => stores.then(|| aligned(&operand.layout)),
            None => wanted("y"),
        },
    });
    let of = |fused: &'a Option<Fused>, prefix: &'static str, skip: usize, fours: bool| {
        let inputs = fused.iter().flat_map(|fused| fused.inputs.iter().enumerate());
        inputs.skip(skip).map(move |(i, operand)| Named {
            name: operand_name(prefix, i),
            operand,
            output: false,
            wanted: fours.then(|| aligned(&operand.layout)),
        })
    };
    let fused = of(&step.epilogue, "e", 1, stores).chain(of(&step.prologue, "p", 0, loads));
    inputs.chain(outputs).chain(fused).collect()
}

/// Ends in a letter, so that a name derived from one operand (`load_e1x4`) cannot be that of another.
fn operand_name(prefix: &str, i: usize) -> String {
    format!("{prefix}{i}x")
}

/// Whether groups of four elements that are aligned in the iteration are contiguous and aligned in the operand.
fn aligned(layout: &Layout) -> bool {
    let unit = layout.is_contiguous() || layout.strides.last() == Some(&1);
    let outer = layout.strides.len().saturating_sub(1);
    let steps = layout.strides[..outer].iter().all(|stride| stride % 4 == 0);
    unit && layout.offset.is_multiple_of(4) && (layout.is_contiguous() || steps)
}

/// Whether fused work processes four elements at a time. `wanted` is whether these are aligned to four elements. No
/// group may span two rows.
fn goes_by_fours(fused: &Fused, wanted: Option<bool>) -> bool {
    let shape = &fused.map.shape;
    let whole = shape.rank() < 2 || shape[shape.rank() - 1].is_multiple_of(4);
    let in_memory = fused.inputs.iter().all(|input| input.source != Source::Iota);
    wanted == Some(true) && in_memory && whole
}

/// Where a result goes.
pub(crate) struct Target<'a> {
    pub name: &'a str,
    /// The array that contains it, the element type of the array, and whether it is declared as quads.
    pub variable: &'a str,
    pub ty: &'static str,
    pub quad: bool,
    pub operand: &'a Operand,
}

impl Target<'_> {
    /// The statement that writes one value at `at`.
    fn one(&self, at: &str, value: &str) -> String {
        let variable = self.variable;
        if self.quad {
            return format!("{variable}[({at}) >> 2u][({at}) & 3u] = {value};");
        }
        let value = convert(value.to_owned(), wgsl_type(self.operand.dtype.class()), self.ty);
        format!("{variable}[{at}] = {value};")
    }

    /// The statements that write four values, starting at `at` and `step` apart.
    fn four(&self, at: &str, step: &str, values: [String; 4]) -> String {
        if self.quad {
            return format!("{}[({at}) >> 2u] = vec4<{}>({});", self.variable, self.ty, values.join(", "));
        }
        let one = |(i, value): (usize, &String)| self.one(&format!("{at} + {i}u * {step}"), value);
        values.iter().enumerate().map(one).collect::<Vec<_>>().join(" ")
    }
}

/// The generated code of fused work.
struct Call<'a> {
    /// `fn epilogue(…)` or `fn prologue(…)`.
    function: String,
    name: &'static str,
    /// Lines that compute `at_NAME`, the position of element `i`, for every operand and result.
    positions: String,
    arguments: Vec<Argument<'a>>,
}

/// An argument of fused work.
enum Argument<'a> {
    /// The kernel's own value.
    Value,
    /// Not needed, because the result does not depend on it.
    Unused(&'static str),
    Load {
        name: String,
        layout: &'a Layout,
        class: &'static str,
    },
}

impl<'a> Call<'a> {
    /// The names of operands begin with `prefix`. Results have the layouts `stored`.
    fn new(
        name: &'static str,
        prefix: &str,
        fused: &'a Fused,
        stored: Vec<(&'a str, &'a Layout)>,
        params: &mut Params,
        library: &mut Library,
    ) -> Self {
        let Fused { map, inputs, scalars } = fused;
        let classes: Vec<_> = inputs.iter().map(|input| input.dtype.class()).collect();
        let function = scalar::element(name, &map.program, &classes, scalars, params, library);
        let used = scalar::live_inputs(&map.program, inputs.len());
        let arguments: Vec<Argument> = inputs
            .iter()
            .enumerate()
            .map(|(i, input)| match (used[i], wgsl_type(classes[i])) {
                _ if input.source == Source::Fused => Argument::Value,
                (false, class) => Argument::Unused(class),
                (true, class) => Argument::Load { name: operand_name(prefix, i), layout: &input.layout, class },
            })
            .collect();
        let loaded = arguments.iter().filter_map(|argument| match argument {
            Argument::Load { name, layout, .. } => Some((name.as_str(), *layout)),
            _ => None,
        });
        let walked: Vec<(&str, &Layout)> = loaded.chain(stored).collect();
        let positions = positions(prefix, &map.shape, &walked, params);
        Self { function, name, positions, arguments }
    }

    /// The call for element `i`, with the kernel's value in `v`.
    fn one(&self) -> String {
        let argument = |argument: &Argument| match argument {
            Argument::Value => "v".to_owned(),
            Argument::Unused(class) => format!("{class}(0)"),
            Argument::Load { name, .. } => format!("load_{name}(at_{name})"),
        };
        format!("{}({})", self.name, self.arguments.iter().map(argument).collect::<Vec<_>>().join(", "))
    }

    /// Lines that call it for the four elements starting at `i`, with the kernel's values in the vector `v`, and store
    /// the results in `r0` to `r3`.
    fn four(&self) -> String {
        let mut text = self.positions.clone();
        for argument in &self.arguments {
            let Argument::Load { name, layout, class } = argument else { continue };
            let value = match step_of(name, layout) {
                Apart::One => format!("load_{name}4(at_{name})"),
                Apart::None => format!("vec4<{class}>(load_{name}(at_{name}))"),
                Apart::Stride(stride) => {
                    let lane = |i: usize| format!("load_{name}(at_{name} + {i}u * {stride})");
                    format!("vec4<{class}>({})", (0..4).map(lane).collect::<Vec<_>>().join(", "))
                }
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "    let four_{name} = {value};");
        }
        for lane in 0..4 {
            let argument = |argument: &Argument| match argument {
                Argument::Value => format!("v[{lane}]"),
                Argument::Unused(class) => format!("{class}(0)"),
                Argument::Load { name, .. } => format!("four_{name}[{lane}]"),
            };
            let arguments = self.arguments.iter().map(argument).collect::<Vec<_>>().join(", ");
            let _ = writeln!(text, "    let r{lane} = {}({arguments});", self.name);
        }
        text
    }
}

/// Distance between neighbours along the innermost axis.
enum Apart {
    None,
    One,
    Stride(String),
}

fn step_of(name: &str, layout: &Layout) -> Apart {
    let axis = layout.strides.len().saturating_sub(1);
    match layout.strides.last() {
        _ if layout.is_contiguous() => Apart::One,
        None | Some(1) => Apart::One,
        Some(0) => Apart::None,
        Some(_) => Apart::Stride(format!("params.{name}_s{axis}")),
    }
}

/// Generates `store_y(i, v)`, including the epilogue if there is one, and `store_y4(i, v)` if the kernel stores by
/// `fours`, which is whether they are aligned to four elements.
pub(crate) fn store(
    epilogue: Option<&Fused>,
    targets: &[Target],
    fours: Option<bool>,
    params: &mut Params,
    library: &mut Library,
) -> String {
    let Some(y) = targets.first() else { return String::new() };
    let mut text = String::new();
    let (class, one, four) = match epilogue {
        None => {
            let at = "params.y_offset + i";
            let four = y.quad.then(|| y.four(at, "1u", core::array::from_fn(|lane| format!("v[{lane}]"))));
            (wgsl_type(y.operand.dtype.class()), y.one(at, "v"), four)
        }
        Some(fused) => {
            let stored = targets.iter().map(|target| (target.name, &target.operand.layout)).collect();
            let call = Call::new("epilogue", "e", fused, stored, params, library);
            text.push_str(&call.function);
            let mut one = format!("\n{}    let r = {};\n", call.positions, call.one());
            for (i, target) in targets.iter().enumerate() {
                let _ = writeln!(one, "    {}", target.one(&format!("at_{}", target.name), &format!("r.v{i}")));
            }
            let four = goes_by_fours(fused, fours).then(|| {
                let mut four = format!("\n{}", call.four());
                for (i, target) in targets.iter().enumerate() {
                    let step = match step_of(target.name, &target.operand.layout) {
                        Apart::Stride(stride) => stride,
                        Apart::None | Apart::One => "1u".to_owned(),
                    };
                    let values = core::array::from_fn(|lane| format!("r{lane}.v{i}"));
                    let _ = writeln!(four, "    {}", target.four(&format!("at_{}", target.name), &step, values));
                }
                four
            });
            (wgsl_type(fused.inputs[0].dtype.class()), one, four)
        }
    };
    let _ = writeln!(text, "fn store_y(i: u32, v: {class}) {{ {one} }}");
    if fours.is_some() {
        let singly = || "store_y(i, v.x); store_y(i + 1u, v.y); store_y(i + 2u, v.z); store_y(i + 3u, v.w);".to_owned();
        let _ = writeln!(text, "fn store_y4(i: u32, v: vec4<{class}>) {{ {} }}", four.unwrap_or_else(singly));
    }
    text
}

/// Generates `load_x(i)`, which computes the prologue, and `load_x4(i)` if the kernel loads by `fours`.
pub(crate) fn load(prologue: &Fused, fours: Option<bool>, params: &mut Params, library: &mut Library) -> String {
    let call = Call::new("prologue", "p", prologue, Vec::new(), params, library);
    let program = &prologue.map.program;
    let class = program.outputs.first().map_or("f32", |&reg| wgsl_type(program.class(reg)));
    let mut text = format!(
        "{}fn load_x(i: u32) -> {class} {{\n{}    return {}.v0;\n}}\n",
        call.function,
        call.positions,
        call.one()
    );
    if fours.is_some() {
        let four = match goes_by_fours(prologue, fours) {
            true => format!("\n{}    return vec4<{class}>(r0.v0, r1.v0, r2.v0, r3.v0);\n", call.four()),
            false => format!(" return vec4<{class}>(load_x(i), load_x(i + 1u), load_x(i + 2u), load_x(i + 3u)); "),
        };
        let _ = writeln!(text, "fn load_x4(i: u32) -> vec4<{class}> {{{four}}}");
    }
    text
}

/// Lines that compute `at_NAME` of element `i` for each operand. The text depends on which axes are broadcast and which
/// have stride 1, so that a bias along rows costs one remainder and contiguous operands cost nothing. Sizes are
/// parameters whose names start with the prefix. Strides are wrapping words, so negative ones work too.
fn positions(prefix: &str, shape: &Shape, operands: &[(&str, &Layout)], params: &mut Params) -> String {
    let strided = |layout: &Layout| !layout.is_contiguous();
    let moves = |axis: usize| operands.iter().any(|(_, layout)| strided(layout) && layout.strides[axis] != 0);
    let mut text = String::new();
    // Coordinates from the innermost axis outwards, as far as needed.
    if let Some(outermost) = (0..shape.rank()).find(|&axis| moves(axis)) {
        let mut rest = "i".to_owned();
        for axis in (outermost..shape.rank()).rev() {
            if axis == 0 {
                let _ = writeln!(text, "    let {prefix}_c0 = {rest};");
                break;
            }
            let size = format!("{prefix}_n{axis}");
            params.size(&size, shape[axis]);
            if moves(axis) {
                let _ = writeln!(text, "    let {prefix}_c{axis} = {rest} % params.{size};");
            }
            if axis > outermost {
                let _ = writeln!(text, "    let {prefix}_r{axis} = {rest} / params.{size};");
                rest = format!("{prefix}_r{axis}");
            }
        }
    }
    for (name, layout) in operands {
        let mut place = format!("params.{name}_offset");
        if !strided(layout) {
            place.push_str(" + i");
        } else {
            for (axis, &stride) in layout.strides.iter().enumerate() {
                match stride {
                    0 => {}
                    1 => {
                        let _ = write!(place, " + {prefix}_c{axis}");
                    }
                    _ => {
                        let field = format!("{name}_s{axis}");
                        params.size(&field, stride as usize);
                        let _ = write!(place, " + {prefix}_c{axis} * params.{field}");
                    }
                }
            }
        }
        let _ = writeln!(text, "    let at_{name} = {place};");
    }
    text
}
