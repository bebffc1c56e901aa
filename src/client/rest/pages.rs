//! Lists that come in pages, as iterators.

use std::fmt;
use std::vec;

use crate::error::{Error, Result};
use crate::types::{AccessScope, Cursor};

/// What part of a list to ask for.
///
/// A number of records a page, or whose records, will do wherever one is taken.
///
/// ```
/// use tinker::client::ListOptions;
/// use tinker::types::AccessScope;
///
/// let options = ListOptions::default().with_limit(50).with_access_scope(AccessScope::Accessible);
/// # let _ = options;
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListOptions {
    /// How many records a page holds; a whole list takes at least 1. Default: 100 for checkpoints,
    /// 20 for everything else.
    pub limit: Option<u32>,
    /// How many records to skip. Default: 0.
    pub offset: u64,
    /// Whose records; lists of checkpoints have the caller's own only. Default: the caller's own.
    pub access_scope: AccessScope,
    /// The runs of this project only. Default: of all.
    pub project_id: Option<String>,
}

impl ListOptions {
    /// Sets how many records a page holds.
    #[must_use]
    pub fn with_limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sets how many records to skip.
    #[must_use]
    pub fn with_offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Sets whose records to list.
    #[must_use]
    pub fn with_access_scope(mut self, scope: AccessScope) -> Self {
        self.access_scope = scope;
        self
    }

    /// Lists the runs of one project.
    #[must_use]
    pub fn with_project(mut self, id: impl Into<String>) -> Self {
        self.project_id = Some(id.into());
        self
    }
}

impl From<&ListOptions> for ListOptions {
    fn from(options: &ListOptions) -> Self {
        options.clone()
    }
}

/// Pages of so many records.
impl From<u32> for ListOptions {
    fn from(limit: u32) -> Self {
        Self::default().with_limit(limit)
    }
}

impl From<AccessScope> for ListOptions {
    fn from(scope: AccessScope) -> Self {
        Self::default().with_access_scope(scope)
    }
}

/// The records of a whole list, whose pages are fetched as they are needed.
///
/// A page that cannot be fetched is an error, after which the iterator ends. Records that are
/// added meanwhile come before the first; they may push one that was already given onto the next
/// page, where it comes again.
pub struct Pages<T> {
    fetch: Option<Fetch<T>>,
    ready: vec::IntoIter<T>,
}

/// Fetches the next page; says whether there is another.
type Fetch<T> = Box<dyn FnMut() -> Result<Page<T>> + Send>;

/// One page, and whether another may follow.
pub(super) struct Page<T> {
    pub(super) items: Vec<T>,
    pub(super) more: bool,
}

impl<T> Pages<T> {
    pub(super) fn new(fetch: impl FnMut() -> Result<Page<T>> + Send + 'static) -> Self {
        Self {
            fetch: Some(Box::new(fetch)),
            ready: Vec::new().into_iter(),
        }
    }

    /// Pages counted by an offset. `fetch` gives the page at an offset and, where the service
    /// says it, how many records there are; without that, an empty page is the last.
    pub(super) fn by_offset(
        mut options: ListOptions,
        mut fetch: impl FnMut(ListOptions) -> Result<(Vec<T>, Option<Cursor>)> + Send + 'static,
    ) -> Self {
        Self::new(move || {
            // Pages of nothing would pass for the end of the list.
            if options.limit == Some(0) {
                return Err(Error::invalid("limit", "must be at least 1, got 0"));
            }
            let (items, cursor) = fetch(options.clone())?;
            options.offset = options.offset.saturating_add(items.len() as u64);
            let more = !items.is_empty() && cursor.is_none_or(|c| options.offset < c.total_count);
            Ok(Page { items, more })
        })
    }
}

impl<T> Iterator for Pages<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.ready.next() {
                return Some(Ok(item));
            }
            match self.fetch.as_mut()?() {
                Ok(page) => {
                    if !page.more {
                        self.fetch = None;
                    }
                    self.ready = page.items.into_iter();
                }
                Err(error) => {
                    self.fetch = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl<T> fmt::Debug for Pages<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pages")
            .field("ready", &self.ready.len())
            .field("more", &self.fetch.is_some())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Context;

    /// Lists `total` records in pages of `limit`; the offsets asked for, and the records.
    #[track_caller]
    fn check(total: u64, limit: u64, counted: bool, expected_offsets: &[u64]) {
        let (sender, offsets) = crossbeam_channel::unbounded();
        let pages = Pages::by_offset(ListOptions::default(), move |options| {
            let offset = options.offset;
            sender.send(offset).unwrap();
            let items: Vec<u64> = (offset..total.min(offset + limit)).collect();
            let cursor = Cursor {
                offset,
                limit,
                total_count: total,
            };
            Ok((items, counted.then_some(cursor)))
        });
        let items: Result<Vec<u64>> = pages.collect();
        assert_eq!(items.unwrap(), (0..total).collect::<Vec<_>>());
        assert_eq!(offsets.iter().collect::<Vec<_>>(), expected_offsets);
    }

    #[test]
    fn pages_are_fetched_until_the_last() {
        check(0, 2, true, &[0]);
        check(2, 2, true, &[0]);
        check(5, 2, true, &[0, 2, 4]);
        check(5, 2, false, &[0, 2, 4, 5]);
        check(0, 2, false, &[0]);
    }

    #[test]
    fn an_error_ends_the_list() {
        let mut pages: Pages<u8> = Pages::new(|| Err(Error::Timeout(Context::new("too slow"))));
        assert!(pages.next().unwrap().is_err());
        assert!(pages.next().is_none());
    }
}
