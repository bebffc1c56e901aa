//! Going on by itself when the service went away and came back.

use std::thread;
use std::time::Duration;

use crate::Result;
use crate::client::ServiceClient;
use crate::error::{Error, Meaning, Remedy};

/// How often a run is taken up again, and how long the service is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AutoResume {
    /// How often. Default: 10.
    pub attempts: u32,
    /// The pause before asking for the service again. Default: 5 s.
    pub pause: Duration,
    /// How often the service is asked for before giving up. Default: 720, an hour's worth.
    pub patience: u32,
}

impl Default for AutoResume {
    fn default() -> Self {
        Self {
            attempts: 10,
            pause: Duration::from_secs(5),
            patience: 720,
        }
    }
}

impl AutoResume {
    /// Takes a run up again so many times.
    pub fn attempts(attempts: u32) -> Self {
        Self {
            attempts,
            ..Self::default()
        }
    }

    /// Sets the pause before asking for the service again.
    #[must_use]
    pub fn with_pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Trains, and when the service is lost on the way waits until it is back, connects anew and
    /// trains again: a loop whose run is opened with
    /// [`Existing::Resume`](super::Existing::Resume) goes on from its last checkpoint.
    ///
    /// Results of steps that the service has accepted are waited for without limit, unless
    /// [`Config::with_result_patience`](crate::config::Config::with_result_patience) sets one: do so
    /// where the service may come back at another address.
    ///
    /// ```no_run
    /// use tinker::ServiceClient;
    /// use tinker::train::{AutoResume, Batches, Existing, Run, Supervised};
    ///
    /// # fn example(data: Batches) -> tinker::Result<()> {
    /// let report = AutoResume::default().run(ServiceClient::from_env, |service| {
    ///     let mut run = Run::open("runs/long", Existing::Resume)?;
    ///     Supervised::new("Qwen/Qwen3-8B").train(service, &mut run, &data)
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// At once what trying again cannot mend; else the last error, once every attempt is used up.
    pub fn run<T>(
        &self,
        mut connect: impl FnMut() -> Result<ServiceClient>,
        mut train: impl FnMut(&ServiceClient) -> Result<T>,
    ) -> Result<T> {
        let mut service = connect()?;
        for attempt in 1.. {
            let error = match train(&service) {
                Ok(result) => return Ok(result),
                Err(error) if attempt > self.attempts || !is_passing(&error) => return Err(error),
                Err(error) => error,
            };
            ::log::warn!("training stopped and is taken up again ({attempt}): {error}");
            // The old session is of no use any more; what it still held is lost with it.
            drop(service);
            service = self.reconnect(&mut connect)?;
        }
        unreachable!("attempts are counted without end")
    }

    fn reconnect(
        &self,
        connect: &mut impl FnMut() -> Result<ServiceClient>,
    ) -> Result<ServiceClient> {
        let mut asked = 0;
        loop {
            let reached = connect().and_then(|service| service.capabilities().map(|_| service));
            asked += 1;
            match reached {
                Err(error) if asked < self.patience && is_passing(&error) => {
                    ::log::info!("the service is not there yet: {error}");
                    thread::sleep(self.pause);
                }
                reached => return reached,
            }
        }
    }
}

/// Whether a fault can pass: the service forgot the model, broke off, or is away. A result that was
/// waited for as long as the settings allow is given up for the last checkpoint.
fn is_passing(error: &Error) -> bool {
    let remedy = error.remedy();
    matches!(
        remedy,
        Remedy::RestoreFromCheckpoint | Remedy::Resubmit | Remedy::Wait
    ) || error.meaning() == Some(Meaning::Missing)
}
