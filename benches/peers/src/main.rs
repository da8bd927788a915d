//! Runs the same work with `bevy_tensor_compute` and with its rivals, on the same device and in the same run.
//!
//! ```text
//! cargo run --release -p peers -- [--only PATTERN] [--backend gpu|cpu] [--json FILE] [--quick] [--ours]
//!                                 [--fusion] [--scaling]
//! ```
//!
//! * `--only PATTERN`: only work whose name contains it. `--backend`: only one backend. The default is both.
//! * `--ours`: no rivals, for tuning a kernel. `--quick`: fewer and shorter rounds.
//! * `--fusion`: fused against unfused plans, two apps in one run, instead of rivals.
//! * `--scaling`: how our own time grows with tokens, batch, width and ops, instead of rivals.
//! * `--json FILE`: the rows as a list of `{work, backend, ours_ms, rival, rival_ms, ratio, spread, equal}`. Values
//!   that were not measured are null.
//!
//! # Contestants
//!
//! * **GPU**: an app with Bevy's renderer and the GPU backend forced, also on a software adapter. The rival is
//!   burn-wgpu, with fusion and autotune, on the same device and queue.
//! * **CPU**: an app without a renderer. The rivals are the `gemm` crate called directly, candle, a plain evaluation
//!   with one pass and one new vector per op (like ndarray), and onnxruntime, all with as many threads as there are
//!   cores. onnxruntime runs in a Python process (`PEERS_PYTHON`, or `python3` if unset). It is skipped with a message
//!   if `import onnxruntime, onnx, numpy` fails.
//!
//! # Method
//!
//! All contestants get the same pseudo-random inputs. After warm-up (pipelines, plans, autotune), results are compared
//! with the tolerance of the work, which gives `equal`. Then each contestant determines how many repetitions fill a
//! turn, and the rounds begin: ours, each rival, ours, each rival, …, so that a slow phase of the machine affects all.
//! A turn is timed from before its first repetition is recorded until all are done on the device. `ours_ms` and
//! `rival_ms` are medians over the rounds of the time of one repetition, `ratio` is `rival_ms / ours_ms` (above 1 we
//! are faster), and `spread` is the interquartile range of the ratios of the rounds.
//!
//! Our time includes Bevy's frame: the repetitions of a turn are recorded in one frame, each with a `store` to its own
//! tensor, and the turn ends when a readback of one number, requested after them, arrives. Repetitions alternate
//! between several copies of the inputs, and the number of launches is checked to grow with them, so that no plan can
//! share work between repetitions. burn's lazy stream is drained after each repetition (without waiting for the
//! device), so that it executes all work and does not fuse across repetitions, and is synchronised at the end.
//!
//! Some work is measured differently, which its name or documentation says: see [`work::overhead`] and
//! [`work::transfer`].

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

/// The rivals on the backend of the rig.
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
            Err(reason) => println!("onnxruntime is skipped: {reason}"),
        },
    }
    field
}
