//! The files of the example: the pictures of the gallery, the names of captions, and decoded pixels.

use std::path::{Path, PathBuf};

use bevy::asset::RenderAssetUsages;
use bevy::asset::io::file::FileAssetReader;
use bevy::image::{CompressedImageFormats, ImageSampler, ImageType};
use bevy::prelude::*;
use bevy_tensor_compute::image::data_from_image;
use bevy_tensor_compute::prelude::*;
use serde_json::Value;

/// A picture of the gallery.
#[derive(Clone, Debug)]
pub struct Picture {
    pub name: String,
    /// Its file, under `assets/gallery`.
    pub file: String,
}

/// The gallery to search, and the names of the captions that pictures are compared with.
#[derive(Resource, Clone, Debug)]
pub struct Library {
    /// The assets folder.
    pub folder: PathBuf,
    pub gallery: Vec<Picture>,
    pub captions: Vec<String>,
}

impl Library {
    /// Reads the lists next to the models. The error names the missing or invalid file.
    pub fn open() -> Result<Self, String> {
        Self::open_at(&FileAssetReader::get_base_path().join("assets"))
    }

    pub fn open_at(folder: &Path) -> Result<Self, String> {
        let file = |name: &str| {
            let path = folder.join(name);
            if path.is_file() { Ok(path) } else { Err(format!("{} is missing", path.display())) }
        };
        for name in ["models/minilm.safetensors", "models/efficientnet.safetensors", "models/head.safetensors"] {
            file(name)?;
        }
        let gallery = list(&file("gallery/gallery.json")?)?;
        let text = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        let picture = |entry: &Value| Some(Picture { name: text(entry, "name")?, file: text(entry, "file")? });
        let wrong = || "gallery/gallery.json: an entry without name or file".to_owned();
        let gallery = gallery.iter().map(|entry| picture(entry).ok_or_else(wrong)).collect::<Result<_, _>>()?;
        let captions = list(&file("models/captions.json")?)?;
        let captions = captions.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        Ok(Self { folder: folder.to_owned(), gallery, captions })
    }

    /// The path of a gallery picture.
    pub fn picture(&self, picture: &Picture) -> PathBuf {
        self.folder.join("gallery").join(&picture.file)
    }
}

fn list(path: &Path) -> Result<Vec<Value>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    match serde_json::from_str(&text) {
        Ok(Value::Array(entries)) => Ok(entries),
        Ok(_) => Err(format!("{}: not a list", path.display())),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Decodes a picture file to pixels.
pub fn read_pixels(path: &Path) -> Result<TensorData, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    decode_pixels(&bytes, extension).map_err(|error| format!("{}: {error}", path.display()))
}

/// Decodes the bytes of a picture to pixels.
pub fn decode_pixels(bytes: &[u8], extension: &str) -> Result<TensorData, String> {
    let (formats, sampler) = (CompressedImageFormats::NONE, ImageSampler::Default);
    let usage = RenderAssetUsages::MAIN_WORLD;
    let image = Image::from_buffer(bytes, ImageType::Extension(extension), formats, true, sampler, usage);
    data_from_image(&image.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
}
