//! Memory advice: finds the largest tensors, idle tensors, and tensors with equal contents.

use core::hash::BuildHasher;
use core::time::Duration;
use std::sync::Arc;

use bevy::ecs::system::SystemParam;
use bevy::platform::collections::{HashMap, HashSet};
use bevy::platform::hash::FixedHasher;
use bevy::prelude::*;
use bevy::tasks::AsyncComputeTaskPool;

use super::{MemoryNews, NewsSender};
use crate::error::{OpError, RunError, catch};
use crate::ir::Shape;
use crate::readback::TensorReceiver;
use crate::record::TensorCommands;
use crate::tensor::{Initial, Tensor, TensorOf};

/// Settings of [`MemoryAdvisor::advise`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdviceSettings {
    /// How many of the largest tensors to list.
    pub largest: usize,
    /// How long a tensor must be unused to count as idle.
    pub idle: Duration,
    /// Smaller tensors are ignored. In bytes.
    pub min_bytes: u64,
    /// Whether to compare contents. Contents that are only on the device are read back once for this.
    pub contents: bool,
}

impl Default for AdviceSettings {
    fn default() -> Self {
        Self { largest: 5, idle: Duration::from_secs(300), min_bytes: 64 << 10, contents: true }
    }
}

/// A tensor that takes memory.
#[derive(Clone, Debug, PartialEq)]
pub struct AdvisedTensor {
    /// The tensor. If several tensors share the storage, one of them.
    pub tensor: Entity,
    /// Its name, if it has one.
    pub name: Option<Name>,
    /// Its model, if it has one.
    pub model: Option<Entity>,
    /// Bytes of its storage.
    pub bytes: u64,
}

/// Tensors with equal contents on separate storages. They could share one storage
/// ([`TensorModels::share`](crate::tensor::TensorModels::share)).
#[derive(Clone, Debug, PartialEq)]
pub struct Duplicates {
    /// The tensors, each on its own storage.
    pub tensors: Vec<AdvisedTensor>,
    /// Bytes that sharing would save.
    pub bytes: u64,
}

/// The result of [`MemoryAdvisor::advise`]. Triggered one or more frames after the call.
#[derive(Event, Clone, Debug, Default, PartialEq)]
pub struct MemoryAdvice {
    /// The largest tensors, largest first.
    pub largest: Vec<AdvisedTensor>,
    /// Tensors that were not used for a while, largest first.
    pub idle: Vec<AdvisedTensor>,
    /// Tensors with equal contents, largest saving first.
    pub duplicates: Vec<Duplicates>,
}

/// The content of a storage, on the host or being read back.
enum Content {
    Here(Arc<[u32]>),
    Coming(TensorReceiver),
}

/// System parameter that looks for memory that could be saved.
#[derive(SystemParam)]
pub struct MemoryAdvisor<'w, 's> {
    ops: TensorCommands<'w, 's>,
    tensors: Query<'w, 's, (Entity, &'static Tensor, Option<&'static Name>, Option<&'static TensorOf>)>,
    time: Option<Res<'w, Time<Real>>>,
    news: Res<'w, NewsSender>,
}

impl MemoryAdvisor<'_, '_> {
    /// Starts the search and triggers [`MemoryAdvice`] when it is done. Contents are compared on a background thread.
    #[track_caller]
    pub fn advise(&mut self, settings: AdviceSettings) -> Result<(), OpError> {
        let now = self.time.as_ref().map_or(Duration::ZERO, |time| time.elapsed());
        let mut seen = HashSet::<u64>::default();
        let mut advice = MemoryAdvice::default();
        // Only storages with the same size and type can have equal contents.
        let mut alike: HashMap<_, Vec<(AdvisedTensor, Tensor)>> = HashMap::default();
        for (entity, tensor, name, of) in &self.tensors {
            let bytes = tensor.storage_bytes() as u64;
            if bytes < settings.min_bytes || !seen.insert(tensor.storage_id()) {
                continue;
            }
            let advised = AdvisedTensor { tensor: entity, name: name.cloned(), model: of.map(|of| of.0), bytes };
            if tensor.usage().last_used.is_some_and(|used| now.saturating_sub(used) > settings.idle) {
                advice.idle.push(advised.clone());
            }
            advice.largest.push(advised.clone());
            // A view of the whole storage, because the tensor may be a view of a part of it.
            if let Some(whole) = tensor.whole() {
                alike.entry((tensor.dtype(), bytes)).or_default().push((advised, whole));
            }
        }
        for list in [&mut advice.largest, &mut advice.idle] {
            list.sort_by_key(|advised| core::cmp::Reverse(advised.bytes));
        }
        advice.largest.truncate(settings.largest);
        let mut groups: Vec<Vec<(AdvisedTensor, Content)>> = Vec::new();
        for group in alike.into_values().filter(|group| settings.contents && group.len() > 1) {
            let mut contents = Vec::with_capacity(group.len());
            for (advised, whole) in group {
                let content = match whole.storage().source() {
                    Some(Initial::Data(words)) => Content::Here(words),
                    // Generated content (zeros, ranges, random numbers) takes no host memory and is not compared.
                    Some(_) => continue,
                    None => Content::Coming(self.ops.read_tensor(&whole)?),
                };
                contents.push((advised, content));
            }
            groups.push(contents);
        }
        let news = self.news.0.clone();
        let task = async move {
            for group in groups {
                let mut contents = Vec::with_capacity(group.len());
                for (advised, content) in group {
                    match content {
                        Content::Here(words) => contents.push((advised, words)),
                        // A tensor that cannot be read is left out.
                        Content::Coming(receiver) => {
                            if let Ok(data) = receiver.recv().await {
                                contents.push((advised, data.shared_words()));
                            }
                        }
                    }
                }
                match catch(|| duplicates(contents)) {
                    Ok(found) => advice.duplicates.extend(found),
                    Err(message) => {
                        let error = RunError::Panic { task: "the search for duplicates", message };
                        // Fails only if the app has exited.
                        let _ = news.send(MemoryNews::Failed(error));
                    }
                }
            }
            advice.duplicates.sort_by_key(|duplicates| core::cmp::Reverse(duplicates.bytes));
            // Fails only if the app has exited.
            let _ = news.send(MemoryNews::Advice(advice));
        };
        AsyncComputeTaskPool::get().spawn(task).detach();
        Ok(())
    }
}

impl Tensor {
    /// A view of the whole storage, with rank 1.
    fn whole(&self) -> Option<Tensor> {
        let elements = self.storage().elements();
        self.view(crate::ir::Layout::contiguous(Shape::from([elements]))).ok()
    }
}

/// A storage's content on the host.
type Known = (AdvisedTensor, Arc<[u32]>);

/// Groups equal contents. Candidates are found by hash and then compared, so a hash collision cannot cause a wrong
/// result.
fn duplicates(contents: Vec<Known>) -> Vec<Duplicates> {
    let mut by_hash: HashMap<u64, Vec<Vec<Known>>> = HashMap::default();
    for (advised, words) in contents {
        let groups = by_hash.entry(FixedHasher.hash_one(&words)).or_default();
        match groups.iter_mut().find(|group| group[0].1 == words) {
            Some(group) => group.push((advised, words)),
            None => groups.push(vec![(advised, words)]),
        }
    }
    let groups = by_hash.into_values().flatten().filter(|group| group.len() > 1);
    groups
        .map(|group| {
            let tensors: Vec<AdvisedTensor> = group.into_iter().map(|(advised, _)| advised).collect();
            Duplicates { bytes: tensors.iter().skip(1).map(|advised| advised.bytes).sum(), tensors }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_are_found() {
        let advised = |id: u32| AdvisedTensor {
            tensor: Entity::from_raw_u32(id).expect("a small number"),
            name: None,
            model: None,
            bytes: 12,
        };
        let content = |id: u32, words: [u32; 3]| (advised(id), Arc::from(words));
        let found = duplicates(vec![
            content(1, [1, 2, 3]),
            content(2, [1, 2, 4]),
            content(3, [1, 2, 3]),
            content(4, [0, 0, 0]),
            content(5, [1, 2, 3]),
        ]);
        assert_eq!(found, [Duplicates { tensors: [1, 3, 5].map(advised).to_vec(), bytes: 24 }]);
    }
}
