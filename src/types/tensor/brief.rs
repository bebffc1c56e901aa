//! Short `Debug` output for long lists.

use std::fmt;

/// A slice whose `Debug` shows the first few entries and the count.
pub(crate) struct Brief<'a, T>(pub(crate) &'a [T]);

impl<T: fmt::Debug> fmt::Debug for Brief<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_list(self.0, f)
    }
}

pub(super) fn debug_list<T: fmt::Debug>(values: &[T], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    const SHOWN: usize = 8;
    if values.len() <= SHOWN {
        return write!(f, "{values:?}");
    }
    f.write_str("[")?;
    for value in &values[..SHOWN] {
        write!(f, "{value:?}, ")?;
    }
    write!(f, "… {} in all]", values.len())
}
