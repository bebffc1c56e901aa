//! A session that says how it ended.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::service::ServiceClient;
use crate::types::FinishReason;

impl ServiceClient {
    /// Runs `work` and closes the client as it ended: well, or with its error. A program that
    /// merely returns an error from `main` drops its client as if all had gone well.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tinker::ServiceClient;
    ///
    /// let service = ServiceClient::local()?;
    /// let models = service.scope(|service| {
    ///     let offered = service.capabilities()?.supported_models;
    ///     Ok::<_, tinker::Error>(offered.len())
    /// })?;
    /// assert!(models > 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// What `work` returned. A session that could not be closed is only logged.
    ///
    /// # Panics
    ///
    /// If `work` does, after the session was closed as errored.
    #[doc(alias = "__exit__")]
    pub fn scope<T, E: fmt::Display>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, E>,
    ) -> Result<T, E> {
        let outcome = catch_unwind(AssertUnwindSafe(|| work(self)));
        let (reason, detail) = match &outcome {
            Ok(Ok(_)) => (FinishReason::Success, None),
            Ok(Err(error)) => (FinishReason::Errored, Some(error.to_string())),
            Err(_) => (FinishReason::Errored, Some("panicked".to_owned())),
        };
        if let Err(error) = self.close_as(reason, detail.as_deref()) {
            log::warn!("closing the session: {error}");
        }
        outcome.unwrap_or_else(|panic| resume_unwind(panic))
    }
}
