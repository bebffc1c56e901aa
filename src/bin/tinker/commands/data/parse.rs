//! `tinker data parse`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use serde::{Deserialize, Serialize};
use tinker::text::Message;

use super::Layout;
use super::lines::Lines;
use crate::context::Context;

/// Turn sampled tokens into messages.
///
/// A line of output for each line of input: an object with `message` and `termination`
/// (stop_sequence, eos or malformed), or with `error`.
#[derive(Debug, Args)]
pub(crate) struct Parse {
    #[command(flatten)]
    layout: Layout,
    /// Lines of JSON with `ids`: what a model sampled, its stop token included.
    #[arg(value_name = "FILE.jsonl")]
    file: PathBuf,
}

#[derive(Deserialize)]
struct Sampled {
    ids: Vec<i32>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Line {
    Read {
        message: Box<Message>,
        termination: &'static str,
    },
    Refused {
        error: String,
    },
}

impl Parse {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let renderer = self.layout.renderer(context)?;
        for line in Lines::open(&self.file)? {
            let sampled = line?.text().and_then(|line| {
                serde_json::from_str::<Sampled>(&line).context("no list of `ids`")
            });
            let parsed = sampled.and_then(|sampled| Ok(renderer.parse(&sampled.ids)?));
            let line = match parsed {
                Ok(parsed) => Line::Read {
                    termination: parsed.termination.as_str(),
                    message: Box::new(parsed.message.without_tokens()),
                },
                Err(error) => Line::Refused {
                    error: format!("{error:#}"),
                },
            };
            context.out.line(&serde_json::to_string(&line)?)?;
        }
        Ok(())
    }
}
