//! `tinker data`: conversations in files, as a model sees them.

mod check;
mod lines;
mod parse;
mod render;
mod view;

use clap::{Args, Subcommand};
use tinker::text::renderers::ModelAttributes;
use tinker::text::{Renderer, Tokenizer};

use super::sampler::tokenizer_of;
use crate::context::Context;
use crate::failure::Failure;

pub(crate) use lines::{Lines, read_pairs};
pub(crate) use view::examples as examples_of;

#[derive(Debug, Subcommand)]
pub(crate) enum Data {
    /// Show examples with the tokens that carry loss in colour, and figures of the whole file.
    View(view::View),
    /// Look for lines that cannot be trained on; fails if there are any.
    Check(check::Check),
    /// Turn conversations into tokens: a JSON line each with `ids`, `weights`, `text` and `stop`.
    Render(render::Render),
    /// Turn sampled tokens into messages: a JSON line each with `message` and `termination`.
    Parse(parse::Parse),
}

impl Data {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        match self {
            Self::View(command) => command.run(context),
            Self::Check(command) => command.run(context),
            Self::Render(command) => command.run(context),
            Self::Parse(command) => command.run(context),
        }
    }
}

/// How conversations become tokens.
#[derive(Debug, Clone, Args)]
pub(crate) struct Layout {
    /// The renderer's name, such as qwen3 or llama3; the model's own if only --model is given.
    #[arg(long, value_name = "NAME")]
    pub(crate) renderer: Option<String>,
    /// The tokenizer's folder or file, or the name of a model whose tokenizer is in the Hugging
    /// Face cache [default: that of --model, or of a model the renderer is made for]
    #[arg(long, value_name = "PATH|MODEL")]
    pub(crate) tokenizer: Option<String>,
    /// The model, for its recommended renderer and its tokenizer.
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// The date that renderers which write one take for today.
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub(crate) date: Option<String>,
}

impl Layout {
    pub(crate) fn renderer(&self, context: &Context) -> anyhow::Result<Renderer> {
        let tokenizer = self.open_tokenizer(context)?;
        let renderer = match (&self.renderer, &self.model) {
            (Some(name), _) => Renderer::named(name, &tokenizer)?,
            (None, Some(model)) => Renderer::for_model(model, &tokenizer)?,
            (None, None) => Renderer::from_template(&tokenizer)?,
        };
        Ok(match &self.date {
            Some(date) => renderer.with_date(date),
            None => renderer,
        })
    }

    fn open_tokenizer(&self, context: &Context) -> anyhow::Result<Tokenizer> {
        if let Some(place) = self.tokenizer.as_ref().or(self.model.as_ref()) {
            return tokenizer_of(context, place);
        }
        let Some(name) = &self.renderer else {
            let failure = Failure::usage("--renderer, --model or --tokenizer is needed");
            return Err(failure
                .advise(format!(
                    "Name the model, or a renderer: {}",
                    Renderer::names().join(", ")
                ))
                .into());
        };
        match ModelAttributes::for_renderer(name) {
            Some(model) => tokenizer_of(context, model.name),
            None => {
                Err(Failure::usage(format!("--tokenizer is needed with --renderer {name}")).into())
            }
        }
    }
}
