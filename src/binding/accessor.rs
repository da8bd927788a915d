//! WGSL that reads a tensor: its shape, strides, offset and element type as constants and functions.

use core::fmt::Write;

use super::BindingSettings;
use crate::ir::DType;
use crate::kernel::blocks;
use crate::tensor::Tensor;

/// The text of a tensor's accessor. Every declared name begins with `prefix`.
pub(super) fn accessor(tensor: &Tensor, settings: &BindingSettings, prefix: &str) -> String {
    let (layout, dtype) = (tensor.layout(), tensor.dtype());
    let (shape, elements, rank) = (&layout.shape, layout.elements(), layout.rank());
    let value = value_type(dtype);
    let BindingSettings { group, binding, writable, .. } = settings;
    let access = if *writable { "read_write" } else { "read" };
    let list = |values: &mut dyn Iterator<Item = String>| values.collect::<Vec<_>>().join(", ");
    let array = |ty: &str, mut values: Vec<String>| {
        // WGSL has no empty arrays.
        if values.is_empty() {
            values.push("1".to_owned());
        }
        let count = values.len();
        format!("array<{ty}, {count}>({})", list(&mut values.into_iter()))
    };
    let sizes = array("u32", shape.iter().map(|size| format!("{size}u")).collect());
    let strides = array("i32", layout.strides.iter().map(|stride| format!("{stride}i")).collect());
    let (offset, p) = (layout.offset, prefix);
    let mut text = format!(
        "// {dtype} {shape}\n@group({group}) @binding({binding}) var<storage, {access}> {p}words: array<u32>;\n"
    );
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "const {p}RANK: u32 = {rank}u;
const {p}SHAPE = {sizes};
const {p}STRIDES = {strides};
const {p}OFFSET: u32 = {offset}u;
const {p}ELEMENTS: u32 = {elements}u;"
    );
    if dtype.is_quantized() {
        let functions = blocks::functions(core::iter::once(dtype));
        let on_words = blocks::functions_on(&format!("{p}words"), "u32", dtype);
        text.push_str(&prefix_functions(&(functions + &on_words), dtype, p));
    }
    let load = load(dtype, p);
    let _ = writeln!(text, "fn {p}load(i: u32) -> {value} {{ return {load}; }}");
    // The position of an element from its indices. Indices beyond an axis are clamped to its last element.
    let indices = list(&mut (0..rank).map(|axis| format!("i{axis}: u32")));
    let mut position = format!("{offset}i");
    for (axis, (size, stride)) in shape.iter().zip(&layout.strides).enumerate() {
        let _ = write!(position, " + i32(min(i{axis}, {}u)) * {stride}i", size.saturating_sub(1));
    }
    let _ = writeln!(text, "fn {p}position({indices}) -> u32 {{ return u32({position}); }}");
    let arguments = list(&mut (0..rank).map(|axis| format!("i{axis}")));
    let nothing = if value == "bool" { "false".to_owned() } else { format!("{value}()") };
    let at = match elements {
        0 => nothing.clone(),
        _ => format!("{p}load({p}position({arguments}))"),
    };
    let _ = writeln!(text, "fn {p}at({indices}) -> {value} {{ return {at}; }}");
    // The indices of the element with a number, from the last axis to the first.
    let mut after = 1;
    let mut from_number = vec![String::new(); rank];
    for axis in (0..rank).rev() {
        let size = shape[axis].max(1);
        from_number[axis] = format!("n / {after}u % {size}u");
        after *= size;
    }
    let element = match elements {
        0 => nothing,
        _ => format!("{p}at({})", from_number.join(", ")),
    };
    let last = elements.saturating_sub(1);
    let _ = writeln!(
        text,
        "fn {p}element(number: u32) -> {value} {{ let n = min(number, {last}u); _ = n; return {element}; }}"
    );
    if *writable && dtype.per_word() == 1 && !dtype.is_quantized() && elements > 0 {
        let comma = if rank == 0 { "" } else { ", " };
        let _ = writeln!(
            text,
            "fn {p}put({indices}{comma}value: {value}) {{ {p}words[{p}position({arguments})] = bitcast<u32>(value); }}"
        );
    }
    text
}

/// The WGSL type of an element.
fn value_type(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => "f32",
        DType::Q8_0 | DType::Q4_0 | DType::Q4_128 | DType::Gguf(_) => "f32",
        DType::I32 | DType::I8 => "i32",
        DType::U32 | DType::U8 => "u32",
        DType::Bool => "bool",
    }
}

/// The expression that reads the element at position `i` of the storage.
fn load(dtype: DType, p: &str) -> String {
    let halves = format!("({p}words[i / 2u] >> (i % 2u * 16u))");
    let bytes = format!("(({p}words[i / 4u] >> (i % 4u * 8u)) & 255u)");
    match dtype {
        DType::F32 => format!("bitcast<f32>({p}words[i])"),
        DType::I32 => format!("bitcast<i32>({p}words[i])"),
        DType::U32 => format!("{p}words[i]"),
        DType::F16 => format!("unpack2x16float({halves}).x"),
        DType::BF16 => format!("bitcast<f32>({halves} << 16u)"),
        DType::I8 => format!("bitcast<i32>({bytes} << 24u) >> 24u"),
        DType::U8 => bytes,
        DType::Bool => format!("{bytes} != 0u"),
        DType::Q8_0 | DType::Q4_0 | DType::Q4_128 | DType::Gguf(_) => {
            prefix_functions(&blocks::load(&format!("{p}words"), "u32", dtype, "i"), dtype, p)
        }
    }
}

/// Puts the prefix before the names of the functions that decode blocks.
fn prefix_functions(text: &str, dtype: DType, prefix: &str) -> String {
    text.replace(&format!("{}_", dtype.name()), &format!("{prefix}{}_", dtype.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validate(text: &str) {
        let module = naga::front::wgsl::parse_str(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let (flags, features) =
            (naga::valid::ValidationFlags::all(), naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32);
        if let Err(error) = naga::valid::Validator::new(flags, features).validate(&module) {
            panic!("{error:?}\n{text}");
        }
    }

    #[test]
    fn every_type_and_layout_is_valid_wgsl() {
        let settings = BindingSettings { group: "2".to_owned(), ..BindingSettings::new("x") };
        let of_files = crate::ir::GgufType::ALL.into_iter().map(DType::Gguf);
        for dtype in DType::ALL.into_iter().chain(DType::QUANTIZED).chain(of_files) {
            for writable in [false, true] {
                let settings = BindingSettings { writable, ..settings.clone() };
                let tensor = Tensor::zeros([4, 256], dtype).unwrap();
                validate(&accessor(&tensor, &settings, "x_"));
                validate(&accessor(&tensor, &settings, ""));
                validate(&accessor(&tensor.slice(0, 1, 3).unwrap(), &settings, "x_"));
                if !dtype.is_quantized() {
                    validate(&accessor(&tensor.transpose().unwrap(), &settings, "x_"));
                    validate(&accessor(&tensor.slice_step(1, 255, -300, -3).unwrap(), &settings, "x_"));
                    validate(&accessor(&Tensor::zeros([], dtype).unwrap(), &settings, "x_"));
                    validate(&accessor(&Tensor::zeros([0, 3], dtype).unwrap(), &settings, "x_"));
                }
            }
        }
    }
}
