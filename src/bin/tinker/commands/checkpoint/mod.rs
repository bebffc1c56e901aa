//! `tinker checkpoint`: saved weights of the service.

mod delete;
pub(crate) mod download;
pub(crate) mod push;

use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tinker::RestClient;
use tinker::client::ListOptions;
use tinker::types::{AccessScope, TinkerPath};

use super::records::{CheckpointView, Window, each_page, lora, title};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{JsonList, Listing, Table};
use crate::units::{since, size, yes};

#[derive(Debug, Subcommand)]
pub(crate) enum Checkpoint {
    /// List checkpoints, of one run or of all, newest first.
    List(List),
    /// Show one checkpoint.
    Info(Path),
    /// Let everyone use a checkpoint. Only the run's owner may.
    Publish(Path),
    /// Make a public checkpoint private again.
    Unpublish(Path),
    /// Say how long a checkpoint is kept.
    SetTtl(SetTtl),
    /// Delete checkpoints for good.
    Delete(delete::Delete),
    /// Download a training checkpoint or external weights into a folder of its own.
    Download(download::Download),
    /// Upload a checkpoint to the Hugging Face hub as a PEFT adapter.
    PushHf(push::PushHf),
}

/// One checkpoint.
#[derive(Debug, Args)]
pub(crate) struct Path {
    /// The checkpoint's path: tinker://run-id/weights/0001
    checkpoint_path: String,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only the checkpoints of this run, all of them.
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,
    /// How many checkpoints to show of all runs; 0 for all.
    #[arg(long, default_value_t = 20)]
    limit: u64,
}

#[derive(Debug, Args)]
pub(crate) struct SetTtl {
    #[command(flatten)]
    path: Path,
    /// Keep it for so many seconds from now: an hour to ten years.
    #[arg(long, value_name = "SECONDS")]
    ttl: Option<u64>,
    /// Keep it for ever.
    #[arg(long)]
    remove: bool,
}

impl Checkpoint {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        match self {
            Self::List(list) => list.run(context),
            Self::Info(path) => info(context, &path.checkpoint_path),
            Self::Publish(path) => {
                let path = checked(&path.checkpoint_path)?;
                Ok(context.rest()?.publish_checkpoint(path)?)
            }
            Self::Unpublish(path) => {
                let path = checked(&path.checkpoint_path)?;
                Ok(context.rest()?.unpublish_checkpoint(path)?)
            }
            Self::SetTtl(set) => set.run(context),
            Self::Delete(delete) => delete.run(context),
            Self::Download(download) => download.run(context),
            Self::PushHf(push) => push.run(context),
        }
    }
}

/// Refuses what cannot be a checkpoint's path before anything is sent.
fn checked(path: &str) -> anyhow::Result<&str> {
    match path.parse::<TinkerPath>() {
        Ok(_) => Ok(path),
        Err(_) => Err(Failure::new(format!("invalid checkpoint path: {path}"))
            .advise("A checkpoint's path has the form tinker://run-id/weights/0001.")
            .into()),
    }
}

impl SetTtl {
    fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let path = checked(&self.path.checkpoint_path)?;
        let advice = "Use --ttl to set an expiration or --remove to clear it.";
        let ttl = match (self.ttl, self.remove) {
            (Some(seconds), false) => Some(Duration::from_secs(seconds)),
            (None, true) => None,
            (None, false) => {
                let failure = Failure::new("either --ttl SECONDS or --remove is needed");
                return Err(failure.advise(advice).into());
            }
            (Some(_), true) => {
                let failure = Failure::new("--ttl and --remove contradict each other");
                return Err(failure.advise(advice).into());
            }
        };
        Ok(context.rest()?.set_checkpoint_ttl(path, ttl)?)
    }
}

const COLUMNS: [&str; 7] = [
    "Checkpoint ID",
    "Type",
    "Size",
    "Public",
    "Created",
    "Expires",
    "Path",
];

fn row(checkpoint: &tinker::types::Checkpoint) -> Vec<String> {
    vec![
        checkpoint.checkpoint_id.clone(),
        checkpoint.checkpoint_type.to_string(),
        checkpoint.size_bytes.map_or_else(|| "N/A".into(), size),
        yes(checkpoint.public),
        since(checkpoint.time),
        checkpoint.expires_at.map_or_else(|| "Never".into(), since),
        checkpoint.tinker_path.clone(),
    ]
}

impl List {
    fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let rest = context.rest()?;
        let run_id = self.run_id.as_deref();
        // The checkpoints of one run come all at once.
        let window = Window {
            limit: if run_id.is_some() { 0 } else { self.limit },
            batch: 1_000,
        };
        let fetch = |count: u32, offset: u64| match run_id {
            Some(run) => Ok((rest.list_checkpoints(run)?, None)),
            None => {
                let options = ListOptions::default().with_limit(count).with_offset(offset);
                let page = rest.list_user_checkpoints(options)?;
                Ok((
                    page.checkpoints,
                    page.cursor.map(|cursor| cursor.total_count),
                ))
            }
        };
        if context.is_json() {
            let fields: Vec<_> = run_id.map(|run| ("run_id", run)).into_iter().collect();
            let mut list = JsonList::start(&mut context.out, &fields, "checkpoints")?;
            each_page(window, fetch, |page, _, _| {
                let mut items = page.iter().map(CheckpointView::from);
                items.try_for_each(|item| list.item(&item))
            })?;
            return list.end();
        }
        let of = run_id.map_or_else(String::new, |run| format!(" for run {run}"));
        let mut listing = None;
        each_page(window, fetch, |page, shown, total| {
            let rows: Vec<_> = page.iter().map(row).collect();
            listing
                .get_or_insert_with(|| {
                    let title = title("checkpoint", shown, total, &of);
                    Listing::start(Some(title), COLUMNS.map(str::to_owned).to_vec())
                })
                .rows(&mut context.out, &rows)
        })
    }
}

/// A checkpoint and what its run says about it.
#[derive(Serialize)]
struct Details<'a> {
    #[serde(flatten)]
    checkpoint: CheckpointView<'a>,
    is_lora: bool,
    lora_rank: Option<u32>,
}

fn info(context: &mut Context, path: &str) -> anyhow::Result<()> {
    checked(path)?;
    let rest = context.rest()?;
    let checkpoint = find(&rest, path)?;
    let run = rest.training_run_by_tinker_path(path, AccessScope::Owned)?;
    if context.is_json() {
        return context.out.json(&Details {
            checkpoint: CheckpointView::from(&checkpoint),
            is_lora: run.is_lora,
            lora_rank: run.lora_rank,
        });
    }
    let mut table = Table::properties().titled(format!("Checkpoint: {}", checkpoint.checkpoint_id));
    table.row(["Checkpoint ID", &checkpoint.checkpoint_id]);
    table.row(["Type", checkpoint.checkpoint_type.as_str()]);
    table.row(["Tinker Path", &checkpoint.tinker_path]);
    if let Some(bytes) = checkpoint.size_bytes {
        table.row(["Size", &size(bytes)]);
    }
    table.row(["Public", &yes(checkpoint.public)]);
    table.row(["Created", &since(checkpoint.time)]);
    let expires = checkpoint.expires_at.map_or_else(|| "Never".into(), since);
    table.row(["Expires", &expires]);
    table.row(["Training Run ID", &run.training_run_id]);
    table.row(["LoRA", &lora(&run)]);
    context.out.table(&table)
}

/// The checkpoint of this path among its run's.
fn find(rest: &RestClient, path: &str) -> anyhow::Result<tinker::types::Checkpoint> {
    let parsed: TinkerPath = path.parse()?;
    let listed = rest.list_checkpoints(parsed.run_id())?;
    let found = listed.into_iter().find(|one| one.tinker_path == path);
    found.ok_or_else(|| {
        let message = format!(
            "checkpoint not found: {path} ('tinker checkpoint list --run-id {}' shows those there are)",
            parsed.run_id()
        );
        Failure::new(message).into()
    })
}
