//! What is drawn on a real terminal, and what Ctrl-C does.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::json;
use tinker::local::{Fault, LocalServer};

use super::Desk;
use crate::support::fake::Fake;
use crate::support::scripted::{Gate, Reply, Server};

/// A command on a terminal of its own.
struct Screen {
    child: Child,
    keyboard: File,
    output: File,
    seen: String,
}

impl Screen {
    fn start(desk: &Desk, args: &[&str], columns: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).unwrap();
        let open = || {
            let path = name.to_str().unwrap();
            File::options().read(true).write(true).open(path).unwrap()
        };
        let child = desk
            .command(args)
            .env("TERM", "xterm-256color")
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn()
            .unwrap();
        let master: OwnedFd = master;
        let output = File::from(master);
        Self {
            child,
            keyboard: output.try_clone().unwrap(),
            output,
            seen: String::new(),
        }
    }

    /// Reads until this has been drawn.
    #[track_caller]
    fn wait_for(&mut self, words: &str) {
        while !self.seen.contains(words) {
            assert!(self.read(), "{words:?} never came: {:?}", self.seen);
        }
    }

    /// Whether there was more.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 4096];
        // A terminal whose programs have ended gives an error in place of an end.
        match self.output.read(&mut buffer) {
            Ok(0) | Err(_) => false,
            Ok(count) => {
                self.seen
                    .push_str(&String::from_utf8_lossy(&buffer[..count]));
                true
            }
        }
    }

    fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Everything drawn, and the code it ended with.
    fn end(mut self) -> (String, Option<i32>) {
        while self.read() {}
        (self.seen, self.child.wait().unwrap().code())
    }
}

fn listing(server: &Server) {
    let run = json!({"training_run_id": "0123456789-0123456789:train:0", "base_model":
        "Some/Model-With-A-Rather-Long-Name-8B", "model_owner": "me", "is_lora": true,
        "last_request_time": "2025-01-02T03:04:05Z"});
    let cursor = json!({"offset": 0, "limit": 20, "total_count": 1});
    let page = json!({"training_runs": [run], "cursor": cursor});
    server.always("POST", "client/config", Reply::json(&json!({})));
    server.always("GET", "training_runs", Reply::json(&page));
}

#[test]
fn tables_fit_the_terminal() {
    let server = Server::start();
    listing(&server);
    let desk = Desk::at(&server.url());
    // Beside each other, and one below the other where there is no room.
    for columns in [30, 40, 60, 80, 200] {
        let (drawn, exit) = Screen::start(&desk, &["run", "list"], columns).end();
        assert_eq!(exit, Some(0));
        assert!(drawn.contains("\u{1b}[1m"), "headings are bold: {drawn:?}");
        for line in drawn.lines() {
            let plain = line.replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
            let width = plain.trim_end_matches('\r').chars().count();
            assert!(width <= usize::from(columns), "{columns}: {line:?}");
        }
        // Every letter is there, wherever the lines break.
        let letters: String = drawn.split_whitespace().collect();
        assert!(letters.contains("0123456789-"), "{drawn}");
    }
    let plain = desk.with("NO_COLOR", "1");
    let (drawn, _) = Screen::start(&plain, &["run", "list"], 80).end();
    assert!(!drawn.contains('\u{1b}'), "{drawn:?}");
}

#[test]
fn a_key_is_not_shown_while_it_is_typed() {
    let server = LocalServer::builder()
        .api_key("tml-secret")
        .start()
        .unwrap();
    let desk = Desk::bare().with("TINKER_BASE_URL", &server.base_url());
    let mut screen = Screen::start(&desk, &["auth", "login"], 80);
    screen.wait_for("Paste your API key: ");
    screen.type_in("tml-secret\n");
    let (drawn, exit) = screen.end();
    assert_eq!(exit, Some(0), "{drawn}");
    assert!(
        drawn.contains("Logged in as") && !drawn.contains("tml-secret"),
        "{drawn}"
    );

    let desk = Desk::bare().with("TINKER_BASE_URL", &server.base_url());
    let mut screen = Screen::start(&desk, &["auth", "login"], 80);
    screen.wait_for("Paste your API key: ");
    screen.interrupt();
    assert_eq!(screen.end().1, Some(130));
}

#[test]
fn ctrl_c_ends_what_waits_for_an_answer() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    let path = "tinker://some:train:0/weights/a";
    for (args, question) in [
        (vec!["checkpoint", "delete", path], "[y/N]: "),
        (vec!["chat", "tinker-local/tiny"], "> "),
        (vec!["sample", "tinker-local/tiny"], "Reading prompts"),
    ] {
        let mut screen = Screen::start(&desk, &args, 80);
        screen.wait_for(question);
        screen.interrupt();
        let (drawn, exit) = screen.end();
        assert_eq!(exit, Some(130), "{args:?}: {drawn}");
    }
}

#[test]
fn ctrl_c_during_a_download_leaves_no_half_file() {
    let server = Server::start();
    server.always("POST", "client/config", Reply::json(&json!({})));
    let url = format!("{}/dl/a", server.url());
    let links = json!({"urls": {"a.bin": url}, "expires": "2099-01-01T00:00:00Z"});
    let route = "training_runs/R/checkpoints/external_weights/a/external_weights_urls";
    server.always("GET", route, Reply::json(&links));
    let gate = Gate::new();
    let reply = Reply::bytes("application/octet-stream", vec![0; 4 << 20]);
    let half = reply.wire_len() / 2;
    server.always("GET", "/dl/a", reply.stall_at(half, &gate));
    let desk = Desk::at(&server.url());
    let args = ["checkpoint", "download", "tinker://R/external_weights/a"];
    let mut screen = Screen::start(&desk, &args, 100);
    gate.wait_for(1);
    screen.wait_for("2.00 MiB/4.00 MiB");
    screen.interrupt();
    let (drawn, exit) = screen.end();
    gate.open();
    assert_eq!(exit, Some(130), "{drawn}");
    let left: Vec<_> = std::fs::read_dir(desk.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, ["home"]);
}

#[test]
fn a_batch_draws_how_far_it_is() {
    let slow = Fault::slow("asample", Duration::from_secs(2)).with_times(1);
    let server = LocalServer::builder().fault(slow).start().unwrap();
    let desk = Desk::at(&server.base_url());
    std::fs::write(desk.path().join("p.txt"), "English: hello\nEnglish: dog\n").unwrap();
    let args = [
        "sample",
        "tinker-local/tiny",
        "--prompts",
        "p.txt",
        "-o",
        "out.jsonl",
    ];
    let args = [&args[..], &["--max-tokens", "3"]].concat();
    let mut screen = Screen::start(&desk, &args, 80);
    screen.wait_for("Sampling ");
    screen.wait_for("/2 ");
    let (drawn, exit) = screen.end();
    assert_eq!(exit, Some(0), "{drawn}");
    let written = std::fs::read_to_string(desk.path().join("out.jsonl")).unwrap();
    assert_eq!(written.lines().count(), 2, "{written}");
}

#[test]
fn a_conversation_is_held() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    let args = [
        "chat",
        "tinker-local/tiny",
        "--max-tokens",
        "4",
        "--temperature",
        "0",
    ];
    let mut screen = Screen::start(&desk, &args, 80);
    screen.wait_for("> ");
    for (line, answer) in [
        ("/help", "/compare [MODEL]"),
        ("/nosuch", "no such command: /nosuch"),
        ("/set temperature -1", "temperature"),
        (
            "/set temperature hot",
            "temperature takes a number, got \"hot\"",
        ),
        ("/set", "max_tokens 4, temperature 0\r"),
        ("/set stop x", "> "),
        ("/set", "temperature 0, stop \"x\"\r"),
        ("/probs", "probabilities on"),
        ("Hi", " %"),
        ("/save talk.jsonl", "saved to talk.jsonl"),
    ] {
        screen.type_in(&format!("{line}\n"));
        screen.wait_for(answer);
    }
    screen.type_in("/quit\n");
    let (drawn, exit) = screen.end();
    assert_eq!(exit, Some(0), "{drawn}");
    let saved = std::fs::read_to_string(desk.path().join("talk.jsonl")).unwrap();
    let saved: serde_json::Value = serde_json::from_str(&saved).unwrap();
    assert_eq!(
        saved["messages"][0],
        json!({"role": "user", "content": "Hi"})
    );
    assert_eq!(saved["messages"][1]["role"], "assistant");
}

#[test]
fn a_tokenizer_of_ones_own_is_used_where_the_server_streams() {
    let fake = Fake::start();
    let route = "/oai/api/v1/chat/completions";
    let streamed = Reply::bytes("text/event-stream", "data: [DONE]\n\n".to_owned());
    fake.server.always("POST", route, streamed);
    let desk = Desk::at(&fake.server.url());
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/text/tiny");
    let mut screen = Screen::start(&desk, &["chat", "a/model", "--tokenizer", tiny], 80);
    screen.type_in("tell me\n/quit\n");
    let (drawn, exit) = screen.end();
    assert_eq!(exit, Some(0), "{drawn}");
    let asked: Vec<String> = fake.server.requests().into_iter().map(|r| r.path).collect();
    assert!(!asked.iter().any(|path| path == route), "{asked:?}");
    let sampled = |path: &String| path.ends_with("/asample");
    assert!(asked.iter().any(sampled), "{asked:?}");
}

#[test]
fn an_answer_is_drawn_as_it_arrives() {
    let fake = Fake::start();
    let piece = |delta: serde_json::Value| {
        let chunk = json!({"choices": [{"index": 0, "delta": delta}]});
        format!("data: {chunk}\n\n")
    };
    let first = piece(json!({"role": "assistant", "content": ""}))
        + &piece(json!({"content": "the first half"}));
    let whole = format!(
        "{first}{}{}data: [DONE]\n\n",
        piece(json!({"content": ", the other"})),
        piece(json!({}))
    );
    let gate = Gate::new();
    let reply = Reply::bytes("text/event-stream", whole.clone());
    let half = reply.wire_len() - (whole.len() - first.len());
    let route = "/oai/api/v1/chat/completions";
    fake.server
        .always("POST", route, reply.stall_at(half, &gate));
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/text/tiny");
    let info = json!({"sampler_id": "S1:sample:0", "base_model": "a/model", "tokenizer_id": tiny});
    fake.server
        .always("GET", "/api/v1/samplers/S1:sample:0", Reply::json(&info));
    let desk = Desk::at(&fake.server.url());
    let mut screen = Screen::start(&desk, &["chat", "a/model", "--top-k", "7"], 80);
    screen.wait_for("> ");
    screen.type_in("tell me\n");
    // The rest is not sent before the beginning has been drawn.
    screen.wait_for("the first half");
    gate.open();
    screen.wait_for("the first half, the other");
    let asked = fake
        .server
        .requests()
        .into_iter()
        .find(|request| request.path == route);
    let asked = asked.unwrap().json();
    assert_eq!(
        (&asked["stream"], &asked["top_k"]),
        (&json!(true), &json!(7)),
        "{asked}"
    );
    screen.type_in("/quit\n");
    assert_eq!(screen.end().1, Some(0));
}

#[test]
fn several_answers_and_several_models_are_told_apart() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    let model = "tinker-local/tiny";
    let args = ["chat", model, "--max-tokens", "3"];
    let mut screen = Screen::start(&desk, &args, 80);
    screen.wait_for("> ");
    for (line, answers) in [
        ("/n 0", &["from 1"][..]),
        ("/n 3", &["3 answer(s) to each message"]),
        (
            "Hi",
            &[
                "--- tinker-local/tiny 1",
                "--- tinker-local/tiny 2",
                "--- tinker-local/tiny 3",
            ],
        ),
        ("/n 1", &["1 answer(s) to each message"]),
        ("/compare no/such", &["no/such"]),
        (
            "/compare tinker-local/tiny",
            &["tinker-local/tiny answers too"],
        ),
    ] {
        screen.type_in(&format!("{line}\n"));
        answers.iter().for_each(|answer| screen.wait_for(answer));
    }
    // Two models, an answer each: the fourth and fifth heading so far.
    screen.type_in("Hello\n");
    while screen.seen.matches("--- tinker-local/tiny 1").count() < 3 {
        assert!(screen.read(), "{:?}", screen.seen);
    }
    screen.type_in("/compare\n");
    screen.wait_for("answers alone");
    screen.type_in("/quit\n");
    let (drawn, exit) = screen.end();
    assert_eq!(exit, Some(0), "{drawn}");
    assert_eq!(drawn.matches("--- tinker-local/tiny").count(), 5, "{drawn}");
}

#[test]
fn ctrl_c_saves_a_run_which_then_goes_on() {
    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    let line = json!({"messages": [{"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"}]});
    std::fs::write(desk.path().join("chats.jsonl"), format!("{line}\n")).unwrap();
    let args = [
        "train",
        "sft",
        "chats.jsonl",
        "-o",
        "run",
        "--model",
        "tinker-local/tiny",
        "--renderer",
        "role_colon",
        "--rank",
        "2",
        "--learning-rate",
        "1e-3",
        "--epochs",
        "60",
    ];
    let mut screen = Screen::start(&desk, &args, 80);
    screen.wait_for("step 2 ");
    screen.interrupt();
    let (drawn, exit) = screen.end();
    assert_eq!(exit, Some(130), "{drawn}");
    assert!(
        drawn.contains("━") && drawn.contains("train_mean_nll"),
        "{drawn}"
    );
    assert!(drawn.contains("--resume"), "it says how to go on: {drawn}");
    let steps = || {
        let text = std::fs::read_to_string(desk.path().join("run/metrics.jsonl")).unwrap();
        let step = |line: &str| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["step"]
                .as_u64()
                .unwrap()
        };
        text.lines().map(step).collect::<Vec<u64>>()
    };
    let before = steps().len();
    assert!((3..60).contains(&before), "{before}");
    let (drawn, exit) = Screen::start(&desk, &[&args[..], &["--resume"]].concat(), 80).end();
    assert_eq!(exit, Some(0), "{drawn}");
    assert_eq!(steps(), (0..60).collect::<Vec<u64>>(), "every step once");
}
