//! Which process something belongs to.

/// The process that made something. Threads and sessions do not follow a `fork`: a child that
/// drops its copies must leave the parent's alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Self {
        Self(std::process::id())
    }

    /// A process that this one is not.
    #[cfg(test)]
    pub(crate) fn other() -> Self {
        Self(0)
    }

    /// Whether this code runs in that process.
    pub(crate) fn is_this(self) -> bool {
        self == Self::current()
    }
}
