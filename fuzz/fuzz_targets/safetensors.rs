//! For any bytes, opening and reading a file returns tensors or an error, and no tensor is larger than the file allows.
#![no_main]

use bevy_tensor_compute::formats::SafetensorsFile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let path = std::env::temp_dir().join(format!("fuzz_{}.safetensors", std::process::id()));
    std::fs::write(&path, bytes).expect("a folder for temporary files");
    let Ok(mut file) = SafetensorsFile::open(&path) else { return };
    for name in file.names() {
        if let Ok(data) = file.read(&name) {
            assert!(data.bytes().len() <= 2 * bytes.len());
        }
    }
});
