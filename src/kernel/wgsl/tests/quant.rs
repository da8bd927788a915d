//! Compares block kernels on the device with the host code (bit by bit where they round), and products with those of
//! widened weights.

use super::device::{assert_close, floats, noise, operand, run_step_with, step, variants, words};
use crate::ir::{BlockFormat, Class, DType, GgufType, Source};
use crate::kernel::{BlockCopyKernel, GatherKernel, Kernel, QuantMatMulKernel, QuantizeKernel};

fn format(dtype: DType) -> BlockFormat {
    dtype.block_format().expect("a quantised type")
}

fn widened(format: BlockFormat, words: &[u32], count: usize) -> Vec<f32> {
    (0..count).map(|i| format.get(words, i)).collect()
}

/// Numbers that cover all cases of rounding: noise of many magnitudes, zeros, ties and their neighbours.
fn trying(count: usize) -> Vec<f32> {
    let mut values = noise(count, 3);
    for (i, v) in values.iter_mut().enumerate() {
        *v = match i / 128 % 8 {
            0 => 0.0,
            1 => (i % 17) as f32 - 8.0 + 0.5,
            2 => f32::from_bits(((i % 9) as f32 - 4.5).to_bits() + i as u32 % 5),
            3 => *v * 1e30,
            4 => *v * 1e-20,
            5 => -v.abs(),
            6 => *v * 1e-7,
            _ => *v,
        };
    }
    values
}

#[test]
fn quantize_makes_the_blocks_of_the_host() {
    for dtype in DType::QUANTIZED {
        let format = format(dtype);
        for (blocks, first) in [(1, 0), (2, 2), (37, 4)] {
            let count = blocks * format.elements;
            let values = trying(count + 5);
            let kernel = Kernel::Quantize(QuantizeKernel { dtype, blocks });
            let (x, y) = (operand(0, DType::F32, &[count], 5), operand(1, dtype, &[count], first * format.elements));
            let step = step(kernel, vec![x], vec![y], &[]);
            let mut want = vec![0xabcd; format.words_of(first + blocks)];
            let buffers = [(Source::Slot(0), words(&values)), (Source::Slot(1), want.clone())];
            want[format.words_of(first)..].copy_from_slice(&format.pack(&values[5..]));
            for caps in variants(&step) {
                let got = &run_step_with(&step, &buffers, &[], &caps).0[1].1;
                assert_eq!(*got, want, "{blocks} blocks of {dtype} from {first}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_block() {
    for dtype in DType::QUANTIZED {
        let format = format(dtype);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = noise(4 * format.elements, 5);
            values[format.elements + 3] = bad;
            let kernel = Kernel::Quantize(QuantizeKernel { dtype, blocks: 4 });
            let shape = [4 * format.elements];
            let step = step(kernel, vec![operand(0, DType::F32, &shape, 0)], vec![operand(1, dtype, &shape, 0)], &[]);
            let buffers = [(Source::Slot(0), words(&values)), (Source::Slot(1), vec![0; format.words_of(4)])];
            for caps in variants(&step) {
                let got = &run_step_with(&step, &buffers, &[], &caps).0[1].1;
                assert_eq!(*got, format.pack(&values), "{dtype} with {bad}");
                for (i, v) in widened(format, got, values.len()).into_iter().enumerate() {
                    assert_eq!(v.is_nan(), i / format.elements == 1, "{dtype} with {bad}: element {i} is {v}");
                }
            }
        }
    }
}

#[test]
fn blocks_are_copied_from_anywhere_to_anywhere() {
    for dtype in DType::QUANTIZED {
        let format = format(dtype);
        let from = format.pack(&noise(12 * format.elements, 1));
        let to = format.pack(&noise(11 * format.elements, 2));
        for (start, first, blocks) in [(0, 0, 11), (1, 0, 3), (0, 1, 4), (3, 5, 1), (2, 4, 2), (1, 3, 8)] {
            let at = |slot, block: usize| operand(slot, dtype, &[blocks * format.elements], block * format.elements);
            let kernel = Kernel::BlockCopy(BlockCopyKernel { dtype, blocks });
            let step = step(kernel, vec![at(0, start)], vec![at(1, first)], &[]);
            let buffers = [(Source::Slot(0), from.clone()), (Source::Slot(1), to.clone())];
            let mut want = to.clone();
            for block in 0..blocks {
                let quants = format.quants(&from, start + block).to_vec();
                format.put(&mut want, first + block, format.scale(&from, start + block), &quants);
            }
            for caps in variants(&step) {
                let got = &run_step_with(&step, &buffers, &[], &caps).0[1].1;
                assert_eq!(*got, want, "{blocks} blocks of {dtype} from {start} to {first}");
            }
        }
    }
}

#[test]
fn gathers_dequantise_rows() {
    for dtype in DType::QUANTIZED {
        let format = format(dtype);
        let (rows, inner) = (7, format.elements);
        let data = format.pack(&noise((rows + 1) * inner, 4));
        let indices = [6i32, 0, -1, 3];
        let kernel =
            GatherKernel { class: Class::Float, outer: 1, n: rows, inner, indices: indices.len(), first: 0, rows };
        let inputs = vec![operand(0, dtype, &[rows, inner], inner), operand(1, DType::I32, &[4], 0)];
        let step = step(Kernel::Gather(kernel), inputs, vec![operand(2, DType::F32, &[4, inner], 0)], &[]);
        let index = indices.iter().map(|&i| i as u32).collect();
        let buffers =
            [(Source::Slot(0), data.clone()), (Source::Slot(1), index), (Source::Slot(2), vec![0; 4 * inner])];
        let all = widened(format, &data, (rows + 1) * inner);
        let want: Vec<f32> = [6, 0, 6, 3].iter().flat_map(|r| all[(r + 1) * inner..(r + 2) * inner].to_vec()).collect();
        for caps in variants(&step) {
            let got = floats(&run_step_with(&step, &buffers, &[], &caps).0[2].1);
            assert_eq!(got, want, "{dtype}");
        }
    }
}

/// Runs a product with every variant of the device. `values` are the weights as numbers, starting at element `offset`.
fn check_product([m, n, k]: [usize; 3], weight: DType, offset: usize, buffer: &[u32], values: &[f32]) {
    let x = noise(m * k + 2, 6);
    let kernel = Kernel::QuantMatMul(QuantMatMulKernel { weight, m, n, k });
    let inputs = vec![operand(0, DType::F32, &[m, k], 2), operand(1, weight, &[n, k], offset)];
    let step = step(kernel, inputs, vec![operand(2, DType::F32, &[m, n], 3)], &[]);
    let mut want = vec![f32::MAX; m * n + 4];
    let buffers = [(Source::Slot(0), words(&x)), (Source::Slot(1), buffer.to_vec()), (Source::Slot(2), words(&want))];
    for (at, out) in want[3..3 + m * n].iter_mut().enumerate() {
        let (i, j) = (at / n, at % n);
        let pairs = x[2 + i * k..2 + (i + 1) * k].iter().zip(&values[j * k..(j + 1) * k]);
        *out = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() as f32;
    }
    let largest = values.iter().fold(0f32, |most, v| most.max(v.abs()));
    for caps in variants(&step) {
        let got = floats(&run_step_with(&step, &buffers, &[], &caps).0[2].1);
        assert_close(&got, &want, 1e-4 * largest.max(1.0), &format!("{weight} {m}×{n}×{k} with {caps:?}"));
    }
}

#[test]
fn products_match_widened_weights_at_awkward_sizes() {
    for dtype in DType::QUANTIZED {
        let format = format(dtype);
        for (m, n, blocks) in
            [(1, 1, 1), (1, 65, 3), (2, 3, 2), (3, 63, 5), (4, 9, 4), (8, 65, 3), (12, 40, 1), (33, 70, 2)]
        {
            let k = blocks * format.elements;
            // One extra row in front, so that the weights may begin inside a group.
            let buffer = format.pack(&noise((n + 1) * k, 7));
            let values = widened(format, &buffer, (n + 1) * k);
            check_product([m, n, k], dtype, k, &buffer, &values[k..]);
        }
    }
}

#[test]
fn products_and_copies_take_the_blocks_of_files() {
    for kind in GgufType::ALL {
        let dtype = DType::Gguf(kind);
        let format = format(dtype);
        for (m, n, blocks) in [(1, 65, 3), (3, 9, 1), (4, 5, 2), (9, 66, 1), (33, 17, 3)] {
            let k = blocks * format.elements;
            let bytes: Vec<u8> = (0..(n + 1) * blocks * format.gguf_bytes()).map(|i| (i * 37 % 61) as u8).collect();
            // One extra row in front, so that the weights may begin inside a group.
            let buffer = format.words_of_gguf(&bytes);
            let values = widened(format, &buffer, (n + 1) * k);
            check_product([m, n, k], dtype, k, &buffer, &values[k..]);
        }
        let bytes: Vec<u8> = (0..8 * format.gguf_bytes()).map(|i| (i * 29 % 251) as u8).collect();
        let (from, to) = (format.words_of_gguf(&bytes), vec![0x0101_0101; format.words_of(8)]);
        for (start, first, blocks) in [(0, 0, 8), (1, 0, 3), (0, 1, 4), (3, 5, 1)] {
            let at = |slot, block: usize| operand(slot, dtype, &[blocks * format.elements], block * format.elements);
            let kernel = Kernel::BlockCopy(BlockCopyKernel { dtype, blocks });
            let step = step(kernel, vec![at(0, start)], vec![at(1, first)], &[]);
            let buffers = [(Source::Slot(0), from.clone()), (Source::Slot(1), to.clone())];
            let mut want = to.clone();
            for block in 0..blocks {
                let quants = format.quants(&from, start + block).to_vec();
                format.put(&mut want, first + block, format.scale(&from, start + block), &quants);
            }
            for caps in variants(&step) {
                let got = &run_step_with(&step, &buffers, &[], &caps).0[1].1;
                assert_eq!(*got, want, "{blocks} blocks of {dtype} from {start} to {first}");
            }
        }
    }
}

#[test]
fn products_take_bytes_as_they_are() {
    for (m, n, k) in [(1, 9, 4), (3, 5, 100), (6, 33, 36), (20, 65, 12)] {
        let bytes: Vec<i8> = (0..n * k + 4).map(|i| (i * 37 % 251) as u8 as i8).collect();
        let buffer: Vec<u32> = bytemuck::cast_slice::<i8, u8>(&bytes)
            .chunks(4)
            .map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
            .collect();
        let values: Vec<f32> = bytes[4..].iter().map(|&v| f32::from(v)).collect();
        check_product([m, n, k], DType::I8, 4, &buffer, &values);
    }
}
