//! Prints what AMD's compiler reports about the kernels: registers, spills, occupancy, estimated cycles.
//!
//! `cargo run -p lab -- --help` lists the options.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lab::catalogue::{self, Text};
use lab::loops::{HotLoop, hottest};
use lab::radv::{self, Compiled, FAMILIES, Radv};
use lab::{Result, translate};

const HELP: &str = "\
Compiles the kernels of bevy_tensor_compute for an AMD chip with Mesa's RADV. No AMD GPU is needed.

cargo run -p lab -- [FILTER...] [OPTIONS]

FILTER          Only kernels whose name, variant and recorded work contain all of these strings.
--family CHIP   navi21 (RDNA 2, default), navi10 (RDNA 1), gfx1100 (RDNA 3), vega10 (GCN 5), polaris10 (GCN 4).
--all           Also variants that only software adapters use.
--json FILE     Writes the rows as JSON.
--asm           Also prints the machine code.
--wgsl          Also prints the source.

KERNEL_TEXTS    A list of kernels. By default the library's test `catalogue` writes one.
LAB_RADV        The driver manifest for the Vulkan loader. By default Debian's.";

/// Applies to every figure.
const NOTE: &str = "All figures are the compiler's estimates. Nothing was run or measured.";

#[derive(Default)]
struct Arguments {
    filters: Vec<String>,
    family: String,
    all: bool,
    json: Option<String>,
    assembly: bool,
    source: bool,
}

/// `None` if help was requested.
fn arguments(mut given: impl Iterator<Item = String>) -> Result<Option<Arguments>> {
    let mut arguments = Arguments { family: FAMILIES[0].0.to_owned(), ..Default::default() };
    while let Some(argument) = given.next() {
        let mut value = || given.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--help" | "-h" => return Ok(None),
            "--family" => arguments.family = value()?,
            "--json" => arguments.json = Some(value()?),
            "--all" => arguments.all = true,
            "--asm" => arguments.assembly = true,
            "--wgsl" => arguments.source = true,
            option if option.starts_with("--") => return Err(format!("unknown option {option}\n\n{HELP}").into()),
            _ => arguments.filters.push(argument),
        }
    }
    if !FAMILIES.iter().any(|family| family.0 == arguments.family) {
        let known: Vec<&str> = FAMILIES.iter().map(|family| family.0).collect();
        return Err(format!("unknown chip \"{}\"; known chips: {}", arguments.family, known.join(", ")).into());
    }
    Ok(Some(arguments))
}

fn main() -> ExitCode {
    match arguments(std::env::args().skip(1)).and_then(|arguments| arguments.map_or_else(help, |a| run(&a))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn help() -> Result<()> {
    println!("{HELP}");
    Ok(())
}

/// A compiled kernel.
struct Row<'a> {
    text: &'a Text,
    compiled: Compiled,
    hot: Option<HotLoop>,
}

fn run(arguments: &Arguments) -> Result<()> {
    let driver = radv::driver().ok_or("RADV is not installed: it is in Debian's package mesa-vulkan-drivers")?;
    let place = std::env::temp_dir().join(format!("kernel_texts_{}.json", std::process::id()));
    let texts = catalogue::file(&place).and_then(|path| catalogue::read(&path));
    // Exists only if it was written here. If it cannot be removed, a temporary file stays behind.
    let _ = std::fs::remove_file(&place);
    let texts = texts?;
    let wanted = |text: &&Text| {
        let name = text.name();
        (arguments.all || !text.is_software()) && arguments.filters.iter().all(|filter| name.contains(filter.as_str()))
    };
    let texts: Vec<&Text> = texts.iter().filter(wanted).collect();
    for (name, value) in radv::environment(&driver, &arguments.family) {
        // SAFETY: no other thread is running that could read the environment.
        unsafe { std::env::set_var(name, value) };
    }
    let radv = Radv::open()?;
    println!("{}, {}. {NOTE}", radv.name, radv.driver);
    let (rows, errors) = compile(&radv, &texts);
    print(&rows, arguments);
    if let Some(path) = &arguments.json {
        let rows: Vec<_> = rows.iter().map(json).collect();
        let report = serde_json::json!({
            "note": NOTE, "family": arguments.family, "device": radv.name, "driver": radv.driver, "rows": rows,
        });
        std::fs::write(path, format!("{report:#}\n")).map_err(|error| format!("{path}: {error}"))?;
    }
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n").into()) }
}

/// Compiles all texts on all cores. Returns the compiled kernels in order, and the errors.
fn compile<'a>(radv: &Radv, texts: &[&'a Text]) -> (Vec<Row<'a>>, Vec<String>) {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(&text) = texts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let compiled = translate_and_compile(radv, text);
            done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((text, compiled));
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_by_key(|(text, _)| (&text.kernel, &text.variant, &text.case));
    let (mut rows, mut errors) = (Vec::new(), Vec::new());
    for (text, compiled) in done {
        match compiled {
            Ok(Some(compiled)) => rows.push(Row { text, hot: hottest(&compiled.assembly), compiled }),
            // The chip never runs it.
            Ok(None) => {}
            Err(error) => errors.push(format!("{}: {error}", text.name())),
        }
    }
    (rows, errors)
}

/// `None` if the kernel needs a feature that the chip does not have.
fn translate_and_compile(radv: &Radv, text: &Text) -> Result<Option<Compiled>> {
    let kernel = translate::read(text)?;
    if kernel.needs.halves && !radv.halves {
        return Ok(None);
    }
    radv.compile(&kernel, &kernel.spirv()?).map(Some)
}

/// Columns of the table, and the driver's names of the statistics.
const COLUMNS: [(&str, &str); 9] = [
    ("vgpr", "VGPRs"),
    ("sgpr", "SGPRs"),
    ("spill", ""),
    ("lds", "LDS size"),
    ("scratch", "Scratch size"),
    ("waves", "Subgroups per SIMD"),
    ("instr", "Instructions"),
    ("latency", "Latency"),
    ("inv.thr", "Inverse Throughput"),
];

fn print(rows: &[Row], arguments: &Arguments) {
    let heads: String = COLUMNS.iter().map(|(head, _)| format!("{head:>8}")).collect();
    println!("{heads}{:>14}  kernel", "loop: fma/all");
    for row in rows {
        for (_, name) in COLUMNS {
            let value = if name.is_empty() { Some(row.compiled.spills()) } else { row.compiled.get(name) };
            print!("{:>8}", value.map_or_else(|| "?".to_owned(), |value| value.to_string()));
        }
        let hot = row.hot.map_or_else(|| "-".to_owned(), |hot| format!("{}/{}", hot.fma, hot.instructions));
        println!("{hot:>14}  {}", row.text.name());
        if arguments.source {
            println!("{}", row.text.wgsl);
        }
        if arguments.assembly {
            println!("{}", row.compiled.assembly);
        }
    }
    let bad = |row: &&Row| row.compiled.spills() > 0 || row.compiled.get("Scratch size").is_some_and(|bytes| bytes > 0);
    let bad = rows.iter().filter(bad).count();
    println!("{} kernels, {bad} of them with spilled registers or scratch memory", rows.len());
}

fn json(row: &Row) -> serde_json::Value {
    let Text { kernel, variant, case, adapters, .. } = row.text;
    let hot = row.hot.map(|hot| {
        let HotLoop { instructions, fma, memory, shared, waits } = hot;
        serde_json::json!({
            "instructions": instructions, "fma": fma, "fma_share": hot.share(), "memory": memory, "shared": shared,
            "waits": waits,
        })
    });
    serde_json::json!({
        "kernel": kernel, "variant": variant, "case": case, "adapters": adapters, "hot_loop": hot,
        "statistics": row.compiled.statistics,
    })
}
