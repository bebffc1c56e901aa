//! `ServiceClient`: the way in.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use super::sampling::{SamplerSource, SamplingClient};
use super::training::TrainingClient;
use crate::config::Config;
use crate::error::{Context, Error, Result};
use crate::runtime::calls::{Effort, Link, Request};
use crate::runtime::clock::Clock;
use crate::runtime::deadline::Within;
use crate::runtime::session::{Host, Session};
use crate::types::{
    ClientMetrics, FinishReason, LoraConfig, OptimizerConfig, ServerCapabilities, SessionId,
    Unfinished, WhoAmI, console,
};
use crate::wire::handle::SamplerHandle;
use crate::wire::request::{CreateModelRequest, to_json};
use crate::wire::route;

/// The way in: makes training and sampling clients and knows the account.
///
/// Making one does nothing yet; the session with the service begins when the first training or
/// sampling client needs it, and ends when [`close`](Self::close) is called or the last client
/// and the last [`Pending`](crate::Pending) are dropped. `Clone + Send + Sync` around one `Arc`.
///
/// ```
/// # fn main() -> tinker::Result<()> {
/// use tinker::{AdamParams, Datum, LoraConfig, LossFn, ModelInput, ServiceClient};
///
/// let service = ServiceClient::local()?; // or ServiceClient::from_env()?
/// let model = service.capabilities()?.supported_models[0].model_name.clone().unwrap();
/// let training = service.create_lora_training_client(&model, LoraConfig::rank(4))?;
///
/// let datum = Datum::new(ModelInput::from_ints(vec![72, 101, 108]))
///     .with_target_tokens(vec![101, 108, 108])
///     .with_weights(vec![1.0, 1.0, 1.0]);
/// let step = training.forward_backward(&[datum], LossFn::CrossEntropy)?;
/// let optim = training.optim_step(AdamParams::learning_rate(1e-3))?;
/// println!("loss {:?}", step.join()?.loss());
/// optim.join()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ServiceClient {
    host: Arc<Host>,
}

impl ServiceClient {
    /// A client as the environment describes it; see [`config`](crate::config) for the
    /// variables.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if a variable cannot be used.
    pub fn from_env() -> Result<Self> {
        Self::new(Config::from_env()?)
    }

    /// A client as configured.
    ///
    /// ```
    /// use tinker::{ServiceClient, config::Config};
    ///
    /// let config = Config::default()
    ///     .with_base_url("http://127.0.0.1:8000")
    ///     .with_api_key("tml-mine");
    /// let service = ServiceClient::new(config)?;
    /// # Ok::<(), tinker::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the base URL, a header, a proxy or a certificate cannot be used.
    pub fn new(config: Config) -> Result<Self> {
        Self::with_clock(config, Clock::Real)
    }

    /// A client whose pauses a test can read instead of sitting through.
    pub(crate) fn with_clock(config: Config, clock: Clock) -> Result<Self> {
        Ok(Self {
            host: Arc::new(Host::new(config, clock)?),
        })
    }

    /// A client of an embedded server of its own: no account, no network, and nothing kept. The
    /// server stops with the last client. It serves the built-in model, `tinker-local/tiny`; see
    /// [`local`](crate::local) for what that is.
    ///
    /// # Errors
    ///
    /// If no port on the loopback interface can be had.
    #[cfg(feature = "local")]
    pub fn local() -> Result<Self> {
        Self::of_server(crate::local::LocalServer::builder())
    }

    /// Like [`local`](Self::local), with runs and checkpoints kept in a folder: the next client
    /// of the same folder finds them again. It must be new, empty, or used for this before, and
    /// by one client at a time.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path().join("runs");
    /// use tinker::{LoraConfig, ServiceClient};
    ///
    /// let service = ServiceClient::local_in(&folder)?;
    /// let training = service.create_lora_training_client("tinker-local/tiny", LoraConfig::rank(4))?;
    /// let path = training.save_state("first")?.join()?.path;
    /// drop((training, service));
    ///
    /// let again = ServiceClient::local_in(&folder)?;
    /// again.create_training_client_from_state(&path)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the folder cannot be used; otherwise as [`local`](Self::local).
    #[cfg(feature = "local")]
    pub fn local_in(folder: impl Into<std::path::PathBuf>) -> Result<Self> {
        Self::of_server(crate::local::LocalServer::builder().data(folder))
    }

    /// Like [`local`](Self::local), with a model of your choice: a Hugging Face folder, a GGUF file,
    /// or a repository of the hub by its name; see
    /// [`ModelSource`](crate::local::ModelSource).
    ///
    /// ```no_run
    /// use tinker::ServiceClient;
    ///
    /// let service = ServiceClient::local_with("Qwen/Qwen3-0.6B")?;
    /// let sampler = service.create_sampling_client("Qwen/Qwen3-0.6B")?;
    /// # Ok::<(), tinker::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the model cannot be found or downloaded, [`Error::Invalid`] if the engine
    /// does not run it; otherwise as [`local`](Self::local).
    #[cfg(feature = "local")]
    pub fn local_with(model: impl Into<crate::local::ModelSource>) -> Result<Self> {
        Self::of_server(crate::local::LocalServer::builder().model(model))
    }

    #[cfg(feature = "local")]
    fn of_server(server: crate::local::Builder) -> Result<Self> {
        // Only this client knows the key, so nobody else on the machine can use the server.
        let key = format!("tml-{}", uuid::Uuid::new_v4().simple());
        let server = server.api_key(key.as_str()).start()?;
        let mut config = Config::default()
            .with_base_url(server.base_url())
            .with_api_key(key);
        config.keep_alive = Some(crate::config::KeepAlive::new(server));
        Self::new(config)
    }

    /// Which models the service offers.
    ///
    /// # Errors
    ///
    /// What befalls every request: see [`error`](crate::error).
    #[doc(alias = "get_server_capabilities")]
    pub fn capabilities(&self) -> Result<ServerCapabilities> {
        self.link()?.get(&route::SERVER_CAPABILITIES, &[], &[])
    }

    /// Whether the service can be used with this client's credential: one request, which is not
    /// repeated, to an endpoint that also needs billing to be set up.
    ///
    /// ```no_run
    /// use tinker::ServiceClient;
    ///
    /// if let Err(error) = ServiceClient::from_env().and_then(|service| service.check_accessible()) {
    ///     eprintln!("{error}; to do: {}", error.remedy());
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Credentials`] without a credential, [`Error::Status`] with 401 for one that is
    /// refused and with 402 for an account without billing, [`Error::Connection`] if nobody
    /// answers.
    #[doc(alias = "raise_if_tinker_not_accessible")]
    pub fn check_accessible(&self) -> Result<()> {
        let route = &route::SERVER_CAPABILITIES;
        let request = Request::to(route, route.fixed_path());
        self.link()?.call_raw(request, Effort::ONCE).map(drop)
    }

    /// Creates a model with a fresh LoRA adapter and waits until it can be trained.
    ///
    /// ```no_run
    /// # fn main() -> tinker::Result<()> {
    /// # let service = tinker::ServiceClient::from_env()?;
    /// use tinker::{LoraConfig, client::TrainingOptions};
    ///
    /// let training = service.create_lora_training_client("Qwen/Qwen3-8B", LoraConfig::rank(32))?;
    /// let options = TrainingOptions::from(LoraConfig::rank(32)).with_metadata("run", "baseline");
    /// let training = service.create_lora_training_client("Qwen/Qwen3-8B", options)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a rank of 0; otherwise what the service says, such as an unknown
    /// model.
    pub fn create_lora_training_client(
        &self,
        base_model: &str,
        options: impl Into<TrainingOptions>,
    ) -> Result<TrainingClient> {
        let options = options.into();
        options.lora.validate()?;
        let session = self.session()?;
        let queue = session.create_model(options.request(base_model))?;
        Ok(TrainingClient::new(queue, session.clone()))
    }

    /// Makes a sampling client for a base model, for saved weights, or for a sampler that is there
    /// already.
    ///
    /// ```no_run
    /// # fn main() -> tinker::Result<()> {
    /// # let service = tinker::ServiceClient::from_env()?;
    /// let base = service.create_sampling_client("Qwen/Qwen3-8B")?;
    /// let tuned = service.create_sampling_client("tinker://run/sampler_weights/final")?;
    /// let same = service.create_sampling_client(tuned.sampling_session_id())?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for an empty name and for weights whose path does not begin with
    /// `tinker://`; otherwise what the service says, such as an unknown model.
    pub fn create_sampling_client(
        &self,
        source: impl Into<SamplerSource>,
    ) -> Result<SamplingClient> {
        let session = self.session()?;
        open_sampler(&session, &source.into())
    }

    /// Makes a sampling client from a handle that another client, of this SDK or the Python one,
    /// made with `sampler_handle`. It joins that client's session with this client's credentials,
    /// and leaves ending it to that client.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the text is not a handle, or one of another service than this
    /// client's: see [`Config::with_handle_origin`](crate::config::Config::with_handle_origin).
    pub fn from_sampler_handle(&self, handle: &str) -> Result<SamplingClient> {
        let handle = SamplerHandle::decode(handle)?;
        let session = self.host.adopt(&handle)?;
        let sampler = session.sampler(handle.sampling_session_id.into(), true);
        let client = SamplingClient::new(sampler, session);
        Ok(match handle.record_stability_info {
            true => client.with_stability_info(),
            false => client,
        })
    }

    /// Whose credential this is. Known only where the service exchanges tokens.
    ///
    /// # Errors
    ///
    /// [`Error::Credentials`] for a plain API key, which does not say.
    pub fn whoami(&self) -> Result<WhoAmI> {
        let claims = self.link()?.claims()?;
        match (claims.user_urn, claims.org_urn) {
            (Some(user), Some(organization)) => Ok(WhoAmI::new(user, organization, claims.email)),
            _ => Err(Error::Credentials(Context::new(
                "the token names no user or no organisation",
            ))),
        }
    }

    /// The id of the session, which this opens if need be.
    ///
    /// # Errors
    ///
    /// What the service says to opening the session.
    pub fn session_id(&self) -> Result<SessionId> {
        Ok(self.session()?.core.session_id.as_str().into())
    }

    /// Where the console shows the session.
    ///
    /// # Errors
    ///
    /// As [`session_id`](Self::session_id).
    pub fn session_url(&self) -> Result<String> {
        Ok(console::session_url(&self.session_id()?))
    }

    /// What this client has done and is doing: requests by route and status, retries, bytes,
    /// threads. A snapshot, which asks the service nothing.
    ///
    /// ```
    /// # fn main() -> tinker::Result<()> {
    /// let service = tinker::ServiceClient::local()?;
    /// service.capabilities()?;
    /// let metrics = service.metrics();
    /// let asked = ("GET get_server_capabilities".to_owned(), 200);
    /// assert_eq!(metrics.requests[&asked], 1);
    /// # Ok(()) }
    /// ```
    pub fn metrics(&self) -> ClientMetrics {
        self.host.metrics()
    }

    /// Waits until the results of everything submitted are there, for at most `limit`, and names
    /// what is left then, the oldest first. Nothing is cancelled, and more may be submitted
    /// meanwhile.
    ///
    /// ```no_run
    /// # fn example(service: tinker::ServiceClient) {
    /// use std::time::Duration;
    ///
    /// for left in service.drain(Duration::from_secs(60)) {
    ///     eprintln!("{} has taken {:?} so far", left.operation, left.age);
    /// }
    /// # }
    /// ```
    #[must_use = "it names what is left"]
    pub fn drain(&self, limit: Duration) -> Vec<Unfinished> {
        let session = self.host.opened();
        session.map_or_else(Vec::new, |session| session.drain(limit))
    }

    /// Sends what is queued, tells the service that the session ended well, and stops every
    /// thread.
    ///
    /// The first close wins; further ones do nothing. Without it the last drop closes the
    /// session as a success, or as errored during a panic. A call that another thread is making,
    /// the opening of the session included, ends with [`Error::Closed`].
    ///
    /// # Errors
    ///
    /// If the service could not be told, or [`Error::Closed`] counting operations that were still
    /// queued and are given up. The client is closed in any case.
    pub fn close(&self) -> Result<()> {
        self.close_as(FinishReason::Success, None)
    }

    /// Closes the client and says how the session ended: a program that is interrupted can pass
    /// [`FinishReason::Interrupted`].
    ///
    /// ```no_run
    /// # fn main() -> tinker::Result<()> {
    /// # let service = tinker::ServiceClient::from_env()?;
    /// use tinker::types::FinishReason;
    ///
    /// service.close_as(FinishReason::Interrupted, Some("control-c"))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`close`](Self::close).
    pub fn close_as(&self, reason: FinishReason, detail: Option<&str>) -> Result<()> {
        self.host.close(reason, detail)
    }

    pub(super) fn session(&self) -> Result<Within<Arc<Session>>> {
        let deadline = self.host.deadline();
        Ok(Within::new(self.host.session()?, deadline))
    }

    /// The connections, without a session.
    pub(super) fn link(&self) -> Result<Within<Arc<Link>>> {
        let deadline = self.host.deadline();
        Ok(Within::new(self.host.link()?, deadline))
    }

    pub(super) fn host(&self) -> &Host {
        &self.host
    }

    pub(super) fn config(&self) -> &Config {
        self.host.config()
    }
}

impl fmt::Debug for ServiceClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base_url = self.config().base_url().unwrap_or_default();
        let session = self.host.opened();
        f.debug_struct("ServiceClient")
            .field("base_url", &base_url)
            .field("session", &session.as_ref().map(|s| &s.core.session_id))
            .finish_non_exhaustive()
    }
}

/// What a new model is made with.
///
/// A bare [`LoraConfig`] will do wherever one is taken.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TrainingOptions {
    /// The adapter.
    pub lora: LoraConfig,
    /// The optimiser family. Default: AdamW.
    pub optimizer: OptimizerConfig,
    /// Free-form metadata of the run. Default: none.
    pub metadata: Option<Map<String, Value>>,
}

impl From<LoraConfig> for TrainingOptions {
    fn from(lora: LoraConfig) -> Self {
        Self {
            lora,
            optimizer: OptimizerConfig::default(),
            metadata: None,
        }
    }
}

impl TrainingOptions {
    /// The request that makes the model, given the session's id and the model's number.
    pub(super) fn request(&self, base_model: &str) -> impl FnOnce(&str, u64) -> Result<Vec<u8>> {
        move |session_id, model_seq_id| {
            to_json(&CreateModelRequest {
                session_id: session_id.into(),
                model_seq_id,
                base_model: base_model.into(),
                user_metadata: self.metadata.as_ref().map(Cow::Borrowed),
                lora_config: Some(Cow::Borrowed(&self.lora)),
                optimizer_config: Cow::Borrowed(&self.optimizer),
            })
        }
    }

    /// Sets the optimiser family.
    #[must_use]
    pub fn with_optimizer(mut self, optimizer: OptimizerConfig) -> Self {
        self.optimizer = optimizer;
        self
    }

    /// Adds one entry of metadata.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        self.metadata
            .get_or_insert_default()
            .insert(key.into(), value.into());
        self
    }
}

/// Opens a sampling session, or joins one.
pub(super) fn open_sampler(
    session: &Arc<Session>,
    source: &SamplerSource,
) -> Result<SamplingClient> {
    let sampler = match source {
        SamplerSource::BaseModel(name) if name.is_empty() => {
            return Err(Error::invalid("base_model", "must not be empty"));
        }
        SamplerSource::BaseModel(name) => session.open_sampler(Some(name), None)?,
        SamplerSource::Weights(path) => session.open_sampler(None, Some(path.checked()?))?,
        // Numbered as a clone: its maker may be sampling too.
        SamplerSource::Session(id) => session.sampler(id.clone(), true),
    };
    Ok(SamplingClient::new(sampler, session.clone()))
}
