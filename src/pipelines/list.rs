//! Lists of kernels to precompile at the next start.

use std::path::Path;
use std::sync::Arc;

use crate::disk::replace_file;
use crate::kernel::{Access, LoopBound};
use crate::mailbox::ListedKernel;

/// A list of kernels that can be saved and precompiled at the next start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineList {
    pub(crate) kernels: Vec<ListedKernel>,
}

/// Version of the file format.
const LIST_VERSION: u64 = 1;

impl PipelineList {
    /// Number of kernels.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// Writes the list as JSON. An existing file is replaced atomically.
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
                    "loops": k.loops.map(|bound| serde_json::json!([bound.turns, bound.whole])),
                })
            })
            .collect();
        let text = serde_json::json!({ "version": LIST_VERSION, "kernels": kernels }).to_string();
        replace_file(path.as_ref(), text.as_bytes())
    }

    /// Reads a list. Invalid content is an error of kind `InvalidData`.
    pub fn load(path: impl AsRef<Path>) -> std::io::Result<Self> {
        let wrong = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
        let text = std::fs::read(path)?;
        let json: serde_json::Value = serde_json::from_slice(&text).map_err(|error| wrong(&error.to_string()))?;
        if json["version"].as_u64() != Some(LIST_VERSION) {
            return Err(wrong("unsupported version of the pipeline list"));
        }
        let list = json["kernels"].as_array().ok_or_else(|| wrong("the field `kernels` is missing"))?;
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
                loops: match &entry["loops"] {
                    serde_json::Value::Null => None,
                    loops => {
                        Some(LoopBound { turns: u32::try_from(loops[0].as_u64()?).ok()?, whole: loops[1].as_bool()? })
                    }
                },
            })
        });
        let kernels = kernels.collect::<Option<_>>().ok_or_else(|| wrong("a kernel entry is invalid"))?;
        Ok(Self { kernels })
    }
}
