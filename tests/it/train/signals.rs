//! Ctrl-C by a real signal: saved, told to the service, resumed to the same curve.
//!
//! A signal is for a whole process, so the loop that is interrupted runs in one of its own.

use std::path::Path;
use std::process::Command;

use rustix::process::{Signal, getpid, kill_process};
use tinker::config::Config;
use tinker::local::LocalServer;
use tinker::train::{Existing, Interrupt, Logger, Outcome, Report, Row, Run};
use tinker::types::{FinishReason, SessionSearch, SessionStatus};
use tinker::{Result, ServiceClient};

use super::resume::{prefer, reinforce, same, supervise};
use crate::support::local;

const URL: &str = "TINKER_TEST_SIGNAL_URL";
const FOLDER: &str = "TINKER_TEST_SIGNAL_FOLDER";
const LOOP: &str = "TINKER_TEST_SIGNAL_LOOP";

type Train = fn(&ServiceClient, &mut Run) -> Result<Report>;

fn of_name(name: &str) -> Train {
    match name {
        "supervised" => supervise,
        "preferences" => prefer,
        "reinforcement" => reinforce,
        other => panic!("no loop {other}"),
    }
}

/// Presses Ctrl-C after a step.
struct Press(usize);

impl Logger for Press {
    fn metrics(&mut self, step: usize, _row: &Row) {
        if step == self.0 {
            kill_process(getpid(), Signal::INT).unwrap();
        }
    }
}

/// What the process of its own does; nothing where no test started it.
#[test]
fn child() {
    let Ok(url) = std::env::var(URL) else {
        return;
    };
    let train = of_name(&std::env::var(LOOP).unwrap());
    let folder = std::env::var(FOLDER).unwrap();
    let config = Config::default()
        .with_base_url(url)
        .with_api_key("tml-test")
        .with_telemetry(false);
    let service = ServiceClient::new(config).unwrap();
    let mut run = Run::open(&folder, Existing::Resume)
        .unwrap()
        .with_interrupt(Interrupt::on_ctrl_c().unwrap())
        .with_logger(Press(1));
    let report = train(&service, &mut run).unwrap();
    assert_eq!(report.outcome, Outcome::Interrupted);
    let session = service.session_id().unwrap().to_string();
    std::fs::write(Path::new(&folder).with_extension("session"), session).unwrap();
    report.close(&service).unwrap();
}

#[track_caller]
fn check(name: &str, metrics: &[&str]) {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let root = tempfile::tempdir().unwrap();
    let open = |name: &str| Run::open(root.path().join(name), Existing::Resume).unwrap();
    let train = of_name(name);
    let whole = train(&service, &mut open("whole")).unwrap();
    assert_eq!(whole.outcome, Outcome::Completed);

    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "train::signals::child", "--nocapture"])
        .env(URL, server.base_url())
        .env(FOLDER, root.path().join("parts"))
        .env(LOOP, name)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);

    let session = std::fs::read_to_string(root.path().join("parts.session")).unwrap();
    let mut sessions = service.rest().matching_sessions(SessionSearch::default());
    let status = sessions.find_map(|found| {
        let found = found.unwrap();
        (found.session_id.as_str() == session).then_some(found.status)
    });
    let Some(Some(SessionStatus::ClientFinished { reason, .. })) = status else {
        panic!("{session}: {status:?}");
    };
    assert_eq!(reason, FinishReason::Interrupted);

    let rest = train(&service, &mut open("parts")).unwrap();
    assert_eq!(rest.outcome, Outcome::Completed);
    same(root.path(), metrics);
}

#[test]
fn supervised() {
    check("supervised", &["train_mean_nll", "test/nll"]);
}

#[test]
fn preferences() {
    check("preferences", &["dpo_loss", "margin"]);
}

#[test]
fn reinforcement() {
    check("reinforcement", &["env/all/reward/total", "optim/entropy"]);
}
