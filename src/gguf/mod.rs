//! GGUF files: what stands before the numbers.
//!
//! The format llama.cpp keeps models in: a header, named values (among them the vocabulary and
//! the chat template), then a table of tensors. Everything here is read from the front of a file
//! with memory in proportion to the bytes that are really there, whatever the counts claim.

#[cfg(all(feature = "local", feature = "text"))]
pub(crate) mod write;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::error::{Context, Error, Result};

/// The most dimensions a tensor has.
const MAX_DIMENSIONS: u32 = 4;

/// The front of a GGUF file.
#[derive(Debug, Clone)]
pub(crate) struct Gguf {
    metadata: BTreeMap<String, Value>,
    tensors: Vec<TensorInfo>,
    /// Where the numbers begin.
    data_start: u64,
}

/// One named value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Int(i64),
    Uint(u64),
    Float(f64),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    /// An array of numbers or truth values.
    Numbers(Vec<f64>),
    /// An array of arrays; nothing here needs one.
    Nested,
}

/// One tensor of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub(crate) name: String,
    /// The fastest-running dimension first, as the file has it.
    pub(crate) dimensions: Vec<u64>,
    /// ggml's number of the type.
    pub(crate) kind: u32,
    /// Counted from where the numbers begin.
    pub(crate) offset: u64,
}

impl Gguf {
    /// Reads the front of a file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or is no GGUF file of version 2 or 3; the message names it.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let named = |error: Error| {
            Error::Config(Context::caused(
                format!("cannot read {}", path.display()),
                error,
            ))
        };
        let file = File::open(path).map_err(|error| {
            Error::Config(Context::caused(
                format!("cannot read {}", path.display()),
                error,
            ))
        })?;
        Self::read(BufReader::with_capacity(1 << 16, file)).map_err(named)
    }

    /// Reads the front of a file from its first byte on.
    ///
    /// # Errors
    ///
    /// If it is cut short or no GGUF of version 2 or 3.
    pub(crate) fn read(source: impl Read) -> Result<Self> {
        let mut source = Source { source, at: 0 };
        if source.bytes::<4>()? != *b"GGUF" {
            return Err(damaged("is no GGUF file"));
        }
        let version = source.u32()?;
        if !(2..=3).contains(&version) {
            return Err(damaged(format!(
                "has version {version}; only 2 and 3 are read"
            )));
        }
        let (tensor_count, value_count) = (source.u64()?, source.u64()?);
        let mut metadata = BTreeMap::new();
        for _ in 0..value_count {
            let name = source.text()?;
            let kind = source.u32()?;
            metadata.insert(name, source.value(kind)?);
        }
        let mut tensors = Vec::new();
        for _ in 0..tensor_count {
            tensors.push(source.tensor()?);
        }
        let alignment = match metadata.get("general.alignment") {
            Some(Value::Uint(alignment @ 1..=65_536)) => *alignment,
            None => 32,
            Some(other) => {
                return Err(damaged(format!("has an alignment of {other:?}")));
            }
        };
        Ok(Self {
            metadata,
            tensors,
            data_start: source.at.next_multiple_of(alignment),
        })
    }

    /// A named value.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.metadata.get(name)
    }

    /// A named text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A named list of texts.
    pub(crate) fn texts(&self, name: &str) -> Option<&[String]> {
        match self.get(name)? {
            Value::Texts(texts) => Some(texts),
            _ => None,
        }
    }

    /// A named list of numbers.
    pub(crate) fn numbers(&self, name: &str) -> Option<&[f64]> {
        match self.get(name)? {
            Value::Numbers(numbers) => Some(numbers),
            _ => None,
        }
    }

    /// A named whole number that is not negative.
    pub(crate) fn whole(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            Value::Uint(number) => Some(*number),
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// A named number.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        match self.get(name)? {
            Value::Float(number) => Some(*number),
            Value::Uint(number) => Some(*number as f64),
            Value::Int(number) => Some(*number as f64),
            _ => None,
        }
    }

    /// A named truth value.
    pub(crate) fn flag(&self, name: &str) -> Option<bool> {
        match self.get(name)? {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        }
    }

    /// Every named value, by name.
    #[cfg(all(feature = "local", feature = "text"))]
    pub(crate) fn values(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }

    /// The table of tensors.
    pub(crate) fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Where the numbers begin in the file.
    pub(crate) fn data_start(&self) -> u64 {
        self.data_start
    }
}

/// The bytes, and how many have gone by.
struct Source<R> {
    source: R,
    at: u64,
}

impl<R: Read> Source<R> {
    fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        self.source.read_exact(out).map_err(|error| {
            Error::Config(Context::caused(
                format!("the GGUF file ends or fails at byte {}", self.at),
                error,
            ))
        })?;
        self.at += out.len() as u64;
        Ok(())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String> {
        let len = self.u64()?;
        let mut bytes = Vec::new();
        // Memory follows what is read, not what the length claims.
        let read = (&mut self.source)
            .take(len)
            .read_to_end(&mut bytes)
            .map_err(|error| {
                Error::Config(Context::caused("the GGUF file cannot be read", error))
            })?;
        self.at += read as u64;
        if read as u64 != len {
            return Err(damaged(format!("ends in a text at byte {}", self.at)));
        }
        // Vocabularies hold pieces of characters; what is no text stays recognisable.
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    fn value(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Uint(self.bytes::<1>()?[0].into()),
            1 => Value::Int(i8::from_le_bytes(self.bytes()?).into()),
            2 => Value::Uint(u16::from_le_bytes(self.bytes()?).into()),
            3 => Value::Int(i16::from_le_bytes(self.bytes()?).into()),
            4 => Value::Uint(self.u32()?.into()),
            5 => Value::Int(i32::from_le_bytes(self.bytes()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.bytes()?).into()),
            7 => Value::Bool(self.bytes::<1>()?[0] != 0),
            8 => Value::Text(self.text()?),
            9 => {
                let kind = self.u32()?;
                let len = self.u64()?;
                self.array(kind, len, 0)?
            }
            10 => Value::Uint(self.u64()?),
            11 => Value::Int(i64::from_le_bytes(self.bytes()?)),
            12 => Value::Float(f64::from_le_bytes(self.bytes()?)),
            other => return Err(damaged(format!("has a value of unknown type {other}"))),
        })
    }

    fn array(&mut self, kind: u32, len: u64, depth: u32) -> Result<Value> {
        match kind {
            8 => {
                let mut texts = Vec::new();
                for _ in 0..len {
                    texts.push(self.text()?);
                }
                Ok(Value::Texts(texts))
            }
            9 if depth < 4 => {
                for _ in 0..len {
                    let (kind, len) = (self.u32()?, self.u64()?);
                    self.array(kind, len, depth + 1)?;
                }
                Ok(Value::Nested)
            }
            9 => Err(damaged("has arrays nested too deeply")),
            _ => {
                let mut numbers = Vec::new();
                for _ in 0..len {
                    numbers.push(match self.value(kind)? {
                        Value::Uint(number) => number as f64,
                        Value::Int(number) => number as f64,
                        Value::Float(number) => number,
                        Value::Bool(flag) => f64::from(u8::from(flag)),
                        _ => return Err(damaged(format!("has an array of unknown type {kind}"))),
                    });
                }
                Ok(Value::Numbers(numbers))
            }
        }
    }

    fn tensor(&mut self) -> Result<TensorInfo> {
        let name = self.text()?;
        let count = self.u32()?;
        if count > MAX_DIMENSIONS {
            return Err(damaged(format!("says `{name}` has {count} dimensions")));
        }
        let dimensions = (0..count).map(|_| self.u64()).collect::<Result<_>>()?;
        Ok(TensorInfo {
            name,
            dimensions,
            kind: self.u32()?,
            offset: self.u64()?,
        })
    }
}

fn damaged(problem: impl Into<String>) -> Error {
    Error::Config(Context::new(format!("the GGUF file {}", problem.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with one value of each kind and one tensor.
    fn sample() -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        let text = |out: &mut Vec<u8>, text: &str| {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        };
        out.extend(3u32.to_le_bytes());
        out.extend(1u64.to_le_bytes());
        out.extend(5u64.to_le_bytes());
        let key = |out: &mut Vec<u8>, name: &str, kind: u32| {
            text(out, name);
            out.extend(kind.to_le_bytes());
        };
        key(&mut out, "general.architecture", 8);
        text(&mut out, "llama");
        key(&mut out, "llama.block_count", 4);
        out.extend(30u32.to_le_bytes());
        key(&mut out, "eps", 6);
        out.extend(1e-5f32.to_le_bytes());
        key(&mut out, "tokens", 9);
        out.extend(8u32.to_le_bytes());
        out.extend(2u64.to_le_bytes());
        text(&mut out, "a");
        text(&mut out, "Ġb");
        key(&mut out, "add_bos", 7);
        out.push(1);
        text(&mut out, "token_embd.weight");
        out.extend(2u32.to_le_bytes());
        out.extend(32u64.to_le_bytes());
        out.extend(2u64.to_le_bytes());
        out.extend(8u32.to_le_bytes());
        out.extend(0u64.to_le_bytes());
        out
    }

    #[test]
    fn reads_values_and_tensors() {
        let file = Gguf::read(&sample()[..]).unwrap();
        assert_eq!(file.text("general.architecture"), Some("llama"));
        assert_eq!(file.whole("llama.block_count"), Some(30));
        assert_eq!(file.number("eps"), Some(f64::from(1e-5f32)));
        assert_eq!(file.texts("tokens").unwrap(), ["a", "Ġb"]);
        assert_eq!(file.flag("add_bos"), Some(true));
        let [tensor] = file.tensors() else {
            panic!("one tensor")
        };
        assert_eq!((&tensor.dimensions[..], tensor.kind), (&[32, 2][..], 8));
        assert_eq!(file.data_start() % 32, 0);
        assert!(file.data_start() >= sample().len() as u64);
    }

    /// Cut anywhere it is refused, and claims of endless lengths cost nothing.
    #[test]
    fn damaged_files_are_refused_without_the_memory_they_claim() {
        let whole = sample();
        for len in 0..whole.len() {
            assert!(Gguf::read(&whole[..len]).is_err(), "cut at {len}");
        }
        for at in 0..whole.len() {
            for value in [0x00, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let seen = allocation_counter::measure(|| {
                    let _ = Gguf::read(&bytes[..]);
                });
                assert!(seen.bytes_max < 1 << 20, "{} bytes at {at}", seen.bytes_max);
            }
        }
        let mut old = whole;
        old[4] = 1;
        let message = format!("{:?}", Gguf::read(&old[..]).unwrap_err());
        assert!(message.contains("version 1"), "{message}");
    }
}
