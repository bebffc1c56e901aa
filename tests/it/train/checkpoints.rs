//! Which checkpoints a run leaves behind, and for how long.

use std::time::Duration;

use tinker::client::ListOptions;
use tinker::local::LocalServer;
use tinker::train::rl::Rl;
use tinker::train::{
    Batches, Checkpoints, Existing, Interrupt, Logger, Outcome, Position, Row, Run, RunFolder,
    RunReader, SavePolicy, Supervised,
};
use tinker::types::Checkpoint;

use super::resume::{model, problems};
use crate::support::local;

/// Trains for six steps of eight tokens each. `rows` are those of `checkpoints.jsonl` by name,
/// rolling ones with a `~`; `kept` is what the service still has, those that expire with a `?`.
#[track_caller]
fn check(policy: SavePolicy, rows: &[&str], kept: &[&str]) {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let root = tempfile::tempdir().unwrap();
    let mut run = Run::open(root.path(), Existing::Raise).unwrap();
    let data = Batches::new(vec![local::datum(8); 6], 1).unwrap();
    Supervised::new(local::base_model(&service))
        .with_save(policy.clone())
        .train(&service, &mut run, &data)
        .unwrap();
    let records = RunReader::open(root.path()).unwrap().checkpoints;
    let names = records.iter().map(|record| match record.is_rolling() {
        true => format!("{}~", record.name),
        false => record.name.clone(),
    });
    assert_eq!(names.collect::<Vec<_>>(), rows, "{policy:?}");
    let listed = service.rest().user_checkpoints(ListOptions::default());
    let name = |saved: Checkpoint| {
        let (_, name) = saved.tinker_path.split_once(":train:0/").unwrap();
        let mark = if saved.expires_at.is_some() { "?" } else { "" };
        format!("{name}{mark}")
    };
    let mut found: Vec<String> = listed.map(|saved| name(saved.unwrap())).collect();
    found.sort();
    assert_eq!(found, kept, "{policy:?}");
}

#[test]
fn periodic_ones_expire_rolling_ones_go_and_the_last_one_stays() {
    let day = Some(Duration::from_secs(86_400));
    let policy = SavePolicy::every(4).with_rolling(2);
    let rows = ["000002~", "000004", "final"];
    let kept = [
        "sampler_weights/000004?",
        "sampler_weights/final",
        "weights/000004?",
        "weights/final",
    ];
    check(policy.clone().with_ttl(day), &rows, &kept);
    check(policy.clone().with_ttl(day).in_background(), &rows, &kept);
    let for_ever = kept.map(|name| name.trim_end_matches('?'));
    check(policy.with_ttl(None), &rows, &for_ever);
}

#[test]
fn they_are_due_by_tokens_and_by_time() {
    let last = ["sampler_weights/final", "weights/final"];
    check(SavePolicy::every(0), &["final"], &last);
    let tokens = SavePolicy::every(0).with_tokens(24).with_ttl(None);
    let kept = [
        "sampler_weights/000003",
        "sampler_weights/final",
        "weights/000003",
        "weights/final",
    ];
    check(tokens, &["000003", "final"], &kept);
    let time = SavePolicy::every(0).with_time(Duration::from_nanos(1));
    let rows = ["000001", "000002", "000003", "000004", "000005", "final"];
    let of = |folder: &str| {
        rows.map(|name| match name {
            "final" => format!("{folder}/final"),
            name => format!("{folder}/{name}?"),
        })
    };
    let kept = [of("sampler_weights"), of("weights")].concat();
    check(
        time,
        &rows,
        &kept.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}

/// Ends a run after its first step.
struct Enough(Interrupt);

impl Logger for Enough {
    fn metrics(&mut self, _step: usize, _row: &Row) {
        self.0.set();
    }
}

#[test]
fn an_interrupted_run_keeps_the_checkpoint_that_would_have_rolled_on() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let root = tempfile::tempdir().unwrap();
    let interrupt = Interrupt::new();
    let mut run = Run::open(root.path(), Existing::Raise)
        .unwrap()
        .with_interrupt(interrupt.clone())
        .with_logger(Enough(interrupt));
    let report = Rl::new(model(&service), 4)
        .with_save(SavePolicy::every(0).with_rolling(1))
        .train(&service, &mut run, &problems(&service, 4))
        .unwrap();
    assert_eq!(report.outcome, Outcome::Interrupted);
    let last = report.checkpoint.unwrap();
    assert_eq!((last.name.as_str(), last.is_rolling()), ("000001", false));
    assert!(last.sampler_path.is_some(), "{last:?}");
}

#[test]
fn what_was_saved_over_a_rolling_checkpoint_does_not_roll_on() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let training = local::train(&service);
    let root = tempfile::tempdir().unwrap();
    let folder = RunFolder::open(root.path(), Existing::Raise).unwrap();
    let policy = SavePolicy::every(0).with_rolling(1);
    let mut checkpoints = Checkpoints::new(&service, &training, &folder, policy, 0);
    let at = |steps: usize| {
        let mut position = Position::default();
        (position.steps, position.batch) = (steps, steps as u64);
        position
    };
    checkpoints.save_if_due(&at(1)).unwrap();
    let kept = checkpoints.save(&at(1)).unwrap();
    checkpoints.save_if_due(&at(2)).unwrap();
    checkpoints.save_final(&at(3)).unwrap();
    let mut there: Vec<String> = service
        .rest()
        .user_checkpoints(ListOptions::default())
        .map(|saved| saved.unwrap().tinker_path)
        .collect();
    there.retain(|path| path.contains("/weights/"));
    assert_eq!(there.len(), 2, "{there:?}");
    assert!(there.contains(&kept.state_path.unwrap()), "{there:?}");
}
