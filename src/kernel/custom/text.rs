//! Prepares the text of a kernel for naga and for the device. Lines and columns are preserved, so errors point to the
//! author's source.

use core::ops::Range;

use crate::error::KernelError;
use crate::ir::SourcePlace;
use crate::kernel::wgsl::{MODULES, module_text};

/// A kernel's text with comments, imports and binding numbers replaced by spaces, followed by the imported modules.
pub(super) struct Text {
    kernel: &'static str,
    pub wgsl: String,
    /// The original text.
    source: String,
}

impl Text {
    pub(super) fn new(kernel: &'static str, source: &str) -> Result<Self, KernelError> {
        let (mut wgsl, imports) = blank(source);
        let mut modules: Vec<&str> = Vec::new();
        for import in &imports {
            let path = source[import.clone()].trim_start_matches("#import").trim().trim_end_matches(';').trim_end();
            let module = path.strip_prefix("tensor::").and_then(|name| MODULES.iter().find(|m| **m == name));
            let Some(module) = module else {
                return Err(KernelError::Import {
                    kernel,
                    place: place(source, import.start),
                    module: path.to_owned(),
                    known: MODULES.map(|name| format!("tensor::{name}")).join(", "),
                });
            };
            if !modules.contains(module) {
                modules.push(module);
            }
        }
        if !modules.is_empty() {
            wgsl.push('\n');
            wgsl.push_str(&module_text(&modules));
        }
        Ok(Self { kernel, wgsl, source: source.to_owned() })
    }

    /// Line and column of a byte, if it is in the author's part.
    pub(super) fn place(&self, at: usize) -> Option<SourcePlace> {
        (at < self.source.len()).then(|| place(&self.source, at))
    }

    pub(super) fn place_of(&self, span: naga::Span) -> Option<SourcePlace> {
        span.to_range().and_then(|range| self.place(range.start))
    }

    /// Line and column of a function's name.
    pub(super) fn place_of_function(&self, name: &str) -> Option<SourcePlace> {
        let mut before = "";
        for (word, range) in words(&self.wgsl) {
            if before == "fn" && word == name {
                return self.place(range.start);
            }
            before = word;
        }
        None
    }

    /// Parses the text.
    pub(super) fn parse(&self) -> Result<naga::Module, KernelError> {
        naga::front::wgsl::parse_str(&self.wgsl).map_err(|error| {
            // Prefer a span in the author's part: others may be in an imported module.
            let place = error.labels().find_map(|(span, _)| self.place_of(span));
            let details: Vec<&str> = error.labels().map(|(_, label)| label).filter(|label| !label.is_empty()).collect();
            let mut message = error.message().to_owned();
            if let Some(detail) = details.first().filter(|detail| **detail != message) {
                message = format!("{message}: {detail}");
            }
            KernelError::Wgsl { kernel: self.kernel, place, message }
        })
    }

    /// Converts a validation error from naga to an error in this text.
    pub(super) fn invalid(&self, error: &naga::WithSpan<naga::valid::ValidationError>) -> KernelError {
        let place = error.spans().find_map(|(span, _)| self.place_of(*span));
        let mut message = error.as_inner().to_string();
        let mut source = core::error::Error::source(error.as_inner());
        while let Some(error) = source {
            message = format!("{message}: {error}");
            source = error.source();
        }
        KernelError::Wgsl { kernel: self.kernel, place, message }
    }
}

/// Line and column of a byte.
fn place(source: &str, at: usize) -> SourcePlace {
    let before = source.get(..at).unwrap_or(source);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    SourcePlace {
        line: before.matches('\n').count() as u32 + 1,
        column: before[line_start..].chars().count() as u32 + 1,
    }
}

/// Replaces comments, `@group(…)`, `@binding(…)` and `#import` lines by spaces. Returns the ranges of the imports.
fn blank(source: &str) -> (String, Vec<Range<usize>>) {
    let mut bytes = source.as_bytes().to_vec();
    let mut imports = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let rest = &source.as_bytes()[at..];
        let end = match rest[0] {
            b'/' if rest.starts_with(b"//") => at + line_length(rest),
            b'/' if rest.starts_with(b"/*") => at + comment_length(rest),
            b'#' if rest.starts_with(b"#import") => {
                let end = at + line_length(rest);
                // A comment may follow the import.
                let own = source[at..end].find("//").map_or(end, |comment| at + comment);
                imports.push(at..own);
                end
            }
            b'@' => at + binding_length(rest),
            _ => at,
        };
        if end == at {
            at += 1;
            continue;
        }
        for byte in &mut bytes[at..end] {
            if !matches!(byte, b'\n' | b'\r') {
                *byte = b' ';
            }
        }
        at = end;
    }
    // Only whole characters were replaced.
    (String::from_utf8(bytes).unwrap_or_else(|_| source.to_owned()), imports)
}

fn line_length(text: &[u8]) -> usize {
    text.iter().position(|&byte| byte == b'\n').unwrap_or(text.len())
}

/// Length of a block comment, which may be nested. Unterminated comments are left for naga to report.
fn comment_length(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    0
}

/// Length of `@group(…)` or `@binding(…)`, or 0 for other attributes.
fn binding_length(text: &[u8]) -> usize {
    let blanks = |from: usize| text[from..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let name = 1 + blanks(1);
    let Some(word) = [&b"group"[..], b"binding"].into_iter().find(|word| text[name..].starts_with(word)) else {
        return 0;
    };
    let open = name + word.len() + blanks(name + word.len());
    if text.get(open) != Some(&b'(') {
        return 0;
    }
    let mut depth = 0;
    for (i, byte) in text[open..].iter().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return open + i + 1;
        }
    }
    0
}

/// The identifiers, keywords and numbers of a text without comments, with their ranges.
fn words(text: &str) -> impl Iterator<Item = (&str, Range<usize>)> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii();
    let bytes = text.as_bytes();
    let mut at = 0;
    core::iter::from_fn(move || {
        at += bytes[at..].iter().position(|&byte| is_word(byte))?;
        let length = bytes[at..].iter().position(|&byte| !is_word(byte)).unwrap_or(bytes.len() - at);
        let range = at..at + length;
        at += length;
        Some((&text[range.clone()], range))
    })
}

/// Prefixes every name declared at module level, so that the text can be combined with any other.
pub(super) fn prefixed(text: &str, prefix: &str) -> String {
    let declared = declared_names(text);
    let (mut out, mut copied, mut at) = (String::with_capacity(text.len() + text.len() / 8), 0, 0);
    let mut in_struct = false;
    for (word, range) in words(text) {
        in_struct = word == "struct" || in_struct && !text[at..range.start].contains('}');
        at = range.end;
        // Struct members and attributes keep their names.
        let member = in_struct && text[range.end..].trim_start().starts_with(':');
        let before = text[..range.start].trim_end().as_bytes().last();
        if declared.contains(&word) && !member && !matches!(before, Some(b'.' | b'@')) {
            out.push_str(&text[copied..range.start]);
            out.push_str(prefix);
            copied = range.start;
        }
    }
    out.push_str(&text[copied..]);
    out
}

/// Names declared by `fn`, `struct`, `const`, `alias`, `override` and `var` outside of braces.
fn declared_names(text: &str) -> Vec<&str> {
    let (mut names, mut depth, mut at, mut declares) = (Vec::new(), 0usize, 0, false);
    for (word, range) in words(text) {
        for byte in text[at..range.start].bytes() {
            match byte {
                b'{' => depth += 1,
                b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        // The address space precedes the name of a variable.
        let in_list = text[..range.start].trim_end().ends_with(['<', ',']);
        if declares && !in_list && depth == 0 {
            names.push(word);
            declares = false;
        }
        declares |= depth == 0 && matches!(word, "fn" | "struct" | "const" | "alias" | "override" | "var");
        at = range.end;
    }
    names
}

/// Adds bindings to the text. Each has the position of the declaration, the binding number, and the access mode if it
/// must be set.
pub(super) fn bound(text: &str, bindings: &[(usize, u32, Option<&str>)]) -> String {
    let mut bindings = bindings.to_vec();
    bindings.sort_unstable_by_key(|binding| binding.0);
    let (mut out, mut copied) = (String::with_capacity(text.len() + 32 * bindings.len()), 0);
    for (at, number, access) in bindings {
        out.push_str(&text[copied..at]);
        out.push_str(&format!("@group(0) @binding({number}) "));
        copied = at;
        if let Some(access) = access {
            let list = text[at..].find('<').and_then(|open| Some((at + open, at + text[at..].find('>')?)));
            if let Some((open, close)) = list {
                out.push_str(&text[copied..open]);
                out.push_str(&format!("<storage, {access}"));
                copied = close;
            }
        }
    }
    out.push_str(&text[copied..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_imports_and_binding_numbers_go_and_places_stay() {
        let source = "// über\n#import tensor::indexing // wrap\n/* a /* b */ c */ @group(0)\n@binding( (1) ) var<storage> x: array<f32>;";
        let text = Text::new("test", source).expect("there is such a module");
        assert!(text.wgsl.starts_with("        \n"), "{:?}", &text.wgsl[..20]);
        assert!(!text.wgsl[..source.len()].contains(['#', '@', '*']));
        let at = source.find("var").expect("it is there");
        assert_eq!(text.wgsl.find("var"), Some(at));
        assert_eq!(text.place(at), Some(SourcePlace { line: 4, column: 17 }));
        assert!(text.wgsl.contains("fn thread_index("));
        assert_eq!(text.place(source.len() + 3), None);
        text.parse().expect("valid");
    }

    #[test]
    fn declared_names_are_prefixed_wherever_they_are_used_and_members_are_not() {
        let text = "struct Pair { a: f32, b: f32 }
const two = 2.0;
var<private> seen: array<f32, 2>;
fn a(b: f32) -> f32 { let p = Pair(b, two); seen[0] = p.a; return p.a; }
fn twice(x: f32) -> f32 { return a(x) * two; }";
        let out = prefixed(text, "k_");
        assert!(out.contains("struct k_Pair { a: f32") && out.contains("k_Pair(b, k_two)"), "{out}");
        assert!(out.contains("fn k_a(b: f32)") && out.contains("return p.a;") && out.contains("k_a(x) * k_two"));
        assert!(out.contains("var<private> k_seen") && out.contains("array<f32, 2>"));
        naga::front::wgsl::parse_str(&out).expect("still valid");
    }

    #[test]
    fn variables_are_bound_and_opened_for_writing() {
        let text = "var<storage, read> a: array<f32>; var<storage> b: array<f32>;";
        let b = text.rfind("var").expect("it is there");
        assert_eq!(
            bound(text, &[(b, 2, Some("read_write")), (0, 1, None)]),
            "@group(0) @binding(1) var<storage, read> a: array<f32>; @group(0) @binding(2) var<storage, read_write> b: array<f32>;"
        );
    }
}
