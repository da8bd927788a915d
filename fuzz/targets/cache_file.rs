//! The pipeline cache file: its content behind a valid header, which the checksum would otherwise hide, and whole files.

use bevy_tensor_compute::fuzzing::{cache_file, sealed_cache_file};

use super::{Answer, Target};

pub const TARGET: Target = Target {
    name: "cache_file",
    corpus: "cache_file",
    weight: 4,
    longest: 2048,
    words: &["BTCCACHE", "{\"matmul\":[\"few\",5]}", "{\"matmul\":", "[\"few\",", "{}", "null", "\"tiles\""],
    guards: false,
    make: || {
        Box::new(|bytes| {
            // The first byte says whether the rest gets a header.
            let Some((first, rest)) = bytes.split_first() else { return Answer::refused("empty") };
            let file = if first % 4 == 0 { rest.to_vec() } else { sealed_cache_file(rest) };
            match cache_file(&file) {
                Ok((pipelines, tuned, driver)) => {
                    assert!(pipelines * 8 + driver <= file.len(), "more than the file has");
                    Answer::accepted((pipelines.min(5), tuned.min(5), driver.min(2)))
                }
                Err(reason) => Answer::refused(reason),
            }
        })
    },
};
