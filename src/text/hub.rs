//! Finding a downloaded model in the Hugging Face cache.

use std::fs;
use std::path::{Path, PathBuf};

use super::selection::TokenizerId;
use crate::error::{Context, Error, Result};

/// The folder that holds the downloaded files of a repository.
///
/// The cache keeps each commit under `snapshots`, and in `refs` which commit a branch means.
///
/// # Errors
///
/// If it is not there; the error says how to get it.
pub(super) fn snapshot(cache: &Path, id: &TokenizerId) -> Result<PathBuf> {
    let repo = cache.join(format!("models--{}", id.repo().replace('/', "--")));
    let revision = match id.revision() {
        Some(revision) => Some(revision.to_owned()),
        None => fs::read_to_string(repo.join("refs/main"))
            .ok()
            .map(|revision| revision.trim().to_owned())
            .filter(|revision| !revision.is_empty()),
    };
    let folder = revision.map(|revision| repo.join("snapshots").join(revision));
    match folder {
        Some(folder) if folder.join("tokenizer.json").is_file() => Ok(folder),
        _ => Err(missing(cache, id)),
    }
}

fn missing(cache: &Path, id: &TokenizerId) -> Error {
    let revision = id
        .revision()
        .map_or_else(String::new, |revision| format!(" --revision {revision}"));
    Error::Config(Context::new(format!(
        "no tokenizer.json of {id} in {}: run `hf download {}{revision} tokenizer.json \
         tokenizer_config.json`, or put the file anywhere and load it with Tokenizer::open",
        cache.display(),
        id.repo(),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_and_pins_lead_to_snapshots() {
        let cache = tempfile::tempdir().unwrap();
        let repo = cache.path().join("models--org--name");
        let folder = repo.join("snapshots/abc");
        fs::create_dir_all(&folder).unwrap();
        fs::create_dir_all(repo.join("refs")).unwrap();
        let id = TokenizerId::select("org/name", None).unwrap();
        assert!(snapshot(cache.path(), &id).is_err());
        fs::write(repo.join("refs/main"), "abc\n").unwrap();
        assert!(snapshot(cache.path(), &id).is_err(), "no tokenizer.json");
        fs::write(folder.join("tokenizer.json"), "{}").unwrap();
        assert_eq!(snapshot(cache.path(), &id).unwrap(), folder);

        let pinned = TokenizerId::select("moonshotai/Kimi-K3", None).unwrap();
        let commit = pinned.revision().unwrap();
        let folder = cache
            .path()
            .join("models--moonshotai--Kimi-K3/snapshots")
            .join(commit);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("tokenizer.json"), "{}").unwrap();
        assert_eq!(snapshot(cache.path(), &pinned).unwrap(), folder);
    }

    #[test]
    fn the_error_says_what_to_do() {
        let id = TokenizerId::select("moonshotai/Kimi-K3", None).unwrap();
        let error = snapshot(Path::new("/nowhere"), &id)
            .unwrap_err()
            .to_string();
        for part in [
            "/nowhere",
            "hf download moonshotai/Kimi-K3 --revision f831",
            "Tokenizer::open",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }
}
