//! Which permits a sample needs, what is in use, and the pure decision between the two.

use std::time::{Duration, Instant};

/// How much may go on at once: the semaphores in front of the network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Submissions on the wire, of all samplers together.
    pub(crate) posts: usize,
    /// The same shortly after a backoff.
    pub(crate) narrow_posts: usize,
    /// Estimated bytes of submissions on the wire, of all samplers together.
    pub(crate) bytes: u64,
    /// Samples of one sampler between submission and result; `None` if waiting costs no thread.
    pub(crate) flights: Option<usize>,
    /// The same of all samplers together, as the process's descriptors allow.
    pub(crate) all_flights: usize,
    /// Whether descriptors keep the number of submissions down, too.
    pub(crate) few_posts: bool,
}

/// Samples in flight that are started at once; beyond them the number grows only while none ends,
/// so that a fast service is not met with a thread for every sample of a large batch.
const FLIGHTS_AT_ONCE: usize = 512;
/// The same of submissions, and of fetches, where waiting costs no thread: each is short.
pub(crate) const POLLED_AT_ONCE: usize = 40;

impl Limits {
    pub(super) fn at_once(&self) -> usize {
        match self.flights {
            Some(_) => FLIGHTS_AT_ONCE,
            None => POLLED_AT_ONCE,
        }
    }

    /// What costs a thread each.
    pub(super) fn under_way(&self, used: &Used) -> usize {
        match self.flights {
            Some(_) => used.flights,
            None => used.fresh.add(used.aging).add(used.silent).posts,
        }
    }

    /// The same for a sampler whose client allows only so many in flight.
    pub(super) fn for_lane(mut self, most: Option<usize>) -> Self {
        self.flights = self
            .flights
            .map(|all| most.map_or(all, |most| most.min(all)));
        self
    }
}

/// What a sampler may always have on the wire and in flight, however much the others have: one
/// that stalls must not starve the rest.
pub(crate) const SHARE: usize = 8;

/// A submission that goes unanswered for this long, or twice as long at most, no longer counts:
/// silent ones must not hold every permit until their timeout. Counting them, there are never
/// more than [`AMPLIFICATION`] times as many as the limit says, in number and in bytes.
pub(super) const SILENT: Duration = Duration::from_secs(5);

/// What a slow service may get at most, as a multiple of the limits on submissions.
pub(super) const AMPLIFICATION: usize = 2;

/// Submissions on the wire.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Load {
    pub(super) posts: usize,
    pub(super) bytes: i64,
}

impl Load {
    fn add(self, other: Self) -> Self {
        Self {
            posts: self.posts + other.posts,
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn is_within(&self, posts: usize, bytes: u64) -> bool {
        // As with every byte budget here, the last one in may overdraw it.
        self.posts < posts && self.bytes <= i64::try_from(bytes).unwrap_or(i64::MAX)
    }
}

/// What all samplers together have in use.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Used {
    /// Submissions of the present generation, of the one before, and older ones.
    pub(super) fresh: Load,
    pub(super) aging: Load,
    pub(super) silent: Load,
    pub(super) generation: u64,
    /// When the present generation began.
    pub(super) turned: Option<Instant>,
    pub(super) flights: usize,
    /// How many have ended of what costs a thread each.
    pub(super) ended: u64,
}

impl Used {
    /// Begins a new generation when the present one has lasted long enough.
    pub(super) fn turn(&mut self, now: Instant) {
        let turned = *self.turned.get_or_insert(now);
        if now.saturating_duration_since(turned) >= SILENT {
            self.silent = self.silent.add(self.aging);
            self.aging = std::mem::take(&mut self.fresh);
            self.generation += 1;
            self.turned = Some(now);
        }
    }

    pub(super) fn answered(&mut self, generation: u64, bytes: i64) {
        let load = match self.generation - generation {
            0 => &mut self.fresh,
            1 => &mut self.aging,
            _ => &mut self.silent,
        };
        load.posts -= 1;
        load.bytes -= bytes;
    }
}

/// What one sampler has in use.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Own {
    pub(super) load: Load,
    pub(super) flights: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    Start,
    /// Wait for a submission to be answered.
    NoPost,
    /// Wait for a sample of this sampler to end.
    NoFlight,
    /// Wait for any sample to end.
    Full,
    /// Wait for a sample to end; if none does for a while, allow more.
    Ramp,
}

/// Whether a sampler's next job may start.
pub(super) fn decide(
    limits: &Limits,
    ramp: usize,
    used: &Used,
    own: &Own,
    has_flight: bool,
    recent: bool,
) -> Decision {
    let (posts, share) = match recent {
        true => (limits.narrow_posts, 1),
        false => (limits.posts, SHARE),
    };
    let counting = used.fresh.add(used.aging);
    let all = counting.add(used.silent);
    let twice = limits.bytes.saturating_mul(AMPLIFICATION as u64);
    let fits = counting.is_within(posts, limits.bytes)
        && all.is_within(posts.saturating_mul(AMPLIFICATION), twice);
    let is_guaranteed = own.load.is_within(share.min(posts), limits.bytes);
    if !fits && !is_guaranteed {
        return Decision::NoPost;
    }
    if has_flight {
        return Decision::Start;
    }
    let owned = match limits.flights {
        Some(_) => own.flights,
        None => own.load.posts,
    };
    if own.flights >= limits.flights.unwrap_or(usize::MAX) {
        Decision::NoFlight
    } else if owned < SHARE.min(limits.all_flights) {
        Decision::Start
    } else if used.flights >= limits.all_flights {
        Decision::Full
    } else if limits.under_way(used) >= ramp {
        Decision::Ramp
    } else {
        Decision::Start
    }
}
