//! Downloads: attempts, resumption, and files that are what the hub says they are.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ring::digest::{self, Context as Digest};

use super::attempts::{Trouble, passing, patiently, read_text};
use super::cache::{RepoCache, cannot, is_name};
use super::explain::{Asked, Refusal, explain};
use super::{HubProgress, Repo};
use crate::error::{Context, Error, Result};
use crate::transport::retry::{Meaning, server_delay};
use crate::transport::{Head, Request, Response, Transport};
use crate::wire::route::{Method, Pool};

/// What the hub says about a file before it sends it.
struct Meta {
    commit: String,
    etag: String,
    size: Option<u64>,
}

impl Meta {
    /// Large files are kept elsewhere: what is said about the link counts then.
    fn read(head: &Head) -> Result<Self, Trouble> {
        let header = |name| head.header(name);
        let etag = header("x-linked-etag").or_else(|| header("etag"));
        let etag = etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"'));
        let commit = header("x-repo-commit");
        let (Some(etag), Some(commit)) = (
            etag.filter(|name| is_name(name)),
            commit.filter(|name| is_name(name)),
        ) else {
            let message = "the answer names no commit and no ETag: is this a Hugging Face hub?";
            return Err(Trouble::Final(Error::Reply(Context::new(message))));
        };
        let size = match header("x-linked-size") {
            None if head.is_success() => header("content-length"),
            size => size,
        };
        Ok(Self {
            commit: commit.to_owned(),
            etag: etag.to_owned(),
            size: size.and_then(|size| size.parse().ok()),
        })
    }
}

/// Downloads of one repository.
pub(super) struct Fetch<'a> {
    pub(super) repo: &'a Repo,
    pub(super) transport: &'a Transport,
    pub(super) cache: &'a RepoCache,
}

impl Fetch<'_> {
    /// A file of a revision, or `None` if it has none of that name.
    pub(super) fn file(&self, revision: &str, path: &str) -> Result<Option<PathBuf>> {
        let url = self.repo.url(revision, path);
        patiently(self.repo.name(), |received| {
            self.attempt(&url, revision, path, received)
        })
        .map(Some)
        .or_else(|trouble| match trouble {
            Trouble::NoSuchFile { commit, error } => {
                log::debug!("{error}");
                commit.map_or(Ok(()), |commit| self.cache.note_absent(&commit, path))?;
                Ok(None)
            }
            Trouble::Final(error) | Trouble::Passing(error, _) => Err(error),
        })
    }

    /// A short answer, whole.
    pub(super) fn text(&self, url: &str, revision: &str) -> Result<Vec<u8>> {
        patiently(self.repo.name(), |_| {
            let (head, body) = self.ask(url, None)?;
            let body = read_text(body, url)?;
            match head.is_success() {
                true => Ok(body),
                false => Err(self.refused(head, body, revision, None)),
            }
        })
        .map_err(Trouble::into_error)
    }

    fn attempt(
        &self,
        url: &str,
        revision: &str,
        path: &str,
        received: &mut u64,
    ) -> Result<PathBuf, Trouble> {
        let (head, body) = self.ask(url, None)?;
        let elsewhere = match head.status {
            300..400 => head.header("location").map(str::to_owned),
            _ => None,
        };
        if !head.is_success() && elsewhere.is_none() {
            let body = read_text(body, url)?;
            return Err(self.refused(head, body, revision, Some(path)));
        }
        let meta = Meta::read(&head)?;
        self.cache.note_commit(revision, &meta.commit)?;
        let _lock = match self.cache.blob(&meta.etag).is_file() {
            true => None,
            false => {
                let patience = self.repo.hub().patience();
                let observe = |length| self.report(&meta, path, length);
                Some(self.cache.lock(&meta.etag, patience, observe)?)
            }
        };
        // Another process may have brought it while this one waited for the lock.
        if !self.cache.blob(&meta.etag).is_file() {
            let mut part = Part::open(self.cache, &meta, elsewhere.is_some())?;
            let outcome = match elsewhere {
                Some(url) => self.rest(&url, &meta, &mut part, path, received),
                None => self.copy(body, &meta, &mut part, path, received),
            };
            outcome?;
            part.finish(self.cache, &meta)?;
        }
        Ok(self.cache.link(&meta.commit, path, &meta.etag)?)
    }

    /// What is still missing of a large file, from where it is kept. No token goes there.
    fn rest(
        &self,
        url: &str,
        meta: &Meta,
        part: &mut Part,
        path: &str,
        received: &mut u64,
    ) -> Result<(), Trouble> {
        if part.length > 0 && Some(part.length) == meta.size {
            return Ok(());
        }
        let range = (part.length > 0).then(|| format!("bytes={}-", part.length));
        let (head, body) = self.ask(url, range)?;
        let continues = format!("bytes {}-", part.length);
        let begins = head.header("content-range").unwrap_or_default();
        match head.status {
            206 if part.length > 0 && begins.starts_with(&continues) => {}
            200 => part.restart()?,
            206 | 416 => {
                part.restart()?;
                let message = format!("the server would not go on with {path}");
                return Err(Trouble::Passing(
                    Error::Reply(Context::new(message)),
                    Some(Duration::ZERO),
                ));
            }
            _ => {
                let body = read_text(body, url)?;
                return Err(self.refused(head, body, &meta.commit, Some(path)));
            }
        }
        self.copy(body, meta, part, path, received)
    }

    fn copy(
        &self,
        mut body: impl Read,
        meta: &Meta,
        part: &mut Part,
        path: &str,
        received: &mut u64,
    ) -> Result<(), Trouble> {
        let mut buffer = vec![0; 256 << 10];
        loop {
            self.report(meta, path, part.length);
            let count = match body.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let message = format!("the download of {path} broke off");
                    let error = Error::Connection(Context::caused(message, error));
                    return Err(Trouble::Passing(error, None));
                }
            };
            part.write(&buffer[..count])?;
            *received += count as u64;
        }
    }

    fn report(&self, meta: &Meta, path: &str, received: u64) {
        self.repo.hub().report(&HubProgress {
            repo: self.repo.name().to_owned(),
            file: path.to_owned(),
            received,
            total: meta.size,
        });
    }

    fn ask(&self, url: &str, range: Option<String>) -> Result<(Head, Box<dyn Read>), Trouble> {
        let mut request = Request::new(Method::Get, url, Pool::Rest)
            .with_accept("*/*")
            .foreign();
        if let Some(range) = range {
            request = request.with_header("range", range);
        }
        let (head, body) = self
            .transport
            .stream(&request)
            .map_err(|fault| passing(&fault, &request.label))?;
        Ok((head, Box::new(body)))
    }

    fn refused(&self, head: Head, body: Vec<u8>, revision: &str, path: Option<&str>) -> Trouble {
        let hub = self.repo.hub();
        let commit = head
            .header("x-repo-commit")
            .filter(|name| is_name(name))
            .map(str::to_owned);
        let passes = matches!(
            Meaning::of_status(head.status),
            Meaning::Busy | Meaning::Failing | Meaning::Pending
        );
        let wish = server_delay(&head, SystemTime::now());
        // Should the hub have echoed the token.
        let body = self.transport.redact_body(&body);
        let response = Response { head, body };
        let asked = Asked {
            endpoint: hub.endpoint(),
            page: &self.repo.page(),
            kind: self.repo.kind().word(),
            repo: self.repo.name(),
            revision,
            path,
            has_token: hub.has_token(),
        };
        match explain(&response, asked) {
            Refusal::NoSuchFile(error) => Trouble::NoSuchFile { commit, error },
            Refusal::Other(error) if passes => Trouble::Passing(error, wish),
            Refusal::Other(error) => Trouble::Final(error),
        }
    }
}

/// A file in the making, kept for the next attempt if this one breaks off.
struct Part {
    path: PathBuf,
    file: File,
    length: u64,
    /// Of nothing yet, and of what is there.
    empty: Option<Digest>,
    digest: Option<Digest>,
}

impl Part {
    /// Goes on with what an earlier attempt left, if the rest can be asked for.
    fn open(cache: &RepoCache, meta: &Meta, resumes: bool) -> Result<Self> {
        let path = cache.incomplete(&meta.etag);
        super::cache::make_parent(&path)?;
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).read(true).open(&path);
        let file = file.map_err(|error| cannot("write", &path, error))?;
        let length = file.metadata().map_or(0, |found| found.len());
        let mut part = Self {
            path,
            file,
            length,
            empty: digest_of(meta),
            digest: digest_of(meta),
        };
        let is_usable = resumes && meta.size.is_none_or(|size| length <= size);
        if !is_usable {
            part.restart()?;
        } else if let Some(digest) = &mut part.digest {
            feed(digest, &part.path).map_err(|error| cannot("read", &part.path, error))?;
        }
        Ok(part)
    }

    fn restart(&mut self) -> Result<()> {
        self.file
            .set_len(0)
            .map_err(|error| cannot("write", &self.path, error))?;
        self.length = 0;
        self.digest = self.empty.clone();
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .map_err(|error| cannot("write", &self.path, error))?;
        self.length += bytes.len() as u64;
        if let Some(digest) = &mut self.digest {
            digest.update(bytes);
        }
        Ok(())
    }

    /// Gives the file its name, if it is the one the hub described.
    fn finish(mut self, cache: &RepoCache, meta: &Meta) -> Result<(), Trouble> {
        let again = |message: String| Trouble::Passing(Error::Reply(Context::new(message)), None);
        if let Some(size) = meta.size
            && self.length < size
        {
            return Err(again(format!(
                "a file of {size} bytes ended after {}",
                self.length
            )));
        }
        let digest = self
            .digest
            .take()
            .map(|digest| hex(digest.finish().as_ref()));
        let is_whole = meta.size.is_none_or(|size| size == self.length);
        if !is_whole || digest.is_some_and(|digest| digest != meta.etag) {
            fs::remove_file(&self.path).map_err(|error| cannot("remove", &self.path, error))?;
            return Err(again(
                "a file came damaged: its digest is not the hub's".to_owned(),
            ));
        }
        let blob = cache.blob(&meta.etag);
        self.file
            .sync_all()
            .and_then(|()| fs::rename(&self.path, &blob))
            .map_err(|error| Trouble::Final(cannot("write", &blob, error)))
    }
}

/// Large files are named after their SHA-256, others after Git's SHA-1, which begins with the
/// length. Other ETags say nothing about the content.
fn digest_of(meta: &Meta) -> Option<Digest> {
    let is_hex = meta.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
    match (meta.etag.len(), meta.size) {
        (64, _) if is_hex => Some(Digest::new(&digest::SHA256)),
        (40, Some(size)) if is_hex => {
            let mut digest = Digest::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
            digest.update(format!("blob {size}\0").as_bytes());
            Some(digest)
        }
        _ => None,
    }
}

pub(super) fn feed(digest: &mut Digest, path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 256 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            count => digest.update(&buffer[..count]),
        }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
