//! `tinker cost`: tokens and, where prices are given, money: before a run, and of a run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde::{Deserialize, Serialize};
use tinker::text::TrainOnWhat;
use tinker::train::RunReader;

use super::data::{Layout, Lines, examples_of};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::Table;

/// Count the tokens of a file before training on it, or of a run that is there.
///
/// With prices, also the money: a TOML file with a table per model, in dollars per million tokens:
/// `["Qwen/Qwen3-8B"]`, `train = 0.40`, `sample = 0.60`, `prefill = 0.20`.
#[derive(Debug, Args)]
pub(crate) struct Cost {
    /// A file of conversations, or a run's folder.
    path: PathBuf,
    #[command(flatten)]
    layout: Layout,
    /// Times through the data.
    #[arg(long, default_value_t = 1, value_name = "N")]
    epochs: u64,
    /// The length at which training would cut.
    #[arg(long, value_name = "TOKENS")]
    max_length: Option<usize>,
    /// What to train on.
    #[arg(long, value_name = "MODE")]
    train_on: Option<TrainOnWhat>,
    /// Dollars per million tokens, by model.
    #[arg(long, value_name = "FILE.toml")]
    prices: Option<PathBuf>,
}

/// Dollars per million tokens.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Prices {
    train: f64,
    sample: f64,
    prefill: f64,
}

#[derive(Debug, Default, Serialize)]
struct Count {
    model: Option<String>,
    train_tokens: u64,
    prefill_tokens: u64,
    sample_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dollars: Option<f64>,
}

impl Count {
    fn price(&mut self, prices: &BTreeMap<String, Prices>) -> anyhow::Result<()> {
        let Some(model) = &self.model else {
            return Err(Failure::new("prices are by model; name it with --model").into());
        };
        let price = prices
            .get(model)
            .with_context(|| format!("there is no price of {model}"))?;
        let million = |tokens: u64, dollars: f64| tokens as f64 / 1e6 * dollars;
        self.dollars = Some(
            million(self.train_tokens, price.train)
                + million(self.sample_tokens, price.sample)
                + million(self.prefill_tokens, price.prefill),
        );
        Ok(())
    }
}

impl Cost {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let mut count = match self.path.is_dir() {
            true => of_run(&self.path)?,
            false => self.of_file(context)?,
        };
        if let Some(file) = &self.prices {
            let name = file.display();
            let text = fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
            let prices: BTreeMap<String, Prices> =
                toml::from_str(&text).with_context(|| format!("in {name}"))?;
            count.price(&prices)?;
        }
        if context.is_json() {
            return context.out.json(&count);
        }
        let mut table = Table::properties().titled(self.path.display().to_string());
        table.row(["Model", count.model.as_deref().unwrap_or("unknown")]);
        table.row(["Trained tokens", &count.train_tokens.to_string()]);
        if count.sample_tokens > 0 {
            table.row(["Prompt tokens", &count.prefill_tokens.to_string()]);
            table.row(["Sampled tokens", &count.sample_tokens.to_string()]);
        }
        if let Some(dollars) = count.dollars {
            table.row(["Estimated cost", &format!("${dollars:.4}")]);
        }
        context.out.table(&table)
    }

    /// What training on a file would take.
    fn of_file(&self, context: &Context) -> anyhow::Result<Count> {
        let lines = Lines::open(&self.path)?;
        let renderer = self.layout.renderer(context)?;
        let what = self.train_on.unwrap_or_default();
        let mut tokens = 0;
        for line in lines {
            let line = line?;
            let number = line.number;
            let place = || format!("{}, line {number}", self.path.display());
            let line = line.text().with_context(place)?;
            for example in examples_of(&renderer, &line, what).with_context(place)? {
                let length = example.weights().len();
                let length = length.min(self.max_length.unwrap_or(usize::MAX));
                // The last token is only a target.
                tokens += length.saturating_sub(1) as u64;
            }
        }
        Ok(Count {
            model: self.layout.model.clone(),
            train_tokens: tokens.saturating_mul(self.epochs),
            ..Count::default()
        })
    }
}

/// What a run has taken so far, by its metrics.
fn of_run(folder: &Path) -> anyhow::Result<Count> {
    let run = RunReader::open(folder)?;
    let sum = |name: &str| -> u64 {
        let values = run.curve(name).into_iter().map(|(_, value)| value);
        values.sum::<f64>() as u64
    };
    let (sampled, prompts) = (
        sum("env/all/total_ac_tokens"),
        sum("env/all/total_ob_tokens"),
    );
    let trained = match sum("num_tokens") {
        // Reinforcement trains on what was sampled and what came before it.
        0 => sampled + prompts,
        tokens => tokens,
    };
    Ok(Count {
        model: run.model().map(str::to_owned),
        train_tokens: trained,
        prefill_tokens: prompts,
        sample_tokens: sampled,
        dollars: None,
    })
}
