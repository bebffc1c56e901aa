//! `tinker train dpo`.

use anyhow::Context as _;
use tinker::Datum;
use tinker::text::data::{DatumOptions, Reduction};
use tinker::text::{Message, TrainOnWhat};
use tinker::train::{Batches, Dpo, NllEvaluator, Report, SavePolicy};

use super::Desk;
use crate::commands::data::read_pairs;

pub(super) fn train(desk: &mut Desk) -> anyhow::Result<Report> {
    let settings = &desk.settings;
    // Likelihoods of whole answers are compared: no token may count less than another.
    let mut options = DatumOptions::default().with_reduction(Reduction::None);
    options.max_length = settings.max_length;
    let what = settings
        .train_on
        .unwrap_or(TrainOnWhat::LastAssistantMessage);
    let mut pairs: Vec<[Datum; 2]> = Vec::new();
    for (index, (chosen, rejected)) in read_pairs(desk.data()?)?.into_iter().enumerate() {
        let datum = |messages: &[Message]| {
            let example = desk.renderer.example(messages, what);
            let datum = example.and_then(|example| example.to_datum(&options));
            datum.with_context(|| format!("pair {}", index + 1))
        };
        pairs.push([datum(&chosen)?, datum(&rejected)?]);
    }
    let (train, test) = desk.split(pairs)?;
    let data: Vec<Datum> = train.into_iter().flatten().collect();
    let size = settings.batch_size.unwrap_or(32.min(data.len() / 2));
    let batches = Batches::of_pairs(data, size)?;
    let mut dpo = Dpo::new(desk.model())
        .with_learning_rate(desk.settings.learning_rate.unwrap_or(1e-5))
        .with_epochs(settings.epochs.unwrap_or(1))
        .with_save(SavePolicy::every(settings.save_every.unwrap_or(20)))
        .with_eval_every(settings.eval_every.unwrap_or(10));
    if !test.is_empty() {
        let test: Vec<Datum> = test.into_iter().flatten().collect();
        let evaluator = NllEvaluator::new(test).with_tokenizer(desk.tokenizer.clone());
        dpo = dpo.with_evaluator(evaluator);
    }
    if let Some(beta) = settings.beta {
        dpo = dpo.with_beta(beta);
    }
    if let Some(steps) = settings.max_steps {
        dpo = dpo.with_max_steps(steps);
    }
    let (service, run) = desk.begin()?;
    Ok(dpo.train(service, run, &batches)?)
}
