//! How many connections fit into the process's limit on open files.
//!
//! Every connection is a descriptor. A client that takes them all starves its own heartbeat and
//! the program's files; so it reads the limit (`ulimit -n`), leaves a quarter to the program, and
//! shares the rest out among its purposes.

/// Connections by purpose; one request each at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sockets {
    /// The process's limit; `None` if there is none that we know of.
    pub(crate) limit: Option<u64>,
    /// Samples whose results are awaited, each on a connection of its own.
    pub(crate) flights: usize,
    /// Submissions of samples beside those.
    pub(crate) posts: usize,
    /// Submissions of samples, and results fetched, where one connection polls for all.
    pub(crate) polled_posts: usize,
    pub(crate) fetches: usize,
    /// Results of training.
    pub(crate) waits: usize,
    /// Chunks being sent, and idle connections of any other purpose.
    pub(crate) others: usize,
}

impl Sockets {
    /// What this process allows. A server on this machine may live in this very process, and
    /// then each connection takes two descriptors.
    pub(crate) fn of_process(is_local: bool) -> Self {
        Self::within(crate::descriptors::limit(), is_local)
    }

    fn within(limit: Option<u64>, is_local: bool) -> Self {
        let open = limit.map_or(usize::MAX, |limit| {
            usize::try_from(limit).unwrap_or(usize::MAX)
        });
        let ours = open - open / 4;
        let ours = if is_local { ours / 2 } else { ours };
        let part = |eighths: usize| (ours / 8).saturating_mul(eighths).max(1);
        Self {
            limit,
            flights: part(4),
            posts: part(1),
            polled_posts: part(3),
            fetches: part(2),
            waits: part(1),
            // Five purposes share the rest.
            others: (part(2) / 5).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(limit: u64, is_local: bool, flights: usize, posts: usize, others: usize) {
        let sockets = Sockets::within(Some(limit), is_local);
        let seen = (sockets.flights, sockets.posts, sockets.others);
        assert_eq!(seen, (flights, posts, others));
        let each = if is_local { 2 } else { 1 };
        let apart = sockets.flights + sockets.posts;
        let polled = sockets.polled_posts + sockets.fetches;
        let all = apart.max(polled) + sockets.waits + 5 * sockets.others;
        assert!(all * each <= (limit - limit / 4) as usize);
    }

    #[test]
    fn connections_fit_and_leave_a_quarter_to_the_program() {
        check(128, false, 48, 12, 4);
        check(128, true, 24, 6, 2);
        check(256, false, 96, 24, 9);
        check(256, true, 48, 12, 4);
        check(1_024, false, 384, 96, 38);
        check(20_000, true, 3_748, 937, 374);
    }

    #[test]
    fn without_a_limit_nothing_is_held_back() {
        let sockets = Sockets::within(None, false);
        assert!(sockets.flights > 1_000_000 && sockets.others > 1_000_000);
        assert_eq!(sockets.limit, None);
    }

    #[test]
    #[cfg(unix)]
    fn the_process_has_a_limit() {
        assert!(crate::descriptors::limit().is_none_or(|limit| limit > 0));
    }
}
