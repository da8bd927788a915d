//! Weights as Bevy assets. The asset server's tasks read the file while other tasks decode it, so neither frames nor
//! other files wait.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use bevy::asset::io::Reader;
use bevy::asset::{AssetLoader, AsyncReadExt, LoadContext};
use bevy::prelude::*;
use bevy::tasks::AsyncComputeTaskPool;

use super::header::{Header, LENGTH};
use super::safetensors::{FormatError, io_error};
use crate::error::catch;
use crate::tensor::TensorData;

/// The tensors of a safetensors file as an asset: `asset_server.load("model.safetensors")`.
/// [`LoadWeights`](crate::formats::LoadWeights) adds them to a model.
#[derive(Asset, TypePath, Clone, Debug)]
pub struct TensorWeights {
    tensors: Arc<[(String, TensorData)]>,
}

impl TensorWeights {
    /// Decodes the bytes of a file. `path` is used in error messages.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, FormatError> {
        let header = Header::read(path, &mut Cursor::new(bytes), bytes.len() as u64)?;
        let tensors = header.names().into_iter().map(|name| {
            let entry = header.entry(path, &name)?;
            // The header was validated against the length of the file.
            let data = entry.from as usize..entry.to as usize;
            entry.decode(&name, &bytes[data]).map(|data| (name, data))
        });
        Ok(Self { tensors: tensors.collect::<Result<_, _>>()? })
    }

    /// Names and contents, in file order.
    pub fn tensors(&self) -> &[(String, TensorData)] {
        &self.tensors
    }

    /// The content of the tensor with this name.
    pub fn get(&self, name: &str) -> Option<&TensorData> {
        self.tensors.iter().find(|(known, _)| known == name).map(|(_, data)| data)
    }

    /// Total bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|(_, data)| data.bytes().len() as u64).sum()
    }
}

impl From<Vec<(String, TensorData)>> for TensorWeights {
    fn from(tensors: Vec<(String, TensorData)>) -> Self {
        Self { tensors: tensors.into() }
    }
}

/// Asset loader for [`TensorWeights`] from safetensors files.
#[derive(Default, TypePath)]
pub(crate) struct SafetensorsLoader;

impl AssetLoader for SafetensorsLoader {
    type Asset = TensorWeights;
    type Settings = ();
    type Error = FormatError;

    async fn load(
        &self,
        reader: &mut dyn Reader,
        _: &(),
        context: &mut LoadContext<'_>,
    ) -> Result<TensorWeights, FormatError> {
        let path = context.path().path().to_owned();
        let mut file = Incoming::new(&path, reader);
        let mut size = [0; LENGTH as usize];
        size.copy_from_slice(&file.take(LENGTH, LENGTH).await?);
        let size = Header::size(&path, size)?;
        let header = Header::parse(&path, &file.take(size, LENGTH + size).await?)?;
        let mut tensors = Vec::new();
        for name in header.names() {
            let entry = header.entry(&path, &name)?;
            let bytes = file.take(entry.to - entry.from, header.end()).await?;
            let file = path.clone();
            let decode = async move {
                let decoded = catch(|| entry.decode(&name, &bytes));
                let decoded = decoded.unwrap_or_else(|message| Err(FormatError::Panic { path: file, message }));
                decoded.map(|data| (name, data))
            };
            tensors.push(AsyncComputeTaskPool::get().spawn(decode));
        }
        file.ends(header.end()).await?;
        let mut decoded = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            decoded.push(tensor.await?);
        }
        Ok(decoded.into())
    }

    fn extensions(&self) -> &[&str] {
        &["safetensors"]
    }
}

/// Maximum bytes to allocate at once. A header can claim more data than the file contains.
const STEP: u64 = 1 << 22;

/// A file that is read sequentially.
pub(super) struct Incoming<'a> {
    path: &'a Path,
    reader: &'a mut dyn Reader,
    /// Bytes read so far.
    has: u64,
}

#[cfg(feature = "gguf")]
impl Incoming<'_> {
    /// Reads until `bytes` has `count` bytes. Gives false if the file ended before.
    pub(super) async fn more(&mut self, bytes: &mut Vec<u8>, count: u64) -> Result<bool, FormatError> {
        while (bytes.len() as u64) < count {
            let from = bytes.len();
            let step = (count - from as u64).min(STEP) as usize;
            bytes.resize(from + step, 0);
            let read = self.read(&mut bytes[from..]).await?;
            bytes.truncate(from + read);
            if read == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The `count` bytes from position `from` of a file that should have `needs` bytes in total. `rest` are bytes that
    /// were read, from position `at`. Positions must not decrease.
    pub(super) async fn range(
        &mut self,
        rest: &mut Vec<u8>,
        at: &mut u64,
        from: u64,
        count: u64,
        needs: u64,
    ) -> Result<Vec<u8>, FormatError> {
        // Padding between tensors.
        let skip = from - *at;
        let known = skip.min(rest.len() as u64);
        rest.drain(..known as usize);
        if skip > known {
            self.take(skip - known, needs).await?;
        }
        *at = from + count;
        let mut bytes = core::mem::take(rest);
        if bytes.len() as u64 > count {
            *rest = bytes.split_off(count as usize);
            return Ok(bytes);
        }
        if bytes.is_empty() {
            return self.take(count, needs).await;
        }
        let missing = count - bytes.len() as u64;
        bytes.extend(self.take(missing, needs).await?);
        Ok(bytes)
    }
}

impl<'a> Incoming<'a> {
    /// A file at its beginning.
    pub(super) fn new(path: &'a Path, reader: &'a mut dyn Reader) -> Self {
        Self { path, reader, has: 0 }
    }
}

impl Incoming<'_> {
    /// Reads the next `count` bytes of a file that should have `needs` bytes in total.
    async fn take(&mut self, count: u64, needs: u64) -> Result<Vec<u8>, FormatError> {
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < count {
            let from = bytes.len();
            let step = (count - from as u64).min(STEP.max(from as u64)) as usize;
            bytes.resize(from + step, 0);
            let mut rest = &mut bytes[from..];
            while !rest.is_empty() {
                let read = self.read(rest).await?;
                if read == 0 {
                    return Err(self.length(needs));
                }
                rest = &mut rest[read..];
            }
        }
        Ok(bytes)
    }

    /// Checks that the file has no data after the end that the header declares.
    async fn ends(&mut self, needs: u64) -> Result<(), FormatError> {
        let mut more = vec![0; 1 << 16];
        while self.read(&mut more).await? > 0 {}
        if self.has == needs { Ok(()) } else { Err(self.length(needs)) }
    }

    async fn read(&mut self, bytes: &mut [u8]) -> Result<usize, FormatError> {
        let read = self.reader.read(bytes).await.map_err(io_error(self.path))?;
        self.has += read as u64;
        Ok(read)
    }

    pub(super) fn length(&self, needs: u64) -> FormatError {
        FormatError::Length { path: self.path.to_owned(), needs, has: self.has }
    }
}
