//! Conversations from files, as training examples.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::fault;
use crate::text::data::{DatumOptions, Example, Reduction, permutation};
use crate::text::{ChatOptions, Message, Tokenizer};
use crate::types::{Datum, ModelInput};
use crate::{Error, Result};

/// Conversations of a JSONL file, a line each: `{"messages": [{"role": …, "content": …}, …]}`.
///
/// ```
/// use tinker::text::Tokenizer;
/// use tinker::train::Conversations;
///
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("chats.jsonl");
/// let line = r#"{"messages": [{"role": "user", "content": "the cat sat"}, {"role": "assistant", "content": "the cat"}]}"#;
/// std::fs::write(&file, line)?;
/// let tokenizer = Tokenizer::open("tests/fixtures/text/tiny")?;
/// let data = Conversations::read(&file)?.datums(&tokenizer, None)?;
/// assert_eq!(data.len(), 1);
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Conversations(Vec<Vec<Message>>);

impl Conversations {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it cannot be read; [`Error::Invalid`] naming the line that is not a
    /// conversation.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        #[derive(Deserialize)]
        struct Line {
            messages: Vec<Message>,
        }
        let path = path.as_ref();
        let text = fs::read_to_string(path).map_err(|error| fault::file(path, "read", error))?;
        let lines = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.trim().is_empty());
        let conversations = lines.map(|(index, line)| {
            let read: serde_json::Result<Line> = serde_json::from_str(line);
            read.map(|line| line.messages).map_err(|error| {
                Error::invalid(
                    format!("{}:{}", path.display(), index + 1),
                    error.to_string(),
                )
            })
        });
        conversations.collect::<Result<_>>().map(Self)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Shuffles them with seed 0 and sets the first `count` apart: `(train, test)`, as the Python
    /// cookbook does.
    pub fn split(self, count: usize) -> (Self, Self) {
        let order = permutation(self.0.len(), 0);
        let mut shuffled = order.into_iter().map(|index| self.0[index].clone());
        let test: Vec<Vec<Message>> = shuffled.by_ref().take(count).collect();
        (Self(shuffled.collect()), Self(test))
    }

    /// Examples as the tokenizer's own chat template renders them. All answers of the assistant
    /// are trained on; each example weighs the same however long it is. Longer ones are cut.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if a conversation has no answer, or the template does not render it so
    /// that what comes before an answer is the beginning of the whole.
    pub fn datums(&self, tokenizer: &Tokenizer, max_length: Option<usize>) -> Result<Vec<Datum>> {
        let mut options = DatumOptions::default().with_reduction(Reduction::Mean);
        options.max_length = max_length;
        let datum = |(index, messages): (usize, &Vec<Message>)| {
            let example = example(tokenizer, messages);
            let datum = example.and_then(|example| example.to_datum(&options));
            datum.map_err(|error| error.within(&format!("conversations[{index}]")))
        };
        self.0.iter().enumerate().map(datum).collect()
    }
}

impl From<Vec<Vec<Message>>> for Conversations {
    fn from(conversations: Vec<Vec<Message>>) -> Self {
        Self(conversations)
    }
}

fn example(tokenizer: &Tokenizer, messages: &[Message]) -> Result<Example> {
    let last = messages
        .iter()
        .rposition(|message| message.role() == "assistant");
    let last = last.ok_or_else(|| Error::invalid("messages", "no answer of an assistant"))?;
    let whole = tokenizer.encode_chat(&messages[..=last], &ChatOptions::transcript())?;
    let mut weights = vec![0.0; whole.len()];
    for (index, message) in messages[..=last].iter().enumerate() {
        if message.role() != "assistant" {
            continue;
        }
        let before = tokenizer.encode_chat(&messages[..index], &ChatOptions::prompt())?;
        let after = tokenizer.encode_chat(&messages[..=index], &ChatOptions::transcript())?;
        if !(whole.starts_with(&after) && after.starts_with(&before)) {
            let problem = "the template renders it differently when more follows";
            return Err(Error::invalid(format!("messages[{index}]"), problem));
        }
        weights[before.len()..after.len()].fill(1.0);
    }
    Example::new(ModelInput::from_ints(whole), weights)
}
