//! Every command of the Python command line against the embedded server.

use std::fs;

use serde_json::{Value, json};
use tinker::ServiceClient;
use tinker::local::LocalServer;

use super::Desk;
use crate::support::local;
use crate::support::scripted::{Gate, Reply, Server};

/// A server with a run that has a checkpoint of each kind.
struct Scene {
    _server: LocalServer,
    desk: Desk,
    run: String,
}

impl Scene {
    fn new() -> Self {
        let server = LocalServer::builder().start().unwrap();
        let service: ServiceClient = local::service(&server);
        let training = local::train(&service);
        training.save_state("one").unwrap().join().unwrap();
        let saved = training.save_weights_for_sampler("one");
        saved.unwrap().join().unwrap();
        let exported = training.save_weights_external("one");
        exported.unwrap().join().unwrap();
        let run = training.model_id().to_string();
        let desk = Desk::at(&server.base_url());
        Self {
            _server: server,
            desk,
            run,
        }
    }

    fn path(&self, kind: &str) -> String {
        format!("tinker://{}/{kind}/one", self.run)
    }

    fn json(&self, args: &[&str]) -> Value {
        let args = [&["-f", "json"], args].concat();
        self.desk.run(&args).json()
    }
}

#[test]
fn runs_are_listed_and_shown() {
    let scene = Scene::new();
    let listed = scene.json(&["run", "list"]);
    assert_eq!(listed["runs"][0]["training_run_id"], scene.run.as_str());
    let table = scene
        .desk
        .run(&["run", "list", "--columns", "id,checkpoint"])
        .ok();
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines[0], "1 training run");
    assert!(
        lines[1].starts_with("Run ID") && lines[1].ends_with("Last Checkpoint"),
        "{table}"
    );
    assert!(
        lines[3].starts_with(&scene.run) && lines[3].ends_with("weights/one"),
        "{table}"
    );
    let shown = scene.json(&["run", "info", &scene.run]);
    assert_eq!(shown, listed["runs"][0]);
    let table = scene.desk.run(&["run", "info", &scene.run]).ok();
    assert!(
        table.contains("Base Model") && table.contains("Yes (Rank 2)"),
        "{table}"
    );
    // JSON may be asked for after the command too.
    let after = scene
        .desk
        .run(&["run", "info", &scene.run, "-f", "json"])
        .json();
    assert_eq!(after, shown);
}

#[test]
fn checkpoints_are_listed_changed_and_deleted() {
    let scene = Scene::new();
    let listed = scene.json(&["checkpoint", "list", "--run-id", &scene.run]);
    assert_eq!(listed["checkpoints"].as_array().unwrap().len(), 3);
    assert_eq!(
        scene.json(&["checkpoint", "list"])["checkpoints"],
        listed["checkpoints"]
    );
    let two = scene.desk.run(&["checkpoint", "list", "--limit", "2"]).ok();
    assert!(two.starts_with("2 checkpoints (1 more not shown"), "{two}");

    let path = scene.path("weights");
    let info = |field: &str| scene.json(&["checkpoint", "info", &path])[field].clone();
    assert_eq!(info("lora_rank"), 2);
    assert_eq!(scene.desk.run(&["checkpoint", "publish", &path]).ok(), "");
    assert_eq!(info("public"), true);
    let twice = scene.desk.run(&["checkpoint", "publish", &path]).failed(1);
    assert!(twice.contains("already public"), "{twice}");
    assert_eq!(scene.desk.run(&["checkpoint", "unpublish", &path]).ok(), "");
    assert_eq!(info("public"), false);
    scene
        .desk
        .run(&["checkpoint", "set-ttl", &path, "--ttl", "3600"])
        .ok();
    assert!(info("expires_at").is_string());
    scene
        .desk
        .run(&["checkpoint", "set-ttl", &path, "--remove"])
        .ok();
    assert_eq!(info("expires_at"), Value::Null);

    let gone = scene.desk.run_with(&["checkpoint", "delete", &path], "n\n");
    assert!(gone.stderr.contains("cannot be undone"), "{gone:?}");
    assert_eq!(gone.ok(), "Deletion cancelled.\n");
    let nobody = scene.desk.run(&["checkpoint", "delete", &path]).failed(1);
    assert!(nobody.contains("--yes"), "{nobody}");
    let gone = scene
        .desk
        .run_with(&["checkpoint", "delete", &path, &path], "yes\n");
    assert_eq!(gone.ok(), "Deleted 1 checkpoint(s)\n");
    let args = ["-f", "json", "checkpoint", "delete", &path, "-y"];
    let again = scene.desk.run(&args);
    assert_eq!(
        again.exit,
        Some(1),
        "what could not be deleted is a failure"
    );
    let report: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(report["deleted_count"], 0);
    assert_eq!(report["failed"][0]["tinker_path"], path.as_str());
    let all = scene.json(&["checkpoint", "delete", "--run-id", &scene.run, "-y"]);
    assert_eq!(all, json!({"deleted_count": 2, "failed": []}));
}

#[test]
fn checkpoints_are_downloaded() {
    let scene = Scene::new();
    for kind in ["weights", "external_weights"] {
        let path = scene.path(kind);
        let got = scene.json(&["checkpoint", "download", &path, "-o", "got"]);
        let folder = got["destination"].as_str().unwrap();
        assert!(
            folder.ends_with(&format!("{}_{kind}_one", scene.run)),
            "{folder}"
        );
        let bytes: u64 = fs::read_dir(folder)
            .unwrap()
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum();
        assert_eq!(got["file_size_bytes"], bytes);
    }
    let again = scene.desk.run(&[
        "checkpoint",
        "download",
        &scene.path("weights"),
        "-o",
        "got",
    ]);
    assert!(again.failed(1).contains("--force"));
    let args = [
        "checkpoint",
        "download",
        &scene.path("weights"),
        "-o",
        "got",
        "--force",
    ];
    let forced = scene.desk.run(&args);
    assert_eq!(forced.stderr.lines().count(), 1, "{forced:?}");
    assert!(forced.ok().contains("Downloaded to"));
    let left = fs::read_dir(scene.desk.path().join("got")).unwrap().count();
    assert_eq!(left, 2, "nothing else is left");
}

#[test]
fn models_sessions_and_usage_are_shown() {
    let scene = Scene::new();
    let models = scene.json(&["model", "list", "TINY"]);
    assert_eq!(models["models"][0]["model_name"], "tinker-local/tiny");
    let none = scene.desk.run(&["model", "list", "zzz"]).failed(1);
    assert!(none.contains("'tinker model list'"), "{none}");

    let session = scene.run.split(':').next().unwrap();
    let url = scene.json(&["session", "export-trace", session, "--url-only"]);
    assert!(url["url"].as_str().unwrap().starts_with("http://"));
    let got = scene.json(&["session", "export-trace", session, "-o", "deep/t.pftrace"]);
    let file = scene.desk.path().join(got["destination"].as_str().unwrap());
    assert_eq!(got["file_size_bytes"], fs::metadata(file).unwrap().len());

    let now = tinker::types::Timestamp::now().as_second() / 3600 * 3600;
    let at = |second| {
        tinker::types::Timestamp::from_second(second)
            .unwrap()
            .to_string()
    };
    let (from, to) = (at(now - 3600), at(now + 3600));
    let usage = scene.json(&["billing", "usage", &from, &to]);
    assert!(
        usage["data"]
            .as_array()
            .is_some_and(|rows| !rows.is_empty()),
        "{usage}"
    );
    let args = [
        "billing",
        "usage",
        &from,
        &to,
        "--csv",
        "u.csv",
        "--sessions-csv",
        "-",
    ];
    let said = scene.desk.run(&args);
    assert!(said.stderr.starts_with("Wrote "), "{said:?}");
    assert!(said.ok().starts_with("session_id,user_metadata\n"));
    let csv = fs::read_to_string(scene.desk.path().join("u.csv")).unwrap();
    assert!(
        csv.starts_with("bucket_start,bucket_end,base_model,"),
        "{csv}"
    );
    let storage = scene.desk.run(&["billing", "checkpoint-storage"]).ok();
    assert!(
        storage.starts_with("Current checkpoint storage\n"),
        "{storage}"
    );
    assert_eq!(
        scene.json(&["billing", "checkpoint-storage"])["data"][0]["checkpoint_count"],
        3
    );
}

#[test]
fn a_key_is_stored_used_and_forgotten() {
    let server = LocalServer::builder().api_key("tml-right").start().unwrap();
    let desk = Desk::bare().with("TINKER_BASE_URL", &server.base_url());
    let none = desk.run(&["auth", "status"]);
    assert_eq!(none.stdout, "Credentials available: no\n");
    assert!(none.failed(1).contains("tinker auth login"));
    let wrong = desk.run_with(&["auth", "login"], "tml-wrong\n");
    assert!(!format!("{wrong:?}").contains("tml-wrong"), "{wrong:?}");
    assert!(wrong.failed(1).contains("could not validate the API key"));
    let empty = desk.run_with(&["auth", "login"], "\n").failed(1);
    assert!(empty.contains("must not be empty"), "{empty}");

    let said = desk.run_with(&["auth", "login"], "tml-right\n");
    assert!(!format!("{said:?}").contains("tml-right"), "{said:?}");
    assert!(said.ok().contains("Logged in as local@localhost (local)."));
    let twice = desk.run_with(&["auth", "login"], "tml-right\n").failed(1);
    assert!(twice.contains("tinker auth logout"), "{twice}");
    let status = desk.run(&["auth", "status"]).ok();
    assert_eq!(
        status,
        "Credentials available: yes\nTinker accessible: yes\n"
    );
    let out = desk.run(&["auth", "logout"]).ok();
    assert!(out.contains("The API key is still active."), "{out}");
    assert!(
        desk.run(&["auth", "logout"])
            .failed(1)
            .contains("nothing to log out from")
    );
}

#[test]
fn whoami_reads_the_token() {
    let server = LocalServer::builder()
        .flag("pjwt_auth_enabled", true)
        .start()
        .unwrap();
    let desk = Desk::at(&server.base_url());
    let who = desk.run(&["auth", "whoami", "-f", "json"]).json();
    assert!(
        who["user_urn"].as_str().unwrap().starts_with("tml:"),
        "{who}"
    );
    assert!(desk.run(&["auth", "whoami"]).ok().contains("Organization"));
}

/// Someone whose key is fine is not told to set one.
#[test]
fn whoami_of_a_plain_key_says_what_can_be_asked() {
    let server = LocalServer::builder().start().unwrap();
    let said = Desk::at(&server.base_url())
        .run(&["auth", "whoami"])
        .failed(1);
    assert!(said.contains("tinker auth status"), "{said}");
    assert!(!said.contains("Set TINKER_API_KEY"), "{said}");
    let said = Desk::bare().run(&["auth", "whoami"]).failed(1);
    assert!(said.contains("TINKER_API_KEY"), "{said}");
}

#[test]
fn a_list_that_fails_prints_nothing() {
    let server = LocalServer::start().unwrap();
    let nowhere = format!("{}/nowhere", server.base_url());
    for (url, args) in [
        (nowhere, &["run", "list"][..]),
        (server.base_url(), &["checkpoint", "list", "--run-id", "no"]),
    ] {
        for format in ["table", "json"] {
            let said = Desk::at(&url).run(&[&["-f", format], args].concat());
            assert_eq!((said.exit, said.stdout.as_str()), (Some(1), ""), "{said:?}");
        }
    }
}

/// A server with this many runs. Its last page waits at the gate, if there is one.
fn crowd(total: usize, gate: Option<&Gate>) -> Server {
    let server = Server::start();
    server.always("POST", "client/config", Reply::json(&json!({})));
    let gate = gate.cloned();
    server.on("GET", "training_runs", move |request| {
        let number = |name: &str| {
            let field = request
                .query
                .split('&')
                .find_map(|pair| pair.strip_prefix(name));
            field.unwrap().parse::<usize>().unwrap()
        };
        let (limit, offset) = (number("limit="), number("offset="));
        let run = |index: usize| {
            json!({"training_run_id": format!("run-{index}"), "base_model": "m", "model_owner": "o",
                "is_lora": true, "last_request_time": "2026-01-02T03:04:05Z"})
        };
        let runs: Vec<Value> = (offset..(offset + limit).min(total)).map(run).collect();
        let cursor = json!({"offset": offset, "limit": limit, "total_count": total});
        let reply = Reply::json(&json!({"training_runs": runs, "cursor": cursor}));
        match &gate {
            Some(gate) if offset + limit >= total => reply.after(gate),
            _ => reply,
        }
    });
    server
}

/// What the command has held in memory at most, in KiB, when it asks for the last of so many runs.
#[cfg(target_os = "linux")]
fn peak_of_listing(total: usize, format: &str) -> u64 {
    let gate = Gate::new();
    let server = crowd(total, Some(&gate));
    let desk = Desk::at(&server.url());
    let mut child = desk
        .command(&["-f", format, "run", "list", "--limit", "0"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut printed = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut printed, &mut text).map(|_| text)
    });
    gate.wait_for(1);
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    gate.open();
    assert!(child.wait().unwrap().success());
    let text = reader.join().unwrap().unwrap();
    assert!(text.contains(&format!("run-{}", total - 1)));
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_list_takes_as_much_memory_for_ten_thousand_runs_as_for_one() {
    for format in ["json", "table"] {
        let (few, many) = (
            peak_of_listing(1_000, format),
            peak_of_listing(10_000, format),
        );
        // Ten thousand runs are megabytes of JSON; a page is a hundredth of that.
        assert!(
            many < few + 2_048,
            "{format}: {few} KiB for 1,000 runs, {many} KiB for 10,000"
        );
    }
}

#[test]
fn a_list_of_ten_thousand_runs_comes_page_by_page() {
    let server = crowd(10_000, None);
    let desk = Desk::at(&server.url());
    let all = desk
        .run(&["-f", "json", "run", "list", "--limit", "0"])
        .json();
    assert_eq!(all["runs"].as_array().unwrap().len(), 10_000);
    assert_eq!(all["runs"][9_999]["training_run_id"], "run-9999");
    assert_eq!(server.requests_to("training_runs").len(), 100);
    // A reader that has seen enough: the first page is printed long before the last is asked for.
    let mut child = desk
        .command(&["run", "list", "--limit", "0"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 64];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    drop(child.stdout.take());
    let said = super::Said::from(child.wait_with_output().unwrap());
    assert_eq!(
        (said.exit, said.stderr.as_str()),
        (Some(0), ""),
        "a closed pipe is no error"
    );
    assert!(first.starts_with(b"10000 training runs\n"));
    assert!(
        server.requests_to("training_runs").len() < 200,
        "it stopped asking"
    );
}
