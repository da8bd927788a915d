//! The safetensors format: a length, a JSON header, and the tensors' bytes. Reading trusts nothing in a file; writing replaces a file as a whole.

use core::fmt;
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, Metadata, TensorInfo, View};
use thiserror::Error;

use super::replace_with;
use crate::error::{ReadError, TensorError};
use crate::tensor::{DType, Shape, TensorData, pack};

/// The longest header that is read; the format's own limit.
const MAX_HEADER: u64 = 100_000_000;

/// Bytes before the header: its length.
const LENGTH: u64 = 8;

/// A file that could not be read or written.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The system said no.
    #[error("{}: {message}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What kind of trouble.
        kind: io::ErrorKind,
        /// What the system said.
        message: String,
    },
    /// The file ends before its content does, or goes on after it.
    #[error("{}: the file has {has} bytes but its header speaks of {needs}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes the header asks for.
        needs: u64,
        /// Bytes there are.
        has: u64,
    },
    /// The header is not one, or contradicts itself: offsets that overlap, leave gaps or do not fit shapes.
    #[error("{}: {reason}", path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The file has no such tensor.
    #[error("{}: there is no tensor named \"{name}\"", path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// The tensor's element type has no counterpart here.
    #[error("\"{name}\" is of type {stored}, which cannot be represented")]
    Type {
        /// The tensor.
        name: String,
        /// The type, as the file names it.
        stored: String,
    },
    /// A 64-bit integer that does not fit in 32 bits.
    #[error("\"{name}\" holds {value}, which does not fit in {dtype}")]
    Range {
        /// The tensor.
        name: String,
        /// The first such number.
        value: String,
        /// The type it would have to fit.
        dtype: DType,
    },
    /// A tensor that is too large to address.
    #[error("\"{name}\": {error}")]
    Tensor {
        /// The tensor.
        name: String,
        /// Why not.
        error: Box<TensorError>,
    },
    /// The values to be saved did not arrive.
    #[error("\"{name}\" could not be read back: {error}")]
    Readback {
        /// The tensor.
        name: String,
        /// Why not.
        error: ReadError,
    },
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> FormatError + '_ {
    move |error| FormatError::Io { path: path.to_owned(), kind: error.kind(), message: error.to_string() }
}

/// An open safetensors file: its header has been read and checked, its tensors are read one by one.
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    header: Metadata,
    /// Where the tensors' bytes begin.
    start: u64,
}

impl fmt::Debug for SafetensorsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SafetensorsFile").field("path", &self.path).field("names", &self.names()).finish()
    }
}

impl SafetensorsFile {
    /// Opens a file and checks its header against its length. No tensor is read, and no more is allocated than the header takes.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FormatError> {
        let path = path.as_ref();
        let io = io_error(path);
        let mut file = File::open(path).map_err(&io)?;
        let has = file.metadata().map_err(&io)?.len();
        let header = |reason: String| FormatError::Header { path: path.to_owned(), reason };
        let length = |needs: u64| FormatError::Length { path: path.to_owned(), needs, has };
        if has < LENGTH {
            return Err(length(LENGTH));
        }
        let mut size = [0; LENGTH as usize];
        file.read_exact(&mut size).map_err(&io)?;
        let size = u64::from_le_bytes(size);
        if size > MAX_HEADER {
            return Err(header(format!("a header of {size} bytes is too long")));
        }
        let start = LENGTH + size;
        if start > has {
            return Err(length(start));
        }
        let mut text = vec![0; size as usize];
        file.read_exact(&mut text).map_err(&io)?;
        // Deserialising also checks that offsets follow each other and fit the shapes.
        let metadata: Metadata = serde_json::from_slice(&text).map_err(|error| header(error.to_string()))?;
        let needs = start.checked_add(metadata.data_len() as u64).ok_or_else(|| length(u64::MAX))?;
        if needs != has {
            return Err(length(needs));
        }
        Ok(Self { path: path.to_owned(), file, header: metadata, start })
    }

    /// The tensors' names, in the order of their bytes.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// What the file says about itself beside its tensors.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.header.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// Reads one tensor. Types without a counterpart are widened where that loses nothing (`BF16` to `f32`, 16-bit integers to `i32`), and
    /// 64-bit integers narrowed where all of them fit; else it is an error.
    pub fn read(&mut self, name: &str) -> Result<TensorData, FormatError> {
        let not_found = || FormatError::NotFound { path: self.path.clone(), name: name.to_owned() };
        let TensorInfo { dtype, shape, data_offsets: (from, to) } = self.header.info(name).ok_or_else(not_found)?;
        let shape = Shape::new(shape.iter().copied());
        let Some(elements) = shape.checked_elements().filter(|&n| n <= i32::MAX as usize) else {
            let error = Box::new(TensorError::TooLarge { shape, dtype: DType::F32 });
            return Err(FormatError::Tensor { name: name.to_owned(), error });
        };
        // The header was checked against the file's length, so this is no more than the file has.
        let mut bytes = vec![0; to - from];
        let io = io_error(&self.path);
        self.file.seek(SeekFrom::Start(self.start + *from as u64)).map_err(&io)?;
        self.file.read_exact(&mut bytes).map_err(&io)?;
        decode(name, *dtype, shape, elements, &bytes)
    }
}

/// A type's counterpart, where the bytes are the same.
fn counterpart(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::I32 => DType::I32,
        Dtype::U32 => DType::U32,
        Dtype::I8 => DType::I8,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool,
        _ => return None,
    })
}

fn decode(name: &str, stored: Dtype, shape: Shape, elements: usize, bytes: &[u8]) -> Result<TensorData, FormatError> {
    let chunks = |size: usize| bytes.chunks_exact(size).take(elements);
    let array = |chunk: &[u8]| -> [u8; 8] {
        let mut array = [0; 8];
        array[..chunk.len()].copy_from_slice(chunk);
        array
    };
    let short = |chunk: &[u8]| u16::from_le_bytes([chunk[0], chunk[1]]);
    let range =
        |value: &dyn fmt::Display, dtype| FormatError::Range { name: name.to_owned(), value: value.to_string(), dtype };
    if let Some(dtype) = counterpart(stored) {
        let mut words = vec![0u32; dtype.words(elements)];
        bytemuck::cast_slice_mut::<u32, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
        if dtype == DType::Bool {
            // Any byte but 0 is true in a file; backends rely on 0 and 1.
            bytemuck::cast_slice_mut::<u32, u8>(&mut words).iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        return Ok(TensorData::from_words(dtype, shape, words.into()));
    }
    let (dtype, words) = match stored {
        Dtype::BF16 => {
            let values: Vec<f32> = chunks(2).map(|c| f32::from_bits(u32::from(short(c)) << 16)).collect();
            (DType::F32, pack(&values))
        }
        Dtype::I16 => (DType::I32, pack(&chunks(2).map(|c| i32::from(short(c) as i16)).collect::<Vec<_>>())),
        Dtype::U16 => (DType::I32, pack(&chunks(2).map(|c| i32::from(short(c))).collect::<Vec<_>>())),
        Dtype::I64 => {
            let narrow = |c: &[u8]| {
                let value = i64::from_le_bytes(array(c));
                i32::try_from(value).map_err(|_| range(&value, DType::I32))
            };
            (DType::I32, pack(&chunks(8).map(narrow).collect::<Result<Vec<_>, _>>()?))
        }
        Dtype::U64 => {
            let narrow = |c: &[u8]| {
                let value = u64::from_le_bytes(array(c));
                u32::try_from(value).map_err(|_| range(&value, DType::U32))
            };
            (DType::U32, pack(&chunks(8).map(narrow).collect::<Result<Vec<_>, _>>()?))
        }
        other => return Err(FormatError::Type { name: name.to_owned(), stored: format!("{other:?}") }),
    };
    Ok(TensorData::from_words(dtype, shape, words))
}

/// Host data as the format sees it.
struct Stored<'a>(&'a TensorData, Dtype);

impl View for Stored<'_> {
    fn dtype(&self) -> Dtype {
        self.1
    }

    fn shape(&self) -> &[usize] {
        self.0.shape()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.0.bytes())
    }

    fn data_len(&self) -> usize {
        self.0.bytes().len()
    }
}

/// A type as the format names it.
fn stored_type(name: &str, dtype: DType) -> Result<Dtype, FormatError> {
    let all = [Dtype::F32, Dtype::F16, Dtype::I32, Dtype::U32, Dtype::I8, Dtype::U8, Dtype::BOOL];
    all.into_iter()
        .find(|&stored| counterpart(stored) == Some(dtype))
        .ok_or_else(|| FormatError::Type { name: name.to_owned(), stored: dtype.to_string() })
}

/// Writes tensors to a file, which other tools can load. The file appears, or an old one is replaced, as a whole and only once everything is on the
/// disk: whatever ends the program meanwhile leaves the old file as it was (and may leave a temporary file beside it).
pub fn save_safetensors(path: impl AsRef<Path>, tensors: &[(String, TensorData)]) -> Result<(), FormatError> {
    let path = path.as_ref();
    let io = io_error(path);
    let views = tensors
        .iter()
        .map(|(name, data)| Ok((name.as_str(), Stored(data, stored_type(name, data.dtype())?))))
        .collect::<Result<Vec<_>, FormatError>>()?;
    replace_with(
        path,
        |temporary| {
            safetensors::serialize_to_file(views, None, temporary)
                .map_err(|error| FormatError::Header { path: path.to_owned(), reason: error.to_string() })
        },
        &io,
    )
}
