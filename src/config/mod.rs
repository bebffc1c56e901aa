//! Configuration, and the only reader of environment variables.
//!
//! # Precedence
//!
//! For every setting: what the program sets with a `with_` method, then the environment (if the
//! configuration began with [`Config::from_env`]), then the default. An empty text counts as
//! unset. The credential is looked for in this order: the key set by the program, `TINKER_API_KEY`,
//! the output of `TINKER_CREDENTIAL_CMD`, the default key of `~/.tinker/credentials.json`.
//!
//! # Environment
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `TINKER_API_KEY` | the key | none |
//! | `TINKER_CREDENTIAL_CMD` | a shell command that prints a credential | none |
//! | `TINKER_BASE_URL` | the service | [`DEFAULT_BASE_URL`] |
//! | `TINKER_PROJECT_ID` | the project of new sessions | none |
//! | `TINKER_TAGS` | the sessions' tags, separated by commas | none |
//! | `TINKER_TELEMETRY` | `1`, `true`, `yes` or `on`: send telemetry | `1` |
//! | `TINKER_LOG` | `debug` or `info`: what the `tinker` command logs | none |
//! | `CLOUDFLARE_ACCESS_CLIENT_ID`, `CLOUDFLARE_ACCESS_CLIENT_SECRET` | sent as `CF-Access-*` headers | none |
//! | `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY` | proxies, in either case of letters | none |
//! | `SSL_CERT_FILE`, `SSL_CERT_DIR` | the certificates to trust, in place of the built-in ones | none |
//! | `HOME` (`USERPROFILE`) | where `.tinker/credentials.json` lies | none |
//! | `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME` | where downloaded tokenizers lie | `~/.cache/huggingface/hub` |
//! | `HF_TOKEN`, `HF_TOKEN_PATH` | the Hugging Face token, or the file it is in | `HF_HOME/token` |
//! | `HF_ENDPOINT` | another Hugging Face hub | the public one |
//! | `HF_HUB_OFFLINE` | download nothing from it | off |
//! | `HF_HUB_DOWNLOAD_TIMEOUT` | for how many seconds it may bring nothing | 60 |
//!
//! `TINKER_FEATURE_GATES` is accepted and has no effect, as in the reference SDK.

mod credentials;
mod env;
#[cfg(feature = "text")]
mod hub;
mod secret;
mod url;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

pub(crate) use self::url::origin;
use self::url::{UrlText, host_of, normal_url, password_of};
use crate::error::{Error, Result};
use crate::types::percent::percent_decode;
use crate::types::{ClientEvent, QueueUpdate};

pub use credentials::{CredentialStore, KeyDetails, StoredKey, StoredKeys};
#[cfg(feature = "text")]
pub use hub::hub_cache;
#[cfg(feature = "text")]
pub(crate) use hub::{DEFAULT_HUB, HubSettings};
pub use secret::Secret;

/// The hosted service, used when no other URL is given.
pub const DEFAULT_BASE_URL: &str = "https://tinker.thinkingmachines.dev/services/tinker-prod";

/// A shorter text is no secret, and hiding it would garble ordinary words.
pub(crate) const SHORTEST_SECRET: usize = 6;

/// Everything that can be set about a client.
///
/// Start from [`Config::from_env`] (what `ServiceClient::from_env` does) or from
/// [`Config::default`], which reads neither the environment nor a file, and add options.
/// The values are checked when a client is built.
///
/// ```
/// use std::time::Duration;
/// use tinker::config::{Config, Dialect, Timeout};
///
/// let config = Config::default()
///     .with_base_url("http://127.0.0.1:8000/")
///     .with_api_key("tml-local")
///     .with_dialect(Dialect::Json)
///     .with_read_timeout(Timeout::After(Duration::from_secs(20)));
/// assert_eq!(config.base_url()?, "http://127.0.0.1:8000");
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    pub(crate) base_url: Option<UrlText>,
    pub(crate) api_key: Option<Secret>,
    pub(crate) credential_command: Option<Secret>,
    pub(crate) credentials_path: Option<PathBuf>,
    pub(crate) project_id: Option<String>,
    pub(crate) display_name: Option<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) user_metadata: Map<String, Value>,
    pub(crate) headers: Vec<(String, Secret)>,
    pub(crate) cloudflare_id: Option<Secret>,
    pub(crate) cloudflare_secret: Option<Secret>,
    pub(crate) proxies: Proxies,
    pub(crate) root_certificates: Vec<Pem>,
    pub(crate) trusted: Trusted,
    #[cfg(feature = "native-certs")]
    pub(crate) system_certificates: bool,
    pub(crate) read_timeout: Timeout,
    pub(crate) connect_timeout: Timeout,
    pub(crate) close_timeout: Duration,
    pub(crate) max_waiting_threads: usize,
    pub(crate) patience: Duration,
    pub(crate) result_patience: Option<Duration>,
    pub(crate) startup_patience: Duration,
    pub(crate) handle_origins: Vec<UrlText>,
    pub(crate) stuck_after: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) poll_timeout: Duration,
    pub(crate) queue_observer: Option<QueueObserver>,
    pub(crate) event_observer: Option<EventObserver>,
    pub(crate) call_deadline: Option<Duration>,
    pub(crate) billing_pause: Option<Duration>,
    pub(crate) max_queued_bytes: u64,
    pub(crate) max_queued_samples: usize,
    pub(crate) dialect: Dialect,
    pub(crate) telemetry: bool,
    pub(crate) log_level: Option<log::LevelFilter>,
    /// What must live as long as the client: an embedded server.
    #[cfg(feature = "local")]
    pub(crate) keep_alive: Option<KeepAlive>,
}

/// A limit in time: the default of the call, none at all, or a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Timeout {
    /// What the layer below says.
    #[default]
    Default,
    /// No limit.
    None,
    /// This long.
    After(Duration),
}

impl Timeout {
    /// The limit, where `default` stands for [`Timeout::Default`].
    pub fn or(self, default: Option<Duration>) -> Option<Duration> {
        match self {
            Self::Default => default,
            Self::None => None,
            Self::After(limit) => Some(limit),
        }
    }
}

impl From<Duration> for Timeout {
    fn from(limit: Duration) -> Self {
        Self::After(limit)
    }
}

impl From<Option<Duration>> for Timeout {
    /// `None` is [`Timeout::None`], not the default.
    fn from(limit: Option<Duration>) -> Self {
        limit.map_or(Self::None, Self::After)
    }
}

/// Which form of the protocol to speak.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Dialect {
    /// Protobuf first; JSON from then on if the server does not understand it.
    #[default]
    Auto,
    /// Protobuf only: the current service.
    Proto,
    /// JSON only: older and some self-hosted servers.
    Json,
}

/// The user's function for news about queues.
#[derive(Clone)]
pub(crate) struct QueueObserver(Arc<dyn Fn(&QueueUpdate) + Send + Sync>);

impl QueueObserver {
    pub(crate) fn call(&self, update: &QueueUpdate) {
        (self.0)(update);
    }
}

impl fmt::Debug for QueueObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueObserver")
    }
}

/// The user's function for what the client bears on its own.
#[derive(Clone)]
pub(crate) struct EventObserver(Arc<dyn Fn(&ClientEvent) + Send + Sync>);

impl EventObserver {
    pub(crate) fn call(&self, event: &ClientEvent) {
        (self.0)(event);
    }
}

impl fmt::Debug for EventObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventObserver")
    }
}

/// Something that lives as long as the clients of a configuration.
#[cfg(feature = "local")]
#[derive(Clone)]
pub(crate) struct KeepAlive {
    _held: Arc<dyn std::any::Any + Send + Sync>,
}

#[cfg(feature = "local")]
impl KeepAlive {
    pub(crate) fn new(held: impl std::any::Any + Send + Sync) -> Self {
        Self {
            _held: Arc::new(held),
        }
    }
}

#[cfg(feature = "local")]
impl fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepAlive")
    }
}

/// Where requests go out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Proxies {
    /// Straight to the service.
    #[default]
    None,
    /// Every request through this one.
    Explicit(Secret),
    /// As the environment says: by scheme, with exceptions.
    Environment {
        http: Option<Secret>,
        https: Option<Secret>,
        except: Vec<String>,
    },
}

/// Which certificates are trusted before the program adds its own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Trusted {
    /// The authorities this crate was built with.
    #[default]
    BuiltIn,
    /// Those of a file, as `SSL_CERT_FILE` says.
    File(PathBuf),
    /// Those of the files in a folder, as `SSL_CERT_DIR` says.
    Folder(PathBuf),
}

/// Certificates in PEM form; `Debug` shows only how much there is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pem(pub(crate) Vec<u8>);

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pem({} bytes)", self.0.len())
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            base_url: None,
            api_key: None,
            credential_command: None,
            credentials_path: None,
            project_id: None,
            display_name: None,
            tags: Vec::new(),
            user_metadata: Map::new(),
            headers: Vec::new(),
            cloudflare_id: None,
            cloudflare_secret: None,
            proxies: Proxies::None,
            root_certificates: Vec::new(),
            trusted: Trusted::BuiltIn,
            #[cfg(feature = "native-certs")]
            system_certificates: false,
            read_timeout: Timeout::Default,
            connect_timeout: Timeout::Default,
            close_timeout: Duration::from_secs(5),
            max_waiting_threads: 2_000,
            patience: Duration::from_secs(300),
            result_patience: None,
            startup_patience: Duration::from_secs(15),
            handle_origins: Vec::new(),
            stuck_after: Duration::from_secs(7_200),
            heartbeat: Duration::from_secs(10),
            poll_timeout: Duration::from_secs(45),
            queue_observer: None,
            event_observer: None,
            call_deadline: None,
            billing_pause: None,
            max_queued_bytes: 4 << 30,
            max_queued_samples: 1_000_000,
            dialect: Dialect::Auto,
            telemetry: true,
            log_level: None,
            #[cfg(feature = "local")]
            keep_alive: None,
        }
    }
}

impl Config {
    /// The configuration the environment describes; see the [module](self) for the variables.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when a variable is not valid Unicode.
    pub fn from_env() -> Result<Self> {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    /// The service's URL; trailing slashes do not matter. Default: [`DEFAULT_BASE_URL`].
    #[must_use]
    pub fn with_base_url(mut self, url: impl Into<String>) -> Self {
        replace(&mut self.base_url, url.into());
        self
    }

    /// The key. Default: see the [precedence](self#precedence).
    #[must_use]
    pub fn with_api_key(mut self, key: impl Into<Secret>) -> Self {
        let key = key.into();
        if !key.expose().is_empty() {
            self.api_key = Some(key);
        }
        self
    }

    /// A command, run through the shell, that prints a credential. Default: none.
    #[must_use]
    pub fn with_credential_command(mut self, command: impl Into<Secret>) -> Self {
        let command = command.into();
        if !command.expose().is_empty() {
            self.credential_command = Some(command);
        }
        self
    }

    /// The file with stored keys. Default: none; `~/.tinker/credentials.json` with
    /// [`from_env`](Self::from_env).
    #[must_use]
    pub fn with_credentials_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.credentials_path = Some(path.into());
        self
    }

    /// The project new sessions belong to. Default: none.
    #[must_use]
    pub fn with_project_id(mut self, id: impl Into<String>) -> Self {
        replace(&mut self.project_id, id.into());
        self
    }

    /// The name the console shows for the session. Default: none.
    #[must_use]
    pub fn with_display_name(mut self, name: impl Into<String>) -> Self {
        replace(&mut self.display_name, name.into());
        self
    }

    /// Replaces the session's tags; repeated ones are dropped. Default: none.
    #[must_use]
    pub fn with_tags<T: Into<String>>(mut self, tags: impl IntoIterator<Item = T>) -> Self {
        self.tags.clear();
        for tag in tags.into_iter().map(Into::into) {
            if !self.tags.contains(&tag) {
                self.tags.push(tag);
            }
        }
        self
    }

    /// Adds one entry of free-form metadata to the session. Default: none.
    #[must_use]
    pub fn with_user_metadata(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.user_metadata.insert(key.into(), value.into());
        self
    }

    /// Sends a header with every request, in place of the default of that name. A header that
    /// belongs to one call, the key and the retry count still win. Default: none.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        let name = name.into();
        self.headers
            .retain(|(known, _)| !known.eq_ignore_ascii_case(&name));
        self.headers.push((name, value.into()));
        self
    }

    /// The service token of Cloudflare Access. Default: none.
    #[must_use]
    pub fn with_cloudflare_access(
        mut self,
        client_id: impl Into<Secret>,
        client_secret: impl Into<Secret>,
    ) -> Self {
        self.cloudflare_id = Some(client_id.into());
        self.cloudflare_secret = Some(client_secret.into());
        self
    }

    /// Sends everything through this proxy, such as `http://user:password@proxy:3128` or
    /// `socks5h://proxy:1080`. HTTP proxies are asked for a tunnel (`CONNECT`) even to plain
    /// `http://` services. Default: none; what the environment says with [`from_env`](Self::from_env).
    #[must_use]
    pub fn with_proxy(mut self, url: impl Into<Secret>) -> Self {
        self.proxies = Proxies::Explicit(url.into());
        self
    }

    /// Connects directly, whatever the environment says.
    #[must_use]
    pub fn without_proxy(mut self) -> Self {
        self.proxies = Proxies::None;
        self
    }

    /// Trusts these certificates (one or more, PEM) besides the built-in ones. Default: none.
    #[must_use]
    pub fn with_root_certificates(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificates.push(Pem(pem.into()));
        self
    }

    /// Trusts the operating system's certificates besides the built-in ones. Default: not.
    #[cfg(feature = "native-certs")]
    #[must_use]
    pub fn with_system_certificates(mut self) -> Self {
        self.system_certificates = true;
        self
    }

    /// How long an ordinary request may wait for the next bytes of its answer. Calls with a
    /// limit of their own (heartbeat, long polls, telemetry) keep it. Default: 60 s.
    #[must_use]
    pub fn with_read_timeout(mut self, limit: impl Into<Timeout>) -> Self {
        self.read_timeout = limit.into();
        self
    }

    /// How long connecting may take, TLS included. Default: 5 s.
    #[must_use]
    pub fn with_connect_timeout(mut self, limit: impl Into<Timeout>) -> Self {
        self.connect_timeout = limit.into();
        self
    }

    /// How long the last drop or `close` may spend sending what is queued. Default: 5 s.
    #[must_use]
    pub fn with_close_timeout(mut self, limit: Duration) -> Self {
        self.close_timeout = limit;
        self
    }

    /// How many threads may wait for results at once, for servers without a poller. At least
    /// one. Default: 2000.
    #[must_use]
    pub fn with_max_waiting_threads(mut self, threads: usize) -> Self {
        self.max_waiting_threads = threads.max(1);
        self
    }

    /// How long failures without a break are borne before they surface: of a call that is
    /// repeated, of a sample's submissions and of the polls for its result. Default: 5 minutes.
    ///
    /// See [`with_startup_patience`](Self::with_startup_patience) for a service that was never
    /// reached, and [`with_result_patience`](Self::with_result_patience) for the results of
    /// training.
    #[must_use]
    pub fn with_patience(mut self, limit: Duration) -> Self {
        self.patience = limit;
        self
    }

    /// How long to try to reach a service that has never answered this client, at most as long as
    /// [`with_patience`](Self::with_patience) says. A name that does not resolve and an address
    /// where nobody listens are given up after three tries. Default: 15 s.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tinker::{ServiceClient, config::Config};
    ///
    /// // Nobody listens there: an interactive tool would rather know at once.
    /// let config = Config::default()
    ///     .with_base_url("http://127.0.0.1:9")
    ///     .with_api_key("tml-mine")
    ///     .with_startup_patience(Duration::ZERO);
    /// let error = ServiceClient::new(config)?.capabilities().unwrap_err();
    /// assert!(error.to_string().contains("check the base URL"));
    /// # Ok::<(), tinker::Error>(())
    /// ```
    #[must_use]
    pub fn with_startup_patience(mut self, limit: Duration) -> Self {
        self.startup_patience = limit;
        self
    }

    /// How long polls for the result of an *accepted* training operation may fail without a break
    /// before its handle ends with an error. The operation runs on whatever the polls do, so by
    /// default they go on until the service is back, as the reference's do; the handle shows since
    /// when and why ([`Pending::trouble`](crate::Pending::trouble)). Default: no limit.
    #[must_use]
    pub fn with_result_patience(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.result_patience = limit.into();
        self
    }

    /// Lets [`from_sampler_handle`](crate::ServiceClient::from_sampler_handle) use handles made at
    /// this other service: scheme, host and port of its URL. A handle names the service that will
    /// be sent this client's key, so only the configured service's own handles are accepted
    /// otherwise. Default: none.
    #[must_use]
    pub fn with_handle_origin(mut self, url: impl Into<String>) -> Self {
        self.handle_origins.push(url.into().into());
        self
    }

    /// How long sampling may go on without a single success before it counts as stuck. Default:
    /// 2 hours.
    #[must_use]
    pub fn with_stuck_after(mut self, limit: Duration) -> Self {
        self.stuck_after = limit;
        self
    }

    /// Calls `observer` whenever the service says something about the queue an operation waits
    /// in. It runs on a thread that waits for results, so it should be brief; a panic in it is
    /// caught. Default: none; paused queues are logged once a minute in any case.
    ///
    /// ```
    /// use tinker::config::Config;
    ///
    /// let config = Config::default().with_queue_observer(|update| {
    ///     println!("{} waits: {:?}", update.operation, update.queue);
    /// });
    /// ```
    #[must_use]
    pub fn with_queue_observer(
        mut self,
        observer: impl Fn(&QueueUpdate) + Send + Sync + 'static,
    ) -> Self {
        self.queue_observer = Some(QueueObserver(Arc::new(observer)));
        self
    }

    /// Calls `observer` with what the client bears on its own: retries, backoff after a 429, the
    /// pause for a payment, the loss of the session. It runs on the thread that met it, so it
    /// should be brief; a panic in it is caught. Default: none; what a user should act on is
    /// logged in any case.
    ///
    /// ```
    /// use tinker::{config::Config, types::ClientEvent};
    ///
    /// let config = Config::default().with_event_observer(|event| match event {
    ///     ClientEvent::Retry { request, delay, error, .. } => {
    ///         eprintln!("{request} again in {delay:?}: {error}");
    ///     }
    ///     other => eprintln!("{other:?}"),
    /// });
    /// ```
    #[must_use]
    pub fn with_event_observer(
        mut self,
        observer: impl Fn(&ClientEvent) + Send + Sync + 'static,
    ) -> Self {
        self.event_observer = Some(EventObserver(Arc::new(observer)));
        self
    }

    /// How long a blocking call may take as a whole: opening the session if it is the first, every
    /// request with its retries, the wait for a result. It then ends with [`Error::Timeout`]; what
    /// a model's queue has accepted goes on. Downloads and streamed answers are excepted, which
    /// take as long as bytes arrive, and so are handles, which have deadlines of their own
    /// ([`Pending::join_within`](crate::Pending::join_within)). Default: none; requests end with
    /// the [patience](Self::with_patience), results take as long as they take.
    #[must_use]
    pub fn with_call_deadline(mut self, limit: Duration) -> Self {
        self.call_deadline = Some(limit);
        self
    }

    /// How long work waits when the service reports that payment is due (402); with zero that is
    /// an error at once. Default: what the service says, usually an hour.
    #[must_use]
    pub fn with_billing_pause(mut self, limit: Duration) -> Self {
        self.billing_pause = Some(limit);
        self
    }

    /// How many bytes of training data may wait to be sent. More are refused with
    /// [`Error::NotSent`]: join some results first. Default: 4 GiB.
    #[must_use]
    pub fn with_max_queued_bytes(mut self, bytes: u64) -> Self {
        self.max_queued_bytes = bytes;
        self
    }

    /// How many samples may wait to be sent; likewise. Default: 1,000,000.
    #[must_use]
    pub fn with_max_queued_samples(mut self, samples: usize) -> Self {
        self.max_queued_samples = samples;
        self
    }

    /// Which form of the protocol to speak. Default: [`Dialect::Auto`].
    #[must_use]
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Whether to send telemetry to the service. Default: yes.
    #[must_use]
    pub fn with_telemetry(mut self, on: bool) -> Self {
        self.telemetry = on;
        self
    }

    /// The service's URL in its normal form.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] when it is not an `http` or `https` URL with a host.
    pub fn base_url(&self) -> Result<String> {
        let url = self.base_url.as_ref().map(UrlText::as_str);
        normal_url(url.unwrap_or(DEFAULT_BASE_URL))
    }

    /// What `TINKER_LOG` asks for; the `tinker` command honours it, the library installs no logger.
    pub fn log_level(&self) -> Option<log::LevelFilter> {
        self.log_level
    }

    /// The file with stored keys, if one is configured.
    pub fn credential_store(&self) -> Option<CredentialStore> {
        self.credentials_path.as_deref().map(CredentialStore::new)
    }

    /// Whether there is a credential to try: a key, a command, or a stored key.
    ///
    /// ```
    /// use tinker::config::Config;
    ///
    /// assert!(!Config::default().has_credential());
    /// assert!(Config::default().with_api_key("tml-mine").has_credential());
    /// ```
    #[doc(alias = "auth")]
    #[doc(alias = "tinker_has_credentials")]
    pub fn has_credential(&self) -> bool {
        self.credential_command.is_some() || self.token().is_some()
    }

    /// The key this configuration has, its own or the stored default; never a command's, which
    /// this does not run.
    ///
    /// ```
    /// use tinker::config::Config;
    ///
    /// assert_eq!(Config::default().with_api_key("tml-mine").token().unwrap().expose(), "tml-mine");
    /// ```
    #[doc(alias = "get_tinker_token")]
    pub fn token(&self) -> Option<Secret> {
        let stored = || {
            let keys = self.credential_store()?.load().ok()?;
            keys.default_key().map(|stored| stored.key().clone())
        };
        self.api_key.clone().or_else(stored)
    }

    /// Refuses a handle of a service that was not chosen to receive this client's key.
    pub(crate) fn check_handle_origin(&self, url: &str) -> Result<()> {
        let own = self.base_url()?;
        let others = self.handle_origins.iter().map(UrlText::as_str);
        let mut allowed = std::iter::once(own.as_str()).chain(others);
        match origin(url) {
            Some(wanted) if allowed.any(|known| origin(known).as_ref() == Some(&wanted)) => Ok(()),
            _ => {
                let shown = host_of(url).unwrap_or("nobody");
                let problem = format!(
                    "is of another service ({shown}), which would receive this client's key; \
                     allow it with `Config::with_handle_origin`"
                );
                Err(Error::invalid("sampler_handle", problem))
            }
        }
    }

    /// Every configured value that must not be shown, should a server echo it; the longest first,
    /// so that none hides part of another.
    pub(crate) fn secrets(&self) -> Vec<Secret> {
        let cloudflare = self.cloudflare_id.iter().chain(&self.cloudflare_secret);
        let headers = self.headers.iter().map(|(_, value)| value);
        let proxies: Vec<&Secret> = match &self.proxies {
            Proxies::None => Vec::new(),
            Proxies::Explicit(url) => vec![url],
            Proxies::Environment { http, https, .. } => http.iter().chain(https).collect(),
        };
        let passwords = proxies
            .into_iter()
            .filter_map(|url| password_of(url.expose()))
            // Sent as it is meant, not as a URL has to write it.
            .flat_map(|password| [password.to_owned(), percent_decode(password)]);
        // Of `Bearer TOKEN` a server may echo the token alone.
        let tokens = headers
            .clone()
            .filter_map(|value| value.expose().split_once(' '));
        let tokens = tokens.map(|(_, token)| token.to_owned());
        let mut secrets: Vec<Secret> = passwords.chain(tokens).map(Secret::from).collect();
        secrets.extend(cloudflare.chain(headers).cloned());
        secrets.retain(|secret| secret.expose().len() >= SHORTEST_SECRET);
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
        secrets
    }

    /// Whether requests go to the hosted service's host, which knows only `tml-` keys and JWTs.
    pub(crate) fn is_default_host(&self) -> bool {
        let host = |url: &str| host_of(url).map(str::to_ascii_lowercase);
        self.base_url()
            .is_ok_and(|url| host(&url) == host(DEFAULT_BASE_URL))
    }
}

/// Sets a text unless the new one is empty, which counts as not given.
fn replace<T: From<String>>(slot: &mut Option<T>, text: String) {
    if !text.is_empty() {
        *slot = Some(text.into());
    }
}

#[cfg(test)]
mod tests;
