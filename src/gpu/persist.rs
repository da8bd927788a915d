//! The file that keeps the driver's pipelines and the tuning table for the next start. Whatever is wrong with it, the app starts as if it were not
//! there.
//!
//! ```text
//! "BTCCACHE" | format u32 | key u64 | sum u64 | pipelines u32 | tuning u32 | driver u64 | ids of pipelines | tuning as JSON | the driver's data
//! ```
//! Numbers are little-endian. The key is a fingerprint of adapter, driver, API and crate version; the sum one of all that follows it.

use core::sync::atomic::Ordering;
use std::path::{Path, PathBuf};

use bevy::platform::collections::HashSet;
use bevy::prelude::*;
use bevy::tasks::IoTaskPool;

use super::buffers::{ErrorScope, Gpu};
use crate::disk::replace_file;
use crate::pipelines::{CacheFile, CacheFound, TensorPipelines, TuningTable};
use crate::support::AdapterFacts;

const MAGIC: &[u8; 8] = b"BTCCACHE";
const FORMAT: u32 = 1;
const HEADER: usize = 8 + 4 + 8 + 8 + 4 + 4 + 8;
/// Frames after which new pipelines are written, so that a burst of them is one write.
const PATIENCE: u32 = 120;

/// A number that follows from bytes, the same everywhere (FNV-1a).
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// What a file is for: nothing is shared between adapters, drivers or versions.
fn key(facts: &AdapterFacts) -> u64 {
    let version = env!("CARGO_PKG_VERSION");
    fingerprint([&facts.name, &facts.driver, &facts.api, version].join("\n").as_bytes())
}

/// What was in a file.
#[derive(Debug, Default, PartialEq)]
struct Content {
    pipelines: Vec<u64>,
    table: TuningTable,
    driver: Vec<u8>,
}

impl Content {
    fn to_bytes(&self, key: u64) -> Vec<u8> {
        let tuning = self.table.to_json().to_string();
        let mut body = Vec::new();
        body.extend((self.pipelines.len() as u32).to_le_bytes());
        body.extend((tuning.len() as u32).to_le_bytes());
        body.extend((self.driver.len() as u64).to_le_bytes());
        self.pipelines.iter().for_each(|id| body.extend(id.to_le_bytes()));
        body.extend(tuning.as_bytes());
        body.extend(&self.driver);
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(key.to_le_bytes());
        bytes.extend(fingerprint(&body).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn from_bytes(bytes: &[u8], expected: u64) -> Result<Self, &'static str> {
        let u32_at = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
        let u64_at = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
        if bytes.len() < HEADER {
            return Err("it is cut short");
        }
        if &bytes[..8] != MAGIC {
            return Err("it is no cache file");
        }
        if u32_at(8) != Some(FORMAT) {
            return Err("it is of another format");
        }
        if u64_at(12) != Some(expected) {
            return Err("it is of another adapter, driver or version");
        }
        if u64_at(20) != Some(fingerprint(&bytes[28..])) {
            return Err("it is damaged");
        }
        let damaged = "it is damaged";
        let (Some(pipelines), Some(tuning), Some(driver)) = (u32_at(28), u32_at(32), u64_at(36)) else {
            return Err(damaged);
        };
        let tuning_at = HEADER + pipelines as usize * 8;
        let driver_at = tuning_at + tuning as usize;
        if driver_at as u64 + driver != bytes.len() as u64 {
            return Err(damaged);
        }
        let json = serde_json::from_slice(&bytes[tuning_at..driver_at]).map_err(|_| damaged)?;
        Ok(Self {
            pipelines: bytes[HEADER..tuning_at]
                .chunks_exact(8)
                .filter_map(|b| b.try_into().ok())
                .map(u64::from_le_bytes)
                .collect(),
            table: TuningTable::from_json(&json).ok_or(damaged)?,
            driver: bytes[driver_at..].to_vec(),
        })
    }
}

/// The file of a device, if the app asked for one.
pub(crate) struct Persistence {
    path: PathBuf,
    key: u64,
    driver: Option<wgpu::PipelineCache>,
    shared: TensorPipelines,
    /// Pipelines and choices when last written or read.
    written: (u64, TuningTable),
    /// Frames since something changed.
    changed: u32,
}

impl Persistence {
    /// Reads the file of this adapter in `directory`, and starts the driver's cache with what it has.
    pub(crate) fn open(
        directory: &Path,
        gpu: &Gpu,
        facts: &AdapterFacts,
        shared: &TensorPipelines,
    ) -> (Self, HashSet<u64>) {
        let key = key(facts);
        let path = directory.join(format!("tensor-pipelines-{key:016x}.bin"));
        let supported = gpu.device.features().contains(wgpu::Features::PIPELINE_CACHE);
        let (content, found, bytes) = match std::fs::read(&path) {
            Ok(bytes) => match Content::from_bytes(&bytes, key) {
                Ok(content) => {
                    let (pipelines, tuned) = (content.pipelines.len(), content.table.choices.len());
                    info!("{}: {pipelines} pipelines and {tuned} tuned kernels of an earlier run", path.display());
                    (content, CacheFound::Read { pipelines, tuned }, Some(bytes.len() as u64))
                }
                Err(reason) => ignored(&path, reason.to_owned()),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                (Content::default(), CacheFound::Nothing, None)
            }
            Err(error) => ignored(&path, error.to_string()),
        };
        let data = Some(content.driver.as_slice()).filter(|data| !data.is_empty());
        let driver = supported.then(|| driver_cache(gpu, data)).flatten();
        let known = match (&driver, data) {
            (Some(_), Some(_)) => content.pipelines.into_iter().collect(),
            _ => HashSet::default(),
        };
        shared.update_table(|table| table.clone_from(&content.table));
        let file = CacheFile { path: path.clone(), bytes, found, driver: driver.is_some(), writes: 0, error: None };
        shared.update_file(|slot| *slot = Some(file));
        let shared = shared.clone();
        (Self { path, key, driver, shared, written: (0, content.table), changed: 0 }, known)
    }

    pub(crate) fn driver(&self) -> Option<wgpu::PipelineCache> {
        self.driver.clone()
    }

    /// Writes what is new once it has been quiet for a while.
    pub(crate) fn tick(&mut self) {
        let report = self.shared.totals();
        let built = report.misses.load(Ordering::Relaxed);
        let idle = report.in_flight.load(Ordering::Relaxed) == 0;
        if !idle || (built == self.written.0 && self.shared.update_table(|table| *table == self.written.1)) {
            self.changed = 0;
            return;
        }
        self.changed += 1;
        if self.changed >= PATIENCE {
            self.save();
        }
    }

    /// Writes the file on an IO thread.
    pub(crate) fn save(&mut self) {
        let write = self.writer();
        IoTaskPool::get().spawn(async move { write() }).detach();
    }

    fn writer(&mut self) -> impl FnOnce() + Send + 'static {
        let built = self.shared.totals().misses.load(Ordering::Relaxed);
        let table = self.shared.tuning();
        self.changed = 0;
        self.written = (built, table.clone());
        let (path, key, driver, shared) = (self.path.clone(), self.key, self.driver.clone(), self.shared.clone());
        move || {
            let data = driver.and_then(|cache| cache.get_data()).unwrap_or_default();
            let content = Content { pipelines: shared.ids(), table, driver: data };
            let bytes = content.to_bytes(key);
            let result =
                path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| replace_file(&path, &bytes));
            if let Err(error) = &result {
                warn!("{}: {error}", path.display());
            }
            shared.update_file(|file| {
                if let Some(file) = file {
                    match result {
                        Ok(()) => {
                            (file.bytes, file.error, file.writes) = (Some(bytes.len() as u64), None, file.writes + 1)
                        }
                        Err(error) => file.error = Some(error.to_string()),
                    }
                }
            });
        }
    }
}

impl Drop for Persistence {
    fn drop(&mut self) {
        // The app ends, so no frame waits for this.
        let built = self.shared.totals().misses.load(Ordering::Relaxed);
        if built != self.written.0 || self.shared.update_table(|table| *table != self.written.1) {
            self.writer()();
        }
    }
}

fn ignored(path: &Path, reason: String) -> (Content, CacheFound, Option<u64>) {
    warn!("{} is ignored: {reason}", path.display());
    (Content::default(), CacheFound::Ignored(reason), None)
}

/// The driver's cache, begun with the data of an earlier run, or empty where the driver does not want those.
fn driver_cache(gpu: &Gpu, data: Option<&[u8]>) -> Option<wgpu::PipelineCache> {
    let scope = ErrorScope::new(&gpu.device);
    let descriptor = wgpu::PipelineCacheDescriptor { label: Some("tensor:pipelines"), data, fallback: true };
    // SAFETY: the data are what `get_data` of this adapter's cache gave to an earlier run of this version: the key and the sum of the file were
    // checked, and wgpu compares its own header with the device.
    let cache = unsafe { gpu.device.create_pipeline_cache(&descriptor) };
    match scope.pop() {
        None => Some(cache),
        Some(error) => {
            warn!("the driver has no pipeline cache: {error}");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_back_and_any_change_to_it_is_noticed() {
        let table = TuningTable::from_json(&serde_json::json!({ "matmul": ["few", 5] })).unwrap();
        let content = Content { pipelines: vec![1, u64::MAX], table, driver: vec![7; 100] };
        let bytes = content.to_bytes(42);
        assert_eq!(Content::from_bytes(&bytes, 42).unwrap(), content);
        assert!(Content::from_bytes(&bytes, 43).is_err(), "another key");
        for length in 0..bytes.len() {
            assert!(Content::from_bytes(&bytes[..length], 42).is_err(), "cut at {length}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Content::from_bytes(&flipped, 42).is_err(), "bit {bit}");
        }
    }
}
