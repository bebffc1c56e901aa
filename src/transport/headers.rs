//! The headers of a request: defaults, the client's overrides, the call's own, the key.

use std::time::Duration;

use ureq::http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_TYPE, RANGE, USER_AGENT};
use ureq::http::{HeaderMap, HeaderName, HeaderValue};

use super::fault::{Fault, FaultKind};
use super::request::{Auth, Body, Request};
use crate::config::{Config, Secret};
use crate::error::{Context, Error, Result};
use crate::wire::route::Method;

pub(super) const IDEMPOTENCY_KEY: &str = "x-idempotency-key";

/// A key that makes repeated attempts of one request recognisable.
pub(crate) fn new_idempotency_key() -> String {
    format!("tinker-sdk-retry-{}", uuid::Uuid::new_v4())
}

/// What every request of a client carries.
#[derive(Debug)]
pub(super) struct Defaults {
    /// The defaults with the client's overrides on top.
    headers: HeaderMap,
}

impl Defaults {
    pub(super) fn new(config: &Config) -> Result<Self> {
        let mut headers = HeaderMap::new();
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
        Ok(Self { headers })
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
                let kind = HeaderValue::from_static("application/x-protobuf");
                headers.insert(CONTENT_TYPE, kind);
                if zstd {
                    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("zstd"));
                }
            }
            Body::Raw { content_type, .. } => set(&mut headers, "content-type", content_type)?,
            // Its boundary is known when the form is built.
            Body::Multipart(_) => {}
        }
        if let Some(accept) = request.accept {
            set(&mut headers, "accept", accept)?;
        }
        if request.method != Method::Get {
            match request.idempotency_key {
                Some(key) => set(&mut headers, IDEMPOTENCY_KEY, key)?,
                None => set(&mut headers, IDEMPOTENCY_KEY, &new_idempotency_key())?,
            }
        }
        for (name, value) in &request.headers {
            set(&mut headers, name, value)?;
        }
        set(
            &mut headers,
            "x-stainless-retry-count",
            &request.retry_count.to_string(),
        )?;
        if let Some(limit) = read_timeout {
            let seconds = limit.as_secs_f64().to_string();
            set(&mut headers, "x-stainless-read-timeout", &seconds)?;
        }
        if let Auth::Key(key) = request.auth {
            set(&mut headers, "X-API-Key", key.expose())?;
        }
        Ok(headers)
    }
}

/// What another host may see.
pub(super) fn for_stranger(headers: &HeaderMap) -> HeaderMap {
    [ACCEPT, RANGE, USER_AGENT]
        .into_iter()
        .filter_map(|name| headers.get(&name).cloned().map(|value| (name, value)))
        .collect()
}

/// The configured values that must not be shown.
pub(super) fn secrets(config: &Config) -> Vec<Secret> {
    config
        .cloudflare_secret
        .iter()
        .filter(|secret| !secret.expose().is_empty())
        .cloned()
        .collect()
}

fn insert(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), String> {
    let parsed = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("`{name}` is not a header name: letters, digits and `-` are"))?;
    let mut value = HeaderValue::from_str(value)
        .map_err(|_| format!("the value of `{name}` has characters a header cannot carry"))?;
    value.set_sensitive(true);
    headers.insert(parsed, value);
    Ok(())
}

fn set(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), Fault> {
    insert(headers, name, value).map_err(|problem| Fault::new(FaultKind::Request, problem))
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
