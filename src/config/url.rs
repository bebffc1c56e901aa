//! Base URLs in their normal form.

use super::DEFAULT_BASE_URL;
use crate::error::{Context, Error, Result};

/// Host and port of a URL, without user information.
pub(super) fn host_of(url: &str) -> Option<&str> {
    let rest = url.split_once("://")?.1;
    let authority = rest.split(['/', '?', '#']).next()?;
    Some(
        authority
            .rsplit_once('@')
            .map_or(authority, |(_, host)| host),
    )
}

/// The password a URL carries.
pub(super) fn password_of(url: &str) -> Option<&str> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next()?;
    let (user, _) = authority.rsplit_once('@')?;
    user.split_once(':').map(|(_, password)| password)
}

/// Checks a base URL and removes its trailing slashes.
pub(super) fn normal_url(url: &str) -> Result<String> {
    let refuse = |problem: &str| {
        // The URL may carry a password, so only its host is shown.
        let shown = host_of(url).filter(|_| url.contains('@')).unwrap_or(url);
        Err(Error::Config(Context::new(format!(
            "the base URL `{shown}` {problem}; give one such as {DEFAULT_BASE_URL} or http://127.0.0.1:8000"
        ))))
    };
    let Some((scheme, rest)) = url.split_once("://") else {
        return refuse("has no scheme (http:// or https://)");
    };
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return refuse("is neither http nor https");
    }
    if rest.contains(['?', '#']) {
        return refuse("must not have a query or a fragment");
    }
    if rest.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return refuse("contains white space");
    }
    let authority = rest.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return refuse("must not carry a user or password; set the API key instead");
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (authority, None),
    };
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
    let (scheme, rest) = url.split_once("://")?;
    let (scheme, default_port) = match scheme.to_ascii_lowercase().as_str() {
        "http" => ("http", 80),
        "https" => ("https", 443),
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    let authority = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host);
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (authority, default_port),
    };
    (!host.is_empty()).then(|| Origin {
        scheme,
        host: host.to_ascii_lowercase(),
        port,
    })
}
