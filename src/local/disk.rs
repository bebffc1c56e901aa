//! Files that are either there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Context, Error, Result};

/// What half-written files are called until they are complete.
const PARTIAL: &str = ".partial";

/// Writes a file so that a crash leaves either the old content or the new.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let attempt = || -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let partial = folder.join(format!("{}{PARTIAL}", uuid::Uuid::new_v4()));
        let mut file = File::create(&partial)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        drop(file);
        let renamed = written.and_then(|()| fs::rename(&partial, path));
        if renamed.is_err() {
            // Whatever failed is reported; the leftover is swept at the next start at the latest.
            let _ = fs::remove_file(&partial);
        }
        renamed?;
        sync_folder(folder)
    };
    attempt().map_err(|error| failed("write", path, error))
}

pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let bytes = serde_json::to_vec_pretty(value)
        .map_err(|error| failed("encode", path, io::Error::other(error)))?;
    write(path, &bytes)
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| failed("read", path, error))
}

/// Removes a file for good; one that is not there is fine.
pub(super) fn remove(path: &Path) -> Result<()> {
    let attempt = || match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => sync_folder(path.parent().unwrap_or(Path::new("."))),
    };
    attempt().map_err(|error| failed("remove", path, error))
}

/// Makes a rename or a removal last.
fn sync_folder(folder: &Path) -> io::Result<()> {
    // Only Unix can open folders; elsewhere the rename itself has to do.
    if cfg!(unix) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

fn failed(verb: &str, path: &Path, error: io::Error) -> Error {
    let message = format!("cannot {verb} {}", path.display());
    Error::Internal(Context::caused(message, error))
}

/// A record that was read from disk, and where it lies.
#[derive(Debug)]
pub(super) struct Record<T> {
    pub(super) path: PathBuf,
    pub(super) value: T,
}

/// Reads the JSON records below a folder, at any depth.
///
/// Half-written files are removed. A record that cannot be read is moved into `damaged` and named
/// in `problems`; the others are read all the same.
pub(super) fn read_records<T: DeserializeOwned>(
    folder: &Path,
    damaged: &Path,
    problems: &mut Vec<String>,
) -> Vec<Record<T>> {
    let mut records = Vec::new();
    for path in files(folder) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(PARTIAL) {
            let _ = fs::remove_file(&path);
        } else if name.ends_with(".json") {
            let parsed = fs::read(&path)
                .map_err(|error| error.to_string())
                .and_then(|bytes| serde_json::from_slice(&bytes).map_err(|e| e.to_string()));
            match parsed {
                Ok(value) => records.push(Record { path, value }),
                Err(error) => problems.push(set_aside(&path, damaged, &error)),
            }
        }
    }
    records
}

/// Moves a damaged file out of the way, and says so.
pub(super) fn set_aside(path: &Path, damaged: &Path, error: &str) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = damaged.join(format!("{}-{name}", uuid::Uuid::new_v4()));
    let moved = fs::create_dir_all(damaged).and_then(|()| fs::rename(path, &aside));
    let outcome = match moved {
        Ok(()) => format!("moved to {}", aside.display()),
        Err(error) => format!("left where it is: {error}"),
    };
    let message = format!("{} is damaged ({error}); {outcome}", path.display());
    log::warn!("local server: {message}");
    message
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        // A folder that is not there has no files.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                _ => found.push(entry.path()),
            }
        }
    }
    found.sort();
    found
}

/// Removes the files below a folder that end so and are not listed: leftovers of a crash.
pub(super) fn remove_others(folder: &Path, ending: &str, used: &[PathBuf]) {
    for path in files(folder) {
        let ends_so = path.to_string_lossy().ends_with(ending);
        if ends_so && !used.contains(&path) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// A number that changes when a file is damaged (FNV-1a over words).
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01B3;
    let mut sum: u64 = 0xCBF2_9CE4_8422_2325 ^ bytes.len() as u64;
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        sum = (sum ^ u64::from_le_bytes(*word))
            .wrapping_mul(PRIME)
            .rotate_left(23);
    }
    for byte in rest {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(PRIME);
    }
    sum
}

/// A name as a file name: letters, digits, `-`, `_` and inner dots stay, the rest is escaped.
pub(super) fn escape(name: &str) -> String {
    let mut escaped = String::new();
    for (index, byte) in name.bytes().enumerate() {
        if byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || (byte == b'.' && index > 0) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_what_files_cannot_be_called() {
        for (name, expected) in [
            ("step-0001", "step-0001"),
            ("a.b", "a.b"),
            ("..", "%2E."),
            ("S:train:0", "S%3Atrain%3A0"),
            ("é /", "%C3%A9%20%2F"),
        ] {
            assert_eq!(escape(name), expected);
        }
    }

    #[test]
    fn checksums_notice_a_flipped_bit() {
        let mut bytes: Vec<u8> = (0..100).collect();
        let whole = checksum(&bytes);
        for at in [0, 50, 99] {
            bytes[at] ^= 1;
            assert_ne!(checksum(&bytes), whole);
            bytes[at] ^= 1;
        }
        assert_eq!(checksum(&bytes), whole);
        assert_ne!(checksum(&bytes[..99]), whole);
    }

    #[test]
    fn damaged_records_are_named_and_set_aside_and_leftovers_go() {
        let folder = tempfile::tempdir().unwrap();
        let records = folder.path().join("records");
        write_json(&records.join("good.json"), &7).unwrap();
        fs::write(records.join("bad.json"), b"{").unwrap();
        fs::write(records.join("x.partial"), b"half").unwrap();
        let damaged = folder.path().join("damaged");
        let mut problems = Vec::new();
        let found = read_records::<u32>(&records, &damaged, &mut problems);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].value, 7);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("bad.json"), "{problems:?}");
        assert!(!records.join("x.partial").exists() && !records.join("bad.json").exists());
        assert_eq!(fs::read_dir(damaged).unwrap().count(), 1);
    }
}
