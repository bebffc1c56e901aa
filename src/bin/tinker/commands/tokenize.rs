//! `tinker tokenize`: text to tokens and back.

use std::io::Read;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;

use super::sampler::tokenizer_of;
use crate::context::Context;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Table;

/// Turn text into tokens, or tokens into text, by a model's tokenizer.
#[derive(Debug, Args)]
pub(crate) struct Tokenize {
    /// A model's name, or the folder or file of a tokenizer.
    model: String,
    /// The text; without it, standard input.
    text: Option<String>,
    /// The text is token ids, separated by commas or spaces: decode them.
    #[arg(long)]
    decode: bool,
    /// Only count.
    #[arg(long)]
    count: bool,
    /// Leave out the tokens that the tokenizer adds by itself, such as a beginning of text.
    #[arg(long)]
    plain: bool,
}

#[derive(Serialize)]
struct Tokens {
    count: usize,
    ids: Vec<i32>,
    tokens: Vec<String>,
}

impl Tokenize {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let tokenizer = tokenizer_of(context, &self.model)?;
        let text = match &self.text {
            Some(text) => text.clone(),
            None => {
                let mut text = String::new();
                interrupt::Typed
                    .read_to_string(&mut text)
                    .context("cannot read standard input as text")?;
                text
            }
        };
        let ids = match (self.decode, self.plain) {
            (true, _) => ids(&text)?,
            (false, true) => tokenizer.encode_plain(&text)?,
            (false, false) => tokenizer.encode(&text)?,
        };
        if self.count {
            return match context.is_json() {
                true => context.out.json(&serde_json::json!({ "count": ids.len() })),
                false => context.out.line(&ids.len().to_string()),
            };
        }
        if self.decode && !context.is_json() {
            return context.out.line(&tokenizer.decode(&ids)?);
        }
        let tokens = ids
            .iter()
            .map(|id| Ok(tokenizer.decode(&[*id])?))
            .collect::<anyhow::Result<Vec<String>>>()?;
        if context.is_json() {
            let count = ids.len();
            return context.out.json(&Tokens { count, ids, tokens });
        }
        let mut table = Table::new(["Id", "Token"]);
        for (id, token) in ids.iter().zip(&tokens) {
            table.row([id.to_string(), format!("{token:?}")]);
        }
        context.out.table(&table)
    }
}

fn ids(text: &str) -> anyhow::Result<Vec<i32>> {
    text.split([',', ' ', '\n', '[', ']', '\t'])
        .filter(|word| !word.is_empty())
        .map(|word| {
            word.parse()
                .map_err(|_| Failure::usage(format!("not a token id: {word:?}")).into())
        })
        .collect()
}
