//! Reads NumPy's `.npz`: a zip archive of `.npy` files.

use std::collections::BTreeMap;
use std::path::Path;

use bevy_tensor_compute::onnx::HostTensor;

/// The arrays of a file, and the text of `meta`.
pub struct Npz {
    pub arrays: BTreeMap<String, HostTensor>,
    pub meta: serde_json::Value,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> usize {
    bytes[at..at + N].iter().rev().fold(0, |n, &byte| n << 8 | usize::from(byte))
}

impl Npz {
    pub fn open(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (mut arrays, mut meta) = (BTreeMap::new(), serde_json::Value::Null);
        for (name, data) in entries(&bytes) {
            let name = name.trim_end_matches(".npy").to_owned();
            if let Some(text) = unicode(&data) {
                meta = serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text));
            } else {
                arrays.insert(
                    name.clone(),
                    HostTensor::from_npy(&data).unwrap_or_else(|error| panic!("{name}: {error}")),
                );
            }
        }
        Self { arrays, meta }
    }

    pub fn get(&self, name: &str) -> &HostTensor {
        self.arrays.get(name).unwrap_or_else(|| panic!("the file has no array {name}"))
    }
}

/// Names and contents, by the directory at the end of the archive.
fn entries(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let end = bytes.windows(4).rposition(|four| four == b"PK\x05\x06").expect("a zip archive");
    let count = number::<2>(bytes, end + 10);
    let mut at = number::<4>(bytes, end + 16);
    let mut entries = Vec::new();
    for _ in 0..count {
        let (method, packed) = (number::<2>(bytes, at + 10), number::<4>(bytes, at + 20));
        let [name, extra, comment] = [28, 30, 32].map(|offset| number::<2>(bytes, at + offset));
        let local = number::<4>(bytes, at + 42);
        let text = String::from_utf8_lossy(&bytes[at + 46..at + 46 + name]).into_owned();
        let start = local + 30 + number::<2>(bytes, local + 26) + number::<2>(bytes, local + 28);
        let data = &bytes[start..start + packed];
        let data = match method {
            0 => data.to_vec(),
            _ => miniz_oxide::inflate::decompress_to_vec(data).expect("deflated data"),
        };
        entries.push((text, data));
        at += 46 + name + extra + comment;
    }
    entries
}

/// The text of an array of one string, which NumPy stores in UTF-32.
fn unicode(npy: &[u8]) -> Option<String> {
    let length = number::<2>(npy, 8);
    let header = String::from_utf8_lossy(&npy[10..10 + length]);
    header.contains("'<U").then(|| {
        let units = npy[10 + length..].chunks_exact(4).map(|unit| number::<4>(unit, 0) as u32);
        units.filter(|&unit| unit != 0).filter_map(char::from_u32).collect()
    })
}
