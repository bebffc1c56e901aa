//! `tinker model`: what the service offers.

use clap::Subcommand;
use serde::Serialize;
use tinker::types::SupportedModel;

use crate::context::Context;
use crate::failure::Failure;
use crate::output::Table;
use crate::units::yes;

#[derive(Debug, Subcommand)]
pub(crate) enum Model {
    /// List the models your organization can use; their names go where a base model is asked for.
    List {
        /// Only the models whose name contains this, in any case.
        substring: Option<String>,
    },
}

#[derive(Serialize)]
struct Models<'a> {
    models: Vec<&'a SupportedModel>,
}

impl Model {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let Self::List { substring } = self;
        let service = context.service()?;
        let all = service.capabilities()?.supported_models;
        let models: Vec<_> = match &substring {
            Some(part) => all.iter().filter(|model| contains(model, part)).collect(),
            None => all.iter().collect(),
        };
        if let (Some(part), true) = (&substring, models.is_empty()) {
            // A plain key does not say whose it is, and that is no reason to fail.
            let whose = service.whoami().ok();
            let whose = whose.map(|who| format!(" for organization {}", who.org_urn));
            let message = format!(
                "no model name contains '{part}'{}",
                whose.unwrap_or_default()
            );
            return Err(Failure::new(message)
                .advise("Run 'tinker model list' to see every model you can use.")
                .into());
        }
        if context.is_json() {
            return context.out.json(&Models { models });
        }
        let mut table = Table::new(["Model", "Max Context", "Trainable", "Sampleable"]);
        for model in models {
            let unknown = || "N/A".to_owned();
            table.row([
                model.model_name.clone().unwrap_or_else(unknown),
                model
                    .max_context_length
                    .map_or_else(unknown, |length| length.to_string()),
                model.trainable.map_or_else(unknown, yes),
                model.sampleable.map_or_else(unknown, yes),
            ]);
        }
        context.out.table(&table)
    }
}

fn contains(model: &SupportedModel, part: &str) -> bool {
    let name = model.model_name.as_deref().unwrap_or_default();
    name.to_lowercase().contains(&part.to_lowercase())
}
