//! `tinker train sft`.

use anyhow::Context as _;
use tinker::Datum;
use tinker::text::data::{DatumOptions, Reduction};
use tinker::train::{Batches, NllEvaluator, Report, SavePolicy, Supervised};

use super::Desk;
use crate::commands::data::Lines;
use crate::commands::data::examples_of;

pub(super) fn train(desk: &mut Desk) -> anyhow::Result<Report> {
    let (train, test) = datums(desk)?;
    let settings = &desk.settings;
    let size = settings.batch_size.unwrap_or(32.min(train.len()));
    let data = Batches::new(train, size)?;
    let rate = match settings.learning_rate {
        Some(rate) => rate,
        None => tinker::train::learning_rate_for(&desk.model)
            .context("there is no recommended learning rate; give one with --learning-rate")?,
    };
    let mut sft = Supervised::new(desk.model())
        .with_learning_rate(rate)
        .with_epochs(settings.epochs.unwrap_or(1))
        .with_save(SavePolicy::every(settings.save_every.unwrap_or(20)))
        .with_eval_every(settings.eval_every.unwrap_or(10));
    if let Some(steps) = settings.max_steps {
        sft = sft.with_max_steps(steps);
    }
    if !test.is_empty() {
        let evaluator = NllEvaluator::new(test).with_tokenizer(desk.tokenizer.clone());
        sft = sft.with_evaluator(evaluator);
    }
    let (service, run) = desk.begin()?;
    Ok(sft.train(service, run, &data)?)
}

/// The conversations as examples, some of them kept for evaluation.
fn datums(desk: &Desk) -> anyhow::Result<(Vec<Datum>, Vec<Datum>)> {
    let settings = &desk.settings;
    let mut options = DatumOptions::default().with_reduction(Reduction::Mean);
    options.max_length = settings.max_length;
    let what = settings.train_on.unwrap_or_default();
    let file = desk.data()?;
    let mut conversations = Vec::new();
    for line in Lines::open(file)? {
        let line = line?;
        let number = line.number;
        let place = || format!("{}, line {number}", file.display());
        let line = line.text().with_context(place)?;
        let examples = examples_of(&desk.renderer, &line, what).with_context(place)?;
        let datums = examples.iter().map(|example| example.to_datum(&options));
        conversations.push(
            datums
                .collect::<Result<Vec<Datum>, _>>()
                .with_context(place)?,
        );
    }
    let (train, test) = desk.shuffled_split(conversations)?;
    let flat = |lines: Vec<Vec<Datum>>| lines.into_iter().flatten().collect();
    Ok((flat(train), flat(test)))
}
