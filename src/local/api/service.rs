//! The server's state, and the way from a request to its handler.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::error::{Context, Error, Result};
use crate::local::api;
use crate::local::api::auth::Auth;
use crate::local::api::fault::{Fault, FaultKind, Faults};
use crate::local::api::flags::Flags;
use crate::local::api::openai::{Style, complete};
use crate::local::api::routes::{Found, Route};
use crate::local::builder::{Builder, check_endpoint};
use crate::local::engine::Base;
use crate::local::http::{Recorder, Refusal, Reply, Request};
use crate::local::source::ModelSource;
use crate::local::state::catalogue::Catalogue;
use crate::local::state::downloads::Downloads;
use crate::local::state::futures::{Futures, Outcome};
use crate::local::state::ledger::Ledger;
use crate::local::state::models::Models;
use crate::local::state::samplers::{Sampler, Samplers};
use crate::local::state::sessions::{Session, Sessions};
use crate::local::state::traces::{Span, Traces};
use crate::local::work::batch::SamplingThread;
use crate::local::work::crew::Crew;
use crate::local::work::jobs;
use crate::local::work::losses::Losses;
use crate::local::work::vocabulary::{self, Vocabulary};
use crate::types::Timestamp;

/// Bodies beyond this are decoded away from the thread that serves the connections.
const INLINE_BYTES: usize = 16 << 10;
/// The name of the built-in model.
const BUILT_IN: &str = "tinker-local/tiny";

/// Everything the handlers share.
#[derive(Debug)]
pub(in crate::local) struct Service {
    pub(in crate::local) auth: Auth,
    pub(in crate::local) flags: Flags,
    pub(in crate::local) sessions: Sessions,
    pub(in crate::local) futures: Arc<Futures>,
    pub(in crate::local) models: Models,
    pub(in crate::local) samplers: Samplers,
    pub(in crate::local) losses: Losses,
    pub(in crate::local) catalogue: Catalogue,
    pub(in crate::local) ledger: Ledger,
    pub(in crate::local) traces: Traces,
    pub(in crate::local) downloads: Downloads,
    pub(in crate::local) base: Base,
    pub(in crate::local) base_model: String,
    pub(in crate::local) vocabulary: Vocabulary,
    /// The folder clients load the tokenizer from.
    pub(in crate::local) tokenizer: PathBuf,
    pub(in crate::local) trainers: Crew,
    pub(in crate::local) sampling: SamplingThread,
    pub(in crate::local) long_poll: Duration,
    pub(in crate::local) metadata_only_above: usize,
    pub(in crate::local) max_request_bytes: usize,
    pub(in crate::local) max_pending_samples: usize,
    pub(in crate::local) admin: bool,
    latencies: HashMap<String, Duration>,
    faults: Mutex<Faults>,
    recorder: Option<Recorder>,
    runtime: Handle,
    stopped: watch::Sender<bool>,
}

impl Service {
    pub(in crate::local) fn new(options: Builder, flags: Flags, runtime: Handle) -> Result<Self> {
        let mut faults = Faults::default();
        for fault in options.faults {
            faults.add(fault);
        }
        let jwt_lifetime = flags.jwt_enabled().then_some(options.jwt_lifetime);
        let (catalogue, sessions, ledger) = Catalogue::open(options.data)?;
        let Served {
            base,
            name,
            vocabulary,
            tokenizer,
        } = Served::open(options.model, options.threads, &catalogue)?;
        let crew = base.threads().clamp(1, 8);
        Ok(Self {
            auth: Auth::new(options.api_key, jwt_lifetime),
            flags,
            sessions: Sessions::new(options.session_timeout, sessions),
            futures: Arc::default(),
            models: Models::default(),
            samplers: Samplers::default(),
            losses: Losses::default(),
            catalogue,
            ledger,
            traces: Traces::default(),
            downloads: Downloads::default(),
            base_model: name,
            vocabulary,
            tokenizer,
            trainers: Crew::new("tinker-local-train", crew)?,
            sampling: SamplingThread::start(&base)?,
            base,
            long_poll: options.long_poll,
            metadata_only_above: options.metadata_only_above,
            max_request_bytes: options.max_request_bytes,
            max_pending_samples: options.max_pending_samples,
            admin: options.admin,
            latencies: options.latencies,
            faults: Mutex::new(faults),
            recorder: options.record.then(Recorder::default),
            runtime,
            stopped: watch::channel(false).0,
        })
    }

    /// Notes when a request ran.
    pub(in crate::local) fn trace(
        &self,
        session: &str,
        lane: &str,
        name: &'static str,
        request_id: &str,
        start: Timestamp,
    ) {
        self.traces.add(Span {
            session: session.to_owned(),
            lane: lane.to_owned(),
            name,
            request_id: request_id.to_owned(),
            start,
            end: jobs::now(),
        });
    }

    pub(in crate::local) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    pub(in crate::local) fn add_fault(&self, fault: Fault) -> Result<()> {
        check_endpoint("endpoint", fault.endpoint())?;
        self.lock_faults().add(fault);
        Ok(())
    }

    pub(in crate::local) fn clear_faults(&self) {
        self.lock_faults().clear();
    }

    /// What goes wrong with this request, if anything.
    pub(in crate::local) fn strike(&self, endpoint: &str) -> Option<FaultKind> {
        self.lock_faults().strike(endpoint)
    }

    fn lock_faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers whoever waits; nothing new is waited for.
    pub(in crate::local) fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// Ends the work: what runs is finished, what waits is dropped.
    pub(in crate::local) fn close(&self) {
        self.futures.cancel_all();
        self.trainers.close();
        self.sampling.close();
        self.catalogue.keep_ledger(&self.ledger);
    }

    pub(in crate::local) fn is_stopping(&self) -> bool {
        *self.stopped.borrow()
    }

    /// Returns when the server stops.
    pub(in crate::local) async fn stopping(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    pub(in crate::local) fn sweep_interval(&self) -> Duration {
        (self.sessions.timeout() / 4).clamp(Duration::from_millis(10), Duration::from_secs(5))
    }

    /// Drops what is over: silent sessions, results nobody wants, expired checkpoints.
    pub(in crate::local) fn sweep(&self) {
        let now = Instant::now();
        for session in self.sessions.expire(now) {
            log::warn!("local server: session {} lost its heartbeat", session.id);
            self.end_session(&session);
        }
        self.futures.sweep(now);
        self.catalogue.expire(jobs::now());
        self.catalogue.keep_ledger(&self.ledger);
    }

    /// Lets go of what belonged to a session.
    pub(in crate::local) fn end_session(&self, session: &Session) {
        for id in session.models.values() {
            if let Some(model) = self.models.remove(id) {
                model.abandon(self, "the session has ended");
            }
        }
        self.samplers.remove_session(&session.id, &self.futures);
        self.losses.remove_session(&session.id);
        if let Err(error) = self.catalogue.keep_session(session) {
            log::warn!("local server: {error}");
        }
    }

    pub(in crate::local) fn project_of(&self, session_id: &str) -> Option<String> {
        self.sessions.get(session_id).ok()?.project_id
    }

    /// Makes a sampling session known.
    pub(in crate::local) fn add_sampler(&self, number: u64, sampler: Sampler) {
        let id = sampler.id.clone();
        let session_id = sampler.session_id.clone();
        self.samplers.add(sampler);
        // A session that ended meanwhile has no more use for it.
        let _ = self.sessions.edit(&session_id, |session| {
            session.samplers.insert(number, id);
        });
    }

    /// Files the result of a request, as late as the endpoint's latency wants it.
    pub(in crate::local) fn finish(&self, endpoint: &str, id: &str, outcome: Outcome) {
        let Some(latency) = self.latencies.get(endpoint) else {
            return self.futures.finish(id, outcome);
        };
        let (futures, id, latency) = (self.futures.clone(), id.to_owned(), *latency);
        self.runtime.spawn(async move {
            tokio::time::sleep(latency).await;
            futures.finish(&id, outcome);
        });
    }

    /// Finds the handler and runs it where it belongs.
    pub(in crate::local) async fn answer(
        self: &Arc<Self>,
        found: Found,
        request: Request,
    ) -> Reply {
        if let Err(refusal) = self.auth.check(found.route, &request) {
            return refusal.into();
        }
        if !found.route.makes_future()
            && let Some(latency) = self.latencies.get(found.endpoint)
        {
            tokio::time::sleep(*latency).await;
        }
        let answer = match found.route {
            Route::RetrieveFuture => api::futures::retrieve(self, &request).await,
            Route::RetrieveFutures => api::futures::retrieve_many(self, &request).await,
            Route::OpenAiCompletions => complete(self, &request, Style::Completion).await,
            Route::OpenAiChat => complete(self, &request, Style::Chat).await,
            route if route.is_heavy() || request.body.len() > INLINE_BYTES => {
                let service = self.clone();
                let work = move || service.handle(&found, &request);
                tokio::task::spawn_blocking(work)
                    .await
                    .unwrap_or_else(|_| Err(Refusal::internal("the handler failed")))
            }
            _ => self.handle(&found, &request),
        };
        answer.unwrap_or_else(Reply::from)
    }

    fn handle(self: &Arc<Self>, found: &Found, request: &Request) -> Result<Reply, Refusal> {
        let segment = |index: usize| found.segments[index].as_str();
        match found.route {
            Route::Healthz => api::session::healthz(),
            Route::Capabilities => api::session::capabilities(self),
            Route::ClientConfig => Ok(Reply::json(self.flags.client())),
            Route::DynamicConfig => Ok(Reply::json(self.flags.dynamic())),
            Route::AuthToken => api::session::token(self),
            Route::CreateSession => api::session::create(self, request),
            Route::Heartbeat => api::session::heartbeat(self, request),
            Route::FinishSession => api::session::finish(self, segment(0), request),
            Route::Telemetry => api::session::telemetry(request),
            Route::CreateModel => api::training::create_model(self, request),
            Route::GetInfo => api::training::get_info(self, request),
            Route::UnloadModel => api::training::unload(self, request),
            Route::Forward | Route::ForwardBackward => {
                api::training::pass(self, found.endpoint, request)
            }
            Route::OptimStep => api::training::optim_step(self, request),
            Route::SaveWeights => api::weights::save(self, request),
            Route::SaveForSampler => api::weights::save_for_sampler(self, request),
            Route::SaveExternal => api::weights::save_external(self, request),
            Route::LoadWeights => api::weights::load(self, request),
            Route::WeightsInfo => api::weights::info(self, request),
            Route::CreateSamplingSession => api::sampling::create(self, request),
            Route::JoinSamplingSession => api::sampling::join(self, request),
            Route::Sample => api::sampling::sample(self, request),
            Route::Sampler => api::sampling::sampler(self, segment(0)),
            Route::CancelFuture => api::futures::cancel(self, request),
            Route::Runs => api::records::runs(self, request),
            Route::Run => api::records::run(self, segment(0)),
            Route::RunCheckpoints => api::records::run_checkpoints(self, segment(0)),
            Route::Checkpoints => api::records::checkpoints(self, request),
            Route::DeleteCheckpoint => api::checkpoints::delete(self, segment(0), segment(1)),
            Route::Publish => api::checkpoints::publish(self, segment(0), segment(1), true),
            Route::Unpublish => api::checkpoints::publish(self, segment(0), segment(1), false),
            Route::SetTtl => api::checkpoints::set_ttl(self, segment(0), segment(1), request),
            Route::Archive => api::checkpoints::archive(self, segment(0), segment(1), request),
            Route::ExternalUrls => {
                api::checkpoints::external_urls(self, segment(0), segment(1), request)
            }
            Route::Download => api::checkpoints::download(self, segment(0), segment(1)),
            Route::CopyWeights => api::checkpoints::copy(self, request),
            Route::CreateCustomLoss => api::training::create_custom_loss(self, request),
            Route::Sessions => api::sessions::list(self, request),
            Route::Session => api::sessions::get(self, segment(0)),
            Route::SessionProject => api::sessions::assign_project(self, segment(0), request),
            Route::TraceExport => api::sessions::trace(self, segment(0), request),
            Route::SearchSessions => api::sessions::search(self, request),
            Route::ApiKey => api::account::api_key(),
            Route::ForgetApiKey => Ok(Reply::empty()),
            Route::Audit => api::account::audit(self, request),
            Route::UsageEvents => api::account::usage(self, request),
            Route::StorageUsage => api::account::storage(self, request),
            Route::OpenAiModels => api::openai::models(self),
            Route::AddFault => api::admin::add_fault(self, request),
            Route::ClearFaults => api::admin::clear_faults(self),
            Route::RetrieveFuture
            | Route::RetrieveFutures
            | Route::OpenAiCompletions
            | Route::OpenAiChat => Err(Refusal::internal("this route waits")),
        }
    }
}

/// The model that is served, with everything that depends on which one it is.
struct Served {
    base: Base,
    name: String,
    vocabulary: Vocabulary,
    tokenizer: PathBuf,
}

impl Served {
    fn open(model: Option<ModelSource>, threads: usize, catalogue: &Catalogue) -> Result<Self> {
        let Some(model) = model else {
            return Ok(Self {
                base: Base::builtin(threads)?,
                name: BUILT_IN.to_owned(),
                vocabulary: Vocabulary::Bytes,
                tokenizer: vocabulary::write_builtin(catalogue.root())?,
            });
        };
        let path = model.path().canonicalize().map_err(|error| {
            let message = format!("cannot open the model {}", model.path().display());
            Error::Config(Context::caused(message, error))
        })?;
        Ok(Self {
            base: match model.is_gguf() {
                true => Base::load_gguf(&path, threads)?,
                false => Base::load(&path, threads)?,
            },
            name: model.name().to_owned(),
            vocabulary: Vocabulary::load(&path)?,
            tokenizer: path,
        })
    }
}
