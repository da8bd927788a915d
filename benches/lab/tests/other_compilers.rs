//! Every kernel in every variant compiles for all backends of wgpu.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use lab::catalogue::{self, Text};
use lab::radv;
use lab::translate::{self, Kernel};

static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel_texts.json");
    catalogue::file(&place).expect("the library lists its kernels")
});

static TEXTS: LazyLock<Vec<(Text, Kernel)>> = LazyLock::new(|| {
    let texts = catalogue::read(&FILE).expect("a list of kernels");
    let read = |text: Text| {
        let kernel = translate::read(&text).unwrap_or_else(|error| panic!("{}: {error}", text.name()));
        (text, kernel)
    };
    texts.into_iter().map(read).collect()
});

/// Runs `check` on all texts and fails with all errors. `None` skips a text.
fn check_all(check: impl Fn(&Text, &Kernel) -> Option<Result<(), String>>) {
    let mut errors = Vec::new();
    let mut checked = 0;
    for (text, kernel) in &*TEXTS {
        match check(text, kernel) {
            Some(Ok(())) => checked += 1,
            Some(Err(error)) => errors.push(format!("{}: {error}\n{}", text.name(), text.wgsl)),
            None => {}
        }
    }
    println!("{checked} of {} texts pass", TEXTS.len());
    assert!(checked > 0, "nothing was checked");
    let names: Vec<&str> = errors.iter().filter_map(|error| error.lines().next()).collect();
    assert!(errors.is_empty(), "{} errors:\n{}\n\nthe first:\n{}", errors.len(), names.join("\n"), errors[0]);
}

#[test]
fn every_kernel_becomes_msl() {
    check_all(|_, kernel| Some(kernel.msl().map(drop)));
}

#[test]
fn every_kernel_becomes_hlsl() {
    check_all(|_, kernel| Some(kernel.hlsl().map(drop)));
}

#[test]
fn every_kernel_that_needs_no_extension_becomes_glsl_es() {
    check_all(|_, kernel| Some(kernel.glsl()?.map(drop)));
}

/// Whether a tool is installed. In CI it must be. Elsewhere, prints that the test is skipped.
fn has(tool: &str, found: bool, package: &str) -> bool {
    assert!(found || std::env::var_os("CI").is_none(), "{tool} is missing: install {package}");
    if !found {
        println!("SKIPPED: {tool} is missing (Debian's package {package} has it)");
    }
    found
}

#[test]
fn every_kernel_becomes_valid_spirv() {
    let found = Command::new("spirv-val").arg("--version").output().is_ok_and(|output| output.status.success());
    let validate = has("spirv-val", found, "spirv-tools");
    check_all(|_, kernel| {
        let spirv = match kernel.spirv() {
            Ok(spirv) => spirv,
            Err(error) => return Some(Err(error)),
        };
        Some(if validate { spirv_val(&spirv) } else { Ok(()) })
    });
}

fn spirv_val(spirv: &[u32]) -> Result<(), String> {
    let mut child = Command::new("spirv-val")
        .args(["--target-env", "vulkan1.3", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let bytes: Vec<u8> = spirv.iter().flat_map(|word| word.to_le_bytes()).collect();
    // Writing fails if the validator stops early. It then prints an error.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(&bytes));
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if output.status.success() { Ok(()) } else { Err(said) }
}

/// Filters of kernels that AMD's compiler must compile without spilling registers.
const SHORT_LIST: [&[&str]; 8] = [
    &["matmul [tiled 64x1]", "f32 [512, 512], f32 [512, 512]"],
    &["matmul [few]", "f32 [1, 512], f32 [512, 512]"],
    &["conv [tiled]", "f32 [1, 64, 56, 56]"],
    &["softmax [row workgroup]", "f32 [8, 1024]"],
    &["reduce [row workgroup]", "sum of f32 [8, 1024]"],
    &["row_norm [row workgroup]", "f32 [8, 1024]"],
    &["attention", "f32 [1, 8, 128, 64]"],
    &["map [64 threads]", "gelu of f32 [64, 256]"],
];

#[test]
fn a_short_list_compiles_for_rdna2_without_spills() {
    if !has("RADV", radv::driver().is_some(), "mesa-vulkan-drivers") {
        return;
    }
    for filters in SHORT_LIST {
        let json = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lab.json");
        let mut lab = Command::new(env!("CARGO_BIN_EXE_lab"));
        lab.args(filters).arg("--json").arg(&json).env("KERNEL_TEXTS", &*FILE);
        let output = lab.output().expect("the program starts");
        assert!(output.status.success(), "{filters:?}: {}", String::from_utf8_lossy(&output.stderr));
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).expect("written")).expect("JSON");
        std::fs::remove_file(&json).expect("it was there");
        assert!(report["device"].as_str().is_some_and(|name| name.contains("NAVI21")), "{}", report["device"]);
        let rows = report["rows"].as_array().expect("a list");
        assert!(!rows.is_empty(), "no kernel is called {filters:?}");
        for row in rows {
            for name in ["Spilled VGPRs", "Spilled SGPRs", "Scratch size"] {
                assert_eq!(row["statistics"][name].as_u64(), Some(0), "{name} of {row:#}");
            }
        }
    }
}
