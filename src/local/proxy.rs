//! An endpoint that speaks OpenAI's and Anthropic's language, in front of any Tinker server.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::api::auth::{Auth, Key, User};
use super::api::openai::remote::Remote;
use super::api::openai::upstream::Upstream;
use super::api::openai::{self, Fault, PREFIXES, Style};
use super::api::table::Access;
use super::http::{
    App, Dropped, Exchange, Front, Guard, HttpThread, Limits, Refusal, Reply, Request, listen,
};
use super::state::sessions::LOCAL;
use crate::error::{Context, Error, Result};
use crate::types::percent::percent_decode;

/// A running endpoint: `models`, `completions`, `chat/completions` and Anthropic's `messages` under
/// `/v1`, for any program that speaks to such services. Dropping it stops it.
///
/// The service behind it samples whole answers, so a streamed one comes as a whole too.
///
/// ```no_run
/// use tinker::local::{Proxy, Upstream, UpstreamModel};
/// use tinker::types::SampleRequest;
/// use tinker::{Result, ServiceClient};
///
/// struct Base(ServiceClient);
///
/// impl Upstream for Base {
///     fn models(&self) -> Result<Vec<String>> {
///         Ok(vec!["Qwen/Qwen3-8B".to_owned()])
///     }
///
///     fn open(&self, model: &str) -> Result<UpstreamModel> {
///         let client = self.0.create_sampling_client(model)?;
///         let tokenizer = client.tokenizer()?;
///         let ask = move |asked: SampleRequest| client.sample(&asked.prompt, asked.options);
///         Ok(UpstreamModel::new(model, tokenizer, ask))
///     }
/// }
///
/// let proxy = Proxy::builder(Base(ServiceClient::from_env()?)).port(8001).start()?;
/// println!("{}/v1", proxy.base_url());
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug)]
pub struct Proxy {
    /// Stops when dropped.
    http: HttpThread,
}

impl Proxy {
    /// Sets options before starting.
    pub fn builder(upstream: impl Upstream) -> ProxyBuilder {
        ProxyBuilder {
            upstream: Arc::new(upstream),
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            key: None,
            guard: Guard::default(),
            most: 256,
        }
    }

    /// Where it is, such as `http://127.0.0.1:49152`; clients add `/v1`.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.http.address)
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.http.address.port()
    }
}

/// Sets the options of a [`Proxy`].
#[must_use = "a proxy starts with `start`"]
pub struct ProxyBuilder {
    upstream: Arc<dyn Upstream>,
    address: SocketAddr,
    key: Option<Key>,
    guard: Guard,
    most: usize,
}

impl fmt::Debug for ProxyBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProxyBuilder")
            .field("address", &self.address)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl ProxyBuilder {
    /// The address to listen on. One that other machines can reach demands an
    /// [`api_key`](Self::api_key). Default: `127.0.0.1`.
    pub fn host(mut self, host: IpAddr) -> Self {
        self.address.set_ip(host);
        self
    }

    /// The port to listen on; 0 takes any that is free. Default: 0.
    pub fn port(mut self, port: u16) -> Self {
        self.address.set_port(port);
        self
    }

    /// Demands this key from every request. Default: any key is accepted, and none.
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(Key::new(key.into()));
        self
    }

    /// Answers to this host name, without a port, beside addresses and `localhost`. Default: none.
    pub fn allow_host(mut self, name: impl Into<String>) -> Self {
        self.guard.hosts.push(name.into().to_ascii_lowercase());
        self
    }

    /// Lets pages of this site, such as `https://example.org`, use the endpoint from a browser.
    /// Default: none.
    pub fn cors(mut self, origin: impl Into<String>) -> Self {
        self.guard.origins.push(origin.into());
        self
    }

    /// How many prompts may wait for their answers at once; more get a 429. Default: 256.
    pub fn max_pending_samples(mut self, samples: usize) -> Self {
        self.most = samples;
        self
    }

    /// Starts it; it accepts connections when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an option that cannot be used, [`Error::Config`] if the address
    /// cannot be used, [`Error::Internal`] if no thread can be started.
    pub fn start(self) -> Result<Proxy> {
        if !self.address.ip().is_loopback() && self.key.is_none() {
            let problem = "others can reach this address: it demands an API key";
            return Err(Error::invalid("host", problem));
        }
        if self.key.as_ref().is_some_and(Key::is_empty) {
            return Err(Error::invalid("api_key", "must not be empty"));
        }
        self.guard.validate()?;
        let listener = listen(self.address)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .thread_name("tinker-proxy-blocking")
            .max_blocking_threads(16)
            .build()
            .map_err(|error| Error::Internal(Context::caused("no runtime", error)))?;
        let user = self.key.map(|key| User {
            name: LOCAL.into(),
            key,
        });
        let service = Service {
            auth: Auth::new(user.into_iter().collect(), None),
            backend: Arc::new(Remote {
                upstream: self.upstream,
                pending: Arc::new(AtomicUsize::new(0)),
                most: self.most,
            }),
        };
        let front = Front {
            limits: Limits::default(),
            guard: self.guard,
            tls: None,
            recorder: None,
        };
        let http = HttpThread::start(listener, runtime, Arc::new(service), front)?;
        Ok(Proxy { http })
    }
}

/// The endpoints.
struct Service {
    auth: Auth,
    backend: Arc<Remote>,
}

/// What was asked for.
enum Ticket {
    Models,
    Model(String),
    Complete(Style),
}

fn route(method: &str, path: &str) -> Result<Ticket, Refusal> {
    let rest = PREFIXES.iter().find_map(|prefix| path.strip_prefix(prefix));
    let rest = rest.unwrap_or_default().trim_end_matches('/');
    let (expected, ticket) = match rest {
        "models" => ("GET", Ticket::Models),
        "completions" => ("POST", Ticket::Complete(Style::Completion)),
        "chat/completions" => ("POST", Ticket::Complete(Style::Chat)),
        "messages" => ("POST", Ticket::Complete(Style::Messages)),
        _ => match rest.strip_prefix("models/") {
            Some(id) => ("GET", Ticket::Model(percent_decode(id))),
            None => return Err(Refusal::missing(format!("no such path: {path}"))),
        },
    };
    if method == expected {
        return Ok(ticket);
    }
    let mut refusal = Refusal::missing(format!("{path} does not take {method}"));
    refusal.status = hyper::StatusCode::METHOD_NOT_ALLOWED;
    Err(refusal)
}

impl App for Service {
    type Ticket = Ticket;

    fn admit(&self, request: &Request) -> Result<Ticket, Refusal> {
        self.auth.check(Access::Key, request)?;
        route(request.method.as_str(), &request.path)
    }

    async fn answer(self: Arc<Self>, ticket: Ticket, request: Request) -> Result<Reply, Dropped> {
        let (backend, path) = (self.backend.clone(), &request.path);
        Ok(match ticket {
            Ticket::Models => openai::models(backend, path, None).await,
            Ticket::Model(id) => openai::models(backend, path, Some(id)).await,
            Ticket::Complete(style) => openai::complete(backend, path, request.body, style).await,
        })
    }

    fn refuse(&self, path: &str, refusal: Refusal) -> Reply {
        Fault::from(refusal).reply(path)
    }

    fn done(&self, exchange: &Exchange<'_>) {
        let (method, path, status) = (exchange.method, exchange.path, exchange.status.as_u16());
        log::debug!("proxy: {method} {path} {status}");
    }

    fn stop(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_endpoints() {
        let status = |method: &str, path: &str| match route(method, path) {
            Ok(_) => 200,
            Err(refusal) => refusal.status.as_u16(),
        };
        for path in [
            "/v1/models",
            "/oai/api/v1/models",
            "/v1/models/a/b",
            "/v1/models/",
        ] {
            assert_eq!(status("GET", path), 200, "{path}");
        }
        for path in ["/v1/completions", "/v1/chat/completions", "/v1/messages"] {
            assert_eq!(
                (status("POST", path), status("GET", path)),
                (200, 405),
                "{path}"
            );
        }
        assert_eq!(status("GET", "/models"), 404);
        assert_eq!(status("POST", "/v1/embeddings"), 404);
        let one = route("GET", "/v1/models/tinker:%2F%2Fr%2Fsampler_weights%2Fx");
        assert!(matches!(one, Ok(Ticket::Model(id)) if id == "tinker://r/sampler_weights/x"));
    }
}
