//! Files of the Hugging Face hub, through the cache its own tools use.

mod attempts;
mod cache;
mod explain;
mod fetch;
mod lfs;
mod patterns;
mod push;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Deserialize;

use self::cache::{RepoCache, is_path};
use self::fetch::Fetch;
pub use self::push::{HubCommit, UploadOptions};
use crate::config::{Config, DEFAULT_HUB, HubSettings, Secret, Timeout};
use crate::error::{Context, Error, Result};
use crate::transport::{READ_TIMEOUT, Transport};

/// The Hugging Face hub, and the cache for its files on this machine.
///
/// The cache has the layout of the Hugging Face tools, so what they have downloaded is found here
/// and the other way round. Downloads go on where they broke off, also after a restart, and a file
/// has its name only once its digest is the hub's. Cloning is cheap.
///
/// ```no_run
/// use tinker::text::Hub;
///
/// let hub = Hub::from_env()?.with_progress(|progress| {
///     eprintln!("{}: {} bytes", progress.file, progress.received);
/// });
/// let model = hub.model("Qwen/Qwen3-8B")?;
/// let config = model.file("config.json")?;
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Clone)]
pub struct Hub {
    inner: Arc<Inner>,
}

type Observer = dyn Fn(&HubProgress) + Send + Sync;

#[derive(Clone)]
struct Inner {
    cache: PathBuf,
    endpoint: String,
    token: Option<Secret>,
    offline: bool,
    config: Config,
    progress: Option<Arc<Observer>>,
    transport: OnceLock<Result<Transport>>,
}

/// How far a download or an upload is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubProgress {
    /// The repository, as `org/name`.
    pub repo: String,
    /// The file's path in the repository.
    pub file: String,
    /// How many bytes are where they belong, those of earlier attempts included.
    pub received: u64,
    /// How many there will be, if the hub says so.
    pub total: Option<u64>,
}

impl Hub {
    /// The hub as the environment describes it: `HF_HUB_CACHE`, `HF_HOME`, `HF_TOKEN` (or the
    /// token `hf auth login` left), `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_HUB_DOWNLOAD_TIMEOUT`, and
    /// the proxy variables.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if no folder for the cache can be found.
    pub fn from_env() -> Result<Self> {
        let settings = HubSettings::from_env();
        let cache = settings.cache.ok_or_else(|| {
            Error::Config(Context::new(
                "no home folder is set to keep the files of models in: set HF_HOME",
            ))
        })?;
        let mut hub = Self::new(cache).changed(|inner| {
            inner.endpoint = settings.endpoint;
            inner.token = settings.token;
            inner.offline = settings.offline;
        });
        let mut config = Config::from_env()?;
        config.read_timeout = settings.timeout;
        hub = hub.changed(|inner| inner.config = config);
        Ok(hub)
    }

    /// The public hub, with a cache in this folder.
    pub fn new(cache: impl Into<PathBuf>) -> Self {
        Self {
            inner: Arc::new(Inner {
                cache: cache.into(),
                endpoint: DEFAULT_HUB.to_owned(),
                token: None,
                offline: false,
                config: Config::default(),
                progress: None,
                transport: OnceLock::new(),
            }),
        }
    }

    /// Another hub, by its URL. Default: the public one.
    #[must_use]
    pub fn with_endpoint(self, url: impl Into<String>) -> Self {
        self.changed(|inner| inner.endpoint = url.into())
    }

    /// The token to show to the hub, and to no other host. Default: none.
    #[must_use]
    pub fn with_token(self, token: impl Into<Secret>) -> Self {
        self.changed(|inner| inner.token = Some(token.into()))
    }

    /// Whether only the cache is looked at. Default: no.
    #[must_use]
    pub fn with_offline(self, offline: bool) -> Self {
        self.changed(|inner| inner.offline = offline)
    }

    /// How long the hub, or another program that is downloading the same file, may bring nothing.
    /// Default: 60 s.
    #[must_use]
    pub fn with_read_timeout(self, limit: impl Into<Timeout>) -> Self {
        self.changed(|inner| inner.config.read_timeout = limit.into())
    }

    /// Calls `observer` while files arrive or leave, on the thread that asked for them. Default: nobody.
    #[must_use]
    pub fn with_progress(self, observer: impl Fn(&HubProgress) + Send + Sync + 'static) -> Self {
        self.changed(|inner| inner.progress = Some(Arc::new(observer)))
    }

    fn changed(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        let inner = Arc::make_mut(&mut self.inner);
        inner.transport = OnceLock::new();
        change(inner);
        self
    }

    /// Whether only the cache is looked at.
    pub fn is_offline(&self) -> bool {
        self.inner.offline
    }

    /// The folder of the cache.
    pub fn cache(&self) -> &Path {
        &self.inner.cache
    }

    /// A model's repository, by its name `org/name`, at the branch `main`.
    ///
    /// # Errors
    ///
    /// If it cannot be a repository's name.
    pub fn model(&self, name: &str) -> Result<Repo> {
        Repo::new(self.clone(), Kind::Model, name)
    }

    /// A dataset's repository, likewise.
    ///
    /// # Errors
    ///
    /// If it cannot be a repository's name.
    pub fn dataset(&self, name: &str) -> Result<Repo> {
        Repo::new(self.clone(), Kind::Dataset, name)
    }

    fn endpoint(&self) -> &str {
        self.inner.endpoint.trim_end_matches('/')
    }

    fn patience(&self) -> Option<Duration> {
        self.inner.config.read_timeout.or(Some(READ_TIMEOUT))
    }

    fn has_token(&self) -> bool {
        self.inner.token.is_some()
    }

    fn report(&self, progress: &HubProgress) {
        if let Some(observer) = &self.inner.progress {
            observer(progress);
        }
    }

    fn transport(&self) -> Result<&Transport> {
        let inner = &self.inner;
        let build = || {
            let mut config = inner.config.clone().with_base_url(self.endpoint());
            if let Some(token) = &inner.token {
                let value = format!("Bearer {}", token.expose());
                config = config.with_header("authorization", value);
            }
            Transport::new(&config)
        };
        inner
            .transport
            .get_or_init(build)
            .as_ref()
            .map_err(Clone::clone)
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("cache", &self.inner.cache)
            .field("endpoint", &self.inner.endpoint)
            .field("offline", &self.inner.offline)
            .finish_non_exhaustive()
    }
}

/// What a repository holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Model,
    Dataset,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Dataset => "dataset",
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
        }
    }
}

/// A repository of the hub at a revision.
#[derive(Debug, Clone)]
pub struct Repo {
    hub: Hub,
    kind: Kind,
    name: String,
    revision: String,
}

/// The commit a revision means, and the paths of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RepoFiles {
    /// The commit.
    pub commit: String,
    /// Paths, `/` between their parts.
    pub paths: Vec<String>,
}

impl Repo {
    fn new(hub: Hub, kind: Kind, name: &str) -> Result<Self> {
        let parts = name.split('/').count();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if !is_path(name) || parts > 2 || !name.chars().all(is_plain) || name.contains("--") {
            return Err(Error::invalid(
                "repository",
                format!("{name:?} is no name of a repository, such as Qwen/Qwen3-8B"),
            ));
        }
        Ok(Self {
            hub,
            kind,
            name: name.to_owned(),
            revision: "main".to_owned(),
        })
    }

    /// Another branch, a tag or a commit. Default: `main`.
    #[must_use]
    pub fn with_revision(mut self, revision: impl Into<String>) -> Self {
        self.revision = revision.into();
        self
    }

    /// Calls `observer` as [`Hub::with_progress`] does, for this repository. Default: the hub's.
    #[must_use]
    pub fn with_progress(
        mut self,
        observer: impl Fn(&HubProgress) + Send + Sync + 'static,
    ) -> Self {
        self.hub = self.hub.with_progress(observer);
        self
    }

    /// Its name, `org/name`.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn hub(&self) -> &Hub {
        &self.hub
    }

    /// A file, from the cache or else from the hub.
    ///
    /// The hub is not asked whether a branch has moved on since a file was cached; name a
    /// revision, or use [`files`](Self::files) and its commit, to be sure.
    ///
    /// # Errors
    ///
    /// If the repository or the file is not there or not given to this token, the hub cannot be
    /// reached, or the file cannot be written. Offline, the error says where the file belongs.
    pub fn file(&self, path: &str) -> Result<PathBuf> {
        self.try_file(path)?.ok_or_else(|| {
            let (kind, name, revision) = (self.kind.word(), &self.name, &self.revision);
            let message = format!("the {kind} {name} has no file {path} at {revision}");
            Error::Config(Context::new(message))
        })
    }

    /// The same, and `None` if the repository has no such file.
    ///
    /// # Errors
    ///
    /// As [`file`](Self::file).
    pub fn try_file(&self, path: &str) -> Result<Option<PathBuf>> {
        if !is_path(path) {
            return Err(Error::invalid(
                "path",
                format!("{path:?} leaves the repository"),
            ));
        }
        let cache = self.cache()?;
        if let Some(file) = cache.file(&self.revision, path) {
            return Ok(Some(file));
        }
        if cache.is_absent(&self.revision, path) {
            return Ok(None);
        }
        if self.hub.is_offline() {
            return Err(self.offline(&cache, path));
        }
        self.fetch(&cache)?.file(&self.revision, path)
    }

    /// The files of the revision, as the hub lists them now.
    ///
    /// # Errors
    ///
    /// As [`file`](Self::file).
    pub fn files(&self) -> Result<RepoFiles> {
        #[derive(Deserialize)]
        struct Listing {
            sha: String,
            #[serde(default)]
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let cache = self.cache()?;
        if self.hub.is_offline() {
            return Err(self.offline(&cache, "the list of its files"));
        }
        let (endpoint, kind, name) = (self.hub.endpoint(), self.kind.plural(), &self.name);
        let revision = quoted(&self.revision, "");
        let url = format!("{endpoint}/api/{kind}/{name}/revision/{revision}");
        let text = self.fetch(&cache)?.text(&url, &self.revision)?;
        let listing: Listing = serde_json::from_slice(&text).map_err(|error| {
            let message = format!("the list of the files of {name} cannot be read");
            Error::Reply(Context::caused(message, error))
        })?;
        if !cache::is_name(&listing.sha) {
            let message = format!(
                "{name} is said to be at {:?}, which is no commit",
                listing.sha
            );
            return Err(Error::Reply(Context::new(message)));
        }
        cache.note_commit(&self.revision, &listing.sha)?;
        let paths = listing
            .siblings
            .into_iter()
            .map(|sibling| sibling.rfilename);
        Ok(RepoFiles {
            commit: listing.sha,
            paths: paths.filter(|path| is_path(path)).collect(),
        })
    }

    /// Brings the files that `wanted` says yes to, and gives the folder they are in.
    ///
    /// # Errors
    ///
    /// As [`file`](Self::file).
    pub fn snapshot(&self, wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
        let files = self.files()?;
        let pinned = self.clone().with_revision(&files.commit);
        for path in files.paths.iter().filter(|path| wanted(path)) {
            pinned.file(path)?;
        }
        Ok(self.cache()?.snapshot(&files.commit))
    }

    /// The folder of the revision in the cache, if this file is in it.
    pub(super) fn cached_folder(&self, path: &str) -> Option<PathBuf> {
        let cache = self.cache().ok()?;
        cache.file(&self.revision, path)?;
        Some(cache.snapshot(&cache.commit(&self.revision)?))
    }

    /// Its page, with which the URLs of its files begin.
    fn page(&self) -> String {
        let prefix = match self.kind {
            Kind::Model => "",
            Kind::Dataset => "datasets/",
        };
        format!("{}/{prefix}{}", self.hub.endpoint(), self.name)
    }

    fn url(&self, revision: &str, path: &str) -> String {
        let (revision, path) = (quoted(revision, ""), quoted(path, "/"));
        format!("{}/resolve/{revision}/{path}", self.page())
    }

    fn cache(&self) -> Result<RepoCache> {
        if !is_path(&self.revision) {
            let problem = format!("{:?} is no revision", self.revision);
            return Err(Error::invalid("revision", problem));
        }
        Ok(RepoCache::new(
            &self.hub.inner.cache,
            self.kind.plural(),
            &self.name,
        ))
    }

    fn fetch<'a>(&'a self, cache: &'a RepoCache) -> Result<Fetch<'a>> {
        Ok(Fetch {
            repo: self,
            transport: self.hub.transport()?,
            cache,
        })
    }

    fn offline(&self, cache: &RepoCache, path: &str) -> Error {
        let (name, revision) = (&self.name, &self.revision);
        let commit = cache
            .commit(revision)
            .unwrap_or_else(|| "COMMIT".to_owned());
        let place = cache.place(&commit, path);
        Error::Config(Context::new(format!(
            "{path} of {name} at {revision} is not in the Hugging Face cache, and HF_HUB_OFFLINE \
             forbids downloading: unset it, or put the file at {}, or name the folder it is in",
            place.display()
        )))
    }
}

/// Percent-encoded, but for letters, digits, `-_.~` and what is `safe` besides.
fn quoted(text: &str, safe: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        match byte.is_ascii_alphanumeric() || "-_.~".contains(c) || safe.contains(c) {
            true => out.push(c),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
