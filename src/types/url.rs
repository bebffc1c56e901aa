//! A URL in its parts, as text: who is spoken to, and what follows.

/// The parts of a URL that has a scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Url<'a> {
    pub(crate) scheme: &'a str,
    /// Who is spoken to: user information, host and port.
    pub(crate) authority: &'a str,
    /// Path, query and fragment.
    pub(crate) rest: &'a str,
}

impl<'a> Url<'a> {
    pub(crate) fn split(url: &'a str) -> Option<Self> {
        let (scheme, after) = url.split_once("://")?;
        let end = after.find(['/', '?', '#']).unwrap_or(after.len());
        let (authority, rest) = after.split_at(end);
        Some(Self {
            scheme,
            authority,
            rest,
        })
    }

    /// The user information, which may hold a password.
    pub(crate) fn user(self) -> Option<&'a str> {
        self.authority.rsplit_once('@').map(|(user, _)| user)
    }

    /// Host and port, without user information: what may be shown.
    pub(crate) fn address(self) -> &'a str {
        let after_user = self.authority.rsplit_once('@');
        after_user.map_or(self.authority, |(_, address)| address)
    }

    /// Host and port apart.
    pub(crate) fn host_and_port(self) -> (&'a str, Option<&'a str>) {
        host_and_port(self.address())
    }
}

/// `host:port`, `host`, `[::1]:port` or `[::1]`, taken apart.
pub(crate) fn host_and_port(address: &str) -> (&str, Option<&str>) {
    match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (address, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_come_apart() {
        #[track_caller]
        fn check(url: &str, user: Option<&str>, host: &str, port: Option<&str>, rest: &str) {
            let split = Url::split(url).unwrap();
            assert_eq!((split.user(), split.rest), (user, rest));
            assert_eq!(split.host_and_port(), (host, port));
        }
        check("http://h", None, "h", None, "");
        check("https://h:8/a?b#c", None, "h", Some("8"), "/a?b#c");
        check("https://h?q=a@b", None, "h", None, "?q=a@b");
        check("http://u:p@h:1/", Some("u:p"), "h", Some("1"), "/");
        check("http://u:p@x@h/", Some("u:p@x"), "h", None, "/");
        check("http://[::1]/", None, "[::1]", None, "/");
        check("http://[::1]:90", None, "[::1]", Some("90"), "");
        assert_eq!(Url::split("h:80/a"), None);
    }
}
