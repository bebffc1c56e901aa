//! Where Hugging Face tools keep what they have downloaded, and how they reach their hub.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::{Secret, Timeout};

/// The hub unless `HF_ENDPOINT` names another.
pub(crate) const DEFAULT_HUB: &str = "https://huggingface.co";

/// What the environment says about the hub, by the rules of its own tools.
#[derive(Debug, Clone)]
pub(crate) struct HubSettings {
    /// `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else in `XDG_CACHE_HOME/huggingface`, else in
    /// `~/.cache/huggingface`.
    pub(crate) cache: Option<PathBuf>,
    /// `HF_ENDPOINT`.
    pub(crate) endpoint: String,
    /// `HF_TOKEN`, else what `hf auth login` left in `HF_TOKEN_PATH` or `HF_HOME/token`.
    pub(crate) token: Option<Secret>,
    /// `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`.
    pub(crate) offline: bool,
    /// `HF_HUB_DOWNLOAD_TIMEOUT`, in seconds.
    pub(crate) timeout: Timeout,
}

impl HubSettings {
    pub(crate) fn from_env() -> Self {
        Self::from_lookup(|name| std::env::var_os(name))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Self {
        let value = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let folder = |name: &str| value(name).map(PathBuf::from);
        let text = |name: &str| value(name).and_then(|value| value.into_string().ok());
        let is_on = |name: &str| {
            let value = text(name).unwrap_or_default().to_ascii_uppercase();
            ["1", "ON", "YES", "TRUE"].contains(&value.as_str())
        };
        let home = || folder("HOME").or_else(|| folder("USERPROFILE"));
        let data = folder("HF_HOME").or_else(|| {
            let cache = folder("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")));
            Some(cache?.join("huggingface"))
        });
        let cache = folder("HF_HUB_CACHE")
            .or_else(|| folder("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| Some(data.as_ref()?.join("hub")));
        let stored = || {
            let place = folder("HF_TOKEN_PATH").or_else(|| Some(data.as_ref()?.join("token")));
            std::fs::read_to_string(place?).ok()
        };
        let token = text("HF_TOKEN")
            .or_else(|| text("HUGGING_FACE_HUB_TOKEN"))
            .or_else(stored)
            .map(|token| token.split_whitespace().collect::<String>())
            .filter(|token| !token.is_empty() && !is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN"));
        Self {
            cache,
            endpoint: text("HF_ENDPOINT").unwrap_or_else(|| DEFAULT_HUB.to_owned()),
            token: token.map(Secret::from),
            offline: is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"),
            timeout: text("HF_HUB_DOWNLOAD_TIMEOUT")
                .and_then(|seconds| seconds.trim().parse().ok())
                .filter(|seconds| *seconds > 0)
                .map_or(Timeout::Default, |seconds| {
                    Timeout::After(Duration::from_secs(seconds))
                }),
        }
    }
}

/// The folder of the Hugging Face cache, by the rules of its own tools: `HF_HUB_CACHE`, else
/// `hub` in `HF_HOME`, else in `XDG_CACHE_HOME/huggingface`, else in `~/.cache/huggingface`.
pub fn hub_cache() -> Option<PathBuf> {
    HubSettings::from_env().cache
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn settings(variables: &[(&str, &str)]) -> HubSettings {
        HubSettings::from_lookup(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn the_most_specific_folder_wins() {
        #[track_caller]
        fn check(variables: &[(&str, &str)], expected: Option<&str>) {
            assert_eq!(
                settings(variables).cache.as_deref(),
                expected.map(Path::new)
            );
        }
        check(&[], None);
        check(&[("HOME", "/h")], Some("/h/.cache/huggingface/hub"));
        check(
            &[("HOME", "/h"), ("XDG_CACHE_HOME", "/x")],
            Some("/x/huggingface/hub"),
        );
        check(&[("HOME", "/h"), ("HF_HOME", "/f")], Some("/f/hub"));
        check(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")], Some("/c"));
        check(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "")], Some("/f/hub"));
    }

    #[test]
    fn a_token_is_given_or_stored() {
        #[track_caller]
        fn check(variables: &[(&str, &str)], expected: Option<&str>) {
            let token = settings(variables).token;
            assert_eq!(token.as_ref().map(Secret::expose), expected);
        }
        let home = tempfile::tempdir().unwrap();
        let home_path = home.path().to_str().unwrap();
        let stored = home.path().join("token");
        check(&[("HF_HOME", home_path)], None);
        std::fs::write(&stored, "hf_stored\n").unwrap();
        check(&[("HF_HOME", home_path)], Some("hf_stored"));
        check(
            &[("HF_HOME", home_path), ("HF_TOKEN", " hf_given ")],
            Some("hf_given"),
        );
        check(
            &[
                ("HF_HOME", home_path),
                ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
            ],
            None,
        );
        check(
            &[("HF_TOKEN_PATH", stored.to_str().unwrap())],
            Some("hf_stored"),
        );
    }

    #[test]
    fn the_hub_is_named_and_may_be_out_of_reach() {
        assert_eq!(settings(&[]).endpoint, DEFAULT_HUB);
        let named = settings(&[
            ("HF_ENDPOINT", "http://hub.test"),
            ("HF_HUB_OFFLINE", "true"),
        ]);
        assert_eq!(
            (named.endpoint.as_str(), named.offline),
            ("http://hub.test", true)
        );
        assert!(!settings(&[("HF_HUB_OFFLINE", "0")]).offline);
        let timeout = |text| settings(&[("HF_HUB_DOWNLOAD_TIMEOUT", text)]).timeout;
        assert_eq!(timeout("30"), Timeout::After(Duration::from_secs(30)));
        assert_eq!(timeout("soon"), Timeout::Default);
    }
}
