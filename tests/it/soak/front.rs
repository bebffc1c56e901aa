//! A front before a server: hands requests on, badly now and then, and keeps a record of them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

use crate::support::proto;

/// A request for training, and what became of it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) endpoint: String,
    pub(super) model: String,
    pub(super) seq: u64,
    pub(super) body: Vec<u8>,
    pub(super) fate: Fate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    /// The server never saw it.
    Withheld,
    /// The server had it and did not answer.
    Unanswered,
    Refused(u16),
    /// Accepted, under this id.
    Accepted(String),
}

/// What the front does to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    None,
    Status(u16),
    DropBefore,
    DropAfter,
    Half,
}

struct Shared {
    /// Where the server is; empty while there is none.
    upstream: Mutex<String>,
    record: Mutex<Vec<Seen>>,
    more: Condvar,
    random: AtomicU64,
    troubled: AtomicU64,
    closing: AtomicBool,
}

pub(super) struct Front {
    pub(super) url: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    pub(super) fn start(seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            upstream: Mutex::default(),
            record: Mutex::default(),
            more: Condvar::new(),
            random: AtomicU64::new(seed),
            troubled: AtomicU64::new(0),
            closing: AtomicBool::new(false),
        });
        let all = shared.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if all.closing.load(Ordering::SeqCst) {
                    return;
                }
                let (one, stream) = (all.clone(), stream.unwrap());
                // A connection that breaks is what this is about.
                std::thread::spawn(move || drop(one.serve(stream)));
            }
        });
        Self {
            url,
            shared,
            thread: Some(thread),
        }
    }

    /// Sends what comes to this server from now on.
    pub(super) fn lead_to(&self, url: &str) {
        let host = url.trim_start_matches("http://").to_owned();
        *self.shared.upstream.lock().unwrap() = host;
    }

    /// Waits until so many steps have been accepted.
    #[track_caller]
    pub(super) fn wait_for_steps(&self, count: usize, patience: Duration) {
        let record = self.shared.record.lock().unwrap();
        let (record, _) = self
            .shared
            .more
            .wait_timeout_while(record, patience, |record| accepted(record) < count)
            .unwrap();
        let found = accepted(&record);
        assert!(found >= count, "only {found} of {count} steps");
    }

    /// How many steps have been accepted.
    pub(super) fn accepted(&self) -> usize {
        accepted(&self.shared.record.lock().unwrap())
    }

    pub(super) fn record(&self) -> Vec<Seen> {
        self.shared.record.lock().unwrap().clone()
    }

    /// How many requests were ill-treated.
    pub(super) fn troubled(&self) -> u64 {
        self.shared.troubled.load(Ordering::SeqCst)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.url.trim_start_matches("http://"));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accepted(record: &[Seen]) -> usize {
    let is_step =
        |seen: &&Seen| seen.endpoint == "optim_step" && matches!(seen.fate, Fate::Accepted(_));
    record.iter().filter(is_step).count()
}

struct Request {
    head: String,
    path: String,
    body: Vec<u8>,
}

impl Shared {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut writer = stream.try_clone()?;
        let mut reader = BufReader::new(stream);
        while let Some(request) = read(&mut reader)? {
            let trouble = self.trouble();
            if trouble != Trouble::None {
                self.troubled.fetch_add(1, Ordering::SeqCst);
            }
            match trouble {
                Trouble::DropBefore => {
                    self.note(&request, Fate::Withheld);
                    return writer.shutdown(Shutdown::Both);
                }
                Trouble::Status(status) => {
                    self.note(&request, Fate::Withheld);
                    writer.write_all(&refusal(status))?;
                    continue;
                }
                Trouble::None | Trouble::DropAfter | Trouble::Half => {}
            }
            let Some(reply) = self.forward(&request) else {
                return writer.shutdown(Shutdown::Both);
            };
            match trouble {
                Trouble::DropAfter => return writer.shutdown(Shutdown::Both),
                Trouble::Half => {
                    writer.write_all(&reply[..reply.len() / 2])?;
                    return writer.shutdown(Shutdown::Both);
                }
                _ => writer.write_all(&reply)?,
            }
        }
        Ok(())
    }

    /// Hands a request on, and gives back the answer as it is to be sent.
    fn forward(&self, request: &Request) -> Option<Vec<u8>> {
        let host = self.upstream.lock().unwrap().clone();
        let Ok(mut server) = TcpStream::connect(&host) else {
            self.note(request, Fate::Withheld);
            return None;
        };
        let head = request
            .head
            .replacen("\r\n", &format!("\r\nhost: {host}\r\n"), 1);
        let mut bytes = format!("{head}connection: close\r\n\r\n").into_bytes();
        bytes.extend_from_slice(&request.body);
        let mut reply = Vec::new();
        let exchanged = server
            .write_all(&bytes)
            .and_then(|()| server.read_to_end(&mut reply));
        let split = reply.windows(4).position(|window| window == b"\r\n\r\n");
        let (Ok(_), Some(split)) = (exchanged, split) else {
            self.note(request, Fate::Unanswered);
            return None;
        };
        let text = String::from_utf8_lossy(&reply[..split]).into_owned();
        let status: u16 = text.split(' ').nth(1)?.parse().ok()?;
        let lines = text.split("\r\n");
        let kept: Vec<&str> = lines
            .filter(|line| !line.to_lowercase().starts_with("connection:"))
            .collect();
        let body = &reply[split + 4..];
        let id = serde_json::from_slice::<Value>(body)
            .ok()
            .and_then(|answer| Some(answer["request_id"].as_str()?.to_owned()));
        self.note(
            request,
            match (status, id) {
                (200, Some(id)) => Fate::Accepted(id),
                _ => Fate::Refused(status),
            },
        );
        let mut out = format!("{}\r\n\r\n", kept.join("\r\n")).into_bytes();
        out.extend_from_slice(body);
        Some(out)
    }

    fn note(&self, request: &Request, fate: Fate) {
        let endpoint = request.path.trim_start_matches("/api/v1/");
        let (model, seq) = match endpoint {
            "forward_backward" => (proto::text(&request.body, 1), proto::seq_id(&request.body)),
            "optim_step" | "save_weights" => {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                let model = body["model_id"].as_str().unwrap().to_owned();
                (model, body["seq_id"].as_u64().unwrap())
            }
            _ => return,
        };
        self.record.lock().unwrap().push(Seen {
            endpoint: endpoint.to_owned(),
            model,
            seq,
            body: request.body.clone(),
            fate,
        });
        self.more.notify_all();
    }

    /// One request in ten or so is ill-treated.
    fn trouble(&self) -> Trouble {
        // splitmix64
        let mut bits = self
            .random
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        match (bits ^ (bits >> 31)) % 1000 {
            0..20 => Trouble::Status(429),
            20..35 => Trouble::Status(503),
            35..40 => Trouble::Status(500),
            40..60 => Trouble::DropBefore,
            60..80 => Trouble::DropAfter,
            80..95 => Trouble::Half,
            _ => Trouble::None,
        }
    }
}

fn refusal(status: u16) -> Vec<u8> {
    let body = r#"{"detail":"a bad day"}"#;
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Bad\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         retry-after: 0\r\n\r\n{body}"
    )
    .into_bytes()
}

/// The next request of a connection, without the headers that concern the connection.
fn read(from: &mut impl BufRead) -> std::io::Result<Option<Request>> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let lower = line.to_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        if line == "\r\n" {
            break;
        }
        if !lower.starts_with("host:") && !lower.starts_with("connection:") {
            head.push_str(&line);
        }
    }
    let mut body = vec![0; length];
    from.read_exact(&mut body)?;
    let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
    Ok(Some(Request { head, path, body }))
}
