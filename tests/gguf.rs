//! GGUF files: every block type has the numbers of PyPI's `gguf` on the host and on both backends, and files that are
//! truncated or hostile are typed errors.

use std::path::{Path, PathBuf};

use bevy::prelude::*;
use bevy_tensor_compute::formats::gguf::{GgufArray, GgufFile, GgufHeader, GgufModel, GgufValue};
use bevy_tensor_compute::formats::{FormatError, TensorWeights};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::GgufType;
use safetensors::SafeTensors;

use crate::common::{BACKENDS, Faults, Rig, assert_close};

/// Writes GGUF files.
pub struct Writer {
    pub version: u32,
    keys: Vec<u8>,
    count: u64,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

impl Writer {
    pub fn new() -> Self {
        Self { version: 3, keys: Vec::new(), count: 0, tensors: Vec::new() }
    }

    /// Adds a value of type `kind` whose bytes are `value`.
    pub fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.keys.extend((key.len() as u64).to_le_bytes());
        self.keys.extend(key.as_bytes());
        self.keys.extend(kind.to_le_bytes());
        self.keys.extend(value);
        self.count += 1;
        self
    }

    pub fn text(self, key: &str, value: &str) -> Self {
        let bytes = [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat();
        self.raw(key, 8, &bytes)
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub fn texts(self, key: &str, values: &[&str]) -> Self {
        let mut bytes = [&8u32.to_le_bytes()[..], &(values.len() as u64).to_le_bytes()].concat();
        for value in values {
            bytes.extend((value.len() as u64).to_le_bytes());
            bytes.extend(value.as_bytes());
        }
        self.raw(key, 9, &bytes)
    }

    /// Adds a tensor. `shape` is in the order of rows last.
    pub fn tensor(mut self, name: &str, shape: &[u64], kind: u32, bytes: Vec<u8>) -> Self {
        self.tensors.push((name.to_owned(), shape.iter().rev().copied().collect(), kind, bytes));
        self
    }

    pub fn bytes(self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend(self.count.to_le_bytes());
        file.extend(self.keys);
        let mut offset = 0u64;
        for (name, dims, kind, bytes) in &self.tensors {
            file.extend((name.len() as u64).to_le_bytes());
            file.extend(name.as_bytes());
            file.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|dim| file.extend(dim.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend(offset.to_le_bytes());
            offset = (offset + bytes.len() as u64).next_multiple_of(32);
        }
        for (_, _, _, bytes) in &self.tensors {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend(bytes);
        }
        file
    }
}

/// Number of a type in files.
fn number(kind: GgufType) -> u32 {
    match kind {
        GgufType::Q4_1 => 3,
        GgufType::Q5_0 => 6,
        GgufType::Q5_1 => 7,
        GgufType::Q2K => 10,
        GgufType::Q3K => 11,
        GgufType::Q4K => 12,
        GgufType::Q5K => 13,
        GgufType::Q6K => 14,
        GgufType::Iq4Nl => 20,
        GgufType::Iq4Xs => 23,
    }
}

/// Random blocks and their numbers, made by `tools/gguf_blocks.py`: two rows.
fn vectors(kind: GgufType) -> (Vec<u8>, [usize; 2], Vec<f32>) {
    let file = SafeTensors::deserialize(include_bytes!("vectors/gguf/types.safetensors")).expect("a file of tensors");
    let blocks = file.tensor(kind.name()).expect("blocks").data().to_vec();
    let numbers = file.tensor(&format!("{} numbers", kind.name())).expect("numbers");
    let shape = numbers.shape().try_into().expect("two axes");
    (blocks, shape, bytemuck::pod_collect_to_vec(numbers.data()))
}

fn parse(bytes: &[u8]) -> Result<GgufHeader, FormatError> {
    GgufHeader::from_bytes(Path::new("test.gguf"), bytes)
}

/// A small file with every kind of metadata and one tensor of each type.
fn sample() -> Vec<u8> {
    let mut writer = Writer::new()
        .text("general.architecture", "llama")
        .u32("llama.block_count", 7)
        .raw("a.bool", 7, &[1])
        .raw("a.float", 6, &1.5f32.to_le_bytes())
        .texts("a.list", &["x", "žluťoučký", ""])
        .tensor("plain", &[2, 3], 0, vec![1; 24])
        .tensor("half", &[3], 1, vec![1; 6]);
    for kind in GgufType::ALL {
        let (blocks, shape, _) = vectors(kind);
        writer = writer.tensor(kind.name(), &shape.map(|size| size as u64), number(kind), blocks);
    }
    writer.bytes()
}

/// Writes a file below the folder that the rigs load assets from.
fn asset(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("{}_{name}", std::process::id()));
    std::fs::write(&path, bytes).expect("the temporary folder is writable");
    path
}

#[test]
fn the_host_decodes_every_type_as_the_reference_does() {
    for kind in GgufType::ALL {
        let (blocks, shape, numbers) = vectors(kind);
        let data = TensorData::from_gguf_blocks(DType::Gguf(kind), shape, &blocks).expect("whole blocks");
        let wrong = data.to_f32().iter().zip(&numbers).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{}: the first wrong element", kind.name());
        assert_eq!(data.to_gguf_blocks().expect("quantised"), blocks, "{}", kind.name());
    }
}

#[test]
fn both_backends_decode_look_up_and_multiply_every_type() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        for kind in GgufType::ALL {
            let (blocks, [rows, width], numbers) = vectors(kind);
            let what = format!("{} on the {backend}", kind.name());
            let tensor = rig.spawn(Tensor::from_gguf_blocks(DType::Gguf(kind), [rows, width], &blocks).expect("whole"));
            let wide = rig.compute(move |ops| ops.dequantize(tensor)).expect("quantised").to_f32();
            // A GPU may contract a product and a sum.
            assert_close(&wide, &numbers, 1e-6, 1e-5, &what);
            let ids = rig.spawn(Tensor::from_slice(&[1i32, 0, -1], [3]).expect("fits"));
            let looked_up = rig.compute(move |ops| ops.embedding(tensor, ids)).expect("rows").to_f32();
            assert_close(&looked_up[..width], &wide[width..], 0.0, 0.0, &what);
            assert_close(&looked_up[width..2 * width], &wide[..width], 0.0, 0.0, &what);
            // The scale of the third block is very large. The last blocks are ordinary.
            let scaled: Vec<f32> = (0..9 * width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0).collect();
            for m in [1, 3, 5, 9] {
                let x = rig.spawn(Tensor::from_slice(&scaled[..m * width], [m, width]).expect("fits"));
                let product = rig.compute(move |ops| ops.matmul_nt(x, tensor)).expect("it fits").to_f32();
                for (at, got) in product.iter().enumerate() {
                    let (x, w) = (&scaled[at / rows * width..][..width], &numbers[at % rows * width..][..width]);
                    let (mut want, mut size) = (0.0, 0.0);
                    for (&x, &w) in x.iter().zip(w) {
                        want += f64::from(x) * f64::from(w);
                        size += (f64::from(x) * f64::from(w)).abs();
                    }
                    assert!((f64::from(*got) - want).abs() <= 1e-5 * size, "{what}, {m} rows: {got} is not {want}");
                }
            }
            let error = rig.compute(move |ops| ops.quantize(ops.dequantize(tensor)?, DType::Gguf(kind)));
            assert!(error.expect_err("cannot be made").to_string().contains("loaded from a file"));
        }
    }
}

#[test]
fn metadata_is_typed_and_tensors_are_listed() {
    let header = parse(&sample()).expect("a valid file");
    assert_eq!((header.version(), header.architecture()), (3, Some("llama")));
    assert_eq!(header.get("llama.block_count"), Some(&GgufValue::U32(7)));
    assert_eq!(header.get("a.bool").and_then(GgufValue::as_bool), Some(true));
    assert_eq!(header.get("a.float").and_then(GgufValue::as_f32), Some(1.5));
    let list = GgufArray::String(["x", "žluťoučký", ""].map(str::to_owned).to_vec());
    assert_eq!(header.get("a.list").and_then(GgufValue::as_array), Some(&list));
    assert_eq!(header.tensor("plain").expect("a tensor").shape()[..], [2, 3]);
    assert_eq!(header.tensors().len(), 2 + GgufType::ALL.len());
    let path = asset("read.gguf", &sample());
    let mut file = GgufFile::open(&path).expect("a valid file");
    for kind in GgufType::ALL {
        assert_eq!(file.read(kind.name()).expect("a tensor").to_f32(), vectors(kind).2, "{}", kind.name());
    }
    assert_eq!(file.read("half").expect("a tensor").dtype(), DType::F16);
    assert!(matches!(file.read("none"), Err(FormatError::NotFound { .. })));
    std::fs::remove_file(path).expect("it was written");
}

#[test]
fn a_file_that_ends_early_is_an_error_wherever_it_ends() {
    let file = sample();
    for end in (0..1200).chain((1200..file.len()).step_by(997)) {
        let error = parse(&file[..end]).expect_err("it is not whole");
        assert!(matches!(error, FormatError::Length { .. }), "{end} bytes: {error}");
    }
}

#[test]
fn hostile_counts_and_fields_are_errors() {
    let invalid = |bytes: &[u8], says: &str| {
        let error = parse(bytes).expect_err(says);
        assert!(matches!(error, FormatError::Header { .. }), "{error:?}");
        assert!(error.to_string().contains(says), "{error} should say {says}");
    };
    let huge = u64::MAX.to_le_bytes();
    for at in [8, 16, 24] {
        // The number of tensors, of metadata pairs, and the length of the first key.
        let mut file = sample();
        file[at..at + 8].copy_from_slice(&huge);
        invalid(&file, "more than");
    }
    let array = [&4u32.to_le_bytes()[..], &huge].concat();
    invalid(&Writer::new().raw("x", 9, &array).bytes(), "more than");
    let mut nested = Vec::new();
    (0..9).for_each(|_| nested.extend([&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat()));
    invalid(&Writer::new().raw("x", 9, &nested).bytes(), "nested");
    invalid(&Writer::new().raw("x", 99, &[0; 64]).bytes(), "metadata type");
    invalid(&Writer::new().raw("x", 8, &[2, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe]).bytes(), "UTF-8");
    invalid(&Writer::new().raw("x", 7, &[7]).bytes(), "truth value");
    invalid(&Writer::new().u32("x", 1).u32("x", 2).bytes(), "two values");
    invalid(&Writer::new().u32("general.alignment", 33).tensor("t", &[1], 0, vec![0; 4]).bytes(), "alignment");
    let two = Writer::new().tensor("t", &[1], 0, vec![0; 4]).tensor("t", &[1], 0, vec![0; 4]);
    invalid(&two.bytes(), "two tensors");
    invalid(&Writer::new().tensor("t", &[33], 2, vec![0; 36]).bytes(), "blocks of Q4_0");
    invalid(&Writer::new().tensor("t", &[1 << 40, 1 << 40], 0, vec![]).bytes(), "too large");
    invalid(&Writer::new().tensor("t", &[4], 77, vec![0; 16]).bytes(), "unknown type");
    invalid(b"GGML----------------------------", "not a GGUF");
    invalid(&Writer { version: 1, ..Writer::new() }.bytes(), "version 1");
    invalid(&Writer { version: 3u32.swap_bytes(), ..Writer::new() }.bytes(), "big-endian");
    let error = parse(&Writer::new().tensor("odd.one", &[256], 16, vec![0; 66]).bytes()).expect_err("unsupported");
    assert!(
        matches!(&error, FormatError::Types { types, .. } if types == &[("IQ2_XXS".to_owned(), vec!["odd.one".to_owned()])])
    );
    assert!(error.to_string().contains("IQ2_XXS") && error.to_string().contains("odd.one"));
}

#[test]
fn files_are_assets_and_their_tensors_arrive_quantised() {
    let path = asset("asset.gguf", &sample());
    let mut app = App::new();
    app.add_plugins((
        MinimalPlugins,
        AssetPlugin { file_path: std::env::temp_dir().display().to_string(), ..default() },
    ));
    app.add_plugins(TensorComputePlugin { backend: BackendChoice::Cpu, ..default() }).init_resource::<Faults>();
    app.finish();
    app.cleanup();
    let mut rig = Rig { app, backend: Backend::Cpu };
    let name = path.file_name().expect("a file").to_string_lossy().into_owned();
    let server = rig.app.world().resource::<AssetServer>().clone();
    let handle = server.load::<GgufModel>(name.clone());
    let id = handle.id();
    rig.step_until(|app| app.world().resource::<Assets<GgufModel>>().get(id).is_some());
    let model = rig.app.world().resource::<Assets<GgufModel>>().get(id).expect("loaded").clone();
    assert_eq!(model.header.architecture(), Some("llama"));
    let weights = rig.app.world().resource::<Assets<TensorWeights>>().get(&model.weights).expect("loaded").clone();
    for kind in GgufType::ALL {
        let data = weights.get(kind.name()).expect("a tensor");
        assert_eq!((data.dtype(), data.to_f32()), (DType::Gguf(kind), vectors(kind).2));
    }
    let entity = rig.app.world_mut().spawn(LoadWeights::new(model.weights.clone())).id();
    rig.step_until(|app| app.world().get::<LoadWeights>(entity).is_none());
    // A file that ends early fails as a whole.
    let short = asset("short.gguf", &sample()[..4000]);
    let name = short.file_name().expect("a file").to_string_lossy().into_owned();
    let handle = server.load::<GgufModel>(name);
    rig.step_until(|_| server.load_state(&handle).is_failed());
    std::fs::remove_file(path).expect("it was written");
    std::fs::remove_file(short).expect("it was written");
}
