//! Lines of JSON: conversations, pairs, tokens.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;
use tinker::text::data::{Answers, Comparison, Preferred, Row as _, Said};
use tinker::text::{Json, Message};

use crate::interrupt;

/// The lines of a file, one by one, that are not empty.
pub(crate) struct Lines {
    name: String,
    reader: Box<dyn BufRead>,
    line: usize,
}

const GZIP: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

impl Lines {
    /// Opens a file, which may be packed with gzip; `-` is standard input.
    pub(crate) fn open(file: impl AsRef<Path>) -> anyhow::Result<Self> {
        let file = file.as_ref();
        let (name, reader): (_, Box<dyn Read>) = match file.as_os_str() == "-" {
            true => ("standard input".to_owned(), Box::new(interrupt::Typed)),
            false => {
                let opened = File::open(file);
                let opened = opened.with_context(|| format!("cannot read {}", file.display()))?;
                (file.display().to_string(), Box::new(opened))
            }
        };
        let mut reader = BufReader::new(reader);
        let start = reader.fill_buf();
        let start = start.with_context(|| format!("cannot read {name}"))?;
        let reader: Box<dyn BufRead> = match start.starts_with(&GZIP) {
            true => Box::new(BufReader::new(MultiGzDecoder::new(reader))),
            false => Box::new(reader),
        };
        let line = 0;
        Ok(Self { name, reader, line })
    }

    /// What is read, for people.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The next line, or `None` at the end.
    fn read(&mut self) -> anyhow::Result<Option<Line>> {
        let mut bytes = Vec::new();
        self.line += 1;
        let place = || format!("{}, line {}", self.name, self.line);
        let count = self.reader.read_until(b'\n', &mut bytes);
        if count.with_context(place)? == 0 {
            return Ok(None);
        }
        let mut line = bytes.as_slice();
        if self.line == 1 {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        while let [rest @ .., b'\n' | b'\r'] = line {
            line = rest;
        }
        Ok(Some(Line {
            number: self.line,
            bytes: line.to_owned(),
        }))
    }
}

/// A line of a file.
pub(crate) struct Line {
    /// From 1.
    pub(crate) number: usize,
    bytes: Vec<u8>,
}

impl Line {
    pub(crate) fn text(self) -> anyhow::Result<String> {
        String::from_utf8(self.bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to() + 1;
            anyhow!("is no UTF-8 text from byte {at} on")
        })
    }
}

impl Iterator for Lines {
    type Item = anyhow::Result<Line>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.read().transpose()? {
                Ok(line) if line.bytes.trim_ascii().is_empty() => {}
                outcome => return Some(outcome),
            }
        }
    }
}

/// A conversation: `{"messages": [...], "tools": [...], "prefill": "..."}`, or the messages alone.
#[derive(Debug, Clone)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Message>,
    /// With their keys in order, which renderers print.
    pub(crate) tools: Vec<Json>,
    pub(crate) prefill: Option<String>,
}

impl Conversation {
    pub(crate) fn parse(line: &str) -> anyhow::Result<Self> {
        #[derive(Deserialize)]
        struct Whole {
            messages: Vec<Message>,
            #[serde(default)]
            tools: Option<Vec<Json>>,
            #[serde(default)]
            prefill: Option<String>,
        }
        let whole = Json::parse(line).and_then(|json| match json.as_array() {
            Some(_) => json.convert().map(|messages| Whole {
                messages,
                tools: None,
                prefill: None,
            }),
            None => json.convert(),
        });
        let whole = whole.map_err(anyhow::Error::msg).context(
            "no conversation, which is {\"messages\": [{\"role\": …, \"content\": …}, …]}",
        )?;
        Ok(Self {
            messages: whole.messages,
            tools: whole.tools.unwrap_or_default(),
            prefill: whole.prefill,
        })
    }
}

/// Reads pairs of answers: `chosen` and `rejected` as conversations, or as texts after `prompt`, or
/// the cookbook's comparisons.
pub(crate) fn read_pairs(file: &Path) -> anyhow::Result<Vec<(Vec<Message>, Vec<Message>)>> {
    #[derive(Deserialize)]
    struct Pair {
        #[serde(default)]
        prompt: Option<Said>,
        chosen: Said,
        rejected: Said,
    }

    fn of_comparison(comparison: Comparison) -> anyhow::Result<Pair> {
        let Answers {
            prompt_conversation,
            completion_a,
            completion_b,
        } = comparison.comparison;
        let (chosen, rejected) = match comparison.label {
            Preferred::A => (completion_a, completion_b),
            Preferred::B => (completion_b, completion_a),
            Preferred::Tie => bail!("a tie prefers neither answer: leave such lines out"),
        };
        Ok(Pair {
            prompt: Some(Said::Messages(prompt_conversation)),
            chosen: Said::Messages(chosen),
            rejected: Said::Messages(rejected),
        })
    }

    fn parse(line: &str) -> anyhow::Result<Pair> {
        let json = Json::parse(line).map_err(anyhow::Error::msg)?;
        match json.get("comparison") {
            Some(_) => of_comparison(Comparison::read(line)?),
            None => json.convert().map_err(anyhow::Error::msg),
        }
    }

    fn messages(prompt: Option<&Said>, answer: Said) -> anyhow::Result<Vec<Message>> {
        let mut all: Vec<Message> = match prompt {
            None => Vec::new(),
            Some(Said::Text(text)) => vec![Message::user(text)],
            Some(Said::Messages(list)) => list.clone(),
        };
        match answer {
            Said::Text(text) => all.push(Message::assistant(&text)),
            Said::Messages(list) => all.extend(list),
        }
        if all.len() < 2 {
            bail!("a pair needs a prompt and an answer");
        }
        Ok(all)
    }

    let mut pairs = Vec::new();
    for line in Lines::open(file)? {
        let line = line?;
        let number = line.number;
        let place = || format!("{}, line {number}", file.display());
        let line = line.text().with_context(place)?;
        let pair = parse(&line).with_context(place)?;
        let prompt = pair.prompt.as_ref();
        let chosen = messages(prompt, pair.chosen).with_context(place)?;
        pairs.push((chosen, messages(prompt, pair.rejected).with_context(place)?));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call whose arguments are a value, with keys out of order and a number of more than 64 bits.
    const CALLED: &str = r#"[{"role": "assistant", "content": "", "tool_calls": [{"function":
        {"name": "f", "arguments": {"b": 36893488147419103232, "a": NaN}}}]}]"#;
    const WRITTEN: &str = r#"{"b": 36893488147419103232, "a": NaN}"#;

    fn arguments(messages: &[Message]) -> String {
        let calls = messages.last().unwrap().tool_calls().unwrap();
        calls[0].arguments.clone()
    }

    #[test]
    fn conversations_keep_what_python_reads() {
        let called = CALLED.replace('\n', "");
        for line in [called.clone(), format!("{{\"messages\": {called}}}")] {
            let conversation = Conversation::parse(&line).unwrap();
            assert_eq!(arguments(&conversation.messages), WRITTEN);
        }
    }

    #[test]
    fn pairs_keep_what_python_reads() {
        let called = CALLED.replace('\n', "");
        let line = format!(r#"{{"prompt": "Hi", "chosen": {called}, "rejected": "No."}}"#);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), line).unwrap();
        let pairs = read_pairs(file.path()).unwrap();
        assert_eq!(arguments(&pairs[0].0), WRITTEN);
        assert_eq!(pairs[0].1, [Message::user("Hi"), Message::assistant("No.")]);
    }

    #[test]
    fn pairs_may_be_the_cookbooks_comparisons() {
        let read = |label: &str| {
            let said = |role: &str, text| format!(r#"[{{"role": "{role}", "content": "{text}"}}]"#);
            let answers = format!(
                r#""prompt_conversation": {}, "completion_A": {}, "completion_B": {}"#,
                said("user", "Hi"),
                said("assistant", "a"),
                said("assistant", "b")
            );
            let line = format!(r#"{{"comparison": {{{answers}}}, "label": "{label}"}}"#);
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), line).unwrap();
            read_pairs(file.path())
        };
        let with = |answer: &str| vec![Message::user("Hi"), Message::assistant(answer)];
        assert_eq!(read("A").unwrap(), [(with("a"), with("b"))]);
        assert_eq!(read("B").unwrap(), [(with("b"), with("a"))]);
        let error = format!("{:#}", read("Tie").unwrap_err());
        assert!(error.contains("line 1: a tie prefers neither"), "{error}");
    }
}
