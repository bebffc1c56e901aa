//! The console, looked at for as long as a server lives.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::support::http as plain;

/// What the page asks for while it listens.
const PAGES: [&str; 4] = [
    "/",
    "/console/hello",
    "/console/runs",
    "/console/checkpoints",
];
/// What only grows while a server lives.
const GROWING: [&str; 4] = ["training", "prefill", "sample", "checkpoints"];

/// Listens to a server's events until the server ends.
pub(super) struct Watcher {
    thread: JoinHandle<usize>,
    first: Receiver<()>,
}

impl Watcher {
    pub(super) fn start(url: &str) -> Self {
        let (url, (tell, first)) = (url.to_owned(), mpsc::channel());
        let thread = std::thread::spawn(move || watch(&url, &tell));
        Self { thread, first }
    }

    /// Waits until the server has shown its figures.
    #[track_caller]
    pub(super) fn wait(&self, patience: Duration) {
        self.first.recv_timeout(patience).expect("no figures");
    }

    /// How many events there were. The server has ended.
    #[track_caller]
    pub(super) fn join(self) -> usize {
        self.thread.join().expect("what was shown is not so")
    }
}

fn watch(url: &str, tell: &Sender<()>) -> usize {
    let host = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let head = format!("GET /console/events HTTP/1.1\r\nhost: {host}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    let status = lines.next().unwrap_or_default();
    assert!(status.is_empty() || status.contains(" 200 "), "{status}");
    let (mut kind, mut events, mut before) = (String::new(), 0, None);
    for line in lines {
        if let Some(name) = line.strip_prefix("event: ") {
            kind = name.to_owned();
        }
        // The end of a server may come in the middle of a line.
        let data = line.strip_prefix("data: ");
        let Some(event) = data.and_then(|data| serde_json::from_str::<Value>(data).ok()) else {
            continue;
        };
        if kind == "server" {
            let figures = event["figures"].clone();
            if let Some(before) = before.replace(figures.clone()) {
                grows(&before, &figures);
            }
            // Nobody waits for the second.
            let _ = tell.send(());
        }
        events += 1;
        look(url, PAGES[events % PAGES.len()]);
    }
    events
}

#[track_caller]
fn grows(before: &Value, after: &Value) {
    for name in GROWING {
        let [then, now] = [before, after].map(|figures| figures[name].as_u64().unwrap());
        assert!(then <= now, "{name}: {then}, then {now}");
    }
}

/// A page is there, whole, as long as the server is.
fn look(url: &str, path: &str) {
    if let Ok(page) = plain::request(url, "GET", path, &[], b"") {
        assert_eq!(page.status, 200, "{path}");
        assert!(path == "/" || page.json().is_object(), "{path}");
    }
}
