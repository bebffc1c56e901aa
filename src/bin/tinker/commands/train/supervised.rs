//! `tinker train sft`.

use anyhow::Context as _;
use tinker::Datum;
use tinker::text::data::{DatumOptions, Reduction, permutation};
use tinker::train::{Batches, NllEvaluator, Report, SavePolicy, Supervised};

use super::Desk;
use crate::commands::data::Lines;
use crate::commands::data::examples_of;

pub(super) fn train(desk: &mut Desk) -> anyhow::Result<Report> {
    let (train, test) = datums(desk)?;
    let settings = &desk.settings;
    let size = settings.batch_size.unwrap_or(32.min(train.len()));
    let data = Batches::new(train, size)?;
    let mut sft = Supervised::new(desk.model())
        .with_learning_rate(desk.learning_rate()?)
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
    Ok(sft.train(&desk.service, &mut desk.run, &data)?)
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
        let (number, line) = line?;
        let place = || format!("{}, line {number}", file.display());
        let examples = examples_of(&desk.renderer, &line, what).with_context(place)?;
        let datums = examples.iter().map(|example| example.to_datum(&options));
        conversations.push(
            datums
                .collect::<Result<Vec<Datum>, _>>()
                .with_context(place)?,
        );
    }
    let test_size = settings.test_size.unwrap_or(0).min(conversations.len());
    // Shuffled as the Python cookbook does, so that both keep the same lines apart.
    let order = permutation(conversations.len(), 0);
    let pick = |order: &[usize]| {
        order
            .iter()
            .flat_map(|index| conversations[*index].clone())
            .collect()
    };
    Ok(match test_size {
        0 => (conversations.into_iter().flatten().collect(), Vec::new()),
        _ => (pick(&order[test_size..]), pick(&order[..test_size])),
    })
}
