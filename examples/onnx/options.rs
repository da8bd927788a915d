//! The arguments.

use std::path::{Path, PathBuf};

use bevy_tensor_compute::prelude::BackendChoice;

pub const USAGE: &str = "usage: onnx [MODEL.onnx] [--input NAME=FILE.npy|.png|.wav]... [--shape NAME=1,3,224,224]...
            [--output DIR] [--backend cpu|gpu|auto] [--repeat N] [--report FILE.json]
       onnx --check FOLDER [--backend cpu|gpu|auto]";

#[derive(Default)]
pub struct Options {
    model: Option<PathBuf>,
    pub inputs: Vec<(String, PathBuf)>,
    pub shapes: Vec<(String, Vec<usize>)>,
    pub output: Option<PathBuf>,
    pub backend: BackendChoice,
    pub repeat: usize,
    pub report: Option<PathBuf>,
    pub check: Option<PathBuf>,
}

impl Options {
    pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { repeat: 3, ..Self::default() };
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            let pair = |text: String| {
                // Names can contain any character; files rarely contain `=`.
                let parts = text.rsplit_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
                parts.ok_or_else(|| format!("\"{text}\" is not NAME=VALUE"))
            };
            match argument.as_str() {
                "--input" => {
                    let (name, file) = pair(value()?)?;
                    options.inputs.push((name, file.into()));
                }
                "--shape" => {
                    let (name, sizes) = pair(value()?)?;
                    let sizes = sizes.split(',').filter(|size| !size.is_empty()).map(|size| size.trim().parse());
                    let sizes =
                        sizes.collect::<Result<_, _>>().map_err(|_| format!("the shape of {name} is not valid"))?;
                    options.shapes.push((name, sizes));
                }
                "--output" => options.output = Some(value()?.into()),
                "--report" => options.report = Some(value()?.into()),
                "--check" => options.check = Some(value()?.into()),
                "--repeat" => options.repeat = value()?.parse().map_err(|_| "--repeat needs a number".to_owned())?,
                "--backend" => {
                    options.backend = match value()?.as_str() {
                        "cpu" => BackendChoice::Cpu,
                        "gpu" => BackendChoice::Gpu,
                        "auto" => BackendChoice::Auto,
                        other => return Err(format!("\"{other}\" is no backend")),
                    }
                }
                other if other.starts_with("--") => return Err(format!("\"{other}\" is no option")),
                _ => options.model = Some(argument.into()),
            }
        }
        Ok(options)
    }

    /// The model to run: without arguments the one that comes with the crate.
    pub fn model(&self) -> PathBuf {
        self.model.clone().unwrap_or_else(|| asset("models/blazeface.onnx"))
    }

    /// Whether the model and the picture that come with the crate are run.
    pub fn is_default(&self) -> bool {
        self.model.is_none()
    }
}

/// A file that comes with the crate.
pub fn asset(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets").join(path)
}
