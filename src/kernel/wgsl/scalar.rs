//! Scalar programs as WGSL: the function `element` of fused kernels.

use core::fmt::Write;
use std::sync::Arc;

use crate::ir::{BinaryOp, Class, DType, ElementFunction, Expr, Primitive, Program, Reg};
use crate::kernel::{Params, wgsl_type};

/// The functions of `assets/kernels/lib` that a text calls. Only those are included.
#[derive(Default)]
pub(crate) struct Library {
    names: Vec<&'static str>,
    /// Custom functions.
    functions: Vec<Arc<ElementFunction>>,
}

/// Every file of the library: its name, its dependencies and its text.
const LIBRARY: [(&str, &[&str], &str); 21] = [
    ("is_nan", &[], include_str!("../../../assets/kernels/lib/is_nan.wgsl")),
    ("is_inf", &[], include_str!("../../../assets/kernels/lib/is_inf.wgsl")),
    ("from_bits", &[], include_str!("../../../assets/kernels/lib/from_bits.wgsl")),
    ("min_max", &["is_nan"], include_str!("../../../assets/kernels/lib/min_max.wgsl")),
    ("sign_f32", &["is_nan"], include_str!("../../../assets/kernels/lib/sign_f32.wgsl")),
    ("log_f32", &["is_inf", "from_bits"], include_str!("../../../assets/kernels/lib/log_f32.wgsl")),
    ("exp_f32", &["is_nan", "from_bits"], include_str!("../../../assets/kernels/lib/exp_f32.wgsl")),
    ("tanh_f32", &["is_nan"], include_str!("../../../assets/kernels/lib/tanh_f32.wgsl")),
    ("erf_f32", &["is_nan"], include_str!("../../../assets/kernels/lib/erf_f32.wgsl")),
    ("trig", &["from_bits"], include_str!("../../../assets/kernels/lib/trig.wgsl")),
    ("power_f32", &["is_nan", "is_inf", "from_bits"], include_str!("../../../assets/kernels/lib/power_f32.wgsl")),
    ("power_u32", &[], include_str!("../../../assets/kernels/lib/power_u32.wgsl")),
    ("power_i32", &["power_u32"], include_str!("../../../assets/kernels/lib/power_i32.wgsl")),
    ("divide_i32", &[], include_str!("../../../assets/kernels/lib/divide_i32.wgsl")),
    ("divide_u32", &[], include_str!("../../../assets/kernels/lib/divide_u32.wgsl")),
    ("remainder_f32", &["from_bits"], include_str!("../../../assets/kernels/lib/remainder_f32.wgsl")),
    ("to_integer", &["is_nan"], include_str!("../../../assets/kernels/lib/to_integer.wgsl")),
    ("bits_f16", &["round_f16"], include_str!("../../../assets/kernels/lib/bits_f16.wgsl")),
    ("round_f16", &["from_bits"], include_str!("../../../assets/kernels/lib/round_f16.wgsl")),
    ("round_bf16", &["from_bits"], include_str!("../../../assets/kernels/lib/round_bf16.wgsl")),
    ("hash", &[], include_str!("../../../assets/kernels/lib/hash.wgsl")),
];

impl Library {
    /// Includes a file and its dependencies.
    pub(crate) fn need(&mut self, name: &'static str) {
        if self.names.contains(&name) {
            return;
        }
        let needs = LIBRARY.iter().find(|file| file.0 == name).map_or(&[][..], |file| file.1);
        for need in needs {
            self.need(need);
        }
        self.names.push(name);
    }

    /// Includes a custom function.
    fn need_function(&mut self, function: &Arc<ElementFunction>) {
        if !self.functions.contains(function) {
            self.functions.push(function.clone());
        }
    }

    /// Whether the text contains custom code that is not trusted.
    pub(crate) fn needs_checks(&self) -> bool {
        self.functions.iter().any(|function| !function.trusted)
    }

    /// The text of all included files.
    pub(crate) fn text(&self) -> String {
        let files = LIBRARY.iter().filter(|file| self.names.contains(&file.0)).map(|file| file.2);
        // Functions of one text share their prefix, so the text must not be repeated.
        let mut texts: Vec<&str> = Vec::new();
        for function in &self.functions {
            if !texts.contains(&function.text.as_str()) {
                texts.push(&function.text);
            }
        }
        files.chain(texts).collect::<Vec<_>>().join("\n")
    }
}

/// The modules that custom kernels can import as `tensor::NAME`.
pub(crate) const MODULES: [&str; 4] = ["indexing", "reductions", "math", "random"];

/// The text of some [`MODULES`], without duplicates.
pub(crate) fn module_text(modules: &[&str]) -> String {
    let mut library = Library::default();
    let mut text = String::new();
    for module in modules {
        match *module {
            "indexing" => text.push_str(include_str!("../../../assets/kernels/lib/indexing.wgsl")),
            "reductions" => text.push_str(include_str!("../../../assets/kernels/lib/reductions.wgsl")),
            "random" => library.need("hash"),
            _ => {
                let math = ["exp_f32", "log_f32", "tanh_f32", "erf_f32", "trig", "power_f32", "sign_f32", "min_max"];
                math.into_iter().chain(["is_nan", "is_inf"]).for_each(|name| library.need(name));
            }
        }
    }
    text + &library.text()
}

/// The text of `fn NAME(in0: …, in1: …) -> NAME_result`, which computes all outputs of one element. `inputs` are the
/// classes of the inputs, and `scalars` the indices of the program's scalars in the batch. Numbers without a literal
/// become parameters.
pub(crate) fn element(
    name: &str,
    program: &Program,
    inputs: &[Class],
    scalars: &[u32],
    params: &mut Params,
    library: &mut Library,
) -> String {
    let mut text = format!("struct {name}_result {{\n");
    // Writing to a string cannot fail.
    for (i, &reg) in program.outputs.iter().enumerate() {
        let _ = writeln!(text, "    v{i}: {},", wgsl_type(program.class(reg)));
    }
    let arguments: Vec<_> = inputs.iter().enumerate().map(|(i, c)| format!("in{i}: {}", wgsl_type(*c))).collect();
    let _ = writeln!(text, "}}\nfn {name}({}) -> {name}_result {{", arguments.join(", "));
    let mut declared: Vec<(u16, Class)> = Vec::new();
    for (i, _) in live(program).into_iter().enumerate().filter(|(_, live)| *live) {
        let value = match program.exprs[i] {
            Expr::Input(input, _) => format!("in{input}"),
            Expr::Scalar(scalar, class) => {
                let field = format!("{name}_s{scalar}_{}", wgsl_type(class));
                if !declared.contains(&(scalar, class)) {
                    declared.push((scalar, class));
                    // A missing scalar would be a bug in the planner. It reads the first scalar instead of panicking.
                    let position = scalars.get(scalar as usize).or(scalars.first()).copied().unwrap_or(0);
                    params.scalar(&field, class, position);
                }
                format!("params.{field}")
            }
            Expr::Const(bits, class) => constant(&format!("{name}_c{i}"), bits, class, params),
            Expr::Unary(op, x) => unary(op, program.class(x), &r(x), library),
            Expr::Binary(op, a, b) => binary(op, program.class(a), &r(a), &r(b), library),
            Expr::Select(c, a, b) => format!("select({}, {}, {} != 0u)", r(b), r(a), r(c)),
            Expr::Cast(x, dtype) => cast(dtype, program.class(x), &r(x), library),
            Expr::Hash(position, seed) => {
                library.need("hash");
                format!("hash({}, {})", r(position), r(seed))
            }
            Expr::Call(function, arguments) => {
                let function = &program.functions[function as usize];
                library.need_function(function);
                let arguments: Vec<_> = arguments.regs().iter().map(|&reg| r(reg)).collect();
                format!("{}({})", function.function, arguments.join(", "))
            }
        };
        let _ = writeln!(text, "    let r{i} = {value};");
    }
    let outputs: Vec<_> = program.outputs.iter().map(|&reg| r(reg)).collect();
    let _ = writeln!(text, "    return {name}_result({});\n}}", outputs.join(", "));
    text
}

/// A register's name.
fn r(reg: Reg) -> String {
    format!("r{}", reg.0)
}

/// Which expressions the outputs depend on. Operands come before their users, so one backward pass finds all.
fn live(program: &Program) -> Vec<bool> {
    let mut live = vec![false; program.exprs.len()];
    for reg in &program.outputs {
        live[reg.0 as usize] = true;
    }
    for i in (0..program.exprs.len()).rev() {
        if !live[i] {
            continue;
        }
        for reg in program.exprs[i].operands() {
            live[reg.0 as usize] = true;
        }
    }
    live
}

/// The inputs that the outputs depend on.
pub(crate) fn live_inputs(program: &Program, inputs: usize) -> Vec<bool> {
    let mut used = vec![false; inputs];
    for (expr, live) in program.exprs.iter().zip(live(program)) {
        if let (Expr::Input(i, _), true) = (expr, live)
            && let Some(used) = used.get_mut(*i as usize)
        {
            *used = true;
        }
    }
    used
}

/// A number as an exact literal, or as a parameter if there is none.
fn constant(field: &str, bits: u32, class: Class, params: &mut Params) -> String {
    match class {
        Class::Float if f32::from_bits(bits).is_finite() => format!("{:?}f", f32::from_bits(bits)),
        Class::Float => {
            params.size(field, bits as usize);
            format!("bitcast<f32>(params.{field})")
        }
        // Converted, because the lowest number has no literal.
        Class::Int => format!("i32({})", bits as i32),
        Class::Uint => format!("{bits}u"),
    }
}

fn unary(op: Primitive, class: Class, x: &str, library: &mut Library) -> String {
    let mut call = |file: &'static str, text: String| {
        library.need(file);
        text
    };
    match (op, class) {
        (Primitive::Neg, Class::Uint) => format!("0u - {x}"),
        (Primitive::Neg, _) => format!("-{x}"),
        (Primitive::Abs, Class::Uint) => x.to_owned(),
        (Primitive::Abs, _) => format!("abs({x})"),
        (Primitive::Sign, Class::Float) => call("sign_f32", format!("sign_f32({x})")),
        (Primitive::Sign, Class::Int) => format!("sign({x})"),
        (Primitive::Sign, Class::Uint) => format!("min({x}, 1u)"),
        (Primitive::Not, _) => format!("select(0u, 1u, {x} == 0u)"),
        (Primitive::BitNot, _) => format!("~{x}"),
        (Primitive::IsNan, Class::Float) => call("is_nan", format!("select(0u, 1u, is_nan({x}))")),
        (Primitive::IsInf, Class::Float) => call("is_inf", format!("select(0u, 1u, is_inf({x}))")),
        (Primitive::IsNan | Primitive::IsInf, _) => "0u".to_owned(),
        (Primitive::Exp, _) => call("exp_f32", format!("exp_f32({x})")),
        (Primitive::Log, _) => call("log_f32", format!("log_f32({x})")),
        (Primitive::Sqrt, _) => format!("sqrt({x})"),
        (Primitive::Sin, _) => call("trig", format!("sine({x}, 0u)")),
        (Primitive::Cos, _) => call("trig", format!("sine({x}, 1u)")),
        (Primitive::Floor, _) => format!("floor({x})"),
        (Primitive::Ceil, _) => format!("ceil({x})"),
        (Primitive::Round, _) => format!("round({x})"),
        (Primitive::Trunc, _) => format!("trunc({x})"),
        (Primitive::Erf, _) => call("erf_f32", format!("erf_f32({x})")),
        (Primitive::Tanh, _) => call("tanh_f32", format!("tanh_f32({x})")),
    }
}

fn binary(op: BinaryOp, class: Class, a: &str, b: &str, library: &mut Library) -> String {
    let ty = wgsl_type(class);
    let mut call = |file: &'static str, function: &str| {
        library.need(file);
        format!("{function}({a}, {b})")
    };
    let divide = if class == Class::Uint { "divide_u32" } else { "divide_i32" };
    match (op, class) {
        (BinaryOp::Add, _) => format!("{a} + {b}"),
        (BinaryOp::Sub, _) => format!("{a} - {b}"),
        (BinaryOp::Mul, _) => format!("{a} * {b}"),
        (BinaryOp::Div, Class::Float) => format!("{a} / {b}"),
        (BinaryOp::Div, _) => call(divide, divide),
        (BinaryOp::Pow, Class::Float) => call("power_f32", "power_f32"),
        (BinaryOp::Pow, Class::Int) => call("power_i32", "power_i32"),
        (BinaryOp::Pow, Class::Uint) => call("power_u32", "power_u32"),
        (BinaryOp::Min, Class::Float) => call("min_max", "min_f32"),
        (BinaryOp::Max, Class::Float) => call("min_max", "max_f32"),
        (BinaryOp::Min, _) => format!("min({a}, {b})"),
        (BinaryOp::Max, _) => format!("max({a}, {b})"),
        (BinaryOp::Mod, Class::Float) => call("remainder_f32", "modulo_f32"),
        (BinaryOp::Rem, Class::Float) => call("remainder_f32", "remainder_f32"),
        (BinaryOp::Mod, Class::Int) => call("divide_i32", "modulo_i32"),
        (BinaryOp::Mod | BinaryOp::Rem, _) => call(divide, &format!("remainder_{ty}")),
        (BinaryOp::Eq, _) => format!("select(0u, 1u, {a} == {b})"),
        // Not `!=`, which backends may turn into an ordered comparison that is false for NaN.
        (BinaryOp::Ne, _) => format!("select(1u, 0u, {a} == {b})"),
        (BinaryOp::Lt, _) => format!("select(0u, 1u, {a} < {b})"),
        (BinaryOp::Le, _) => format!("select(0u, 1u, {a} <= {b})"),
        (BinaryOp::Gt, _) => format!("select(0u, 1u, {a} > {b})"),
        (BinaryOp::Ge, _) => format!("select(0u, 1u, {a} >= {b})"),
        (BinaryOp::And | BinaryOp::BitAnd, _) => format!("{a} & {b}"),
        (BinaryOp::Or | BinaryOp::BitOr, _) => format!("{a} | {b}"),
        (BinaryOp::Xor | BinaryOp::BitXor, _) => format!("{a} ^ {b}"),
        // A shift by 32 or more is taken modulo 32 by the language. A negative one is a very large one.
        (BinaryOp::ShiftLeft, _) => format!("select({ty}(0), {a} << (u32({b}) & 31u), u32({b}) < 32u)"),
        (BinaryOp::ShiftRight, Class::Int) => format!("{a} >> min(u32({b}), 31u)"),
        (BinaryOp::ShiftRight, _) => format!("select(0u, {a} >> (u32({b}) & 31u), u32({b}) < 32u)"),
    }
}

fn cast(dtype: DType, from: Class, x: &str, library: &mut Library) -> String {
    let float = from == Class::Float;
    if float && matches!(dtype, DType::I32 | DType::U32 | DType::I8 | DType::U8) {
        library.need("to_integer");
    }
    match dtype {
        DType::F32 | DType::Q8_0 | DType::Q4_0 | DType::Q4_128 | DType::Gguf(_) => format!("f32({x})"),
        DType::F16 => {
            library.need("round_f16");
            format!("round_f16(f32({x}))")
        }
        DType::BF16 => {
            library.need("round_bf16");
            format!("round_bf16(f32({x}))")
        }
        DType::I32 if float => format!("to_i32({x})"),
        DType::U32 if float => format!("to_u32({x})"),
        DType::I8 if float => format!("to_range({x}, -128.0, 127.0)"),
        DType::U8 if float => format!("u32(to_range({x}, 0.0, 255.0))"),
        DType::I32 => format!("i32({x})"),
        DType::U32 => format!("u32({x})"),
        DType::I8 => format!("(i32({x}) << 24u) >> 24u"),
        DType::U8 => format!("u32({x}) & 255u"),
        DType::Bool => format!("select(1u, 0u, {x} == {}(0))", wgsl_type(from)),
    }
}
