//! A scripted HTTP/1.1 server for what a well-behaved one cannot do: faults, odd statuses,
//! malformed and truncated answers, stalls, dropped connections, bytes split anywhere.
//!
//! Replies are queued per route; requests are recorded in the order they took effect. A route is
//! a whole path (`/base/api/v1/x`) or what follows `/api/v1/` (`x`).
//!
//! ```ignore
//! let server = Server::start();
//! server.reply("POST", "optim_step", Reply::status(503));
//! server.reply("POST", "optim_step", Reply::json(&json!({"request_id": "1"})));
//! // ... run the client against server.url() ...
//! assert_eq!(server.requests().len(), 2);
//! ```

#![allow(
    dead_code,
    reason = "shared by several test crates, each using some of it"
)]

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;

/// Guards waits against hangs; never part of what is measured.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server; stopped, with its threads joined, when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// The acceptor, then the thread it feeds; they end in this order.
    hosts: Vec<JoinHandle<()>>,
}

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) method: String,
    /// Without the query.
    pub(crate) path: String,
    pub(crate) query: String,
    /// Names in lower case, in order of arrival.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// Which accepted connection carried it, from 0.
    pub(crate) connection: usize,
}

impl Recorded {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("a JSON request body")
    }
}

/// What to answer, and how badly.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    framing: Framing,
    /// Send the answer's first bytes only, then close.
    cut: Option<usize>,
    /// Where to begin a new write, in bytes of the whole answer.
    splits: Vec<usize>,
    /// Wait before the byte at this place.
    stall: Option<(usize, Gate)>,
    /// From here on, a byte at a time.
    drip: Option<usize>,
    kind: Kind,
    recorded: bool,
    close: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Answer,
    /// `body` is all that is sent.
    Raw,
    HangUp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Framing {
    Length,
    /// Chunks of this many bytes.
    Chunked(usize),
    /// Neither length nor chunks: the end of the connection ends the body.
    UntilClose,
}

impl Reply {
    /// An empty answer with this status (and `content-length: 0`).
    pub(crate) fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            framing: Framing::Length,
            cut: None,
            splits: Vec::new(),
            stall: None,
            drip: None,
            kind: Kind::Answer,
            recorded: true,
            close: false,
        }
    }

    /// A 200 with a JSON body.
    pub(crate) fn json(value: &Value) -> Self {
        Self::bytes("application/json", value.to_string())
    }

    /// A 200 with any body.
    pub(crate) fn bytes(content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        let mut reply = Self::status(200).with_header("content-type", content_type);
        reply.body = body.into();
        reply
    }

    /// Exactly these bytes, which need not be HTTP; the connection closes after them.
    pub(crate) fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        let mut reply = Self::status(0);
        reply.kind = Kind::Raw;
        reply.body = bytes.into();
        reply
    }

    /// Closes the connection without an answer, after the request took effect.
    pub(crate) fn hang_up() -> Self {
        let mut reply = Self::status(0);
        reply.kind = Kind::HangUp;
        reply
    }

    /// Not even the request takes effect: it is not recorded.
    pub(crate) fn before_effect(mut self) -> Self {
        self.recorded = false;
        self
    }

    pub(crate) fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    pub(crate) fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// In chunks of `size` bytes.
    pub(crate) fn chunked(mut self, size: usize) -> Self {
        self.framing = Framing::Chunked(size.max(1));
        self
    }

    /// Without a length; the end of the connection ends the body.
    pub(crate) fn until_close(mut self) -> Self {
        self.framing = Framing::UntilClose;
        self
    }

    /// Closes the connection after the answer.
    pub(crate) fn then_close(mut self) -> Self {
        self.close = true;
        self
    }

    /// Sends only the first `count` bytes of the whole answer, then closes.
    pub(crate) fn cut_at(mut self, count: usize) -> Self {
        self.cut = Some(count);
        self
    }

    /// Sends everything but the last `count` bytes, then closes.
    pub(crate) fn cut_before_end(self, count: usize) -> Self {
        let length = self.encode().len();
        self.cut_at(length.saturating_sub(count))
    }

    /// Begins a new write at each of these places.
    pub(crate) fn split_at(mut self, places: &[usize]) -> Self {
        self.splits = places.to_vec();
        self
    }

    /// One write per byte.
    pub(crate) fn byte_by_byte(self) -> Self {
        let places: Vec<usize> = (1..self.encode().len()).collect();
        self.split_at(&places)
    }

    /// Sends nothing until the gate opens.
    pub(crate) fn after(self, gate: &Gate) -> Self {
        self.stall_at(0, gate)
    }

    /// Sends the answer's first `place` bytes, the rest when the gate opens.
    pub(crate) fn stall_at(mut self, place: usize, gate: &Gate) -> Self {
        self.stall = Some((place, gate.clone()));
        self
    }

    /// Sends the answer's first `place` bytes, then one after the other, each a while after the
    /// one before, for as long as the client listens.
    pub(crate) fn drip_from(mut self, place: usize) -> Self {
        self.drip = Some(place);
        self
    }

    /// How many bytes the whole answer has.
    pub(crate) fn wire_len(&self) -> usize {
        self.encode().len()
    }

    fn encode(&self) -> Vec<u8> {
        if self.kind != Kind::Answer {
            return self.body.clone();
        }
        let mut out = format!("HTTP/1.1 {} Scripted\r\n", self.status).into_bytes();
        let mut header = |name: &str, value: &str| {
            out.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        };
        for (name, value) in &self.headers {
            header(name, value);
        }
        let bodiless = self.status == 204 || self.status == 304;
        match self.framing {
            Framing::Length if bodiless => {}
            Framing::Length => {
                let given = self
                    .headers
                    .iter()
                    .any(|(name, _)| name.eq_ignore_ascii_case("content-length"));
                if !given {
                    header("content-length", &self.body.len().to_string());
                }
            }
            Framing::Chunked(_) => header("transfer-encoding", "chunked"),
            Framing::UntilClose => header("connection", "close"),
        }
        out.extend_from_slice(b"\r\n");
        match self.framing {
            Framing::Chunked(size) => {
                for chunk in self.body.chunks(size) {
                    out.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
                    out.extend_from_slice(chunk);
                    out.extend_from_slice(b"\r\n");
                }
                out.extend_from_slice(b"0\r\n\r\n");
            }
            _ => out.extend_from_slice(&self.body),
        }
        out
    }

    fn closes(&self) -> bool {
        self.close
            || self.cut.is_some()
            || self.kind != Kind::Answer
            || self.framing == Framing::UntilClose
    }
}

/// Holds answers back until it is opened; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate {
    inner: Arc<(Mutex<GateState>, Condvar)>,
}

#[derive(Debug, Default)]
struct GateState {
    open: bool,
    waiting: usize,
}

impl Gate {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Lets everything through, now and later.
    pub(crate) fn open(&self) {
        lock(&self.inner.0).open = true;
        self.inner.1.notify_all();
    }

    /// How many answers wait at the gate.
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.inner.0).waiting
    }

    /// Blocks until at least `count` answers wait at the gate.
    pub(crate) fn wait_for(&self, count: usize) {
        let state = lock(&self.inner.0);
        let (state, timed_out) = self
            .inner
            .1
            .wait_timeout_while(state, PATIENCE, |state| state.waiting < count)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(
            !timed_out.timed_out(),
            "{} of {count} answers waiting",
            state.waiting
        );
    }

    fn pass(&self) {
        let mut state = lock(&self.inner.0);
        state.waiting += 1;
        self.inner.1.notify_all();
        while !state.open {
            state = self
                .inner
                .1
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
    }
}

type Handler = Arc<dyn Fn(&Recorded) -> Reply + Send + Sync>;

struct Shared {
    queued: Mutex<HashMap<(String, String), VecDeque<Reply>>>,
    handlers: Mutex<HashMap<(String, String), Handler>>,
    fallback: Mutex<Option<Handler>>,
    requests: Mutex<Vec<Recorded>>,
    arrived: Condvar,
    gates: Mutex<Vec<Gate>>,
    streams: Mutex<Vec<Weak<TcpStream>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    accepted: AtomicUsize,
    open: AtomicUsize,
    drop_next: AtomicUsize,
    stopping: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

/// Tests with thousands of connections need more descriptors than many systems give at first;
/// a process may raise its own limit up to the one set for it.
fn allow_many_files() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        static RAISED: std::sync::Once = std::sync::Once::new();
        RAISED.call_once(|| {
            let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
            let raised = Rlimit {
                current: maximum,
                maximum,
            };
            // Where that is refused, tests with fewer connections still run.
            let _ = setrlimit(Resource::Nofile, raised);
        });
    }
}

impl Server {
    /// Listens on a free port of the loopback interface.
    pub(crate) fn start() -> Self {
        allow_many_files();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound listener");
        let shared = Arc::new(Shared {
            queued: Mutex::default(),
            handlers: Mutex::default(),
            fallback: Mutex::default(),
            requests: Mutex::default(),
            arrived: Condvar::new(),
            gates: Mutex::default(),
            streams: Mutex::default(),
            threads: Mutex::default(),
            accepted: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            drop_next: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
        });
        let (sender, accepted) = mpsc::channel();
        let acceptor = spawn("scripted-accept", {
            let shared = Arc::clone(&shared);
            move || accept(&listener, &shared, &sender)
        });
        let host = spawn("scripted-host", {
            let shared = Arc::clone(&shared);
            move || host(&accepted, &shared)
        });
        Self {
            address,
            shared,
            hosts: vec![acceptor, host],
        }
    }

    /// `http://127.0.0.1:<port>`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Queues one answer for a route; queued answers go first, in order.
    pub(crate) fn reply(&self, method: &str, route: &str, reply: Reply) {
        let key = (method.to_owned(), route.to_owned());
        lock(&self.shared.queued)
            .entry(key)
            .or_default()
            .push_back(reply);
    }

    /// Answers a route like this whenever nothing is queued for it.
    pub(crate) fn always(&self, method: &str, route: &str, reply: Reply) {
        self.on(method, route, move |_| reply.clone());
    }

    /// Answers a route by a function whenever nothing is queued for it.
    pub(crate) fn on(
        &self,
        method: &str,
        route: &str,
        handler: impl Fn(&Recorded) -> Reply + Send + Sync + 'static,
    ) {
        let key = (method.to_owned(), route.to_owned());
        lock(&self.shared.handlers).insert(key, Arc::new(handler));
    }

    /// Answers everything else; without one it is a 404 that says so.
    pub(crate) fn otherwise(&self, handler: impl Fn(&Recorded) -> Reply + Send + Sync + 'static) {
        *lock(&self.shared.fallback) = Some(Arc::new(handler));
    }

    /// Closes the next `count` connections as soon as they are accepted.
    pub(crate) fn drop_connections(&self, count: usize) {
        self.shared.drop_next.fetch_add(count, Ordering::SeqCst);
    }

    /// Closes every open connection now.
    pub(crate) fn close_connections(&self) {
        for stream in lock(&self.shared.streams).iter().filter_map(Weak::upgrade) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Everything recorded so far.
    pub(crate) fn requests(&self) -> Vec<Recorded> {
        lock(&self.shared.requests).clone()
    }

    /// What was recorded for one route.
    pub(crate) fn requests_to(&self, route: &str) -> Vec<Recorded> {
        let mut found = self.requests();
        found.retain(|request| matches_route(&request.path, route));
        found
    }

    /// Blocks until `count` requests are recorded; returns all.
    pub(crate) fn wait_for(&self, count: usize) -> Vec<Recorded> {
        self.wait_until(|requests| requests.len() >= count)
    }

    /// Blocks until the recorded requests satisfy the condition; returns them.
    pub(crate) fn wait_until(&self, condition: impl Fn(&[Recorded]) -> bool) -> Vec<Recorded> {
        let requests = lock(&self.shared.requests);
        let (requests, timed_out) = self
            .shared
            .arrived
            .wait_timeout_while(requests, PATIENCE, |requests| !condition(requests))
            .unwrap_or_else(PoisonError::into_inner);
        assert!(
            !timed_out.timed_out(),
            "still waiting after {} requests",
            requests.len()
        );
        requests.clone()
    }

    /// Blocks until at most `count` connections are open.
    pub(crate) fn wait_open(&self, count: usize) {
        let requests = lock(&self.shared.requests);
        let waited = self
            .shared
            .arrived
            .wait_timeout_while(requests, PATIENCE, |_| self.open_connections() > count);
        let (_requests, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!timed_out.timed_out(), "{} open", self.open_connections());
    }

    /// How many connections were accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many connections are open.
    pub(crate) fn open_connections(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which then sees the flag.
        let _ = TcpStream::connect(self.address);
        for thread in self.hosts.drain(..) {
            let _ = thread.join();
        }
        self.close_connections();
        for gate in lock(&self.shared.gates).drain(..) {
            gate.open();
        }
        let threads = std::mem::take(&mut *lock(&self.shared.threads));
        for thread in threads {
            let _ = thread.join();
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new()
        .name(name.to_owned())
        // Thousands of connections must stay cheap.
        .stack_size(128 << 10)
        .spawn(work)
        .expect("a thread for the scripted server")
}

/// Only accepts: the queue of waiting connections is short, and a burst of thousands that is not
/// taken in at once would be refused by the system.
fn accept(listener: &TcpListener, shared: &Shared, accepted: &Sender<(usize, TcpStream)>) {
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let number = shared.accepted.fetch_add(1, Ordering::SeqCst);
        let less_one = |count: usize| count.checked_sub(1);
        let dropped = shared
            .drop_next
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less_one);
        if dropped.is_err() {
            let _ = accepted.send((number, stream));
        }
    }
}

/// Gives each connection a thread.
fn host(accepted: &Receiver<(usize, TcpStream)>, shared: &Arc<Shared>) {
    for (number, stream) in accepted {
        let _ = stream.set_nodelay(true);
        let stream = Arc::new(stream);
        {
            let mut streams = lock(&shared.streams);
            streams.retain(|stream| stream.strong_count() > 0);
            streams.push(Arc::downgrade(&stream));
        }
        shared.open.fetch_add(1, Ordering::SeqCst);
        let thread = spawn("scripted-connection", {
            let shared = Arc::clone(shared);
            move || {
                let _ = serve(&stream, number, &shared);
                let _ = stream.shutdown(Shutdown::Both);
                let _requests = lock(&shared.requests);
                shared.open.fetch_sub(1, Ordering::SeqCst);
                shared.arrived.notify_all();
            }
        });
        lock(&shared.threads).push(thread);
    }
}

fn serve(stream: &TcpStream, number: usize, shared: &Shared) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(2 << 10, stream);
    while let Some(request) = read_request(&mut reader, number)? {
        let reply = shared.choose(&request);
        if let Some((_, gate)) = &reply.stall {
            lock(&shared.gates).push(gate.clone());
            if shared.stopping.load(Ordering::SeqCst) {
                gate.open();
            }
        }
        if reply.recorded {
            lock(&shared.requests).push(request);
            shared.arrived.notify_all();
        }
        send(stream, &reply)?;
        if reply.closes() {
            break;
        }
    }
    Ok(())
}

impl Shared {
    fn choose(&self, request: &Recorded) -> Reply {
        let routes = [Some(request.path.as_str()), below_api(&request.path)];
        for route in routes.into_iter().flatten() {
            let key = (request.method.clone(), route.to_owned());
            if let Some(reply) = lock(&self.queued)
                .get_mut(&key)
                .and_then(VecDeque::pop_front)
            {
                return reply;
            }
            let handler = lock(&self.handlers).get(&key).cloned();
            if let Some(handler) = handler {
                return handler(request);
            }
        }
        let fallback = lock(&self.fallback).clone();
        match fallback {
            Some(handler) => handler(request),
            None => {
                let text = format!("nothing scripted for {} {}", request.method, request.path);
                Reply::json(&serde_json::json!({ "detail": text })).with_status(404)
            }
        }
    }
}

fn below_api(path: &str) -> Option<&str> {
    path.split_once("/api/v1/").map(|(_, route)| route)
}

fn matches_route(path: &str, route: &str) -> bool {
    path == route || below_api(path) == Some(route)
}

/// `None` at the end of the connection.
fn read_request(reader: &mut impl BufRead, connection: usize) -> io::Result<Option<Recorded>> {
    let Some(line) = read_line(reader)? else {
        return Ok(None);
    };
    let mut words = line.split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let target = words.next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (path, query) = (path.to_owned(), query.to_owned());
    let mut headers: Vec<(String, String)> = Vec::new();
    while let Some(line) = read_line(reader)? {
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    let find = |wanted: &str| {
        let found = headers.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    let mut body = Vec::new();
    if find("transfer-encoding") == Some("chunked") {
        read_chunks(reader, &mut body)?;
    } else if let Some(length) = find("content-length").and_then(|n| n.parse().ok()) {
        body = vec![0; length];
        reader.read_exact(&mut body)?;
    }
    Ok(Some(Recorded {
        method,
        path,
        query,
        headers,
        body,
        connection,
    }))
}

fn read_line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    if reader.read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&line);
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

fn read_chunks(reader: &mut impl BufRead, body: &mut Vec<u8>) -> io::Result<()> {
    while let Some(line) = read_line(reader)? {
        let size = usize::from_str_radix(line.trim(), 16).map_err(io::Error::other)?;
        let start = body.len();
        body.resize(start + size, 0);
        reader.read_exact(&mut body[start..])?;
        read_line(reader)?;
        if size == 0 {
            break;
        }
    }
    Ok(())
}

fn send(mut stream: &TcpStream, reply: &Reply) -> io::Result<()> {
    if reply.kind == Kind::HangUp {
        if let Some((_, gate)) = &reply.stall {
            gate.pass();
        }
        return Ok(());
    }
    let bytes = reply.encode();
    if let Some(place) = reply.drip {
        stream.write_all(&bytes[..place])?;
        return bytes[place..]
            .iter()
            .try_for_each(|byte| drip(stream, *byte));
    }
    let end = reply.cut.unwrap_or(bytes.len()).min(bytes.len());
    let stall_at = reply.stall.as_ref().map(|(place, _)| *place);
    let mut places = reply.splits.clone();
    places.extend(stall_at);
    places.push(end);
    places.retain(|place| *place <= end);
    places.sort_unstable();
    places.dedup();
    let mut from = 0;
    for place in places {
        stream.write_all(&bytes[from..place])?;
        from = place;
        if let Some((at, gate)) = &reply.stall
            && *at == place
        {
            gate.pass();
        }
    }
    stream.flush()
}

/// Sends a byte, and watches for a moment whether the client hangs up.
fn drip(mut stream: &TcpStream, byte: u8) -> io::Result<()> {
    stream.write_all(&[byte])?;
    stream.set_read_timeout(Some(Duration::from_millis(5)))?;
    let watched = stream.peek(&mut [0]);
    stream.set_read_timeout(None)?;
    match watched {
        Ok(0) => Err(io::ErrorKind::BrokenPipe.into()),
        _ => Ok(()),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
