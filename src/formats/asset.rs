//! Weights as Bevy assets: read by the asset server's tasks and decoded by others meanwhile, so that no frame waits for a file, nor one file for another.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use bevy::asset::io::Reader;
use bevy::asset::{AssetLoader, AsyncReadExt, LoadContext};
use bevy::prelude::*;
use bevy::tasks::AsyncComputeTaskPool;

use super::header::{Header, LENGTH};
use super::safetensors::{FormatError, io_error};
use crate::tensor::TensorData;

/// The tensors of a safetensors file, as an asset: `asset_server.load("model.safetensors")`. [`LoadWeights`](crate::LoadWeights) puts them into a
/// model.
#[derive(Asset, TypePath, Clone, Debug)]
pub struct TensorWeights {
    tensors: Arc<[(String, TensorData)]>,
}

impl TensorWeights {
    /// Reads a file's bytes; `path` is what errors call them.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Self, FormatError> {
        let header = Header::read(path, &mut Cursor::new(bytes), bytes.len() as u64)?;
        let tensors = header.names().into_iter().map(|name| {
            let entry = header.entry(path, &name)?;
            // The header was checked against the length.
            let data = entry.from as usize..entry.to as usize;
            entry.decode(&name, &bytes[data]).map(|data| (name, data))
        });
        Ok(Self { tensors: tensors.collect::<Result<_, _>>()? })
    }

    /// Names and contents, in the file's order.
    pub fn tensors(&self) -> &[(String, TensorData)] {
        &self.tensors
    }

    /// The content of that name.
    pub fn get(&self, name: &str) -> Option<&TensorData> {
        self.tensors.iter().find(|(known, _)| known == name).map(|(_, data)| data)
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|(_, data)| data.bytes().len() as u64).sum()
    }
}

impl From<Vec<(String, TensorData)>> for TensorWeights {
    fn from(tensors: Vec<(String, TensorData)>) -> Self {
        Self { tensors: tensors.into() }
    }
}

/// Loads [`TensorWeights`] from safetensors files.
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
        let mut file = Incoming { path: &path, reader, has: 0 };
        let mut size = [0; LENGTH as usize];
        size.copy_from_slice(&file.take(LENGTH, LENGTH).await?);
        let size = Header::size(&path, size)?;
        let header = Header::parse(&path, &file.take(size, LENGTH + size).await?)?;
        let mut tensors = Vec::new();
        for name in header.names() {
            let entry = header.entry(&path, &name)?;
            let bytes = file.take(entry.to - entry.from, header.end()).await?;
            let decode = async move { entry.decode(&name, &bytes).map(|data| (name, data)) };
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

/// Bytes that are made room for at once: a header may speak of more than there is.
const STEP: u64 = 1 << 22;

/// A file whose bytes come in order.
struct Incoming<'a> {
    path: &'a Path,
    reader: &'a mut dyn Reader,
    /// Bytes that have come.
    has: u64,
}

impl Incoming<'_> {
    /// The next so many bytes of a file that `needs` that many in all.
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

    /// Whether nothing comes behind what the header speaks of.
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

    fn length(&self, needs: u64) -> FormatError {
        FormatError::Length { path: self.path.to_owned(), needs, has: self.has }
    }
}
