//! What is fuzzed. A target is a function of bytes that panics if the crate misbehaves. To add one, write its file and add it to [`TARGETS`].

mod cache_file;
#[cfg(feature = "gguf")]
mod gguf;
mod graph;
mod npy;
#[cfg(feature = "onnx")]
mod onnx;
mod ops;
mod pipeline_list;
mod safetensors;
#[cfg(feature = "audio")]
mod sound;
mod source;
mod table;
mod weights_asset;
mod wgsl;

use std::hash::{DefaultHasher, Hash, Hasher};

/// One target.
pub struct Target {
    pub name: &'static str,
    /// The folder of `fuzz/corpus` with its first inputs.
    pub corpus: &'static str,
    /// Share of the time.
    pub weight: u32,
    /// Inputs are cut to this many bytes.
    pub longest: usize,
    /// Words of the format, to insert.
    pub words: &'static [&'static str],
    /// Whether the crate guards against panics of another crate here, so that only those that reach the caller count.
    pub guards: bool,
    /// Makes the function; what it sets up is used for all inputs.
    pub make: fn() -> Run,
}

/// Runs one input.
pub type Run = Box<dyn FnMut(&[u8]) -> Answer>;

/// What the crate made of an input.
pub struct Answer {
    /// Whether the input is valid.
    pub accepted: bool,
    /// Inputs of a kind that was not seen before are mutated further.
    pub kind: u64,
}

impl Answer {
    /// `facts` tell one kind from another; digits in errors do not.
    pub fn accepted(facts: impl Hash) -> Self {
        Self { accepted: true, kind: hash((true, facts)) }
    }

    pub fn refused(error: impl ToString) -> Self {
        let text: String = error.to_string().chars().filter(|c| !c.is_ascii_digit()).take(60).collect();
        Self { accepted: false, kind: hash((false, text)) }
    }
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// All targets.
pub const TARGETS: &[Target] = &[
    safetensors::TARGET,
    weights_asset::TARGET,
    npy::TARGET,
    #[cfg(feature = "onnx")]
    onnx::TARGET,
    #[cfg(feature = "gguf")]
    gguf::TARGET,
    #[cfg(feature = "audio")]
    sound::TARGET,
    pipeline_list::TARGET,
    cache_file::TARGET,
    wgsl::TARGET,
    ops::TARGET,
];

/// A file for inputs that the crate reads from a path.
pub struct InputFile(std::path::PathBuf);

impl InputFile {
    pub fn new(extension: &str) -> Self {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fuzz_{}_{}.{extension}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // Memory, where the system has it, so that the disk does not set the pace.
        let memory = std::path::Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        Self(folder.join(name))
    }

    pub fn path(&self) -> &std::path::Path {
        &self.0
    }

    pub fn write(&self, bytes: &[u8]) {
        std::fs::write(&self.0, bytes).expect("a folder for temporary files");
    }
}

impl Drop for InputFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
