//! How the hub takes what it is given: who may write, which files are kept apart, uploads whole
//! and in parts, commits, branches and pull requests. What `huggingface_hub` sends is taken too.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use super::super::packages::{hex, sha256};
use super::super::scripted::{Recorded, Reply};
use super::{FakeRepo, Fault, Files, git_sha1, refused};

type Repos = BTreeMap<String, FakeRepo>;

/// What has been sent and not yet committed.
pub(super) struct Uploads {
    url: String,
    storage: String,
    /// Tokens and their owners' names.
    writers: BTreeMap<String, String>,
    part_size: Option<usize>,
    parts: BTreeMap<(String, usize), Vec<u8>>,
    blobs: BTreeMap<String, Vec<u8>>,
    commits: u32,
}

impl Uploads {
    pub(super) fn new(url: &str, storage: &str) -> Self {
        Self {
            url: url.to_owned(),
            storage: storage.to_owned(),
            writers: BTreeMap::new(),
            part_size: None,
            parts: BTreeMap::new(),
            blobs: BTreeMap::new(),
            commits: 0,
        }
    }

    pub(super) fn let_write(&mut self, token: &str, name: &str) {
        self.writers.insert(token.to_owned(), name.to_owned());
    }

    pub(super) fn want_parts(&mut self, bytes: usize) {
        self.part_size = Some(bytes);
    }

    /// An answer, if the request is about uploads.
    pub(super) fn answer(&mut self, repos: &mut Repos, request: &Recorded) -> Option<Reply> {
        let path = request.path.as_str();
        if path.starts_with("/lfs/complete/") {
            return Some(self.complete(request));
        }
        let words = ["/preupload/", "/branch/", "/commit/"];
        let about = path == "/api/whoami-v2"
            || path == "/api/repos/create"
            || path == "/api/validate-yaml"
            || path.starts_with("/lfs/")
            || path.ends_with(".git/info/lfs/objects/batch")
            || words.iter().any(|word| path.contains(word));
        if !about || (request.method == "GET" && path != "/api/whoami-v2") {
            return None;
        }
        let token = request.header("authorization").unwrap_or_default();
        let token = token.strip_prefix("Bearer ").unwrap_or_default();
        let Some(name) = self.writers.get(token).cloned() else {
            return Some(refused(
                401,
                "",
                "Invalid credentials in Authorization header",
            ));
        };
        Some(match path {
            "/api/whoami-v2" => Reply::json(&json!({"type": "user", "name": name})),
            "/api/validate-yaml" => Reply::json(&json!({"errors": [], "warnings": []})),
            "/api/repos/create" => self.create(repos, &name, &request.json()),
            "/lfs/verify" => {
                let oid = request.json()["oid"].as_str().unwrap().to_owned();
                Reply::status(if self.blobs.contains_key(&oid) {
                    200
                } else {
                    404
                })
            }
            _ if path.ends_with("/batch") => self.batch(&request.json()),
            _ => {
                let rest = path.trim_start_matches("/api/models/");
                let word = words.iter().find(|word| rest.contains(**word)).unwrap();
                let (name, revision) = rest.split_once(word).unwrap();
                let revision = revision.replace("%2F", "/");
                let Some(repo) = repos.get_mut(name) else {
                    return Some(refused(404, "RepoNotFound", "Repository not found"));
                };
                self.change(name, repo, word, &revision, request)
            }
        })
    }

    fn create(&self, repos: &mut Repos, owner: &str, body: &Value) -> Reply {
        let space = body["organization"].as_str().unwrap_or(owner);
        let name = format!("{space}/{}", body["name"].as_str().unwrap());
        if space != owner {
            return refused(403, "", "You don't have the rights to create a model there");
        }
        let url = format!("{}/{name}", self.url);
        if repos.contains_key(&name) {
            let error = "You already created this model repo";
            return Reply::json(&json!({"error": error, "url": url})).with_status(409);
        }
        let repo = FakeRepo {
            private: body["visibility"] == "private" || body["private"] == true,
            ..FakeRepo::new(&"0".repeat(40))
        };
        repos.insert(name, repo.with_file(".gitattributes", "*.bin filter=lfs\n"));
        Reply::json(&json!({ "url": url }))
    }

    fn change(
        &mut self,
        name: &str,
        repo: &mut FakeRepo,
        word: &str,
        revision: &str,
        request: &Recorded,
    ) -> Reply {
        let files = match revision {
            "main" => Some(&repo.files),
            other => repo.branches.get(other).map(|(_, files)| files),
        };
        match (word, files) {
            ("/branch/", Some(_)) => refused(409, "", "Reference already exists"),
            ("/branch/", None) => {
                let start = (repo.commit.clone(), repo.files.clone());
                repo.branches.insert(revision.to_owned(), start);
                Reply::json(&json!({}))
            }
            (_, None) => refused(404, "RevisionNotFound", "Invalid rev id"),
            ("/preupload/", Some(files)) => modes(files, &request.json()),
            (_, Some(files)) => {
                let files = files.clone();
                let is_pr = request.query.contains("create_pr=1");
                self.commit(name, repo, revision, files, request, is_pr)
            }
        }
    }

    fn commit(
        &mut self,
        name: &str,
        repo: &mut FakeRepo,
        revision: &str,
        mut files: Files,
        request: &Recorded,
        is_pr: bool,
    ) -> Reply {
        assert_eq!(request.header("content-type"), Some("application/x-ndjson"));
        let text = String::from_utf8(request.body.clone()).unwrap();
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let value = &line["value"];
            let path = value["path"].as_str().unwrap_or_default().to_owned();
            match line["key"].as_str().unwrap() {
                "header" => repo
                    .messages
                    .push(value["summary"].as_str().unwrap().to_owned()),
                "file" => {
                    let bytes = BASE64.decode(value["content"].as_str().unwrap()).unwrap();
                    files.insert(path, (bytes, false));
                }
                "lfsFile" => {
                    let oid = value["oid"].as_str().unwrap();
                    let Some(bytes) = self.blobs.get(oid) else {
                        return refused(
                            400,
                            "",
                            "LFS pointer pointed to a file that does not exist",
                        );
                    };
                    files.insert(path, (bytes.clone(), true));
                }
                other => panic!("{other} is not known"),
            }
        }
        self.commits += 1;
        let commit = format!("{:040x}", self.commits);
        let url = format!("{}/{name}/commit/{commit}", self.url);
        let mut answer = json!({"success": true, "commitOid": commit, "commitUrl": url});
        let branch = match is_pr {
            true => {
                let number = repo.branches.len() + 1;
                answer["pullRequestUrl"] =
                    json!(format!("{}/{name}/discussions/{number}", self.url));
                format!("refs/pr/{number}")
            }
            false => revision.to_owned(),
        };
        match branch.as_str() {
            "main" => (repo.commit, repo.files) = (commit, files),
            _ => drop(repo.branches.insert(branch, (commit, files))),
        }
        Reply::json(&answer)
    }

    fn batch(&self, body: &Value) -> Reply {
        let objects = body["objects"].as_array().unwrap().iter().map(|object| {
            let oid = object["oid"].as_str().unwrap();
            let size = object["size"].as_u64().unwrap() as usize;
            let mut answer = json!({"oid": oid, "size": size});
            if self.blobs.contains_key(oid) {
                return answer;
            }
            let put = format!("{}/upload/{oid}", self.storage);
            let upload = match self.part_size.filter(|part| size > *part) {
                None => json!({"href": format!("{put}?signature=secret"), "header": {}}),
                Some(part) => {
                    let mut header = json!({"chunk_size": part.to_string()});
                    for number in 1..=size.div_ceil(part) {
                        let href = format!("{put}/{number}?signature=secret");
                        header[format!("{number:05}")] = json!(href);
                    }
                    json!({"href": format!("{}/lfs/complete/{oid}", self.url), "header": header})
                }
            };
            let verify = json!({"href": format!("{}/lfs/verify", self.url)});
            answer["actions"] = json!({"upload": upload, "verify": verify});
            answer
        });
        let objects: Vec<Value> = objects.collect();
        Reply::json(&json!({"transfer": "basic", "objects": objects}))
    }

    /// The storage host: a file, or a part of one.
    pub(super) fn put(&mut self, request: &Recorded, fault: Option<Fault>) -> Reply {
        assert!(
            request.header("authorization").is_none(),
            "a token at the storage host"
        );
        assert!(request.query.contains("signature=secret"));
        if matches!(fault, Some(Fault::Busy)) {
            return Reply::status(503).with_header("retry-after", "0");
        }
        let rest = request.path.trim_start_matches("/upload/");
        let bytes = request.body.clone();
        let etag = format!("\"{}\"", hex(&bytes[..bytes.len().min(4)]));
        match rest.split_once('/') {
            Some((oid, number)) => {
                let number = number.parse().unwrap();
                self.parts.insert((oid.to_owned(), number), bytes);
            }
            None if sha256(&bytes) != rest => return Reply::status(400),
            None => drop(self.blobs.insert(rest.to_owned(), bytes)),
        }
        Reply::status(200).with_header("etag", &etag)
    }

    /// Puts parts together, if they are all there and make up the file.
    fn complete(&mut self, request: &Recorded) -> Reply {
        let oid = request.path.trim_start_matches("/lfs/complete/").to_owned();
        let body = request.json();
        let mut whole = Vec::new();
        for (index, part) in body["parts"].as_array().unwrap().iter().enumerate() {
            assert_eq!(part["partNumber"], index + 1);
            let Some(bytes) = self.parts.get(&(oid.clone(), index + 1)) else {
                return Reply::status(400);
            };
            let etag = format!("\"{}\"", hex(&bytes[..bytes.len().min(4)]));
            assert_eq!(part["etag"], etag.as_str());
            whole.extend_from_slice(bytes);
        }
        if sha256(&whole) != oid || body["oid"] != oid.as_str() {
            return Reply::status(400);
        }
        self.blobs.insert(oid, whole);
        Reply::json(&json!({}))
    }
}

/// Which files are kept apart, which the repository ignores, and what it has of them.
fn modes(files: &Files, body: &Value) -> Reply {
    let ignored = files.get(".gitignore").map(|(bytes, _)| bytes.clone());
    let ignored = String::from_utf8(ignored.unwrap_or_default()).unwrap();
    let described = body["files"].as_array().unwrap().iter().map(|file| {
        let path = file["path"].as_str().unwrap();
        let sample = BASE64.decode(file["sample"].as_str().unwrap()).unwrap();
        assert!(sample.len() <= 512);
        let apart = [".bin", ".safetensors"]
            .iter()
            .any(|end| path.ends_with(end));
        let large = apart || file["size"].as_u64().unwrap() > 10_000_000;
        let oid = files.get(path).map(|(bytes, large)| match large {
            true => sha256(bytes),
            false => git_sha1(bytes),
        });
        json!({"path": path, "uploadMode": if large { "lfs" } else { "regular" },
            "shouldIgnore": ignored.lines().any(|line| line == path), "oid": oid})
    });
    let described: Vec<Value> = described.collect();
    Reply::json(&json!({ "files": described }))
}
