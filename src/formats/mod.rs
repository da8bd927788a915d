//! Tensors in files.

mod files;
mod npy;
mod replace;
mod safetensors;

pub use self::safetensors::{FormatError, SafetensorsFile, save_safetensors};
pub use files::{TensorFiles, TensorsLoaded, TensorsSaved};
pub use npy::save_npy;

pub(crate) use files::{FileChannel, deliver_files};
pub(crate) use replace::{replace_file, replace_with};
