//! Models in training on disk, so that they outlive the process.
//!
//! A model has one file, replaced as a whole, which says how it was after one of its requests: the
//! weights, the optimiser, the gradients gathered so far, the next number and the results that may
//! not have been fetched. A request that runs later makes the file old, and before it runs a mark
//! beside the file says so. So a file without a mark is the model as its client knows it, and one
//! with a mark is not: taking it for the model would silently undo what was acknowledged.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::disk;
use super::futures::Outcome;
use crate::error::{ErrorCategory, Result};
use crate::loss::LossGraph;
use crate::types::LoraConfig;

/// The version of the files written here. Fields may be added without raising it.
const VERSION: u64 = 1;

/// The models in training that are on disk.
#[derive(Debug)]
pub(in crate::local) struct Saved {
    folder: PathBuf,
}

/// A model in training as it was after one of its requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::local) struct SavedModel {
    pub(in crate::local) id: String,
    pub(in crate::local) session_id: String,
    pub(in crate::local) base_model: String,
    /// Which model it is trained on; names can be the same.
    pub(in crate::local) fingerprint: u64,
    pub(in crate::local) lora: LoraConfig,
    /// Which of the model's states this is, counted from 1.
    pub(in crate::local) generation: u64,
    /// The number of the request that follows.
    pub(in crate::local) next: u64,
    /// The custom losses of its session, by their numbers.
    #[serde(default)]
    pub(in crate::local) losses: Vec<(u64, LossGraph)>,
}

/// A file's content.
#[derive(Debug)]
pub(in crate::local) struct Found {
    pub(in crate::local) model: SavedModel,
    pub(in crate::local) trainer: Vec<u8>,
    /// Results by the numbers of their requests.
    pub(in crate::local) results: Vec<(u64, Outcome)>,
    /// Whether a request ran after it was written.
    pub(in crate::local) is_behind: bool,
}

/// What a file begins with, after a line of checksums: one line of JSON. The trainer and the
/// results follow.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    version: u64,
    #[serde(flatten)]
    model: SavedModel,
    trainer_bytes: usize,
    results: Vec<Part>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Part {
    number: u64,
    kind: String,
    bytes: usize,
}

impl Saved {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            folder: root.join("training"),
        }
    }

    /// Writes a model's state in the place of the one before.
    pub(in crate::local) fn write(
        &self,
        model: SavedModel,
        trainer: Vec<u8>,
        results: &[(u64, Outcome)],
    ) -> Result<()> {
        let (file, generation) = (self.file(&model.id), model.generation);
        let part = |(number, outcome): &(u64, Outcome)| Part {
            number: *number,
            kind: kind(outcome).to_owned(),
            bytes: outcome.size(),
        };
        let header = Header {
            version: VERSION,
            model,
            trainer_bytes: trainer.len(),
            results: results.iter().map(part).collect(),
        };
        let header = crate::wire::request::to_json(&header)?;
        let mut content = trainer;
        for (_, outcome) in results {
            content.extend_from_slice(body(outcome));
        }
        let sums = sums(&header, &content);
        let written = disk::write_parts(&file, &[sums.as_bytes(), b"\n", &header, b"\n", &content]);
        written.or_else(|error| {
            // It may have taken its place before that went wrong. Then it is what a restart finds,
            // and has to be marked like any other.
            let found = self.read(&file).ok();
            let is_there = found.is_some_and(|found| found.model.generation == generation);
            match is_there {
                true => {
                    log::warn!("local server: {error}, but it is there");
                    Ok(())
                }
                false => Err(error),
            }
        })
    }

    /// Says that the file of this generation is no longer how the model is.
    pub(in crate::local) fn mark(&self, id: &str, generation: u64) -> Result<()> {
        disk::write(&self.mark_file(id), generation.to_string().as_bytes())
    }

    /// Forgets a model; the file first, for a mark alone means nothing.
    pub(in crate::local) fn remove(&self, id: &str) -> Result<()> {
        for file in [self.file(id), self.mark_file(id)] {
            if file.exists() {
                disk::remove(&file)?;
            }
        }
        Ok(())
    }

    /// Every file, in order.
    pub(in crate::local) fn files(&self) -> Vec<PathBuf> {
        disk::files(&self.folder, ".state")
    }

    /// The state of a model, if there is one that can be read.
    pub(in crate::local) fn get(&self, id: &str) -> Option<Found> {
        let file = self.file(id);
        file.exists().then(|| self.read(&file).ok()).flatten()
    }

    /// Reads a file, or says what is wrong with it.
    pub(in crate::local) fn read(&self, file: &Path) -> Result<Found, String> {
        let content = std::fs::read(file).map_err(|error| error.to_string())?;
        let cut = || "it is cut short".to_owned();
        let (written, content) = line(&content).ok_or_else(cut)?;
        let (header, rest) = line(content).ok_or_else(cut)?;
        if written != sums(header, rest).as_bytes() {
            return Err("its content has changed".into());
        }
        let header: Header = serde_json::from_slice(header).map_err(|error| error.to_string())?;
        if header.version > VERSION {
            let version = header.version;
            return Err(format!(
                "a newer version of this program wrote it (version {version})"
            ));
        }
        let (trainer, mut rest) = rest
            .split_at_checked(header.trainer_bytes)
            .ok_or_else(cut)?;
        let mut results = Vec::new();
        for part in header.results {
            let bytes;
            (bytes, rest) = rest.split_at_checked(part.bytes).ok_or_else(cut)?;
            results.push((part.number, outcome(&part.kind, bytes)));
        }
        let mark = std::fs::read_to_string(self.mark_file(&header.model.id));
        let marked = mark.ok().and_then(|text| text.parse().ok());
        Ok(Found {
            is_behind: marked == Some(header.model.generation),
            model: header.model,
            trainer: trainer.to_vec(),
            results,
        })
    }

    fn file(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{}.state", disk::escape_id(id)))
    }

    fn mark_file(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{}.behind", disk::escape_id(id)))
    }
}

/// What says whether a file is as it was written.
fn sums(header: &[u8], rest: &[u8]) -> String {
    let (header, rest) = (disk::checksum(header), disk::checksum(rest));
    format!("{header:016x} {rest:016x}")
}

/// The first line, without its end, and the rest.
fn line(content: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = content.iter().position(|byte| *byte == b'\n')?;
    Some((&content[..end], &content[end + 1..]))
}

fn kind(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Json(_) => "json",
        Outcome::Training(_) => "training",
        Outcome::Sample(_) => "sample",
        Outcome::Failed { category, .. } => category.as_str(),
    }
}

fn body(outcome: &Outcome) -> &[u8] {
    match outcome {
        Outcome::Json(bytes) | Outcome::Training(bytes) | Outcome::Sample(bytes) => bytes,
        Outcome::Failed { message, .. } => message.as_bytes(),
    }
}

/// The reverse; what is none of the results is the category of a failure.
fn outcome(kind: &str, bytes: &[u8]) -> Outcome {
    let body = Bytes::copy_from_slice(bytes);
    match kind {
        "json" => Outcome::Json(body),
        "training" => Outcome::Training(body),
        "sample" => Outcome::Sample(body),
        category => Outcome::Failed {
            message: String::from_utf8_lossy(bytes).into_owned(),
            category: ErrorCategory::parse(category),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(generation: u64) -> SavedModel {
        SavedModel {
            id: "s:train:0".into(),
            session_id: "s".into(),
            base_model: "base".into(),
            fingerprint: u64::MAX,
            lora: LoraConfig::rank(4),
            generation,
            next: 7,
            losses: Vec::new(),
        }
    }

    #[test]
    fn comes_back_as_it_was_and_says_whether_it_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let saved = Saved::new(folder.path());
        let results = [
            (5, Outcome::Json(Bytes::from_static(b"{\"a\":\n1}"))),
            (6, Outcome::refused("no\nsuch thing")),
        ];
        let is_behind = |generation| {
            let trainer = b"trainer\n".to_vec();
            saved.write(model(generation), trainer, &results).unwrap();
            let found = saved.get("s:train:0").unwrap();
            assert_eq!(found.model, model(generation));
            assert_eq!(found.trainer, b"trainer\n");
            assert_eq!(format!("{:?}", found.results), format!("{results:?}"));
            found.is_behind
        };
        assert!(!is_behind(1));
        saved.mark("s:train:0", 1).unwrap();
        assert!(is_behind(1));
        assert!(!is_behind(2), "the mark is of the one before");
        saved.remove("s:train:0").unwrap();
        assert!(saved.get("s:train:0").is_none());
        assert_eq!(disk::files(folder.path(), ""), Vec::<PathBuf>::new());
    }

    /// Told that nothing was written, its model would go on without a mark, and a restart would
    /// take the file for it.
    #[cfg(unix)]
    #[test]
    fn what_is_there_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let saved = Saved::new(folder.path());
        saved.write(model(1), Vec::new(), &[]).unwrap();
        disk::while_sealed(&saved.folder, || {
            saved.write(model(2), Vec::new(), &[]).unwrap();
            assert_eq!(saved.get("s:train:0").unwrap().model.generation, 2);
        });
        // Where nothing takes its place, that is said.
        let file = saved.files().pop().unwrap();
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(saved.write(model(3), Vec::new(), &[]).is_err());
    }

    #[test]
    fn damage_anywhere_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let saved = Saved::new(folder.path());
        saved.write(model(1), vec![0; 100], &[]).unwrap();
        let file = saved.files().pop().unwrap();
        let whole = std::fs::read(&file).unwrap();
        for at in [0, 20, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&file, bytes).unwrap();
            assert!(saved.read(&file).is_err(), "byte {at}");
        }
        std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
        assert!(saved.read(&file).is_err());
    }
}
