//! The options of a server.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::runtime::Handle;

use super::LocalServer;
use super::adapter::AdapterSource;
use super::api::auth::{Auth, Key, User};
use super::api::fault::Fault;
use super::api::flags::Flags;
use super::api::janitor::Janitor;
use super::api::service::{Options, Service, check_endpoint};
#[cfg(feature = "chat")]
use super::console::Console;
use super::http::{Front, Guard, HttpThread, Identity, Limits, Recorder, listen, runtime};
use super::source::ModelSource;
use super::state::Keep;
use super::state::State;
use super::state::memory::Memory;
use super::state::sessions::LOCAL;
#[cfg(feature = "chat")]
use super::work::vocabulary::Vocabulary;
use super::work::{WorkOptions, Workshop};
use crate::error::{Error, Result};

/// More would be a mistake.
const LONGEST_TIME: Duration = Duration::from_secs(366 * 24 * 3600);
/// As many cores as no machine has; more threads would only be in each other's way.
const MOST_THREADS: usize = 1_024;

/// Sets the options of a [`LocalServer`].
///
/// ```no_run
/// use std::time::Duration;
/// use tinker::local::LocalServer;
///
/// let server = LocalServer::builder()
///     .flag("sample_use_retrieve_futures", true)
///     .latency("asample", Duration::from_millis(200))
///     .record(true)
///     .start()?;
/// # Ok::<(), tinker::Error>(())
/// ```
#[must_use = "a server starts with `start`"]
#[derive(Debug, Clone)]
pub struct Builder {
    host: IpAddr,
    port: u16,
    users: Vec<User>,
    data: Option<PathBuf>,
    #[cfg(feature = "chat")]
    runs: Vec<PathBuf>,
    models: Vec<ModelSource>,
    adapters: Vec<AdapterSource>,
    threads: usize,
    flags: Vec<(String, Value)>,
    jwt_lifetime: Duration,
    metadata_only_above: usize,
    long_poll: Duration,
    session_timeout: Duration,
    latencies: HashMap<String, Duration>,
    max_request_bytes: usize,
    max_connections: usize,
    max_pending_samples: usize,
    faults: Vec<Fault>,
    admin: bool,
    record: bool,
    tls: Option<Identity>,
    guard: Guard,
    body_patience: Duration,
    max_memory: Option<usize>,
    adapter_memory: Option<usize>,
    keep_records: Keep,
    save_every: Duration,
    tempered_logprobs: bool,
    quantized_sampling: bool,
    request_log: bool,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            users: Vec::new(),
            data: None,
            #[cfg(feature = "chat")]
            runs: Vec::new(),
            models: Vec::new(),
            adapters: Vec::new(),
            threads: 0,
            flags: Vec::new(),
            jwt_lifetime: Duration::from_secs(3600),
            metadata_only_above: 1 << 20,
            long_poll: Duration::from_secs(20),
            session_timeout: Duration::from_secs(300),
            latencies: HashMap::new(),
            max_request_bytes: 64 << 20,
            max_connections: 4096,
            max_pending_samples: 20_000,
            faults: Vec::new(),
            admin: false,
            record: false,
            tls: None,
            guard: Guard::default(),
            body_patience: Duration::from_secs(30),
            max_memory: None,
            adapter_memory: None,
            keep_records: Keep::default(),
            save_every: Duration::from_secs(300),
            tempered_logprobs: false,
            quantized_sampling: false,
            request_log: false,
        }
    }
}

impl Builder {
    /// The address to listen on. One that other machines can reach demands an
    /// [`api_key`](Self::api_key). Default: `127.0.0.1`.
    pub fn host(mut self, host: IpAddr) -> Self {
        self.host = host;
        self
    }

    /// The port to listen on; 0 takes any that is free. Default: 0.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Demands a key from every request, and takes this one. Default: any key is accepted, and none.
    pub fn api_key(self, key: impl Into<String>) -> Self {
        self.user(LOCAL, key)
    }

    /// Demands a key from every request, and takes this one for a user of this name. Each user has
    /// their own runs and checkpoints, and may read what others have published. Default: nobody is
    /// told apart.
    pub fn user(mut self, name: impl Into<String>, key: impl Into<String>) -> Self {
        self.users.push(User {
            name: name.into().into(),
            key: Key::new(key.into()),
        });
        self
    }

    /// Encrypts every connection, with the certificate (and those that signed it) and the private
    /// key in these PEM files. Default: plain HTTP.
    pub fn tls(mut self, certificates: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls = Some(Identity {
            certificates: certificates.into(),
            key: key.into(),
        });
        self
    }

    /// Answers to this host name beside addresses and `localhost`; other names are refused, since a
    /// page of another site may make its own name point here. The name alone, without a port.
    /// Default: none.
    pub fn allow_host(mut self, name: impl Into<String>) -> Self {
        self.guard.hosts.push(name.into().to_ascii_lowercase());
        self
    }

    /// Lets pages of this site use the server from a browser. A site is scheme, host and port as
    /// browsers say it, such as `https://example.org`, or `null` for files. Default: none but its own.
    pub fn cors(mut self, origin: impl Into<String>) -> Self {
        self.guard.origins.push(origin.into());
        self
    }

    /// How long a body may take to make some progress: a request's 16 KiB, an answer's anything at
    /// all. Who takes longer is given up. Default: 30 s.
    pub fn body_patience(mut self, patience: Duration) -> Self {
        self.body_patience = patience;
        self
    }

    /// How much memory models in training and their batches may take together; what would exceed it
    /// is refused. An eighth of it, and 1 GiB at most, is for the keys and values of samples; a
    /// single sample may exceed that. Default: three quarters of the machine's.
    pub fn max_memory(mut self, bytes: usize) -> Self {
        self.max_memory = Some(bytes);
        self
    }

    /// How much memory adapters of sampling clients may take together; those that are not in use go
    /// to disk beyond it, and come back when they are sampled from. Default: an eighth of
    /// [`max_memory`](Self::max_memory).
    pub fn adapter_memory(mut self, bytes: usize) -> Self {
        self.adapter_memory = Some(bytes);
        self
    }

    /// For how long, and how many, ended sessions and runs without checkpoints are listed.
    /// Default: 90 days, the latest 10,000 of each.
    pub fn keep_records(mut self, age: Duration, count: usize) -> Self {
        self.keep_records = Keep { age, count };
        self
    }

    /// How often the state of models in training is written to the [data folder](Self::data); it is
    /// also written when the server stops, after what was accepted has been worked off. The next
    /// server then goes on with them: weights, optimiser, gathered gradients, numbers and results
    /// are there again. After a crash that holds for models whose clients had asked for nothing
    /// since; the state of others becomes a checkpoint of their run, `autosave-…`, for a week, and
    /// their clients are told to restore. Sampling clients of weights that were not saved by name
    /// end with the server. [`Duration::ZERO`] keeps nothing. Default: 5 minutes.
    pub fn save_every(mut self, interval: Duration) -> Self {
        self.save_every = interval;
        self
    }

    /// Gives sampled tokens the log-probabilities under which they were drawn: those that the
    /// temperature makes of the model's, before top-k and top-p. Prompts are scored by the model
    /// itself in any case, and so is greedy sampling. Training scores tokens at temperature 1, so
    /// losses that compare with a sampler's log-probabilities want it off. Default: off, the model's
    /// own log-probabilities at every temperature.
    pub fn tempered_logprobs(mut self, on: bool) -> Self {
        self.tempered_logprobs = on;
        self
    }

    /// Draws samples from the weights rounded to Q8_0, eight bits and a scale for each 32: fewer bytes
    /// to fetch for each token, so one sample at a time comes faster, by a tenth to two fifths as memory
    /// is fast or slow, for half as many bytes again in memory. Training goes on from the weights as they
    /// are, so its log-probabilities differ from a sampler's by some hundredths; the log says so, as a
    /// warning. Models small enough to be
    /// kept in `f32`, such as the built-in one, stay as they are. Default: off.
    pub fn quantized_sampling(mut self, on: bool) -> Self {
        self.quantized_sampling = on;
        self
    }

    /// Logs every request at `info`, under the target `tinker::local::requests`. Default: at `debug`.
    pub fn request_log(mut self, on: bool) -> Self {
        self.request_log = on;
        self
    }

    /// Shows the run folders in this folder, and one level below it, on the page at `/`; everybody
    /// who may use the server sees them. May be given more than once. Default: none.
    #[cfg(feature = "chat")]
    pub fn runs(mut self, folder: impl Into<PathBuf>) -> Self {
        self.runs.push(folder.into());
        self
    }

    /// Keeps runs, checkpoints, models in training and the tokenizer in this folder, across restarts:
    /// see [`save_every`](Self::save_every). It must be new,
    /// empty, or one that a server has used before. Default: a temporary folder that goes with the
    /// server.
    pub fn data(mut self, folder: impl Into<PathBuf>) -> Self {
        self.data = Some(folder.into());
        self
    }

    /// Serves this model: a Hugging Face folder or a GGUF file, by path or as `NAME=PATH`, or a
    /// repository of the hub by its name; see [`ModelSource`] for what it is called. Repeated, all of
    /// them: one is loaded when somebody uses it, and let go when nobody does and
    /// [`max_memory`](Self::max_memory) does not hold it beside another. Default: the small built-in
    /// one.
    pub fn model(mut self, model: impl Into<ModelSource>) -> Self {
        self.models.push(model.into());
        self
    }

    /// How many threads the model's arithmetic uses, at most 1,024; results do not depend on it. 0
    /// takes one per core. Default: 0.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Takes in an adapter that was trained elsewhere, from a folder or a tar archive of
    /// `adapter_config.json` and `adapter_model.safetensors`: `peft`'s, the hosted service's or this
    /// crate's own. Everybody may sample from `tinker://adapter-NAME:train:0/sampler_weights/NAME`
    /// and train on from `tinker://adapter-NAME:train:0/weights/NAME`. It belongs to the model that
    /// its configuration names, or to the only one there is. Plain LoRA of any scale and of several
    /// ranks is understood; other variants are refused by name, and so is what does not fit the
    /// model. Default: none.
    pub fn adapter(mut self, name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        let source = AdapterSource::new(name.into(), path.into());
        self.adapters.push(source);
        self
    }

    /// Sets a flag of `client/config` or `client/dynamic_config` by its name on the wire, such as
    /// `parallel_fwdbwd_chunks`. Setting `pjwt_auth_enabled` makes the server exchange keys for
    /// tokens and demand those. Setting `custom_loss_server_side` makes clients upload custom
    /// losses instead of computing them; the server runs what a [`LossGraph`] can say, so it is
    /// for clients that need no more. Default: the service's own defaults.
    ///
    /// [`LossGraph`]: crate::loss::LossGraph
    pub fn flag(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.flags.push((name.into(), value.into()));
        self
    }

    /// How long exchanged tokens live. Default: one hour.
    pub fn jwt_lifetime(mut self, lifetime: Duration) -> Self {
        self.jwt_lifetime = lifetime;
        self
    }

    /// Results of more bytes than this are announced before they are sent. Default: 1 MiB.
    pub fn metadata_only_above(mut self, bytes: usize) -> Self {
        self.metadata_only_above = bytes;
        self
    }

    /// How long a poll for results is held open; at most 30 s, since clients give up after 45.
    /// Default: 20 s.
    pub fn long_poll(mut self, hold: Duration) -> Self {
        self.long_poll = hold;
        self
    }

    /// How long a session lives without a heartbeat. Default: 5 minutes.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// Makes an endpoint this much slower. Where the endpoint answers with a future, its result
    /// comes later, as if the work took that long; otherwise the answer itself does.
    /// Default: none.
    pub fn latency(mut self, endpoint: impl Into<String>, latency: Duration) -> Self {
        self.latencies.insert(endpoint.into(), latency);
        self
    }

    /// The largest request body taken; larger ones get a 413. Default: 64 MiB.
    pub fn max_request_bytes(mut self, bytes: usize) -> Self {
        self.max_request_bytes = bytes;
        self
    }

    /// How many connections are served at once; more get a 503. Where the process may not have that
    /// many open files (`ulimit -n`), fewer are: some are left for files. Default: 4,096.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = connections;
        self
    }

    /// How many samples may wait at once; more get a 429. Default: 20,000.
    pub fn max_pending_samples(mut self, samples: usize) -> Self {
        self.max_pending_samples = samples;
        self
    }

    /// Adds a fault. Default: none.
    pub fn fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// Opens the admin route: `POST /admin/faults` takes a [`Fault`] as JSON, `DELETE` ends them
    /// all. Default: off.
    pub fn admin(mut self, on: bool) -> Self {
        self.admin = on;
        self
    }

    /// Keeps every request for [`LocalServer::requests`]. Default: off.
    pub fn record(mut self, on: bool) -> Self {
        self.record = on;
        self
    }

    /// Starts the server; it accepts connections when this returns.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an option that cannot be used, [`Error::Config`] if the address or
    /// the data folder cannot be used, [`Error::Internal`] if no thread can be started.
    pub fn start(self) -> Result<LocalServer> {
        let flags = self.check()?;
        if cfg!(debug_assertions) {
            log::warn!("the embedded engine is not optimised in this build, and slow");
        }
        let address = SocketAddr::new(self.host, self.port);
        let listener = listen(address)?;
        let recorder = self.record.then(Arc::<Recorder>::default);
        let front = Front {
            limits: Limits {
                request_bytes: self.max_request_bytes,
                connections: self.max_connections,
                body_patience: self.body_patience,
            },
            guard: self.guard.clone(),
            tls: self.tls.as_ref().map(Identity::acceptor).transpose()?,
            recorder: recorder.clone(),
        };
        let scheme = front.scheme();
        let runtime = runtime()?;
        let service = self.service(flags, scheme, runtime.handle().clone())?;
        let janitor = Janitor::start(service.work().clone())?;
        let http = HttpThread::start(listener, runtime, service.clone(), front)?;
        let address = http.address;
        log::info!("local server at {scheme}://{address}");
        Ok(LocalServer {
            http: Some(http),
            janitor: Some(janitor),
            address,
            scheme,
            recorder,
            service,
        })
    }

    fn service(&self, flags: Flags, scheme: &'static str, runtime: Handle) -> Result<Arc<Service>> {
        let (data, latencies) = (self.data.clone(), self.latencies.clone());
        let state = Arc::new(State::open(
            data,
            self.session_timeout,
            self.keep_records,
            latencies,
            runtime,
        )?);
        let work = Workshop::open(
            state,
            &self.models,
            self.threads,
            Memory::new(self.max_memory),
            WorkOptions {
                adapter_memory: self.adapter_memory,
                // A folder that goes with the server keeps nothing.
                save_every: Some(self.save_every)
                    .filter(|every| self.data.is_some() && !every.is_zero()),
                tempered_logprobs: self.tempered_logprobs,
                quantized_sampling: self.quantized_sampling,
            },
        )?;
        for adapter in &self.adapters {
            work.take_in(adapter)?;
        }
        let jwt_lifetime = flags.jwt_enabled().then_some(self.jwt_lifetime);
        let auth = Auth::new(self.users.clone(), jwt_lifetime);
        let options = Options {
            long_poll: self.long_poll,
            metadata_only_above: self.metadata_only_above,
            max_request_bytes: self.max_request_bytes,
            max_pending_samples: self.max_pending_samples,
            admin: self.admin,
            request_log: self.request_log,
            scheme,
        };
        #[cfg(feature = "chat")]
        let console = self.console(&work)?;
        let service = Service::new(
            auth,
            flags,
            Arc::new(work),
            options,
            #[cfg(feature = "chat")]
            console,
        );
        for fault in &self.faults {
            service.add_fault(fault.clone())?;
        }
        Ok(Arc::new(service))
    }

    #[cfg(feature = "chat")]
    fn console(&self, work: &Workshop) -> Result<Console> {
        let first = work.library.first();
        match &first.vocabulary {
            Vocabulary::Bytes => Console::plain(self.runs.clone()),
            Vocabulary::Tokenizer(tokenizer) => {
                let model = first.name.clone();
                Ok(Console::new(self.runs.clone(), model, tokenizer.clone()))
            }
        }
    }

    fn check(&self) -> Result<Flags> {
        if !self.host.is_loopback() && self.users.is_empty() {
            return Err(Error::invalid(
                "host",
                format!(
                    "{} can be reached by others and demands an API key",
                    self.host
                ),
            ));
        }
        if self.users.iter().any(|user| user.key.is_empty()) {
            return Err(Error::invalid("api_key", "must not be empty"));
        }
        for (index, user) in self.users.iter().enumerate() {
            let same = |other: &User| other.key == user.key && other.name != user.name;
            if let Some(other) = self.users[..index].iter().find(|other| same(other)) {
                let problem = format!("{} and {} have the same", other.name, user.name);
                return Err(Error::invalid("api_key", problem));
            }
        }
        if !self.host.is_loopback() && self.tls.is_none() {
            log::warn!(
                "local server: others can reach {}, in clear text",
                self.host
            );
        }
        for (field, time) in [
            ("jwt_lifetime", self.jwt_lifetime),
            ("session_timeout", self.session_timeout),
            ("body_patience", self.body_patience),
            ("save_every", self.save_every),
        ] {
            if time > LONGEST_TIME {
                return Err(Error::invalid(field, "must be a year at most"));
            }
        }
        self.guard.validate()?;
        if self.threads > MOST_THREADS {
            let problem = format!("must be at most {MOST_THREADS}, got {}", self.threads);
            return Err(Error::invalid("threads", problem));
        }
        if self.long_poll > Duration::from_secs(30) {
            return Err(Error::invalid("long_poll", "must be 30 s at most"));
        }
        for (index, adapter) in self.adapters.iter().enumerate() {
            adapter.check()?;
            let same = |other: &AdapterSource| other.name() == adapter.name();
            if self.adapters[..index].iter().any(same) {
                let problem = format!("two are called {}", adapter.name());
                return Err(Error::invalid("adapter", problem));
            }
        }
        for fault in &self.faults {
            check_endpoint("fault", fault.endpoint())?;
            fault.check().map_err(|error| error.within("fault"))?;
        }
        for endpoint in self.latencies.keys() {
            check_endpoint("latency", endpoint)?;
        }
        let mut flags = Flags::default();
        for (name, value) in &self.flags {
            flags.set(name, value.clone())?;
        }
        Ok(flags)
    }
}
