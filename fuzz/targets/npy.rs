//! The NumPy writer: any tensor becomes a file that a reader by the format's description reads back.

use bevy_tensor_compute::formats::save_npy;
use bevy_tensor_compute::prelude::*;

use super::source::Source;
use super::{Answer, InputFile, Target};

pub const TARGET: Target = Target {
    name: "npy",
    corpus: "npy",
    weight: 4,
    longest: 512,
    words: &[],
    guards: false,
    make: || {
        let file = InputFile::new("npy");
        Box::new(move |bytes| {
            let mut source = Source::new(bytes);
            let kind = source.below(7);
            let rank = source.below(9);
            let shape: Vec<usize> = (0..rank).map(|_| source.one_of(&[0, 1, 2, 3, 5, 8])).collect();
            let n: usize = shape.iter().product();
            if n > 1 << 16 {
                return Answer::refused("too many for a test");
            }
            let values: Vec<u8> = (0..n * 4).map(|_| source.byte()).collect();
            let words = || values.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            let data = match kind {
                0 => TensorData::new(&words().map(f32::from_bits).collect::<Vec<_>>(), shape.clone()),
                1 => {
                    TensorData::new(&words().map(|w| half::f16::from_bits(w as u16)).collect::<Vec<_>>(), shape.clone())
                }
                2 => TensorData::new(&words().map(|w| w as i32).collect::<Vec<_>>(), shape.clone()),
                3 => TensorData::new(&words().collect::<Vec<_>>(), shape.clone()),
                4 => TensorData::new(&words().map(|w| w as i8).collect::<Vec<_>>(), shape.clone()),
                5 => TensorData::new(&words().map(|w| w as u8).collect::<Vec<_>>(), shape.clone()),
                _ => TensorData::new(&words().map(|w| Truth::from(w & 1 == 1)).collect::<Vec<_>>(), shape.clone()),
            };
            let data = match data {
                Ok(data) => data,
                Err(error) => return Answer::refused(error),
            };
            if let Err(error) = save_npy(file.path(), &data) {
                panic!("{error}");
            }
            let written = std::fs::read(file.path()).expect("it was just written");
            assert_eq!(written[..8], *b"\x93NUMPY\x01\x00");
            let length = usize::from(u16::from_le_bytes([written[8], written[9]]));
            assert_eq!((10 + length) % 64, 0);
            let header = std::str::from_utf8(&written[10..10 + length]).expect("a header of text");
            let sizes: String = shape.iter().map(|n| format!("{n}, ")).collect();
            let sizes = format!("'shape': ({}), }}", sizes.trim_end());
            assert!(header.contains(&sizes) && header.ends_with('\n'), "{header} for {shape:?}");
            assert_eq!(&written[10 + length..], data.bytes());
            Answer::accepted((kind, rank, n == 0))
        })
    },
};
