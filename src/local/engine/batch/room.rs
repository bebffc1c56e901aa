//! Who gets pages for keys and values, and who makes way.

use super::job::{Age, Growing};
use super::{Batch, PIECE, Pending, insert, same_adapter};
use crate::local::engine::prompt::Reading;

/// Rows that a large model reads at once, at least, if nothing else is under way.
const READ_AT_ONCE: usize = 4 * PIECE;

impl<'a> Batch<'a> {
    /// Makes room for every row of the coming round, oldest first, and chooses the prompts that
    /// are read on.
    pub(super) fn make_room(&mut self) {
        let sequences = self.groups.iter().flat_map(|group| &group.sequences);
        let mut ages: Vec<Age> = sequences.map(Growing::age).collect();
        ages.sort_unstable();
        for age in ages {
            // A younger one may rest meanwhile.
            let Some(lacks) = self.sequence(age).map(|one| one.table.lacks(1)) else {
                continue;
            };
            if lacks > 0 && !self.claim(age, lacks) {
                self.rest(age);
            } else if let Some((group, index)) = self.find(age) {
                let table = &mut self.groups[group].sequences[index].table;
                table.reserve(1, &self.pool);
            }
        }
        self.choose_prompts();
    }

    /// One whole piece per thread, or as much of shorter prompts; none that is read just now.
    ///
    /// A large model reads several pieces at once if no sequence waits for its next token.
    fn choose_prompts(&mut self) {
        let (large, busy) = (self.is_large(), !self.groups.is_empty());
        let most = PIECE * self.base.threads();
        let most = if large && !busy {
            most.max(READ_AT_ONCE)
        } else {
            most
        };
        let mut rows = 0;
        let ages: Vec<Age> = self.begun.iter().map(Pending::age).collect();
        for age in ages {
            let Some(index) = self.begun.iter().position(|one| one.age() == age) else {
                continue;
            };
            let Pending { job, reading, .. } = &mut self.begun[index];
            reading.skip(job.adapter.as_ref(), &job.request, &mut self.prefixes);
            if reading.whole().is_some() || self.is_read_by_another(index) {
                continue;
            }
            let Pending { job, reading, .. } = &mut self.begun[index];
            let at_once = if large {
                most.saturating_sub(rows)
            } else {
                PIECE
            };
            let ahead = reading.rows_ahead(&job.request, at_once);
            if rows > 0 && rows + ahead > most {
                return;
            }
            let lacks = reading.table().lacks(ahead);
            if lacks > 0 && !self.claim(age, lacks) {
                self.rest(age);
                continue;
            }
            // Younger ones may be gone, but they come after it.
            let pending = &mut self.begun[index];
            pending.reading.table().reserve(ahead, &self.pool);
            pending.due = Some(ahead);
            rows += ahead;
        }
    }

    /// Whether the next piece of a prompt is read in this round for another request.
    fn is_read_by_another(&self, index: usize) -> bool {
        let Pending { job, reading, .. } = &self.begun[index];
        let end = reading.next_end(&job.request);
        let same = |other: &Pending<'a>| {
            other.due.is_some()
                && other.reading.next_end(&other.job.request) == end
                && same_adapter(&other.job.adapter, &job.adapter)
                && other.job.request.prompt[..end] == job.request.prompt[..end]
        };
        reading.may_skip(&job.request, end) && self.begun.iter().any(same)
    }

    /// Whether somebody new may have so many pages without anybody making way. The oldest always
    /// may; for others one page is left for each sequence under way.
    pub(super) fn has_room(&mut self, age: Age, pages: usize) -> bool {
        let Some((_, held)) = self.oldest().filter(|(oldest, _)| *oldest < age) else {
            return true;
        };
        let running: usize = self.groups.iter().map(|group| group.sequences.len()).sum();
        self.fits(pages + running, held)
    }

    /// Finds so many pages for a sequence; the youngest make way. False if it is itself the
    /// youngest.
    fn claim(&mut self, age: Age, pages: usize) -> bool {
        loop {
            let (oldest, held) = self.oldest().unwrap_or((age, 0));
            let held = if oldest == age { held + pages } else { held };
            if self.fits(pages, held) {
                return true;
            }
            match self.youngest() {
                Some(youngest) if youngest > age => self.rest(youngest),
                _ => return false,
            }
        }
    }

    /// Whether there may be so many more pages; prompts that nobody reads from make way.
    ///
    /// However much the oldest sequence holds, a quarter is left to the others: beside one that
    /// goes on to the end of the context, short ones are answered.
    fn fits(&mut self, pages: usize, oldest: usize) -> bool {
        let limit = self.pool.limit();
        let limit = limit.max(oldest + limit / 4);
        let over = (self.pool.used() + pages).saturating_sub(limit);
        if over > 0 {
            self.prefixes.evict(over);
        }
        self.pool.used() + pages <= limit
    }

    /// The oldest that has pages, and how many.
    fn oldest(&mut self) -> Option<(Age, usize)> {
        let sequences = self.groups.iter().flat_map(|group| &group.sequences);
        let sequences = sequences.map(|one| (one.age(), one.table.pages().len()));
        let prompts = self.begun.iter_mut().filter(|one| !one.samples.is_empty());
        let prompts = prompts.map(|one| (one.age(), one.reading.table().pages().len()));
        sequences.chain(prompts).min()
    }

    /// The youngest whose rest would free pages: a sample, or a prompt none of whose samples run.
    fn youngest(&self) -> Option<Age> {
        let sequences = self.groups.iter().flat_map(|group| &group.sequences);
        let prompts = self.begun.iter().filter(|one| self.running(&one.job) == 0);
        let ages = sequences.map(Growing::age).chain(prompts.map(Pending::age));
        ages.max()
    }

    /// Takes a sample's or prompt's pages and lets it wait for its turn to be computed again.
    fn rest(&mut self, age: Age) {
        if let Some((group, index)) = self.find(age) {
            let sample = self.groups[group].sequences.swap_remove(index);
            return self.put_back(sample);
        }
        if let Some(index) = self.begun.iter().position(|one| one.age() == age) {
            let mut pending = self.begun.remove(index);
            pending
                .reading
                .restart(&pending.job.request, pending.job.seed);
            pending.due = None;
            insert(&mut self.waiting, pending);
        }
    }

    /// Puts a sample back among those of its request that do not run.
    fn put_back(&mut self, mut sample: Growing<'a>) {
        sample.table = Default::default();
        let order = sample.job.order;
        let mut pending = self.begun.iter_mut().chain(&mut self.waiting);
        if let Some(pending) = pending.find(|one| one.job.order == order) {
            let samples = &mut pending.samples;
            let place = samples.partition_point(|other| other.number < sample.number);
            return samples.insert(place, sample);
        }
        let pending = Pending {
            job: sample.job.clone(),
            reading: Reading::again(&sample.job.request),
            samples: [sample].into(),
            due: None,
        };
        insert(&mut self.waiting, pending);
    }

    fn find(&self, age: Age) -> Option<(usize, usize)> {
        self.groups.iter().enumerate().find_map(|(group, one)| {
            let place = one.sequences.iter().position(|one| one.age() == age);
            place.map(|index| (group, index))
        })
    }

    fn sequence(&self, age: Age) -> Option<&Growing<'a>> {
        let (group, index) = self.find(age)?;
        Some(&self.groups[group].sequences[index])
    }
}
