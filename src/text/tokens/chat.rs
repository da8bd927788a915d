//! Chat templates.

use minijinja::{Environment, Error, ErrorKind, Value, context};

use super::TokenizerError;

/// A turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    /// Who speaks: usually `system`, `user` or `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

impl ChatMessage {
    /// A turn.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }

    /// A turn of the user.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new("user", content)
    }
}

/// Renders a conversation up to where the model answers.
pub(super) fn render(template: &str, messages: &[ChatMessage], bos: &str, eos: &str) -> Result<String, TokenizerError> {
    let failed = |error: Error| TokenizerError::Template(format!("{error:#}"));
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    // A template of a hostile file cannot run forever.
    environment.set_fuel(Some(10_000_000));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |_format: String| "1 January 2025");
    environment.add_template("chat", template).map_err(failed)?;
    let template = environment.get_template("chat").map_err(failed)?;
    let turn = |message: &ChatMessage| context! { role => message.role, content => message.content };
    let messages: Vec<Value> = messages.iter().map(turn).collect();
    let values = context! { messages, bos_token => bos, eos_token => eos, add_generation_prompt => true };
    template.render(values).map_err(failed)
}
