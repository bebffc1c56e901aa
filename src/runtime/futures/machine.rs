//! One future's life: what an answer to `retrieve_future` means and what to do next.
//!
//! The decisions are pure; [`Watch`](super::watch::Watch) carries them out. Where they differ from the
//! reference it is on purpose: a poll that timed out means "still pending", failures back off
//! with jitter and end after a patience, damaged answers are fetched again, and a future the
//! service does not know is lost rather than a mystery.

use std::time::{Duration, Instant};

use super::trouble::{FORGIVEN, Trouble};
use crate::error::{Context, Error, Meaning};
use crate::runtime::calls::BILLING_PAUSE;
use crate::transport::retry::{Backoff, wish};

/// What one poll brought.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Not finished: a `try_again`, or a 408, whose JSON body clears the count of 400s.
    Pending { clears: bool },
    /// Finished; the payload of this size is to be asked for.
    MetadataOnly(u64),
    /// The service ran the request and it failed.
    Failed(Error),
    /// A success that cannot be read: cut short, malformed, of the wrong shape.
    Damaged(Error),
    /// Any other answer, or none.
    Trouble(Trouble),
}

/// What to do about it.
#[derive(Debug)]
pub(crate) enum Verdict {
    Poll,
    Wait(Duration),
    /// Reserve this many bytes, then ask for the payload.
    Fetch(u64),
    /// Final.
    Fail(Error),
    /// The service lost the request: a sample may be submitted again.
    Lost(Error),
}

/// Damaged answers that are fetched again in a row.
const REFETCHES: u32 = 8;

/// The state of one future between polls.
#[derive(Debug)]
pub(crate) struct Machine {
    /// How long failures in a row are borne; for ever if `None`.
    patience: Option<Duration>,
    iteration: u32,
    fetching: bool,
    bad_requests: u32,
    failures: u32,
    damaged: u32,
    failing_since: Option<Instant>,
}

impl Machine {
    pub(crate) fn new(patience: Option<Duration>) -> Self {
        Self {
            patience,
            iteration: 0,
            fetching: false,
            bad_requests: 0,
            failures: 0,
            damaged: 0,
            failing_since: None,
        }
    }

    /// Starts at the payload: a poller already told that the request is finished.
    pub(crate) fn fetching(patience: Option<Duration>) -> Self {
        Self {
            fetching: true,
            ..Self::new(patience)
        }
    }

    /// How many polls have been answered, or not.
    pub(crate) fn iteration(&self) -> u32 {
        self.iteration
    }

    /// Whether a finished result may be announced by its size alone.
    pub(crate) fn allows_metadata_only(&self) -> bool {
        !self.fetching
    }

    /// Takes one answer. `jitter` in 0..1 shortens a delay by up to a quarter.
    pub(crate) fn next(&mut self, answer: Answer, now: Instant, jitter: f64) -> Verdict {
        self.iteration += 1;
        match answer {
            Answer::Pending { clears } => {
                self.recovered();
                if clears {
                    self.bad_requests = 0;
                }
                Verdict::Poll
            }
            Answer::MetadataOnly(_) if self.fetching => Verdict::Fail(Error::Reply(Context::new(
                "the service announced the result again instead of sending it",
            ))),
            Answer::MetadataOnly(size) => {
                self.recovered();
                self.fetching = true;
                Verdict::Fetch(size)
            }
            Answer::Failed(error) => Verdict::Fail(error),
            Answer::Damaged(error) => {
                self.damaged += 1;
                if self.damaged > REFETCHES {
                    return Verdict::Fail(error);
                }
                self.back_off(error, now, jitter)
            }
            Answer::Trouble(trouble) => self.trouble(trouble, now, jitter),
        }
    }

    /// Since when polls have failed without a break.
    pub(crate) fn failing_since(&self) -> Option<Instant> {
        self.failing_since
    }

    fn trouble(&mut self, trouble: Trouble, now: Instant, jitter: f64) -> Verdict {
        let Trouble {
            meaning,
            error,
            paused,
        } = trouble;
        match meaning {
            // SkyRL holds a poll for up to 300 s, longer than we read; the hosted service ends it
            // with a 408 after 45 s or so. Both mean "still pending", and so what failed before has
            // passed.
            Meaning::Pending => {
                self.recovered();
                Verdict::Poll
            }
            Meaning::Busy => {
                // The service is alive and asks for patience: this may go on.
                self.failing_since = None;
                let delay = self.delay(jitter);
                Verdict::Wait(wish(&error).unwrap_or(delay))
            }
            Meaning::Failing | Meaning::Unreached | Meaning::BrokenOff => {
                self.back_off(error, now, jitter)
            }
            Meaning::BadRequest if self.bad_requests < FORGIVEN => {
                self.recovered();
                self.bad_requests += 1;
                Verdict::Poll
            }
            Meaning::Unpaid if paused => Verdict::Wait(BILLING_PAUSE),
            // The hosted service says 410 of a promise it has lost, SkyRL after a restart 404.
            meaning if meaning.is_unknown() => Verdict::Lost(lost(error)),
            _ => Verdict::Fail(error),
        }
    }

    fn back_off(&mut self, error: Error, now: Instant, jitter: f64) -> Verdict {
        let since = *self.failing_since.get_or_insert(now);
        let spent = now.saturating_duration_since(since);
        if self.patience.is_some_and(|patience| spent >= patience) {
            return Verdict::Fail(error);
        }
        Verdict::Wait(self.delay(jitter))
    }

    fn delay(&mut self, jitter: f64) -> Duration {
        let delay = Backoff::OUTAGE.delay(self.failures, jitter);
        self.failures = self.failures.saturating_add(1);
        delay
    }

    fn recovered(&mut self) {
        self.failures = 0;
        self.damaged = 0;
        self.failing_since = None;
    }
}

fn lost(error: Error) -> Error {
    let mut context = error.context().cloned().unwrap_or_default();
    if context.message.is_empty() {
        context.message = "it no longer knows this request".into();
    }
    Error::Lost(Box::new(context))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Option<Duration> = Some(Duration::from_secs(300));

    fn status(status: u16) -> Answer {
        let mut context = Context::new("scripted");
        context.status = Some(status);
        let meaning = Meaning::of_status(status);
        Answer::Trouble(Trouble::new(meaning, Error::Status(context)))
    }

    fn pending(clears: bool) -> Answer {
        Answer::Pending { clears }
    }

    fn trouble(meaning: Meaning) -> Answer {
        let error = Error::Connection(Context::new("reset"));
        Answer::Trouble(Trouble::new(meaning, error))
    }

    fn fault() -> Answer {
        trouble(Meaning::BrokenOff)
    }

    /// Feeds the answers and lists what each led to; waits move the time on.
    #[track_caller]
    fn check(answers: Vec<Answer>, expected: &[&str]) {
        let mut machine = Machine::new(PATIENCE);
        let mut now = Instant::now();
        let seen: Vec<String> = answers
            .into_iter()
            .map(|answer| match machine.next(answer, now, 0.0) {
                Verdict::Poll => "poll".into(),
                Verdict::Wait(delay) => {
                    now += delay;
                    format!("wait {}", delay.as_secs_f64())
                }
                Verdict::Fetch(size) => format!("fetch {size}"),
                Verdict::Fail(error) => format!("fail {error:?}")
                    .chars()
                    .take_while(|c| *c != '(')
                    .collect(),
                Verdict::Lost(_) => "lost".into(),
            })
            .collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn pending_answers_are_polled_again_at_once() {
        check(
            vec![pending(false), trouble(Meaning::Pending), pending(true)],
            &["poll", "poll", "poll"],
        );
    }

    #[test]
    fn metadata_is_followed_by_the_payload_and_may_not_come_twice() {
        check(
            vec![Answer::MetadataOnly(123), Answer::MetadataOnly(1)],
            &["fetch 123", "fail Reply"],
        );
    }

    #[test]
    fn failures_double_the_wait_up_to_thirty_seconds_and_recover() {
        check(
            (0..7).map(|_| fault()).collect(),
            &[
                "wait 1", "wait 2", "wait 4", "wait 8", "wait 16", "wait 30", "wait 30",
            ],
        );
        check(
            vec![fault(), status(503), pending(false), status(500)],
            &["wait 1", "wait 2", "poll", "wait 1"],
        );
    }

    #[test]
    fn failures_in_a_row_surface_when_patience_ends() {
        let waits = [1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30, 30, 30];
        let mut expected: Vec<String> = waits.iter().map(|s| format!("wait {s}")).collect();
        expected.push("fail Status".into());
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        check((0..15).map(|_| status(500)).collect(), &expected);
    }

    /// Two bad moments with hours of long polls between them are no failures in a row.
    #[test]
    fn a_poll_that_is_held_ends_the_row() {
        let mut machine = Machine::new(PATIENCE);
        let mut now = Instant::now();
        for _ in 0..3 {
            let verdict = machine.next(fault(), now, 0.0);
            assert!(matches!(verdict, Verdict::Wait(delay) if delay == Duration::from_secs(1)));
            assert!(machine.failing_since().is_some());
            for _ in 0..10 {
                now += Duration::from_secs(45);
                let held = machine.next(trouble(Meaning::Pending), now, 0.0);
                assert!(matches!(held, Verdict::Poll));
            }
            assert_eq!(machine.failing_since(), None);
        }
    }

    #[test]
    fn without_a_limit_failures_are_borne_for_ever() {
        let mut machine = Machine::new(None);
        let (start, mut now) = (Instant::now(), Instant::now());
        for _ in 0..100_000 {
            match machine.next(fault(), now, 0.0) {
                Verdict::Wait(delay) => now += delay,
                other => panic!("{other:?}"),
            }
        }
        assert!(now - start > Duration::from_secs(30 * 86_400));
        assert_eq!(
            machine
                .failing_since()
                .map(|since| since <= start + Duration::from_secs(1)),
            Some(true)
        );
    }

    #[test]
    fn rate_limits_wait_without_an_end() {
        let answers: Vec<_> = (0..40).map(|_| status(429)).collect();
        let mut expected = vec!["wait 1", "wait 2", "wait 4", "wait 8", "wait 16"];
        expected.resize(40, "wait 30");
        check(answers, &expected);
    }

    #[test]
    fn a_rate_limit_honours_the_wait_it_names() {
        let mut context = Context::new("slow down");
        context.retry_after = Some(Duration::from_millis(5));
        let busy = Trouble::new(Meaning::Busy, Error::Status(context));
        check(vec![Answer::Trouble(busy)], &["wait 0.005"]);
    }

    #[test]
    fn three_bad_requests_are_forgiven_and_a_408_with_json_forgives_more() {
        check(
            vec![status(400), status(400), status(400), status(400)],
            &["poll", "poll", "poll", "fail Status"],
        );
        check(
            vec![
                status(400),
                pending(true),
                status(400),
                status(400),
                status(400),
            ],
            &["poll", "poll", "poll", "poll", "poll"],
        );
        check(
            vec![
                status(400),
                status(400),
                pending(false),
                status(400),
                status(400),
            ],
            &["poll", "poll", "poll", "poll", "fail Status"],
        );
    }

    #[test]
    fn damaged_answers_are_fetched_again_a_bounded_number_of_times() {
        let damaged = || Answer::Damaged(Error::Reply(Context::new("cut short")));
        check(
            vec![damaged(), pending(false), damaged()],
            &["wait 1", "poll", "wait 1"],
        );
        let mut machine = Machine::new(None);
        let now = Instant::now();
        let waits = (0..20)
            .take_while(|_| matches!(machine.next(damaged(), now, 0.0), Verdict::Wait(_)))
            .count();
        assert_eq!(waits, REFETCHES as usize);
    }

    #[test]
    fn statuses_are_final_or_lost() {
        for code in [401, 403, 409, 422, 425, 402] {
            check(vec![status(code)], &["fail Status"]);
        }
        for code in [404, 410] {
            check(vec![status(code)], &["lost"]);
        }
    }

    #[test]
    fn an_unpaid_bill_waits_while_the_pause_lasts() {
        let unpaid = Trouble {
            paused: true,
            ..Trouble::new(Meaning::Unpaid, Error::Status(Context::new("pay")))
        };
        check(vec![Answer::Trouble(unpaid)], &["wait 5"]);
    }

    #[test]
    fn jitter_shortens_by_up_to_a_quarter() {
        let mut machine = Machine::new(PATIENCE);
        let verdict = machine.next(fault(), Instant::now(), 1.0);
        assert!(matches!(verdict, Verdict::Wait(delay) if delay == Duration::from_millis(750)));
    }
}
