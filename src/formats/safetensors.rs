//! The safetensors format: a length, a JSON header, and the data of the tensors. Reading validates everything in the
//! file. Writing replaces the file atomically.

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

/// Error while reading or writing a file.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// An I/O error of the operating system.
    #[error("{}: {message}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Kind of the error.
        kind: io::ErrorKind,
        /// Message of the operating system.
        message: String,
    },
    /// The file is shorter or longer than its header declares.
    #[error("{}: the file has {has} bytes but its header declares {needs}", path.display())]
    Length {
        /// Path of the file.
        path: PathBuf,
        /// Number of bytes that the header declares.
        needs: u64,
        /// Actual number of bytes.
        has: u64,
    },
    /// The header is invalid: for example, offsets overlap, leave gaps or do not match shapes.
    #[error("{}: {reason}", path.display())]
    Header {
        /// Path of the file.
        path: PathBuf,
        /// Why it is invalid.
        reason: String,
    },
    /// The file has no tensor with this name.
    #[error("{}: there is no tensor named \"{name}\"", path.display())]
    NotFound {
        /// Path of the file.
        path: PathBuf,
        /// The requested name.
        name: String,
    },
    /// The element type is not supported.
    #[error("\"{name}\" has the unsupported type {stored}")]
    Type {
        /// Name of the tensor.
        name: String,
        /// Name of the type in the file.
        stored: String,
    },
    /// A 64-bit integer does not fit in 32 bits.
    #[error("\"{name}\" holds {value}, which does not fit in {dtype}")]
    Range {
        /// Name of the tensor.
        name: String,
        /// The first value that does not fit.
        value: String,
        /// The 32-bit type.
        dtype: DType,
    },
    /// The tensor is too large.
    #[error("\"{name}\": {error}")]
    Tensor {
        /// Name of the tensor.
        name: String,
        /// The underlying error.
        error: Box<TensorError>,
    },
    /// The readback of a tensor failed while saving.
    #[error("\"{name}\" could not be read back: {error}")]
    Readback {
        /// Name of the tensor.
        name: String,
        /// The underlying error.
        error: ReadError,
    },
}

impl FormatError {
    /// Whether the message starts with the path of the file.
    pub(super) fn names_the_file(&self) -> bool {
        matches!(self, Self::Io { .. } | Self::Length { .. } | Self::Header { .. } | Self::NotFound { .. })
    }
}

pub(super) fn io_error(path: &Path) -> impl Fn(io::Error) -> FormatError + '_ {
    move |error| FormatError::Io { path: path.to_owned(), kind: error.kind(), message: error.to_string() }
}

/// An open safetensors file with a validated header. Tensors are read one at a time.
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
    /// Opens a file and validates its header against its length. Reads no tensor data, and allocates no more than the
    /// size of the header.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FormatError> {
        let path = path.as_ref();
        let io = io_error(path);
        let mut file = File::open(path).map_err(&io)?;
        let has = file.metadata().map_err(&io)?.len();
        let header = Header::read(path, &mut file, has)?;
        Ok(Self { path: path.to_owned(), file, header })
    }

    /// Names of the tensors, in the order of their bytes.
    pub fn names(&self) -> Vec<String> {
        self.header.names()
    }

    /// A metadata entry of the file.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.header.metadata(key)
    }

    /// Reads one tensor.
    ///
    /// Unsupported types are widened where that is lossless (16-bit integers to `i32`). 64-bit
    /// integers are narrowed to 32 bits if all values fit. Everything else is an error. Quantised tensors are
    /// recognised by the file's metadata; see [`save_safetensors`].
    pub fn read(&mut self, name: &str) -> Result<TensorData, FormatError> {
        let entry = self.header.entry(&self.path, name)?;
        // The header was validated against the length of the file, so this is at most the size of the file.
        let mut bytes = vec![0; (entry.to - entry.from) as usize];
        let io = io_error(&self.path);
        self.file.seek(SeekFrom::Start(entry.from)).map_err(&io)?;
        self.file.read_exact(&mut bytes).map_err(&io)?;
        entry.decode(name, &bytes)
    }
}

/// Host data in the representation of the format.
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
        // Fails only for data that is not quantised.
        self.data.to_gguf_blocks().map_or_else(|_| Cow::Borrowed(self.data.bytes()), Cow::Owned)
    }

    fn data_len(&self) -> usize {
        match self.data.dtype() {
            quantized if quantized.is_quantized() => self.shape.elements(),
            _ => self.data.bytes().len(),
        }
    }
}

/// Writes tensors to a safetensors file. An existing file is replaced atomically, after all data is on disk. If the
/// program is interrupted, the old file is unchanged, but a temporary file may remain beside it.
///
/// The format has no quantised types. Quantised tensors are stored as bytes in GGUF block order, with the shape `[…,
/// blocks per row · bytes per block]`, and the file's metadata contains the type: `dtype.NAME: q8_0`.
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
