//! The headers of a request: defaults, the client's overrides, the call's own, the key.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ureq::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, RANGE, USER_AGENT,
};
use ureq::http::{HeaderMap, HeaderName, HeaderValue};

use super::fault::{Fault, FaultKind};
use super::request::{Auth, Body, Request};
use crate::config::Config;
use crate::error::{Context, Error, Result};
use crate::wire::reply::PROTOBUF;
use crate::wire::route::Method;

// Names made once: a name made from text is looked up, lowered and copied for every request.
pub(super) const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("x-idempotency-key");
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const RETRY_COUNT: HeaderName = HeaderName::from_static("x-stainless-retry-count");
const READ_TIMEOUT: HeaderName = HeaderName::from_static("x-stainless-read-timeout");

/// What every request of a client carries.
#[derive(Debug)]
pub(super) struct Defaults {
    /// The defaults with the client's overrides on top.
    headers: HeaderMap,
    /// Where the idempotency keys of this client begin, and how many there were. The system is
    /// asked for randomness once: no two keys of a client are equal, and those of two clients are
    /// far apart.
    first_key: u128,
    keys: AtomicU64,
}

impl Defaults {
    pub(super) fn new(config: &Config) -> Result<Self> {
        // With room for what requests add to their copies.
        let mut headers = HeaderMap::with_capacity(24);
        let fixed = [
            ("accept", "application/json"),
            ("content-type", "application/json"),
            ("user-agent", super::USER_AGENT),
            ("x-stainless-package-version", super::PROTOCOL_VERSION),
            ("x-stainless-os", os()),
            ("x-stainless-arch", arch()),
            ("x-stainless-runtime", "rust"),
            (
                "x-stainless-runtime-version",
                env!("CARGO_PKG_RUST_VERSION"),
            ),
            ("x-stainless-async", "false"),
        ];
        for (name, value) in fixed {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let cloudflare = [
            ("CF-Access-Client-Id", &config.cloudflare_id),
            ("CF-Access-Client-Secret", &config.cloudflare_secret),
        ];
        for (name, value) in cloudflare {
            if let Some(value) = value {
                insert(&mut headers, name, value.expose()).map_err(refused)?;
            }
        }
        for (name, value) in &config.headers {
            insert(&mut headers, name, value.expose()).map_err(refused)?;
        }
        Ok(Self {
            headers,
            first_key: uuid::Uuid::new_v4().as_u128(),
            keys: AtomicU64::new(0),
        })
    }

    /// A key that makes repeated attempts of one request recognisable.
    pub(super) fn new_idempotency_key(&self) -> String {
        let count = self.keys.fetch_add(1, Ordering::Relaxed);
        let bytes = self.first_key.wrapping_add(count.into()).to_be_bytes();
        let id = uuid::Builder::from_random_bytes(bytes).into_uuid();
        format!("tinker-sdk-retry-{id}")
    }

    pub(super) fn for_request(
        &self,
        request: &Request<'_>,
        read_timeout: Option<Duration>,
    ) -> Result<HeaderMap, Fault> {
        let mut headers = self.headers.clone();
        match request.body {
            _ if request.method == Method::Get => {
                headers.remove(CONTENT_TYPE);
            }
            Body::Json(_) | Body::Empty => {}
            Body::Proto { zstd, .. } => {
                let kind = HeaderValue::from_static(PROTOBUF);
                headers.insert(CONTENT_TYPE, kind);
                if zstd {
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
                }
            }
            Body::Raw { content_type, .. } => {
                headers.insert(CONTENT_TYPE, value_of(&CONTENT_TYPE, content_type)?);
            }
            #[cfg(feature = "text")]
            Body::Slice { .. } => {
                headers.remove(CONTENT_TYPE);
            }
            // Its boundary is known when the form is built.
            Body::Multipart(_) => {}
        }
        if let Some(accept) = request.accept {
            headers.insert(ACCEPT, value_of(&ACCEPT, accept)?);
        }
        if request.method != Method::Get {
            let key = match request.idempotency_key {
                Some(key) => value_of(&IDEMPOTENCY_KEY, key)?,
                None => value_of(&IDEMPOTENCY_KEY, &self.new_idempotency_key())?,
            };
            headers.insert(IDEMPOTENCY_KEY, key);
        }
        for (name, value) in &request.headers {
            insert(&mut headers, name, value).map_err(unsendable)?;
        }
        headers.insert(RETRY_COUNT, request.retry_count.into());
        if let Some(limit) = read_timeout {
            let seconds = match limit.subsec_nanos() {
                0 => limit.as_secs().into(),
                _ => value_of(&READ_TIMEOUT, &limit.as_secs_f64().to_string())?,
            };
            headers.insert(READ_TIMEOUT, seconds);
        }
        if let Auth::Key(key) = request.auth {
            headers.insert(API_KEY, value_of(&API_KEY, key.expose())?);
        }
        Ok(headers)
    }
}

/// What another host may see.
pub(super) fn for_stranger(headers: &HeaderMap) -> HeaderMap {
    kept(headers, &[ACCEPT, RANGE, USER_AGENT])
}

/// What a host that is not the service's may see, of a client that is set up for it.
pub(super) fn for_foreign(headers: &HeaderMap) -> HeaderMap {
    kept(
        headers,
        &[ACCEPT, AUTHORIZATION, CONTENT_TYPE, RANGE, USER_AGENT],
    )
}

fn kept(headers: &HeaderMap, names: &[HeaderName]) -> HeaderMap {
    names
        .iter()
        .cloned()
        .filter_map(|name| headers.get(&name).cloned().map(|value| (name, value)))
        .collect()
}

fn insert(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), String> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("`{name}` is not a header name: letters, digits and `-` are"))?;
    headers.insert(parsed, sensitive(name, value)?);
    Ok(())
}

/// A value that is shown to nobody, whatever it holds.
fn sensitive(name: &str, value: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| format!("the value of `{name}` has characters a header cannot carry"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn value_of(name: &HeaderName, value: &str) -> Result<HeaderValue, Fault> {
    sensitive(name.as_str(), value).map_err(unsendable)
}

fn unsendable(problem: String) -> Fault {
    Fault::new(FaultKind::Request, problem)
}

fn refused(problem: String) -> Error {
    Error::Config(Context::new(problem))
}

fn os() -> &'static str {
    match std::env::consts::OS {
        "linux" => "Linux",
        "macos" => "MacOS",
        "windows" => "Windows",
        "ios" => "iOS",
        "android" => "Android",
        "freebsd" => "FreeBSD",
        "openbsd" => "OpenBSD",
        _ => "Unknown",
    }
}

fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "x64",
        "x86" => "x32",
        "aarch64" => "arm64",
        "arm" => "arm",
        _ => "unknown",
    }
}
