//! The safetensors format: a length, a JSON header, and the tensors' bytes. Reading trusts nothing in a file; writing replaces a file as a whole.

use core::fmt;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, View};
use thiserror::Error;

use super::header::{Header, quantized_key, stored_shape, stored_type};
use crate::disk::replace_with;
use crate::error::{ReadError, TensorError};
use crate::ir::{DType, Shape};
use crate::tensor::TensorData;

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

impl FormatError {
    /// Whether its message begins with the file's path.
    pub(super) fn names_the_file(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Length { .. } | Self::Header { .. } | Self::NotFound { .. })
    }
}

pub(super) fn io_error(path: &Path) -> impl Fn(io::Error) -> FormatError + '_ {
    move |error| FormatError::Io { path: path.to_owned(), kind: error.kind(), message: error.to_string() }
}

/// An open safetensors file: its header has been read and checked, its tensors are read one by one.
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    header: Header,
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
        let header = Header::read(path, &mut file, has)?;
        Ok(Self { path: path.to_owned(), file, header })
    }

    /// The tensors' names, in the order of their bytes.
    pub fn names(&self) -> Vec<String> {
        self.header.names()
    }

    /// What the file says about itself beside its tensors.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.header.metadata(key)
    }

    /// Reads one tensor. Types without a counterpart are widened where that loses nothing (`BF16` to `f32`, 16-bit integers to `i32`), and
    /// 64-bit integers narrowed where all of them fit; else it is an error. Bytes that the file's metadata calls blocks of a quantised type
    /// become such; see [`save_safetensors`].
    pub fn read(&mut self, name: &str) -> Result<TensorData, FormatError> {
        let entry = self.header.entry(&self.path, name)?;
        // The header was checked against the file's length, so this is no more than the file has.
        let mut bytes = vec![0; (entry.to - entry.from) as usize];
        let io = io_error(&self.path);
        self.file.seek(SeekFrom::Start(entry.from)).map_err(&io)?;
        self.file.read_exact(&mut bytes).map_err(&io)?;
        entry.decode(name, &bytes)
    }
}

/// Host data as the format sees it.
struct Stored<'a> {
    data: &'a TensorData,
    dtype: Dtype,
    shape: Shape,
}

impl<'a> Stored<'a> {
    fn new(name: &str, data: &'a TensorData) -> Result<Self, FormatError> {
        let dtype = stored_type(name, data.dtype())?;
        Ok(Self { data, dtype, shape: stored_shape(data) })
    }
}

impl View for Stored<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        // Only quantised data has blocks to give.
        self.data.to_gguf_blocks().map_or_else(|_| Cow::Borrowed(self.data.bytes()), Cow::Owned)
    }

    fn data_len(&self) -> usize {
        match self.data.dtype() {
            quantized if quantized.is_quantized() => self.shape.elements(),
            _ => self.data.bytes().len(),
        }
    }
}

/// Writes tensors to a file, which other tools can load. The file appears, or an old one is replaced, as a whole and only once everything is on the
/// disk: whatever ends the program meanwhile leaves the old file as it was (and may leave a temporary file beside it).
///
/// The format has no quantised types. Their blocks are stored as bytes in GGUF's order, `[…, blocks of a row · bytes of a block]`, and the file's metadata
/// says what they are: `dtype.NAME: q8_0`.
pub fn save_safetensors(path: impl AsRef<Path>, tensors: &[(String, TensorData)]) -> Result<(), FormatError> {
    let path = path.as_ref();
    let io = io_error(path);
    let views = tensors
        .iter()
        .map(|(name, data)| Ok((name.as_str(), Stored::new(name, data)?)))
        .collect::<Result<Vec<_>, FormatError>>()?;
    let quantized = tensors.iter().filter(|(_, data)| data.dtype().is_quantized());
    let metadata: HashMap<_, _> =
        quantized.map(|(name, data)| (quantized_key(name), data.dtype().to_string())).collect();
    let metadata = Some(metadata).filter(|metadata| !metadata.is_empty());
    replace_with(
        path,
        |temporary| {
            safetensors::serialize_to_file(views, metadata, temporary)
                .map_err(|error| FormatError::Header { path: path.to_owned(), reason: error.to_string() })
        },
        &io,
    )
}
