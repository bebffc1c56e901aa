//! Runs and checkpoints as JSON: every field, in the order and spelling of the Python command
//! line, which writes times with a space.

use std::collections::BTreeMap;

use serde::Serialize;
use tinker::types::{Checkpoint, Timestamp, TrainingRun};

/// A checkpoint.
#[derive(Debug, Serialize)]
pub(crate) struct CheckpointView<'a> {
    checkpoint_id: &'a str,
    checkpoint_type: &'a str,
    time: String,
    tinker_path: &'a str,
    size_bytes: Option<u64>,
    public: bool,
    user_metadata: &'a Option<BTreeMap<String, String>>,
    expires_at: Option<String>,
}

impl<'a> From<&'a Checkpoint> for CheckpointView<'a> {
    fn from(checkpoint: &'a Checkpoint) -> Self {
        Self {
            checkpoint_id: &checkpoint.checkpoint_id,
            checkpoint_type: checkpoint.checkpoint_type.as_str(),
            time: spaced(checkpoint.time),
            tinker_path: &checkpoint.tinker_path,
            size_bytes: checkpoint.size_bytes,
            public: checkpoint.public,
            user_metadata: &checkpoint.user_metadata,
            expires_at: checkpoint.expires_at.map(spaced),
        }
    }
}

/// A training run.
#[derive(Debug, Serialize)]
pub(crate) struct RunView<'a> {
    training_run_id: &'a str,
    base_model: &'a str,
    model_owner: &'a str,
    is_lora: bool,
    corrupted: bool,
    lora_rank: Option<u32>,
    last_request_time: String,
    last_checkpoint: Option<CheckpointView<'a>>,
    last_sampler_checkpoint: Option<CheckpointView<'a>>,
    user_metadata: &'a Option<BTreeMap<String, String>>,
}

impl<'a> From<&'a TrainingRun> for RunView<'a> {
    fn from(run: &'a TrainingRun) -> Self {
        Self {
            training_run_id: &run.training_run_id,
            base_model: &run.base_model,
            model_owner: &run.model_owner,
            is_lora: run.is_lora,
            corrupted: run.corrupted,
            lora_rank: run.lora_rank,
            last_request_time: spaced(run.last_request_time),
            last_checkpoint: run.last_checkpoint.as_ref().map(Into::into),
            last_sampler_checkpoint: run.last_sampler_checkpoint.as_ref().map(Into::into),
            user_metadata: &run.user_metadata,
        }
    }
}

/// A time as Python prints it.
fn spaced(time: Timestamp) -> String {
    let form = match time.subsec_nanosecond() {
        0 => "%Y-%m-%d %H:%M:%S+00:00",
        _ => "%Y-%m-%d %H:%M:%S.%6f+00:00",
    };
    time.strftime(form).to_string()
}

/// What kind of adapter a run trains: `Yes (Rank 8)`.
pub(crate) fn lora(run: &TrainingRun) -> String {
    match (run.is_lora, run.lora_rank) {
        (true, Some(rank)) if rank > 0 => format!("Yes (Rank {rank})"),
        (true, _) => "Yes".into(),
        (false, _) => "No".into(),
    }
}

/// How many of a long list to show and how to fetch it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// How many records; 0 for all.
    pub(crate) limit: u64,
    /// How many to ask for at once.
    pub(crate) batch: u64,
}

/// Fetches a list page by page and hands each on, so that a list of any length needs the memory
/// of one page. `fetch` takes how many and from where, and says how many there are in all.
pub(crate) fn each_page<T>(
    window: Window,
    mut fetch: impl FnMut(u32, u64) -> anyhow::Result<(Vec<T>, Option<u64>)>,
    mut page: impl FnMut(Vec<T>, u64, u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (mut offset, mut wanted) = (0, u64::MAX);
    if window.limit > 0 {
        wanted = window.limit;
    }
    loop {
        let ask = window.batch.min(wanted - offset);
        let (items, total) = fetch(u32::try_from(ask)?, offset)?;
        let count = items.len() as u64;
        let total = total.unwrap_or(offset + count);
        wanted = wanted.min(total);
        page(items, wanted, total)?;
        offset += count;
        if offset >= wanted || count < ask {
            return Ok(());
        }
    }
}

/// `3 runs (2 more not shown, use --limit to see more)`.
pub(crate) fn title(noun: &str, shown: u64, total: u64, of: &str) -> String {
    let counted = match shown {
        0 => return format!("No {noun}s found{of}"),
        shown => crate::units::count(shown, noun),
    };
    match total.saturating_sub(shown) {
        0 => format!("{counted}{of}"),
        more => format!("{counted}{of} ({more} more not shown, use --limit to see more)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages asked for, as (how many, from where), of a list of `total` records.
    #[track_caller]
    fn check(limit: u64, total: u64, expected: &[(u32, u64)]) {
        let mut asked = Vec::new();
        let mut seen = Vec::new();
        let window = Window { limit, batch: 100 };
        let fetch = |count: u32, from: u64| {
            asked.push((count, from));
            let items = (from..total.min(from + u64::from(count))).collect();
            Ok((items, Some(total)))
        };
        each_page(window, fetch, |items: Vec<u64>, _, _| {
            seen.extend(items);
            Ok(())
        })
        .unwrap();
        assert_eq!(asked, expected);
        let wanted = if limit == 0 { total } else { limit.min(total) };
        assert_eq!(seen, (0..wanted).collect::<Vec<_>>());
    }

    #[test]
    fn lists_are_fetched_in_pages() {
        check(20, 5, &[(20, 0)]);
        check(20, 50, &[(20, 0)]);
        check(250, 1_000, &[(100, 0), (100, 100), (50, 200)]);
        check(0, 250, &[(100, 0), (100, 100), (50, 200)]);
        check(0, 0, &[(100, 0)]);
    }

    #[test]
    fn titles_count() {
        assert_eq!(title("run", 0, 0, ""), "No runs found");
        assert_eq!(title("run", 1, 1, " of X"), "1 run of X");
        assert_eq!(
            title("run", 2, 5, ""),
            "2 runs (3 more not shown, use --limit to see more)"
        );
    }
}
