//! GGUF files as assets. The file is read sequentially. Each tensor is decoded by a task while the next one is read, so
//! the file is never in memory twice.

use std::sync::Arc;

use bevy::asset::io::Reader;
use bevy::asset::{AssetLoader, LoadContext};
use bevy::prelude::*;
use bevy::tasks::AsyncComputeTaskPool;

use super::header::{GgufHeader, Parsed};
use crate::formats::asset::{Incoming, TensorWeights};
use crate::formats::safetensors::FormatError;
use crate::tensor::TensorData;

/// A GGUF file as an asset: `asset_server.load::<GgufModel>("model.gguf")`.
#[derive(Asset, TypePath, Clone, Debug)]
pub struct GgufModel {
    /// Metadata and the list of tensors.
    pub header: Arc<GgufHeader>,
    /// The tensors. [`LoadWeights`](crate::formats::LoadWeights) adds them to a model.
    pub weights: Handle<TensorWeights>,
}

/// Asset loader for [`GgufModel`].
#[derive(Default, TypePath)]
pub(crate) struct GgufLoader;

impl AssetLoader for GgufLoader {
    type Asset = GgufModel;
    type Settings = ();
    type Error = FormatError;

    async fn load(
        &self,
        reader: &mut dyn Reader,
        _: &(),
        context: &mut LoadContext<'_>,
    ) -> Result<GgufModel, FormatError> {
        let (header, weights) = read(reader, context).await?;
        let weights = context.add_labeled_asset("weights".to_owned(), weights);
        Ok(GgufModel { header: Arc::new(header), weights })
    }

    fn extensions(&self) -> &[&str] {
        &["gguf"]
    }
}

/// Asset loader for only the tensors of a GGUF file.
#[derive(Default, TypePath)]
pub(crate) struct GgufWeightsLoader;

impl AssetLoader for GgufWeightsLoader {
    type Asset = TensorWeights;
    type Settings = ();
    type Error = FormatError;

    async fn load(
        &self,
        reader: &mut dyn Reader,
        _: &(),
        context: &mut LoadContext<'_>,
    ) -> Result<TensorWeights, FormatError> {
        read(reader, context).await.map(|(_, weights)| weights)
    }

    fn extensions(&self) -> &[&str] {
        &["gguf"]
    }
}

async fn read(reader: &mut dyn Reader, context: &LoadContext<'_>) -> Result<(GgufHeader, TensorWeights), FormatError> {
    let path = context.path().path().to_owned();
    let mut file = Incoming::new(&path, reader);
    let mut start = Vec::new();
    let mut want = super::FIRST;
    let header = loop {
        let ended = !file.more(&mut start, want).await?;
        match GgufHeader::parse(&path, &start)? {
            Parsed::Header(header) => break header,
            Parsed::Incomplete { needs } if ended => return Err(file.length(needs)),
            Parsed::Incomplete { needs } => want = needs.max(2 * want),
        }
    };
    let mut order: Vec<_> = header.tensors().to_vec();
    order.sort_by_key(|tensor| tensor.offset());
    // The beginning of the data may have been read with the header.
    let mut rest = start;
    let mut at = 0u64;
    let mut tasks = Vec::with_capacity(order.len());
    for tensor in order {
        let from = header.data_start() + tensor.offset();
        let bytes = file.range(&mut rest, &mut at, from, tensor.bytes(), header.end()).await?;
        let decode = async move { tensor.decode(&bytes).map(|data| (tensor.name().to_owned(), data)) };
        tasks.push(AsyncComputeTaskPool::get().spawn(decode));
    }
    let mut tensors: Vec<(String, TensorData)> = Vec::with_capacity(tasks.len());
    for task in tasks {
        tensors.push(task.await?);
    }
    Ok((header, tensors.into()))
}
