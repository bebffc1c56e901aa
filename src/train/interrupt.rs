//! Ending a run early, in an orderly way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A wish to end a run. Loops look at it between steps: they finish what is under way, save a
/// checkpoint of exactly that point, and return.
///
/// `Clone + Send + Sync` around one `Arc`.
///
/// ```
/// let interrupt = tinker::train::Interrupt::new();
/// let other = interrupt.clone();
/// std::thread::spawn(move || other.set()).join().unwrap();
/// assert!(interrupt.is_set());
/// ```
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Nobody wishes to end yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that Ctrl-C or a request to terminate sets. The second Ctrl-C ends the process at
    /// once, as if this did not exist.
    ///
    /// # Errors
    ///
    /// If the process may not handle signals.
    #[cfg(feature = "cli")]
    pub fn on_ctrl_c() -> crate::Result<Self> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        use signal_hook::flag;

        let interrupt = Self::new();
        // The order matters: the first signal finds the flag not set and passes to the second
        // handler, which sets it.
        let handled = flag::register_conditional_shutdown(SIGINT, 130, interrupt.0.clone())
            .and_then(|_| flag::register(SIGINT, interrupt.0.clone()))
            .and_then(|_| flag::register(SIGTERM, interrupt.0.clone()));
        match handled {
            Ok(_) => Ok(interrupt),
            Err(error) => Err(crate::Error::Internal(crate::error::Context::caused(
                "cannot handle signals",
                error,
            ))),
        }
    }

    /// Asks for the end.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether someone has.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
