//! `tinker run`: training runs of the service.

use clap::{Args, Subcommand};
use tinker::client::ListOptions;
use tinker::types::{AccessScope, TrainingRun};

use super::records::{RunView, Window, each_page, lora, title};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{JsonList, Listing, Table};
use crate::units::since;

#[derive(Debug, Subcommand)]
pub(crate) enum Run {
    /// List training runs, the last used first.
    List(List),
    /// Show one run.
    Info {
        /// The run's id.
        run_id: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// How many runs to show; 0 for all.
    #[arg(long, default_value_t = 20)]
    limit: u64,
    /// Columns, separated by commas: id, model, owner, lora, updated, status, checkpoint,
    /// checkpoint_time [default: id,model,lora,updated,status]
    #[arg(short, long, value_name = "NAMES")]
    columns: Option<String>,
}

type Cell = fn(&TrainingRun) -> String;

/// Every column: its name, its heading, its cell.
const COLUMNS: [(&str, &str, Cell); 8] = [
    ("id", "Run ID", |run| run.training_run_id.to_string()),
    ("model", "Base Model", |run| run.base_model.clone()),
    ("owner", "Owner", |run| run.model_owner.clone()),
    ("lora", "LoRA", |run| match (run.is_lora, run.lora_rank) {
        (true, Some(rank)) if rank > 0 => format!("Rank {rank}"),
        _ => lora(run),
    }),
    ("updated", "Last Update", |run| since(run.last_request_time)),
    ("status", "Status", |run| status(run).into()),
    ("checkpoint", "Last Checkpoint", |run| {
        let last = run.last_checkpoint.as_ref();
        last.map_or_else(|| "None".into(), |last| last.checkpoint_id.clone())
    }),
    ("checkpoint_time", "Checkpoint Time", |run| {
        let last = run.last_checkpoint.as_ref();
        last.map_or_else(|| "N/A".into(), |last| since(last.time))
    }),
];
const DEFAULT: &str = "id,model,lora,updated,status";

impl Run {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        match self {
            Self::List(list) => list.run(context),
            Self::Info { run_id } => info(context, &run_id),
        }
    }
}

impl List {
    fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let columns = chosen(self.columns.as_deref().unwrap_or(DEFAULT))?;
        let rest = context.rest()?;
        let window = Window {
            limit: self.limit,
            batch: 100,
        };
        let fetch = |count: u32, offset: u64| {
            let options = ListOptions::default().with_limit(count).with_offset(offset);
            let page = rest.list_training_runs(options)?;
            Ok((page.training_runs, Some(page.cursor.total_count)))
        };
        if context.is_json() {
            let mut list = JsonList::start(&mut context.out, &[], "runs")?;
            each_page(window, fetch, |runs, _, _| {
                runs.iter()
                    .try_for_each(|run| list.item(&RunView::from(run)))
            })?;
            return list.end();
        }
        let names: Vec<String> = columns.iter().map(|column| column.1.to_owned()).collect();
        let mut listing = None;
        each_page(window, fetch, |runs, shown, total| {
            let out = &mut context.out;
            let rows: Vec<Vec<String>> = runs
                .iter()
                .map(|run| columns.iter().map(|column| column.2(run)).collect())
                .collect();
            listing
                .get_or_insert_with(|| {
                    let title = title("training run", shown, total, "");
                    Listing::start(Some(title), names.clone())
                })
                .rows(out, &rows)
        })
    }
}

/// The columns of these names.
fn chosen(names: &str) -> anyhow::Result<Vec<&'static (&'static str, &'static str, Cell)>> {
    let find = |name: &str| COLUMNS.iter().find(|column| column.0 == name);
    let (known, unknown): (Vec<&str>, Vec<&str>) = names
        .split(',')
        .map(str::trim)
        .partition(|name| find(name).is_some());
    if !unknown.is_empty() {
        let all: Vec<&str> = COLUMNS.iter().map(|column| column.0).collect();
        let message = format!(
            "--columns: unknown column {}; there are {}",
            unknown.join(", "),
            all.join(", ")
        );
        return Err(Failure::usage(message).into());
    }
    Ok(known.into_iter().filter_map(find).collect())
}

fn info(context: &mut Context, run_id: &str) -> anyhow::Result<()> {
    let run = context.rest()?.training_run(run_id, AccessScope::Owned)?;
    if context.is_json() {
        return context.out.json(&RunView::from(&run));
    }
    let mut table = Table::properties().titled(format!("Training Run: {}", run.training_run_id));
    table.row(["Run ID", &run.training_run_id]);
    table.row(["Base Model", &run.base_model]);
    table.row(["Owner", &run.model_owner]);
    table.row(["LoRA", &lora(&run)]);
    table.row(["Last Update", &since(run.last_request_time)]);
    table.row(["Status", status(&run)]);
    let checkpoints = [
        ("Last Training Checkpoint", &run.last_checkpoint),
        ("Last Sampler Checkpoint", &run.last_sampler_checkpoint),
    ];
    for (name, checkpoint) in checkpoints {
        if let Some(checkpoint) = checkpoint {
            table.row([name, &checkpoint.checkpoint_id]);
            table.row(["  - Time", &since(checkpoint.time)]);
            table.row(["  - Path", &checkpoint.tinker_path]);
        }
    }
    if let Some(notes) = run.user_metadata.filter(|notes| !notes.is_empty()) {
        table.row(["Metadata", ""]);
        for (key, value) in notes {
            table.row([format!("  - {key}"), value]);
        }
    }
    context.out.table(&table)
}

fn status(run: &TrainingRun) -> &'static str {
    if run.corrupted { "Failed" } else { "OK" }
}
