//! The Python SDK itself judges what we write, and we read what it writes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;

use fastrand::Rng;
use serde_json::{Value, json};

use super::plain::{self, assert_same, same_answer};
use super::{random, values};
use crate::python;
use crate::wire::dialect::{decode_forward_backward, decode_sample, encode_forward_backward_json};
use crate::wire::forward_backward::{decode_forward_backward_request, encode_forward_backward};
use crate::wire::output::encode_forward_backward_output;
use crate::wire::sample::encode_sample;

const ROUNDS: u64 = 200;
const PROTOBUF: Option<&str> = Some(crate::wire::reply::PROTOBUF);

/// Has the Python SDK do every task, or says that it is not there.
fn ask(tasks: &[Value]) -> Option<Vec<Value>> {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/python/reference.py"
    );
    let mut child = Command::new(python::interpreter("0.36.0")?)
        .arg(script)
        .env("TINKER_TELEMETRY", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let answers: Vec<Value> = thread::scope(|scope| {
        // A closure of its own, so that the pipe is closed when all is written.
        scope.spawn(move || {
            for task in tasks {
                writeln!(stdin, "{task}").unwrap();
            }
        });
        lines
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect()
    });
    assert!(child.wait().unwrap().success());
    assert_eq!(answers.len(), tasks.len());
    Some(answers)
}

/// The value of an answer that must not be an error.
#[track_caller]
fn ok<'a>(task: &Value, answer: &'a Value) -> &'a Value {
    assert!(answer.get("error").is_none(), "{task}\n{answer}");
    &answer["ok"]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(answer: &Value) -> Vec<u8> {
    let text = answer["hex"].as_str().unwrap();
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn python_accepts_every_json_request() {
    let mut tasks = Vec::new();
    for (index, generate) in random::REQUESTS.iter().enumerate() {
        for round in 0..ROUNDS {
            let mut rng = Rng::with_seed(round + 1000 * index as u64);
            let (kind, body) = generate(&mut rng);
            let body: Value = serde_json::from_slice(&body).unwrap();
            tasks.push(json!({"task": "request", "kind": kind, "body": body}));
        }
    }
    for round in 0..ROUNDS {
        let request = values::request(&mut Rng::with_seed(round), true);
        let body = encode_forward_backward_json(&request.as_request()).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        let input = body
            .get("forward_input")
            .or(body.get("forward_backward_input"))
            .unwrap();
        tasks.push(json!({"task": "dialect_input", "body": input}));
    }
    let Some(answers) = ask(&tasks) else { return };
    for (task, answer) in tasks.iter().zip(&answers) {
        let again = ok(task, answer);
        if task["kind"] == "TelemetrySendRequest" {
            // The fraction of a whole second may be left out.
            assert!(same_answer(again, &task["body"]), "{task}\n{again}");
        } else {
            assert_same(again, &task["body"], "what Python would send");
        }
    }
}

#[test]
fn python_reads_our_training_requests_and_we_read_its() {
    let mut requests = Vec::new();
    let mut tasks = Vec::new();
    for round in 0..ROUNDS {
        let request = values::request(&mut Rng::with_seed(round), false);
        let mut bytes = Vec::new();
        encode_forward_backward(&request.as_request(), &mut bytes).unwrap();
        tasks.push(json!({"task": "read_request", "hex": hex(&bytes)}));
        requests.push(request);
    }
    tasks.extend((0..ROUNDS).map(|seed| json!({"task": "make_request", "seed": seed})));
    let Some(answers) = ask(&tasks) else { return };
    let (read, made) = answers.split_at(requests.len());
    for ((request, task), answer) in requests.iter().zip(&tasks).zip(read) {
        assert_same(
            ok(task, answer),
            &plain::request(request),
            "what Python read",
        );
    }
    for (task, answer) in tasks[requests.len()..].iter().zip(made) {
        let made = ok(task, answer);
        let request = decode_forward_backward_request(unhex(made)).unwrap();
        assert_same(&plain::request(&request), &made["values"], "what we read");
    }
}

#[test]
fn python_reads_our_results_and_we_read_its() {
    let (mut tasks, mut expected) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut rng = Rng::with_seed(round);
        let output = values::output(&mut rng, false);
        let mut bytes = Vec::new();
        encode_forward_backward_output(&output, &mut bytes).unwrap();
        tasks.push(json!({"task": "read_output", "hex": hex(&bytes)}));
        expected.push(plain::output(&output));
        let response = values::sample(&mut rng, false);
        encode_sample(&response, &mut bytes);
        tasks.push(json!({"task": "read_sample", "hex": hex(&bytes)}));
        expected.push(plain::sample(&response));
    }
    let ours = tasks.len();
    for seed in 0..ROUNDS {
        tasks.push(json!({"task": "make_output", "seed": seed}));
        tasks.push(json!({"task": "make_sample", "seed": seed}));
    }
    let Some(answers) = ask(&tasks) else { return };
    let (read, made) = answers.split_at(ours);
    for ((task, answer), expected) in tasks.iter().zip(read).zip(&expected) {
        assert_same(ok(task, answer), expected, "what Python read");
    }
    for (task, answer) in tasks[ours..].iter().zip(made) {
        let made = ok(task, answer);
        let values = if task["task"] == "make_output" {
            plain::output(&decode_forward_backward(PROTOBUF, unhex(made)).unwrap())
        } else {
            plain::sample(&decode_sample(PROTOBUF, unhex(made), None).unwrap())
        };
        assert_same(&values, &made["values"], "what we read");
    }
}
