//! Models in training outlive the server's process.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use tinker::local::LocalServer;

use super::process::Process;
use super::{Caller, Model};

const TEXT: &[&str] = &["hello"];

/// The losses of a model that nothing interrupts.
fn undisturbed(steps: usize) -> Vec<f64> {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    let mut seq_id = 1;
    (0..steps).map(|_| model.train(&mut seq_id, TEXT)).collect()
}

fn arguments(data: &Path, save_every: u32) -> Vec<String> {
    let data = data.to_str().unwrap().to_owned();
    vec![
        "--data".into(),
        data,
        "--save-every".into(),
        save_every.to_string(),
    ]
}

/// The same session at the server's new address.
fn again(caller: &Caller, url: &str) -> Caller {
    Caller {
        url: url.to_owned(),
        session: caller.session.clone(),
    }
}

impl<'a> Model<'a> {
    fn at(&self, caller: &'a Caller) -> Model<'a> {
        Model {
            caller,
            id: self.id.clone(),
        }
    }

    /// The loss now, under the next number.
    #[track_caller]
    fn loss(&self, seq_id: &mut u64) -> f64 {
        let result = self.caller.call("forward", self.forward(*seq_id, TEXT));
        *seq_id += 1;
        result["metrics"]["loss:sum"].as_f64().unwrap()
    }

    fn info_status(&self) -> u16 {
        self.caller
            .post("get_info", json!({"model_id": self.id}))
            .status
    }
}

/// After which request the model in the folder was saved, and which comes next.
fn saved_next(data: &Path) -> Option<u64> {
    let file = std::fs::read_dir(data.join("training")).ok()?.flatten();
    let mut file = file.filter(|entry| entry.path().extension().is_some_and(|end| end == "state"));
    let content = std::fs::read(file.next()?.path()).ok()?;
    let header = content.split(|byte| *byte == b'\n').nth(1)?;
    serde_json::from_slice::<Value>(header).ok()?["next"].as_u64()
}

#[test]
fn a_model_goes_on_after_a_graceful_stop_as_if_nothing_had_happened() {
    let expected = undisturbed(4);
    let folder = tempfile::tempdir().unwrap();
    let start = || Process::start(arguments(folder.path(), 300));
    let process = start();
    let caller = Caller::at(process.url.clone());
    let model = caller.model(0);
    let mut seq_id = 1;
    let mut losses = vec![model.train(&mut seq_id, TEXT)];
    // Accepted, perhaps not begun, and never asked for before the end.
    let pass = caller.ok("forward_backward", model.pass(3, TEXT));
    let step = caller.ok("optim_step", model.step(4));
    // Gradients without a step.
    let half = caller.ok("forward_backward", model.pass(5, TEXT));
    process.stop();

    let process = start();
    let caller = again(&caller, &process.url);
    let model = model.at(&caller);
    caller.ok("session_heartbeat", json!({"session_id": caller.session}));
    losses.push(caller.wait(&pass)["metrics"]["loss:sum"].as_f64().unwrap());
    assert_eq!(caller.wait(&step)["metrics"]["step:max"], json!(2.0));
    losses.push(caller.wait(&half)["metrics"]["loss:sum"].as_f64().unwrap());
    // A repeated submission is still the same request.
    assert_eq!(caller.ok("optim_step", model.step(4)), step);
    caller.call("optim_step", model.step(6));
    losses.push(model.train(&mut 7, TEXT));
    assert_eq!(losses, expected);
    process.kill();
}

#[test]
fn who_knows_more_than_what_was_saved_is_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let start = || Process::start(arguments(folder.path(), 300));
    let process = start();
    let caller = Caller::at(process.url.clone());
    let model = caller.model(0);
    let mut seq_id = 1;
    model.train(&mut seq_id, TEXT);
    let saved = model.loss(&mut seq_id);
    process.stop();

    // Killed before anything was asked: what is saved is still how the model is.
    start().kill();
    let process = start();
    let (first, model) = (again(&caller, &process.url), model);
    let model = model.at(&first);
    assert_eq!(model.loss(&mut seq_id), saved);
    // The step after that one is acknowledged, and lost.
    let step = first.ok("forward_backward", model.pass(seq_id, TEXT));
    first.wait(&step);
    process.kill();

    let process = start();
    let caller = again(&first, &process.url);
    let model = model.at(&caller);
    assert_eq!(model.info_status(), 410);
    let next = caller.post("optim_step", model.step(seq_id + 1));
    assert_eq!(next.status, 410);
    let said = next.detail();
    let path = format!("tinker://{}/weights/autosave-{:06}", model.id, 3);
    assert!(said.contains(&path), "{said}");
    let poll = json!({"request_id": step["request_id"]});
    assert_eq!(caller.post("retrieve_future", poll).status, 410);
    let beat = json!({"session_id": caller.session});
    assert_eq!(caller.post("session_heartbeat", beat).status, 410);

    let caller = Caller::at(process.url.clone());
    let body =
        json!({"session_id": caller.session, "model_seq_id": 0, "path": path, "optimizer": true});
    let id = caller.call("load_weights", body)["model_id"].clone();
    let id = id.as_str().unwrap().to_owned();
    let restored = Model {
        caller: &caller,
        id,
    };
    assert_eq!(restored.loss(&mut 1), saved);
    process.kill();
}

#[test]
fn a_request_that_was_accepted_and_never_ran_is_missed_by_whoever_asks_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let start = || LocalServer::builder().data(folder.path()).start().unwrap();
    let server = start();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    model.train(&mut 1, TEXT);
    // Waits for number 3, which never comes.
    let held = caller.ok("optim_step", model.step(4));
    drop(server);

    let server = start();
    let caller = again(&caller, &server.base_url());
    let model = model.at(&caller);
    assert_eq!(model.info_status(), 200);
    let waiting = caller.ok("optim_step", model.step(5));
    let poll = |accepted: &Value| {
        let body = json!({"request_id": accepted["request_id"]});
        caller.post("retrieve_future", body).status
    };
    assert_eq!(poll(&held), 410);
    assert_eq!(model.info_status(), 410);
    assert_eq!(poll(&waiting), 410, "nothing waits for ever");
    let listed = caller.get(&format!("training_runs/{}/checkpoints", model.id));
    assert_eq!(
        listed["checkpoints"][0]["checkpoint_id"],
        "weights/autosave-000002"
    );
    // The session goes on.
    caller.ok("session_heartbeat", json!({"session_id": caller.session}));
}

#[test]
fn a_model_whose_client_does_not_come_back_leaves_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let builder = || LocalServer::builder().data(folder.path());
    let server = builder().start().unwrap();
    let caller = Caller::new(&server);
    let model = caller.model(0);
    model.train(&mut 1, TEXT);
    drop(server);

    let impatient = builder().session_timeout(std::time::Duration::from_millis(1));
    let server = impatient.start().unwrap();
    let caller = again(&caller, &server.base_url());
    let model = model.at(&caller);
    // Asking after the model is no sign of life.
    while model.info_status() == 200 {}
    let listed = caller.get(&format!("training_runs/{}/checkpoints", model.id));
    let kept = &listed["checkpoints"][0];
    assert_eq!(kept["checkpoint_id"], "weights/autosave-000002");
    assert!(kept["expires_at"].is_string(), "{kept}");
    assert_eq!(saved_next(folder.path()), None);
}

#[test]
fn a_client_that_finishes_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let builder = || LocalServer::builder().data(folder.path());
    let server = builder().start().unwrap();
    let caller = Caller::new(&server);
    caller.model(0).train(&mut 1, TEXT);
    drop(server);
    assert_eq!(saved_next(folder.path()), Some(3));
    let server = builder().start().unwrap();
    let caller = again(&caller, &server.base_url());
    let body = json!({"reason": {"type": "success"}});
    caller.ok(&format!("sessions/{}/finish", caller.session), body);
    assert_eq!(saved_next(folder.path()), None);
    drop(server);
    let server = builder()
        .save_every(std::time::Duration::ZERO)
        .start()
        .unwrap();
    let caller = Caller::new(&server);
    caller.model(0).train(&mut 1, TEXT);
    drop(server);
    assert_eq!(saved_next(folder.path()), None, "nothing was to be kept");
}

/// Samplers of the base and of named weights come back with their session, a model or none.
#[test]
fn samplers_of_what_has_a_name_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let start = || LocalServer::builder().data(folder.path()).start().unwrap();
    let server = start();
    let (trains, samples) = (Caller::new(&server), Caller::new(&server));
    let model = trains.model(0);
    let mut seq_id = 1;
    model.train(&mut seq_id, TEXT);
    let save = |seq_id: u64, how: Value| {
        let mut body = json!({"model_id": model.id, "seq_id": seq_id});
        let how = how.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(how);
        trains.call("save_weights_for_sampler", body)
    };
    let path = save(seq_id, json!({"path": "named"}))["path"].clone();
    let passing = save(seq_id + 1, json!({"sampling_session_seq_id": 9}));
    let open = |caller: &Caller, number: u64, what: Value| {
        let mut body = json!({"session_id": caller.session, "sampling_session_seq_id": number});
        let what = what.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(what);
        caller.ok("create_sampling_session", body)["sampling_session_id"].clone()
    };
    let base = json!({"base_model": trains.base_model()});
    let samplers = [
        open(&trains, 0, json!({"model_path": path})),
        open(&samples, 0, base),
        open(&samples, 1, json!({"model_path": path})),
    ];
    let draw = |url: &str, sampler: &Value, seq_id: u64| {
        let body = json!({"sampling_session_id": sampler, "seq_id": seq_id, "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [104, 105]}]},
            "sampling_params": {"max_tokens": 3, "temperature": 0.0}});
        let caller = again(&trains, url);
        let reply = caller.post("asample", body);
        match reply.status {
            200 => caller.wait(&reply.json())["sequences"].clone(),
            status => json!(status),
        }
    };
    let url = server.base_url();
    let drawn: Vec<Value> = samplers.iter().map(|one| draw(&url, one, 0)).collect();
    assert_ne!(drawn[0], drawn[1]);
    drop(server);

    let server = start();
    let url = server.base_url();
    let seen: Vec<Value> = samplers.iter().map(|one| draw(&url, one, 1)).collect();
    assert_eq!(seen, drawn);
    let passing = &passing["sampling_session_id"];
    assert_eq!(draw(&url, passing, 0), json!(404), "it had no name");
    for caller in [&trains, &samples] {
        let caller = again(caller, &url);
        caller.ok("session_heartbeat", json!({"session_id": caller.session}));
    }
}

/// Killed at any moment, with a save every second: what was saved is there, as a model that goes
/// on or as a checkpoint, and says what it said. `TINKER_TEST_LONG=1` kills 50 times.
#[test]
fn killed_again_and_again_nothing_saved_is_lost() {
    let long = std::env::var("TINKER_TEST_LONG").is_ok();
    let rounds = if long { 50 } else { 4 };
    let folder = tempfile::tempdir().unwrap();
    let start = || Process::start(arguments(folder.path(), 1));
    let mut process = start();
    let mut caller = Caller::at(process.url.clone());
    let mut id = caller.model(0).id;
    let mut seq_id = 1;
    let (mut went_on, mut restored) = (0, 0);
    for round in 0..rounds {
        let model = Model {
            caller: &caller,
            id: id.clone(),
        };
        // What the model says after each of its requests.
        let mut said = BTreeMap::new();
        model.train(&mut seq_id, TEXT);
        said.insert(seq_id - 1, model.loss(&mut seq_id));
        let saved = seq_id;
        while saved_next(folder.path()) != Some(saved) {
            caller.ok("session_heartbeat", json!({"session_id": caller.session}));
        }
        if round % 2 == 1 {
            model.train(&mut seq_id, TEXT);
            said.insert(seq_id - 1, model.loss(&mut seq_id));
        }
        let warned = process.kill();
        assert!(!warned.contains("cannot be used"), "{warned}");

        process = start();
        let next = again(&caller, &process.url);
        let model = Model {
            caller: &next,
            id: id.clone(),
        };
        if model.info_status() == 200 {
            went_on += 1;
            assert_eq!(Some(&model.loss(&mut seq_id)), said.values().next_back());
            caller = next;
            continue;
        }
        restored += 1;
        assert_eq!(round % 2, 1, "nothing had followed what was saved");
        caller = Caller::at(process.url.clone());
        let listed = caller.get(&format!("training_runs/{id}/checkpoints"));
        let listed = listed["checkpoints"].as_array().unwrap();
        let path = listed[0]["tinker_path"].clone();
        let name = path.as_str().unwrap().rsplit('-').next().unwrap();
        let number: u64 = name.parse().unwrap();
        assert!(number + 1 >= saved, "{path} is not the last that was saved");
        let body = json!({"session_id": caller.session, "model_seq_id": 0, "path": path,
            "optimizer": true});
        id = caller.call("load_weights", body)["model_id"]
            .as_str()
            .unwrap()
            .to_owned();
        seq_id = 1;
        let model = Model {
            caller: &caller,
            id: id.clone(),
        };
        let expected = said.range(..=number).next_back().unwrap().1;
        assert_eq!(model.loss(&mut seq_id), *expected, "{path}");
    }
    println!("{rounds} kills: {went_on} times it went on, {restored} times from a checkpoint");
    process.kill();
    let server = LocalServer::builder().data(folder.path()).start().unwrap();
    assert_eq!(server.problems(), Vec::<String>::new());
}
