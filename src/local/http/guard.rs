//! Who may ask by way of a browser: pages of this server, and those that were let in by name.
//!
//! A browser sends requests for any page a user has open. What a page of another site asks for is
//! refused here by its `Origin` or `Sec-Fetch-Site`, and a name that was made to point at this
//! machine by its `Host`: only addresses and names known beforehand are answered to.

use std::net::IpAddr;

use hyper::header::{ACCESS_CONTROL_ALLOW_ORIGIN, HeaderName, VARY};
use hyper::{Method, StatusCode};

use super::{Refusal, Reply, Request};
use crate::error::{Error, Result};
use crate::types::url::{Url, host_and_port};
use crate::wire::reply::PROTOBUF;

/// The names this server answers to, and the sites whose pages may use it.
#[derive(Debug, Clone, Default)]
pub(in crate::local) struct Guard {
    /// Beside addresses and `localhost`, in lower case.
    pub(in crate::local) hosts: Vec<String>,
    /// Such as `https://example.org`.
    pub(in crate::local) origins: Vec<String>,
}

impl Guard {
    /// Refuses names and sites as no browser says them, which would let nobody in.
    pub(in crate::local) fn validate(&self) -> Result<()> {
        if let Some(name) = self.hosts.iter().find(|name| !is_host(name)) {
            let problem = format!("must be a host's name alone, such as gpu.lan, got {name:?}");
            return Err(Error::invalid("allow_host", problem));
        }
        if let Some(site) = self.origins.iter().find(|site| !is_origin(site)) {
            let problem = format!(
                "must be a site as browsers say it, such as https://example.org without anything \
                 after it, or null, got {site:?}"
            );
            return Err(Error::invalid("cors", problem));
        }
        Ok(())
    }

    /// Lets a request in; gives back the site it came from if that was allowed by name.
    pub(super) fn check(&self, request: &Request, scheme: &str) -> Result<Option<String>, Refusal> {
        let host = request.header("host").unwrap_or_default();
        if !host.is_empty() && !self.knows(host) {
            return Err(Refusal::forbidden(format!(
                "this server does not answer to the host {host:?}; it takes addresses, localhost \
                 and the names it was told to allow"
            )));
        }
        if let Some(origin) = request.header("origin") {
            if self.origins.iter().any(|allowed| allowed == origin) {
                return Ok(Some(origin.to_owned()));
            }
            if origin != format!("{scheme}://{host}") {
                return Err(Refusal::forbidden(format!(
                    "pages of {origin} may not use this server; start it so that they may"
                )));
            }
        }
        match request.header("sec-fetch-site") {
            None | Some("same-origin" | "none") => check_body_type(request).map(|()| None),
            // A link to the page may stand anywhere; the page itself can do nothing for its site.
            Some(_) if opens_page(request) => Ok(None),
            Some(_) => Err(Refusal::forbidden(
                "pages of other sites may not use this server",
            )),
        }
    }

    fn knows(&self, host: &str) -> bool {
        let name = host_and_port(host).0.to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        name == "localhost"
            || name.ends_with(".localhost")
            || address.parse::<IpAddr>().is_ok()
            || self.hosts.contains(&name)
    }
}

fn is_host(name: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    name.parse::<IpAddr>().is_ok() || (!name.is_empty() && name.bytes().all(is_of_name))
}

fn is_origin(site: &str) -> bool {
    let is_of_site =
        |byte: u8| byte.is_ascii_graphic() && !byte.is_ascii_uppercase() && byte != b'*';
    let is_bare = |url: Url<'_>| {
        let parts = [url.scheme, url.authority];
        parts.iter().all(|part| !part.is_empty()) && url.rest.is_empty() && url.user().is_none()
    };
    site == "null" || (site.bytes().all(is_of_site) && Url::split(site).is_some_and(is_bare))
}

/// Whether a browser opens the console's page in a window of its own.
fn opens_page(request: &Request) -> bool {
    request.method == Method::GET
        && request.path == "/"
        && request.header("sec-fetch-mode") == Some("navigate")
        && request.header("sec-fetch-dest") == Some("document")
}

/// A page can send any text to anywhere without being asked, but JSON only after asking.
fn check_body_type(request: &Request) -> Result<(), Refusal> {
    let empty = request
        .header("content-length")
        .is_none_or(|length| length == "0")
        && request.header("transfer-encoding").is_none();
    if empty {
        return Ok(());
    }
    let kind = request.header("content-type").unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let known = ["application/json", PROTOBUF, "application/protobuf"];
    if known.iter().any(|known| kind.eq_ignore_ascii_case(known)) {
        return Ok(());
    }
    let mut refusal = Refusal::bad(format!(
        "a body must come with the content type application/json, got {kind:?}"
    ));
    refusal.status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Err(refusal)
}

/// Whether a browser asks what it may send.
pub(super) fn is_preflight(request: &Request) -> bool {
    request.method == Method::OPTIONS && request.header("access-control-request-method").is_some()
}

/// The answer to a browser that asks what pages of an allowed site may send.
pub(super) fn preflight(request: &Request) -> Reply {
    let asked = request.header("access-control-request-headers");
    let named = HeaderName::from_static;
    Reply::empty()
        .with_header(
            named("access-control-allow-methods"),
            "GET, POST, PUT, DELETE",
        )
        .with_header(
            named("access-control-allow-headers"),
            asked.unwrap_or("content-type, x-api-key, authorization"),
        )
        .with_header(named("access-control-max-age"), "600")
}

/// Tells the browser that pages of this site may read the reply.
pub(super) fn allow(reply: Reply, origin: &str) -> Reply {
    reply
        .with_header(ACCESS_CONTROL_ALLOW_ORIGIN, origin)
        .with_header(VARY, "origin")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use hyper::HeaderMap;

    use super::*;

    #[track_caller]
    fn check(headers: &[(&'static str, &str)], expected: u16) {
        let guard = Guard {
            hosts: vec!["gpu.lan".into()],
            origins: vec!["https://good.example".into()],
        };
        let headers = headers.iter();
        let request = Request {
            method: Method::POST,
            path: String::new(),
            query: String::new(),
            headers: headers
                .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
                .collect::<HeaderMap>(),
            body: Bytes::new(),
        };
        let status = match guard.check(&request, "http") {
            Ok(_) => 200,
            Err(refusal) => refusal.status.as_u16(),
        };
        assert_eq!(status, expected, "{:?}", request.headers);
    }

    #[test]
    fn links_lead_to_the_page_and_nowhere_else() {
        for (method, path, dest, opens) in [
            (Method::GET, "/", "document", true),
            (Method::GET, "/", "iframe", false),
            (Method::GET, "/console/runs", "document", false),
            (Method::POST, "/", "document", false),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in [("mode", "navigate"), ("dest", dest), ("site", "cross-site")] {
                let name: HeaderName = format!("sec-fetch-{name}").parse().unwrap();
                headers.insert(name, value.parse().unwrap());
            }
            let request = Request {
                method,
                path: path.into(),
                query: String::new(),
                headers,
                body: Bytes::new(),
            };
            let let_in = Guard::default().check(&request, "http").is_ok();
            assert_eq!(let_in, opens, "{} {path} {dest}", request.method);
        }
    }

    #[test]
    fn lets_in_who_is_known() {
        for host in [
            "127.0.0.1:80",
            "localhost",
            "[::1]:8000",
            "10.0.0.7",
            "GPU.lan:1",
        ] {
            check(&[("host", host)], 200);
        }
        check(&[], 200);
        for host in [
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "[bad",
        ] {
            check(&[("host", host)], 403);
        }
        let host = ("host", "127.0.0.1:80");
        check(&[host, ("origin", "http://127.0.0.1:80")], 200);
        check(&[host, ("origin", "http://127.0.0.1:81")], 403);
        check(&[host, ("origin", "https://127.0.0.1:80")], 403);
        check(&[host, ("origin", "null")], 403);
        check(
            &[
                host,
                ("origin", "https://good.example"),
                ("sec-fetch-site", "cross-site"),
            ],
            200,
        );
        check(&[host, ("origin", "https://evil.example")], 403);
        check(&[host, ("sec-fetch-site", "cross-site")], 403);
        check(&[host, ("sec-fetch-site", "same-site")], 403);
        check(&[host, ("sec-fetch-site", "none")], 200);
        let json = ("content-type", "application/json; charset=utf-8");
        check(&[host, json, ("content-length", "3")], 200);
        check(
            &[
                host,
                ("content-type", "text/plain"),
                ("content-length", "3"),
            ],
            415,
        );
        check(&[host, ("content-length", "3")], 415);
        check(&[host, ("transfer-encoding", "chunked")], 415);
        check(&[host, ("content-length", "0")], 200);
    }
}
