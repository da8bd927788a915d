//! The cache file: keeps the driver's pipelines and the tuning table for the next start. A file that cannot be used is
//! ignored with a warning.
//!
//! ```text
//! "BTCCACHE" | format u32 | key u64 | checksum u64 | number of pipelines u32 | bytes of tuning u32 |
//! bytes of driver data u64 | pipeline ids u64… | tuning table as JSON | driver data
//! ```
//! Numbers are little-endian. The key is a hash of adapter, driver, API and crate version. The checksum covers
//! everything after it.

use core::sync::atomic::Ordering;
use std::io;
use std::path::{Path, PathBuf};

use bevy::platform::collections::HashSet;
use bevy::prelude::*;
use bevy::tasks::IoTaskPool;

use super::device::{ErrorScope, Gpu};
use crate::disk::replace_file;
use crate::error::catch;
use crate::pipelines::{CacheFile, CacheFound, TensorPipelines, TuningTable};
use crate::support::AdapterFacts;

const MAGIC: &[u8; 8] = b"BTCCACHE";
const FORMAT: u32 = 1;
const HEADER: usize = 8 + 4 + 8 + 8 + 4 + 4 + 8;
/// Maximum size of a file that is read.
const LARGEST: u64 = 256 << 20;
/// Number of frames without compilation after which the file is written, so that a burst of new pipelines is one write.
const PATIENCE: u32 = 120;

/// FNV-1a hash. The same on every platform.
pub(crate) fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The key of a file. Files are not shared between adapters, drivers or versions.
fn key(facts: &AdapterFacts) -> u64 {
    let version = env!("CARGO_PKG_VERSION");
    fingerprint([&facts.name, &facts.driver, &facts.api, version].join("\n").as_bytes())
}

/// Content of a file.
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
            return Err("it is truncated");
        }
        if &bytes[..8] != MAGIC {
            return Err("it is not a cache file");
        }
        if u32_at(8) != Some(FORMAT) {
            return Err("it has another format version");
        }
        if u64_at(12) != Some(expected) {
            return Err("it belongs to another adapter, driver or version");
        }
        if u64_at(20) != Some(fingerprint(&bytes[28..])) {
            return Err("it is damaged");
        }
        let damaged = "it is damaged";
        let (Some(pipelines), Some(tuning), Some(driver)) = (u32_at(28), u32_at(32), u64_at(36)) else {
            return Err(damaged);
        };
        // Lengths come from the file, so every sum is checked.
        let tuning_at =
            (pipelines as usize).checked_mul(8).and_then(|bytes| bytes.checked_add(HEADER)).ok_or(damaged)?;
        let driver_at = tuning_at.checked_add(tuning as usize).ok_or(damaged)?;
        if (driver_at as u64).checked_add(driver) != Some(bytes.len() as u64) {
            return Err(damaged);
        }
        let (Some(ids), Some(tuning), Some(driver)) =
            (bytes.get(HEADER..tuning_at), bytes.get(tuning_at..driver_at), bytes.get(driver_at..))
        else {
            return Err(damaged);
        };
        let json = serde_json::from_slice(tuning).map_err(|_| damaged)?;
        Ok(Self {
            pipelines: ids.chunks_exact(8).filter_map(|b| b.try_into().ok()).map(u64::from_le_bytes).collect(),
            table: TuningTable::from_json(&json).ok_or(damaged)?,
            driver: driver.to_vec(),
        })
    }
}

/// The cache file of a device.
pub(crate) struct Persistence {
    path: PathBuf,
    key: u64,
    driver: Option<wgpu::PipelineCache>,
    shared: TensorPipelines,
    /// Number of pipelines and tuning table when the file was last written or read.
    written: (u64, TuningTable),
    /// Number of frames since something changed.
    changed: u32,
}

impl Persistence {
    /// Reads the file of this adapter in `directory`, and creates the driver's cache from it. Returns the ids of the
    /// pipelines in the cache too.
    pub(crate) fn open(
        directory: &Path,
        gpu: &Gpu,
        facts: &AdapterFacts,
        shared: &TensorPipelines,
    ) -> (Self, HashSet<u64>) {
        let key = key(facts);
        let path = directory.join(format!("tensor-pipelines-{key:016x}.bin"));
        let supported = gpu.device.features().contains(wgpu::Features::PIPELINE_CACHE);
        let (content, found, bytes) = match read_file(&path) {
            Ok(bytes) => match Content::from_bytes(&bytes, key) {
                Ok(content) => {
                    let (pipelines, tuned) = (content.pipelines.len(), content.table.choices.len());
                    info!("{}: read {pipelines} pipelines and {tuned} tuned kernels", path.display());
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

    /// Called every frame. Writes the file if something is new and nothing has been compiled for a while.
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
            let write = || {
                // The driver's part of the file comes from code that is not ours.
                let data = driver.and_then(|cache| cache.get_data()).unwrap_or_default();
                let bytes = Content { pipelines: shared.ids(), table, driver: data }.to_bytes(key);
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                replace_file(&path, &bytes).map(|()| bytes.len())
            };
            let result = catch(write).unwrap_or_else(|panic| Err(io::Error::other(panic)));
            if let Err(error) = &result {
                warn!("{}: {error}", path.display());
            }
            shared.update_file(|file| {
                if let Some(file) = file {
                    match result {
                        Ok(bytes) => {
                            (file.bytes, file.error, file.writes) = (Some(bytes as u64), None, file.writes + 1)
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
        // Written on this thread: the app ends, so no frame is delayed.
        let built = self.shared.totals().misses.load(Ordering::Relaxed);
        if built != self.written.0 || self.shared.update_table(|table| *table != self.written.1) {
            self.writer()();
        }
    }
}

/// Reads a file of at most [`LARGEST`] bytes.
fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(std::io::Error::other(format!("it is larger than {LARGEST} bytes")));
    }
    Ok(bytes)
}

fn ignored(path: &Path, reason: String) -> (Content, CacheFound, Option<u64>) {
    warn!("the cache file {} is ignored: {reason}", path.display());
    (Content::default(), CacheFound::Ignored(reason), None)
}

/// Creates the driver's cache from the data of an earlier run. It is empty if the driver rejects the data.
fn driver_cache(gpu: &Gpu, data: Option<&[u8]>) -> Option<wgpu::PipelineCache> {
    let scope = ErrorScope::new(&gpu.device);
    let descriptor = wgpu::PipelineCacheDescriptor { label: Some("tensor:pipelines"), data, fallback: true };
    // SAFETY: the data come from `get_data` in an earlier run of this version on this adapter: the key and the checksum
    // of the file have been checked, and wgpu compares its own header with the device.
    let cache = unsafe { gpu.device.create_pipeline_cache(&descriptor) };
    match scope.pop() {
        None => Some(cache),
        Some(error) => {
            warn!("cannot create the driver's pipeline cache: {error}");
            None
        }
    }
}

/// For the fuzzer: reads a file with the key 0. Returns the number of pipelines, of tuned kernels, and of the driver's bytes.
pub fn cache_file(bytes: &[u8]) -> Result<(usize, usize, usize), &'static str> {
    let content = Content::from_bytes(bytes, 0)?;
    Ok((content.pipelines.len(), content.table.choices.len(), content.driver.len()))
}

/// For the fuzzer: puts a valid header with the key 0 before a body.
pub fn sealed_cache_file(body: &[u8]) -> Vec<u8> {
    [MAGIC, &FORMAT.to_le_bytes()[..], &0u64.to_le_bytes(), &fingerprint(body).to_le_bytes(), body].concat()
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

    /// A file whose checksum fits whatever else it says.
    fn crafted(counts: (u32, u32, u64), rest: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(counts.0.to_le_bytes());
        body.extend(counts.1.to_le_bytes());
        body.extend(counts.2.to_le_bytes());
        body.extend(rest);
        sealed(&body)
    }

    fn sealed(body: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend(42u64.to_le_bytes());
        bytes.extend(fingerprint(body).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    #[test]
    fn lengths_that_overflow_are_damage() {
        for rest in [&b""[..], b"{}", &[0; 100]] {
            for counts in [
                (u32::MAX, u32::MAX, u64::MAX),
                (0, 0, u64::MAX),
                (1, 0, u64::MAX - 7),
                (u32::MAX, 0, (rest.len() as u64).wrapping_sub(u64::from(u32::MAX) * 8)),
                (1, 2, (rest.len() as u64).wrapping_sub(10)),
                (0, u32::MAX, (rest.len() as u64).wrapping_sub(u64::from(u32::MAX))),
            ] {
                assert!(Content::from_bytes(&crafted(counts, rest), 42).is_err(), "{counts:?} {}", rest.len());
            }
        }
    }

    #[test]
    fn no_mutation_of_a_sealed_file_panics() {
        let table = TuningTable::from_json(&serde_json::json!({ "matmul": ["few", 5] })).unwrap();
        let content = Content { pipelines: vec![1, u64::MAX], table, driver: vec![7; 100] };
        let body = content.to_bytes(42)[28..].to_vec();
        let mut state = 1u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % n as u64) as usize
        };
        for _ in 0..20_000 {
            let mut body = body.clone();
            for _ in 0..1 + random(4) {
                match random(4) {
                    0 => body.truncate(random(body.len() + 1)),
                    1 => body.extend((0..random(20)).map(|_| 0xff)),
                    // The three lengths are in front.
                    2 if body.len() >= 16 => body[random(16)] = [0, 1, 0x7f, 0x80, 0xff][random(5)],
                    _ if !body.is_empty() => {
                        let at = random(body.len());
                        body[at] ^= 1 << random(8);
                    }
                    _ => {}
                }
            }
            // Accepted or not, it must return.
            let _ = Content::from_bytes(&sealed(&body), 42);
        }
    }
}
