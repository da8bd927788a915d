//! The NumPy `.npy` format.

use std::path::Path;

use super::safetensors::FormatError;
use crate::disk::replace_file;
use crate::ir::DType;
use crate::tensor::TensorData;

/// Size of the fixed part before the header text: magic, version 1.0, and length of the text.
const PREFIX: usize = 10;

/// Writes values as a NumPy array for `numpy.load`. An existing file is replaced atomically. NumPy has no
/// bfloat16, so those values and quantised ones are written as `f32`.
pub fn save_npy(path: impl AsRef<Path>, data: &TensorData) -> Result<(), FormatError> {
    let path = path.as_ref();
    replace_file(path, &npy(data)).map_err(|error| FormatError::Io {
        path: path.to_owned(),
        kind: error.kind(),
        message: error.to_string(),
    })
}

fn npy(data: &TensorData) -> Vec<u8> {
    let (kind, bytes) = match data.dtype() {
        DType::F32 => ("<f4", data.bytes().to_vec()),
        DType::F16 => ("<f2", data.bytes().to_vec()),
        DType::I32 => ("<i4", data.bytes().to_vec()),
        DType::U32 => ("<u4", data.bytes().to_vec()),
        DType::I8 => ("|i1", data.bytes().to_vec()),
        DType::U8 => ("|u1", data.bytes().to_vec()),
        DType::Bool => ("|b1", data.bytes().to_vec()),
        DType::BF16 | DType::Q8_0 | DType::Q4_0 | DType::Q4_128 | DType::Gguf(_) => {
            ("<f4", bytemuck::cast_slice(&data.to_f32()).to_vec())
        }
    };
    npy_bytes(kind, data.shape(), &bytes)
}

/// The bytes of a file with row-major elements of a type in NumPy's notation.
pub(crate) fn npy_bytes(kind: &str, shape: &[usize], bytes: &[u8]) -> Vec<u8> {
    // A Python tuple with one element needs a trailing comma.
    let shape: String = shape.iter().map(|size| format!("{size}, ")).collect();
    let mut header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({}), }}", shape.trim_end());
    // The values start at a multiple of 64 bytes, after a newline.
    let end = (PREFIX + header.len() + 1).next_multiple_of(64);
    header.extend(core::iter::repeat_n(' ', end - PREFIX - header.len() - 1));
    header.push('\n');
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(bytes);
    file
}

/// An array as its file describes it.
#[cfg(feature = "onnx")]
pub(crate) struct NpyArray<'a> {
    /// The element type in NumPy's notation.
    pub kind: String,
    /// Whether the first index varies fastest.
    pub fortran: bool,
    pub shape: Vec<usize>,
    pub data: &'a [u8],
}

/// Reads the header of an array. The caller checks the length of the data.
#[cfg(feature = "onnx")]
pub(crate) fn parse_npy(file: &[u8]) -> Result<NpyArray<'_>, String> {
    let rest = file.strip_prefix(b"\x93NUMPY").ok_or("not a NumPy array")?;
    let (length, start) = match rest {
        [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 4),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 6),
        _ => return Err("the version of the array is not supported".to_owned()),
    };
    let header = rest.get(start..).and_then(|rest| rest.get(..length)).ok_or("the header is cut off")?;
    let header = core::str::from_utf8(header).map_err(|_| "the header is no text")?;
    let after = |key: &str| header.split_once(&format!("'{key}':")).map(|(_, value)| value.trim_start());
    let quoted = |text: &str| text.strip_prefix('\'').and_then(|text| text.split_once('\'')).map(|(v, _)| v.to_owned());
    let kind = after("descr").and_then(quoted).ok_or("the header has no type")?;
    let fortran = after("fortran_order").ok_or("the header has no order")?.starts_with("True");
    let shape = after("shape").and_then(|text| text.strip_prefix('(')?.split_once(')')).ok_or("no shape")?.0;
    let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
    let shape = sizes.map(str::parse).collect::<Result<Vec<usize>, _>>().map_err(|_| "the shape is not valid")?;
    Ok(NpyArray { kind, fortran, shape, data: &rest[start + length..] })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a file as NumPy's format description says, to test the writer.
    fn read(file: &[u8]) -> (String, Vec<u8>) {
        assert_eq!(file[..8], *b"\x93NUMPY\x01\x00");
        let length = usize::from(u16::from_le_bytes([file[8], file[9]]));
        assert_eq!((PREFIX + length) % 64, 0);
        let header = core::str::from_utf8(&file[PREFIX..PREFIX + length]).unwrap();
        assert!(header.ends_with('\n'));
        (header.trim_end().to_owned(), file[PREFIX + length..].to_vec())
    }

    #[test]
    fn an_array_has_its_type_its_shape_and_its_bytes() {
        let (header, bytes) = read(&npy(&TensorData::new(&[1.5f32, -2.0], [2]).unwrap()));
        assert_eq!(header, "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }");
        assert_eq!(bytes, [1.5f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat());
        let (header, bytes) = read(&npy(&TensorData::new(&[1u8, 2, 3, 4, 5, 6], [1, 2, 3]).unwrap()));
        assert_eq!(header, "{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2, 3,), }");
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6]);
        let (header, bytes) = read(&npy(&TensorData::new(&[7i32], []).unwrap()));
        assert_eq!((header.contains("'shape': ()"), bytes.len()), (true, 4));
        let (header, bytes) = read(&npy(&TensorData::new::<f32>(&[], [0, 3]).unwrap()));
        assert_eq!((header.contains("'shape': (0, 3,)"), bytes.len()), (true, 0));
    }
}
