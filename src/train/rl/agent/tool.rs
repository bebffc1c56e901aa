//! Something a model may call, and what it gets back.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::text::{Json, Style};

/// What a tool gives back.
///
/// Text becomes one as it is: `Ok("sunny")`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ToolOutput {
    /// What the model reads: text, or a list of parts as messages have them.
    pub content: Value,
    /// Whether the episode is over. Default: no.
    pub is_last: bool,
}

impl ToolOutput {
    /// What the model reads.
    pub fn new(content: impl Into<Value>) -> Self {
        Self {
            content: content.into(),
            is_last: false,
        }
    }

    /// Ends the episode.
    #[doc(alias = "should_stop")]
    #[must_use]
    pub fn ending(mut self) -> Self {
        self.is_last = true;
        self
    }

    /// What the model reads of a failure.
    pub(super) fn failure(problem: &str) -> Self {
        let told = vec![("error".to_owned(), Json::from(problem))];
        Self::new(Json::Object(told).dump(Style::ASCII))
    }
}

impl From<String> for ToolOutput {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl From<&str> for ToolOutput {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

type Run = dyn Fn(Json) -> ToolOutput + Send + Sync;

/// Something a model may call.
///
/// ```
/// use serde::Deserialize;
/// use serde_json::json;
/// use tinker::train::rl::Tool;
///
/// #[derive(Deserialize)]
/// struct Sum {
///     a: i64,
///     b: i64,
/// }
///
/// let parameters = json!({
///     "type": "object",
///     "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
///     "required": ["a", "b"],
/// });
/// let add = Tool::new("add", "Adds two numbers.", parameters, |sum: Sum| {
///     Ok((sum.a + sum.b).to_string())
/// });
/// assert_eq!(add.name(), "add");
/// ```
#[derive(Clone)]
pub struct Tool {
    name: String,
    description: String,
    parameters: Value,
    run: Arc<Run>,
}

impl Tool {
    /// A tool by the name and the words the model knows it by, its parameters as a JSON schema, and
    /// what it does. It may block. Arguments that are none of its own, its errors and its panics are
    /// told to the model, which may try again.
    pub fn new<Arguments: DeserializeOwned, Output: Into<ToolOutput>>(
        name: impl Into<String>,
        description: impl Into<String>,
        parameters: Value,
        run: impl Fn(Arguments) -> anyhow::Result<Output> + Send + Sync + 'static,
    ) -> Self {
        let run = move |arguments: Json| match arguments.convert() {
            Err(error) => ToolOutput::failure(&format!("Parameter validation failed: {error}")),
            Ok(arguments) => match run(arguments) {
                Err(error) => ToolOutput::failure(&format!("Tool execution failed: {error:#}")),
                Ok(output) => output.into(),
            },
        };
        Self {
            name: name.into(),
            description: description.into(),
            parameters,
            run: Arc::new(run),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What [`Renderer::with_tools`](crate::text::Renderer::with_tools) declares.
    #[doc(alias = "to_spec")]
    pub fn spec(&self) -> Value {
        json!({
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        })
    }
}

impl Tool {
    /// What a call with this text for its arguments gives.
    pub(super) fn call(&self, arguments: &str) -> ToolOutput {
        match Json::parse(arguments) {
            Err(error) => ToolOutput::failure(&format!("Failed to parse tool arguments: {error}")),
            Ok(arguments) => catch_unwind(AssertUnwindSafe(|| (self.run)(arguments)))
                .unwrap_or_else(|_| ToolOutput::failure("Tool execution failed: it panicked")),
        }
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
