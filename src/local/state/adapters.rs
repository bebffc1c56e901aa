//! The adapters that are sampled from: in memory as far as a budget goes, the others on disk.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::disk;
use super::folder::Folder;
use crate::error::{Error, Result};
use crate::local::engine::{Adapter, Base, Restore, Trainer};
use crate::sync::lock;
use crate::types::TinkerPath;

/// How many checkpoints' adapters are remembered though nobody uses them.
const REMEMBERED: usize = 32;
/// How many bytes unused adapters may take on disk; the oldest go first.
const ON_DISK: u64 = 8 << 30;

/// Every adapter somebody may sample from.
#[derive(Debug)]
pub(in crate::local) struct Adapters {
    /// Bytes in memory beyond which unused ones go to disk.
    budget: usize,
    /// Made when the first one goes to disk.
    folder: Mutex<Option<Folder>>,
    parent: PathBuf,
    slots: Mutex<Vec<Weak<Slot>>>,
    paths: Mutex<Remembered>,
    clock: AtomicU64,
}

#[derive(Debug, Default)]
struct Remembered {
    /// With the file each was read from: a path may stand for other weights by now.
    slots: HashMap<TinkerPath, (String, Arc<Slot>)>,
    order: VecDeque<TinkerPath>,
}

/// One adapter, wherever it is.
#[derive(Debug)]
pub(in crate::local) struct Slot {
    /// The model it belongs to, which stays in memory with it.
    base: Base,
    place: Mutex<Place>,
    last_used: AtomicU64,
}

#[derive(Debug)]
struct Place {
    /// `None` while it is on disk.
    here: Option<Arc<Adapter>>,
    file: Option<PathBuf>,
    bytes_on_disk: u64,
}

impl Adapters {
    pub(in crate::local) fn new(budget: usize, parent: PathBuf) -> Self {
        Self {
            budget,
            folder: Mutex::default(),
            parent,
            slots: Mutex::default(),
            paths: Mutex::default(),
            clock: AtomicU64::new(0),
        }
    }

    /// Takes an adapter in. One that is here already, unchanged, is the same.
    pub(in crate::local) fn keep(&self, base: &Base, adapter: Arc<Adapter>) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        slots.retain(|slot| slot.strong_count() > 0);
        let same = |slot: &Arc<Slot>| {
            let place = lock(&slot.place);
            place
                .here
                .as_ref()
                .is_some_and(|here| Arc::ptr_eq(here, &adapter))
        };
        if let Some(slot) = slots.iter().filter_map(Weak::upgrade).find(same) {
            return slot;
        }
        let slot = Arc::new(Slot {
            base: base.clone(),
            place: Mutex::new(Place {
                here: Some(adapter),
                file: None,
                bytes_on_disk: 0,
            }),
            last_used: AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed)),
        });
        slots.push(Arc::downgrade(&slot));
        drop(slots);
        self.trim();
        slot
    }

    /// The adapter of a checkpoint whose weights are in `file`, made by `load` unless it is
    /// remembered. Each file is written once.
    pub(in crate::local) fn of_checkpoint(
        &self,
        path: &TinkerPath,
        file: &str,
        load: impl FnOnce() -> Result<Trainer>,
    ) -> Result<Arc<Slot>> {
        let known = lock(&self.paths).slots.get(path).cloned();
        if let Some((_, slot)) = known.filter(|(of, _)| of == file) {
            return Ok(slot);
        }
        // Two may load the same at once: one too many, but nobody waits for a disk with a lock.
        let trainer = load()?;
        let slot = self.keep(trainer.base(), trainer.adapter());
        let mut paths = lock(&self.paths);
        let remembered = (file.to_owned(), slot.clone());
        if paths.slots.insert(path.clone(), remembered).is_none() {
            paths.order.push_back(path.clone());
        }
        if paths.order.len() > REMEMBERED
            && let Some(oldest) = paths.order.pop_front()
        {
            paths.slots.remove(&oldest);
        }
        Ok(slot)
    }

    /// Lets go of what was read from a checkpoint that is no more.
    pub(in crate::local) fn forget(&self, path: &TinkerPath) {
        let mut paths = lock(&self.paths);
        paths.slots.remove(path);
        paths.order.retain(|other| other != path);
    }

    /// Forgets what was read from checkpoints that nobody samples from now.
    pub(in crate::local) fn forget_unused(&self) {
        let mut paths = lock(&self.paths);
        paths
            .slots
            .retain(|_, (_, slot)| Arc::strong_count(slot) > 1);
        let Remembered { slots, order } = &mut *paths;
        order.retain(|path| slots.contains_key(path));
    }

    /// An adapter to use now, read back from disk if it went there.
    pub(in crate::local) fn take(&self, slot: &Slot) -> Result<Arc<Adapter>> {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        slot.last_used.store(now, Ordering::Relaxed);
        let adapter = {
            let mut place = lock(&slot.place);
            match (&place.here, &place.file) {
                (Some(here), _) => return Ok(here.clone()),
                (None, Some(file)) => {
                    let bytes = disk::read(file)?;
                    let adapter = Trainer::restore(&slot.base, &bytes, Restore::Weights)?.adapter();
                    place.here = Some(adapter.clone());
                    adapter
                }
                (None, None) => {
                    let problem = "was not used for long and has been dropped; make a new one";
                    return Err(Error::invalid("sampling_session_id", problem));
                }
            }
        };
        self.trim();
        Ok(adapter)
    }

    /// How many are in memory, and their bytes.
    pub(in crate::local) fn resident(&self) -> (usize, usize) {
        let here = self
            .all()
            .into_iter()
            .filter_map(|slot| lock(&slot.place).here.clone());
        here.fold((0, 0), |(count, bytes), one| {
            (count + 1, bytes + one.bytes())
        })
    }

    fn all(&self) -> Vec<Arc<Slot>> {
        lock(&self.slots).iter().filter_map(Weak::upgrade).collect()
    }

    /// Sends those that nobody uses to disk, the longest unused first, until the rest fits.
    fn trim(&self) {
        let (_, mut bytes) = self.resident();
        if bytes <= self.budget {
            return;
        }
        let mut slots = self.all();
        slots.sort_by_key(|slot| slot.last_used.load(Ordering::Relaxed));
        for slot in &slots {
            if bytes <= self.budget {
                break;
            }
            match self.send_away(slot) {
                // One that came back since it was counted may go as well.
                Ok(freed) => bytes = bytes.saturating_sub(freed),
                Err(error) => {
                    return log::warn!("local server: an adapter stays in memory: {error}");
                }
            }
        }
        self.trim_disk(&slots);
    }

    /// Puts an adapter on disk if nobody uses it; gives the bytes that were freed.
    fn send_away(&self, slot: &Slot) -> Result<usize> {
        let mut place = lock(&slot.place);
        // One is the slot's own; a model in training or a sample under way has more.
        let Some(adapter) = place
            .here
            .clone()
            .filter(|here| Arc::strong_count(here) <= 2)
        else {
            return Ok(0);
        };
        if place.file.is_none() {
            let trainer = Trainer::from_adapter(&slot.base, Adapter::clone(&adapter));
            let saved = trainer.save()?;
            let file = self.new_file()?;
            disk::write(&file, &saved)?;
            place.bytes_on_disk = saved.len() as u64;
            place.file = Some(file);
        }
        place.here = None;
        Ok(adapter.bytes())
    }

    fn new_file(&self) -> Result<PathBuf> {
        let mut folder = lock(&self.folder);
        if folder.is_none() {
            *folder = Some(Folder::temporary_in(&self.parent)?);
        }
        let folder = folder.as_ref().expect("it was made just now");
        let name = format!("{}.safetensors", uuid::Uuid::new_v4());
        Ok(folder.path().join(name))
    }

    fn trim_disk(&self, slots: &[Arc<Slot>]) {
        let mut total: u64 = slots
            .iter()
            .map(|slot| lock(&slot.place).bytes_on_disk)
            .sum();
        for slot in slots {
            if total <= ON_DISK {
                break;
            }
            let mut place = lock(&slot.place);
            if place.here.is_none() {
                total = total.saturating_sub(place.bytes_on_disk);
                place.remove_file();
            }
        }
    }
}

impl Place {
    fn remove_file(&mut self) {
        if let Some(file) = self.file.take() {
            // The folder goes with the server in any case.
            let _ = std::fs::remove_file(file);
            self.bytes_on_disk = 0;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.place).remove_file();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::engine::LoraSpec;

    fn spec(seed: u64) -> LoraSpec {
        LoraSpec {
            rank: 2,
            seed,
            attn: true,
            mlp: true,
            unembed: false,
        }
    }

    #[test]
    fn what_nobody_uses_goes_to_disk_and_comes_back_the_same() {
        let parent = tempfile::tempdir().unwrap();
        let base = Base::builtin(1).unwrap();
        let adapter = |seed| Arc::new(Adapter::new(spec(seed), base.config()).unwrap());
        let size = adapter(0).bytes();
        let adapters = Adapters::new(2 * size, parent.path().to_owned());
        let slots: Vec<Arc<Slot>> = (0..8)
            .map(|seed| adapters.keep(&base, adapter(seed)))
            .collect();
        assert_eq!(adapters.resident(), (2, 2 * size));
        for (seed, slot) in (0..).zip(&slots) {
            let taken = adapters.take(slot).unwrap();
            assert_eq!(taken.params(), adapter(seed).params());
        }
        assert!(adapters.resident().0 <= 3);
        // One that is in use stays.
        let used = adapters.take(&slots[0]).unwrap();
        for slot in &slots[1..] {
            adapters.take(slot).unwrap();
        }
        assert!(lock(&slots[0].place).here.is_some());
        drop((used, slots));
        let files = disk::files(parent.path(), ".safetensors");
        assert_eq!(files, Vec::<PathBuf>::new());
    }

    #[test]
    fn what_was_read_before_a_change_is_not_remembered_after_it() {
        let parent = tempfile::tempdir().unwrap();
        let base = Base::builtin(1).unwrap();
        let adapters = Adapters::new(1 << 30, parent.path().to_owned());
        let path: TinkerPath = "tinker://run/sampler_weights/a".parse().unwrap();
        let trainer = |seed| Trainer::new(&base, spec(seed));
        let old = adapters.of_checkpoint(&path, "old", || {
            // Saved again, and read again, while the old weights are read.
            adapters.of_checkpoint(&path, "new", || trainer(2)).unwrap();
            trainer(1)
        });
        let new = adapters.of_checkpoint(&path, "new", || trainer(2)).unwrap();
        assert!(!Arc::ptr_eq(&old.unwrap(), &new));
        let again = adapters.of_checkpoint(&path, "new", || panic!("it is remembered"));
        assert!(Arc::ptr_eq(&again.unwrap(), &new));
    }
}
