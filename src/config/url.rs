//! Base URLs in their normal form.

use std::fmt;

use super::DEFAULT_BASE_URL;
use crate::error::{Context, Error, Result};
use crate::types::url::Url;

/// A URL as it was given. `Debug` hides its user information and its query, which may hold a
/// password or a key.
#[derive(Clone)]
pub(crate) struct UrlText(String);

impl UrlText {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for UrlText {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl fmt::Debug for UrlText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&masked(&self.0), f)
    }
}

/// What may be shown of a URL that somebody has given, well-formed or not.
fn masked(url: &str) -> String {
    let (url, query) = match url.find(['?', '#']) {
        Some(end) => (&url[..end], "?***"),
        None => (url, ""),
    };
    match (Url::split(url), url.rsplit_once('@')) {
        (Some(parts), _) if parts.user().is_some() => {
            let (scheme, address, rest) = (parts.scheme, parts.address(), parts.rest);
            format!("{scheme}://***@{address}{rest}{query}")
        }
        (None, Some((_, address))) => format!("***@{address}{query}"),
        _ => format!("{url}{query}"),
    }
}

/// Host and port of a URL, without user information.
pub(super) fn host_of(url: &str) -> Option<&str> {
    Url::split(url).map(Url::address)
}

/// The password a URL carries; a proxy's may have no scheme.
pub(super) fn password_of(url: &str) -> Option<&str> {
    let user = match Url::split(url) {
        Some(url) => url.user()?,
        None => url.rsplit_once('@')?.0,
    };
    user.split_once(':').map(|(_, password)| password)
}

/// Checks a base URL and removes its trailing slashes.
pub(super) fn normal_url(url: &str) -> Result<String> {
    let refuse = |problem: &str| {
        let shown = masked(url);
        Err(Error::Config(Context::new(format!(
            "the base URL `{shown}` {problem}; give one such as {DEFAULT_BASE_URL} or http://127.0.0.1:8000"
        ))))
    };
    let Some(parts) = Url::split(url) else {
        return refuse("has no scheme (http:// or https://)");
    };
    if !["http", "https"].contains(&parts.scheme.to_ascii_lowercase().as_str()) {
        return refuse("is neither http nor https");
    }
    if parts.rest.contains(['?', '#']) {
        return refuse("must not have a query or a fragment");
    }
    if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return refuse("contains white space");
    }
    if parts.user().is_some() {
        return refuse("must not carry a user or password; set the API key instead");
    }
    let (host, port) = parts.host_and_port();
    if host.is_empty() {
        return refuse("has no host");
    }
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return refuse("has a port that is not a number up to 65535");
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// Scheme, host and port: who is spoken to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) scheme: &'static str,
    host: String,
    port: u16,
}

/// The origin of an `http` or `https` URL.
pub(crate) fn origin(url: &str) -> Option<Origin> {
    let url = Url::split(url)?;
    let (scheme, default_port) = match url.scheme.to_ascii_lowercase().as_str() {
        "http" => ("http", 80),
        "https" => ("https", 443),
        _ => return None,
    };
    let (host, port) = url.host_and_port();
    let port = match port {
        Some(port) => port.parse().ok()?,
        None => default_port,
    };
    (!host.is_empty()).then(|| Origin {
        scheme,
        host: host.to_ascii_lowercase(),
        port,
    })
}
