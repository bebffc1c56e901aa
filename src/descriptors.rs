//! The process's limit on open files, which connections and files share.

use std::io;

/// How many files may be open; `None` where there is no limit.
#[cfg(unix)]
pub(crate) fn limit() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current
}

#[cfg(not(unix))]
pub(crate) fn limit() -> Option<u64> {
    None
}

/// Whether something could not be opened because this process (`EMFILE`) or the system (`ENFILE`)
/// has too much open.
pub(crate) fn are_used_up(error: &io::Error) -> bool {
    cfg!(unix) && matches!(error.raw_os_error(), Some(23 | 24))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_a_want_of_descriptors_is_one() {
        for (code, expected) in [(24, true), (23, true), (103, false)] {
            assert_eq!(are_used_up(&io::Error::from_raw_os_error(code)), expected);
        }
        assert!(!are_used_up(&io::Error::other("else")));
    }
}
