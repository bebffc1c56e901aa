//! The page and its parts, embedded in the program.

use hyper::header::HeaderName;

use crate::local::http::{Refusal, Reply};

const PAGE: &str = include_str!("assets/index.html");

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";

/// Every other file: its name, type and content.
#[rustfmt::skip]
const ASSETS: &[(&str, &str, &str)] = &[
    ("style.css", STYLE, include_str!("assets/style.css")),
    ("app.js", SCRIPT, include_str!("assets/app.js")),
    ("lib.js", SCRIPT, include_str!("assets/lib.js")),
    ("chart.js", SCRIPT, include_str!("assets/chart.js")),
    ("runs.js", SCRIPT, include_str!("assets/runs.js")),
    ("run.js", SCRIPT, include_str!("assets/run.js")),
    ("checkpoints.js", SCRIPT, include_str!("assets/checkpoints.js")),
    ("chat.js", SCRIPT, include_str!("assets/chat.js")),
    ("data.js", SCRIPT, include_str!("assets/data.js")),
    ("server.js", SCRIPT, include_str!("assets/server.js")),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

/// Scripts, styles and requests of this server alone; nothing inline, no frames around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(in crate::local) fn page() -> Reply {
    guarded(Reply::new("text/html; charset=utf-8", PAGE))
}

pub(in crate::local) fn asset(name: &str) -> Result<Reply, Refusal> {
    let found = ASSETS.iter().find(|(known, _, _)| *known == name);
    let (_, kind, content) =
        found.ok_or_else(|| Refusal::missing(format!("the console has no file {name:?}")))?;
    Ok(guarded(Reply::new(kind, *content)))
}

fn guarded(reply: Reply) -> Reply {
    let headers = [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        // A page of an older program must not talk to a newer one.
        ("cache-control", "no-cache"),
    ];
    headers.into_iter().fold(reply, |reply, (name, value)| {
        reply.with_header(HeaderName::from_static(name), value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every file that a file names is there, and nothing comes from elsewhere.
    #[test]
    fn the_page_is_whole() {
        let texts = ASSETS.iter().map(|(_, _, text)| *text).chain([PAGE]);
        for text in texts {
            for (at, _) in text.match_indices("from \"./") {
                let name = text[at + 8..].split('"').next().unwrap_or_default();
                assert!(asset(name).is_ok(), "{name}");
            }
            for (at, _) in text.match_indices("/console/assets/") {
                let name = text[at + 16..].split('"').next().unwrap_or_default();
                assert!(asset(name).is_ok(), "{name}");
            }
            let elsewhere = text.replace("http://www.w3.org/", "");
            assert!(!elsewhere.contains("http://") && !elsewhere.contains("https://"));
            assert!(!text.contains("innerHTML"), "texts stay texts");
        }
        assert!(!PAGE.contains("style=") && !PAGE.contains("onclick"));
        assert_eq!(asset("../mod.rs").unwrap_err().status.as_u16(), 404);
    }
}
