//! The block types of GGUF files in WGSL, kept in sync with `ir/blocks/gguf.rs`. In all of them, four neighbouring
//! elements share their scales and are in the four bytes of a word, so that they are decoded together.

use super::convert;
use crate::ir::{BlockFormat, GGUF_TABLE, GgufType};

/// The name of the functions for the array `variable`.
fn name(variable: &str, kind: GgufType) -> String {
    format!("{}_{variable}", kind.name())
}

/// The expression that reads element `index`.
pub(super) fn load(variable: &str, kind: GgufType, index: &str) -> String {
    format!("{}_at({index})", name(variable, kind))
}

/// The name of the function that reads four elements: `(block, element)`. The element is a multiple of four.
pub(crate) fn quad(variable: &str, kind: GgufType) -> String {
    format!("{}_quad", name(variable, kind))
}

/// `q_quad(block, e)`: elements `e` to `e + 3` of a block. `q_at(i)`: element `i`.
pub(super) fn functions(variable: &str, ty: &str, kind: GgufType) -> String {
    let format = BlockFormat::of_gguf(kind);
    let q = name(variable, kind);
    let (elements, words, group) = (format.elements, format.words(), format.group_words());
    let head = u32::from(format.has_head());
    let scale = match format.has_head() {
        true => {
            format!("    let d = unpack2x16float({q}_w((block >> 1u) * {group}u) >> ((block & 1u) * 16u)).x;\n")
        }
        false => String::new(),
    };
    let word = convert(format!("{variable}[i]"), ty, "u32");
    let body = body(kind).replace("W(", &format!("{q}_w(at + ")).replace("B4(", &format!("{q}_bytes("));
    let body = body.replace("TABLE(", &format!("{q}_table("));
    let table = match kind {
        GgufType::Iq4Nl | GgufType::Iq4Xs => table(&q),
        _ => String::new(),
    };
    format!(
        "fn {q}_w(i: u32) -> u32 {{ return {word}; }}
fn {q}_bytes(word: u32, shift: u32, mask: u32) -> vec4<u32> {{ return (vec4<u32>(word) >> (vec4<u32>(0u, 8u, 16u, 24u) + shift)) & vec4<u32>(mask); }}
{table}fn {q}_quad(block: u32, e: u32) -> vec4<f32> {{
    let at = (block >> 1u) * {group}u + {head}u + (block & 1u) * {words}u;
{scale}{body}}}
fn {q}_at(i: u32) -> f32 {{
    let four = {q}_quad(i / {elements}u, (i % {elements}u) & 0xfffffffcu);
    return four[i & 3u];
}}
"
    )
}

/// The values of four positions in the table.
fn table(q: &str) -> String {
    let words: Vec<String> = GGUF_TABLE
        .chunks(4)
        .map(|four| format!("{}u", u32::from_le_bytes([four[0] as u8, four[1] as u8, four[2] as u8, four[3] as u8])))
        .collect();
    format!(
        "fn {q}_value(i: u32) -> f32 {{
    let words = vec4<u32>({});
    return f32(bitcast<i32>(words[i >> 2u] << (24u - (i & 3u) * 8u)) >> 24u);
}}
fn {q}_table(i: vec4<u32>) -> vec4<f32> {{ return vec4<f32>({q}_value(i.x), {q}_value(i.y), {q}_value(i.z), {q}_value(i.w)); }}
",
        words.join(", ")
    )
}

/// The end of the function, after the definitions of `at` and, if the scale is in the group's first word, `d`. `W(i)` is
/// word `i` of the block, `B4(word, shift, mask)` the bytes of a word.
fn body(kind: GgufType) -> &'static str {
    match kind {
        GgufType::Q4_1 => {
            "    let dm = unpack2x16float(W(0u));
    return dm.x * vec4<f32>(B4(W(1u + (e & 15u) / 4u), e / 16u * 4u, 15u)) + dm.y;
"
        }
        GgufType::Q5_0 => {
            "    let top = ((vec4<u32>(W(0u) >> e) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)) << vec4<u32>(4u);
    return d * (vec4<f32>(B4(W(1u + (e & 15u) / 4u), e / 16u * 4u, 15u) | top) - 16.0);
"
        }
        GgufType::Q5_1 => {
            "    let dm = unpack2x16float(W(0u));
    let top = ((vec4<u32>(W(1u) >> e) >> vec4<u32>(0u, 1u, 2u, 3u)) & vec4<u32>(1u)) << vec4<u32>(4u);
    return dm.x * vec4<f32>(B4(W(2u + (e & 15u) / 4u), e / 16u * 4u, 15u) | top) + dm.y;
"
        }
        GgufType::Q2K => {
            "    let j = e / 16u;
    let dm = unpack2x16float(W(20u));
    let s = (W(j / 4u) >> (j % 4u * 8u)) & 255u;
    let q = B4(W(4u + e / 128u * 8u + e % 32u / 4u), e % 128u / 32u * 2u, 3u);
    return dm.x * f32(s & 15u) * vec4<f32>(q) - dm.y * f32(s >> 4u);
"
        }
        GgufType::Q3K => {
            "    let j = e / 16u;
    let low = (W(24u + j % 8u / 4u) >> (j % 4u * 8u + j / 8u * 4u)) & 15u;
    let high = (W(26u) >> (j % 4u * 8u + j / 4u * 2u)) & 3u;
    let q = B4(W(8u + e / 128u * 8u + e % 32u / 4u), e % 128u / 32u * 2u, 3u);
    let top = B4(W(e % 32u / 4u), e / 32u, 1u) << vec4<u32>(2u);
    return d * (f32(low | (high << 4u)) - 32.0) * (vec4<f32>(q | top) - 4.0);
"
        }
        GgufType::Q4K => {
            "    let j = e / 32u;
    let dm = unpack2x16float(W(0u));
    let a = (W(1u) >> (j % 4u * 8u)) & 255u;
    let b = (W(2u) >> (j % 4u * 8u)) & 255u;
    let c = (W(3u) >> (j % 4u * 8u)) & 255u;
    let scale = select(a & 63u, (c & 15u) | ((a >> 6u) << 4u), j >= 4u);
    let minimum = select(b & 63u, (c >> 4u) | ((b >> 6u) << 4u), j >= 4u);
    let q = B4(W(4u + e / 64u * 8u + e % 32u / 4u), j % 2u * 4u, 15u);
    return dm.x * f32(scale) * vec4<f32>(q) - dm.y * f32(minimum);
"
        }
        GgufType::Q5K => {
            "    let j = e / 32u;
    let dm = unpack2x16float(W(0u));
    let a = (W(1u) >> (j % 4u * 8u)) & 255u;
    let b = (W(2u) >> (j % 4u * 8u)) & 255u;
    let c = (W(3u) >> (j % 4u * 8u)) & 255u;
    let scale = select(a & 63u, (c & 15u) | ((a >> 6u) << 4u), j >= 4u);
    let minimum = select(b & 63u, (c >> 4u) | ((b >> 6u) << 4u), j >= 4u);
    let q = B4(W(12u + e / 64u * 8u + e % 32u / 4u), j % 2u * 4u, 15u);
    let top = B4(W(4u + e % 32u / 4u), j, 1u) << vec4<u32>(4u);
    return dm.x * f32(scale) * vec4<f32>(q | top) - dm.y * f32(minimum);
"
        }
        GgufType::Q6K => {
            "    let j = e / 16u;
    let part = e % 128u / 32u;
    let scale = bitcast<i32>(W(48u + j / 4u) << (24u - j % 4u * 8u)) >> 24u;
    let q = B4(W(e / 128u * 16u + part % 2u * 8u + e % 32u / 4u), part / 2u * 4u, 15u);
    let top = B4(W(32u + e / 128u * 8u + e % 32u / 4u), part * 2u, 3u) << vec4<u32>(4u);
    return d * f32(scale) * (vec4<f32>(q | top) - 32.0);
"
        }
        GgufType::Iq4Nl => {
            "    return d * TABLE(B4(W((e & 15u) / 4u), e / 16u * 4u, 15u));
"
        }
        GgufType::Iq4Xs => {
            "    let j = e / 32u;
    let first = W(0u);
    let scale = ((W(1u) >> (j * 4u)) & 15u) | (((first >> (16u + 2u * j)) & 3u) << 4u);
    let q = B4(W(2u + j * 4u + e % 16u / 4u), e % 32u / 16u * 4u, 15u);
    return unpack2x16float(first).x * (f32(scale) - 32.0) * TABLE(q);
"
        }
    }
}
