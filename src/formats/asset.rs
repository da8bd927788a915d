//! Weights as Bevy assets: read and parsed by the asset server's tasks, so that no frame waits for a file.

use std::io::Cursor;
use std::path::Path;
use std::sync::Arc;

use bevy::asset::io::Reader;
use bevy::asset::{AssetLoader, LoadContext};
use bevy::prelude::*;

use super::header::Header;
use super::safetensors::FormatError;
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
        let mut bytes = Vec::new();
        let io = super::safetensors::io_error(&path);
        reader.read_to_end(&mut bytes).await.map_err(io)?;
        TensorWeights::from_bytes(&path, &bytes)
    }

    fn extensions(&self) -> &[&str] {
        &["safetensors"]
    }
}
