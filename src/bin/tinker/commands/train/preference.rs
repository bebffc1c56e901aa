//! `tinker train dpo`.

use anyhow::Context as _;
use tinker::Datum;
use tinker::text::TrainOnWhat;
use tinker::text::data::DatumOptions;
use tinker::train::{Batches, Dpo, Report, SavePolicy};

use super::Desk;
use crate::commands::data::read_pairs;

pub(super) fn train(desk: &mut Desk) -> anyhow::Result<Report> {
    let settings = &desk.settings;
    let mut options = DatumOptions::default();
    options.max_length = settings.max_length;
    let what = settings
        .train_on
        .unwrap_or(TrainOnWhat::LastAssistantMessage);
    let mut data: Vec<Datum> = Vec::new();
    for (index, (chosen, rejected)) in read_pairs(desk.data()?)?.into_iter().enumerate() {
        for messages in [chosen, rejected] {
            let example = desk.renderer.example(&messages, what);
            let datum = example.and_then(|example| example.to_datum(&options));
            data.push(datum.with_context(|| format!("pair {}", index + 1))?);
        }
    }
    let size = settings.batch_size.unwrap_or(32.min(data.len() / 2));
    let batches = Batches::of_pairs(data, size)?;
    let mut dpo = Dpo::new(desk.model())
        .with_learning_rate(desk.settings.learning_rate.unwrap_or(1e-5))
        .with_epochs(settings.epochs.unwrap_or(1))
        .with_save(SavePolicy::every(settings.save_every.unwrap_or(20)));
    if let Some(beta) = settings.beta {
        dpo = dpo.with_beta(beta);
    }
    if let Some(steps) = settings.max_steps {
        dpo = dpo.with_max_steps(steps);
    }
    Ok(dpo.train(&desk.service, &mut desk.run, &batches)?)
}
