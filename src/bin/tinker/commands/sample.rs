//! `tinker sample`: one prompt, or as many as a file has.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tinker::types::{ModelInput, SampleRequest, SampleResponse};

use super::prompts::{Content, Prompt, Source};
use super::sampler::{Params, Voice, connect};
use crate::context::Context;
use crate::failure::Failure;
use crate::terminal;
use crate::units::short;

/// Sample from a model or from sampler weights.
#[derive(Debug, Args)]
pub(crate) struct Sample {
    /// A base model's name, or tinker://run-id/sampler_weights/name
    model: String,
    /// The prompt; without one, prompts are read from --prompts or standard input.
    prompt: Option<String>,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    params: Params,
    /// How many samples of each prompt.
    #[arg(short, long, default_value_t = 1, value_name = "N")]
    num_samples: u32,
    /// Write the tokens' log probabilities too.
    #[arg(long)]
    logprobs: bool,
    /// Append results to this file instead of printing them; prompts it has results of are skipped.
    #[arg(short, long, value_name = "FILE.jsonl")]
    output: Option<PathBuf>,
    /// The tokenizer's folder or its model's name, if not the model's own.
    #[arg(long, value_name = "PATH|MODEL")]
    tokenizer: Option<String>,
}

/// A line of output.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    id: Value,
    prompt: Value,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    samples: Vec<Said>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// One sample.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    text: String,
    tokens: Vec<i32>,
    stop_reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<f32>>,
}

impl Sample {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        match (&self.prompt, &self.source.prompts) {
            (Some(_), Some(_)) => {
                Err(Failure::usage("a prompt and --prompts exclude each other").into())
            }
            (Some(prompt), None) => self.one(context, prompt),
            (None, _) => self.many(context),
        }
    }

    /// One prompt: its text to read, or a line of JSON.
    fn one(&self, context: &mut Context, prompt: &str) -> anyhow::Result<()> {
        let service = connect(context)?;
        let voice = Voice::open(&service, &self.model, self.tokenizer.as_deref())?;
        let content = Content::Text(prompt.to_owned());
        let tokens = content.tokens(&voice, self.source.chat)?;
        let options = self.params.to_options(self.num_samples)?;
        let response = voice
            .sampler
            .sample(&ModelInput::from_ints(tokens), options)?;
        let samples = self.said(&voice, &response)?;
        if context.is_json() || self.output.is_some() {
            let line = Line {
                id: 0.into(),
                prompt: prompt.into(),
                samples,
                error: None,
            };
            return match &self.output {
                Some(file) => append(file)?.write(&line),
                None => context.out.json_line(&line),
            };
        }
        for (index, said) in samples.iter().enumerate() {
            if samples.len() > 1 {
                context.out.line(&format!("--- {}", index + 1))?;
            }
            context.out.line(&said.text)?;
        }
        Ok(())
    }

    /// A file of prompts: a line of JSON for each, as results arrive.
    fn many(&self, context: &mut Context) -> anyhow::Result<()> {
        if self.source.prompts.is_none() && std::io::stdin().is_terminal() {
            context.note("Reading prompts, a line each, until Ctrl-D.");
        }
        let done = match &self.output {
            Some(file) => finished(file)?,
            None => HashMap::new(),
        };
        let mut sink = self.output.as_deref().map(append).transpose()?;
        let options = self.params.to_options(self.num_samples)?;
        let service = connect(context)?;
        let voice = Voice::open(&service, &self.model, self.tokenizer.as_deref())?;
        let bar = terminal::bar(0, terminal::COUNTS).with_prefix("Sampling");
        let (mut failed, mut skipped) = (0, 0);
        // What was read and is under way, by its place among the requests.
        let under_way: RefCell<HashMap<usize, Prompt>> = RefCell::default();
        let mut broken = None;
        let mut unencodable = Vec::new();
        let mut next = 0;
        let requests = self.source.read()?.map_while(|prompt| match prompt {
            Ok(prompt) => Some(prompt),
            Err(error) => {
                broken = Some(error);
                None
            }
        });
        let mut seen = HashSet::new();
        let mut twice = None;
        let requests = requests.filter_map(|prompt| {
            let key = prompt.id.to_string();
            if !seen.insert(key.clone()) {
                twice.get_or_insert(key);
                return None;
            }
            if done
                .get(&key)
                .is_some_and(|given| *given == prompt.content.to_json())
            {
                skipped += 1;
                return None;
            }
            bar.inc_length(1);
            match prompt.content.tokens(&voice, self.source.chat) {
                Ok(tokens) => {
                    let input = ModelInput::from_ints(tokens);
                    under_way.borrow_mut().insert(next, prompt);
                    next += 1;
                    Some(SampleRequest::new(input, options.clone()))
                }
                Err(error) => {
                    unencodable.push((prompt, format!("{error:#}")));
                    None
                }
            }
        });
        let drawn = bar.clone();
        let batch = voice
            .sampler
            .sample_batch(requests)
            .on_progress(move |progress| {
                drawn.set_message(format!("{} tokens/s", short(progress.tokens_per_second)));
            });
        for (index, result) in batch {
            let prompt = under_way.borrow_mut().remove(&index);
            let prompt = prompt.context("a result without its prompt")?;
            let result = result.map_err(anyhow::Error::from);
            let result = result.and_then(|response| self.said(&voice, &response));
            failed += usize::from(result.is_err());
            if crate::interrupt::happened() {
                break;
            }
            emit(context, &mut sink, line(prompt, result))?;
            bar.inc(1);
        }
        bar.finish_and_clear();
        failed += unencodable.len();
        for (prompt, error) in unencodable {
            emit(
                context,
                &mut sink,
                line(prompt, Err(anyhow::anyhow!(error))),
            )?;
        }
        if skipped > 0 {
            context.note(&format!("Skipped {skipped} that were done already."));
        }
        if let Some(error) = broken {
            return Err(error);
        }
        if let Some(id) = twice {
            return Err(
                Failure::new(format!("the id {id} comes twice; the second was left out")).into(),
            );
        }
        match failed {
            0 => Ok(()),
            _ => Err(
                Failure::new(format!("{failed} prompt(s) failed, as their lines say"))
                    .advise("Run the same command again to sample only those.")
                    .into(),
            ),
        }
    }

    fn said(&self, voice: &Voice, response: &SampleResponse) -> anyhow::Result<Vec<Said>> {
        let said = |sequence: &tinker::types::SampledSequence| {
            Ok(Said {
                text: voice.decode(&sequence.tokens)?,
                tokens: sequence.tokens.to_vec(),
                stop_reason: sequence.stop_reason.to_string(),
                logprobs: sequence.logprobs.clone().filter(|_| self.logprobs),
            })
        };
        response.sequences.iter().map(said).collect()
    }
}

fn line(prompt: Prompt, result: anyhow::Result<Vec<Said>>) -> Line {
    let (samples, error) = match result {
        Ok(samples) => (samples, None),
        Err(error) => (Vec::new(), Some(format!("{error:#}"))),
    };
    Line {
        id: prompt.id,
        prompt: prompt.content.to_json(),
        samples,
        error,
    }
}

fn emit(context: &mut Context, sink: &mut Option<Sink>, line: Line) -> anyhow::Result<()> {
    match sink {
        Some(sink) => sink.write(&line),
        None => context.out.json_line(&line),
    }
}

/// A file of results that grows by whole lines.
struct Sink(File, PathBuf);

impl Sink {
    fn write(&mut self, line: &Line) -> anyhow::Result<()> {
        let text = serde_json::to_string(line)? + "\n";
        let written = self.0.write_all(text.as_bytes());
        written.with_context(|| format!("cannot write {}", self.1.display()))
    }
}

/// How every line of output begins.
const FIRST: &[u8] = b"{\"id\":";

/// Opens a file of results to go on with; half a result, as a crash leaves it, is cut off.
fn append(file: &Path) -> anyhow::Result<Sink> {
    let cannot = || format!("cannot write {}", file.display());
    let opened = OpenOptions::new().create(true).append(true).open(file);
    let mut opened = opened.with_context(cannot)?;
    let length = opened.metadata().with_context(cannot)?.len();
    if length > 0 {
        let (whole, last) = whole_lines(file)?;
        // What is no part of a result somebody else wrote.
        let is_ours = last.starts_with(FIRST) || FIRST.starts_with(&last);
        let half = is_ours && serde_json::from_slice::<Value>(&last).is_err();
        if half {
            opened.set_len(whole).with_context(cannot)?;
        } else if whole < length {
            opened.write_all(b"\n").with_context(cannot)?;
        }
    }
    Ok(Sink(opened, file.to_owned()))
}

/// How many bytes of a file are whole lines, and what follows them.
fn whole_lines(file: &Path) -> anyhow::Result<(u64, Vec<u8>)> {
    let mut reader = BufReader::new(File::open(file)?);
    let (mut whole, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let count = reader.read_until(b'\n', &mut line)? as u64;
        if count == 0 || line.last() != Some(&b'\n') {
            return Ok((whole, line));
        }
        whole += count;
    }
}

/// The prompts a file has good results of, by their ids.
fn finished(file: &Path) -> anyhow::Result<HashMap<String, Value>> {
    let mut done = HashMap::new();
    if fs::metadata(file).is_err() {
        return Ok(done);
    }
    let cannot = || format!("cannot read {}", file.display());
    let reader = BufReader::new(File::open(file).with_context(cannot)?);
    for text in reader.split(b'\n') {
        let text = text.with_context(cannot)?;
        // Half a line, which may end within a letter, is cut off before the file grows again.
        if let Ok(line) = serde_json::from_slice::<Line>(&text)
            && line.error.is_none()
        {
            done.insert(line.id.to_string(), line.prompt);
        }
    }
    Ok(done)
}
