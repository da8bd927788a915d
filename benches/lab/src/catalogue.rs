//! The list of kernel texts, which a unit test of the library writes.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::Result;

/// One kernel in one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    pub kernel: String,
    /// Empty if the kernel has only one.
    pub variant: String,
    /// The recorded work that needs it.
    pub case: String,
    /// The classes of adapters that may run it.
    pub adapters: Vec<String>,
    /// Whether wgpu adds its runtime checks.
    pub checked: bool,
    pub wgsl: String,
}

impl Text {
    /// Kernel, variant and recorded work in one line.
    pub fn name(&self) -> String {
        let variant = if self.variant.is_empty() { String::new() } else { format!(" [{}]", self.variant) };
        format!("{}{variant}: {}", self.kernel, self.case)
    }

    /// Whether only software adapters run it.
    pub fn is_software(&self) -> bool {
        self.adapters.iter().all(|adapter| adapter.starts_with("software"))
    }
}

/// The list that `KERNEL_TEXTS` names. Without it, runs the library's test, which writes one to `place`.
pub fn file(place: &Path) -> Result<PathBuf> {
    match std::env::var_os("KERNEL_TEXTS") {
        Some(path) => Ok(path.into()),
        None => write(place).map(|()| place.to_owned()),
    }
}

/// The folder of the library.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn write(path: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--quiet", "--package", "bevy_tensor_compute", "--lib", "catalogue"])
        .current_dir(root())
        .env("KERNEL_TEXTS", path)
        .output()?;
    if output.status.success() && path.exists() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Err(format!("the library's test `catalogue` failed:\n{said}").into())
}

/// Reads a list of kernels.
pub fn read(path: &Path) -> Result<Vec<Text>> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let entries: Value = serde_json::from_slice(&bytes)?;
    let texts: Option<Vec<Text>> = entries.as_array().and_then(|entries| entries.iter().map(text).collect());
    let texts = texts.ok_or_else(|| format!("{} is not a list of kernels", path.display()))?;
    if texts.is_empty() { Err(format!("{} has no kernels", path.display()).into()) } else { Ok(texts) }
}

fn text(entry: &Value) -> Option<Text> {
    let string = |name: &str| Some(entry.get(name)?.as_str()?.to_owned());
    let adapters = entry.get("adapters")?.as_array()?;
    Some(Text {
        kernel: string("kernel")?,
        variant: string("variant")?,
        case: string("case")?,
        adapters: adapters.iter().map(|adapter| Some(adapter.as_str()?.to_owned())).collect::<Option<_>>()?,
        checked: entry.get("checked")?.as_bool()?,
        wgsl: string("wgsl")?,
    })
}
