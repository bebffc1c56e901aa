//! How many connections fit into the process's limit on open files.
//!
//! Connections and files take descriptors from one purse. What connections may have leaves some
//! for the files that saving needs, and for answering those who come too many.

use std::io;

/// What is left to files, where there is enough.
const FILES: usize = 128;
/// Connections beyond the limit that still get an answer, at once.
const OVERFLOW: usize = 128;

/// How many connections there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share {
    /// Those that are served.
    pub(super) seats: usize,
    /// Those that are turned away with an answer.
    pub(super) overflow: usize,
}

impl Share {
    /// What this process allows, and no more than wanted.
    pub(super) fn of_process(wanted: usize) -> Self {
        Self::within(open_files(), wanted)
    }

    fn within(limit: Option<u64>, wanted: usize) -> Self {
        let all = limit.map_or(usize::MAX, |limit| {
            usize::try_from(limit).unwrap_or(usize::MAX)
        });
        let overflow = OVERFLOW.min(all / 8);
        let ours = all - FILES.min(all / 4) - overflow;
        Self {
            seats: wanted.min(ours.max(1)),
            overflow,
        }
    }
}

/// Whether a connection was not accepted because there are no descriptors left.
#[cfg(unix)]
pub(super) fn are_used_up(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let used_up = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
    used_up.contains(&error.raw_os_error())
}

#[cfg(not(unix))]
pub(super) fn are_used_up(_: &io::Error) -> bool {
    false
}

#[cfg(unix)]
fn open_files() -> Option<u64> {
    use rustix::process::{Resource, getrlimit};
    getrlimit(Resource::Nofile).current
}

#[cfg(not(unix))]
fn open_files() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_to_files() {
        for (limit, wanted, seats, overflow) in [
            (None, 4096, 4096, 128),
            (Some(1 << 20), 4096, 4096, 128),
            (Some(1024), 4096, 768, 128),
            (Some(1024), 4, 4, 128),
            (Some(160), 4096, 100, 20),
            (Some(0), 4096, 1, 0),
        ] {
            let share = Share { seats, overflow };
            assert_eq!(Share::within(limit, wanted), share, "{limit:?}");
        }
    }

    #[test]
    #[cfg(unix)]
    fn only_a_want_of_descriptors_is_one() {
        for (code, expected) in [(24, true), (23, true), (103, false)] {
            assert_eq!(are_used_up(&io::Error::from_raw_os_error(code)), expected);
        }
        assert!(!are_used_up(&io::Error::other("else")));
    }
}
