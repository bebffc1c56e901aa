//! Conversations from files, as training examples.

use std::path::Path;

use crate::Result;
use crate::text::data::{Conversation, Reader, RenderOptions, shuffle, split};
use crate::text::{Message, Renderer};
use crate::types::Datum;

/// Conversations of a JSONL file, a line each: `{"messages": [{"role": …, "content": …}, …]}`,
/// and `"tools"` where there are any.
///
/// They are laid out by a [`Renderer`]: the one recommended for the model, or one made from the
/// chat template of a model that is not known, which then has a [note](Renderer::note). A sampling
/// client knows its own: [`SamplingClient::renderer`](crate::SamplingClient::renderer).
///
/// ```
/// use tinker::text::{Renderer, Tokenizer};
/// use tinker::train::Conversations;
///
/// # let folder = tempfile::tempdir()?;
/// # let file = folder.path().join("chats.jsonl");
/// let line = r#"{"messages": [{"role": "user", "content": "the cat sat"}, {"role": "assistant", "content": "the cat"}]}"#;
/// std::fs::write(&file, line)?;
/// let tokenizer = Tokenizer::open("tests/fixtures/text/tiny")?;
/// let renderer = Renderer::named("role_colon", &tokenizer)?;
/// let data = Conversations::read(&file)?.datums(&renderer, None)?;
/// assert_eq!(data.len(), 1);
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Conversations(Vec<Conversation>);

impl Conversations {
    /// Reads a file, packed with gzip or not.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](crate::Error::Io) if it cannot be read;
    /// [`Error::Invalid`](crate::Error::Invalid) naming the line that is not a conversation.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        Reader::open(path)?.collect::<Result<_>>().map(Self)
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
    /// cookbook does. Where there are no more than that, all are to train on.
    pub fn split(mut self, count: usize) -> (Self, Self) {
        shuffle(&mut self.0, 0);
        let (train, test) = split(self.0, count);
        (Self(train), Self(test))
    }

    /// Examples as the renderer lays them out. All answers of the assistant are trained on; each
    /// example weighs the same however long it is. Longer ones are cut.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if the renderer refuses a conversation. One without
    /// an answer gives an example that weighs nothing, as in the Python cookbook.
    pub fn datums(&self, renderer: &Renderer, max_length: Option<usize>) -> Result<Vec<Datum>> {
        let options = match max_length {
            Some(length) => RenderOptions::default().with_max_length(length),
            None => RenderOptions::default(),
        };
        renderer.datums(self.0.clone(), options)
    }
}

impl From<Vec<Vec<Message>>> for Conversations {
    fn from(conversations: Vec<Vec<Message>>) -> Self {
        Self(conversations.into_iter().map(Conversation::new).collect())
    }
}
