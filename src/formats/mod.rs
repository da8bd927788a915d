//! Tensors in files.

mod files;
mod replace;
mod safetensors;

pub use self::safetensors::{FormatError, SafetensorsFile, save_safetensors};
pub use files::{TensorFiles, TensorsLoaded, TensorsSaved};

pub(crate) use files::{FileChannel, deliver_files};
pub(crate) use replace::{replace_file, replace_with};
