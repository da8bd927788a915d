//! Tokenisers of GGUF files, against the expected tokens of llama.cpp's own vocabularies (MIT).

use std::path::{Path, PathBuf};

use bevy_tensor_compute::formats::gguf::GgufFile;
use bevy_tensor_compute::text::{ChatMessage, TextStream, Tokenizer, TokenizerError};

use crate::gguf::Writer;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text")
}

fn open(path: &Path) -> Tokenizer {
    let file = GgufFile::open(path).unwrap_or_else(|error| panic!("{error}"));
    Tokenizer::from_gguf(file.header()).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Compares with pairs of texts and tokens. Gives the number of texts.
fn check(tokenizer: &Tokenizer, input: &Path, output: &Path) -> usize {
    let input = std::fs::read_to_string(input).expect("texts");
    let output = std::fs::read_to_string(output).expect("tokens");
    let texts: Vec<&str> = input.split("\n__ggml_vocab_test__\n").collect();
    let mut wrong = Vec::new();
    for (text, line) in texts.iter().zip(output.lines()) {
        let expected: Vec<u32> = line.split_whitespace().map(|id| id.parse().expect("a number")).collect();
        let ids = tokenizer.encode(text).expect("short");
        if ids != expected {
            wrong.push(format!("{text:?}\n  is   {ids:?}\n  not  {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}: {} of {} are wrong:\n{}", output.len(), wrong.len(), texts.len(), wrong.join("\n"));
    texts.len()
}

#[test]
fn sentencepiece_gives_the_expected_tokens() {
    let tokenizer = open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/models/stories15m.gguf"));
    let count = check(&tokenizer, &folder().join("vocab.inp"), &folder().join("llama-spm.out"));
    assert!(count > 40, "{count} texts");
    for text in ["Hello, world!", "naïve 北京 🦙 \t tabs", "fn main() { println!(\"ž\"); }"] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text).expect("short")), text);
    }
    let with_bos = tokenizer.encode_with("Hi", true, false).expect("short");
    assert_eq!(with_bos.first().copied(), tokenizer.bos());
    assert_ne!(tokenizer.encode("<s>").expect("short"), [1], "special text is ordinary text");
    assert_eq!(tokenizer.encode_with("<s>", false, true).expect("short"), [1]);
}

#[test]
fn wordpiece_gives_the_expected_tokens() {
    let tokenizer = open(&folder().join("bert-bge.gguf"));
    assert!(check(&tokenizer, &folder().join("vocab.inp"), &folder().join("bert-bge.out")) > 40);
}

/// `TEXT_MODELS=FOLDER`: what `tools/text_models.py fetch FOLDER` fetched.
#[test]
#[ignore = "needs the vocabularies that tools/text_models.py fetches"]
fn every_vocabulary_gives_the_expected_tokens() {
    let folder = PathBuf::from(std::env::var_os("TEXT_MODELS").expect("TEXT_MODELS names a folder"));
    let mut failed = Vec::new();
    let mut checked = 0;
    for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
        let path = entry.path();
        let output = PathBuf::from(format!("{}.out", path.display()));
        if path.extension().is_none_or(|e| e != "gguf") || !output.exists() {
            continue;
        }
        let input = PathBuf::from(format!("{}.inp", path.display()));
        let result = std::panic::catch_unwind(|| check(&open(&path), &input, &output));
        checked += 1;
        if result.is_err() {
            failed.push(path);
        }
    }
    assert!(checked >= 15, "{checked} vocabularies");
    assert!(failed.is_empty(), "{failed:?}");
}

/// A byte-pair vocabulary of single bytes in GPT-2's alphabet and some merges.
fn small_bpe(pre: &str) -> Tokenizer {
    let mut tokens: Vec<String> = Vec::new();
    let mut next = 256u32;
    for byte in 0..=255u8 {
        let plain = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        tokens.push(if plain {
            char::from(byte).to_string()
        } else {
            next += 1;
            char::from_u32(next - 1).expect("a character").to_string()
        });
    }
    for merged in ["he", "ll", "hell", "hello", "Ġw", "Ġwo", "12", "<|end|>"] {
        tokens.push(merged.to_owned());
    }
    let kinds: Vec<u8> =
        (0..tokens.len()).flat_map(|i| (if i + 1 == tokens.len() { 3i32 } else { 1 }).to_le_bytes()).collect();
    let kinds = [&5u32.to_le_bytes()[..], &(tokens.len() as u64).to_le_bytes(), &kinds].concat();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let file = Writer::new()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", &tokens)
        .raw("tokenizer.ggml.token_type", 9, &kinds)
        .texts("tokenizer.ggml.merges", &["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "1 2"])
        .text("tokenizer.chat_template", "{% for m in messages %}[{{ m['role'] }}] {{ m.content.strip() }}<|end|>\n{% endfor %}{% if add_generation_prompt %}[bot]{% endif %}")
        .bytes();
    let header = bevy_tensor_compute::formats::gguf::GgufHeader::from_bytes(Path::new("bpe"), &file).expect("valid");
    Tokenizer::from_gguf(&header).expect("a tokeniser")
}

#[test]
fn byte_pairs_merge_within_pieces_by_rank() {
    let tokenizer = small_bpe("gpt-2");
    let pieces = |text: &str| -> Vec<String> {
        let ids = tokenizer.encode(text).expect("short");
        ids.iter().map(|&id| tokenizer.token(id).expect("a token").to_owned()).collect()
    };
    assert_eq!(pieces("hello world"), ["hello", "Ġwo", "r", "l", "d"]);
    assert_eq!(pieces("hell 12"), ["hell", "Ġ", "12"]);
    // Digits are pieces of their own here.
    let digits = small_bpe("smollm");
    assert_eq!(digits.encode("12").expect("short").len(), 2);
    for text in ["", " ", "žluťoučký kůň", "日本語 🦙", "a\r\n\tb  c"] {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text).expect("short")), text);
    }
}

#[test]
fn streamed_text_never_splits_a_character() {
    let tokenizer = small_bpe("gpt-2");
    let text = "ž🦙日";
    let mut stream = TextStream::default();
    let mut whole = String::new();
    for id in tokenizer.encode(text).expect("short") {
        let piece = stream.push(&tokenizer, id);
        assert!(!piece.contains('\u{fffd}'));
        whole.push_str(&piece);
    }
    assert_eq!(whole + &stream.finish(), text);
    // An incomplete character is replaced at the end, and an invalid byte at once.
    let ids = tokenizer.encode("🦙").expect("short");
    assert_eq!(stream.push(&tokenizer, ids[0]), "");
    assert_eq!(stream.push(&tokenizer, tokenizer.encode("a").expect("short")[0]), "\u{fffd}a");
    stream.push(&tokenizer, ids[0]);
    assert_eq!(stream.finish(), "\u{fffd}");
}

#[test]
fn chat_templates_are_rendered_and_their_tokens_recognised() {
    let tokenizer = small_bpe("gpt-2");
    let text = tokenizer.chat(&[ChatMessage::user(" hello "), ChatMessage::new("bot", "12")]).expect("a template");
    assert_eq!(text, "[user] hello<|end|>\n[bot] 12<|end|>\n[bot]");
    let ids = tokenizer.encode_with(&text, true, true).expect("short");
    assert_eq!(ids.iter().filter(|&&id| tokenizer.is_end(id)).count(), 2);
}

#[test]
fn files_without_a_usable_tokeniser_are_errors() {
    let parse = |writer: Writer| {
        let file = writer.bytes();
        let header = bevy_tensor_compute::formats::gguf::GgufHeader::from_bytes(Path::new("x"), &file).expect("valid");
        Tokenizer::from_gguf(&header).expect_err("unusable")
    };
    assert!(matches!(parse(Writer::new()), TokenizerError::Missing { key: "tokenizer.ggml.model" }));
    let named = |model: &str| Writer::new().text("tokenizer.ggml.model", model);
    assert!(matches!(parse(named("llama")), TokenizerError::Missing { key: "tokenizer.ggml.tokens" }));
    let with = |model: &str| named(model).texts("tokenizer.ggml.tokens", &["a"]);
    assert!(matches!(parse(with("llama")), TokenizerError::Missing { key: "tokenizer.ggml.scores" }));
    assert!(matches!(parse(with("gpt2")), TokenizerError::Missing { key: "tokenizer.ggml.merges" }));
    assert!(matches!(parse(with("magic")), TokenizerError::UnknownModel { .. }));
    let pre = with("gpt2").text("tokenizer.ggml.pre", "nonsense").texts("tokenizer.ggml.merges", &[]);
    assert!(matches!(parse(pre), TokenizerError::UnknownPre { .. }));
}
