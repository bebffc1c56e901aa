//! Checkpoints and records: what can be listed, changed, copied and downloaded.

use serde_json::{Value, json};
use tinker::local::LocalServer;

use super::{Caller, Model};
use crate::support::http::{self, Reply};

fn save(model: &Model<'_>, seq_id: u64, name: &str) -> String {
    let body = json!({"model_id": model.id, "seq_id": seq_id, "path": name});
    let saved = model.caller.call("save_weights", body);
    saved["path"].as_str().unwrap().to_owned()
}

fn ask(caller: &Caller, method: &str, path: &str, body: &str) -> Reply {
    let path = format!("/api/v1/{path}");
    http::request(&caller.url, method, &path, &[], body.as_bytes()).unwrap()
}

/// Follows a link of the server's own.
fn follow(caller: &Caller, url: &str) -> Reply {
    let path = url.strip_prefix(&caller.url).unwrap();
    http::request(&caller.url, "GET", path, &[], b"").unwrap()
}

#[test]
fn training_resumes_where_it_was_saved_by_both_ways() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let texts = ["hello there", "general"];
    let mut seq_id = 1;
    model.train(&mut seq_id, &texts);
    let path = save(&model, seq_id, "a");
    seq_id += 1;
    let losses: Vec<f64> = (0..3).map(|_| model.train(&mut seq_id, &texts)).collect();

    let resume = |model: &Model<'_>, mut seq_id: u64| -> Vec<f64> {
        (0..3).map(|_| model.train(&mut seq_id, &texts)).collect()
    };
    let loaded = caller.model(1);
    let body = json!({"model_id": loaded.id, "seq_id": 1, "path": path, "optimizer": true});
    caller.call("load_weights", body);
    assert_eq!(resume(&loaded, 2), losses);

    let body =
        json!({"session_id": caller.session, "model_seq_id": 2, "path": path, "optimizer": true});
    let created = caller.call("load_weights", body);
    let created = Model {
        caller: &caller,
        id: created["model_id"].as_str().unwrap().to_owned(),
    };
    assert_eq!(created.id, format!("{}:train:2", caller.session));
    assert_eq!(resume(&created, 1), losses);

    let body =
        json!({"session_id": caller.session, "model_seq_id": 3, "path": path, "optimizer": false});
    let fresh = Model {
        caller: &caller,
        id: caller.call("load_weights", body)["model_id"]
            .as_str()
            .unwrap()
            .to_owned(),
    };
    let without = resume(&fresh, 1);
    assert_eq!(without[0], losses[0]);
    assert_ne!(without[2], losses[2], "the optimiser's memory matters");

    let info = caller.ok("weights_info", json!({"tinker_path": path}));
    assert_eq!(
        (&info["lora_rank"], &info["is_lora"]),
        (&json!(4), &json!(true))
    );
}

#[test]
fn saving_and_loading_what_cannot_be_is_refused() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    save(&model, 1, "a");
    let mut seq_id = 2;
    let mut check = |path: &str, change: Value, expected: &str| {
        let mut body = json!({"model_id": model.id, "seq_id": seq_id});
        seq_id += 1;
        body.as_object_mut()
            .unwrap()
            .extend(change.as_object().unwrap().clone());
        let result = caller.wait(&caller.ok(path, body));
        assert_eq!(result["category"], "user", "{result}");
        let error = result["error"].as_str().unwrap();
        assert!(error.contains(expected), "{error}");
    };
    check("save_weights", json!({"path": "a"}), "overwrite");
    check("save_weights", json!({"path": "a/b"}), "without `/`");
    check("save_weights", json!({"path": ""}), "1 to");
    check(
        "save_weights",
        json!({"path": "b", "ttl_seconds": 5}),
        "ttl_seconds",
    );
    let none = "tinker://none/weights/x";
    check(
        "load_weights",
        json!({"path": none, "optimizer": true}),
        "no such checkpoint",
    );
    let body = json!({"model_id": model.id, "seq_id": seq_id, "path": "a", "overwrite": true});
    caller.call("save_weights", body);
    let body = json!({"model_id": model.id, "seq_id": seq_id + 1});
    let unnamed = caller.call("save_weights", body);
    assert!(
        unnamed["path"]
            .as_str()
            .unwrap()
            .ends_with("/weights/000002"),
        "{unnamed}"
    );
    let bad = json!({"model_id": model.id, "path": "s3://x", "optimizer": true});
    assert_eq!(caller.post("load_weights", bad).status, 422);
    let missing = caller.post("weights_info", json!({"tinker_path": none}));
    assert_eq!(missing.status, 404);
}

#[test]
fn runs_and_checkpoints_are_listed_page_by_page() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let models: Vec<Model<'_>> = (0..3).map(|number| caller.model(number)).collect();
    for (seq_id, name) in [(1, "a"), (2, "b"), (3, "c")] {
        save(&models[0], seq_id, name);
    }
    let page = caller.get("training_runs?limit=2&offset=0");
    assert_eq!(page["training_runs"].as_array().unwrap().len(), 2);
    assert_eq!(
        page["cursor"],
        json!({"offset": 0, "limit": 2, "total_count": 3})
    );
    assert_eq!(
        page["training_runs"][0]["training_run_id"],
        json!(models[0].id)
    );
    let rest = caller.get("training_runs?limit=2&offset=2");
    assert_eq!(rest["training_runs"].as_array().unwrap().len(), 1);
    let run = caller.get(&format!("training_runs/{}", models[0].id));
    assert_eq!(run["last_checkpoint"]["checkpoint_id"], "weights/c");
    let names = |list: &Value| -> Vec<String> {
        let list = list["checkpoints"].as_array().unwrap().iter();
        list.map(|one| one["checkpoint_id"].as_str().unwrap().to_owned())
            .collect()
    };
    let all = caller.get(&format!("training_runs/{}/checkpoints", models[0].id));
    assert_eq!(names(&all), ["weights/c", "weights/b", "weights/a"]);
    assert_eq!(
        names(&caller.get("checkpoints?limit=1&offset=1")),
        ["weights/b"]
    );
    assert_eq!(http::get(&caller.url, "training_runs/none").status, 404);
    assert_eq!(http::get(&caller.url, "training_runs?limit=x").status, 422);
}

#[test]
fn checkpoints_are_published_dated_copied_and_deleted() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let path = save(&model, 1, "a");
    let at = format!("training_runs/{}/checkpoints/weights/a", model.id);
    let record =
        || caller.get(&format!("training_runs/{}/checkpoints", model.id))["checkpoints"][0].clone();
    assert_eq!(
        ask(&caller, "POST", &format!("{at}/publish"), "").status,
        200
    );
    assert_eq!(record()["public"], true);
    assert_eq!(
        ask(&caller, "POST", &format!("{at}/publish"), "").status,
        400
    );
    assert_eq!(
        ask(&caller, "DELETE", &format!("{at}/publish"), "").status,
        200
    );
    let ttl = format!("{at}/ttl");
    assert_eq!(
        ask(&caller, "PUT", &ttl, r#"{"ttl_seconds":7200}"#).status,
        200
    );
    assert!(record()["expires_at"].is_string());
    assert_eq!(
        ask(&caller, "PUT", &ttl, r#"{"ttl_seconds":1}"#).status,
        400
    );
    assert_eq!(
        ask(&caller, "PUT", &ttl, r#"{"ttl_seconds":null}"#).status,
        200
    );
    assert!(record()["expires_at"].is_null());
    let copy = || {
        let body = json!({"source_path": path, "destination_project_id": "p"}).to_string();
        let headers = [("x-idempotency-key", "k")];
        http::request(
            &caller.url,
            "POST",
            "/api/v1/copy_weights",
            &headers,
            body.as_bytes(),
        )
        .unwrap()
        .json()
    };
    let copied = copy();
    assert_eq!(copied, copy(), "a repeated attempt finds the copy");
    assert_eq!(ask(&caller, "DELETE", &at, "").status, 200);
    assert_eq!(ask(&caller, "DELETE", &at, "").status, 404);
    let storage = caller.get("billing/usage/checkpoints/current?project_id=p");
    assert_eq!(storage["data"][0]["checkpoint_count"], 1);
    let body = json!({"session_id": caller.session, "model_seq_id": 1,
        "path": copied["tinker_path"], "optimizer": true});
    caller.call("load_weights", body);
}

#[test]
fn adapters_are_downloaded_by_links() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let body = json!({"model_id": model.id, "seq_id": 1, "path": "out"});
    let saved = caller.call("save_weights_external", body);
    assert!(saved["size_bytes"].as_u64() > Some(0));
    let at = format!(
        "training_runs/{}/checkpoints/external_weights/out",
        model.id
    );
    let urls = caller.get(&format!("{at}/external_weights_urls"));
    let link = urls["urls"]["adapter_config.json"].as_str().unwrap();
    let token = link.rsplit('/').nth(1).unwrap();
    let shown = format!("{server:?}");
    assert!(!shown.contains(token), "the link is a credential");
    assert!(shown.contains(&server.base_url()), "{shown}");
    let url = |file: &str| urls["urls"][file].as_str().unwrap();
    let config = follow(&caller, url("adapter_config.json")).json();
    assert_eq!(
        (&config["r"], &config["peft_type"]),
        (&json!(4), &json!("LORA"))
    );
    let weights = follow(&caller, url("adapter_model.safetensors"));
    let header = u64::from_le_bytes(weights.body[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(weights.body[8..8 + header].to_vec()).unwrap();
    assert!(header.contains("lora_A.weight"), "{header}");
    let archive = ask(&caller, "GET", &format!("{at}/archive"), "");
    assert_eq!(archive.status, 302);
    let tar = follow(&caller, archive.header("location").unwrap());
    assert_eq!(&tar.body[..26], b"adapter_model.safetensors\0");
    assert_eq!(&tar.body[512..512 + weights.body.len()], &weights.body[..]);
    let wrong = url("adapter_config.json").replace("/download/", "/download/x");
    assert_eq!(follow(&caller, &wrong).status, 404);
}

#[test]
fn sessions_are_listed_searched_and_traced() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let other = Caller::new(&server);
    let model = caller.model(0);
    save(&model, 1, "a");
    let listed = caller.get("sessions?limit=1");
    assert_eq!(listed["sessions"], json!([other.session]));
    let details = caller.get(&format!("sessions/{}", caller.session));
    assert_eq!(details["training_run_ids"], json!([model.id]));
    assert_eq!(details["user_metadata"], json!({"who": "test"}));
    let project = format!("sessions/{}/project", caller.session);
    assert_eq!(
        ask(&caller, "PUT", &project, r#"{"project_id":"p"}"#).status,
        200
    );
    let found = |search: Value| caller.ok("sessions/search", search)["sessions"].clone();
    let mine = found(json!({"project_ids": ["p"]}));
    assert_eq!(mine.as_array().unwrap().len(), 1);
    assert_eq!(mine[0]["session_id"], json!(caller.session));
    assert_eq!(mine[0]["checkpoints_count"], 1);
    let first = caller.ok("sessions/search", json!({"limit": 1}));
    let next = caller.ok(
        "sessions/search",
        json!({"limit": 1, "cursor": first["next_cursor"]}),
    );
    assert_eq!(next["sessions"][0]["session_id"], json!(caller.session));
    assert!(next["next_cursor"].is_null());
    assert_eq!(found(json!({"statuses": [{"type": "failed"}]})), json!([]));
    assert_eq!(
        found(json!({"user_metadata": {"who": "nobody"}})),
        json!([])
    );
    assert_eq!(
        caller.post("sessions/search", json!({"limit": 0})).status,
        422
    );
    let trace = caller.get(&format!("sessions/{}/trace_export", caller.session));
    assert_eq!(trace["status"], "ready");
    let trace = follow(&caller, trace["url"].as_str().unwrap()).json();
    let names: Vec<&Value> = trace["traceEvents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| &e["name"])
        .collect();
    assert_eq!(names, [&json!("create_model"), &json!("save_weights")]);
}

#[test]
fn usage_and_deeds_are_counted() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    caller.call("forward_backward", model.pass(1, &["12345678901"]));
    save(&model, 2, "a");
    let hours = "starting_on=2020-01-01T00:00:00Z&ending_before=2020-01-02T00:00:00Z";
    assert_eq!(
        caller.get(&format!("billing/usage/events?{hours}"))["data"],
        json!([])
    );
    let now = tinker::types::Timestamp::now().as_second() / 3600 * 3600;
    let hour = |second| tinker::types::Timestamp::from_second(second).unwrap();
    let (from, to) = (hour(now - 3600), hour(now + 7200));
    let usage = caller.get(&format!(
        "billing/usage/events?starting_on={from}&ending_before={to}"
    ));
    let infos: Vec<Value> = usage["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["event_info"].clone())
        .collect();
    assert!(
        infos.contains(&json!({"type": "training", "token_count": 10})),
        "{infos:?}"
    );
    assert!(
        infos.contains(&json!({"type": "checkpoint", "count": 1})),
        "{infos:?}"
    );
    assert_eq!(
        usage["sessions"][&caller.session]["user_metadata"],
        json!({"who": "test"})
    );
    assert_eq!(
        http::get(&caller.url, "billing/usage/events?starting_on=x").status,
        400
    );
    let audit = ask(&caller, "GET", "audit?event_type=checkpoints", "");
    assert_eq!(audit.status, 302);
    let log = follow(&caller, audit.header("location").unwrap()).json();
    assert_eq!(log["entries"][0]["event"], "checkpoint_saved");
    assert_eq!(log["entries"][0]["model_id"], json!(model.id));
}

/// What is wrong with the server's disk is told without the names of its files.
#[test]
fn a_save_that_fails_does_not_say_where() {
    let folder = tempfile::tempdir().unwrap();
    let server = LocalServer::builder().data(folder.path()).start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    // A file where a folder should be: nobody can write there, not even root.
    std::fs::write(folder.path().join("checkpoints"), b"").unwrap();
    for (seq_id, endpoint) in [(1, "save_weights"), (2, "save_weights_for_sampler")] {
        let body = json!({"model_id": model.id, "seq_id": seq_id, "path": "a"});
        let result = caller.wait(&caller.ok(endpoint, body));
        let error = result["error"].as_str().unwrap();
        assert!(
            error.contains("disk") && error.contains("nothing was changed"),
            "{error}"
        );
        let name = folder.path().file_name().unwrap().to_str().unwrap();
        assert!(
            !error.contains(name) && !error.contains("checkpoints"),
            "{error}"
        );
        assert_eq!(result["category"], "server");
    }
    std::fs::remove_file(folder.path().join("checkpoints")).unwrap();
    let body = json!({"model_id": model.id, "seq_id": 3, "path": "a"});
    caller.call("save_weights", body);
}
