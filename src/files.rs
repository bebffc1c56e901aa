//! Files that are there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// How half-written files end until they are complete.
pub(crate) const PARTIAL: &str = ".partial";

/// Writes a file, whose content may lie in several places, so that a crash leaves either the old
/// content or the new. It is made by `create`: a secret's is its owner's alone from the beginning.
pub(crate) fn replace(
    path: &Path,
    parts: &[&[u8]],
    create: impl FnOnce(&Path) -> io::Result<File>,
) -> io::Result<()> {
    // A link stays; what it leads to is replaced.
    let real = fs::canonicalize(path);
    let path = real.as_deref().unwrap_or(path);
    let folder = folder_of(path);
    let partial = folder.join(format!("{}{PARTIAL}", uuid::Uuid::new_v4()));
    put(path, &partial, |partial| {
        let mut file = create(partial)?;
        parts.iter().try_for_each(|part| file.write_all(part))?;
        file.sync_all()
    })?;
    sync_folder(folder).map_err(|error| {
        let problem = "the new content is there, but may not outlast a power failure";
        io::Error::new(error.kind(), format!("{problem}: {error}"))
    })
}

/// Makes something aside and puts it in its place in one step.
pub(crate) fn put(
    path: &Path,
    partial: &Path,
    make: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let made = make(partial).and_then(|()| fs::rename(partial, path));
    if made.is_err() {
        // What failed is reported; the leftover is not worth a second error.
        let _ = fs::remove_file(partial);
    }
    made
}

/// Makes a rename or a removal in a folder last.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    // Only Unix can open folders; elsewhere the rename itself has to do.
    if cfg!(unix) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// The folder a file is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_or_left_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let names = || fs::read_dir(folder.path()).unwrap().count();
        replace(&path, &[b"o", b"ne"], |partial| File::create(partial)).unwrap();
        replace(&path, &[b"two"], |partial| File::create(partial)).unwrap();
        assert_eq!(
            (fs::read(&path).unwrap().as_slice(), names()),
            (b"two".as_slice(), 1)
        );
        let read_only = |partial: &Path| File::create(partial).and_then(|_| File::open(partial));
        assert!(replace(&path, &[b"three"], read_only).is_err());
        assert_eq!(
            (fs::read(&path).unwrap().as_slice(), names()),
            (b"two".as_slice(), 1)
        );
        assert_eq!(folder_of(Path::new("file")), Path::new("."));
    }

    /// Such as a file of settings that is kept elsewhere.
    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        fs::write(&file, "old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        replace(&link, &[b"new"], |partial| File::create(partial)).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"new");
    }
}
