//! Fuzzes every target of `targets/`: `scripts/fuzz SECONDS`. `CONTRIBUTING.md` explains it.
//!
//! Each target runs in a process of its own, so that an abort of one is noticed and does not end the others. Without `--seconds` only the corpora are
//! replayed.

#[expect(dead_code, reason = "the rig serves every test binary")]
#[path = "../tests/common/mod.rs"]
mod common;
mod engine;
mod memory;
mod targets;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use engine::{Figures, Limits};
use targets::{TARGETS, Target};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// What the command line asks for.
struct Settings {
    /// Seconds for all targets together.
    seconds: f64,
    /// The most inputs of a target.
    inputs: u64,
    seed: u64,
    /// Names of targets; all if empty.
    names: Vec<String>,
    /// Whether this process runs one target.
    child: bool,
}

impl Settings {
    fn read() -> Result<Self, String> {
        let mut settings = Self { seconds: 0.0, inputs: u64::MAX, seed: 1, names: Vec::new(), child: false };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            let wrong = |value: String| format!("{value} is no number");
            match argument.as_str() {
                "--seconds" => settings.seconds = value().and_then(|v| v.parse().map_err(|_| wrong(v)))?,
                "--inputs" => settings.inputs = value().and_then(|v| v.parse().map_err(|_| wrong(v)))?,
                "--seed" => settings.seed = value().and_then(|v| v.parse().map_err(|_| wrong(v)))?,
                "--child" => settings.child = true,
                // Arguments of cargo's own test harness.
                "--nocapture" | "--quiet" | "-q" => {}
                name if TARGETS.iter().any(|target| target.name == name) => settings.names.push(name.to_owned()),
                other => {
                    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
                    return Err(format!(
                        "unknown argument {other}; targets are {}; options are --seconds N, --inputs N, --seed N",
                        names.join(", ")
                    ));
                }
            }
        }
        Ok(settings)
    }
}

fn main() -> ExitCode {
    let settings = match Settings::read() {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let chosen = |target: &&Target| settings.names.is_empty() || settings.names.iter().any(|name| name == target.name);
    let targets: Vec<&'static Target> = TARGETS.iter().filter(chosen).collect();
    if settings.child {
        targets.iter().for_each(|target| child(target, &settings))
    } else {
        return parent(&targets, &settings);
    }
    ExitCode::SUCCESS
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// Inputs that a target starts with.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = folder().join("corpus").join(target.corpus);
    let mut files: Vec<PathBuf> = match std::fs::read_dir(&folder) {
        Ok(entries) => entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect(),
        Err(error) => panic!("{}: {error}", folder.display()),
    };
    files.sort();
    files.iter().map(|path| std::fs::read(path).expect("a file of the corpus")).collect()
}

/// Runs one target and prints its figures for the parent.
fn child(target: &'static Target, settings: &Settings) {
    let corpus = corpus(target);
    let fuzz = settings.seconds > 0.0;
    let limits = Limits {
        time: if fuzz { Duration::from_secs_f64(settings.seconds) } else { Duration::MAX },
        inputs: if fuzz { settings.inputs } else { corpus.len() as u64 },
        seed: settings.seed,
    };
    engine::note_panics();
    let figures = engine::run(target, corpus, &folder().join("found"), &limits);
    let Figures { inputs, accepted, kinds, panics, runaway, longest, peak, seconds } = figures;
    println!("figures {inputs} {accepted} {kinds} {panics} {runaway} {} {peak} {seconds}", longest.as_secs_f64());
    // Apps on this thread need not end in order.
    std::process::exit(0);
}

/// Runs every target in a process of its own and prints the table.
fn parent(targets: &[&'static Target], settings: &Settings) -> ExitCode {
    let weights: u32 = targets.iter().map(|target| target.weight).sum();
    println!(
        "{:<16} {:>9} {:>9} {:>6} {:>7} {:>6} {:>8} {:>13} {:>11} {:>8}",
        "target",
        "inputs",
        "accepted",
        "kinds",
        "panics",
        "hangs",
        "runaway",
        "longest in ms",
        "peak in MiB",
        "seconds"
    );
    let (mut all, mut bad) = (0, false);
    for target in targets {
        let seconds = settings.seconds * f64::from(target.weight) / f64::from(weights);
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--child", target.name, "--seconds", &seconds.to_string()]);
        command.args(["--inputs", &settings.inputs.to_string(), "--seed", &settings.seed.to_string()]);
        command.stderr(std::process::Stdio::inherit());
        let output = command.output().expect("a process can be started");
        let text = String::from_utf8_lossy(&output.stdout);
        let Some(line) = text.lines().find_map(|line| line.strip_prefix("figures ")) else {
            bad = true;
            let what = if output.status.code() == Some(3) { "hangs" } else { "was aborted" };
            println!("{:<16} {what} ({}); the input is fuzz/found/{}-running", target.name, output.status, target.name);
            continue;
        };
        let numbers: Vec<f64> = line.split(' ').filter_map(|number| number.parse().ok()).collect();
        let [inputs, accepted, kinds, panics, runaway, longest, peak, took] = numbers[..] else {
            panic!("{line} has other figures");
        };
        println!(
            "{:<16} {inputs:>9} {accepted:>9} {kinds:>6} {panics:>7} {:>6} {runaway:>8} {:>13.1} {:>11.1} {took:>8.0}",
            target.name,
            0,
            longest * 1e3,
            peak / f64::from(1 << 20),
        );
        all += inputs as u64;
        bad |= panics + runaway > 0.0;
    }
    println!("{all} inputs");
    if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
