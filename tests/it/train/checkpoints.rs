//! Which checkpoints a run leaves behind, and for how long.

use std::time::Duration;

use tinker::client::ListOptions;
use tinker::local::LocalServer;
use tinker::train::{Batches, Existing, Run, RunReader, SavePolicy, Supervised};
use tinker::types::Checkpoint;

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
