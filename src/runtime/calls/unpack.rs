//! Archives of weights, unpacked without trust in what they say.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::path::{Component, Path, PathBuf};

use tar::{Archive, EntryType};

use crate::error::{Context, Error, Result};

/// More entries than any checkpoint has; an archive with more is not one.
const MOST_ENTRIES: usize = 100_000;

/// Unpacks a tar archive, compressed with gzip or not, into a folder, which is made if need be,
/// and returns the files.
///
/// The archive is not trusted: a name that is absolute or leads out of the folder, a link of any
/// kind, a device, a file that is there already or comes twice is refused by name, and so is
/// everything after it. Nothing is ever overwritten or written elsewhere. Memory is constant.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut builder = tar::Builder::new(Vec::new());
/// let mut header = tar::Header::new_gnu();
/// header.set_size(2);
/// header.set_mode(0o644);
/// header.set_cksum();
/// builder.append_data(&mut header, "adapter_config.json", &b"{}"[..])?;
/// let archive = builder.into_inner()?;
/// # let folder = tempfile::tempdir()?;
/// let files = tinker::client::unpack(&archive[..], folder.path())?;
/// assert_eq!(std::fs::read_to_string(&files[0])?, "{}");
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`Error::Reply`] for an archive that is refused or damaged; [`Error::Io`] if a file
/// cannot be written.
pub fn unpack(archive: impl Read, folder: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let folder = folder.as_ref();
    fs::create_dir_all(folder).map_err(|error| cannot(folder, error))?;
    let mut reader = BufReader::new(archive);
    let zipped = io::BufRead::fill_buf(&mut reader)
        .map_err(damaged)?
        .starts_with(&[0x1f, 0x8b]);
    match zipped {
        true => entries(flate2::bufread::GzDecoder::new(reader), folder),
        false => entries(reader, folder),
    }
}

fn entries(reader: impl Read, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut archive = Archive::new(reader);
    let (mut files, mut seen) = (Vec::new(), HashSet::new());
    for (count, entry) in archive.entries().map_err(damaged)?.enumerate() {
        let mut entry = entry.map_err(damaged)?;
        let name = entry.path_bytes();
        let name = String::from_utf8(name.into_owned())
            .map_err(|error| refused(&error.to_string(), "its name is not UTF-8"))?;
        if count >= MOST_ENTRIES {
            return Err(refused(&name, "the archive has too many entries"));
        }
        // Remarks on what follows, of which a checkpoint needs none.
        if entry.header().entry_type().is_pax_global_extensions() {
            continue;
        }
        let place = place(&name)?;
        let is_folder = match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => false,
            EntryType::Directory => true,
            EntryType::Symlink | EntryType::Link => return Err(refused(&name, "it is a link")),
            _ => return Err(refused(&name, "it is neither a file nor a folder")),
        };
        let target = folder.join(&place);
        if is_folder {
            fs::create_dir_all(&target).map_err(|error| cannot(&target, error))?;
            continue;
        }
        if place.as_os_str().is_empty() || !seen.insert(place) {
            return Err(refused(&name, "the name is empty or comes twice"));
        }
        write(&mut entry, &target, &name)?;
        files.push(target);
    }
    Ok(files)
}

/// The place of a name below the folder. None may lead elsewhere, on any operating system.
fn place(name: &str) -> Result<PathBuf> {
    if name.contains(['\\', ':', '\0']) {
        return Err(refused(
            name,
            "the name has a letter that separates folders elsewhere",
        ));
    }
    let mut place = PathBuf::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => place.push(part),
            Component::CurDir => {}
            Component::ParentDir => return Err(refused(name, "it leads out of the folder")),
            Component::RootDir | Component::Prefix(_) => {
                return Err(refused(name, "the name is absolute"));
            }
        }
    }
    Ok(place)
}

fn write(entry: &mut impl Read, target: &Path, name: &str) -> Result<()> {
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(|error| cannot(parent, error))?;
    }
    let opened = OpenOptions::new().write(true).create_new(true).open(target);
    let mut file: File = match opened {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(refused(name, "it is there already"));
        }
        other => other.map_err(|error| cannot(target, error))?,
    };
    let mut buffer = vec![0; 64 << 10];
    loop {
        match entry.read(&mut buffer).map_err(damaged)? {
            0 => return Ok(()),
            count => file
                .write_all(&buffer[..count])
                .map_err(|error| cannot(target, error))?,
        }
    }
}

fn refused(name: &str, why: &str) -> Error {
    let message = format!("the archive's entry {name:?} is refused: {why}");
    Error::Reply(Context::new(message))
}

fn damaged(error: io::Error) -> Error {
    Error::Reply(Context::caused("the archive is damaged", error))
}

fn cannot(target: &Path, error: io::Error) -> Error {
    let message = format!("cannot write {}", target.display());
    Error::Io(Context::caused(message, error))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tar::{Builder, Header};

    use super::*;

    /// An archive of one entry whose header says anything.
    fn hostile(name: &str, kind: EntryType, link: Option<&str>) -> Vec<u8> {
        let mut header = Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_size(if kind == EntryType::Regular { 4 } else { 0 });
        if let Some(link) = link {
            header.set_link_name(link).unwrap();
        }
        header.set_cksum();
        let mut builder = Builder::new(Vec::new());
        let content: &[u8] = if kind == EntryType::Regular {
            b"evil"
        } else {
            b""
        };
        builder.append(&header, content).unwrap();
        builder.into_inner().unwrap()
    }

    #[track_caller]
    fn check(archive: &[u8], expected: &str) {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("in");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("there"), "mine").unwrap();
        let error = unpack(archive, &folder).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(fs::read(folder.join("there")).unwrap(), b"mine");
        let outside: Vec<_> = fs::read_dir(home.path()).unwrap().collect();
        assert_eq!(outside.len(), 1, "{outside:?}");
    }

    #[test]
    fn hostile_entries_are_refused_by_name() {
        use EntryType as T;
        check(
            &hostile("../evil", T::Regular, None),
            "\"../evil\" is refused: it leads out",
        );
        check(
            &hostile("a/../../evil", T::Regular, None),
            "\"a/../../evil\" is refused",
        );
        check(
            &hostile("/etc/evil", T::Regular, None),
            "\"/etc/evil\" is refused: the name is absolute",
        );
        check(
            &hostile("C:\\evil", T::Regular, None),
            "is refused: the name has a letter",
        );
        check(
            &hostile("..\\evil", T::Regular, None),
            "is refused: the name has a letter",
        );
        check(
            &hostile("out", T::Symlink, Some("/etc")),
            "\"out\" is refused: it is a link",
        );
        check(
            &hostile("out", T::Link, Some("../x")),
            "\"out\" is refused: it is a link",
        );
        check(
            &hostile("null", T::Char, None),
            "\"null\" is refused: it is neither",
        );
        check(
            &hostile("there", T::Regular, None),
            "\"there\" is refused: it is there already",
        );
        check(&hostile("./", T::Regular, None), "is refused");
        let mut twice = hostile("a", T::Regular, None);
        twice.truncate(1024);
        let doubled = [twice.clone(), twice, vec![0; 1024]].concat();
        check(&doubled, "comes twice");
        check(&hostile("a", T::Regular, None)[..514], "damaged");
        check(
            b"<html>not an archive</html>".repeat(100).as_slice(),
            "damaged",
        );
    }

    #[test]
    fn plain_and_zipped_archives_are_unpacked() {
        let remark = b"19 comment=for all\n";
        let mut header = Header::new_ustar();
        header.set_path("pax_global_header").unwrap();
        header.set_entry_type(EntryType::XGlobalHeader);
        header.set_size(remark.len() as u64);
        header.set_cksum();
        let mut builder = Builder::new(Vec::new());
        builder.append(&header, &remark[..]).unwrap();
        for (name, content) in [("./a.json", "{}"), ("deep/b.bin", "xyz")] {
            let mut header = Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o600);
            builder
                .append_data(&mut header, name, content.as_bytes())
                .unwrap();
        }
        let plain = builder.into_inner().unwrap();
        let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        zip.write_all(&plain).unwrap();
        for archive in [plain.clone(), zip.finish().unwrap()] {
            let folder = tempfile::tempdir().unwrap();
            let files = unpack(&archive[..], folder.path()).unwrap();
            assert_eq!(files.len(), 2);
            assert_eq!(fs::read(folder.path().join("deep/b.bin")).unwrap(), b"xyz");
        }
    }

    proptest! {
        /// Whatever the bytes are: no panic, and nothing outside the folder.
        #[test]
        fn no_bytes_write_outside_the_folder(
            name in "[./a\\\\:]{1,12}",
            kind in 0u8..=u8::MAX,
            place in 0usize..512,
            byte in any::<u8>(),
        ) {
            let mut archive = hostile(&name, EntryType::new(kind), None);
            archive[place] ^= byte;
            let home = tempfile::tempdir().unwrap();
            let _ = unpack(&archive[..], home.path().join("in"));
            prop_assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
        }
    }
}
