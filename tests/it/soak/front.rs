//! A front before a server: hands requests on, badly now and then, and keeps a record of them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

use super::trouble::{Cut, Dice, Trouble};
use crate::support::proto;

/// A request for training or for a sample, and what became of it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) endpoint: String,
    /// Or the sampling session.
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
    /// Turned down, by the server or before it.
    Refused(u16),
    /// Accepted, under this id.
    Accepted(String),
}

struct Shared {
    /// Where the server is; empty while there is none.
    upstream: Mutex<String>,
    record: Mutex<Vec<Seen>>,
    more: Condvar,
    dice: Dice,
    tls: Arc<ServerConfig>,
    /// The connections there are, to be ended with the front.
    open: Mutex<BTreeMap<u64, TcpStream>>,
    closing: AtomicBool,
}

/// Speaks HTTP, plain and encrypted at the same address.
pub(super) struct Front {
    /// Host and port.
    pub(super) address: String,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    pub(super) fn start(seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            upstream: Mutex::default(),
            record: Mutex::default(),
            more: Condvar::new(),
            dice: Dice::new(seed),
            tls: tls(),
            open: Mutex::default(),
            closing: AtomicBool::new(false),
        });
        let all = shared.clone();
        let thread = std::thread::spawn(move || all.accept(&listener));
        Self {
            address,
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

    /// How often each trouble has struck.
    pub(super) fn struck(&self) -> BTreeMap<Trouble, u64> {
        self.shared.dice.struck()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(&self.address);
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

/// Where the certificates are.
pub(super) fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tls");
    fixtures.join(name)
}

fn tls() -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificate = CertificateDer::from_pem_file(fixture("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(fixture("server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key);
    Arc::new(config.unwrap())
}

impl Shared {
    /// Takes connections until the front closes, then ends and joins what is left.
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let mut threads: Vec<JoinHandle<()>> = Vec::new();
        for (id, stream) in (0..).zip(listener.incoming()) {
            if self.closing.load(Ordering::SeqCst) {
                break;
            }
            let (one, socket) = (self.clone(), stream.unwrap());
            let known = socket.try_clone().unwrap();
            self.open.lock().unwrap().insert(id, known);
            threads.retain(|thread| !thread.is_finished());
            threads.push(std::thread::spawn(move || one.serve(id, socket)));
        }
        for socket in self.open.lock().unwrap().values() {
            // One that is closed already is what is wanted.
            let _ = socket.shutdown(Shutdown::Both);
        }
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn serve(&self, id: u64, socket: TcpStream) {
        let mut first = [0];
        let encrypted = socket.peek(&mut first).is_ok() && first == [0x16];
        let cut = encrypted.then(|| self.dice.connection()).flatten();
        let mut cutting = Cut {
            socket,
            left: cut.map_or(usize::MAX, |(bytes, _)| bytes),
        };
        // A connection that breaks is what this is about.
        let _ = cutting.socket.set_nodelay(true);
        let _ = match encrypted {
            true => {
                let connection = ServerConnection::new(self.tls.clone()).unwrap();
                let mut stream = StreamOwned::new(connection, cutting);
                let ended = self.converse(&mut stream);
                cutting = stream.sock;
                ended
            }
            false => self.converse(&mut cutting),
        };
        if let (0, Some((_, trouble))) = (cutting.left, cut) {
            self.dice.count(trouble);
        }
        // The last handle closes the socket.
        self.open.lock().unwrap().remove(&id);
    }

    /// Answers requests until one side has enough.
    fn converse(&self, stream: impl Read + Write) -> std::io::Result<()> {
        let mut stream = BufReader::new(stream);
        while let Some(request) = read(&mut stream)? {
            let trouble = self.dice.request();
            match trouble {
                Some(Trouble::DropBefore | Trouble::StallBefore) => {
                    self.note(&request, Fate::Withheld);
                    return match trouble {
                        Some(Trouble::StallBefore) => stall(stream),
                        _ => Ok(()),
                    };
                }
                Some(Trouble::Status(status)) => {
                    self.note(&request, Fate::Refused(status));
                    send(&mut stream, &refusal(status, "0"))?;
                    continue;
                }
                Some(Trouble::StatusUntil(status)) => {
                    self.note(&request, Fate::Refused(status));
                    let now = jiff::Timestamp::try_from(SystemTime::now()).unwrap();
                    let now = now.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
                    send(&mut stream, &refusal(status, &now))?;
                    continue;
                }
                _ => {}
            }
            let Some(reply) = self.forward(&request) else {
                return Ok(());
            };
            let half = &reply[..reply.len() / 2];
            match trouble {
                Some(Trouble::DropAfter) => return Ok(()),
                Some(Trouble::Half) => return send(&mut stream, half),
                Some(Trouble::StallMidway) => {
                    send(&mut stream, half)?;
                    return stall(stream);
                }
                _ => send(&mut stream, &reply)?,
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
        // Guards against a hang; the server answers or is killed.
        let _ = server.set_read_timeout(Some(Duration::from_secs(300)));
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
            "asample" => {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                let session = body["sampling_session_id"].as_str().unwrap();
                (session.to_owned(), 0)
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
}

fn send(stream: &mut BufReader<impl Read + Write>, bytes: &[u8]) -> std::io::Result<()> {
    stream.get_mut().write_all(bytes)?;
    stream.get_mut().flush()
}

/// Says nothing until the other side has hung up.
fn stall(mut stream: impl Read) -> std::io::Result<()> {
    std::io::copy(&mut stream, &mut std::io::sink()).map(drop)
}

fn refusal(status: u16, until: &str) -> Vec<u8> {
    let body = r#"{"detail":"a bad day"}"#;
    let length = body.len();
    format!(
        "HTTP/1.1 {status} Bad\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
         retry-after: {until}\r\n\r\n{body}"
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
