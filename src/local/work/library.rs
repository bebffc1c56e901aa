//! The models that are served, behind one memory budget: each is loaded when somebody uses it, and
//! let go when nobody does and another needs the room.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crossbeam_channel::Sender;

use super::batch::Message;
use super::vocabulary::{self, Vocabulary};
use crate::error::{Error, Result};
use crate::local::engine::{Base, Batch, Config, Threads};
use crate::local::source::{Files, ModelSource};
use crate::local::state::adapters::Adapters;
use crate::sync::lock;

/// Everything that is served, in the order it was given.
#[derive(Debug)]
pub(in crate::local) struct Library {
    offers: Vec<Offer>,
    threads: Threads,
    /// Whether samples are drawn from weights in Q8_0.
    quantised: bool,
    /// Bytes that models in memory should take together.
    limit: usize,
    adapters: Arc<Adapters>,
    clock: AtomicU64,
    /// Held while one is loaded: two at once would both find the same room.
    loading: Mutex<()>,
}

/// A model that is served.
#[derive(Debug)]
pub(in crate::local) struct Offer {
    pub(in crate::local) name: String,
    pub(in crate::local) config: Config,
    pub(in crate::local) vocabulary: Vocabulary,
    /// Where clients load the tokenizer from.
    pub(in crate::local) tokenizer: PathBuf,
    /// What reads its answers, once somebody asked.
    #[cfg(feature = "text")]
    renderer: OnceLock<Option<crate::text::Renderer>>,
    /// Tells it from other models of the same name.
    pub(in crate::local) fingerprint: u64,
    files: Files,
    bytes: usize,
    /// `None` while it is not in memory.
    base: Mutex<Option<Base>>,
    last_used: AtomicU64,
    /// Whether its sampling thread holds it with nothing to do.
    pub(super) rests: AtomicBool,
    /// Its sampling thread's inbox.
    pub(super) inbox: OnceLock<Sender<Message>>,
}

impl Library {
    /// Finds and reads every model once, so that what cannot be run is known at the start.
    ///
    /// # Errors
    ///
    /// If a model cannot be found or run, or two have the same name.
    pub(super) fn open(
        models: &[ModelSource],
        root: &Path,
        (threads, quantised): (usize, bool),
        limit: usize,
        adapters: Arc<Adapters>,
    ) -> Result<Self> {
        let mut library = Self {
            offers: Vec::new(),
            threads: Threads::new(threads)?,
            quantised,
            limit,
            adapters,
            clock: AtomicU64::new(0),
            loading: Mutex::default(),
        };
        let built_in = [ModelSource::built_in()];
        let models = if models.is_empty() {
            &built_in[..]
        } else {
            models
        };
        for model in models {
            if library.find(model.name()).is_some() {
                let problem = format!("two models are called {}", model.name());
                return Err(Error::invalid("model", problem));
            }
            let offer = library.read(model, root)?;
            library.offers.push(offer);
        }
        Ok(library)
    }

    fn read(&self, model: &ModelSource, root: &Path) -> Result<Offer> {
        let files = model.files()?;
        let base = self.load(&files)?;
        if base.samples_quantised() {
            log::warn!(
                "local server: samples of {} are drawn from its weights rounded to Q8_0; training \
                 uses them as they are",
                model.name()
            );
        }
        let (vocabulary, tokenizer) = match &files {
            Files::BuiltIn => (Vocabulary::Bytes, vocabulary::write_builtin(root)?),
            Files::Folder(path) | Files::Gguf(path) => (Vocabulary::load(path)?, path.clone()),
        };
        let bytes = base.bytes();
        self.make_room(bytes);
        Ok(Offer {
            name: model.name().to_owned(),
            config: base.config().clone(),
            vocabulary,
            tokenizer,
            #[cfg(feature = "text")]
            renderer: OnceLock::new(),
            fingerprint: base.fingerprint(),
            files,
            bytes,
            base: Mutex::new(Some(base)),
            last_used: AtomicU64::new(self.clock.fetch_add(1, Ordering::Relaxed)),
            rests: AtomicBool::new(false),
            inbox: OnceLock::new(),
        })
    }

    fn load(&self, files: &Files) -> Result<Base> {
        let base = Base::on(&self.threads, files.load()?);
        Ok(match self.quantised {
            true => base.sampling_quantised(),
            false => base,
        })
    }

    /// All of them.
    pub(in crate::local) fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// The first, for what can show only one.
    #[cfg(feature = "chat")]
    pub(in crate::local) fn first(&self) -> &Offer {
        &self.offers[0]
    }

    /// The adapters of all of them.
    pub(super) fn adapters(&self) -> &Adapters {
        &self.adapters
    }

    /// How many threads compute.
    pub(super) fn threads(&self) -> usize {
        self.threads.count()
    }

    /// How many are in memory.
    pub(in crate::local) fn loaded(&self) -> usize {
        let here = |offer: &&Offer| lock(&offer.base).is_some();
        self.offers.iter().filter(here).count()
    }

    /// The model of a name.
    ///
    /// # Errors
    ///
    /// Names those that are served.
    pub(in crate::local) fn offer(&self, name: &str) -> Result<&Offer> {
        self.find(name).ok_or_else(|| {
            let names: Vec<&str> = self.offers.iter().map(|offer| &*offer.name).collect();
            let problem = format!(
                "{name} is not served here; this server has {}",
                names.join(", ")
            );
            Error::invalid("base_model", problem)
        })
    }

    fn find(&self, name: &str) -> Option<&Offer> {
        self.offers.iter().find(|offer| offer.name == name)
    }

    /// A model to compute with, loaded if it is not in memory. Not for the thread of the sockets.
    ///
    /// # Errors
    ///
    /// If it is not served, or its files have changed since the start.
    pub(super) fn base(&self, name: &str) -> Result<Base> {
        let offer = self.offer(name)?;
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        offer.last_used.store(now, Ordering::Relaxed);
        if let Some(base) = &*lock(&offer.base) {
            return Ok(base.clone());
        }
        let _alone = lock(&self.loading);
        if let Some(base) = &*lock(&offer.base) {
            return Ok(base.clone());
        }
        self.make_room(offer.bytes);
        log::info!("local server: loading {name}");
        let base = self.load(&offer.files)?;
        if base.fingerprint() != offer.fingerprint {
            let problem = format!("the files of {name} have changed: start the server again");
            return Err(Error::invalid("base_model", problem));
        }
        *lock(&offer.base) = Some(base.clone());
        Ok(base)
    }

    /// Lets go of models that nobody uses, the longest unused first, until another fits. One that is
    /// in use stays: then there are more bytes in memory than there should be.
    fn make_room(&self, bytes: usize) {
        let mut taken: usize = bytes + Batch::MEMORY.min(self.limit / 8);
        let mut others: Vec<&Offer> = Vec::new();
        for offer in &self.offers {
            if lock(&offer.base).is_some() {
                taken += offer.bytes;
                others.push(offer);
            }
        }
        others.sort_by_key(|offer| offer.last_used.load(Ordering::Relaxed));
        for offer in others {
            if taken <= self.limit {
                return;
            }
            self.adapters.forget_unused();
            if offer.let_go() {
                taken -= offer.bytes;
            }
        }
    }
}

impl Offer {
    /// The renderer of the model's family, if that is known.
    #[cfg(feature = "text")]
    pub(in crate::local) fn renderer(&self) -> Option<&crate::text::Renderer> {
        let find = || match &self.vocabulary {
            Vocabulary::Bytes => None,
            Vocabulary::Tokenizer(tokenizer) => {
                crate::text::Renderer::for_model(&self.name, tokenizer).ok()
            }
        };
        self.renderer.get_or_init(find).as_ref()
    }

    /// Gives the memory back, unless somebody computes with it.
    fn let_go(&self) -> bool {
        let mut place = lock(&self.base);
        let Some(base) = &*place else { return false };
        // The thread's own and its batch's.
        let thread = if self.rests.load(Ordering::Relaxed) {
            2
        } else {
            0
        };
        let own = 1 + thread;
        if base.holders() > own {
            return false;
        }
        log::info!("local server: letting go of {}", self.name);
        *place = None;
        if let Some(inbox) = self.inbox.get() {
            // A thread that has ended has let go.
            let _ = inbox.send(Message::LetGo);
        }
        true
    }
}
