//! `tinker chat`: a conversation in the terminal.

use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::str::FromStr;

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::{Value, json};
use tinker::ServiceClient;
use tinker::client::RawCall;
use tinker::text::Message;
use tinker::types::{ModelInput, SampledSequence};

use super::sampler::{Params, Voice, connect};
use crate::context::Context;
use crate::terminal;

/// Talk with a model or with sampler weights.
#[derive(Debug, Args)]
pub(crate) struct Chat {
    /// A base model's name, or tinker://run-id/sampler_weights/name
    model: String,
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    params: Params,
    /// The tokenizer's folder or its model's name, if not the model's own.
    #[arg(long, value_name = "PATH|MODEL")]
    tokenizer: Option<String>,
}

const HELP: &str = "\
/system [TEXT]     what the model is told before the conversation; nothing clears it
/set NAME VALUE    max_tokens, temperature, top_p, top_k, seed, stop; without VALUE: shows them
/n COUNT           answers to each message, to choose from by reading
/probs             show how likely each token was, and what else was likely
/compare [MODEL]   let another model answer too; nothing ends it
/undo              take back the last message and its answer
/reset             begin again
/save FILE         write the conversation as a line of JSON that `data render` reads
/quit              leave (as Ctrl-D does)";

/// A conversation and how it is held.
struct Talk {
    service: ServiceClient,
    model: String,
    tokenizer: Option<String>,
    params: Params,
    system: Option<String>,
    turns: Vec<(String, String)>,
    count: u32,
    probs: bool,
    voice: Option<Voice>,
    other: Option<(String, Voice)>,
    /// Whether the server streams; `None` until it has been tried.
    streams: Option<bool>,
}

impl Chat {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let service = connect(context)?;
        let mut talk = Talk {
            service,
            model: self.model,
            tokenizer: self.tokenizer,
            params: self.params,
            system: self.system,
            turns: Vec::new(),
            count: 1,
            probs: false,
            voice: None,
            other: None,
            streams: None,
        };
        // A wrong model or key is known before the first line is typed.
        talk.voice()?;
        let interactive = io::stdin().is_terminal();
        if interactive {
            say!("{} (/help for commands, Ctrl-D to leave)", talk.model);
        }
        loop {
            if interactive {
                ask!("> ");
            }
            let Some(line) = terminal::line()? else {
                if interactive {
                    say!();
                }
                return Ok(());
            };
            let line = line.trim();
            let outcome = match line.strip_prefix('/') {
                _ if line.is_empty() => continue,
                Some("quit" | "exit") => return Ok(()),
                Some(command) => talk.command(context, command),
                None => talk.answer(context, line),
            };
            if crate::interrupt::happened() {
                return outcome;
            }
            // One refused message or command is no reason to lose the conversation.
            if let Err(error) = outcome {
                if !interactive || error.is::<crate::output::ClosedPipe>() {
                    return Err(error);
                }
                say!("Error: {error:#}");
            }
        }
    }
}

impl Talk {
    fn voice(&mut self) -> anyhow::Result<&Voice> {
        if self.voice.is_none() {
            let opened = Voice::open(&self.service, &self.model, self.tokenizer.as_deref())?;
            self.voice = Some(opened);
        }
        self.voice.as_ref().context("the model was opened above")
    }

    fn command(&mut self, context: &mut Context, command: &str) -> anyhow::Result<()> {
        let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
        let rest = rest.trim();
        match name {
            "help" | "?" => say!("{HELP}"),
            "system" => self.system = Some(rest.to_owned()).filter(|text| !text.is_empty()),
            "set" => return self.set(rest),
            "n" => {
                let count: u32 = rest.parse().context("/n takes a number")?;
                anyhow::ensure!(count > 0, "/n takes a number from 1");
                self.count = count;
                say!("{count} answer(s) to each message");
            }
            "probs" => {
                self.probs = !self.probs;
                say!("probabilities {}", if self.probs { "on" } else { "off" });
            }
            "compare" if rest.is_empty() => {
                self.other = None;
                say!("{} answers alone", self.model);
            }
            "compare" => {
                let voice = Voice::open(&self.service, rest, self.tokenizer.as_deref())?;
                self.other = Some((rest.to_owned(), voice));
                say!("{rest} answers too");
            }
            "undo" => drop(self.turns.pop()),
            "reset" => self.turns.clear(),
            "save" => return self.save(context, rest),
            other => bail!("no such command: /{other}; /help shows them"),
        }
        Ok(())
    }

    fn set(&mut self, text: &str) -> anyhow::Result<()> {
        let params = &mut self.params;
        let Some((name, value)) = text.split_once(' ') else {
            let mut set = vec![
                format!("max_tokens {}", params.max_tokens),
                format!("temperature {}", params.temperature),
            ];
            set.extend(params.top_p.map(|top_p| format!("top_p {top_p}")));
            set.extend(params.top_k.map(|top_k| format!("top_k {top_k}")));
            set.extend(params.seed.map(|seed| format!("seed {seed}")));
            set.extend(params.stop.iter().map(|stop| format!("stop {stop:?}")));
            say!("{}", set.join(", "));
            return Ok(());
        };
        let mut changed = params.clone();
        let value = value.trim();
        match name {
            "max_tokens" => changed.max_tokens = number(name, value)?,
            "temperature" => changed.temperature = number(name, value)?,
            "top_p" => changed.top_p = Some(number(name, value)?),
            "top_k" => changed.top_k = Some(number(name, value)?),
            "seed" => changed.seed = Some(number(name, value)?),
            "stop" => changed.stop = vec![value.to_owned()],
            other => bail!("no such parameter: {other}"),
        }
        changed.to_params()?;
        *params = changed;
        Ok(())
    }

    fn save(&self, context: &Context, file: &str) -> anyhow::Result<()> {
        if file.is_empty() {
            bail!("/save takes the name of a file");
        }
        let line = json!({ "messages": self.messages(None) }).to_string() + "\n";
        let opened = OpenOptions::new().create(true).append(true).open(file);
        let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
        written.with_context(|| format!("cannot write {file}"))?;
        context.note(&format!("saved to {file}"));
        Ok(())
    }

    /// The conversation so far, and what comes next.
    fn messages(&self, next: Option<&str>) -> Vec<Value> {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let mut messages: Vec<Value> = self
            .system
            .iter()
            .map(|text| message("system", text))
            .collect();
        for (user, assistant) in &self.turns {
            messages.push(message("user", user));
            messages.push(message("assistant", assistant));
        }
        messages.extend(next.map(|text| message("user", text)));
        messages
    }

    fn answer(&mut self, context: &mut Context, text: &str) -> anyhow::Result<()> {
        let messages = self.messages(Some(text));
        let plain = self.count == 1 && !self.probs && self.other.is_none();
        // A server that streams lays out the conversation with its own tokenizer.
        let plain = plain && self.tokenizer.is_none();
        let said = match plain && self.streams != Some(false) {
            true => self.stream(context, &messages)?,
            false => None,
        };
        let said = match said {
            Some(said) => said,
            None => self.sample(context, &messages)?,
        };
        self.turns.push((text.to_owned(), said));
        Ok(())
    }

    /// The answer as it arrives, where the server has a way for that; `None` where it has not.
    fn stream(
        &mut self,
        context: &mut Context,
        messages: &[Value],
    ) -> anyhow::Result<Option<String>> {
        let params = &self.params;
        let mut body = json!({"model": self.model, "messages": messages, "stream": true,
            "max_tokens": params.max_tokens, "temperature": params.temperature});
        for (name, value) in [
            ("top_p", json!(params.top_p)),
            ("top_k", json!(params.top_k)),
            ("seed", json!(params.seed)),
        ] {
            if !value.is_null() {
                body[name] = value;
            }
        }
        if !params.stop.is_empty() {
            body["stop"] = json!(params.stop);
        }
        let call = RawCall::post("oai/api/v1/chat/completions")
            .at_root()
            .with_json(&body)?;
        let stream = match self.service.call_stream(&call) {
            Ok(stream) => stream,
            Err(error) if error.status().is_some_and(|status| status != 401) => {
                self.streams = Some(false);
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        self.streams = Some(true);
        let mut said = String::new();
        for event in stream.events() {
            let data = event?.data;
            if data == "[DONE]" {
                break;
            }
            let chunk: Value = serde_json::from_str(&data)?;
            if let Some(problem) = chunk["error"]["message"].as_str() {
                bail!("the server broke off: {problem}");
            }
            let delta = &chunk["choices"][0]["delta"];
            if let Some(piece) = delta["reasoning_content"].as_str() {
                // Thinking is shown, and is no part of the answer.
                ask!("{}", console::style(piece).dim().for_stderr());
            }
            if let Some(piece) = delta["content"].as_str() {
                context.out.text(piece)?;
                context.out.flush()?;
                said.push_str(piece);
            }
        }
        context.out.line("")?;
        context.out.flush()?;
        Ok(Some(said))
    }

    fn sample(&mut self, context: &mut Context, messages: &[Value]) -> anyhow::Result<String> {
        let messages = messages
            .iter()
            .map(|message| Ok(serde_json::from_value(message.clone())?))
            .collect::<anyhow::Result<Vec<Message>>>()?;
        let mut options = self.params.to_options(self.count)?;
        if self.probs {
            options = options.with_topk_sample_logprobs(3);
        }
        self.voice()?;
        let own = self
            .voice
            .as_ref()
            .map(|voice| (self.model.as_str(), voice));
        let other = self
            .other
            .as_ref()
            .map(|(name, voice)| (name.as_str(), voice));
        let several = other.is_some() || self.count > 1;
        let mut first = None;
        for (name, voice) in own.into_iter().chain(other) {
            let prompt = ModelInput::from_ints(voice.encode_chat(&messages)?);
            let response = voice.sampler.sample(&prompt, options.clone())?;
            for (index, sequence) in response.sequences.iter().enumerate() {
                let text = voice.decode(&sequence.tokens)?;
                if several {
                    context.out.line(&format!("--- {name} {}", index + 1))?;
                }
                context.out.line(&text)?;
                if self.probs {
                    probabilities(context, voice, sequence)?;
                }
                first.get_or_insert(text);
            }
        }
        context.out.flush()?;
        first.context("the service sampled nothing")
    }
}

/// A line per token: how likely it was, and what else was.
fn probabilities(
    context: &mut Context,
    voice: &Voice,
    sequence: &SampledSequence,
) -> anyhow::Result<()> {
    let percent = |logprob: f32| format!("{:5.1} %", f64::from(logprob).exp() * 100.0);
    let show =
        |token: i32| Ok::<_, anyhow::Error>(format!("{:?}", voice.tokenizer.decode(&[token])?));
    for (index, token) in sequence.tokens.iter().enumerate() {
        let own = sequence.logprobs.as_ref().and_then(|all| all.get(index));
        let mut line = format!(
            "  {:16} {}",
            show(*token)?,
            own.map_or_else(String::new, |p| percent(*p))
        );
        let rivals = sequence
            .topk_logprobs
            .as_ref()
            .and_then(|top| top.row(index));
        if let Some((ids, logprobs)) = rivals {
            for (id, logprob) in ids.iter().zip(logprobs).filter(|(id, _)| *id != token) {
                line.push_str(&format!("   {} {}", show(*id)?, percent(*logprob).trim()));
            }
        }
        context.out.line(&line)?;
    }
    Ok(())
}

fn number<T: FromStr>(name: &str, value: &str) -> anyhow::Result<T> {
    let number = value.parse().ok();
    number.with_context(|| format!("{name} takes a number, got {value:?}"))
}
