use std::path::PathBuf;

use crate::error::{Context, Error, Result};
use crate::types::TinkerPath;
use crate::wire::decoders::DECODERS;
use crate::wire::sse::SseReader;

/// Reads bytes as one kind of thing.
///
/// A reader gives a value or an error: it never panics, never hangs, and takes no memory out of
/// proportion to its input.
#[derive(Debug, Clone, Copy)]
pub struct Reader {
    /// What it reads.
    pub name: &'static str,
    /// The target under `fuzz/` it belongs to; each input goes to all readers of its target.
    pub target: &'static str,
    read: fn(&[u8]) -> Result<()>,
}

impl Reader {
    const fn new(name: &'static str, read: fn(&[u8]) -> Result<()>) -> Self {
        let target = name;
        Self { name, target, read }
    }

    /// Reads, and says what is wrong with the input.
    ///
    /// # Errors
    ///
    /// If the input is not what is to be read.
    ///
    /// # Panics
    ///
    /// If the reader has a defect.
    pub fn read(&self, bytes: &[u8]) -> Result<()> {
        (self.read)(bytes)
            .inspect_err(|error| assert!(!error.to_string().is_empty(), "an error says something"))
    }
}

/// Every reader there is.
#[must_use]
pub fn readers() -> Vec<Reader> {
    let target = "decoders";
    let decoder = |(name, read)| Reader { name, target, read };
    let values = DECODERS.into_iter().chain([("path", path as _)]);
    let mut readers: Vec<Reader> = values.map(decoder).collect();
    readers.extend([
        Reader::new("sse", sse),
        Reader::new("credentials", credentials),
    ]);
    #[cfg(feature = "archive")]
    readers.push(Reader::new("archive", archive));
    #[cfg(feature = "text")]
    readers.extend([
        Reader::new("gguf", gguf),
        Reader::new("tokenizer", tokenizer),
        Reader::new("tiktoken", tiktoken),
    ]);
    #[cfg(feature = "chat")]
    readers.push(Reader::new("template", template));
    #[cfg(feature = "local")]
    readers.extend([Reader::new("weights", weights), Reader::new("http", http)]);
    readers
}

/// Gives an input to all readers of a target, as the targets under `fuzz/` do.
///
/// # Panics
///
/// If there is no target of that name, or if one of its readers has a defect.
pub fn run(target: &str, bytes: &[u8]) {
    let mut readers = readers();
    readers.retain(|reader| reader.target == target);
    assert!(!readers.is_empty(), "the targets have the readers' names");
    for reader in readers {
        let _ = reader.read(bytes);
    }
}

fn path(bytes: &[u8]) -> Result<()> {
    let path: TinkerPath = String::from_utf8_lossy(bytes).parse()?;
    let again: TinkerPath = path.to_string().parse()?;
    assert_eq!(again, path, "a path survives being written");
    Ok(())
}

/// The first byte says where the stream is cut.
fn sse(bytes: &[u8]) -> Result<()> {
    let Some((&cut, stream)) = bytes.split_first() else {
        return Ok(());
    };
    let read = |pieces: [&[u8]; 2]| {
        let (mut reader, mut events) = (SseReader::default(), Vec::new());
        let whole = pieces
            .into_iter()
            .try_for_each(|piece| reader.push(piece, &mut events));
        (whole.is_ok(), events)
    };
    let (first, second) = stream.split_at(usize::from(cut).min(stream.len()));
    assert_eq!(
        read([first, second]),
        read([stream, b""]),
        "any split gives the same events"
    );
    Ok(())
}

fn credentials(bytes: &[u8]) -> Result<()> {
    let folder = Folder::with("credentials.json", bytes)?;
    crate::config::CredentialStore::new(folder.0.join("credentials.json"))
        .load()
        .map(drop)
}

#[cfg(feature = "archive")]
fn archive(bytes: &[u8]) -> Result<()> {
    let folder = Folder::with("outside", b"")?;
    let result = crate::client::unpack(bytes, folder.0.join("in")).map(drop);
    let outside = std::fs::read_dir(&folder.0).map_or(0, Iterator::count);
    assert!(outside <= 2, "nothing is written outside the folder");
    result
}

#[cfg(feature = "text")]
fn gguf(bytes: &[u8]) -> Result<()> {
    crate::gguf::Gguf::read(bytes)?;
    let folder = Folder::with("model.gguf", bytes)?;
    let file = folder.0.join("model.gguf");
    // Many files have weights only, or a vocabulary only.
    let _ = crate::text::Tokenizer::open(&file);
    #[cfg(feature = "local")]
    let _ = crate::local::engine::Weights::load_gguf(&file);
    Ok(())
}

/// The bytes are a tokenizer, used for one text in every way.
#[cfg(feature = "text")]
fn tokenizer(bytes: &[u8]) -> Result<()> {
    const TEXT: &str = " Hello,\n\n<|end|>  w\u{f6}rld 12\u{1f600}";
    let tokenizer = crate::text::Tokenizer::from_json(bytes, None)?;
    for tokens in [tokenizer.encode(TEXT)?, tokenizer.encode_ordinary(TEXT)?] {
        tokenizer.decode(&tokens)?;
    }
    Ok(())
}

#[cfg(feature = "text")]
fn tiktoken(bytes: &[u8]) -> Result<()> {
    crate::text::Tokenizer::from_tiktoken(bytes, r"\w+|\W", &[]).map(drop)
}

/// The bytes are a template, rendered for one exchange.
#[cfg(feature = "chat")]
fn template(bytes: &[u8]) -> Result<()> {
    use crate::text::{ChatOptions, Message, Tokenizer};

    const WORDS: &[u8] = br#"{"version": "1.0", "added_tokens": [], "model":
        {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}"#;
    let tokenizer = Tokenizer::from_json(WORDS, None)?;
    let messages = [Message::user("hi"), Message::assistant("yes")];
    let text = String::from_utf8_lossy(bytes);
    let options = ChatOptions::transcript().with_template(text);
    tokenizer.render_chat(&messages, &options).map(drop)
}

/// The bytes are the weights of a model of this small shape.
#[cfg(feature = "local")]
fn weights(bytes: &[u8]) -> Result<()> {
    const CONFIG: &[u8] = br#"{"model_type": "qwen3", "hidden_act": "silu", "hidden_size": 16,
        "head_dim": 6, "intermediate_size": 24, "max_position_embeddings": 64,
        "num_attention_heads": 4, "num_hidden_layers": 2, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6, "rope_theta": 50000.0, "tie_word_embeddings": true,
        "vocab_size": 40}"#;
    let folder = Folder::with("model.safetensors", bytes)?;
    folder.write("config.json", CONFIG)?;
    crate::local::engine::Weights::load(&folder.0).map(drop)
}

/// What arrives at the server's front; the first byte says how many bytes at a time.
#[cfg(feature = "local")]
fn http(bytes: &[u8]) -> Result<()> {
    match bytes.split_first() {
        Some((&piece, bytes)) => crate::local::trial::converse(bytes, usize::from(piece)),
        None => Ok(()),
    }
}

/// A folder of its own, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn with(name: &str, bytes: &[u8]) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("tinker-fuzz-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&path).map_err(unwritable)?;
        let folder = Self(path);
        folder.write(name, bytes)?;
        Ok(folder)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        std::fs::write(self.0.join(name), bytes).map_err(unwritable)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn unwritable(error: std::io::Error) -> Error {
    Error::Io(Context::caused("cannot write a temporary file", error))
}
