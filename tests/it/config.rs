//! Stored keys: two processes change one file at once and nothing is lost or torn.

use std::process::{Child, Command, Stdio};

use tinker::config::{CredentialStore, StoredKey};

const CHANGES: usize = 50;

fn writer(name: &str, path: &std::path::Path) -> Child {
    Command::new(std::env::current_exe().expect("the test binary"))
        .args(["--exact", "config::two_processes_lose_no_stored_key"])
        .env("TINKER_TEST_STORE", path)
        .env("TINKER_TEST_WRITER", name)
        .stdout(Stdio::null())
        .spawn()
        .expect("a second process")
}

#[test]
fn two_processes_lose_no_stored_key() {
    if let (Ok(path), Ok(name)) = (
        std::env::var("TINKER_TEST_STORE"),
        std::env::var("TINKER_TEST_WRITER"),
    ) {
        return write(CredentialStore::new(path), &name);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("credentials.json");
    let store = CredentialStore::new(&path);
    let mut writers = [writer("a", &path), writer("b", &path)];
    // Every read along the way sees a whole file.
    while writers
        .iter_mut()
        .any(|child| child.try_wait().expect("a child").is_none())
    {
        store.load().expect("a whole file");
    }
    for mut child in writers {
        assert!(child.wait().expect("a child").success());
    }
    let keys = store.load().expect("a whole file");
    for name in ["a", "b"] {
        for number in 0..CHANGES {
            let id = format!("{name}{number}");
            let key = keys.get(&id).unwrap_or_else(|| panic!("{id} was lost"));
            assert_eq!(key.key().expose(), format!("tml-{id}"));
        }
    }
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name.to_string_lossy().ends_with(".tmp"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// What each of the two processes does.
fn write(store: CredentialStore, name: &str) {
    for number in 0..CHANGES {
        let id = format!("{name}{number}");
        store
            .update(|keys| {
                keys.insert(id.as_str(), StoredKey::manual(format!("tml-{id}"), "n"));
                keys.set_default(Some(&id));
            })
            .expect("a change");
    }
}
