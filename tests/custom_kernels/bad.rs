//! Every kind of invalid kernel gives a typed error with its position, or defined results. Other work in the same
//! frames is unaffected.

use bevy::log::LogPlugin;
use bevy::prelude::*;
use bevy::render::pipelined_rendering::PipelinedRenderingPlugin;
use bevy_tensor_compute::error::KernelError as E;
use bevy_tensor_compute::error::{KernelError, SourcePlace};
use bevy_tensor_compute::prelude::*;

use super::{double, numbers, register, values};
use crate::common::{Faults, Rig};

/// A kernel and the error it must cause. A `«` in the text marks the line of the error, and with `exact` also the
/// column.
struct Bad {
    what: &'static str,
    kernel: fn(String) -> CustomKernel,
    text: &'static str,
    is: fn(&KernelError) -> bool,
    exact: bool,
}

fn plain(text: String) -> CustomKernel {
    CustomKernel::wgsl("bad", text).inputs(["x"]).output("y", OutputShape::like("x"))
}

fn no_input(text: String) -> CustomKernel {
    CustomKernel::wgsl("bad", text).output("y", OutputShape::fixed([1]))
}

#[derive(Reflect)]
struct Params {
    size: u32,
}

fn with_params(text: String) -> CustomKernel {
    no_input(text).params::<Params>()
}

fn function(text: String) -> CustomKernel {
    CustomKernel::elementwise("bad", text)
}

/// Inputs and outputs with a body.
macro_rules! body {
    ($before:literal, $body:literal) => {
        concat!(
            "var<storage, read> x: array<f32>;\nvar<storage, read_write> y: array<f32>;\n",
            $before,
            "\n@compute @workgroup_size(64)\nfn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_index) lid: u32) {\n",
            $body,
            "\n y[id.x] = x[id.x];\n}\n"
        )
    };
}

const TABLE: &[Bad] = &[
    Bad {
        what: "syntax error",
        kernel: plain,
        text: body!("", "/* ü */ let a = 2.0 * «;"),
        is: |e| matches!(e, E::Wgsl { .. }),
        exact: true,
    },
    Bad {
        what: "a name that is not there",
        kernel: plain,
        text: body!("", " // ü\n y[0] = «elsewhere[0];"),
        is: |e| matches!(e, E::Wgsl { message, .. } if message.contains("elsewhere")),
        exact: true,
    },
    Bad {
        what: "wrong type of a value",
        kernel: plain,
        text: body!("", "«y[0] = 1u;"),
        is: |e| matches!(e, E::Wgsl { .. }),
        exact: false,
    },
    Bad {
        what: "missing binding",
        kernel: |text| plain(text).output("z", OutputShape::like("x")),
        text: body!("", ""),
        is: |e| matches!(e, E::MissingBinding { binding: "z", role: "output", .. }),
        exact: false,
    },
    Bad {
        what: "missing params",
        kernel: |text| plain(text).params::<Params>(),
        text: body!("", ""),
        is: |e| matches!(e, E::MissingBinding { binding: "params", role: "params", .. }),
        exact: false,
    },
    Bad {
        what: "a binding that the kernel does not know",
        kernel: plain,
        text: body!("«var<storage, read> extra: array<f32>;", "let a = extra[0];"),
        is: |e| matches!(e, E::UnknownBinding { binding, .. } if binding == "extra"),
        exact: true,
    },
    Bad {
        what: "a texture",
        kernel: plain,
        text: body!("«var picture: texture_2d<f32>;", "let a = textureDimensions(picture);"),
        is: |e| matches!(e, E::UnknownBinding { binding, .. } if binding == "picture"),
        exact: true,
    },
    Bad {
        what: "wrong type of a binding",
        kernel: no_input,
        text: "\n @group(0) @binding(0) «var<storage, read_write> y: array<vec3<f32>>;\n@compute @workgroup_size(1) fn main() { y[0].x = 1.0; }",
        is: |e| matches!(e, E::BindingType { binding: "y", role: "output", .. }),
        exact: true,
    },
    Bad {
        what: "a struct for a binding",
        kernel: no_input,
        text: "struct Y { a: f32 }\n«var<storage, read_write> y: Y;\n@compute @workgroup_size(1) fn main() { y.a = 1.0; }",
        is: |e| matches!(e, E::BindingType { binding: "y", .. }),
        exact: true,
    },
    Bad {
        what: "an input that can be written",
        kernel: plain,
        text: "«var<storage, read_write> x: array<f32>;\nvar<storage, read_write> y: array<f32>;\n@compute @workgroup_size(1) fn main() { y[0] = x[0]; }",
        is: |e| matches!(e, E::BindingAccess { binding: "x", role: "input", .. }),
        exact: true,
    },
    Bad {
        what: "an output that cannot be written",
        kernel: plain,
        text: "var<storage, read> x: array<f32>;\n«var<storage> y: array<f32>;\n@compute @workgroup_size(1) fn main() { let a = y[0] + x[0]; }",
        is: |e| matches!(e, E::BindingAccess { binding: "y", role: "output", .. }),
        exact: true,
    },
    Bad {
        what: "a write to what can only be read",
        kernel: plain,
        text: body!("", "«x[0] = 1.0;"),
        is: |e| matches!(e, E::Wgsl { .. }),
        exact: false,
    },
    Bad {
        what: "an output that is never written",
        kernel: no_input,
        text: "«var<storage, read_write> y: array<f32>;\n@compute @workgroup_size(1) fn main() { let a = y[0]; }",
        is: |e| matches!(e, E::BindingAccess { binding: "y", .. }),
        exact: true,
    },
    Bad {
        what: "a uniform for an input",
        kernel: plain,
        text: "«var<uniform> x: array<vec4<f32>, 4>;\nvar<storage, read_write> y: array<f32>;\n@compute @workgroup_size(1) fn main() { y[0] = x[0].x; }",
        is: |e| matches!(e, E::BindingAccess { binding: "x", .. }),
        exact: true,
    },
    Bad {
        what: "oversize workgroup",
        kernel: no_input,
        text: "var<storage, read_write> y: array<f32>;\n@compute @workgroup_size(64, 64)\nfn «main() { y[0] = 1.0; }",
        is: |e| matches!(e, E::Limit { requested: 4096, .. }),
        exact: true,
    },
    Bad {
        what: "a workgroup that no number can count",
        kernel: no_input,
        text: "var<storage, read_write> y: array<f32>;\n@compute @workgroup_size(16384, 16384, 16384)\nfn «main() { y[0] = 1.0; }",
        is: |e| matches!(e, E::Limit { requested: u32::MAX, .. }),
        exact: true,
    },
    Bad {
        what: "oversize workgroup memory",
        kernel: no_input,
        text: "var<storage, read_write> y: array<f32>;\nvar<workgroup> much: array<f32, 100000>;\n@compute @workgroup_size(1)\nfn «main() { y[0] = much[3]; }",
        is: |e| matches!(e, E::Limit { requested: 400_000, .. }),
        exact: true,
    },
    Bad {
        what: "workgroups of no threads",
        kernel: no_input,
        text: "var<storage, read_write> y: array<f32>;\n@compute @workgroup_size(0)\nfn main() { y[0] = 1.0; }",
        is: |e| matches!(e, E::Wgsl { .. }),
        exact: false,
    },
    Bad {
        what: "a workgroup size that is an override",
        kernel: no_input,
        text: "override size: u32 = 4;\nvar<storage, read_write> y: array<f32>;\n@compute @workgroup_size(size)\nfn main() { y[0] = 1.0; }",
        is: |e| matches!(e, E::Description { .. }),
        exact: false,
    },
    Bad {
        what: "zero workgroups",
        kernel: |text| plain(text).dispatch(Dispatch::Workgroups([4, 0, 1])),
        text: body!("", ""),
        is: |e| matches!(e, E::ZeroWorkgroups { workgroups: [4, 0, 1], .. }),
        exact: false,
    },
    Bad {
        what: "infinite recursion",
        kernel: plain,
        text: body!("fn «again(a: f32) -> f32 { return again(a); }", "let a = again(1.0);"),
        is: |e| matches!(e, E::Wgsl { message, .. } if message.contains("recursive")),
        exact: true,
    },
    Bad {
        what: "infinite recursion of two",
        kernel: plain,
        text: body!(
            "«fn ping(a: f32) -> f32 { return pong(a); } fn pong(a: f32) -> f32 { return ping(a); }",
            "let a = ping(1.0);"
        ),
        is: |e| matches!(e, E::Wgsl { message, .. } if message.contains("cyclic")),
        exact: false,
    },
    Bad {
        what: "barrier in non-uniform flow",
        kernel: plain,
        text: body!("", "if (lid < 7u) {\n    «workgroupBarrier();\n}"),
        is: |e| matches!(e, E::Barrier { function, .. } if function == "main"),
        exact: true,
    },
    Bad {
        what: "barrier after some threads are gone, in a function",
        kernel: plain,
        text: body!("fn meet() {\n  «storageBarrier(); }", "if (x[id.x] > 0.0) { return; } meet();"),
        is: |e| matches!(e, E::Barrier { function, .. } if function == "meet"),
        exact: true,
    },
    Bad {
        what: "name clash of two functions",
        kernel: plain,
        text: body!("fn same() { }\nfn «same() { }", ""),
        is: |e| matches!(e, E::Wgsl { message, .. } if message.contains("redefinition")),
        exact: true,
    },
    Bad {
        what: "name clash with an imported function",
        kernel: plain,
        text: body!("#import tensor::math\nfn «is_nan(x: f32) -> bool { return false; }", ""),
        is: |e| matches!(e, E::Wgsl { message, .. } if message.contains("redefinition")),
        exact: true,
    },
    Bad {
        what: "a variable named twice",
        kernel: |text| plain(text).scratch("x", OutputShape::like("x")),
        text: body!("", ""),
        is: |e| matches!(e, E::Description { .. }),
        exact: false,
    },
    Bad {
        what: "no output",
        kernel: |text| CustomKernel::wgsl("bad", text).inputs(["x"]),
        text: body!("", ""),
        is: |e| matches!(e, E::Description { .. }),
        exact: false,
    },
    Bad {
        what: "params of another type",
        kernel: with_params,
        text: "«struct P { size: f32 }\nvar<uniform> params: P;\nvar<storage, read_write> y: array<f32>;\n@compute @workgroup_size(1) fn main() { y[0] = params.size; }",
        is: |e| matches!(e, E::Params { reason, .. } if reason.contains("`size` is f32 in WGSL but u32 in Rust")),
        exact: false,
    },
    Bad {
        what: "params with a member too many",
        kernel: with_params,
        text: "«struct P { size: u32, more: f32 }\nvar<uniform> params: P;\nvar<storage, read_write> y: array<f32>;\n@compute @workgroup_size(1) fn main() { y[0] = params.more; }",
        is: |e| matches!(e, E::Params { reason, .. } if reason.contains("`more` is not a field")),
        exact: false,
    },
    Bad {
        what: "params that are not a struct",
        kernel: with_params,
        text: "«var<uniform> params: vec4<f32>;\nvar<storage, read_write> y: array<f32>;\n@compute @workgroup_size(1) fn main() { y[0] = params.x; }",
        is: |e| matches!(e, E::Params { .. }),
        exact: false,
    },
    Bad {
        what: "unknown entry point",
        kernel: |text| plain(text).entry("blur"),
        text: body!("", ""),
        is: |e| matches!(e, E::EntryPoint { entry: "blur", found, .. } if *found == ["main"]),
        exact: false,
    },
    Bad {
        what: "unknown import",
        kernel: plain,
        text: body!("\n  «#import bevy_pbr::mesh_functions", ""),
        is: |e| matches!(e, E::Import { module, .. } if module == "bevy_pbr::mesh_functions"),
        exact: true,
    },
    Bad {
        what: "another preprocessor's words",
        kernel: plain,
        text: body!("«#ifdef DEBUG", ""),
        is: |e| matches!(e, E::Wgsl { .. }),
        exact: true,
    },
    Bad {
        what: "an elementwise function of vectors",
        kernel: function,
        text: "fn «bad(x: vec2<f32>) -> f32 { return x.x; }",
        is: |e| matches!(e, E::Elementwise { .. }),
        exact: true,
    },
    Bad {
        what: "an elementwise function of five numbers",
        kernel: function,
        text: "fn «bad(a: f32, b: f32, c: f32, d: f32, e: f32) -> f32 { return a; }",
        is: |e| matches!(e, E::Elementwise { .. }),
        exact: true,
    },
    Bad {
        what: "an elementwise function with a binding",
        kernel: function,
        text: "«var<storage, read> x: array<f32>;\nfn bad(i: u32) -> f32 { return x[i]; }",
        is: |e| matches!(e, E::UnknownBinding { .. }),
        exact: true,
    },
    Bad {
        what: "an elementwise function with a barrier",
        kernel: function,
        text: "fn bad(x: f32) -> f32 { «workgroupBarrier(); return x; }",
        is: |e| matches!(e, E::Barrier { .. }),
        exact: true,
    },
    Bad {
        what: "an elementwise function of another name",
        kernel: function,
        text: "fn good(x: f32) -> f32 { return x; }",
        is: |e| matches!(e, E::EntryPoint { entry: "bad", found, .. } if *found == ["good"]),
        exact: false,
    },
    Bad {
        what: "a CPU function of other numbers",
        kernel: |text| function(text).cpu_element(|x: i32| x),
        text: "fn «bad(x: f32) -> f32 { return x; }",
        is: |e| matches!(e, E::Elementwise { reason, .. } if reason.contains("(i32) -> i32 on the CPU")),
        exact: true,
    },
];

/// A text without its mark, and the position of the mark.
fn marked(text: &str) -> (String, Option<SourcePlace>) {
    let place = text.find('«').map(|at| {
        let before = &text[..at];
        let line = before.rsplit('\n').next().unwrap_or_default();
        SourcePlace { line: before.matches('\n').count() as u32 + 1, column: line.chars().count() as u32 + 1 }
    });
    (text.replace('«', ""), place)
}

#[test]
fn a_bad_kernel_is_a_typed_error_with_its_place_and_all_other_work_goes_on() {
    let mut rig = Rig::new(Backend::Gpu);
    let good = register(&mut rig, double("good"));
    let x = rig.spawn(Tensor::from_slice(&numbers(5), [5]).unwrap());
    for bad in TABLE {
        let (text, place) = marked(bad.text);
        // Other work in the same frame, recorded before and after.
        let used = good.clone();
        let before = rig.record(move |ops| {
            let y = ops.custom(&used, [x], &())?;
            ops.read(y)
        });
        let error = rig.app.register_kernel((bad.kernel)(text)).expect_err(bad.what);
        let after = rig.record(move |ops| {
            let y = ops.add(x, 1.0)?;
            ops.read(y)
        });
        assert!((bad.is)(&error), "{}: {error:?}", bad.what);
        if let Some(place) = place {
            assert_eq!(error.place().map(|p| p.line), Some(place.line), "{}: {error:?}", bad.what);
            assert!(!bad.exact || error.place() == Some(place), "{}: {error} should be at {place:?}", bad.what);
            assert!(error.to_string().starts_with(&format!("kernel bad, line {}", place.line)), "{error}");
        }
        assert_eq!(rig.wait(&before.unwrap()).unwrap().to_f32(), [2.0, 4.0, 6.0, 8.0, 10.0], "{}", bad.what);
        assert_eq!(rig.wait(&after.unwrap()).unwrap().to_f32(), [2.0, 3.0, 4.0, 5.0, 6.0], "{}", bad.what);
    }
    // The name is still free, and nothing reached the device.
    register(&mut rig, double("bad"));
    assert_eq!(rig.faults(), []);
}

#[test]
fn a_kernel_that_is_registered_before_there_is_a_device_is_checked_when_there_is_one() {
    let mut app = App::new();
    let plugins = AnywherePlugins::headless().build().disable::<LogPlugin>().disable::<PipelinedRenderingPlugin>();
    app.add_plugins((plugins, TensorComputePlugin { backend: BackendChoice::Gpu, ..default() }));
    let large = "var<storage, read_write> y: array<f32>; @compute @workgroup_size(64, 64) fn main() { y[0] = 1.0; }";
    let kernel = app.register_kernel(no_input(large.to_owned())).expect("nothing is known of a device yet");
    let good = app.register_kernel(double("good")).expect("a good kernel");
    assert!(kernel.is_ready());
    app.init_resource::<Faults>();
    app.add_observer(|fault: On<TensorFault>, mut faults: ResMut<Faults>| faults.0.push(fault.clone()));
    app.finish();
    app.cleanup();
    app.update();
    assert!(matches!(kernel.error(), Some(E::Limit { requested: 4096, .. })), "{kernel:?}");
    assert_eq!((kernel.is_ready(), good.is_ready()), (false, true));
    assert_eq!(app.world().resource::<Faults>().0, [TensorFault::Kernel(kernel.error().unwrap())]);
}

#[test]
fn an_index_out_of_bounds_stays_within_its_own_array() {
    const TEXT: &str = "
        var<storage, read> x: array<f32>;
        var<storage, read_write> y: array<f32>;
        var<storage, read_write> beyond: array<f32>;
        @compute @workgroup_size(64)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            y[id.x] = x[id.x + 1000000u];
            beyond[id.x * 100000u] = 7.0;
            var own = array<f32, 4>(1.0, 2.0, 3.0, 4.0);
            own[id.x] = 5.0;
        }";
    let mut rig = Rig::new(Backend::Gpu);
    let good = register(&mut rig, double("good"));
    let kernel = CustomKernel::wgsl("wild", TEXT).inputs(["x"]);
    let kernel = kernel.output("y", OutputShape::like("x")).zeroed_output("beyond", OutputShape::like("x"));
    let kernel = register(&mut rig, kernel);
    let neighbours: Vec<Entity> =
        (0..4).map(|i| rig.spawn(Tensor::full([10], f64::from(i), DType::F32).unwrap())).collect();
    let x = rig.spawn(Tensor::from_slice(&numbers(10), [10]).unwrap());
    let out = rig.spawn(Tensor::zeros([10], DType::F32).unwrap());
    for &neighbour in &neighbours {
        values(&mut rig, neighbour);
    }
    let (y, beyond, doubled) = {
        let receivers = rig
            .record(move |ops| {
                let [y, beyond] = ops.custom_outputs(&kernel, [x], &())?;
                ops.store(y, out)?;
                let doubled = ops.custom(&good, [x], &())?;
                Ok((ops.read(y)?, ops.read(beyond)?, ops.read(doubled)?))
            })
            .unwrap();
        (rig.wait(&receivers.0).unwrap(), rig.wait(&receivers.1).unwrap(), rig.wait(&receivers.2).unwrap())
    };
    // An element of the array, or 0.
    assert!(y.to_f32().iter().all(|v| *v == 0.0 || numbers(10).contains(v)), "{:?}", y.to_f32());
    let beyond = beyond.to_f32();
    assert!(beyond[0] == 7.0 && beyond.iter().all(|v| *v == 0.0 || *v == 7.0), "{beyond:?}");
    assert_eq!(doubled.to_f32(), numbers(10).iter().map(|v| 2.0 * v).collect::<Vec<_>>());
    for (i, neighbour) in neighbours.into_iter().enumerate() {
        assert_eq!(values(&mut rig, neighbour), [i as f32; 10]);
    }
    assert_eq!(values(&mut rig, x), numbers(10));
    assert_eq!(rig.faults(), []);
}
