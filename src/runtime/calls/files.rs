//! The files of a checkpoint: several at once, from links that run out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::download::{Source, fetch};
use super::link::Link;
use super::part::Part;
use crate::error::{Context, Error, Result};
use crate::sync::lock;
use crate::types::{ExternalWeightsUrls, Timestamp};

/// Links are renewed this long before they run out: enough for a download to begin.
const MARGIN: Duration = Duration::from_secs(5 * 60);

/// How far a download of several files is.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DownloadProgress {
    /// How many files are whole.
    pub files: usize,
    /// How many there will be.
    pub all_files: usize,
    /// How many bytes are there.
    pub bytes: u64,
    /// How many there will be; grows until every file has begun.
    pub all_bytes: u64,
}

/// The links to a checkpoint's files, renewed as they run out.
pub(crate) struct Links<'a> {
    sign: &'a (dyn Fn() -> Result<ExternalWeightsUrls> + Sync),
    current: Mutex<ExternalWeightsUrls>,
}

impl<'a> Links<'a> {
    pub(crate) fn new(sign: &'a (dyn Fn() -> Result<ExternalWeightsUrls> + Sync)) -> Result<Self> {
        let current = Mutex::new(sign()?);
        Ok(Self { sign, current })
    }

    /// The files' names.
    pub(crate) fn names(&self) -> Vec<String> {
        lock(&self.current).urls.keys().cloned().collect()
    }

    /// A link to a file that works now. Several threads that need new ones get the same.
    fn link(&self, name: &str, last: Option<&str>) -> Result<String> {
        let mut current = lock(&self.current);
        let refused = last.is_some() && current.urls.get(name).map(String::as_str) == last;
        if refused || is_due(current.expires, Timestamp::now()) {
            *current = (self.sign)()?;
        }
        current.urls.get(name).cloned().ok_or_else(|| {
            let message = format!("the checkpoint has no file {name:?} any more");
            Error::Reply(Context::new(message))
        })
    }
}

/// Whether links that work until `expires` should be renewed.
fn is_due(expires: Timestamp, now: Timestamp) -> bool {
    expires.as_second() - now.as_second() < MARGIN.as_secs() as i64
}

/// One file among the links.
struct File<'a> {
    links: &'a Links<'a>,
    name: &'a str,
    last: Mutex<Option<String>>,
}

impl Source for File<'_> {
    fn url(&self, refused: bool) -> Result<String> {
        let last = lock(&self.last).take();
        let url = self
            .links
            .link(self.name, last.as_deref().filter(|_| refused))?;
        *lock(&self.last) = Some(url.clone());
        Ok(url)
    }
}

/// How files are fetched.
pub(crate) struct Plan<'a> {
    /// How many at once.
    pub(crate) parallel: usize,
    /// Whether what a broken-off download leaves is taken up by the next.
    pub(crate) lasting: bool,
    pub(crate) hook: &'a (dyn Fn(DownloadProgress) + Sync),
}

/// Fetches every file to its place. The first failure ends the rest.
pub(crate) fn all(
    link: &Link,
    links: &Links<'_>,
    places: &BTreeMap<String, PathBuf>,
    plan: &Plan<'_>,
) -> Result<u64> {
    let files: Vec<(&String, &PathBuf)> = places.iter().collect();
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    let tally = Tally::new(files.len());
    let work = || {
        while let Some((name, place)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            if lock(&failure).is_some() {
                return;
            }
            if let Err(error) = one(link, links, name, place, plan, &tally) {
                lock(&failure).get_or_insert(error);
            }
        }
    };
    thread::scope(|scope| {
        for index in 1..plan.parallel.clamp(1, files.len().max(1)) {
            let spawned = thread::Builder::new()
                .name(format!("tinker-download-{index}"))
                .spawn_scoped(scope, work);
            if let Err(error) = spawned {
                // Fewer at once, then.
                log::debug!("no thread for another download: {error}");
                break;
            }
        }
        work();
    });
    match failure.into_inner().unwrap_or_default() {
        Some(error) => Err(error),
        None => Ok(tally.bytes.into_inner()),
    }
}

fn one(
    link: &Link,
    links: &Links<'_>,
    name: &str,
    place: &Path,
    plan: &Plan<'_>,
    tally: &Tally,
) -> Result<()> {
    let (seen, expected) = (AtomicU64::new(0), AtomicU64::new(0));
    let hook = |bytes: u64, total: Option<u64>| {
        tally.add(&tally.bytes, &seen, bytes);
        tally.add(&tally.all_bytes, &expected, total.unwrap_or(bytes));
        (plan.hook)(tally.progress());
    };
    let part = match plan.lasting {
        true => Part::lasting(place)?,
        false => Part::scratch(place)?,
    };
    let last = Mutex::new(None);
    fetch(link, &File { links, name, last }, part, &hook)?;
    tally.files.fetch_add(1, Ordering::Relaxed);
    (plan.hook)(tally.progress());
    Ok(())
}

/// What the threads have fetched together.
struct Tally {
    all_files: usize,
    files: AtomicUsize,
    bytes: AtomicU64,
    all_bytes: AtomicU64,
}

impl Tally {
    fn new(all_files: usize) -> Self {
        Self {
            all_files,
            files: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            all_bytes: AtomicU64::new(0),
        }
    }

    /// Replaces what a file counted for; a download that began again counts for less.
    fn add(&self, sum: &AtomicU64, share: &AtomicU64, now: u64) {
        let before = share.swap(now, Ordering::Relaxed);
        match now >= before {
            true => sum.fetch_add(now - before, Ordering::Relaxed),
            false => sum.fetch_sub(before - now, Ordering::Relaxed),
        };
    }

    fn progress(&self) -> DownloadProgress {
        DownloadProgress {
            files: self.files.load(Ordering::Relaxed),
            all_files: self.all_files,
            bytes: self.bytes.load(Ordering::Relaxed),
            all_bytes: self.all_bytes.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_renewed_before_they_run_out() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (left, due) in [
            (0, true),
            (299, true),
            (300, false),
            (900, false),
            (-1, true),
        ] {
            assert_eq!(is_due(at(1_000 + left), at(1_000)), due, "{left}");
        }
    }
}
