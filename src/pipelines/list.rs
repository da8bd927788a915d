//! Lists of pipelines that are compiled ahead at the next start.

use std::path::Path;
use std::sync::Arc;

use crate::disk::replace_file;
use crate::kernel::Access;
use crate::mailbox::ListedKernel;

/// Kernels by their text, to be compiled ahead.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineList {
    pub(crate) kernels: Vec<ListedKernel>,
}

/// Of the format below; grows with it.
const LIST_VERSION: u64 = 1;

impl PipelineList {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// Writes the list as JSON; a file that is there is replaced at once, or stays.
    pub fn save(&self, path: impl AsRef<Path>) -> std::io::Result<()> {
        let kernels: Vec<serde_json::Value> = self
            .kernels
            .iter()
            .map(|k| {
                let writes: Vec<bool> = k.accesses.iter().map(|&access| access == Access::ReadWrite).collect();
                serde_json::json!({
                    "kernel": &*k.kernel, "variant": &*k.variant, "wgsl": &*k.wgsl,
                    "entry": &*k.entry, "checked": k.checked, "params_in_storage": k.params_in_storage,
                    "writes": writes, "faults": k.counts_faults,
                })
            })
            .collect();
        let text = serde_json::json!({ "version": LIST_VERSION, "kernels": kernels }).to_string();
        replace_file(path.as_ref(), text.as_bytes())
    }

    /// Reads a list; anything wrong with it is an error of kind `InvalidData`.
    pub fn load(path: impl AsRef<Path>) -> std::io::Result<Self> {
        let wrong = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
        let text = std::fs::read(path)?;
        let json: serde_json::Value = serde_json::from_slice(&text).map_err(|error| wrong(&error.to_string()))?;
        if json["version"].as_u64() != Some(LIST_VERSION) {
            return Err(wrong("a list of another version"));
        }
        let list = json["kernels"].as_array().ok_or_else(|| wrong("no list of kernels"))?;
        let kernels = list.iter().map(|entry| {
            let text = |field: &str| entry[field].as_str().map(Arc::from);
            let access = |write: &serde_json::Value| {
                write.as_bool().map(|write| if write { Access::ReadWrite } else { Access::Read })
            };
            Some(ListedKernel {
                kernel: text("kernel")?,
                variant: text("variant")?,
                wgsl: text("wgsl")?,
                entry: text("entry")?,
                checked: entry["checked"].as_bool()?,
                params_in_storage: entry["params_in_storage"].as_bool()?,
                accesses: entry["writes"].as_array()?.iter().map(access).collect::<Option<_>>()?,
                counts_faults: entry["faults"].as_bool()?,
            })
        });
        let kernels = kernels.collect::<Option<_>>().ok_or_else(|| wrong("a kernel that is none"))?;
        Ok(Self { kernels })
    }
}
