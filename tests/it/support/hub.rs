//! A small Hugging Face hub on this machine: commits and ETags, large files kept on another host,
//! ranges, gated and private repositories, refusals with their codes; and uploads (`uploads`).

mod uploads;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use serde_json::json;

use self::uploads::Uploads;
use super::packages::{hex, sha256};
use super::scripted::{Recorded, Reply, Server};

/// The hub and the host it keeps large files on.
pub(crate) struct HubServer {
    pub(crate) api: Server,
    pub(crate) storage: Server,
    repos: Arc<Mutex<BTreeMap<String, FakeRepo>>>,
    faults: Arc<Mutex<VecDeque<Fault>>>,
    uploads: Arc<Mutex<Uploads>>,
}

/// Paths, contents, and whether they are kept on the other host.
type Files = BTreeMap<String, (Vec<u8>, bool)>;

/// A repository at its newest commit.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeRepo {
    pub(crate) commit: String,
    files: Files,
    /// Branches but `main`, with their newest commits.
    branches: BTreeMap<String, (String, Files)>,
    /// Whether it was made to be private.
    pub(crate) private: bool,
    /// What was said about each commit made here.
    pub(crate) messages: Vec<String>,
    /// Who may see it, if not everybody.
    token: Option<String>,
    gated: bool,
}

impl FakeRepo {
    pub(crate) fn new(commit: &str) -> Self {
        Self {
            commit: commit.to_owned(),
            ..Self::default()
        }
    }

    pub(crate) fn with_file(mut self, path: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.files.insert(path.to_owned(), (bytes.into(), false));
        self
    }

    /// A file that is kept on the other host.
    pub(crate) fn with_large_file(mut self, path: &str, bytes: impl Into<Vec<u8>>) -> Self {
        self.files.insert(path.to_owned(), (bytes.into(), true));
        self
    }

    /// A file of a branch, and whether it is kept on the other host.
    pub(crate) fn file(&self, branch: &str, path: &str) -> Option<(&[u8], bool)> {
        let files = match branch {
            "main" => &self.files,
            _ => &self.branches.get(branch)?.1,
        };
        files
            .get(path)
            .map(|(bytes, large)| (bytes.as_slice(), *large))
    }

    pub(crate) fn paths(&self, branch: &str) -> Vec<&str> {
        let files = match branch {
            "main" => &self.files,
            _ => &self.branches[branch].1,
        };
        files.keys().map(String::as_str).collect()
    }

    pub(crate) fn gated_for(mut self, token: &str) -> Self {
        self.gated = true;
        self.private_for(token)
    }

    pub(crate) fn private_for(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }
}

/// What goes wrong with the next answer of the storage host.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The connection ends after so many bytes of the body.
    CutAfter(usize),
    /// One byte is another.
    Damaged,
    /// It does not know ranges.
    NoRange,
    /// A 503 that asks to come back at once.
    Busy,
}

impl HubServer {
    pub(crate) fn start() -> Self {
        let (api, storage) = (Server::start(), Server::start());
        let repos = Arc::new(Mutex::new(BTreeMap::<String, FakeRepo>::new()));
        let faults = Arc::new(Mutex::new(VecDeque::new()));
        let uploads = Arc::new(Mutex::new(Uploads::new(&api.url(), &storage.url())));
        let (known, elsewhere) = (Arc::clone(&repos), storage.url());
        let taking = Arc::clone(&uploads);
        api.otherwise(move |request| {
            let mut repos = known.lock().unwrap();
            let taken = taking.lock().unwrap().answer(&mut repos, request);
            taken.unwrap_or_else(|| answer(&repos, &elsewhere, request))
        });
        let (known, coming) = (Arc::clone(&repos), Arc::clone(&faults));
        let taking = Arc::clone(&uploads);
        storage.otherwise(move |request| {
            let fault = coming.lock().unwrap().pop_front();
            match request.method.as_str() {
                "PUT" => taking.lock().unwrap().put(request, fault),
                _ => stored(&known.lock().unwrap(), request, fault),
            }
        });
        Self {
            api,
            storage,
            repos,
            faults,
            uploads,
        }
    }

    /// Lets the bearer of a token write, under this name.
    pub(crate) fn let_write(&self, token: &str, name: &str) {
        self.uploads.lock().unwrap().let_write(token, name);
    }

    /// Asks for large files in parts of so many bytes. Default: whole.
    pub(crate) fn want_parts(&self, bytes: usize) {
        self.uploads.lock().unwrap().want_parts(bytes);
    }

    /// What a repository holds now.
    pub(crate) fn repo(&self, name: &str) -> Option<FakeRepo> {
        self.repos.lock().unwrap().get(name).cloned()
    }

    pub(crate) fn url(&self) -> String {
        self.api.url()
    }

    pub(crate) fn put(&self, name: &str, repo: FakeRepo) {
        self.repos.lock().unwrap().insert(name.to_owned(), repo);
    }

    pub(crate) fn fail(&self, fault: Fault) {
        self.faults.lock().unwrap().push_back(fault);
    }
}

fn refused(status: u16, code: &str, message: &str) -> Reply {
    Reply::json(&json!({"error": message}))
        .with_status(status)
        .with_header("x-error-code", code)
        .with_header("x-error-message", message)
}

fn answer(repos: &BTreeMap<String, FakeRepo>, storage: &str, request: &Recorded) -> Reply {
    let path = request.path.trim_start_matches('/');
    let is_listing = path.starts_with("api/models/");
    let path = path.trim_start_matches("api/models/");
    let word = if is_listing {
        "/revision/"
    } else {
        "/resolve/"
    };
    let Some((name, rest)) = path.split_once(word) else {
        return Reply::status(404);
    };
    let token = request
        .header("authorization")
        .and_then(|value| value.strip_prefix("Bearer "));
    let Some(repo) = repos.get(name) else {
        // The real hub does not tell strangers what is private and what is not there.
        let status = if token.is_some() { 404 } else { 401 };
        return refused(status, "RepoNotFound", "Repository not found");
    };
    match (&repo.token, token) {
        (Some(wanted), given) if given != Some(wanted) => {
            return match (repo.gated, given) {
                (true, Some(_)) => refused(403, "GatedRepo", "you are not in the authorized list"),
                (true, None) => refused(401, "GatedRepo", "Access is restricted"),
                (false, Some(_)) => refused(404, "RepoNotFound", "Repository not found"),
                (false, None) => refused(401, "RepoNotFound", "Repository not found"),
            };
        }
        _ => {}
    }
    let (revision, file) = rest.split_once('/').unwrap_or((rest, ""));
    let branch = repo.branches.iter().find(|(name, (commit, _))| {
        // A pull request's branch has slashes in its name.
        revision == name.replace('/', "%2F") || revision == commit
    });
    let at_branch;
    let repo = match branch {
        Some((_, (commit, files))) => {
            at_branch = FakeRepo {
                commit: commit.clone(),
                files: files.clone(),
                ..FakeRepo::default()
            };
            &at_branch
        }
        None if revision == "main" || revision == repo.commit => repo,
        None => return refused(404, "RevisionNotFound", "Invalid rev id"),
    };
    if is_listing {
        let siblings: Vec<_> = repo
            .files
            .keys()
            .map(|path| json!({"rfilename": path}))
            .collect();
        return Reply::json(&json!({"id": name, "sha": repo.commit, "siblings": siblings}));
    }
    match repo.files.get(&file.replace("%20", " ")) {
        Some((bytes, large)) => resolved(request, repo, bytes, *large, storage),
        None => refused(404, "EntryNotFound", "Entry not found")
            .with_header("x-repo-commit", &repo.commit),
    }
}

fn resolved(
    request: &Recorded,
    repo: &FakeRepo,
    bytes: &[u8],
    large: bool,
    storage: &str,
) -> Reply {
    let is_head = request.method == "HEAD";
    let length = bytes.len().to_string();
    let reply = match (large, is_head) {
        (true, _) => {
            let digest = sha256(bytes);
            Reply::status(302)
                .with_header(
                    "location",
                    &format!("{storage}/blobs/{digest}?signature=secret"),
                )
                .with_header("x-linked-etag", &format!("\"{digest}\""))
                .with_header("x-linked-size", &length)
                .with_header("etag", "\"of-the-link\"")
        }
        (false, true) => Reply::status(200).with_header("content-length", &length),
        (false, false) => Reply::bytes("application/octet-stream", bytes),
    };
    let reply = match large {
        true => reply,
        false => reply.with_header("etag", &format!("\"{}\"", git_sha1(bytes))),
    };
    reply.with_header("x-repo-commit", &repo.commit)
}

fn stored(repos: &BTreeMap<String, FakeRepo>, request: &Recorded, fault: Option<Fault>) -> Reply {
    let files = repos.values().flat_map(|repo| {
        let branches = repo.branches.values().flat_map(|(_, files)| files.values());
        repo.files.values().chain(branches)
    });
    let wanted = request.path.trim_start_matches("/blobs/");
    let found = files
        .filter(|(_, large)| *large)
        .find(|(bytes, _)| sha256(bytes) == wanted);
    let Some((bytes, _)) = found else {
        return Reply::status(404);
    };
    let range = request.header("range").and_then(|range| {
        range
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse::<usize>()
            .ok()
    });
    let total = bytes.len();
    let reply = match (range, fault) {
        (_, Some(Fault::Busy)) => return Reply::status(503).with_header("retry-after", "0"),
        (Some(from), _) if from >= total => return Reply::status(416),
        (Some(from), fault) if !matches!(fault, Some(Fault::NoRange)) => {
            Reply::bytes("application/octet-stream", &bytes[from..])
                .with_status(206)
                .with_header(
                    "content-range",
                    &format!("bytes {from}-{}/{total}", total - 1),
                )
        }
        _ => Reply::bytes("application/octet-stream", bytes.as_slice()),
    };
    match fault {
        Some(Fault::CutAfter(count)) => reply.cut_before_end(total - range.unwrap_or(0) - count),
        Some(Fault::Damaged) => {
            let mut damaged = bytes.clone();
            damaged[0] ^= 1;
            Reply::bytes("application/octet-stream", damaged)
        }
        _ => reply,
    }
}

/// Git's name of a file's content.
pub(crate) fn git_sha1(bytes: &[u8]) -> String {
    let mut whole = format!("blob {}\0", bytes.len()).into_bytes();
    whole.extend_from_slice(bytes);
    hex(ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &whole).as_ref())
}
