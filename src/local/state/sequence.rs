//! The order of one model's requests, and what a repeated number means.

use std::collections::{BTreeMap, VecDeque};

/// How many numbers are remembered with what they stood for.
const REMEMBERED: usize = 4096;
/// How many requests may wait for lower numbers.
const HELD: usize = 10_000;

/// Puts a model's requests in the order of their numbers.
///
/// Clients number requests from 1 and may send later ones first: the chunks of a large call go out
/// side by side, the first chunk last. A number that comes again is a repeated submission.
#[derive(Debug)]
pub(in crate::local) struct Sequence<T> {
    next: u64,
    held: BTreeMap<u64, T>,
    /// Digests of the requests with the latest numbers.
    taken: BTreeMap<u64, u64>,
}

/// What becomes of a request.
#[derive(Debug, PartialEq)]
pub(in crate::local) enum Admission<T> {
    /// These may run now, in this order.
    Ready(VecDeque<T>),
    /// Waits for lower numbers.
    Held,
    /// Was here before.
    Repeated,
    /// The number belongs to another request.
    Taken,
    /// Too many wait already.
    Full,
}

impl<T> Default for Sequence<T> {
    fn default() -> Self {
        Self {
            next: 1,
            held: BTreeMap::new(),
            taken: BTreeMap::new(),
        }
    }
}

impl<T> Sequence<T> {
    /// Goes on from a number; those below it were used.
    pub(in crate::local) fn from(next: u64) -> Self {
        Self {
            next,
            ..Self::default()
        }
    }

    /// The number everything else waits for.
    pub(in crate::local) fn next(&self) -> u64 {
        self.next
    }

    /// How many wait for lower numbers.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Whether a request was here before.
    pub(in crate::local) fn knows(&self, number: Option<u64>) -> bool {
        number.is_some_and(|number| number < self.next || self.taken.contains_key(&number))
    }

    /// Whether a request would wait for lower numbers, or does.
    pub(in crate::local) fn would_hold(&self, number: Option<u64>) -> bool {
        number.is_some_and(|number| number > self.next)
    }

    /// Takes a request in. One without a number runs at once; `digest` tells requests apart.
    pub(in crate::local) fn admit(
        &mut self,
        number: Option<u64>,
        digest: u64,
        request: T,
    ) -> Admission<T> {
        let Some(number) = number else {
            return Admission::Ready(VecDeque::from([request]));
        };
        match self.taken.get(&number) {
            Some(earlier) if *earlier == digest => return Admission::Repeated,
            Some(_) => return Admission::Taken,
            // Forgotten, but certainly used.
            None if number < self.next => return Admission::Repeated,
            None if self.held.len() >= HELD && number != self.next => return Admission::Full,
            None => {}
        }
        self.taken.insert(number, digest);
        self.held.insert(number, request);
        let mut ready = VecDeque::new();
        while let Some(request) = self.held.remove(&self.next) {
            ready.push_back(request);
            self.next += 1;
        }
        while self.taken.len() > REMEMBERED + self.held.len() {
            self.taken.pop_first();
        }
        if ready.is_empty() {
            Admission::Held
        } else {
            Admission::Ready(ready)
        }
    }

    /// Gives up everything that waits.
    pub(in crate::local) fn drain(&mut self) -> Vec<T> {
        std::mem::take(&mut self.held).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(requests: impl IntoIterator<Item = u64>) -> Admission<u64> {
        Admission::Ready(requests.into_iter().collect())
    }

    #[test]
    fn holds_later_numbers_until_the_lower_ones_are_there() {
        let mut sequence = Sequence::default();
        assert_eq!(sequence.admit(Some(3), 3, 3), Admission::Held);
        assert!(sequence.would_hold(Some(2)));
        assert_eq!(sequence.admit(Some(2), 2, 2), Admission::Held);
        assert!(![None, Some(1)].iter().any(|one| sequence.would_hold(*one)));
        let known = [None, Some(1), Some(2), Some(3), Some(4)].map(|one| sequence.knows(one));
        assert_eq!(known, [false, false, true, true, false]);
        assert_eq!(sequence.next(), 1);
        assert_eq!(sequence.admit(Some(1), 1, 1), ready([1, 2, 3]));
        assert_eq!(sequence.admit(Some(4), 4, 4), ready([4]));
        assert_eq!(sequence.admit(None, 9, 9), ready([9]));
        assert_eq!(sequence.admit(Some(5), 5, 5), ready([5]));
    }

    #[test]
    fn tells_repetitions_from_conflicts() {
        let mut sequence = Sequence::default();
        assert_eq!(sequence.admit(Some(2), 20, 2), Admission::Held);
        assert_eq!(sequence.admit(Some(2), 20, 2), Admission::Repeated);
        assert_eq!(sequence.admit(Some(2), 21, 2), Admission::Taken);
        assert_eq!(sequence.admit(Some(1), 10, 1), ready([1, 2]));
        assert_eq!(sequence.admit(Some(1), 10, 1), Admission::Repeated);
        assert_eq!(sequence.admit(Some(1), 11, 1), Admission::Taken);
    }

    #[test]
    fn goes_on_where_another_stopped() {
        let mut sequence = Sequence::from(5);
        assert_eq!(sequence.admit(Some(4), 4, 4), Admission::Repeated);
        assert_eq!(sequence.admit(Some(6), 6, 6), Admission::Held);
        assert_eq!(sequence.admit(Some(5), 5, 5), ready([5, 6]));
    }

    #[test]
    fn memory_is_bounded() {
        let mut sequence = Sequence::default();
        for number in 1..=2 * REMEMBERED as u64 {
            sequence.admit(Some(number), number, number);
        }
        assert_eq!(sequence.taken.len(), REMEMBERED);
        assert_eq!(sequence.admit(Some(1), 99, 1), Admission::Repeated);
        let first = sequence.next() + 1;
        for number in first..first + HELD as u64 {
            assert_eq!(sequence.admit(Some(number), 0, number), Admission::Held);
        }
        assert_eq!(
            sequence.admit(Some(first - 2 + 2 * HELD as u64), 0, 0),
            Admission::Full
        );
        assert_eq!(sequence.drain().len(), HELD);
    }
}
