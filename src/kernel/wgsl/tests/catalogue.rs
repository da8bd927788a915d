//! Lists every WGSL text that some class of adapters may run: all built-in kernels, in all variants, for all element
//! types.
//!
//! The texts are what the planner makes of recorded ops. The ops come from the list that the tests of errors use, with
//! more sizes, because sizes decide between variants. The test fails if no text comes from some kernel, variant or file
//! of `assets/kernels`. In that case, add a line to [`SIZES`] or [`MORE`].
//!
//! `KERNEL_TEXTS=FILE cargo test --lib catalogue` writes the list to a file, which `benches/lab` reads.

use std::collections::{BTreeSet, HashMap};

use bevy::ecs::system::SystemState;
use bevy::prelude::*;

use self::every_op::{OPS, Row, Takes};
use crate::ir::{Backend, DType, GgufType, Layout, NodeId, Op};
use crate::kernel::variants::ALL;
use crate::kernel::wgsl::scalar::{MODULES, module_text};
use crate::kernel::wgsl::{lower, non_finite};
use crate::kernel::{Caps, Kernel, Launch, variants};
use crate::pipelines::TensorPipelines;
use crate::plan::{PlanCache, PlanLimits};
use crate::readback::NotificationChannel;
use crate::record::{
    AttentionSettings, ConvSettings, FrameRecordings, Part, PoolSettings, ScatterMode, TensorCommands, generate,
};
use crate::support::TensorSupport;
use crate::tensor::{Generator, Initial, Storage, Tensor, TensorNames};

#[expect(dead_code, reason = "the tests of errors use the rest")]
#[path = "../../../../tests/op_errors/every_op.rs"]
mod every_op;

/// Classes of adapters that run different texts.
pub(super) fn adapters() -> Vec<(&'static str, Caps)> {
    let gpu = Caps {
        subgroup: None,
        software: false,
        wide: true,
        halves: true,
        invocations: 1024,
        workgroup_memory: 32768,
        workgroups: 65535,
        variant: None,
    };
    let software = Caps { software: true, ..gpu };
    vec![
        // Without a fixed subgroup size: RDNA, Intel.
        ("gpu", gpu),
        ("gpu, subgroups of 32", Caps { subgroup: Some(32), ..gpu }),
        ("gpu, subgroups of 64", Caps { subgroup: Some(64), ..gpu }),
        ("browser", Caps { wide: false, halves: false, invocations: 256, workgroup_memory: 16384, ..gpu }),
        // Below WebGPU's default limits.
        ("small", Caps { wide: false, halves: false, invocations: 64, workgroup_memory: 1024, ..gpu }),
        // SwiftShader.
        ("software, subgroups of 4", Caps { subgroup: Some(4), halves: false, ..software }),
        // lavapipe: the size follows the vectors of the CPU.
        ("software, subgroups of 8", Caps { subgroup: Some(8), ..software }),
        ("software, subgroups of 16", Caps { subgroup: Some(16), ..software }),
        ("software", Caps { wide: false, halves: false, ..software }),
    ]
}

/// WebGPU's default limits.
const LIMITS: PlanLimits =
    PlanLimits { buffers: 8, alignment: 64, binding: 1 << 25, passes: true, fuse: true, chain: 4096 };

/// More sizes for ops of the list, which lead to other variants.
const SIZES: &[(&str, &[&[usize]])] = &[
    ("matmul", &[&[512, 512], &[512, 512]]),
    ("matmul", &[&[64, 64], &[64, 2048]]),
    ("matmul", &[&[5, 3, 33, 65], &[3, 65, 31]]),
    ("matmul", &[&[300, 40], &[40, 8]]),
    ("matmul", &[&[1, 512], &[512, 512]]),
    ("matmul", &[&[512, 512], &[512, 3]]),
    ("matmul_nt", &[&[512, 512], &[512, 512]]),
    ("matmul_nt", &[&[1, 512], &[512, 512]]),
    ("matmul_tn", &[&[512, 512], &[512, 512]]),
    ("pairwise_l2", &[&[64, 64], &[128, 64]]),
    ("linear", &[&[64, 384], &[1536, 384], &[1536]]),
    ("linear", &[&[12, 384], &[1536, 384], &[1536]]),
    ("linear", &[&[1, 384], &[1536, 384], &[1536]]),
    ("linear_i8", &[&[64, 384], &[1536, 384], &[1536, 1], &[1536]]),
    ("linear_i8", &[&[1, 384], &[1536, 384], &[1536, 1], &[1536]]),
    ("sum", &[&[8, 1024]]),
    ("sum", &[&[2000, 100]]),
    ("sum", &[&[8, 512, 64]]),
    ("sum", &[&[1, 64, 4096]]),
    ("sum", &[&[1, 1048576]]),
    ("argmax", &[&[8, 1024]]),
    ("argmax", &[&[8, 512, 64]]),
    ("argmax", &[&[1, 64, 4096]]),
    ("argmax", &[&[1, 1048576]]),
    ("max_of", &[&[8, 1024]]),
    ("max_of", &[&[8, 512, 64]]),
    ("softmax", &[&[8, 1024]]),
    ("softmax", &[&[8, 512, 3]]),
    ("log_softmax", &[&[8, 1024]]),
    ("layer_norm", &[&[8, 1024], &[1024], &[1024]]),
    ("layer_norm", &[&[2000, 64], &[64], &[64]]),
    ("rms_norm", &[&[8, 1024], &[1024]]),
    ("l2_normalize", &[&[8, 1024]]),
    ("cumsum", &[&[3, 3000]]),
    ("cumsum", &[&[3, 5000]]),
    ("cumsum", &[&[3, 70000]]),
    ("top_k", &[&[3, 100]]),
    ("top_k", &[&[3, 5000]]),
    ("top_k", &[&[100, 5000]]),
    ("conv2d", &[&[1, 64, 56, 56], &[64, 64, 3, 3], &[64]]),
    ("conv2d", &[&[8, 64, 56, 56], &[64, 64, 1, 1], &[64]]),
    ("conv2d", &[&[1, 3, 64, 64], &[24, 3, 3, 3], &[24]]),
    ("conv1d", &[&[1, 64, 500], &[64, 64, 3], &[64]]),
    ("conv3d", &[&[1, 16, 9, 9, 9], &[32, 16, 3, 3, 3], &[32]]),
    ("attention", &[&[1, 8, 128, 64], &[1, 8, 128, 64], &[1, 8, 128, 64], &[128, 128]]),
    ("attention", &[&[1, 8, 1, 64], &[1, 2, 257, 64], &[1, 2, 257, 64], &[1, 257]]),
    ("attention", &[&[1, 2, 40, 64], &[1, 2, 50, 64], &[1, 2, 50, 200], &[40, 50]]),
    ("concat", &[&[2, 256], &[1, 256]]),
    ("value", &[&[4, 256]]),
    ("copy", &[&[4, 256]]),
    ("permute", &[&[256, 256]]),
    ("gather", &[&[4, 256], &[5]]),
    ("embedding", &[&[100, 256], &[2, 2]]),
    ("dequantize", &[&[4, 256]]),
    ("add", &[&[64, 256], &[256]]),
    ("gelu", &[&[64, 256]]),
    ("rfft", &[&[3, 400]]),
    ("rfft", &[&[3, 2500]]),
    ("rfft", &[&[3, 1009]]),
    ("rfft", &[&[3, 263]]),
    ("rfft", &[&[3, 27]]),
    ("irfft", &[&[3, 201, 2]]),
    ("irfft", &[&[3, 1251, 2]]),
    ("irfft", &[&[3, 509, 2]]),
    ("irfft", &[&[3, 264, 2]]),
    ("fft", &[&[3, 400, 2]]),
    ("fft", &[&[3, 2500, 2]]),
    ("fft", &[&[3, 1009, 2]]),
    ("fft", &[&[3, 263, 2]]),
    ("dct", &[&[3, 600]]),
    ("lstm", &[&[16, 2, 64], &[512, 64], &[512, 128], &[512], &[2, 128], &[2, 128]]),
];

/// Ops with other settings, and ops that share a launch.
const MORE: &[Row] = &[
    Row {
        name: "conv2d, depthwise",
        operands: &[(Takes::Float, &[1, 32, 28, 28]), (Takes::Float, &[32, 1, 3, 3]), (Takes::Float, &[32])],
        run: |o, x| {
            let settings = ConvSettings { groups: 32, ..Default::default() };
            o.conv2d(&x[0], &x[1], &x[2], settings).map(drop)
        },
    },
    Row {
        name: "conv2d, grouped",
        operands: &[(Takes::Float, &[1, 32, 28, 28]), (Takes::Float, &[64, 8, 3, 3])],
        run: |o, x| {
            o.conv2d(&x[0], &x[1], None, ConvSettings { groups: 4, stride: [2, 2], ..Default::default() }).map(drop)
        },
    },
    Row {
        name: "conv2d, then silu",
        operands: &[(Takes::Float, &[1, 64, 28, 28]), (Takes::Float, &[64, 64, 3, 3])],
        run: |o, x| o.silu(o.conv2d(&x[0], &x[1], None, ConvSettings::default())?).map(drop),
    },
    Row {
        name: "attention, causal",
        operands: &[(Takes::Float, &[1, 8, 64, 64]), (Takes::Float, &[1, 8, 64, 64]), (Takes::Float, &[1, 8, 64, 64])],
        run: |o, x| {
            let settings = AttentionSettings { causal: true, ..Default::default() };
            o.attention(&x[0], &x[1], &x[2], settings).map(drop)
        },
    },
    Row {
        name: "linear, gelu, residual",
        operands: &[
            (Takes::Float, &[128, 384]),
            (Takes::Float, &[384, 384]),
            (Takes::Float, &[384]),
            (Takes::Float, &[128, 384]),
        ],
        run: |o, x| {
            let y = o.gelu(o.linear(&x[0], &x[1], &x[2])?)?;
            o.add(y, &x[3]).map(drop)
        },
    },
    Row {
        name: "policy network",
        operands: &[
            (Takes::Float, &[100, 64]),
            (Takes::Float, &[128, 64]),
            (Takes::Float, &[128]),
            (Takes::Float, &[8, 128]),
            (Takes::Float, &[8]),
        ],
        run: |o, x| {
            let y = o.relu(o.linear(&x[0], &x[1], &x[2])?)?;
            o.softmax(o.linear(y, &x[3], &x[4])?, 1).map(drop)
        },
    },
    Row {
        name: "normalised features",
        operands: &[
            (Takes::Float, &[50, 30]),
            (Takes::Float, &[30, 50]),
            (Takes::Float, &[50]),
            (Takes::Float, &[50]),
            (Takes::Float, &[50, 7]),
        ],
        run: |o, x| {
            let y = o.matmul(o.mul(&x[0], 0.5)?, &x[1])?;
            o.matmul(o.gelu(o.layer_norm(y, &x[2], &x[3], 1, 1e-5)?)?, &x[4]).map(drop)
        },
    },
    Row {
        name: "softmax of scores",
        operands: &[(Takes::Float, &[64, 256]), (Takes::Float, &[256])],
        run: |o, x| o.softmax(o.add(&x[0], &x[1])? * 0.125, 1).map(drop),
    },
    Row {
        name: "sum of squares of differences",
        operands: &[(Takes::Float, &[64, 256]), (Takes::Float, &[64, 256])],
        run: |o, x| o.sum_squares(o.sub(&x[0], &x[1])?, 1).map(drop),
    },
    Row {
        name: "scatter_elements, add",
        operands: &[(Takes::Number, &[2, 3]), (Takes::Index, &[2, 2]), (Takes::Number, &[2, 2])],
        run: |o, x| o.scatter_elements(&x[0], &x[1], &x[2], 1, ScatterMode::Add).map(drop),
    },
    Row {
        name: "scatter_nd, max",
        operands: &[(Takes::Number, &[2, 3]), (Takes::Index, &[4, 1]), (Takes::Number, &[4, 3])],
        run: |o, x| o.scatter_nd(&x[0], &x[1], &x[2], ScatterMode::Max).map(drop),
    },
    // Large enough for several launches.
    Row {
        name: "scatter_elements, many updates",
        operands: &[(Takes::Number, &[70000]), (Takes::Index, &[70000]), (Takes::Number, &[70000])],
        run: |o, x| o.scatter_elements(&x[0], &x[1], &x[2], 0, ScatterMode::Add).map(drop),
    },
    Row {
        name: "scatter_nd, many updates",
        operands: &[(Takes::Number, &[7000, 3]), (Takes::Index, &[7000, 1]), (Takes::Number, &[7000, 3])],
        run: |o, x| o.scatter_nd(&x[0], &x[1], &x[2], ScatterMode::Min).map(drop),
    },
    Row { name: "top_k, many", operands: &[(Takes::Number, &[3, 5000])], run: |o, x| o.top_k(&x[0], 100, 1).map(drop) },
    Row {
        name: "max_pool1d, large window",
        operands: &[(Takes::Number, &[1, 1, 50000])],
        run: |o, x| {
            let settings = PoolSettings { size: [40000], stride: Some([1]), ..Default::default() };
            o.max_pool1d_indices(&x[0], settings)?;
            o.max_pool1d(&x[0], settings).map(drop)
        },
    },
    Row {
        name: "avg_pool1d, large window",
        operands: &[(Takes::Float, &[1, 1, 50000])],
        run: |o, x| {
            let settings = PoolSettings { size: [40000], stride: Some([1]), ..Default::default() };
            o.avg_pool1d(&x[0], settings).map(drop)
        },
    },
];

/// One text.
struct Entry {
    kernel: &'static str,
    /// Empty if the kernel has only one.
    variant: String,
    /// The first recording that needs it.
    case: String,
    /// The adapters that may run it.
    adapters: Vec<&'static str>,
    /// Whether wgpu adds its runtime checks.
    checked: bool,
    wgsl: String,
}

/// The texts, without duplicates.
#[derive(Default)]
struct Catalogue {
    entries: Vec<Entry>,
    places: HashMap<String, usize>,
    kernels: BTreeSet<&'static str>,
}

impl Catalogue {
    /// Adds all texts of a recording.
    fn add(&mut self, case: &str, part: Part) {
        let plan = PlanCache::new(LIMITS).plan_part(part);
        for step in &plan.steps {
            self.kernels.insert(step.kernel.listed_as());
            for (adapter, caps) in adapters() {
                let forms = variants(step, &caps);
                let forced = forms.iter().copied().map(Some).chain(forms.is_empty().then_some(None));
                for launch in forced.filter_map(|variant| lower(step, &Caps { variant, ..caps })) {
                    self.push(case, adapter, launch);
                }
                for launch in step.reads().filter_map(|operand| non_finite(operand, false, &caps)) {
                    self.push(case, adapter, launch);
                }
            }
        }
    }

    fn push(&mut self, case: &str, adapter: &'static str, launch: Launch) {
        let entries = &mut self.entries;
        let place = *self.places.entry(launch.wgsl).or_insert_with_key(|wgsl| {
            entries.push(Entry {
                kernel: launch.name,
                variant: launch.variant.map_or_else(String::new, |variant| variant.to_string()),
                case: case.to_owned(),
                adapters: Vec::new(),
                checked: launch.checked,
                wgsl: wgsl.clone(),
            });
            entries.len() - 1
        });
        let adapters = &mut self.entries[place].adapters;
        if !adapters.contains(&adapter) {
            adapters.push(adapter);
        }
    }
}

/// A world in which ops are recorded for the GPU, without a device.
struct Bench {
    world: World,
    state: SystemState<TensorCommands<'static, 'static>>,
}

impl Bench {
    fn new() -> Self {
        let mut world = World::new();
        world.init_resource::<TensorNames>();
        world.init_resource::<NotificationChannel>();
        world.init_resource::<TensorPipelines>();
        world.init_resource::<FrameRecordings>();
        world.init_resource::<crate::schedule::TensorBacklogs>();
        world.insert_resource(TensorSupport { backend: Backend::Gpu, reason: String::new(), adapter: None });
        let state = SystemState::new(&mut world);
        Self { world, state }
    }

    /// Records `row` and stores all its results. An error if the op does not accept the operands.
    fn record(&mut self, row: &Row, shapes: &[&[usize]], dtypes: &[DType]) -> Result<Part, String> {
        let mut operands = Vec::new();
        for (&shape, &dtype) in shapes.iter().zip(dtypes) {
            let tensor = Tensor::zeros(shape, dtype).map_err(|error| error.to_string())?;
            operands.push(self.world.spawn((Name::new("x"), tensor)).id());
        }
        let ops = self.state.get_mut(&mut self.world).expect("the resources are there");
        let mut part = ops
            .aside(|ops| (row.run)(ops, &operands.iter().map(|&x| x.into()).collect::<Vec<_>>()))
            .map_err(|error| error.to_string())?;
        let used: BTreeSet<u32> =
            part.graph.nodes.iter().flat_map(|node| node.inputs.iter().map(|input| input.0)).collect();
        for end in (0..part.graph.nodes.len() as u32).filter(|id| !used.contains(id)).map(NodeId) {
            let node = part.graph.node(end);
            if matches!(node.op, Op::Store { .. } | Op::Read { .. }) {
                continue;
            }
            let storage = Storage::new(node.dtype, node.shape.elements(), Initial::Zeros);
            let layout = Layout::contiguous(node.shape.clone());
            let slot = part.slot(&storage);
            part.store(end, slot, layout);
        }
        Ok(part)
    }
}

/// Element types of the operands to try: each type for all operands that may have it, and for all but the first one,
/// because weights have types of their own. The first set is always accepted.
fn dtype_sets(row: &Row) -> Vec<Vec<DType>> {
    let takes = |takes: Takes, dtype: DType| match takes {
        Takes::Float | Takes::Number | Takes::Any => true,
        Takes::Truth => dtype == DType::Bool,
        Takes::Index => matches!(dtype, DType::I32 | DType::U32),
        Takes::Byte => dtype == DType::I8,
        Takes::Quantized => dtype.is_quantized(),
    };
    let mut sets: Vec<Vec<DType>> = vec![row.operands.iter().map(|operand| operand.0.good()).collect()];
    let of_files = GgufType::ALL.into_iter().map(DType::Gguf);
    for dtype in DType::ALL.into_iter().chain(DType::QUANTIZED).chain(of_files) {
        for first in [0, 1] {
            let of = |(i, operand): (usize, &(Takes, &[usize]))| {
                if i >= first && takes(operand.0, dtype) { dtype } else { operand.0.good() }
            };
            let set = row.operands.iter().enumerate().map(of).collect();
            if !sets.contains(&set) {
                sets.push(set);
            }
        }
    }
    sets
}

fn catalogue() -> Catalogue {
    let (mut bench, mut catalogue) = (Bench::new(), Catalogue::default());
    let listed = OPS.iter().chain(MORE).map(|row| (row, row.operands.iter().map(|operand| operand.1).collect()));
    let sized = SIZES.iter().map(|(name, shapes)| {
        let row = OPS.iter().find(|row| row.name == *name).unwrap_or_else(|| panic!("no op is called {name}"));
        (row, shapes.to_vec())
    });
    for dtype in DType::ALL {
        let generators = [
            Generator::Full(1),
            Generator::Arange { start: 0, step: 1 },
            Generator::Eye { columns: 10 },
            Generator::Uniform { seed: 1, low: 0.0, high: 1.0 },
            Generator::Normal { seed: 1, mean: 0.0, deviation: 1.0 },
        ];
        for generator in generators {
            // Random numbers are floats.
            let random = matches!(generator, Generator::Uniform { .. } | Generator::Normal { .. });
            if dtype.is_float() || !random {
                let storage = Storage::new(dtype, 100, Initial::Zeros);
                catalogue.add(&format!("{generator:?} of {dtype} [100]"), generate(generator, &storage));
            }
        }
    }
    for (row, shapes) in sized.chain(listed) {
        for (turn, dtypes) in dtype_sets(row).iter().enumerate() {
            match bench.record(row, &shapes, dtypes) {
                Ok(part) => {
                    let operand = |(shape, dtype): (&&[usize], &DType)| format!("{dtype} {shape:?}");
                    let operands: Vec<String> = shapes.iter().zip(dtypes).map(operand).collect();
                    catalogue.add(&format!("{} of {}", row.name, operands.join(", ")), part);
                }
                // Without a device there is no other backend.
                Err(error) => assert!(turn > 0 || row.name == "to_backend", "{shapes:?}: {error}"),
            }
        }
    }
    catalogue
}

/// The texts of `assets/kernels`, by file name.
fn files() -> Vec<(String, String)> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/assets/kernels");
    let folders = [root.to_owned(), format!("{root}/lib")];
    let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("a folder of the crate"));
    entries
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "wgsl"))
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).expect("text"))
        })
        .collect()
}

/// Kernels of the table, variants and files that no text comes from.
fn missing(catalogue: &Catalogue) -> Vec<String> {
    let kernels = Kernel::LIST.iter().filter(|name| **name != "Custom" && !catalogue.kernels.contains(*name));
    let mut missing: Vec<String> = kernels.map(|name| format!("the kernel {name}")).collect();

    let found: BTreeSet<&str> = catalogue.entries.iter().map(|entry| entry.variant.as_str()).collect();
    let tiles = found.iter().find(|name| name.starts_with("registers ")).map_or("registers RxQ", |name| name);
    let names = ALL.iter().map(ToString::to_string).chain([tiles.to_owned()]);
    missing.extend(names.filter(|name| !found.contains(name.as_str())).map(|name| format!("the variant \"{name}\"")));

    for (name, text) in files() {
        let first = text.lines().next().expect("a comment").replace("SIDE", "left");
        if !catalogue.entries.iter().any(|entry| entry.wgsl.contains(&first)) {
            missing.push(format!("{name}.wgsl"));
        }
    }
    missing
}

#[test]
fn every_kernel_variant_and_file_is_listed_and_every_text_is_valid() {
    let mut catalogue = catalogue();
    // Texts that are not in the table: copies between textures and tensors, and the imports of custom kernels.
    let imports = module_text(&MODULES) + "\n@compute @workgroup_size(64) fn main() {}\n";
    let read = include_str!("../../../../assets/kernels/read_image.wgsl").to_owned();
    let write = include_str!("../../../../assets/kernels/write_image.wgsl").to_owned();
    for (kernel, wgsl) in [("read_image", read), ("write_image", write), ("custom", imports)] {
        let (variant, case) = (String::new(), "fixed".to_owned());
        let adapters = adapters().into_iter().map(|adapter| adapter.0).collect();
        catalogue.entries.push(Entry { kernel, variant, case, adapters, checked: true, wgsl });
    }
    if let Ok(path) = std::env::var("KERNEL_TEXTS") {
        let entry = |entry: &Entry| {
            let Entry { kernel, variant, case, adapters, checked, wgsl } = entry;
            serde_json::json!({
                "kernel": kernel, "variant": variant, "case": case, "adapters": adapters, "checked": checked,
                "wgsl": wgsl,
            })
        };
        let entries: Vec<_> = catalogue.entries.iter().map(entry).collect();
        std::fs::write(&path, serde_json::Value::from(entries).to_string()).expect("the file can be written");
    }
    let missing = missing(&catalogue);
    assert!(missing.is_empty(), "no text comes from {}; add a line to SIZES or MORE", missing.join(", "));
    for entry in &catalogue.entries {
        super::texts::check_text(&format!("{} {} ({})", entry.kernel, entry.variant, entry.case), &entry.wgsl);
    }
}
