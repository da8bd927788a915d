//! What AMD's compiler makes of the kernels, without an AMD GPU: registers, spills, occupancy, cycles by its own model.
//!
//! `cargo run -p lab -- [FILTER…] [--family navi21] [--all] [--json FILE] [--asm]`

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lab::catalogue::{self, Text};
use lab::loops::{HotLoop, hottest};
use lab::radv::{self, Compiled, FAMILIES, Radv};
use lab::{Result, translate};

const HELP: &str = "\
Compiles the kernels of bevy_tensor_compute with Mesa's RADV for an AMD chip that need not be there.

cargo run -p lab -- [FILTER...] [OPTIONS]

FILTER          Only kernels whose name, form and work contain all of these texts.
--family CHIP   navi21 (RDNA 2, default), navi10 (RDNA 1), gfx1100 (RDNA 3), vega10 (GCN 5), polaris10 (GCN 4).
--all           Also forms that only software adapters choose.
--json FILE     Writes the rows as JSON.
--asm           Prints the machine code too.
--wgsl          Prints the source too.

KERNEL_TEXTS    A file of kernels. Without it, the library's test `catalogue` makes one.
LAB_RADV        The driver's description for the Vulkan loader, if it is not where Debian has it.";

/// What every figure is.
const NOTE: &str = "Estimates of the compiler, for a chip that is not there: nothing was run or measured.";

#[derive(Default)]
struct Arguments {
    filters: Vec<String>,
    family: String,
    all: bool,
    json: Option<String>,
    assembly: bool,
    source: bool,
}

/// `None` if help is wanted.
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
            option if option.starts_with("--") => return Err(format!("there is no option {option}\n\n{HELP}").into()),
            _ => arguments.filters.push(argument),
        }
    }
    if !FAMILIES.iter().any(|family| family.0 == arguments.family) {
        let known: Vec<&str> = FAMILIES.iter().map(|family| family.0).collect();
        return Err(format!("\"{}\" is none of the chips {}", arguments.family, known.join(", ")).into());
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
    // It is there only if it was written here. If it cannot be removed, a temporary file stays behind.
    let _ = std::fs::remove_file(&place);
    let texts = texts?;
    let wanted = |text: &&Text| {
        let name = text.name();
        (arguments.all || !text.is_software()) && arguments.filters.iter().all(|filter| name.contains(filter.as_str()))
    };
    let texts: Vec<&Text> = texts.iter().filter(wanted).collect();
    for (name, value) in radv::environment(&driver, &arguments.family) {
        // SAFETY: no thread has been started yet that could read the environment.
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

/// Compiles all texts on all cores. Gives what compiled, in order, and the errors of the rest.
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
    done.sort_by_key(|(text, _)| (&text.kernel, &text.form, &text.case));
    let (mut rows, mut errors) = (Vec::new(), Vec::new());
    for (text, compiled) in done {
        match compiled {
            Ok(Some(compiled)) => rows.push(Row { text, hot: hottest(&compiled.assembly), compiled }),
            // The chip never gets it.
            Ok(None) => {}
            Err(error) => errors.push(format!("{}: {error}", text.name())),
        }
    }
    (rows, errors)
}

/// `None` if the kernel needs what the chip does not have.
fn translate_and_compile(radv: &Radv, text: &Text) -> Result<Option<Compiled>> {
    let kernel = translate::read(text)?;
    if kernel.needs.halves && !radv.halves {
        return Ok(None);
    }
    radv.compile(&kernel, &kernel.spirv()?).map(Some)
}

/// The columns of the table, by the driver's names.
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
    let Text { kernel, form, case, adapters, .. } = row.text;
    let hot = row.hot.map(|hot| {
        let HotLoop { instructions, fma, memory, shared, waits } = hot;
        serde_json::json!({
            "instructions": instructions, "fma": fma, "fma_share": hot.share(), "memory": memory, "shared": shared,
            "waits": waits,
        })
    });
    serde_json::json!({
        "kernel": kernel, "form": form, "case": case, "adapters": adapters, "hot_loop": hot,
        "statistics": row.compiled.statistics,
    })
}
