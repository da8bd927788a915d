//! GGUF files, versions 2 and 3: typed metadata, and tensors whose blocks stay as they are.
//!
//! [`GgufHeader`] is everything before the tensor data. [`GgufFile`] is an open file whose tensors are read one at a
//! time. As assets, `asset_server.load::<GgufModel>("model.gguf")` has the metadata and a handle of the weights, and
//! `asset_server.load::<TensorWeights>("model.gguf")` only the weights.

mod asset;
mod header;
mod value;

use core::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use asset::GgufModel;
pub(crate) use asset::{GgufLoader, GgufWeightsLoader};
pub use header::{GgufHeader, GgufTensor};
pub use value::{GgufArray, GgufValue};

use super::safetensors::{FormatError, io_error};
use crate::tensor::TensorData;

/// Bytes that are read at first to find the end of the header. More are read if it is longer.
const FIRST: u64 = 1 << 16;

/// An open GGUF file with a validated header. Tensors are read one at a time.
pub struct GgufFile {
    path: PathBuf,
    file: File,
    header: Arc<GgufHeader>,
}

impl fmt::Debug for GgufFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GgufFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl GgufFile {
    /// Opens a file, and reads its header and validates it against the length of the file. Reads no tensor data.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FormatError> {
        let path = path.as_ref();
        let io = io_error(path);
        let mut file = File::open(path).map_err(&io)?;
        let has = file.metadata().map_err(&io)?.len();
        let mut bytes = Vec::new();
        let mut want = FIRST;
        let header = loop {
            let more = want.saturating_sub(bytes.len() as u64);
            (&mut file).take(more).read_to_end(&mut bytes).map_err(&io)?;
            match GgufHeader::parse(path, &bytes)? {
                header::Parsed::Header(header) => break header,
                header::Parsed::Incomplete { needs } if needs > has => {
                    return Err(FormatError::Length { path: path.to_owned(), needs, has });
                }
                // At least twice as much, so that few attempts are needed.
                header::Parsed::Incomplete { needs } => want = needs.max(2 * want),
            }
        };
        if header.end() > has {
            return Err(FormatError::Length { path: path.to_owned(), needs: header.end(), has });
        }
        Ok(Self { path: path.to_owned(), file, header: Arc::new(header) })
    }

    /// Metadata and tensors.
    pub fn header(&self) -> &Arc<GgufHeader> {
        &self.header
    }

    /// Reads one tensor. Blocks stay quantised.
    pub fn read(&mut self, name: &str) -> Result<TensorData, FormatError> {
        let not_found = || FormatError::NotFound { path: self.path.clone(), name: name.to_owned() };
        let tensor = self.header.tensor(name).ok_or_else(not_found)?;
        let dtype = tensor.dtype();
        dtype.ok_or_else(|| FormatError::Type { name: name.to_owned(), stored: tensor.type_name() })?;
        let (from, count) = (self.header.data_start() + tensor.offset(), tensor.bytes());
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(count as usize).is_err() {
            return Err(FormatError::OutOfMemory { name: name.to_owned(), bytes: count });
        }
        bytes.resize(count as usize, 0);
        let io = io_error(&self.path);
        self.file.seek(SeekFrom::Start(from)).map_err(&io)?;
        self.file.read_exact(&mut bytes).map_err(&io)?;
        tensor.decode(&bytes)
    }
}
