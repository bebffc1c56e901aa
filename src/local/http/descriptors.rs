//! How many connections fit into the process's limit on open files.
//!
//! Connections and files take descriptors from one purse. What connections may have leaves some
//! for the files that saving needs, and for answering those who come too many.

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
        Self::within(crate::descriptors::limit(), wanted)
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
}
