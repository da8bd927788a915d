//! Elementwise work inside other kernels: what is done to a value before `store_y` writes it, and what `load_x` computes instead of reading.

use core::fmt::Write;

use super::convert;
use super::scalar::{self, Library};
use crate::kernel::{Params, wgsl_type};
use crate::plan::{Fused, Operand};
use crate::tensor::{Class, Layout, Shape};

/// Where a result goes.
pub(super) struct Target<'a> {
    pub name: &'a str,
    /// The array it is in, and the element type of that.
    pub variable: &'a str,
    pub ty: &'static str,
    pub operand: &'a Operand,
}

/// The name of output number `i`.
pub(super) fn output_name(i: usize) -> String {
    if i == 0 { "y".to_owned() } else { format!("y{i}") }
}

/// The name of operand number `i` of an epilogue.
pub(super) fn epilogue_name(i: usize) -> String {
    format!("e{i}")
}

/// The name of operand number `i` of a prologue.
pub(super) fn prologue_name(i: usize) -> String {
    format!("p{i}")
}

/// `store_y(i, v)`, by way of the epilogue if there is one.
pub(super) fn store(
    epilogue: Option<&Fused>,
    targets: &[Target],
    params: &mut Params,
    library: &mut Library,
) -> String {
    let Some(Fused { map, inputs, scalars }) = epilogue else {
        let Some(y) = targets.first() else { return String::new() };
        let class = wgsl_type(y.operand.dtype.class());
        let value = convert("v".to_owned(), class, y.ty);
        return format!("fn store_y(i: u32, v: {class}) {{ {}[params.y_offset + i] = {value}; }}\n", y.variable);
    };
    let classes: Vec<_> = inputs.iter().map(|input| input.dtype.class()).collect();
    let mut text = scalar::element("epilogue", &map.program, &classes, scalars, params, library);
    let used = scalar::live_inputs(&map.program, inputs.len());
    let names: Vec<String> = (0..inputs.len()).map(epilogue_name).collect();
    let loaded = names.iter().zip(inputs).zip(&used).skip(1).filter(|(_, used)| **used);
    let stored = targets.iter().map(|target| (target.name, &target.operand.layout));
    let walked: Vec<(&str, &Layout)> =
        loaded.map(|((name, input), _)| (name.as_str(), &input.layout)).chain(stored).collect();
    let value = wgsl_type(classes[0]);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "fn store_y(i: u32, v: {value}) {{");
    text.push_str(&positions("e", &map.shape, &walked, params));
    let mut arguments = arguments(&names, &classes, &used);
    arguments[0] = "v".to_owned();
    let _ = writeln!(text, "    let result = epilogue({});", arguments.join(", "));
    for (i, target) in targets.iter().enumerate() {
        let value = convert(format!("result.v{i}"), wgsl_type(target.operand.dtype.class()), target.ty);
        let _ = writeln!(text, "    {}[{}_at] = {value};", target.variable, target.name);
    }
    text.push_str("}\n");
    text
}

/// `load_x(i)` as the prologue computes it.
pub(super) fn load(prologue: &Fused, params: &mut Params, library: &mut Library) -> String {
    let Fused { map, inputs, scalars } = prologue;
    let classes: Vec<_> = inputs.iter().map(|input| input.dtype.class()).collect();
    let mut text = scalar::element("prologue", &map.program, &classes, scalars, params, library);
    let used = scalar::live_inputs(&map.program, inputs.len());
    let names: Vec<String> = (0..inputs.len()).map(prologue_name).collect();
    let walked: Vec<(&str, &Layout)> = names
        .iter()
        .zip(inputs)
        .zip(&used)
        .filter(|(_, used)| **used)
        .map(|((name, input), _)| (name.as_str(), &input.layout))
        .collect();
    let class = map.program.outputs.first().map_or("f32", |&reg| wgsl_type(map.program.class(reg)));
    let _ = writeln!(text, "fn load_x(i: u32) -> {class} {{");
    text.push_str(&positions("p", &map.shape, &walked, params));
    let _ = writeln!(text, "    return prologue({}).v0;\n}}", arguments(&names, &classes, &used).join(", "));
    text
}

/// What a program is called with: the elements of the operands it uses.
fn arguments(names: &[String], classes: &[Class], used: &[bool]) -> Vec<String> {
    let argument = |((name, class), used): ((&String, &Class), &bool)| match used {
        true => format!("load_{name}({name}_at)"),
        false => format!("{}(0)", wgsl_type(*class)),
    };
    names.iter().zip(classes).zip(used).map(argument).collect()
}

/// Lines that find `NAME_at` of element number `i` for each operand. Which axes are broadcast and which are steps of one is part of the
/// text, so that a bias along rows costs one remainder and operands in order cost nothing. Sizes are parameters named with the prefix.
/// Strides are words that wrap, which makes negative ones come out right.
fn positions(prefix: &str, shape: &Shape, operands: &[(&str, &Layout)], params: &mut Params) -> String {
    let strided = |layout: &Layout| !layout.is_contiguous();
    let moves = |axis: usize| operands.iter().any(|(_, layout)| strided(layout) && layout.strides[axis] != 0);
    let mut text = String::new();
    // Coordinates from the innermost axis out, as far as someone asks.
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
                    1 => place.push_str(&format!(" + {prefix}_c{axis}")),
                    _ => {
                        let field = format!("{name}_s{axis}");
                        params.size(&field, stride as usize);
                        let _ = write!(place, " + {prefix}_c{axis} * params.{field}");
                    }
                }
            }
        }
        let _ = writeln!(text, "    let {name}_at = {place};");
    }
    text
}
