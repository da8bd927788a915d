//! Safetensors files: opening and reading gives tensors or an error. The file and the bytes of it give the same, and no tensor is larger than the file allows.

use std::path::Path;

use bevy_tensor_compute::formats::{SafetensorsFile, TensorWeights, save_safetensors};

use super::{Answer, InputFile, Target};

pub const WORDS: &[&str] = &[
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
    "\"__metadata__\":{",
    "\"format\":\"pt\"",
    "\"dtype\":",
    "\"shape\":[",
    "\"data_offsets\":[",
    "\"F32\"",
    "\"F16\"",
    "\"BF16\"",
    "\"F64\"",
    "\"I64\"",
    "\"U8\"",
    "\"BOOL\"",
    "\"F8_E4M3\"",
    "q4_0",
    "q8_0",
    "q4_128",
    "bevy_tensor_compute",
    "\\u0000",
    "[[[[",
    "{{{{",
    ",",
    "-1",
    "1e99",
];

pub const TARGET: Target = Target {
    name: "safetensors",
    corpus: "safetensors",
    weight: 8,
    longest: 2048,
    words: WORDS,
    guards: false,
    make: || {
        let (file, copy) = (InputFile::new("safetensors"), InputFile::new("safetensors"));
        Box::new(move |bytes| {
            file.write(bytes);
            let whole = TensorWeights::from_bytes(Path::new("whole"), bytes);
            let mut opened = match SafetensorsFile::open(file.path()) {
                Ok(opened) => opened,
                Err(error) => {
                    assert!(whole.is_err(), "the bytes are a file and the file is none: {error}");
                    return Answer::refused(error);
                }
            };
            let names = opened.names();
            let mut tensors = Vec::new();
            for name in &names {
                match opened.read(name) {
                    // Two bytes of BF16 become four of f32, and eight of F64 four.
                    Ok(data) => {
                        assert!(data.bytes().len() <= 2 * bytes.len(), "{name} has {} bytes", data.bytes().len());
                        tensors.push((name.clone(), data));
                    }
                    Err(error) => {
                        assert!(whole.is_err(), "{name} is read from bytes but not from the file: {error}");
                        return Answer::refused(error);
                    }
                }
            }
            let whole = whole.expect("every tensor of the file can be read");
            assert_eq!(whole.tensors().len(), tensors.len());
            for (name, data) in &tensors {
                let other = whole.get(name).expect("the same names");
                assert!(other.bytes() == data.bytes() && other.shape() == data.shape(), "{name} differs");
            }
            // What was read can be written, and is the same again.
            if save_safetensors(copy.path(), &tensors).is_ok() {
                let mut again = SafetensorsFile::open(copy.path()).expect("a file that was just saved");
                for (name, data) in &tensors {
                    let other = again.read(name).expect("a tensor that was just saved");
                    assert!(other.bytes() == data.bytes() && other.shape() == data.shape(), "{name} came back changed");
                }
            }
            let facts: Vec<_> = tensors.iter().map(|(_, data)| (data.dtype(), data.shape().rank())).collect();
            Answer::accepted(facts)
        })
    },
};
