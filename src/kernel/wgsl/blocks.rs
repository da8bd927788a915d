//! Block-quantised elements in WGSL: their layout and decoding, kept in sync with [`BlockFormat`], and code shared by
//! the kernels that quantise and copy blocks.

use super::{Builder, convert, gguf_blocks};
use crate::ir::{BlockFormat, Coding, DType};

/// The functions that [`load`] and the block kernels call, once for each quantised type in `dtypes`.
pub(crate) fn functions(dtypes: impl Iterator<Item = DType>) -> String {
    let mut seen: Vec<DType> = Vec::new();
    let mut text = String::new();
    for dtype in dtypes {
        if let Some(format) = dtype.block_format()
            && !seen.contains(&dtype)
        {
            seen.push(dtype);
            text.push_str(&match format.coding {
                Coding::Plain => functions_of(dtype.name(), format),
                Coding::Gguf(_) => places_of(dtype.name(), format),
            });
        }
    }
    text
}

/// `q_quants(block)`: the first word with quants of a block. `q_scales(block)`: the word with the scales of the block
/// and its neighbour. `q_scale(word, block)`: the scale. `q_word(i)`: the word that contains element `i`.
/// `q_value(word, scales, i)`: element `i`.
fn functions_of(q: &str, format: BlockFormat) -> String {
    let (elements, words, group) = (format.elements, format.words(), format.group_words());
    // Number of consecutive elements that share a bit position in the bytes of a block.
    let span = words * 4;
    let value = match format.bits {
        8 => "f32(bitcast<i32>(word << (24u - (i & 3u) * 8u)) >> 24u)".to_owned(),
        _ => format!("(f32(bitcast<i32>((word >> ((i & 3u) * 8u + i % {elements}u / {span}u * 4u)) & 15u)) - 8.0)"),
    };
    format!(
        "fn {q}_quants(block: u32) -> u32 {{ return (block >> 1u) * {group}u + 1u + (block & 1u) * {words}u; }}
fn {q}_scales(block: u32) -> u32 {{ return (block >> 1u) * {group}u; }}
fn {q}_scale(word: u32, block: u32) -> f32 {{ return unpack2x16float(word >> ((block & 1u) * 16u)).x; }}
fn {q}_word(i: u32) -> u32 {{ return {q}_quants(i / {elements}u) + i % {span}u / 4u; }}
fn {q}_value(word: u32, scales: u32, i: u32) -> f32 {{ return {value} * {q}_scale(scales, i / {elements}u); }}
"
    )
}

/// `q_quants(block)`: the first word of a block. `q_scales(block)`: the word with the scales of the block and its
/// neighbour; the first word of the block if there is none.
fn places_of(q: &str, format: BlockFormat) -> String {
    let (words, group) = (format.words(), format.group_words());
    let head = u32::from(format.has_head());
    let scales = match format.has_head() {
        true => format!("(block >> 1u) * {group}u"),
        false => format!("{q}_quants(block)"),
    };
    format!(
        "fn {q}_quants(block: u32) -> u32 {{ return (block >> 1u) * {group}u + {head}u + (block & 1u) * {words}u; }}
fn {q}_scales(block: u32) -> u32 {{ return {scales}; }}
"
    )
}

/// The functions that [`load`] calls for elements of this type in the array `variable` of `ty`, besides [`functions`].
pub(crate) fn functions_on(variable: &str, ty: &str, dtype: DType) -> String {
    match dtype {
        DType::Gguf(kind) => gguf_blocks::functions(variable, ty, kind),
        _ => String::new(),
    }
}

/// The expression that reads element `index` of a quantised type from the array `variable` of `ty`.
pub(crate) fn load(variable: &str, ty: &str, dtype: DType, index: &str) -> String {
    if let DType::Gguf(kind) = dtype {
        return gguf_blocks::load(variable, kind, index);
    }
    let q = dtype.name();
    let word = convert(format!("{variable}[{q}_word({index})]"), ty, "u32");
    let scales = convert(format!("{variable}[{q}_scales(({index}) / {}u)]", dtype.block().unwrap_or(1)), ty, "u32");
    format!("{q}_value({word}, {scales}, {index})")
}

/// Code for both block kernels: the sizes of a block, and the functions above as `quants`, `scales` and `scale`.
pub(crate) fn block_code(builder: &mut Builder, dtype: DType, format: BlockFormat) {
    let q = dtype.name();
    builder.constant("BLOCK", format.elements as u32).constant("WORDS", format.words() as u32);
    builder.constant("HEAD", u32::from(format.has_head()));
    builder.code(&format!(
        "fn quants(block: u32) -> u32 {{ return {q}_quants(block); }}
fn scales(block: u32) -> u32 {{ return {q}_scales(block); }}"
    ));
}
