//! The fault matrix, over real sockets: every row of the protocol's tables of futures, the
//! poller, dispatch, retries and the session is a test of its own name, and so is every
//! deliberate difference from the reference; `promises` says what all of them are for. This lists
//! it:
//!
//! ```text
//! cargo test --test it faults:: -- --list
//! ```
//!
//! Delays are asserted as the list a recorded clock was asked for; nothing sleeps.

mod crowds;
mod differences;
mod dispatch;
mod effect;
mod futures;
mod newer;
mod poller;
mod promises;
mod reach;
mod retry;
mod session;

use serde_json::json;
use tinker::error::ErrorCategory;
use tinker::{Error, ModelInput, SampleResponse, SamplingClient, SamplingParams};

use crate::support::fake::Fake;
use crate::support::scripted::Reply;

/// One test per line: its name, the answers that go first, how it ends, the waits in seconds.
macro_rules! rows {
    ($check:ident; $($name:ident: $answers:expr => $end:expr, $pauses:expr;)*) => {
        $(
            #[test]
            fn $name() {
                $check($answers.into(), $end, &$pauses);
            }
        )*
    };
}
pub(crate) use rows;

/// How an operation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    Status(u16),
    Failed(ErrorCategory),
    /// An answer of the wrong shape.
    Reply,
    Lost,
    Broken,
    Connection,
}

impl End {
    fn of<T>(result: &tinker::Result<T>) -> Self {
        match result {
            Ok(_) => Self::Done,
            Err(Error::Status(_)) => Self::Status(result.as_ref().err().unwrap().status().unwrap()),
            Err(Error::Failed(context)) => Self::Failed(context.category.unwrap()),
            Err(Error::Reply(_)) => Self::Reply,
            Err(Error::Lost(_)) => Self::Lost,
            Err(Error::Broken(_)) => Self::Broken,
            Err(Error::Connection(_)) => Self::Connection,
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// The service's own answer with this status; an empty one would be a proxy's.
fn status(status: u16) -> Reply {
    Reply::json(&json!({"detail": "scripted"})).with_status(status)
}

fn try_again() -> Reply {
    Reply::json(&json!({"type": "try_again"}))
}

fn times(count: usize, reply: impl Fn() -> Reply) -> Vec<Reply> {
    (0..count).map(|_| reply()).collect()
}

fn prompt(tokens: usize) -> ModelInput {
    ModelInput::from_ints(vec![1; tokens])
}

/// Samples with a prompt of one token.
fn sample(sampler: &SamplingClient) -> tinker::Result<SampleResponse> {
    sampler.sample(&prompt(1), SamplingParams::max_tokens(4))
}

/// The numbers under which samples were submitted, in order.
fn sample_numbers(fake: &Fake) -> Vec<u64> {
    let number = |body: &serde_json::Value| body["seq_id"].as_u64().unwrap();
    fake.bodies("asample").iter().map(number).collect()
}
