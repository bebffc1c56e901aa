//! Where Hugging Face tools keep what they have downloaded.

use std::ffi::OsString;
use std::path::PathBuf;

/// The folder of the Hugging Face cache, by the rules of its own tools: `HF_HUB_CACHE`, else
/// `hub` in `HF_HOME`, else in `XDG_CACHE_HOME/huggingface`, else in `~/.cache/huggingface`.
pub(crate) fn hub_cache() -> Option<PathBuf> {
    locate(|name| std::env::var_os(name))
}

fn locate(lookup: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name: &str| {
        let value = lookup(name).filter(|value| !value.is_empty());
        value.map(PathBuf::from)
    };
    if let Some(cache) = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE")) {
        return Some(cache);
    }
    let home = || folder("HOME").or_else(|| folder("USERPROFILE"));
    let data = folder("HF_HOME").or_else(|| {
        let cache = folder("XDG_CACHE_HOME").or_else(|| Some(home()?.join(".cache")));
        Some(cache?.join("huggingface"))
    });
    Some(data?.join("hub"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_most_specific_variable_wins() {
        #[track_caller]
        fn check(variables: &[(&str, &str)], expected: Option<&str>) {
            let lookup = |name: &str| {
                let found = variables.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| OsString::from(value))
            };
            assert_eq!(locate(lookup).as_deref(), expected.map(Path::new));
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
}
