//! The safetensors format: a length, a JSON header, and the data of the tensors. Reading validates everything in the
//! file. Writing replaces the file atomically.

use core::fmt;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use bevy::ecs::entity::Entity;
use safetensors::tensor::{Dtype, TensorInfo};
use thiserror::Error;

use super::header::{Header, METADATA, quantized_key, stored_shape, stored_type, write_header};
use crate::disk::replace_with;
use crate::error::{OpError, ReadError, TensorError};
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
    /// Tensors have types that are not supported.
    #[error("{}: {}", path.display(), list_types(types))]
    Types {
        /// Path of the file.
        path: PathBuf,
        /// The names of the types, each with the names of its tensors.
        types: Vec<(String, Vec<String>)>,
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
    /// A file with this name of a tensor could not be loaded, so it is not written.
    #[error("a tensor named \"{name}\" cannot be saved: {reason}")]
    Name {
        /// Name of the tensor.
        name: String,
        /// Why a file cannot have it.
        reason: &'static str,
    },
    /// Reading or writing the file panicked. This is a bug; please report it.
    #[error("{}: the task panicked: {message}", path.display())]
    Panic {
        /// Path of the file.
        path: PathBuf,
        /// The message of the panic.
        message: String,
    },
    /// The call of [`TensorFiles::save`](super::TensorFiles::save) failed. It returned the same error.
    #[error("{0}")]
    Refused(Box<OpError>),
    /// The model was despawned before its tensors were loaded.
    #[error("model {model} does not exist")]
    MissingModel {
        /// The model.
        model: Entity,
    },
    /// There is not enough memory for the content of a tensor.
    #[error("\"{name}\": there is no memory for {bytes} bytes")]
    OutOfMemory {
        /// Name of the tensor.
        name: String,
        /// Requested bytes.
        bytes: u64,
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
        matches!(
            self,
            Self::Io { .. } | Self::Length { .. } | Self::Header { .. } | Self::NotFound { .. } | Self::Types { .. }
        )
    }
}

/// Unsupported types with the first tensors that have them.
fn list_types(types: &[(String, Vec<String>)]) -> String {
    let list = types.iter().map(|(name, tensors)| {
        let more = if tensors.len() > 4 { format!(" and {} more", tensors.len() - 4) } else { String::new() };
        format!("the type {name} of {}{more} is not supported", tensors[..tensors.len().min(4)].join(", "))
    });
    list.collect::<Vec<_>>().join("; ")
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
        let count = entry.to - entry.from;
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(count as usize).is_err() {
            return Err(FormatError::OutOfMemory { name: name.to_owned(), bytes: count });
        }
        bytes.resize(count as usize, 0);
        let io = io_error(&self.path);
        self.file.seek(SeekFrom::Start(entry.from)).map_err(&io)?;
        self.file.read_exact(&mut bytes).map_err(&io)?;
        entry.decode(name, &bytes)
    }
}

/// Host data in the representation of the format.
struct Stored<'a> {
    name: &'a str,
    data: &'a TensorData,
    dtype: Dtype,
    shape: Shape,
}

impl<'a> Stored<'a> {
    fn new(name: &'a str, data: &'a TensorData) -> Result<Self, FormatError> {
        let dtype = stored_type(name, data.dtype())?;
        Ok(Self { name, data, dtype, shape: stored_shape(data) })
    }

    fn bytes(&self) -> Cow<'a, [u8]> {
        // Fails only for data that is not quantised.
        self.data.to_gguf_blocks().map_or_else(|_| Cow::Borrowed(self.data.bytes()), Cow::Owned)
    }

    fn count(&self) -> usize {
        if self.data.dtype().is_quantized() { self.shape.elements() } else { self.data.bytes().len() }
    }
}

/// Writes tensors to a safetensors file. An existing file is replaced atomically, after all data is on disk. If the
/// program is interrupted, the old file is unchanged, but a temporary file may remain beside it.
///
/// Names must be unique, and `__metadata__` is reserved by the format. Such names are an error, and no file is written.
///
/// The format has no quantised types. Quantised tensors are stored as bytes in GGUF block order, with the shape `[…,
/// blocks per row · bytes per block]`, and the file's metadata contains the type: `dtype.NAME: q8_0`.
pub fn save_safetensors(path: impl AsRef<Path>, tensors: &[(String, TensorData)]) -> Result<(), FormatError> {
    let path = path.as_ref();
    let mut names = HashSet::with_capacity(tensors.len());
    for (name, _) in tensors {
        let refuse = |reason| FormatError::Name { name: name.clone(), reason };
        if name == METADATA {
            return Err(refuse("the format reserves the name"));
        }
        if !names.insert(name) {
            return Err(refuse("another tensor has the same name"));
        }
    }
    let views = tensors.iter().map(|(name, data)| Stored::new(name, data));
    let mut views = views.collect::<Result<Vec<_>, FormatError>>()?;
    // Wide types first, so that every tensor is aligned.
    views.sort_by(|a, b| b.dtype.cmp(&a.dtype).then(a.name.cmp(b.name)));
    let quantized = tensors.iter().filter(|(_, data)| data.dtype().is_quantized());
    let metadata: HashMap<_, _> =
        quantized.map(|(name, data)| (quantized_key(name), data.dtype().to_string())).collect();
    let mut end = 0;
    let infos = views.iter().map(|view| {
        let start = end;
        end += view.count();
        (view.name, TensorInfo { dtype: view.dtype, shape: view.shape.to_vec(), data_offsets: (start, end) })
    });
    let header = write_header(&metadata, infos)
        .map_err(|error| FormatError::Header { path: path.to_owned(), reason: error.to_string() })?;
    // A longer header could not be read back.
    if let Some(&length) = header.first_chunk() {
        Header::size(path, length)?;
    }
    let write = |file: &mut dyn Write| {
        file.write_all(&header)?;
        views.iter().try_for_each(|view| file.write_all(&view.bytes()))
    };
    let io = io_error(path);
    replace_with(path, |file| write(file).map_err(&io), &io)
}
