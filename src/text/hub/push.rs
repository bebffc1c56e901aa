//! Uploads: a folder becomes a commit, or a pull request, of a repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use ring::digest::{self, Context as Digest};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::attempts::{Trouble, passing, patiently};
use super::fetch::{feed, hex};
use super::lfs;
use super::patterns::is_meant;
use super::{Hub, HubProgress, Repo, quoted};
use crate::error::{Context, Effect, Error, Meaning, Result};
use crate::transport::retry::{error_from_response, server_delay};
use crate::transport::{Body, Request, Response, Source, Transport};
use crate::wire::route::{Method, Pool};

/// How many files one question may name.
pub(super) const BATCH: usize = 256;
/// Files that are no large ones go into the commit itself, which is held in memory.
const LARGEST_REGULAR: u64 = 64 << 20;
const NDJSON: &str = "application/x-ndjson";
const JSON: &str = "application/json";

/// How a folder is uploaded: [`Repo::upload_folder`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UploadOptions {
    message: Option<String>,
    create_pr: bool,
    allow: Vec<String>,
    ignore: Vec<String>,
}

impl UploadOptions {
    /// The commit's message. Default: `Upload folder using tinker`.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// Whether to open a pull request instead of committing to the branch. Default: no.
    #[must_use]
    pub fn with_create_pr(mut self, create_pr: bool) -> Self {
        self.create_pr = create_pr;
        self
    }

    /// Only files that match one of these patterns, such as `*.safetensors`; a `*` also stands for
    /// slashes. Default: all files.
    #[must_use]
    pub fn with_allow_patterns(
        mut self,
        patterns: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.allow = patterns.into_iter().map(Into::into).collect();
        self
    }

    /// No file that matches one of these patterns. Default: none but Git's own.
    #[must_use]
    pub fn with_ignore_patterns(
        mut self,
        patterns: impl IntoIterator<Item = impl Into<String>>,
    ) -> Self {
        self.ignore = patterns.into_iter().map(Into::into).collect();
        self
    }
}

/// What an upload made of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HubCommit {
    /// The commit; the one before, if nothing had changed.
    pub commit: String,
    /// Its page.
    pub url: String,
    /// The pull request's page, if one was asked for.
    pub pull_request: Option<String>,
    /// The paths of the files that were new or had changed.
    pub paths: Vec<String>,
}

impl Hub {
    /// The name the hub knows the token's owner by.
    ///
    /// # Errors
    ///
    /// [`Error::Credentials`] without a token, or with one the hub refuses.
    pub fn whoami(&self) -> Result<String> {
        #[derive(Deserialize)]
        struct Who {
            name: String,
        }
        let desk = Desk::new(self, "the hub")?;
        let url = format!("{}/api/whoami-v2", self.endpoint());
        Ok(desk
            .read::<Who>(&desk.patiently(Method::Get, &url, &Body::Empty)?)?
            .name)
    }

    /// Makes a repository for a model, or finds the one of that name; a name without an
    /// organisation means one of the token's owner.
    ///
    /// ```no_run
    /// use tinker::text::{Hub, UploadOptions};
    ///
    /// let repo = Hub::from_env()?.create_model("my-adapter", true)?;
    /// let options = UploadOptions::default().with_ignore_patterns(["*.tmp"]);
    /// let commit = repo.upload_folder("adapter", options)?;
    /// println!("{}", commit.url);
    /// # Ok::<(), tinker::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If it cannot be a repository's name, or the token may not make one there.
    pub fn create_model(&self, name: &str, private: bool) -> Result<Repo> {
        self.model(name)?;
        let name = match name.contains('/') {
            true => name.to_owned(),
            false => format!("{}/{name}", self.whoami()?),
        };
        let repo = self.model(&name)?;
        let (organization, short) = name.split_once('/').expect("both parts are there");
        let desk = Desk::new(self, &name)?;
        let body = json!({"name": short, "organization": organization, "type": "model",
            "private": private, "visibility": if private { "private" } else { "public" }});
        let url = format!("{}/api/repos/create", self.endpoint());
        let made = desk.patiently(Method::Post, &url, &Body::Json(body.to_string().as_bytes()));
        match made {
            Err(error) if error.meaning() == Some(Meaning::Conflict) => {}
            // Some tokens may write to a repository without being allowed to make one.
            Err(error) if matches!(error.status(), Some(401..=403)) => {
                repo.files().map_err(|_| error)?;
            }
            made => drop(made?),
        }
        Ok(repo)
    }
}

impl Repo {
    /// Makes the branch that is this repository's revision, where there is none.
    ///
    /// # Errors
    ///
    /// If the token may not.
    pub fn create_branch(&self) -> Result<()> {
        let desk = Desk::new(&self.hub, &self.name)?;
        let url = self.api(&format!("branch/{}", quoted(&self.revision, "")));
        match desk.patiently(Method::Post, &url, &Body::Json(b"{}")) {
            Err(error) if error.meaning() == Some(Meaning::Conflict) => Ok(()),
            made => made.map(drop),
        }
    }

    /// Uploads the files of a folder in one commit to the branch that is the revision, or as a
    /// pull request. Large files go to where the hub keeps them, a part at a time, and files that
    /// are there already are not sent again: a second call after a failure goes on.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read or holds no file that is meant, if the hub refuses the token or
    /// a file, or cannot be reached. Nothing is committed then, unless the answer to the commit
    /// itself was lost: [`effect`](Error::effect) says so.
    pub fn upload_folder(
        &self,
        folder: impl AsRef<Path>,
        options: impl Into<UploadOptions>,
    ) -> Result<HubCommit> {
        let options = options.into();
        if options.create_pr && self.revision != "main" {
            let problem = "a pull request is made against the branch main: name no other";
            return Err(Error::invalid("revision", problem));
        }
        let files = additions(folder.as_ref(), &options)?;
        let desk = Desk::new(&self.hub, &self.name)?;
        let push = Push {
            repo: self,
            desk: &desk,
            create_pr: options.create_pr,
        };
        // What was sent is no part of the repository before the commit.
        let without_effect = |error: Error| error.with_effect(Effect::None);
        let changed = push.send(files).map_err(without_effect)?;
        if changed.is_empty() {
            return push.unchanged().map_err(without_effect);
        }
        let message = options.message.as_deref().filter(|text| !text.is_empty());
        push.commit(&changed, message.unwrap_or("Upload folder using tinker"))
    }

    /// A URL of the interface to this repository.
    fn api(&self, rest: &str) -> String {
        let (endpoint, kind, name) = (self.hub.endpoint(), self.kind.plural(), &self.name);
        format!("{endpoint}/api/{kind}/{name}/{rest}")
    }
}

/// A file to upload.
#[derive(Debug)]
pub(super) struct Addition {
    /// In the repository.
    pub(super) path: String,
    pub(super) place: PathBuf,
    pub(super) size: u64,
    /// Whether the hub keeps it apart.
    pub(super) large: bool,
    /// Whether the repository's `.gitignore` excludes it.
    ignored: bool,
    /// The digest of what the repository has under this path.
    remote: Option<String>,
}

impl Addition {
    /// What the hub names its content by: SHA-256 of large files, Git's SHA-1 of others.
    pub(super) fn digest(&self) -> Result<String> {
        let mut digest = match self.large {
            true => Digest::new(&digest::SHA256),
            false => {
                let mut digest = Digest::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
                digest.update(format!("blob {}\0", self.size).as_bytes());
                digest
            }
        };
        feed(&mut digest, &self.place).map_err(|error| unreadable(&self.place, error))?;
        Ok(hex(digest.finish().as_ref()))
    }

    /// The first bytes, by which the hub tells text from the rest.
    fn sample(&self) -> Result<String> {
        use std::io::Read;

        let mut sample = Vec::new();
        let file = fs::File::open(&self.place);
        file.and_then(|file| file.take(512).read_to_end(&mut sample))
            .map_err(|error| unreadable(&self.place, error))?;
        Ok(BASE64.encode(sample))
    }

    /// Its line in the commit.
    fn line(&self) -> Result<Value> {
        if self.large {
            let oid = self.digest()?;
            return Ok(json!({"key": "lfsFile", "value":
                {"path": self.path, "algo": "sha256", "oid": oid, "size": self.size}}));
        }
        if self.size > LARGEST_REGULAR {
            let message = format!(
                "the hub wants {} of {} bytes in the commit itself, not apart: \
                add it to the repository's .gitattributes",
                self.path, self.size
            );
            return Err(Error::Reply(Context::new(message)));
        }
        let bytes = fs::read(&self.place).map_err(|error| unreadable(&self.place, error))?;
        Ok(json!({"key": "file", "value":
            {"content": BASE64.encode(bytes), "path": self.path, "encoding": "base64"}}))
    }
}

/// The files of a folder that are meant, by their paths. Links are followed, but not in circles;
/// what is neither file nor folder is passed over.
fn additions(folder: &Path, options: &UploadOptions) -> Result<Vec<Addition>> {
    let mut found = Vec::new();
    let mut folders = vec![(folder.to_owned(), String::new(), Vec::new())];
    while let Some((place, prefix, mut above)) = folders.pop() {
        let cannot = |error| unreadable(&place, error);
        let real = fs::canonicalize(&place).map_err(cannot)?;
        if above.contains(&real) {
            continue;
        }
        above.push(real);
        for entry in fs::read_dir(&place).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let place = entry.path();
            let Ok(name) = entry.file_name().into_string() else {
                let problem = format!("{} has a name that is no text", place.display());
                return Err(Error::invalid("folder", problem));
            };
            let path = format!("{prefix}{name}");
            let is_meant = is_meant(&path, &options.allow, &options.ignore);
            let data = match fs::metadata(&place) {
                Ok(data) => data,
                // Such as a link to nothing.
                Err(_) if !is_meant => continue,
                Err(error) => return Err(unreadable(&place, error)),
            };
            if data.is_dir() {
                folders.push((place, format!("{path}/"), above.clone()));
            } else if data.is_file() && is_meant {
                found.push(Addition {
                    path,
                    place,
                    size: data.len(),
                    large: false,
                    ignored: false,
                    remote: None,
                });
            }
        }
    }
    if found.is_empty() {
        let problem = format!("{} holds no file that is to be uploaded", folder.display());
        return Err(Error::invalid("folder", problem));
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(found)
}

/// The steps of one upload.
struct Push<'a> {
    repo: &'a Repo,
    desk: &'a Desk<'a>,
    create_pr: bool,
}

impl Push<'_> {
    fn url(&self, what: &str) -> String {
        let revision = quoted(&self.repo.revision, "");
        let query = if self.create_pr { "?create_pr=1" } else { "" };
        self.repo.api(&format!("{what}/{revision}{query}"))
    }

    /// Sends the large ones of the files that are new or have changed, and gives these.
    fn send(&self, mut files: Vec<Addition>) -> Result<Vec<Addition>> {
        self.ask_modes(&mut files)?;
        files.retain(|file| !file.ignored);
        let mut changed = Vec::new();
        for file in files {
            if file.remote.is_none() || file.remote != Some(file.digest()?) {
                changed.push(file);
            }
        }
        lfs::upload(self.repo, self.desk, &changed)?;
        Ok(changed)
    }

    /// Asks how each file is to be sent, and what the repository has in its place.
    fn ask_modes(&self, files: &mut [Addition]) -> Result<()> {
        #[derive(Deserialize)]
        struct Modes {
            files: Vec<Mode>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Mode {
            path: String,
            upload_mode: String,
            #[serde(default)]
            should_ignore: bool,
            #[serde(default)]
            oid: Option<String>,
        }
        for batch in files.chunks_mut(BATCH) {
            let described = batch.iter().map(|file| {
                let sample = file.sample()?;
                Ok(json!({"path": file.path, "sample": sample, "size": file.size}))
            });
            let body = json!({"files": described.collect::<Result<Vec<_>>>()?}).to_string();
            let url = self.url("preupload");
            let answer = self
                .desk
                .patiently(Method::Post, &url, &Body::Json(body.as_bytes()))?;
            let modes: Modes = self.desk.read(&answer)?;
            for file in batch {
                let mode = modes.files.iter().find(|mode| mode.path == file.path);
                let mode = mode.ok_or_else(|| {
                    let message = format!("the hub does not say how to upload {}", file.path);
                    Error::Reply(Context::new(message))
                })?;
                // The store of large files takes no empty ones.
                file.large = mode.upload_mode == "lfs" && file.size > 0;
                file.ignored = mode.should_ignore;
                file.remote = mode.oid.clone();
            }
        }
        Ok(())
    }

    fn commit(&self, files: &[Addition], message: &str) -> Result<HubCommit> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Made {
            commit_url: String,
            commit_oid: String,
            #[serde(default)]
            pull_request_url: Option<String>,
        }
        let header = json!({"key": "header", "value": {"summary": message, "description": ""}});
        let mut lines = format!("{header}\n");
        for file in files {
            lines.push_str(&format!("{}\n", file.line()?));
        }
        let body = Body::Raw {
            content_type: NDJSON,
            source: Source::Bytes(lines.as_bytes()),
        };
        // Once only: a commit whose answer was lost would be made twice.
        let answer = self
            .desk
            .once(Method::Post, &self.url("commit"), &body, JSON);
        let made = self.desk.read(&answer.map_err(Trouble::into_error)?);
        let made: Made = made.map_err(|error| error.with_effect(Effect::Accepted))?;
        Ok(HubCommit {
            commit: made.commit_oid,
            url: made.commit_url,
            pull_request: made.pull_request_url.filter(|_| self.create_pr),
            paths: files.iter().map(|file| file.path.clone()).collect(),
        })
    }

    /// The commit that is there, where there is nothing to add to it.
    fn unchanged(&self) -> Result<HubCommit> {
        let commit = self.repo.files()?.commit;
        Ok(HubCommit {
            url: format!("{}/commit/{commit}", self.repo.page()),
            commit,
            pull_request: None,
            paths: Vec::new(),
        })
    }
}

/// Requests that change a repository.
pub(super) struct Desk<'a> {
    hub: &'a Hub,
    transport: &'a Transport,
    repo: &'a str,
}

impl<'a> Desk<'a> {
    fn new(hub: &'a Hub, repo: &'a str) -> Result<Self> {
        if hub.is_offline() {
            let message = "nothing can be uploaded while HF_HUB_OFFLINE forbids it: unset it";
            return Err(Error::Config(Context::new(message)));
        }
        if !hub.has_token() {
            let message = "an upload needs a token with write access: set HF_TOKEN or run \
                `hf auth login`";
            return Err(Error::Credentials(Context::new(message)));
        }
        Ok(Self {
            hub,
            transport: hub.transport()?,
            repo,
        })
    }

    pub(super) fn report(&self, file: &Addition, sent: u64) {
        self.hub.report(&HubProgress {
            repo: self.repo.to_owned(),
            file: file.path.clone(),
            received: sent,
            total: Some(file.size),
        });
    }

    /// A request that may be repeated.
    fn patiently(&self, method: Method, url: &str, body: &Body<'_>) -> Result<Response> {
        self.repeated(method, url, body, JSON)
    }

    /// The same, of another media type.
    pub(super) fn repeated(
        &self,
        method: Method,
        url: &str,
        body: &Body<'_>,
        accept: &str,
    ) -> Result<Response> {
        patiently(self.repo, |_| self.once(method, url, body, accept)).map_err(Trouble::into_error)
    }

    fn once(
        &self,
        method: Method,
        url: &str,
        body: &Body<'_>,
        accept: &str,
    ) -> Result<Response, Trouble> {
        let request = Request::new(method, url, Pool::Rest)
            .with_accept(accept)
            .with_body(*body)
            .foreign();
        let response = self
            .transport
            .exchange(&request)
            .map_err(|fault| passing(&fault, &request.label))?;
        match response.is_success() {
            true => Ok(response),
            false => Err(self.refused(&response, &request.label)),
        }
    }

    fn refused(&self, response: &Response, label: &str) -> Trouble {
        let mut error = error_from_response(response, label, SystemTime::now());
        if let (Error::Status(context), Some(message)) =
            (&mut error, response.header("x-error-message"))
        {
            context.message = self.transport.redact(message);
        }
        let repo = self.repo;
        let (credentials, words) = match response.status() {
            401 => (
                true,
                format!(
                    "{repo} takes nothing from this token: set HF_TOKEN to another, \
                or run `hf auth login`"
                ),
            ),
            403 => (
                true,
                format!("this token may not write to {repo}: use one with write access"),
            ),
            404 => (
                false,
                format!("there is no {repo}, or this token may not see it"),
            ),
            _ => (false, String::new()),
        };
        if let (false, Error::Status(context)) = (words.is_empty(), &mut error) {
            context.message = format!("{words} ({})", context.message);
            if credentials {
                error = Error::Credentials(context.clone());
            }
        }
        match Meaning::of_status(response.status()) {
            Meaning::Busy | Meaning::Failing | Meaning::Pending => {
                Trouble::Passing(error, server_delay(&response.head, SystemTime::now()))
            }
            _ => Trouble::Final(error),
        }
    }

    pub(super) fn read<T: DeserializeOwned>(&self, response: &Response) -> Result<T> {
        serde_json::from_slice(&response.body).map_err(|error| {
            let message = format!("the hub's answer about {} cannot be read", self.repo);
            let error = Error::Reply(Context::caused(message, error));
            self.transport.redact_error(error)
        })
    }
}

fn unreadable(place: &Path, error: std::io::Error) -> Error {
    let message = format!("cannot read {}", place.display());
    Error::Io(Context::caused(message, error))
}
