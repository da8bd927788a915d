//! GGUF files: opening and reading gives tensors or an error, and no tensor is larger than the file allows. A tokeniser that
//! the metadata describe takes any text, and a chat template ends.

use std::path::Path;

use bevy_tensor_compute::formats::gguf::{GgufFile, GgufHeader};

use super::{Answer, InputFile, Target};

const WORDS: &[&str] = &[
    "GGUF",
    "general.architecture",
    "general.alignment",
    "tokenizer.ggml.model",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.pre",
    "tokenizer.chat_template",
    "llama",
    "gpt2",
    "bert",
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for i in range(99999999) %}x{% endfor %}",
    "<0x0A>",
    "\u{2581}",
    "token_embd.weight",
];

pub const TARGET: Target = Target {
    name: "gguf",
    corpus: "gguf",
    weight: 8,
    longest: 4096,
    words: WORDS,
    guards: false,
    make: || {
        let file = InputFile::new("gguf");
        Box::new(move |bytes| {
            file.write(bytes);
            let mut opened = match GgufFile::open(file.path()) {
                Ok(opened) => opened,
                Err(error) => return Answer::refused(error),
            };
            let whole = GgufHeader::from_bytes(Path::new("whole"), bytes).expect("the file was opened");
            let header = opened.header().clone();
            assert_eq!(whole.tensors().len(), header.tensors().len(), "the bytes and the file differ");
            let mut kinds = Vec::new();
            for tensor in header.tensors() {
                match opened.read(tensor.name()) {
                    Ok(data) => {
                        assert!(data.bytes().len() <= bytes.len() + 64, "{} grew", tensor.name());
                        kinds.push(data.dtype());
                    }
                    Err(error) => return Answer::refused(error),
                }
            }
            Answer::accepted((kinds, speak(&header)))
        })
    },
};

/// What the tokeniser of the file makes of a text; nothing if there is none.
#[cfg(feature = "text")]
fn speak(header: &GgufHeader) -> Option<(usize, bool)> {
    use bevy_tensor_compute::text::{ChatMessage, Tokenizer};
    let tokenizer = Tokenizer::from_gguf(header).ok()?;
    let ids = tokenizer.encode("A caf\u{e9} at 12:30,\n  \u{65e5}\u{672c} \u{1f600}").ok()?;
    assert!(ids.iter().all(|&id| (id as usize) < tokenizer.len()), "an id outside of the vocabulary");
    tokenizer.decode(&ids);
    let chat = tokenizer.chat(&[ChatMessage::user("hello")]);
    Some((ids.len().min(8), chat.is_ok()))
}

#[cfg(not(feature = "text"))]
fn speak(_: &GgufHeader) -> Option<(usize, bool)> {
    None
}
