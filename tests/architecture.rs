//! Dependencies between the rooms of `src/` point in one direction.
//!
//! A room is a folder or file directly below `src/`. It may only use rooms that come before it in [`ROOMS`]. Every
//! `use`, re-export and qualified path in production code counts. Comments, strings and test code do not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every room, lowest first. `ARCHITECTURE.md` describes them.
const ROOMS: [&str; 29] = [
    "ir",
    "disk",
    "error",
    "support",
    "figures",
    "schedule",
    "tensor",
    "readback",
    "kernel",
    "record",
    "mailbox",
    "plan",
    "memory",
    "pipelines",
    "cpu",
    "gpu",
    "extract",
    "image",
    "audio",
    "binding",
    "formats",
    "nn",
    "denoise",
    "onnx",
    "text",
    "crowd",
    "reports",
    "plugin",
    "inspector",
];

/// Crates and modules that a room must not use: the lower rooms know neither the renderer nor the device.
const FORBIDDEN: [(&str, &[&str]); 3] = [
    ("ir", &["wgpu", "bevy::render", "bevy::app"]),
    ("plan", &["wgpu", "bevy::render", "bevy::app"]),
    ("record", &["wgpu"]),
];

/// Where one room uses another: file and line.
type Edges = BTreeMap<(String, String), Vec<String>>;

#[test]
fn rooms_use_only_rooms_below_them() {
    let wrong = against_the_order(&edges(&source_folder()));
    assert!(wrong.is_empty(), "against the order of rooms:\n{}", wrong.join("\n"));
}

#[test]
fn every_room_is_declared() {
    let found: BTreeSet<String> = fs::read_dir(source_folder())
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .filter(|name| name != "lib")
        .collect();
    let declared: BTreeSet<String> = ROOMS.iter().map(|room| (*room).to_owned()).collect();
    assert_eq!(found, declared);
}

#[test]
fn the_lower_rooms_know_neither_renderer_nor_device() {
    let mut wrong = Vec::new();
    for (room, forbidden) in FORBIDDEN {
        for (path, text) in production(&source_folder()) {
            if room_of(&path) != room {
                continue;
            }
            for (number, line) in text.lines().enumerate() {
                for name in forbidden.iter().filter(|name| has_path(line, name)) {
                    wrong.push(format!("{}:{}: {room} names {name}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_forbidden_use_is_found_in_every_form() {
    let folder = std::env::temp_dir().join(format!("tensor_architecture_{}", std::process::id()));
    let forms = [
        "use crate::gpu::GpuExecutor;",
        "use crate::{error::OpError, gpu::GpuExecutor};",
        "pub use crate::gpu::Frame;",
        "fn f() { crate::gpu::run(); }",
        "use super::gpu::GpuExecutor;",
        "use crate::TensorComputePlugin;",
    ];
    let allowed = [
        "// use crate::gpu::GpuExecutor;",
        "const TEXT: &str = \"crate::gpu::run\";",
        "use crate::error::OpError;",
        "#[cfg(test)]\nmod tests {\n    use crate::gpu::GpuExecutor;\n}",
    ];
    let judge = |text: &str| {
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("lib.rs"), "pub use plugin::TensorComputePlugin;\n").unwrap();
        fs::write(folder.join("record.rs"), text).unwrap();
        against_the_order(&edges(&folder)).len()
    };
    let caught: Vec<usize> = forms.iter().map(|text| judge(text)).collect();
    let passed: Vec<usize> = allowed.iter().map(|text| judge(text)).collect();
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(caught, [1; 6]);
    assert_eq!(passed, [0; 4]);
}

fn source_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn against_the_order(edges: &Edges) -> Vec<String> {
    let place = |room: &str| ROOMS.iter().position(|name| *name == room);
    edges
        .iter()
        .filter(|((from, to), _)| place(to) >= place(from))
        .flat_map(|((from, to), lines)| lines.iter().map(move |line| format!("{line}: {from} uses {to}")))
        .collect()
}

/// Every use of one room by another.
fn edges(src: &Path) -> Edges {
    let roots = root_items(&fs::read_to_string(src.join("lib.rs")).unwrap());
    let mut edges = Edges::new();
    for (path, text) in production(src) {
        let from = room_of(path.strip_prefix(src).unwrap());
        let depth = path.strip_prefix(src).unwrap().components().count() - usize::from(path.ends_with("mod.rs"));
        // The paths that refer to the root of the crate from this file.
        for start in ["crate::".to_owned(), "super::".repeat(depth)] {
            for (at, _) in text.match_indices(&start) {
                let before = text[..at].chars().next_back();
                if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                    continue;
                }
                for name in first_names(&text[at + start.len()..]) {
                    let room = if ROOMS.contains(&name.as_str()) { Some(&name) } else { roots.get(&name) };
                    if let Some(to) = room.filter(|to| **to != from) {
                        let line = text[..at].matches('\n').count() + 1;
                        let place = format!("{}:{line}", path.display());
                        edges.entry((from.clone(), to.clone())).or_default().push(place);
                    }
                }
            }
        }
    }
    edges
}

/// The first segment of every path in `a::b`, or in `{a::b, c::{d, e}}`.
fn first_names(text: &str) -> Vec<String> {
    let ident = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let Some(list) = text.strip_prefix('{') else { return vec![ident(text)] };
    let (mut names, mut depth, mut fresh) = (Vec::new(), 0, true);
    for (i, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if fresh && (c.is_alphabetic() || c == '_') => {
                names.push(ident(&list[i..]));
                fresh = false;
            }
            _ => {}
        }
    }
    names
}

/// Items that `lib.rs` re-exports at the root, and their rooms.
fn root_items(lib: &str) -> BTreeMap<String, String> {
    let mut items = BTreeMap::new();
    for statement in lib.split("pub use ").skip(1) {
        let statement = statement.split(';').next().unwrap_or_default();
        let path = statement.strip_prefix("crate::").unwrap_or(statement);
        let Some((room, rest)) = path.split_once("::") else { continue };
        for item in rest.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|item| !item.is_empty()) {
            items.insert(item.to_owned(), room.to_owned());
        }
    }
    items
}

fn room_of(path: &Path) -> String {
    let src = source_folder();
    let path = path.strip_prefix(&src).unwrap_or(path);
    let first = path.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_');
        edge(line[..at].chars().next_back()) && line[at + path.len()..].starts_with("::")
    })
}

/// Every production file below a folder, without comments, strings and test code.
fn production(src: &Path) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    collect(src, &mut files);
    files.retain(|path| !path.ends_with("lib.rs"));
    let texts: Vec<(PathBuf, String)> =
        files.into_iter().map(|path| (path.clone(), plain(&fs::read_to_string(&path).unwrap()))).collect();
    // Files of test-only modules.
    let tests: Vec<PathBuf> = texts.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    let is_test = |path: &Path| tests.iter().any(|test| path == test || path.starts_with(test.with_extension("")));
    texts.into_iter().filter(|(path, _)| !is_test(path)).map(|(path, text)| (path, without_tests(&text))).collect()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The files of `#[cfg(test)] mod name;`.
fn test_modules(path: &Path, text: &str) -> Vec<PathBuf> {
    let folder = match path.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib") => path.parent().unwrap().to_owned(),
        _ => path.with_extension(""),
    };
    text.split("#[cfg(test)]")
        .skip(1)
        .filter_map(|after| {
            let item = after.split(['{', ';']).next()?.trim();
            let name = item.rsplit_once("mod ")?.1;
            after[after.find(item)? + item.len()..].starts_with(';').then(|| folder.join(name).with_extension("rs"))
        })
        .collect()
}

/// Removes items marked `#[cfg(test)]`.
fn without_tests(text: &str) -> String {
    let mut parts = text.split("#[cfg(test)]");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut depth = 0;
        let end = part.char_indices().find(|&(_, c)| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0 && (c == ';' || c == '}')
        });
        let end = end.map_or(part.len(), |(at, _)| at + 1);
        // Preserves line numbers.
        out.extend(part[..end].chars().filter(|c| *c == '\n'));
        out.push_str(&part[end..]);
    }
    out
}

/// Removes comments and the contents of strings. Preserves line numbers.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
        } else if c == '"' {
            let mut end = rest.len();
            let mut escaped = false;
            for (at, c) in rest.char_indices().skip(1) {
                match c {
                    '\\' => escaped = !escaped,
                    '"' if !escaped => {
                        end = at + 1;
                        break;
                    }
                    _ => escaped = false,
                }
            }
            out.push_str("\"\"");
            out.extend(rest[..end].chars().filter(|c| *c == '\n'));
            rest = &rest[end..];
        } else if rest.starts_with("'\"'") {
            out.push_str("' '");
            rest = &rest[3..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}
