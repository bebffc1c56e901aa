//! The threads that run models, and the work they are given.

mod batch;
pub(super) mod checkpoints;
pub(super) mod convert;
pub(super) mod crew;
mod custom;
pub(super) mod generate;
mod imports;
pub(super) mod jobs;
pub(super) mod library;
pub(super) mod samples;
pub(super) mod saving;
pub(super) mod text;
pub(super) mod training;
pub(super) mod vocabulary;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::adapter::AdapterSource;
use super::engine::{self, Batch, Listener, SampleRequest};
use super::source::ModelSource;
use super::state::State;
use super::state::adapters::{Adapters, Slot};
use super::state::memory::Memory;
use super::state::models::Model;
use super::state::samplers::Sampler;
use super::state::sessions::LOCAL;
use crate::error::Result;
use crate::types::TinkerPath;
use batch::SamplingThread;
use crew::{Crew, guarded};
use library::{Library, Offer};
use vocabulary::Vocabulary;

/// How models are run.
#[derive(Debug, Clone, Copy)]
pub(super) struct WorkOptions {
    /// Bytes for adapters that are sampled from.
    pub(super) adapter_memory: Option<usize>,
    /// How often models in training are saved; `None` for never.
    pub(super) save_every: Option<Duration>,
    /// Whether samples come with the probabilities that the temperature makes.
    pub(super) tempered_logprobs: bool,
    /// Whether samples are drawn from weights in Q8_0.
    pub(super) quantized_sampling: bool,
}

/// The models that are served and the threads that run them.
#[derive(Debug)]
pub(super) struct Workshop {
    pub(super) state: Arc<State>,
    pub(super) library: Arc<Library>,
    pub(super) adapters: Arc<Adapters>,
    pub(super) memory: Memory,
    /// What of it requests may take that wait for their model; the rest is for those that run.
    waiting: Memory,
    pub(super) options: WorkOptions,
    trainers: Crew,
    /// One for each model, by its name.
    sampling: HashMap<String, SamplingThread>,
}

impl Workshop {
    /// Finds the models, or the built-in one, and starts the threads.
    pub(super) fn open(
        state: Arc<State>,
        models: &[ModelSource],
        threads: usize,
        memory: Memory,
        options: WorkOptions,
    ) -> Result<Self> {
        let budget = options.adapter_memory.unwrap_or(memory.limit() / 8);
        let root = state.catalogue.root().to_owned();
        let adapters = Arc::new(Adapters::new(budget, root.clone()));
        let (limit, shared) = (memory.limit(), adapters.clone());
        let how = (threads, options.quantized_sampling);
        let library = Arc::new(Library::open(models, &root, how, limit, shared)?);
        let cache = Batch::MEMORY.min(limit / 8);
        let thread = |offer: &Offer| {
            let thread = SamplingThread::start(&library, &offer.name, cache)?;
            Ok((offer.name.clone(), thread))
        };
        let workshop = Self {
            state,
            waiting: Memory::new(Some(memory.limit() / 8)),
            memory,
            options,
            trainers: Crew::new("tinker-local-train", library.threads().clamp(1, 8))?,
            sampling: library.offers().iter().map(thread).collect::<Result<_>>()?,
            adapters,
            library,
        };
        saving::restore_all(&workshop);
        Ok(workshop)
    }

    /// Makes a checkpoint of an adapter from elsewhere.
    pub(super) fn take_in(&self, source: &AdapterSource) -> Result<()> {
        imports::take_in(self, source)
    }

    /// The adapter of a checkpoint.
    pub(super) fn adapter(&self, path: &TinkerPath) -> Result<Arc<Slot>> {
        let checkpoint = checkpoints::find(self, path)?;
        let load = || checkpoints::restore(self, path, false);
        self.adapters.of_checkpoint(path, &checkpoint.file, load)
    }

    /// Hands a request that was checked to the batch of a sampler's model.
    fn sample(&self, sampler: &Sampler, mut request: SampleRequest, listener: Box<dyn Listener>) {
        request.tempered_logprobs = self.options.tempered_logprobs;
        let vocabulary = self.vocabulary(sampler);
        let engine::Stop { tokens, strings } = &mut request.stop;
        tokens.extend(strings.iter().filter_map(|text| vocabulary.special(text)));
        if let Some(thread) = self.sampling.get(&sampler.base_model) {
            thread.submit(sampler.adapter.clone(), request, listener);
        }
    }

    /// What a sampler's tokens stand for.
    pub(super) fn vocabulary(&self, sampler: &Sampler) -> &Vocabulary {
        &self.offer_of(sampler).vocabulary
    }

    /// The model a sampler is of.
    pub(super) fn offer_of(&self, sampler: &Sampler) -> &Offer {
        let offer = self.library.offer(&sampler.base_model);
        offer.expect("samplers are made of what is served")
    }

    /// Whose model it is.
    fn owner_of(&self, model: &Model) -> String {
        let owner = self.state.sessions.owner(&model.session_id);
        // A session may have been forgotten before its runs.
        let owner = owner.or_else(|| Some(self.state.catalogue.run(&model.id).ok()?.owner));
        owner.unwrap_or_else(|| LOCAL.to_owned())
    }

    /// Does what is due now and then.
    pub(super) fn tidy(self: &Arc<Self>) {
        for session in self.state.sessions.expire(Instant::now()) {
            log::warn!("local server: session {} lost its heartbeat", session.id);
            let models = session.models.values();
            for model in models.filter_map(|id| self.state.models.get(id).ok()) {
                guarded(|| saving::lay_down(self, &model));
            }
            self.state.end_session(&session);
        }
        self.state.sweep();
        saving::save_due(self);
    }

    /// Ends the work: samples are dropped, and so is training that will not be kept.
    pub(super) fn close(self: &Arc<Self>) {
        self.state.futures.cancel_all();
        saving::farewell(self);
        self.sampling.values().for_each(SamplingThread::close);
        self.state.ledger.write();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorCategory;
    use crate::local::engine::{LoraSpec, Trainer};
    use crate::local::state::catalogue::{Checkpoint, checkpoint};
    use crate::local::state::futures::{Look, Outcome};
    use crate::local::state::queue::Work;
    use crate::local::state::{Keep, sessions};
    use crate::sync::lock;
    use crate::types::{Datum, LoraConfig, LossFn, Timestamp};

    const RUN: &str = "s:train:0";

    /// A workshop with the built-in model, in which one model trains.
    pub(super) fn workshop(runtime: &tokio::runtime::Runtime) -> (Arc<Workshop>, Arc<Model>) {
        let (runtime, now) = (runtime.handle().clone(), Duration::ZERO);
        let state = State::open(None, now, Keep::default(), HashMap::new(), runtime).unwrap();
        let options = WorkOptions {
            adapter_memory: None,
            save_every: Some(Duration::ZERO),
            tempered_logprobs: false,
            quantized_sampling: false,
        };
        let memory = Memory::new(Some(1 << 30));
        let workshop = Workshop::open(Arc::new(state), &[], 1, memory, options).unwrap();
        let base = workshop.library.offers()[0].name.clone();
        let model = Model::new(RUN.into(), "s".into(), base, LoraConfig::rank(1));
        *lock(&model.trainer) = Some(trainer(&workshop, 0));
        let model = Arc::new(model);
        workshop.state.models.add(model.clone());
        let mut session = sessions::session("s");
        session.models.insert(0, RUN.into());
        workshop.state.sessions.add(session);
        (Arc::new(workshop), model)
    }

    /// A model whose saving panics.
    pub(super) fn ill(model: &Model) {
        let mut on_disk = lock(&model.on_disk);
        on_disk.is_behind = true;
        // There is no next one.
        on_disk.generation = u64::MAX;
    }

    pub(super) fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
    }

    fn trainer(workshop: &Workshop, seed: u64) -> Trainer {
        let name = &workshop.library.offers()[0].name;
        let spec = LoraSpec {
            rank: 1,
            seed,
            attn: true,
            mlp: true,
            unembed: true,
        };
        Trainer::new(&workshop.library.base(name).unwrap(), spec).unwrap()
    }

    /// However the one before it came to its end.
    #[test]
    fn what_comes_anew_at_a_path_is_sampled_with_its_own_weights() {
        let runtime = runtime();
        let (workshop, model) = workshop(&runtime);
        let catalogue = &workshop.state.catalogue;
        let path: TinkerPath = format!("tinker://{RUN}/sampler_weights/a").parse().unwrap();
        for seed in 1..4 {
            let made = trainer(&workshop, seed);
            let checkpoint = Checkpoint {
                path: path.clone(),
                base_model: model.base_model.clone(),
                ..checkpoint("a", Some(Timestamp::UNIX_EPOCH).filter(|_| seed == 1))
            };
            // The first expires, the second is written over.
            catalogue
                .add_checkpoint(checkpoint, &made.save().unwrap())
                .unwrap();
            let slot = workshop.adapter(&path).unwrap();
            assert!(
                Arc::ptr_eq(&slot, &workshop.adapter(&path).unwrap()),
                "{seed}"
            );
            let taken = workshop.adapters.take(&slot).unwrap();
            assert_eq!(taken.params(), made.adapter().params(), "{seed}");
            catalogue.expire(Timestamp::UNIX_EPOCH);
        }
        catalogue.delete(&path).unwrap();
        assert!(workshop.adapter(&path).is_err());
    }

    /// Whoever hears that it was a mistake of theirs does not try again.
    #[test]
    fn memory_that_others_have_is_nobodys_mistake() {
        let runtime = runtime();
        let (workshop, model) = workshop(&runtime);
        let pass = || {
            let input = crate::types::ModelInput::from_ints(vec![1, 2]);
            let datum = Datum::new(input).with_target_tokens(vec![2, 3]);
            let work = Work::Pass {
                data: vec![datum.with_weights(vec![1.0, 1.0])],
                loss: LossFn::CrossEntropy.into(),
                forward_only: false,
            };
            jobs::run(&workshop, &model, &mut lock(&model.trainer), work)
        };
        let memory = &workshop.memory;
        let taken = memory.promise("all", memory.limit() - memory.used());
        let refused = pass();
        let Outcome::Failed { message, category } = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(category, ErrorCategory::Server, "{message}");
        assert!(message.contains("try again"), "{message}");
        drop(taken);
        let done = pass();
        assert!(matches!(done, Outcome::Training(_)), "{done:?}");
    }

    /// Its client would ask for it for ever.
    #[test]
    fn what_waits_for_a_model_ends_with_it() {
        let runtime = runtime();
        let (workshop, model) = workshop(&runtime);
        let step = Work::Step(crate::types::AdamParams::default().into());
        let held = training::submit(&workshop, &model, Some(2), "optim_step", step).unwrap();
        jobs::run(&workshop, &model, &mut lock(&model.trainer), Work::Unload);
        let found = workshop.state.futures.look(&held, sessions::LOCAL);
        assert!(
            matches!(found, Look::Done(Outcome::Failed { .. })),
            "{found:?}"
        );
    }

    /// What cannot be saved keeps nothing else from ending.
    #[test]
    fn a_model_that_cannot_be_saved_keeps_no_server_from_ending() {
        let runtime = runtime();
        let (workshop, model) = workshop(&runtime);
        ill(&model);
        workshop.close();
        assert!(workshop.state.saved.get(RUN).is_none());
    }

    /// What ends a session that fell silent goes on to the others.
    #[test]
    fn a_model_that_cannot_be_saved_keeps_no_session_alive() {
        let runtime = runtime();
        let (workshop, model) = workshop(&runtime);
        ill(&model);
        workshop.tidy();
        assert!(workshop.state.models.get(RUN).is_err());
    }
}
