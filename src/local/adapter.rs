//! Adapters that lie in a folder or an archive.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::engine::PeftFiles;
use crate::error::{Context, Error, Result};

/// More than any adapter's settings take.
const LARGEST_CONFIG: u64 = 16 << 20;
/// More than any adapter takes that fits a machine this engine runs on.
const LARGEST_WEIGHTS: u64 = 64 << 30;

/// An adapter to serve and what its checkpoint is called.
#[derive(Debug, Clone)]
pub(super) struct AdapterSource {
    name: String,
    path: PathBuf,
}

impl AdapterSource {
    pub(super) fn new(name: String, path: PathBuf) -> Self {
        Self { name, path }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Refuses a name that cannot be part of a checkpoint's path on every system.
    pub(super) fn check(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        match (1..=100).contains(&self.name.len()) && self.name.chars().all(plain) {
            true => Ok(()),
            false => {
                let problem = format!(
                    "{:?} is no name of letters, digits, `-`, `_`, `.`",
                    self.name
                );
                Err(Error::invalid("adapter", problem))
            }
        }
    }
}

/// Reads an adapter from a folder, or from a tar archive of one, compressed with gzip or not.
///
/// # Errors
///
/// [`Error::Io`] if a file cannot be read; [`Error::Invalid`] if there is no adapter, or one in a
/// form that is not read.
pub(super) fn read(path: &Path) -> Result<PeftFiles> {
    let found = match path.is_dir() {
        true => of_folder(path),
        false => File::open(path).and_then(|file| of_archive(BufReader::new(file))),
    };
    let (config, weights) = found.map_err(|error| {
        let message = format!("cannot read the adapter {}", path.display());
        Error::Io(Context::caused(message, error))
    })?;
    let missing = |name: &str| {
        let problem = format!(
            "there is no {name}; an adapter is {} and {}, in a folder or a tar archive",
            PeftFiles::CONFIG,
            PeftFiles::WEIGHTS
        );
        Error::invalid(path.display().to_string(), problem)
    };
    let config = config.ok_or_else(|| missing(PeftFiles::CONFIG))?;
    Ok(PeftFiles {
        config: String::from_utf8(config)
            .map_err(|_| Error::invalid(PeftFiles::CONFIG, "is no text"))?,
        weights: weights.ok_or_else(|| missing(PeftFiles::WEIGHTS))?,
    })
}

/// Settings and weights, as far as they are there.
type Found = (Option<Vec<u8>>, Option<Vec<u8>>);

fn of_folder(folder: &Path) -> io::Result<Found> {
    let read = |name: &str| match fs::read(folder.join(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    };
    Ok((read(PeftFiles::CONFIG)?, read(PeftFiles::WEIGHTS)?))
}

/// Nothing is unpacked: two files are read, wherever in the archive they are.
fn of_archive(mut reader: impl BufRead) -> io::Result<Found> {
    let zipped = reader.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    match zipped {
        true => entries(flate2::bufread::MultiGzDecoder::new(reader)),
        false => entries(reader),
    }
}

fn entries(reader: impl Read) -> io::Result<Found> {
    let mut found = (None, None);
    for entry in tar::Archive::new(reader).entries()? {
        let mut entry = entry?;
        let name = entry.path()?.file_name().map(ToOwned::to_owned);
        let (place, most) = match name.as_deref().and_then(|name| name.to_str()) {
            Some(PeftFiles::CONFIG) => (&mut found.0, LARGEST_CONFIG),
            Some(PeftFiles::WEIGHTS) => (&mut found.1, LARGEST_WEIGHTS),
            _ => continue,
        };
        if place.is_some() || !entry.header().entry_type().is_file() || entry.size() > most {
            let message = format!("{name:?} comes twice, is no file, or is too large");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        *place = Some(bytes);
    }
    Ok(found)
}
