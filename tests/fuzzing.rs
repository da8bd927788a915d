//! Replays the corpora of the fuzzer. `scripts/fuzz` looks for new inputs.

use std::fs;
use std::path::Path;

use crate::fuzz_targets::TARGETS;

#[test]
fn the_corpora_of_the_fuzzer_do_no_harm() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for target in TARGETS {
        let mut files: Vec<_> = fs::read_dir(corpora.join(target.corpus))
            .unwrap_or_else(|error| panic!("the corpus of {}: {error}", target.name))
            .map(|entry| entry.expect("a file").path())
            .collect();
        files.sort();
        let mut run = (target.make)();
        let accepted = files.iter().filter(|path| run(&fs::read(path).expect("a file")).accepted).count();
        assert!(accepted >= 2, "{}: only {accepted} of {} inputs are valid", target.name, files.len());
    }
}

/// Every op that can be recorded is among those that the fuzzer records.
#[test]
fn the_fuzzer_knows_every_op() {
    let page = include_str!("../docs/ops.md");
    let table = include_str!("../fuzz/targets/table.rs");
    // They make nothing that could be compared, or run in another way.
    let others = ["value", "shape", "dtype", "dequantize", "cumsum", "to_backend", "custom", "custom_outputs"];
    // Not among them yet: vectors of ONNX and references of other libraries judge these.
    let vectors = [
        "lstm_with",
        "gru",
        "rnn",
        "grid_sample",
        "affine_grid",
        "roi_align",
        "max_roi_pool",
        "deform_conv2d",
        "matmul_integer",
        "conv_integer1d",
        "conv_integer2d",
        "conv_integer3d",
        "rfft",
        "irfft",
        "fft",
        "ifft",
        "window",
        "stft",
        "spectrogram",
        "istft",
        "mel_filterbank",
        "power_to_db",
        "log_mel",
        "mfcc",
        "dct",
        "resample",
    ];
    let effects = page.find("## Effects").expect("the page ends with effects");
    for row in page[..effects].lines().filter_map(|line| line.strip_prefix("| `")) {
        let name = row.split('`').next().unwrap_or_default();
        let called = table.contains(&format!("o.{name}("));
        assert!(called || others.contains(&name) || vectors.contains(&name), "{name} is not in fuzz/targets/table.rs");
    }
}
