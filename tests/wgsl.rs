//! Checks the WGSL files of the kernels: they are used, documented, and free of mistakes that validators do not detect.
//! Unit tests of the crate check that the assembled texts compile and keep barriers uniform.

use std::fs;
use std::path::{Path, PathBuf};

fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the crate").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
}

/// Files with an extension under a folder of the crate, with their text.
fn texts(folder: &str, extension: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), extension, &mut found);
    assert!(!found.is_empty(), "nothing under {folder}");
    found.into_iter().map(|path| (path.clone(), fs::read_to_string(path).expect("text"))).collect()
}

fn is_library(path: &Path) -> bool {
    path.parent().is_some_and(|folder| folder.ends_with("lib"))
}

/// Copies between textures and tensors. The CPU has no textures, so they are not in the kernel table.
fn is_image_copy(path: &Path) -> bool {
    ["read_image", "write_image"].contains(&stem(path))
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).expect("a name")
}

#[test]
fn every_kernel_file_is_used() {
    let source = texts("src", "rs");
    for (path, _) in texts("assets/kernels", "wgsl") {
        let folder = if is_library(&path) { "assets/kernels/lib" } else { "assets/kernels" };
        let include = format!("{folder}/{}.wgsl\")", stem(&path));
        assert!(source.iter().any(|(_, text)| text.contains(&include)), "{} is used by no kernel", path.display());
    }
}

#[test]
fn every_kernel_file_is_named_after_a_kernel_of_the_table() {
    // The names that kernels return from `KernelSpec::name`.
    let ask = "fn name(&self) -> &'static str {\n        \"";
    let source = texts("src/kernel", "rs");
    let answers = source.iter().flat_map(|(_, text)| text.split(ask).skip(1));
    let kernels: Vec<&str> = answers.filter_map(|answer| answer.split('"').next()).collect();
    assert!(kernels.contains(&"matmul"), "{kernels:?}");
    for (path, _) in
        texts("assets/kernels", "wgsl").into_iter().filter(|(path, _)| !is_library(path) && !is_image_copy(path))
    {
        // Variants start with the kernel's name: `attention_row` belongs to `attention`.
        let of_kernel = |kernel: &&str| stem(&path) == *kernel || stem(&path).starts_with(&format!("{kernel}_"));
        assert!(kernels.iter().any(of_kernel), "{} is named after no kernel", path.display());
    }
}

#[test]
fn every_kernel_file_says_what_it_does() {
    for (path, text) in texts("assets/kernels", "wgsl") {
        assert!(text.starts_with("// "), "{} does not begin with what it does", path.display());
        for (line, binding) in text.lines().enumerate().filter(|(_, line)| line.contains("@binding(")) {
            let above = text.lines().nth(line.saturating_sub(1)).unwrap_or_default();
            let explained = binding.contains("//") || above.trim_start().starts_with("//");
            assert!(explained, "{}:{}: a binding without a comment", path.display(), line + 1);
        }
    }
}

#[test]
fn no_barrier_follows_a_return_of_single_threads() {
    for (path, text) in texts("assets/kernels", "wgsl") {
        for function in text.split("\nfn ") {
            let body: Vec<&str> = function.split("\n}").next().unwrap_or_default().lines().collect();
            let last = body.iter().rposition(|line| line.contains("workgroupBarrier()")).unwrap_or(0);
            for (at, _) in body.iter().enumerate().take(last).filter(|(_, line)| line.trim() == "return;") {
                // Whole workgroups may return early. Such a guard must test the group, never the thread.
                let guard = body[at - 1];
                let of_thread =
                    ["lid", "gid", "lane", "thread", "local", "global"].iter().any(|name| guard.contains(name));
                assert!(guard.contains("if ") && !of_thread, "{}: {guard} … return before a barrier", path.display());
            }
        }
    }
}
