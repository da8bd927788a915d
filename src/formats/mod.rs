//! File formats: safetensors, GGUF, NumPy, and loading of model weights.

mod asset;
mod files;
#[cfg(feature = "gguf")]
pub mod gguf;
mod header;
mod npy;
#[cfg(feature = "onnx")]
pub mod onnx;
mod safetensors;
mod upload;

pub use self::safetensors::{FormatError, SafetensorsFile, save_safetensors};
pub use asset::TensorWeights;
pub use files::{TensorFiles, TensorsLoaded, TensorsSaved};
pub use npy::save_npy;
pub use upload::{LoadWeights, UploadSettings, WeightsError, WeightsProgress, WeightsReady};

#[cfg(feature = "gguf")]
pub(crate) use self::gguf::{GgufLoader, GgufWeightsLoader};
pub(crate) use asset::SafetensorsLoader;
#[cfg(feature = "onnx")]
pub(crate) use files::place;
pub(crate) use files::{FileChannel, deliver_files};
#[cfg(feature = "onnx")]
pub(crate) use npy::{npy_bytes, parse_npy};
#[cfg(feature = "onnx")]
pub(crate) use upload::Arriving;
pub(crate) use upload::{begin_arrivals, place_weights};
