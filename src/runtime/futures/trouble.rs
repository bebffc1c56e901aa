//! A poll that brought no result: read alike, whether it asked for one or for many.

use std::time::SystemTime;

use crate::error::{Error, Meaning};
use crate::runtime::calls::{AttemptError, Link};
use crate::transport::Response;
use crate::transport::retry::error_from_response;

/// Spurious 400s that are forgiven in a row, as many as the reference forgives. SkyRL's word for a
/// failed operation is a 400 too: it comes again each time, and the fourth surfaces.
pub(super) const FORGIVEN: u32 = 3;

/// Any answer that is no result, or none.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub(super) meaning: Meaning,
    pub(super) error: Error,
    /// Whether a 402 falls into the pause that the service grants for topping up.
    pub(super) paused: bool,
}

impl Trouble {
    pub(super) fn new(meaning: Meaning, error: Error) -> Self {
        Self {
            meaning,
            error,
            paused: false,
        }
    }

    /// The service answered with an error.
    pub(super) fn refused(link: &Link, response: &Response, label: &str) -> Self {
        let meaning = Meaning::of_status(response.status());
        Self {
            paused: meaning == Meaning::Unpaid && link.billing_pause(),
            ..Self::new(
                meaning,
                error_from_response(response, label, SystemTime::now()),
            )
        }
    }

    /// No answer came.
    pub(super) fn unanswered(failed: AttemptError, label: &str) -> Self {
        let (meaning, error) = failed.read(label);
        Self::new(meaning, error)
    }
}
