//! The inputs of a run: from files, and made up for those that no file is given for.

use std::path::Path;
use std::sync::Arc;

use bevy::image::{CompressedImageFormats, Image, ImageSampler, ImageType};
use bevy::prelude::*;
use bevy_tensor_compute::image::data_from_image;
use bevy_tensor_compute::onnx::{
    Dimension, ElementType, HostTensor, Numbers, OnnxGraph, OnnxInputs, OnnxModel, OnnxPort, ValueType,
};

use crate::options::{Options, asset};

/// All inputs of a model.
pub fn gather(graph: &OnnxGraph, options: &Options) -> Result<OnnxInputs<'static>, String> {
    let mut inputs = OnnxInputs::new();
    for (name, _) in &options.inputs {
        if !graph.inputs().iter().any(|port| port.name == *name) {
            return Err(format!("the model has no input \"{name}\""));
        }
    }
    for port in graph.inputs() {
        let shape = options.shapes.iter().find(|(name, _)| *name == port.name).map(|(_, shape)| shape.clone());
        let file = options.inputs.iter().find(|(name, _)| *name == port.name).map(|(_, file)| file.clone());
        let file = file.or_else(|| options.is_default().then(|| asset("examples/face.png")));
        let tensor = match file {
            Some(file) => read(&file, &port, shape, graph)?,
            None if port.optional => continue,
            None => made_up(&port, shape)?,
        };
        inputs = inputs.with(port.name.clone(), Arc::new(tensor));
    }
    Ok(inputs)
}

fn read(file: &Path, port: &OnnxPort, shape: Option<Vec<usize>>, graph: &OnnxGraph) -> Result<HostTensor, String> {
    let fail = |error: &dyn core::fmt::Display| format!("{}: {error}", file.display());
    let bytes = std::fs::read(file).map_err(|error| fail(&error))?;
    let extension = file.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
    let tensor = match extension.as_str() {
        "npy" => HostTensor::from_npy(&bytes).map_err(|error| fail(&error))?,
        "wav" => wav(&bytes).map_err(|error| fail(&error))?,
        "png" | "jpg" | "jpeg" | "webp" => picture(&bytes, &extension, port, graph).map_err(|error| fail(&error))?,
        other => return Err(fail(&format!("\"{other}\" is no kind of input"))),
    };
    let tensor = match shape {
        Some(shape) => tensor.reshaped(shape).map_err(|error| fail(&error))?,
        None => tensor,
    };
    let Some(ValueType::Tensor { element, shape: declared }) = &port.declared else { return Ok(tensor) };
    // Sound has one axis; models want a batch too.
    let tensor = match (declared, tensor.shape().rank()) {
        (Some(declared), 1) if declared.len() == 2 && extension == "wav" => {
            let samples = tensor.elements();
            tensor.reshaped([1, samples]).map_err(|error| fail(&error))?
        }
        _ => tensor,
    };
    if tensor.element() == *element {
        return Ok(tensor);
    }
    let numbers = tensor.numbers().map_err(|error| fail(&error))?;
    HostTensor::from_numbers(*element, tensor.shape(), &numbers).map_err(|error| fail(&error))
}

/// A picture as the model's shape asks for, with channels from 0 to 1.
fn picture(bytes: &[u8], extension: &str, port: &OnnxPort, graph: &OnnxGraph) -> Result<HostTensor, String> {
    let image = Image::from_buffer(
        bytes,
        ImageType::Extension(extension),
        CompressedImageFormats::NONE,
        true,
        ImageSampler::Default,
        bevy::asset::RenderAssetUsages::MAIN_WORLD,
    );
    let pixels = data_from_image(&image.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
    let settings = OnnxModel::from_graph(graph.clone()).image_settings(&port.name);
    let settings = settings.ok_or("the input has not the shape of an image with three channels")?;
    let (height, width) = (pixels.shape()[0], pixels.shape()[1]);
    let [rows, columns] = settings.size.unwrap_or([height, width]);
    let bytes = pixels.bytes();
    let channels_last = settings.layout == bevy_tensor_compute::image::ImageLayout::Nhwc;
    let mut values = vec![0.0f32; rows * columns * 3];
    for y in 0..rows {
        for x in 0..columns {
            for channel in 0..3 {
                let value = sample(bytes, (height, width), (rows, columns), (y, x), channel);
                let at =
                    if channels_last { (y * columns + x) * 3 + channel } else { (channel * rows + y) * columns + x };
                values[at] = value / 255.0;
            }
        }
    }
    let shape = if channels_last { [1, rows, columns, 3] } else { [1, 3, rows, columns] };
    HostTensor::from_f32(&values, shape).map_err(|error| error.to_string())
}

/// The mean of the pixels that fall into a pixel of the smaller picture.
fn sample(
    bytes: &[u8],
    (height, width): (usize, usize),
    (rows, columns): (usize, usize),
    (y, x): (usize, usize),
    channel: usize,
) -> f32 {
    let range = |i: usize, of: usize, size: usize| {
        let start = i * size / of;
        start..((i + 1) * size / of).max(start + 1).min(size)
    };
    let (mut sum, mut count) = (0.0, 0.0);
    for row in range(y, rows, height) {
        for column in range(x, columns, width) {
            sum += f32::from(bytes[(row * width + column) * 4 + channel]);
            count += 1.0;
        }
    }
    sum / count
}

/// The samples of the first channel, from −1 to 1.
fn wav(bytes: &[u8]) -> Result<HostTensor, String> {
    let field = |at: usize, size: usize| bytes.get(at..at + size).ok_or("the file is cut off");
    let number = |at: usize, size: usize| -> Result<usize, &str> {
        Ok(field(at, size)?.iter().rev().fold(0, |n, &byte| n << 8 | usize::from(byte)))
    };
    if field(0, 4)? != b"RIFF" || field(8, 4)? != b"WAVE" {
        return Err("not a WAVE file".to_owned());
    }
    let (mut at, mut format, mut samples) = (12, None, None);
    while at + 8 <= bytes.len() {
        let size = number(at + 4, 4)?;
        match field(at, 4)? {
            b"fmt " => format = Some((number(at + 8, 2)?, number(at + 10, 2)?, number(at + 22, 2)?)),
            b"data" => samples = Some(&bytes[at + 8..(at + 8 + size).min(bytes.len())]),
            _ => {}
        }
        at += 8 + size + size % 2;
    }
    let (Some((kind, channels, bits)), Some(data)) = (format, samples) else { return Err("no samples".to_owned()) };
    let step = channels.max(1) * bits / 8;
    let values: Vec<f32> = match (kind, bits) {
        (1, 16) => data.chunks_exact(step).map(|c| f32::from(i16::from_le_bytes([c[0], c[1]])) / 32768.0).collect(),
        (3, 32) => data.chunks_exact(step).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect(),
        _ => return Err(format!("samples of {bits} bits and format {kind} are not supported")),
    };
    HostTensor::from_f32(&values, [values.len()]).map_err(|error| error.to_string())
}

/// Numbers between 0 and 1 for floats, and zeros for everything else, of the declared shape. Open sizes are 1.
fn made_up(port: &OnnxPort, shape: Option<Vec<usize>>) -> Result<HostTensor, String> {
    let Some(ValueType::Tensor { element, shape: declared }) = &port.declared else {
        return Err(format!("the input \"{}\" needs a file", port.name));
    };
    let size = |size: &Dimension| match size {
        Dimension::Fixed(size) => *size,
        Dimension::Symbol(_) => 1,
    };
    let declared = declared.as_ref().map(|sizes| sizes.iter().map(size).collect());
    let shape: Vec<usize> = shape.or(declared).unwrap_or_default();
    let count: usize = shape.iter().product();
    let mut state = 0x9e37_79b9u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 24)
    };
    let numbers = match element {
        ElementType::String => return Err(format!("the input \"{}\" needs a file", port.name)),
        element if element.is_float() => Numbers::Float((0..count).map(|_| next()).collect()),
        _ => Numbers::Int(vec![0; count]),
    };
    HostTensor::from_numbers(*element, shape, &numbers).map_err(|error| format!("{}: {error}", port.name))
}
