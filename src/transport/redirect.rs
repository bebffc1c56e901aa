//! Where a redirect leads and what may travel there.

use crate::config::origin;
use crate::types::url::Url;
use crate::wire::route::Method;

/// How many redirects one request follows.
pub(super) const MAX_REDIRECTS: u32 = 5;

/// What to do about an answer that points elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Not a redirect, or one the caller must see.
    Stay,
    /// Ask there next.
    Follow {
        url: String,
        /// Ask with GET and without the body.
        as_get: bool,
        /// Same scheme, host and port: the headers may go along.
        same_origin: bool,
    },
    /// It must not be followed, for this reason.
    Refuse(&'static str),
}

/// Decides about one answer. A body never travels to another origin: such an answer stays as it is.
pub(super) fn step(
    status: u16,
    location: Option<&str>,
    from: &str,
    method: Method,
    has_body: bool,
    followed: u32,
) -> Step {
    let as_get = match status {
        301..=303 => method != Method::Get,
        307 | 308 => false,
        _ => return Step::Stay,
    };
    let Some(url) = location.and_then(|location| join(from, location)) else {
        return Step::Stay;
    };
    if followed >= MAX_REDIRECTS {
        return Step::Refuse("more than 5 redirects");
    }
    let (Some(old), Some(new)) = (origin(from), origin(&url)) else {
        return Step::Refuse("a redirect to something other than http or https");
    };
    if old.scheme == "https" && new.scheme == "http" {
        return Step::Refuse("a redirect from https to http");
    }
    let same_origin = old == new;
    if !same_origin && !as_get && (has_body || method != Method::Get) {
        return Step::Stay;
    }
    Step::Follow {
        url,
        as_get,
        same_origin,
    }
}

/// Whether two URLs share scheme, host and port.
pub(super) fn same_origin(one: &str, other: &str) -> bool {
    origin(one).is_some_and(|one| origin(other) == Some(one))
}

/// Resolves a `Location` against the URL it came from.
fn join(from: &str, location: &str) -> Option<String> {
    let location = location.trim().split('#').next()?;
    let Url {
        scheme,
        authority,
        rest,
    } = Url::split(from)?;
    let path = rest.split(['?', '#']).next()?;
    if location.is_empty() {
        return None;
    }
    if let Some(after) = location.strip_prefix("//") {
        return Some(format!("{scheme}://{after}"));
    }
    if has_scheme(location) {
        return Some(location.to_owned());
    }
    let target = if location.starts_with('/') {
        location.to_owned()
    } else if location.starts_with('?') {
        format!("{}{location}", if path.is_empty() { "/" } else { path })
    } else {
        let folder = path.rfind('/').map_or("/", |end| &path[..=end]);
        format!("{folder}{location}")
    };
    Some(format!("{scheme}://{authority}{}", without_dots(&target)))
}

fn has_scheme(location: &str) -> bool {
    location.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

/// Resolves `.` and `..` in a path that begins with a slash; the query stays.
fn without_dots(target: &str) -> String {
    let (path, query) = match target.find('?') {
        Some(at) => target.split_at(at),
        None => (target, ""),
    };
    if !path.split('/').any(|part| part == "." || part == "..") {
        return target.to_owned();
    }
    let mut kept: Vec<&str> = Vec::new();
    let mut parts = path.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        match part {
            "." | ".." => {
                if part == ".." {
                    kept.pop();
                }
                if parts.peek().is_none() {
                    kept.push("");
                }
            }
            part => kept.push(part),
        }
    }
    format!("/{}{query}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_resolve_against_the_url_they_came_from() {
        #[track_caller]
        fn check(location: &str, expected: &str) {
            let url = join("https://h:8443/a/b/c?x=1", location);
            assert_eq!(url.as_deref(), Some(expected), "{location}");
        }
        check("https://s/f?sig=1", "https://s/f?sig=1");
        check("//s/f", "https://s/f");
        check("/f?y=2#part", "https://h:8443/f?y=2");
        check("f", "https://h:8443/a/b/f");
        check("./f", "https://h:8443/a/b/f");
        check("../f", "https://h:8443/a/f");
        check("../../../f", "https://h:8443/f");
        check("..", "https://h:8443/a/");
        check("?y=2", "https://h:8443/a/b/c?y=2");
        assert_eq!(join("http://h", "f").as_deref(), Some("http://h/f"));
        assert_eq!(join("http://h", "?q").as_deref(), Some("http://h/?q"));
        assert_eq!(join("http://h/a", ""), None);
    }

    #[test]
    fn only_safe_redirects_are_followed() {
        let follow = |url: &str, as_get, same_origin| Step::Follow {
            url: url.into(),
            as_get,
            same_origin,
        };
        #[track_caller]
        fn check(status: u16, from: &str, location: &str, method: Method, expected: Step) {
            let body = method != Method::Get;
            assert_eq!(
                step(status, Some(location), from, method, body, 0),
                expected
            );
        }
        use Method::{Get, Post};
        check(
            302,
            "https://a/x",
            "https://b/y",
            Get,
            follow("https://b/y", false, false),
        );
        check(
            302,
            "https://a/x",
            "https://A:443/y",
            Get,
            follow("https://A:443/y", false, true),
        );
        check(
            302,
            "http://a/x",
            "http://a:81/y",
            Get,
            follow("http://a:81/y", false, false),
        );
        check(
            302,
            "http://a/x",
            "https://a/y",
            Get,
            follow("https://a/y", false, false),
        );
        check(
            302,
            "https://a/x",
            "http://a/y",
            Get,
            Step::Refuse("a redirect from https to http"),
        );
        check(
            307,
            "https://a/x",
            "/y",
            Post,
            follow("https://a/y", false, true),
        );
        check(307, "https://a/x", "https://b/y", Post, Step::Stay);
        check(
            303,
            "https://a/x",
            "https://b/y",
            Post,
            follow("https://b/y", true, false),
        );
        check(304, "https://a/x", "https://b/y", Get, Step::Stay);
        check(
            302,
            "https://a/x",
            "ftp://b/y",
            Get,
            Step::Refuse("a redirect to something other than http or https"),
        );
        assert_eq!(step(302, None, "https://a", Get, false, 0), Step::Stay);
        assert_eq!(
            step(302, Some("/y"), "https://a", Get, false, 5),
            Step::Refuse("more than 5 redirects")
        );
    }
}
