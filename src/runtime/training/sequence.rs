//! A model's sequence numbers: what a failed submission does to them.
//!
//! The service runs a model's requests in the order of consecutive numbers, so a number that was
//! refused and never used again would hold up every later request for ever.

use crate::error::{Effect, Error, Meaning};

/// What became of one numbered request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The service has it, or says the number is taken already.
    Accepted,
    /// The service answered for good that it will not take it.
    Refused,
    /// No answer after the last retry: it may or may not have arrived.
    Unknown,
}

/// What a 409 may be about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// The number, which someone has used, probably an earlier attempt.
    Number,
    /// The name of what was to be saved.
    Name,
}

/// What an error tells about the number the request carried. A 409 to a number says that the service
/// has it, from an earlier attempt; SkyRL 0.3.0 ignores numbers, and its 409 is about a name in use. A
/// number that an attempt may have
/// used is never given to another request, whatever later attempts were told.
pub(crate) fn classify(error: &Error, about: Conflict) -> Sent {
    let conflict = error.meaning() == Some(Meaning::Conflict);
    match (error.effect(), about) {
        (Effect::None, Conflict::Name) => Sent::Refused,
        _ if conflict => Sent::Accepted,
        (Effect::None, Conflict::Number) => Sent::Refused,
        _ => Sent::Unknown,
    }
}

/// How the sequence goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sequel {
    /// Fill these numbers, then go on with `next`.
    Next { next: i32, holes: Vec<i32> },
    /// This number may or may not have been used: nothing can follow it.
    Broken { number: i32 },
}

/// Settles the requests of one call, numbered from `first` on.
///
/// Numbers that were refused after the last accepted one go back to the next operation; those
/// before it have become holes.
pub(crate) fn settle(first: i32, sent: &[Sent]) -> Sequel {
    let numbered = || (first..).zip(sent);
    if let Some((number, _)) = numbered().find(|(_, sent)| **sent == Sent::Unknown) {
        return Sequel::Broken { number };
    }
    let next = numbered()
        .filter(|(_, sent)| **sent == Sent::Accepted)
        .map(|(number, _)| number + 1)
        .last()
        .unwrap_or(first);
    let holes = numbered()
        .filter(|(number, sent)| *number < next && **sent == Sent::Refused)
        .map(|(number, _)| number)
        .collect();
    Sequel::Next { next, holes }
}

#[cfg(test)]
mod tests {
    use super::Sent::{Accepted as A, Refused as R, Unknown as U};
    use super::*;
    use crate::error::Context;

    /// The last answer, if any, and what is known of all attempts.
    #[test]
    fn a_number_that_may_have_been_used_is_not_free() {
        #[track_caller]
        fn check(status: Option<u16>, effect: Effect, about: Conflict, expected: Sent) {
            let mut context = Context::new("x");
            (context.status, context.effect) = (status, effect);
            assert_eq!(classify(&Error::Status(context), about), expected);
        }
        use Conflict::{Name, Number};
        for status in [400, 401, 402, 403, 404, 413, 422, 429] {
            check(Some(status), Effect::None, Number, R);
            check(Some(status), Effect::Unknown, Number, U);
        }
        check(Some(503), Effect::Unknown, Number, U);
        check(None, Effect::None, Number, R);
        check(None, Effect::Unknown, Number, U);
        check(Some(409), Effect::None, Number, A);
        check(Some(409), Effect::Unknown, Number, A);
        check(Some(409), Effect::None, Name, R);
        check(Some(409), Effect::Unknown, Name, A);
    }

    #[track_caller]
    fn check(sent: &[Sent], next: i32, holes: &[i32]) {
        let holes = holes.to_vec();
        assert_eq!(settle(7, sent), Sequel::Next { next, holes });
    }

    #[test]
    fn accepted_numbers_are_used() {
        check(&[A], 8, &[]);
        check(&[A, A, A], 10, &[]);
    }

    #[test]
    fn a_refused_number_at_the_end_is_given_back() {
        check(&[R], 7, &[]);
        check(&[A, A, R], 9, &[]);
        check(&[A, R, R], 8, &[]);
        check(&[R, R], 7, &[]);
    }

    #[test]
    fn a_refused_number_before_an_accepted_one_is_a_hole() {
        check(&[R, A, A], 10, &[7]);
        check(&[A, R, A, R], 10, &[8]);
    }

    #[test]
    fn an_unknown_number_breaks_the_sequence() {
        assert_eq!(settle(7, &[A, U, R]), Sequel::Broken { number: 8 });
        assert_eq!(settle(1, &[U]), Sequel::Broken { number: 1 });
    }
}
