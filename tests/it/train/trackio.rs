//! The table of a run, imported by the real trackio.

use std::process::Command;

use serde_json::Value;
use tinker::local::LocalServer;
use tinker::train::{Batches, Csv, Existing, Run, RunReader, Supervised};

use crate::support::{local, python};

const SCRIPT: &str = r#"
import contextlib, io, json, sys
import trackio
from trackio.sqlite_storage import SQLiteStorage
with contextlib.redirect_stdout(io.StringIO()):
    trackio.import_csv(sys.argv[1], project="chats", name="first")
print(json.dumps(SQLiteStorage.get_logs("chats", "first")))
"#;

#[test]
fn trackio_reads_what_the_run_logged() {
    let Some(python) = python::environment("trackio-0.43.0", &["trackio==0.43.0"]) else {
        return;
    };
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let folder = tempfile::tempdir().unwrap();
    let (run, table) = (folder.path().join("run"), folder.path().join("metrics.csv"));
    let mut run = Run::open(run, Existing::Raise)
        .unwrap()
        .with_logger(Csv::new(&table));
    let data = Batches::new(vec![local::datum(8); 6], 2).unwrap();
    Supervised::new(local::base_model(&service))
        .train(&service, &mut run, &data)
        .unwrap();

    let output = Command::new(python)
        .args(["-c", SCRIPT])
        .arg(&table)
        .env("TRACKIO_DIR", folder.path().join("trackio"))
        .env("HF_HUB_OFFLINE", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let logged: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let read = RunReader::open(run.folder().path()).unwrap();
    let losses = read.curve("train_mean_nll");
    assert_eq!((losses.len(), logged.len()), (3, 3));
    for (row, (step, loss)) in logged.iter().zip(losses) {
        assert_eq!(row["step"].as_f64().unwrap(), step);
        // It keeps ten letters of a name.
        assert_eq!(row["trainmeann"].as_f64().unwrap(), loss);
    }
}
