//! The same work by `bevy_tensor_compute` and by its rivals, on the same device, in the same run.
//!
//! ```text
//! cargo run --release -p peers -- [--only PATTERN] [--backend gpu|cpu] [--json FILE] [--quick] [--ours] [--fusion] [--scaling]
//! ```
//!
//! * `--only PATTERN`: work whose name contains it. `--backend`: one of the two; both if not given.
//! * `--ours`: no rivals, for whoever tunes a kernel. `--quick`: fewer and shorter rounds.
//! * `--fusion`: fused against unfused plans, two apps in one run, instead of rivals.
//! * `--scaling`: how our own time grows with tokens, batch, width and ops, instead of rivals.
//! * `--json FILE`: the rows as a list of `{work, backend, ours_ms, rival, rival_ms, ratio, spread, equal}`. What was not measured is null.
//!
//! # Who
//!
//! * **GPU**: an app with Bevy's renderer and the GPU backend forced, also on a software adapter. The rival is burn-wgpu, with fusion and autotune,
//!   set up on that very device and queue.
//! * **CPU**: an app without a renderer. The rivals are the `gemm` crate called directly, candle, a plain evaluation with one pass and one new
//!   vector an op (as ndarray would), and onnxruntime, all with as many threads as there are cores. onnxruntime runs in a Python process
//!   (`PEERS_PYTHON`, else `python3`) and is left out, saying so, where `import onnxruntime, onnx, numpy` fails.
//!
//! # How
//!
//! Everybody gets the same pseudo-random inputs. After warming up (pipelines, plans, autotune), results are compared with the tolerance of the
//! work: that is `equal`. Then everybody finds how many repetitions fill a turn, and the rounds begin: ours, each rival, ours, each
//! rival, …, so that a slow spell of the machine hits all. A turn is timed from before its first repetition is recorded
//! until all are done on the device. `ours_ms` and `rival_ms` are medians over the rounds of the time of one repetition, `ratio` is
//! `rival_ms / ours_ms` (above 1 we are faster), and `spread` the interquartile range of the rounds' own ratios.
//!
//! Ours includes Bevy's frame: the repetitions of a turn are recorded in one frame, each with a `store` into a tensor of its own, and the turn
//! ends when a readback of one number, requested after them, is here. Repetitions take turns on several copies of the inputs, and the number of launches is checked to grow
//! with them, so that no plan can share work between repetitions. burn's lazy stream is drained after each repetition (without waiting
//! for the device), so that it executes what was asked for and fuses nothing across repetitions, and synchronised at the end.
//!
//! Some work says in its name or its documentation that it is measured otherwise: see [`work::overhead`] and [`work::transfer`].

mod arguments;
mod array;
mod burn;
mod cpu_rivals;
mod fusion;
mod measure;
mod ort;
mod ours;
mod rows;
mod scaling;
mod work;

use arguments::{Arguments, Mode};
use bevy_tensor_compute::support::Backend;
use burn::BurnDevice;
use measure::compare;
use ort::Ort;
use ours::Rig;
use rows::Rows;
use work::{Field, Work};

fn main() {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}");
            std::process::exit(2);
        }
    };
    let mut rows = Rows::default();
    match arguments.mode {
        Mode::Rivals => run_rivals(&arguments, &mut rows),
        Mode::Fusion => fusion::run(&arguments, &mut rows),
        Mode::Scaling => scaling::run(&arguments, &mut rows),
    }
    if let Some(file) = &arguments.json
        && let Err(error) = std::fs::write(file, rows.json())
    {
        eprintln!("{}: {error}", file.display());
        std::process::exit(1);
    }
}

fn run_rivals(arguments: &Arguments, rows: &mut Rows) {
    Rows::print_head();
    for &backend in &arguments.backends {
        let wanted = |work: &Box<dyn Work>| work.runs_on(backend) && arguments.wants(work.name());
        let list: Vec<_> = work::all().into_iter().filter(wanted).collect();
        if list.is_empty() {
            continue;
        }
        let mut rig = Rig::new(backend, true);
        let field = field(arguments, &rig);
        for work in list {
            let rivals = if arguments.ours { Vec::new() } else { work.rivals(&field) };
            let (flops, tolerance) = (work.flops(), work.tolerance());
            let mut ours = work.ours(&mut rig);
            let outcome = compare(ours.as_mut(), rivals, tolerance, arguments.effort);
            rows.add(work.name(), backend, flops, outcome);
        }
    }
}

/// The rivals there are on the rig's backend.
fn field(arguments: &Arguments, rig: &Rig) -> Field {
    let backend = rig.backend();
    let mut field = Field { backend, burn: None, ort: None };
    if arguments.ours {
        return field;
    }
    match backend {
        Backend::Gpu => field.burn = Some(BurnDevice::new(rig.setup())),
        Backend::Cpu => match Ort::start() {
            Ok(ort) => field.ort = Some(ort),
            Err(reason) => println!("onnxruntime is left out: {reason}"),
        },
    }
    field
}
