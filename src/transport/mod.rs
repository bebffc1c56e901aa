//! One request out, one reply in; the only room that names ureq.
//!
//! [`Transport`] makes exactly one attempt: it neither sleeps nor repeats, starts no thread, and
//! reads the clock only to know what the redirects of a request left of its limit. What to make of an outcome is decided by the pure functions of [`retry`];
//! the loops that carry the decision out live in the runtime.
//!
//! Nothing here logs a key, a header's value or a signed URL. ureq itself prints whole URLs at
//! its trace level, so programs that log at trace should filter the target `ureq`.

mod agent;
pub(crate) mod auth;
mod body;
mod certificates;
mod connect;
mod descriptors;
mod download;
mod fault;
mod headers;
mod redact;
mod redirect;
mod request;
pub(crate) mod retry;

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ureq::http::{self, HeaderMap};

use self::agent::Agents;
use self::body::Content;
use self::fault::Phase;
use self::redirect::Step;
use crate::config::{Config, SHORTEST_SECRET, Secret};
use crate::error::{Error, Meaning, Result};
use crate::sync::lock;
use crate::types::percent::percent_decode;
use crate::wire::route::{Method, Pool};

pub(crate) use self::agent::IDLE_AGE;
pub(crate) use self::descriptors::Sockets;
pub(crate) use self::download::{Download, Receiver, Rest};
pub(crate) use self::fault::{Fault, FaultKind};
pub(crate) use self::request::{Auth, Body, Head, Part, Request, Response, Source};
pub(crate) use crate::wire::PROTOCOL_VERSION;

/// How long an ordinary request waits for its answer.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// How long connecting may take.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

const USER_AGENT: &str = concat!("tinker-sdk/", env!("CARGO_PKG_VERSION"), " (Rust)");

/// How many bodiless 400s a pool takes for a proxy's before it believes them, as the reference does:
/// the service's own errors have bodies (FastAPI's).
const REJECTION_BUDGET: i32 = 16;

/// A shorter value in a URL signs nothing.
const SHORTEST_SIGNATURE: usize = 16;

/// The connections to one service. Cloning shares them.
#[derive(Debug, Clone)]
pub(crate) struct Transport {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    base_url: String,
    agents: Agents,
    sockets: Sockets,
    headers: headers::Defaults,
    read_timeout: Option<Duration>,
    connect_timeout: Option<Duration>,
    rejections: [AtomicI32; Pool::ALL.len()],
    /// Whether the service has answered: from then on it is known to exist, and to be the one.
    met: AtomicBool,
    /// Configured values that must not be shown.
    secrets: Vec<Secret>,
    /// Keys and tokens that were sent, for [`Transport::redact`]; the newest last.
    sent: Mutex<Vec<Secret>>,
    /// The signatures of URLs likewise. Many files make many, which must not drive out a key whose
    /// request is under way.
    signed: Mutex<Vec<Secret>>,
}

impl Transport {
    /// Checks the configuration and prepares the agents; connects to nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a URL, header, proxy or certificate that
    /// cannot be used.
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let base_url = config.base_url()?;
        let sockets = Sockets::of_process(agent::is_local(&base_url));
        Ok(Self {
            inner: Arc::new(Inner {
                base_url,
                agents: Agents::new(config, &sockets, IDLE_AGE)?,
                sockets,
                headers: headers::Defaults::new(config)?,
                read_timeout: finite(config.read_timeout.or(Some(READ_TIMEOUT))),
                connect_timeout: finite(config.connect_timeout.or(Some(CONNECT_TIMEOUT))),
                rejections: Pool::ALL.map(|_| AtomicI32::new(REJECTION_BUDGET)),
                met: AtomicBool::new(false),
                secrets: config.secrets(),
                sent: Mutex::default(),
                signed: Mutex::default(),
            }),
        })
    }

    /// How many connections are open, idle ones included.
    pub(crate) fn open_connections(&self) -> usize {
        self.inner.agents.open_connections()
    }

    /// Closes connections that have been idle for [`IDLE_AGE`], if it is called once in that time.
    pub(crate) fn release_idle(&self) {
        self.inner.agents.release_idle();
    }

    /// The service's URL, without a trailing slash.
    pub(crate) fn base_url(&self) -> &str {
        &self.inner.base_url
    }

    /// How many connections each purpose may have.
    pub(crate) fn sockets(&self) -> &Sockets {
        &self.inner.sockets
    }

    /// A key that makes repeated attempts of one request recognisable.
    pub(crate) fn new_idempotency_key(&self) -> String {
        self.inner.headers.new_idempotency_key()
    }

    /// Sends a request and reads the whole answer, whatever its status.
    ///
    /// # Errors
    ///
    /// A [`Fault`] when no complete answer came.
    pub(crate) fn exchange(&self, request: &Request<'_>) -> Result<Response, Fault> {
        self.exchange_into(request, Vec::new())
    }

    /// The same, reading into a buffer that is cleared first and given back as the answer's body.
    pub(crate) fn exchange_into(
        &self,
        request: &Request<'_>,
        mut buffer: Vec<u8>,
    ) -> Result<Response, Fault> {
        let mut taken = false;
        let outcome = self.open(request, &mut taken).and_then(|(head, body)| {
            buffer.clear();
            if let Some(length) = head.header("content-length").and_then(|n| n.parse().ok()) {
                // A server may announce anything; what really comes grows the buffer.
                buffer.reserve(usize::min(length, 16 << 20));
            }
            let mut reader = body.into_reader();
            reader
                .read_to_end(&mut buffer)
                .map_err(|error| Fault::from_io(error, Phase::Body))?;
            // Without a length, a body cut off by stopping looks whole.
            if head.is_unframed() && self.inner.agents.is_stopped(request.pool) {
                return Err(Fault::new(FaultKind::Stopped, "the client stopped"));
            }
            self.accept(request, head, buffer)
        });
        self.settle(request, outcome, taken, |response| response.status())
    }

    /// Sends a request and hands out the answer's body as it arrives.
    ///
    /// # Errors
    ///
    /// A [`Fault`] when no answer began; the reader reports one that ends early.
    pub(crate) fn stream(
        &self,
        request: &Request<'_>,
    ) -> Result<(Head, impl Read + Send + 'static), Fault> {
        let mut taken = false;
        let outcome = self.open(request, &mut taken);
        let (head, body) = self.settle(request, outcome, taken, |(head, _)| head.status)?;
        Ok((head, body.into_reader()))
    }

    /// Ends every pool: blocked calls return [`FaultKind::Stopped`], new ones too.
    pub(crate) fn stop(&self) {
        Pool::ALL.into_iter().for_each(|pool| self.stop_pool(pool));
    }

    /// Ends one pool.
    pub(crate) fn stop_pool(&self, pool: Pool) {
        self.inner.agents.stop(pool);
    }

    /// Whether the service has answered at least once.
    pub(crate) fn has_met(&self) -> bool {
        self.inner.met.load(Ordering::Relaxed)
    }

    /// Replaces every configured secret and every key this client has sent, should a server have
    /// echoed one.
    pub(crate) fn redact(&self, text: &str) -> String {
        let (sent, signed) = (lock(&self.inner.sent), lock(&self.inner.signed));
        self.inner
            .secrets
            .iter()
            .chain(sent.iter())
            .chain(signed.iter())
            .fold(text.to_owned(), |text, key| {
                redact::hide(&text, key.expose())
            })
    }

    /// The same for the body of an error.
    pub(crate) fn redact_body(&self, body: &[u8]) -> Vec<u8> {
        // Errors show their bodies as text, damaged or not.
        self.redact(&String::from_utf8_lossy(body)).into_bytes()
    }

    /// The same for an error made from an answer: its message, its body, and what lies below it.
    pub(crate) fn redact_error(&self, mut error: Error) -> Error {
        let Some(context) = error.context_mut() else {
            return error;
        };
        let redacted = |text: &str| Some(self.redact(text)).filter(|clean| clean != text);
        if let Some(clean) = redacted(&context.message) {
            context.message = clean;
        }
        let source = context.source.as_ref().map(ToString::to_string);
        if let Some(clean) = source.and_then(|text| redacted(&text)) {
            context.message = format!("{}: {clean}", context.message);
            context.source = None;
        }
        let body = context.body.as_ref().map(ToString::to_string);
        if let Some(clean) = body.and_then(|text| redacted(&text)) {
            context.body = Some(serde_json::from_str(&clean).unwrap_or(clean.into()));
        }
        error
    }

    /// Applies the rule about bodiless 400s and hides echoed keys.
    fn accept(
        &self,
        request: &Request<'_>,
        head: Head,
        mut body: Vec<u8>,
    ) -> Result<Response, Fault> {
        let budget = &self.inner.rejections[request.pool as usize];
        let is_empty = matches!(head.header("content-length"), None | Some("0")) && body.is_empty();
        if Meaning::of_status(head.status) == Meaning::BadRequest && is_empty {
            let before = budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                (left > 0).then_some(left - 1)
            });
            if before.is_ok() {
                self.inner.agents.mark_stale(request.pool);
                return Err(Fault::new(
                    FaultKind::Rejected,
                    "a proxy on the way declined the request (an empty 400)",
                ));
            }
        } else if head.is_success() {
            // Never above the budget it began with.
            let _ = budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                (left < REJECTION_BUDGET).then_some(left + 1)
            });
        }
        if !head.is_success() {
            body = self.redact_body(&body);
        }
        Ok(Response { head, body })
    }

    /// Logs the outcome and names a fault for what it is: of a stopped pool, of a request that was
    /// taken, of a service that is known.
    fn settle<T>(
        &self,
        request: &Request<'_>,
        outcome: Result<T, Fault>,
        taken: bool,
        status: impl Fn(&T) -> u16,
    ) -> Result<T, Fault> {
        let label = &request.label;
        match outcome {
            Ok(value) => {
                let status = status(&value);
                log::debug!("{label}: status {status}");
                // A redirect may be a stranger's on the way.
                if !(300..400).contains(&status) {
                    self.inner.met.store(true, Ordering::Relaxed);
                }
                Ok(value)
            }
            Err(_) if self.inner.agents.is_stopped(request.pool) => {
                log::debug!("{label}: stopped");
                Err(Fault::new(FaultKind::Stopped, "the client stopped"))
            }
            Err(fault) => {
                log::debug!("{label}: {fault}");
                if fault.is_unreachable() || fault.kind == FaultKind::Tls {
                    self.inner.agents.forget_names();
                }
                let fault = match taken {
                    true => fault.of_taken_request(),
                    false => fault,
                };
                match self.has_met() {
                    true => Err(fault.of_known_service()),
                    false => Err(fault),
                }
            }
        }
    }

    /// Sends a request, follows redirects, and returns once an answer has begun. `taken` says
    /// whether somebody sent the request on to its answer, and so may have done it.
    fn open(&self, request: &Request<'_>, taken: &mut bool) -> Result<(Head, ureq::Body), Fault> {
        let mut url = self.url(request);
        let mut method = request.method;
        let mut body = request.body;
        if let Auth::Key(key) = request.auth {
            self.remember(key);
        }
        // A whole URL may name another host, which gets neither the key nor the client's headers.
        let is_path = request.path.starts_with('/');
        let mut stranger = !is_path && !redirect::same_origin(&url, self.base_url());
        if !is_path {
            self.remember_signature(&url);
        }
        let begun = Instant::now();
        for followed in 0.. {
            let left = (request.whole_timeout).map(|limit| limit.saturating_sub(begun.elapsed()));
            // Made anew for each hop rather than kept: thousands of calls may wait in `send`.
            let headers = self.headers(request, method, stranger)?;
            let (mut head, answer) = self.send(request, method, &url, headers, &body, left)?;
            head.taken = *taken;
            *taken |= matches!(head.status, 301..=303) && method != Method::Get;
            let has_body = !matches!(body, Body::Empty);
            let location = head.header("location");
            match redirect::step(head.status, location, &url, method, has_body, followed) {
                Step::Stay => return Ok((head, answer)),
                Step::Refuse(reason) => return Err(Fault::new(FaultKind::Redirect, reason)),
                Step::Follow {
                    same_origin: false, ..
                } if request.foreign => return Ok((head, answer)),
                Step::Follow {
                    url: next,
                    as_get,
                    same_origin,
                } => {
                    if as_get {
                        method = Method::Get;
                        body = Body::Empty;
                    }
                    stranger |= !same_origin;
                    url = next;
                    self.remember_signature(&url);
                }
            }
        }
        unreachable!("the loop ends by its own limit of redirects")
    }

    /// The headers of one hop; a request that became a GET on the way has no body to describe.
    fn headers(
        &self,
        request: &Request<'_>,
        method: Method,
        stranger: bool,
    ) -> Result<HeaderMap, Fault> {
        let timeout = self.read_timeout(request);
        let mut headers = self.inner.headers.for_request(request, timeout)?;
        if method != request.method {
            headers.remove(http::header::CONTENT_TYPE);
            headers.remove(http::header::CONTENT_ENCODING);
            headers.remove(&headers::IDEMPOTENCY_KEY);
        }
        match (stranger, request.foreign) {
            (true, _) => Ok(headers::for_stranger(&headers)),
            (false, true) => Ok(headers::for_foreign(&headers)),
            (false, false) => Ok(headers),
        }
    }

    fn url(&self, request: &Request<'_>) -> String {
        let base = if request.path.contains("://") {
            ""
        } else {
            self.base_url()
        };
        let mut url = format!("{base}{}", request.path);
        if !request.query.is_empty() {
            url.push(if url.contains('?') { '&' } else { '?' });
            url.push_str(&request.query);
        }
        url
    }

    fn read_timeout(&self, request: &Request<'_>) -> Option<Duration> {
        finite(request.read_timeout.or(self.inner.read_timeout))
    }

    /// Has a secret that is about to be sent hidden wherever a server echoes it.
    pub(crate) fn remember(&self, key: &Secret) {
        // A key of a few letters is no secret, and hiding it would garble ordinary words.
        if key.expose().len() >= SHORTEST_SECRET {
            note(&self.inner.sent, key);
        }
    }

    /// A URL that somebody else made may be signed, by any of its longer values.
    fn remember_signature(&self, url: &str) {
        let query = url.split_once('?').map_or("", |(_, query)| query);
        let values = query.split('&').filter_map(|pair| pair.split_once('='));
        for (_, value) in values {
            // A server may echo it as it is meant rather than as it was written.
            for value in [value, &percent_decode(value)] {
                if value.len() >= SHORTEST_SIGNATURE {
                    note(&self.inner.signed, &value.into());
                }
            }
        }
    }

    /// One hop: the request as ureq wants it, its limits, and the beginning of the answer.
    fn send(
        &self,
        request: &Request<'_>,
        method: Method,
        url: &str,
        mut headers: HeaderMap,
        body: &Body<'_>,
        left: Option<Duration>,
    ) -> Result<(Head, ureq::Body), Fault> {
        let mut content = Content::new(method, body)?;
        if let Some(kind) = content.content_type() {
            headers.insert(http::header::CONTENT_TYPE, kind);
        }
        if let Some(length) = content.length() {
            headers.insert(http::header::CONTENT_LENGTH, length.into());
        }
        let mut outgoing = http::Request::builder()
            .method(method.as_str())
            .uri(url)
            .body(content.as_send_body())
            .map_err(|error| Fault::from_ureq(ureq::Error::Http(error), Phase::Head))?;
        *outgoing.headers_mut() = headers;
        let agents = &self.inner.agents;
        let agent = agents.agent(request.pool);
        let read = self.read_timeout(request);
        let configured = agent
            .configure_request(outgoing)
            .proxy(agents.proxy_for(url))
            .max_idle_age(agents.usable_age(request.pool))
            .timeout_connect(finite(
                request.connect_timeout.or(self.inner.connect_timeout),
            ))
            // Per read, not for the whole head: what is left of a limit differs every time, and
            // each difference is another call to the system.
            .timeout_per_read(read)
            .timeout_per_write(read)
            .timeout_global(finite(left))
            .build();
        let (parts, body) = agent
            .run(configured)
            .map_err(|error| Fault::from_ureq(error, Phase::Head))?
            .into_parts();
        let head = Head {
            status: parts.status.as_u16(),
            headers: parts.headers,
            taken: false,
        };
        Ok((head, body))
    }
}

/// Adds a secret to those that were sent. Tokens change hourly, signed URLs with every file; the
/// newest are enough.
fn note(sent: &Mutex<Vec<Secret>>, secret: &Secret) {
    let mut sent = lock(sent);
    if !sent.contains(secret) {
        if sent.len() >= 128 {
            sent.remove(0);
        }
        sent.push(secret.clone());
    }
}

/// A limit of years is none; the system could not even be told.
fn finite(limit: Option<Duration>) -> Option<Duration> {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    limit.filter(|limit| *limit < YEAR)
}

#[cfg(test)]
mod tests;
