//! `RestClient`: runs, checkpoints and sessions.

mod account;
mod checkpoint;
mod download;
mod keys;
mod pages;

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::service::ServiceClient;
use crate::config::Secret;
use crate::error::{Context, Error, Result};
use crate::runtime::calls::{Body, Effort, Request};
use crate::types::{
    AccessScope, Checkpoint, CheckpointPage, CheckpointRef, SamplerInfo, SessionDetails, SessionId,
    SessionPage, SessionSearch, SessionSearchPage, SessionSummary, TraceExport, TraceExportStatus,
    TrainingRun, TrainingRunPage, WeightsInfo, checkpoint_ttl,
};
use crate::wire::reply::CopyWeightsReply;
use crate::wire::request::{
    AssignProjectRequest, CopyWeightsRequest, SetTtlRequest, WeightsInfoRequest, to_json,
};
use crate::wire::route::{self, Route};

pub use checkpoint::{DownloadOptions, DownloadProgress, Downloaded};
use pages::Page;
pub use pages::{ListOptions, Pages};

/// How often the service is asked whether a trace is ready.
const TRACE_POLL: Duration = Duration::from_secs(5);

/// Lists and administers what the service keeps: runs, checkpoints, sessions, usage.
///
/// Needs no session, so using one leaves no trace in the list of sessions. Every call blocks.
/// `list_` calls fetch one page; the plural names (`training_runs`, `user_checkpoints`,
/// `sessions`, `matching_sessions`) iterate over all pages. `Clone + Send + Sync` around one
/// `Arc`.
///
/// ```
/// # fn main() -> tinker::Result<()> {
/// use tinker::client::ListOptions;
/// use tinker::{LoraConfig, ServiceClient};
///
/// let service = ServiceClient::local()?; // or ServiceClient::from_env()?
/// # let model = service.capabilities()?.supported_models[0].model_name.clone().unwrap();
/// let training = service.create_lora_training_client(&model, LoraConfig::rank(4))?;
/// training.save_state("first")?.join()?;
///
/// let rest = service.rest();
/// for run in rest.training_runs(ListOptions::default()) {
///     let run = run?;
///     for checkpoint in rest.list_checkpoints(&run.training_run_id)? {
///         println!("{} {:?}", checkpoint.tinker_path, checkpoint.size_bytes);
///     }
/// }
/// # Ok(()) }
/// ```
#[doc(alias = "AdminClient")]
#[derive(Debug, Clone)]
pub struct RestClient {
    service: ServiceClient,
}

impl ServiceClient {
    /// A client for runs, checkpoints, sessions and usage, over the same connections.
    #[doc(alias = "create_rest_client")]
    pub fn rest(&self) -> RestClient {
        RestClient {
            service: self.clone(),
        }
    }
}

/// Training runs and checkpoints.
impl RestClient {
    /// A training run.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] with 404 if there is none that the caller may see.
    #[doc(alias = "get_training_run")]
    pub fn training_run(&self, run_id: &str, scope: AccessScope) -> Result<TrainingRun> {
        self.run_as(&route::GET_TRAINING_RUN, run_id, scope)
    }

    /// The training run that saved a checkpoint.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the path cannot be parsed; otherwise as
    /// [`training_run`](Self::training_run).
    #[doc(alias = "get_training_run_by_tinker_path")]
    pub fn training_run_by_tinker_path(
        &self,
        checkpoint: impl Into<CheckpointRef>,
        scope: AccessScope,
    ) -> Result<TrainingRun> {
        let route =
            route::GET_TRAINING_RUN.with_sdk_method(Some("get_training_run_by_tinker_path"));
        self.run_as(&route, checkpoint.into().parts()?.0, scope)
    }

    fn run_as(&self, route: &Route, run_id: &str, scope: AccessScope) -> Result<TrainingRun> {
        let query = [("access_scope", scope.as_str().into())];
        self.get(route, &[run_id], &query)
    }

    /// One page of training runs, the last used first.
    ///
    /// # Errors
    ///
    /// What befalls every request: see [`error`](crate::error).
    pub fn list_training_runs(&self, options: impl Into<ListOptions>) -> Result<TrainingRunPage> {
        let options = options.into();
        let query = [
            ("limit", options.limit.unwrap_or(20).into()),
            ("offset", options.offset.into()),
            ("access_scope", options.access_scope.as_str().into()),
            ("project_id", options.project_id.as_deref().into()),
        ];
        self.get(&route::LIST_TRAINING_RUNS, &[], &query)
    }

    /// Every training run, the last used first.
    pub fn training_runs(&self, options: impl Into<ListOptions>) -> Pages<TrainingRun> {
        let (rest, options) = (self.clone(), options.into());
        Pages::by_offset(options, move |options| {
            let page = rest.list_training_runs(options)?;
            Ok((page.training_runs, Some(page.cursor)))
        })
    }

    /// The checkpoints of a run, all of them.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] with 404 if there is no such run.
    pub fn list_checkpoints(&self, run_id: &str) -> Result<Vec<Checkpoint>> {
        let page: CheckpointPage = self.get(&route::LIST_CHECKPOINTS, &[run_id], &[])?;
        Ok(page.checkpoints)
    }

    /// One page of the checkpoints of all the caller's runs, newest first.
    ///
    /// # Errors
    ///
    /// What befalls every request: see [`error`](crate::error).
    pub fn list_user_checkpoints(&self, options: impl Into<ListOptions>) -> Result<CheckpointPage> {
        let options = options.into();
        let query = [
            ("limit", options.limit.unwrap_or(100).into()),
            ("offset", options.offset.into()),
        ];
        self.get(&route::LIST_USER_CHECKPOINTS, &[], &query)
    }

    /// Every checkpoint of the caller's runs, newest first.
    pub fn user_checkpoints(&self, options: impl Into<ListOptions>) -> Pages<Checkpoint> {
        let (rest, options) = (self.clone(), options.into());
        Pages::by_offset(options, move |options| {
            let page = rest.list_user_checkpoints(options)?;
            Ok((page.checkpoints, page.cursor))
        })
    }

    /// Deletes a checkpoint. It cannot be brought back.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the path cannot be parsed, [`Error::Status`] with 404 if there is no
    /// such checkpoint.
    #[doc(alias = "delete_checkpoint_from_tinker_path")]
    pub fn delete_checkpoint(&self, checkpoint: impl Into<CheckpointRef>) -> Result<()> {
        let method = Some("delete_checkpoint_from_tinker_path");
        let route = route::DELETE_CHECKPOINT.with_sdk_method(method);
        self.change(&route, &checkpoint.into())
    }

    /// Deletes a checkpoint by its run's id and its own within it, such as `weights/0001`.
    ///
    /// # Errors
    ///
    /// As [`delete_checkpoint`](Self::delete_checkpoint).
    #[doc(alias = "delete_checkpoint")]
    pub fn delete_checkpoint_by_id(&self, run_id: &str, checkpoint_id: &str) -> Result<()> {
        let route = &route::DELETE_CHECKPOINT;
        let request = Request::to(route, route.path(&[run_id, checkpoint_id])?);
        self.send(request, Effort::from(route).with_final_conflict())
    }

    /// Lets everyone use a checkpoint. Only the run's owner may.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] with 409 if it is public already.
    #[doc(alias = "publish_checkpoint_from_tinker_path")]
    pub fn publish_checkpoint(&self, checkpoint: impl Into<CheckpointRef>) -> Result<()> {
        self.change(&route::PUBLISH_CHECKPOINT, &checkpoint.into())
    }

    /// Makes a public checkpoint private again.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] with 409 if it is private already.
    #[doc(alias = "unpublish_checkpoint_from_tinker_path")]
    pub fn unpublish_checkpoint(&self, checkpoint: impl Into<CheckpointRef>) -> Result<()> {
        self.change(&route::UNPUBLISH_CHECKPOINT, &checkpoint.into())
    }

    /// Sets how long from now a checkpoint is kept; `None` keeps it for ever.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless it is from one hour to ten years.
    #[doc(alias = "set_checkpoint_ttl_from_tinker_path")]
    pub fn set_checkpoint_ttl(
        &self,
        checkpoint: impl Into<CheckpointRef>,
        ttl: Option<Duration>,
    ) -> Result<()> {
        let ttl_seconds = checkpoint_ttl("ttl", ttl)?;
        let body = to_json(&SetTtlRequest { ttl_seconds })?;
        let route = &route::SET_CHECKPOINT_TTL;
        let request = checkpoint_request(route, &checkpoint.into())?.with_body(Body::Json(&body));
        self.send(request, route.into())
    }

    /// What saved weights are: their base model and the shape of the adapter.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the path does not begin with `tinker://`.
    #[doc(alias = "get_weights_info_by_tinker_path")]
    pub fn weights_info(&self, checkpoint: impl Into<CheckpointRef>) -> Result<WeightsInfo> {
        let body = to_json(&WeightsInfoRequest {
            tinker_path: checkpoint.into().checked()?.into(),
        })?;
        self.service.link()?.json(&route::WEIGHTS_INFO, &body)
    }

    /// Copies a checkpoint into a project and returns the copy's path. The bytes are shared; the
    /// copy belongs to a new run that cannot be trained.
    ///
    /// ```no_run
    /// # fn main() -> tinker::Result<()> {
    /// # let rest = tinker::ServiceClient::from_env()?.rest();
    /// use std::time::Duration;
    /// use tinker::client::CopyOptions;
    ///
    /// let path = "tinker://run/weights/final";
    /// let copy = rest.copy_weights(path, "archive")?;
    /// let month = Duration::from_secs(30 * 86_400);
    /// let copy = rest.copy_weights(path, CopyOptions::to_project("archive").with_ttl(month))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if neither the options nor the client's configuration name a project.
    pub fn copy_weights(
        &self,
        checkpoint: impl Into<CheckpointRef>,
        options: impl Into<CopyOptions>,
    ) -> Result<String> {
        let (checkpoint, options) = (checkpoint.into(), options.into());
        let own = self.service.config().project_id.as_deref();
        let body = options.request(&checkpoint, own)?;
        // One key for every attempt, so that no retry makes a second copy.
        let key = uuid::Uuid::new_v4().to_string();
        let route = &route::COPY_WEIGHTS;
        let mut request = Request::to(route, route.fixed_path())
            .with_body(Body::Json(&body))
            .with_idempotency_key(&key);
        let link = self.service.link()?;
        if let Some(token) = &options.weights_access_token {
            link.hide(Some(token));
            request = request.with_header("x-tinker-weights-access-token", token.expose());
        }
        let reply: CopyWeightsReply = link.call(request, route.into())?;
        Ok(reply.tinker_path)
    }

    /// What a sampler samples from.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] with 404 if there is no such sampler.
    #[doc(alias = "get_sampler")]
    pub fn sampler(&self, sampler_id: &str) -> Result<SamplerInfo> {
        self.get(&route::GET_SAMPLER, &[sampler_id], &[])
    }
}

/// Sessions.
impl RestClient {
    /// One page of session ids, newest first.
    ///
    /// # Errors
    ///
    /// What befalls every request: see [`error`](crate::error).
    pub fn list_sessions(&self, options: impl Into<ListOptions>) -> Result<SessionPage> {
        let options = options.into();
        let query = [
            ("limit", options.limit.unwrap_or(20).into()),
            ("offset", options.offset.into()),
            ("access_scope", options.access_scope.as_str().into()),
        ];
        self.get(&route::LIST_SESSIONS, &[], &query)
    }

    /// Every session id, newest first.
    pub fn sessions(&self, options: impl Into<ListOptions>) -> Pages<SessionId> {
        let (rest, options) = (self.clone(), options.into());
        Pages::by_offset(options, move |options| {
            let page = rest.list_sessions(options)?;
            Ok((page.sessions, None))
        })
    }

    /// The runs and samplers of a session.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] with 404 if there is none that the caller may see.
    #[doc(alias = "get_session")]
    pub fn session(&self, session_id: &str, scope: AccessScope) -> Result<SessionDetails> {
        let query = [("access_scope", scope.as_str().into())];
        self.get(&route::GET_SESSION, &[session_id], &query)
    }

    /// One page of the sessions that match, newest first.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a search that the service would refuse.
    pub fn search_sessions(&self, search: &SessionSearch) -> Result<SessionSearchPage> {
        search.validate()?;
        let body = to_json(search)?;
        self.service.link()?.json(&route::SEARCH_SESSIONS, &body)
    }

    /// Every session that matches, newest first.
    pub fn matching_sessions(&self, mut search: SessionSearch) -> Pages<SessionSummary> {
        let rest = self.clone();
        Pages::new(move || {
            let page = rest.search_sessions(&search)?;
            search.cursor = page.next_cursor;
            Ok(Page {
                items: page.sessions,
                more: search.cursor.is_some(),
            })
        })
    }

    /// Moves a session into a project.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] with 404 if there is no such session or project.
    pub fn assign_session_project(&self, session_id: &str, project_id: &str) -> Result<()> {
        let body = to_json(&AssignProjectRequest {
            project_id: project_id.into(),
        })?;
        let route = &route::ASSIGN_SESSION_PROJECT;
        let request = Request::to(route, route.path(&[session_id])?).with_body(Body::Json(&body));
        self.send(request, route.into())
    }

    /// Has the service write a session's timeline as a Perfetto trace, waits until it is there,
    /// and returns a signed URL that works for about an hour.
    ///
    /// # Errors
    ///
    /// [`Error::Failed`] if the service cannot make it.
    pub fn export_session_trace(&self, session_id: &str) -> Result<String> {
        let link = self.service.link()?;
        loop {
            let export: TraceExport = self.get(&route::EXPORT_SESSION_TRACE, &[session_id], &[])?;
            match (export.status, export.url) {
                (TraceExportStatus::Ready, Some(url)) => return Ok(url),
                (TraceExportStatus::Pending, _) => {}
                (status, _) => {
                    let reason = export.error.unwrap_or_else(|| status.to_string());
                    let message = format!("the trace of session {session_id}: {reason}");
                    return Err(Error::Failed(Context::new(message)));
                }
            }
            link.look_again(TRACE_POLL, "the trace of a session is not ready yet")?;
        }
    }
}

impl RestClient {
    /// Asks for a record or a list.
    fn get<T: DeserializeOwned>(
        &self,
        route: &Route,
        segments: &[&str],
        query: &[(&str, Value)],
    ) -> Result<T> {
        self.service.link()?.get(route, segments, query)
    }

    /// Changes a checkpoint. A 409 says that it is so already, which waiting does not change.
    fn change(&self, route: &Route, checkpoint: &CheckpointRef) -> Result<()> {
        let effort = Effort::from(route).with_final_conflict();
        self.send(checkpoint_request(route, checkpoint)?, effort)
    }

    fn send(&self, request: Request<'_>, effort: Effort) -> Result<()> {
        self.service.link()?.call_raw(request, effort).map(drop)
    }
}

/// A request about one checkpoint.
fn checkpoint_request(route: &Route, checkpoint: &CheckpointRef) -> Result<Request<'static>> {
    let (run, id) = checkpoint.parts()?;
    Ok(Request::to(route, route.path(&[run, id])?))
}

/// Where a copy goes and how long it is kept.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct CopyOptions {
    /// The project that will own the copy. Default: the client's own project.
    pub project_id: Option<String>,
    /// How long the copy is kept: from an hour to ten years. Default: for ever.
    pub ttl: Option<Duration>,
    /// A token that grants access to someone else's checkpoint. Default: none.
    pub weights_access_token: Option<Secret>,
}

impl CopyOptions {
    /// A copy in this project.
    pub fn to_project(id: impl Into<String>) -> Self {
        Self {
            project_id: Some(id.into()),
            ..Self::default()
        }
    }

    /// Sets how long the copy is kept.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets the token that grants access to the checkpoint.
    #[must_use]
    pub fn with_weights_access_token(mut self, token: impl Into<Secret>) -> Self {
        self.weights_access_token = Some(token.into());
        self
    }
}

impl CopyOptions {
    /// The body of the request, for a client whose own project is `own`.
    fn request(&self, checkpoint: &CheckpointRef, own: Option<&str>) -> Result<Vec<u8>> {
        let project = self.project_id.as_deref().or(own);
        let project = project
            .ok_or_else(|| Error::invalid("project_id", "or TINKER_PROJECT_ID is required"))?;
        to_json(&CopyWeightsRequest {
            source_path: checkpoint.checked()?.into(),
            destination_project_id: Some(project.into()),
            session_id: None,
            model_seq_id: None,
            ttl_seconds: checkpoint_ttl("ttl", self.ttl)?,
        })
    }
}

/// A copy in this project.
impl From<&str> for CopyOptions {
    fn from(project_id: &str) -> Self {
        Self::to_project(project_id)
    }
}
