//! Large files, sent to where the hub keeps them: whole, or in parts if it asks for parts.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::Repo;
use super::push::{Addition, BATCH, Desk};
use crate::error::{Context, Error, Result};
use crate::transport::{Body, Source};
use crate::wire::route::Method;

const LFS: &str = "application/vnd.git-lfs+json";
/// More parts than any store takes.
const MOST_PARTS: u64 = 10_000;

#[derive(Deserialize)]
struct Batch {
    objects: Vec<Object>,
}

/// What the hub says about one file.
#[derive(Deserialize)]
struct Object {
    oid: String,
    /// None: the hub has it already.
    #[serde(default)]
    actions: Option<Actions>,
    #[serde(default)]
    error: Option<Problem>,
}

#[derive(Deserialize)]
struct Problem {
    message: String,
}

#[derive(Deserialize)]
struct Actions {
    upload: Action,
    #[serde(default)]
    verify: Option<Action>,
}

#[derive(Deserialize)]
struct Action {
    href: String,
    /// Beside headers, the size of parts and a URL for each part's number.
    #[serde(default)]
    header: BTreeMap<String, Value>,
}

/// Sends the large ones among these files, but those the hub has.
pub(super) fn upload(repo: &Repo, desk: &Desk<'_>, files: &[Addition]) -> Result<()> {
    let large: Vec<&Addition> = files.iter().filter(|file| file.large).collect();
    for batch in large.chunks(BATCH) {
        let digests = batch.iter().map(|file| file.digest());
        let digests: Vec<String> = digests.collect::<Result<_>>()?;
        let objects = ask(repo, desk, batch, &digests)?;
        for (file, digest) in batch.iter().zip(&digests) {
            let object = objects.iter().find(|object| object.oid == *digest);
            let object = object.ok_or_else(|| unclear(file, "says nothing about it"))?;
            if let Some(problem) = &object.error {
                let message = format!("the hub does not take {}: {}", file.path, problem.message);
                return Err(Error::Reply(Context::new(message)));
            }
            if let Some(actions) = &object.actions {
                send(desk, file, digest, actions)?;
            }
            desk.report(file, file.size);
        }
    }
    Ok(())
}

fn ask(
    repo: &Repo,
    desk: &Desk<'_>,
    files: &[&Addition],
    digests: &[String],
) -> Result<Vec<Object>> {
    let objects = files.iter().zip(digests);
    let objects: Vec<Value> = objects
        .map(|(file, digest)| json!({"oid": digest, "size": file.size}))
        .collect();
    let question = json!({"operation": "upload", "transfers": ["basic", "multipart"],
        "objects": objects, "hash_algo": "sha256", "ref": {"name": repo.revision}});
    let url = format!("{}.git/info/lfs/objects/batch", repo.page());
    let batch: Batch = desk.read(&post(desk, &url, &question)?)?;
    Ok(batch.objects)
}

fn post(desk: &Desk<'_>, url: &str, value: &Value) -> Result<crate::transport::Response> {
    let text = value.to_string();
    let body = Body::Raw {
        content_type: LFS,
        source: Source::Bytes(text.as_bytes()),
    };
    desk.repeated(Method::Post, url, &body, LFS)
}

fn send(desk: &Desk<'_>, file: &Addition, digest: &str, actions: &Actions) -> Result<()> {
    let upload = &actions.upload;
    match upload.header.get("chunk_size") {
        None => put(desk, file, &upload.href, 0, file.size).map(drop)?,
        Some(size) => {
            let parts = parts(file, size, &upload.header)?;
            let mut etags = Vec::new();
            for (index, part) in parts.iter().enumerate() {
                let etag = put(desk, file, part.url, part.from, part.length)?;
                let etag = etag.ok_or_else(|| unclear(file, "does not confirm a part"))?;
                etags.push(json!({"partNumber": index + 1, "etag": etag}));
                desk.report(file, part.from + part.length);
            }
            post(desk, &upload.href, &json!({"oid": digest, "parts": etags}))?;
        }
    }
    if let Some(verify) = &actions.verify {
        post(
            desk,
            &verify.href,
            &json!({"oid": digest, "size": file.size}),
        )?;
    }
    Ok(())
}

/// Some bytes of a file to where they belong; what the store calls them.
fn put(
    desk: &Desk<'_>,
    file: &Addition,
    url: &str,
    from: u64,
    length: u64,
) -> Result<Option<String>> {
    let body = Body::Slice {
        path: &file.place,
        from,
        length,
    };
    let answer = desk.repeated(Method::Put, url, &body, "*/*")?;
    let etag = answer.header("etag").filter(|etag| !etag.is_empty());
    Ok(etag.map(str::to_owned))
}

#[derive(Debug, PartialEq, Eq)]
struct Part<'a> {
    url: &'a str,
    from: u64,
    length: u64,
}

/// The parts the hub wants, if they make up the file.
fn parts<'a>(
    file: &Addition,
    size: &Value,
    header: &'a BTreeMap<String, Value>,
) -> Result<Vec<Part<'a>>> {
    let size = match size {
        Value::String(text) => text.parse().ok(),
        number => number.as_u64(),
    };
    let Some(size) = size.filter(|size| *size > 0) else {
        return Err(unclear(file, "wants parts of no size"));
    };
    let mut urls: Vec<(u64, &str)> = header
        .iter()
        .filter_map(|(name, url)| Some((name.parse().ok()?, url.as_str()?)))
        .collect();
    urls.sort_unstable();
    let count = file.size.div_ceil(size);
    if urls.len() as u64 != count || count > MOST_PARTS {
        return Err(unclear(file, "wants parts that do not make it up"));
    }
    let part = |(index, (_, url)): (usize, (u64, &'a str))| {
        let from = index as u64 * size;
        let length = size.min(file.size - from);
        Part { url, from, length }
    };
    Ok(urls.into_iter().enumerate().map(part).collect())
}

fn unclear(file: &Addition, problem: &str) -> Error {
    let message = format!("{} cannot be uploaded: the hub {problem}", file.path);
    Error::Reply(Context::new(message))
}
