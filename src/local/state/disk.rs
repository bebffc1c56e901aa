//! Files that are either there whole or not at all.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Context, Error, Result};
use crate::files::{PARTIAL, folder_of, replace, sync_folder};

/// The version of the records written here. Fields may be added without raising it.
const VERSION: u64 = 1;

/// Writes a file so that a crash leaves either the old content or the new.
pub(in crate::local) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_parts(path, &[bytes])
}

/// The same for content that lies in several places.
pub(super) fn write_parts(path: &Path, parts: &[&[u8]]) -> Result<()> {
    fs::create_dir_all(folder_of(path))
        .and_then(|()| replace(path, parts, |partial| File::create(partial)))
        .map_err(|error| failed("write", path, error))
}

/// Writes a record with its version. Fields of the file it replaces that this version does not
/// know stay, so that a newer version finds them again.
pub(in crate::local) fn write_record(path: &Path, value: &impl Serialize) -> Result<()> {
    let attempt = || -> serde_json::Result<Vec<u8>> {
        let mut record = serde_json::to_value(value)?;
        record["version"] = VERSION.into();
        let earlier = fs::read(path).ok();
        let earlier = earlier.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        if let (Some(Value::Object(earlier)), Value::Object(record)) = (earlier, &mut record) {
            for (name, value) in earlier {
                record.entry(name).or_insert(value);
            }
        }
        serde_json::to_vec_pretty(&record)
    };
    let bytes = attempt().map_err(|error| failed("encode", path, io::Error::other(error)))?;
    write(path, &bytes)
}

/// Writes a file that does not count until [`publish`] has been called for it.
pub(in crate::local) fn write_ahead(path: &Path, bytes: &[u8]) -> Result<()> {
    write(&ahead(path), bytes)
}

/// Gives a file that was [written ahead](write_ahead) its name.
pub(in crate::local) fn publish(path: &Path) -> Result<()> {
    rename(&ahead(path), path)
}

/// Renames a file for good. If that fails, it has the name it had.
pub(in crate::local) fn rename(from: &Path, to: &Path) -> Result<()> {
    let lasting = || {
        sync_folder(folder_of(to)).inspect_err(|_| {
            // What failed is reported.
            let _ = fs::rename(to, from);
        })
    };
    fs::rename(from, to)
        .and_then(|()| lasting())
        .map_err(|error| failed("rename", from, error))
}

/// What a file is called while it does not count.
pub(in crate::local) fn ahead(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(PARTIAL);
    PathBuf::from(name)
}

pub(in crate::local) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| failed("read", path, error))
}

/// Removes a file for good; one that is not there is fine.
pub(in crate::local) fn remove(path: &Path) -> Result<()> {
    let attempt = || match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => sync_folder(folder_of(path)),
    };
    attempt().map_err(|error| failed("remove", path, error))
}

fn failed(verb: &str, path: &Path, error: io::Error) -> Error {
    let message = format!("cannot {verb} {}", path.display());
    Error::Internal(Context::caused(message, error))
}

/// A record that was read from disk, and where it lies.
#[derive(Debug)]
pub(in crate::local) struct Record<T> {
    pub(in crate::local) path: PathBuf,
    pub(in crate::local) value: T,
}

/// Reads the records below a folder, at any depth, and the problem of each that cannot be read.
///
/// Those stay where they are: somebody, or a newer version, may still know what to do with them.
pub(in crate::local) fn read_records<T: DeserializeOwned>(
    folder: &Path,
) -> (Vec<Record<T>>, BTreeMap<PathBuf, String>) {
    read_checked_records(folder, |_, _| Ok(()))
}

/// The same for records that must also suit where they lie.
pub(super) fn read_checked_records<T: DeserializeOwned>(
    folder: &Path,
    check: impl Fn(&Path, &T) -> Result<(), String>,
) -> (Vec<Record<T>>, BTreeMap<PathBuf, String>) {
    let (mut records, mut unreadable) = (Vec::new(), BTreeMap::new());
    for path in files(folder, ".json") {
        let read = read_record(&path);
        match read.and_then(|value| check(&path, &value).map(|()| value)) {
            Ok(value) => records.push(Record { path, value }),
            Err(problem) => {
                let problem = format!("{} cannot be read and stays: {problem}", path.display());
                log::warn!("local server: {problem}");
                unreadable.insert(path, problem);
            }
        }
    }
    (records, unreadable)
}

pub(in crate::local) fn read_record<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let bytes = fs::read(path).map_err(|error| error.to_string())?;
    let record: Value = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    match record["version"].as_u64() {
        Some(version) if version > VERSION => Err(format!(
            "a newer version of this program wrote it (record version {version})"
        )),
        _ => serde_json::from_value(record).map_err(|error| error.to_string()),
    }
}

/// Removes what was being written when an earlier process ended: it was never acknowledged.
pub(in crate::local) fn sweep_partial(folder: &Path) {
    for path in files(folder, PARTIAL) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let ours = uuid::Uuid::try_parse(name.split('.').next().unwrap_or_default()).is_ok();
        if ours {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Moves a damaged file out of the way, and says so.
pub(in crate::local) fn set_aside(path: &Path, damaged: &Path, error: &str) -> String {
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

/// The files below a folder that end so, in order.
pub(in crate::local) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        // A folder that is not there has no files.
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                _ if entry.file_name().to_string_lossy().ends_with(ending) => {
                    found.push(entry.path());
                }
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// A number that changes when a file is damaged (FNV-1a over words).
pub(in crate::local) fn checksum(bytes: &[u8]) -> u64 {
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

/// The longest name a file can have on the disks there are, less what we append.
const LONGEST: usize = 240;

/// An id as a file name: letters, digits, `-`, `_` and inner dots stay, the rest is escaped.
pub(super) fn escape_id(id: &str) -> String {
    let parts = id.bytes().enumerate().map(|(index, byte)| {
        if byte.is_ascii_alphanumeric() || b"-_".contains(&byte) || (byte == b'.' && index > 0) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    parts.collect()
}

/// A name that a user chose as a file name. Capitals are marked: some disks do not tell them apart.
pub(super) fn escape(name: &str) -> String {
    let parts = name.split_inclusive(|letter: char| letter.is_ascii_uppercase());
    let parts = parts.map(|part| match part.char_indices().next_back() {
        Some((at, letter)) if letter.is_ascii_uppercase() => {
            format!("{}+{}", escape_id(&part[..at]), letter.to_ascii_lowercase())
        }
        _ => escape_id(part),
    });
    parts.collect()
}

/// Whether a file can have a user's name.
pub(in crate::local) fn fits(name: &str) -> bool {
    escape(name).len() <= LONGEST
}

/// Does something in a folder in which files can be made and renamed, but nothing made to last:
/// it cannot be opened. Root can open anything, and then nothing is done.
#[cfg(all(test, unix))]
#[expect(clippy::print_stderr, reason = "a test that tests nothing says so")]
pub(super) fn while_sealed(folder: &Path, work: impl FnOnce()) {
    use std::os::unix::fs::PermissionsExt;
    let allow = |mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(folder, mode).expect("the test made the folder");
    };
    allow(0o300);
    match File::open(folder) {
        Err(_) => work(),
        Ok(_) => eprintln!("skipped: this user can open any folder"),
    }
    allow(0o700);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn what_cannot_be_renamed_for_good_has_the_name_it_had() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        fs::write(&old, b"content").unwrap();
        while_sealed(folder.path(), || assert!(rename(&old, &new).is_err()));
        assert_eq!((old.exists(), new.exists()), (true, false));
        rename(&old, &new).unwrap();
        assert_eq!((old.exists(), new.exists()), (false, true));
    }

    #[test]
    fn escapes_what_files_cannot_be_called() {
        for (name, expected) in [
            ("step-0001", "step-0001"),
            ("a.b", "a.b"),
            ("..", "%2E."),
            ("S:train:0", "+s%3Atrain%3A0"),
            ("STEP", "+s+t+e+p"),
            ("é /", "%C3%A9%20%2F"),
        ] {
            assert_eq!(escape(name), expected);
        }
        assert_eq!(escape_id("S:train:0"), "S%3Atrain%3A0");
        assert!(fits(&"a".repeat(128)) && !fits(&"é".repeat(64)));
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
    fn unreadable_records_are_named_and_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join("records").join(name);
        write_record(&path("good.json"), &serde_json::json!({"n": 7})).unwrap();
        fs::write(path("bad.json"), b"{").unwrap();
        fs::write(path("new.json"), b"{\"version\": 2, \"n\": 1}").unwrap();
        fs::write(path("x.partial"), b"theirs").unwrap();
        fs::write(ahead(&path(&uuid::Uuid::new_v4().to_string())), b"ours").unwrap();
        let (found, unreadable) = read_records::<BTreeMap<String, u64>>(folder.path());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].value["n"], 7);
        let names: Vec<&Path> = unreadable.keys().map(PathBuf::as_path).collect();
        assert_eq!(names, [path("bad.json"), path("new.json")]);
        sweep_partial(folder.path());
        assert_eq!(files(folder.path(), "").len(), 4);
    }

    #[test]
    fn a_record_keeps_what_this_version_does_not_know() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record.json");
        fs::write(&path, b"{\"n\": 1, \"new\": [2]}").unwrap();
        write_record(&path, &serde_json::json!({"n": 3})).unwrap();
        let record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(
            record,
            serde_json::json!({"version": 1, "n": 3, "new": [2]})
        );
    }
}
