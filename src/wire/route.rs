//! Every endpoint once: method, path, pool, retries and timeout.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::types::percent::{is_unreserved, percent_encode};

/// What every path begins with, below the base URL.
pub(crate) const API_PREFIX: &str = "/api/v1/";

/// Which connections carry a request.
///
/// Purposes are kept apart so that a flood of one never delays another: a thousand samples in
/// flight must not hold back a heartbeat or an `optim_step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Pool {
    /// Configuration, tokens, sessions and heartbeats.
    Session,
    /// Submissions of a model's queue.
    Train,
    /// Submissions of samples, long polls for one result, and cancellations. A thread that has
    /// submitted a sample waits for it, so both go over one connection.
    Retrieve,
    /// Long polls for many results.
    Poll,
    /// Batches of telemetry events.
    Telemetry,
    /// Listings, checkpoints and administration; the pool that follows redirects.
    Rest,
}

impl Pool {
    /// Every pool, in the order of declaration.
    pub(crate) const ALL: [Self; 6] = [
        Self::Session,
        Self::Train,
        Self::Retrieve,
        Self::Poll,
        Self::Telemetry,
        Self::Rest,
    ];

    /// A short name for logs and threads.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Train => "train",
            Self::Retrieve => "retrieve",
            Self::Poll => "poll",
            Self::Telemetry => "telemetry",
            Self::Rest => "rest",
        }
    }
}

/// An HTTP method this service uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Method {
    Get,
    Post,
    Put,
    Delete,
}

impl Method {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }
}

/// One endpoint: where it lives and how patiently it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) method: Method,
    /// Below [`API_PREFIX`]; `{id}` stands for one escaped segment, `{ckpt}` for a checkpoint id
    /// whose slash stays raw.
    pub(crate) template: &'static str,
    pub(crate) pool: Pool,
    /// How often the HTTP layer repeats a request that failed in a passing way.
    pub(crate) retries: u32,
    /// How long an answer may take.
    pub(crate) timeout: Duration,
    /// Whether the five-minute outer retry wraps the call.
    pub(crate) outer_retry: bool,
    /// What `X-Tinker-Request-Type` says when the result is fetched; empty for endpoints that
    /// answer at once.
    pub(crate) request_type: &'static str,
    /// What `x-sdk-method` says; the header is left out if `None`.
    pub(crate) sdk_method: Option<&'static str>,
}

impl Route {
    /// Fills the template and puts the prefix before it.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a value that would change the path's meaning: empty, `.` or `..`.
    pub(crate) fn path(&self, values: &[&str]) -> Result<String> {
        let mut path = String::with_capacity(API_PREFIX.len() + self.template.len() + 64);
        path.push_str(API_PREFIX);
        let mut rest = self.template;
        let mut values = values.iter();
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after
                .split_once('}')
                .expect("templates are constants with matching braces");
            let value = values
                .next()
                .expect("callers give one value per placeholder");
            path.push_str(before);
            match name {
                "ckpt" => push_segments(&mut path, value)?,
                _ => push_segment(&mut path, name, value)?,
            }
            rest = after;
        }
        debug_assert!(values.next().is_none(), "more values than placeholders");
        path.push_str(rest);
        Ok(path)
    }

    /// The path of a route without placeholders.
    pub(crate) fn fixed_path(&self) -> String {
        debug_assert!(!self.template.contains('{'));
        format!("{API_PREFIX}{}", self.template)
    }

    /// How errors and logs name the request: `POST optim_step`.
    pub(crate) fn label(&self) -> String {
        format!("{} {}", self.method.as_str(), self.template)
    }

    /// The same route announced under another public method's name, or under none.
    pub(crate) const fn with_sdk_method(mut self, name: Option<&'static str>) -> Self {
        self.sdk_method = name;
        self
    }

    const fn new(method: Method, template: &'static str, pool: Pool) -> Self {
        Self {
            method,
            template,
            pool,
            retries: 10,
            timeout: Duration::from_secs(60),
            outer_retry: true,
            request_type: "",
            sdk_method: None,
        }
    }

    const fn post(template: &'static str, pool: Pool) -> Self {
        Self::new(Method::Post, template, pool)
    }

    /// A listing or administration call, which always names its SDK method.
    const fn rest(method: Method, template: &'static str, sdk_method: &'static str) -> Self {
        Self::new(method, template, Pool::Rest).with_sdk_method(Some(sdk_method))
    }

    /// An endpoint that answers with a future.
    const fn result_of(mut self, request_type: &'static str) -> Self {
        self.request_type = request_type;
        self
    }

    const fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    const fn timeout(mut self, seconds: u64) -> Self {
        self.timeout = Duration::from_secs(seconds);
        self
    }

    const fn once(mut self) -> Self {
        self.outer_retry = false;
        self
    }
}

/// Appends checkpoint segments, keeping their slash.
fn push_segments(path: &mut String, value: &str) -> Result<()> {
    for (index, segment) in value.split('/').enumerate() {
        if index > 0 {
            path.push('/');
        }
        push_segment(path, "checkpoint id", segment)?;
    }
    Ok(())
}

/// Appends one segment, escaping whatever would end it. Ids keep their `:`.
fn push_segment(path: &mut String, name: &str, value: &str) -> Result<()> {
    if matches!(value, "" | "." | "..") {
        return Err(Error::invalid(
            name,
            format!("must be a name other than `.` and `..`, got {value:?}"),
        ));
    }
    let plain = |byte| is_unreserved(byte) || b"!$&'()*+,;=:@".contains(&byte);
    percent_encode(path, value, plain);
    Ok(())
}

use Method::{Delete, Get, Put};

pub(crate) const CLIENT_CONFIG: Route = Route::post("client/config", Pool::Session);
/// Only the first fetch is wrapped in the outer retry; refreshes are not.
pub(crate) const DYNAMIC_CONFIG: Route = Route::post("client/dynamic_config", Pool::Session)
    .retries(0)
    .timeout(10);
pub(crate) const AUTH_TOKEN: Route = Route::post("auth/token", Pool::Session).once();
pub(crate) const HEALTH: Route = Route::new(Get, "healthz", Pool::Session);
pub(crate) const SERVER_CAPABILITIES: Route =
    Route::new(Get, "get_server_capabilities", Pool::Rest);
pub(crate) const CREATE_SESSION: Route = Route::post("create_session", Pool::Session).once();
pub(crate) const SESSION_HEARTBEAT: Route = Route::post("session_heartbeat", Pool::Session)
    .retries(0)
    .timeout(10)
    .once();
pub(crate) const FINISH_SESSION: Route = Route::post("sessions/{id}/finish", Pool::Train);

pub(crate) const CREATE_MODEL: Route = Route::post("create_model", Pool::Train)
    .result_of("CreateModel")
    .once();
pub(crate) const GET_INFO: Route = Route::post("get_info", Pool::Train);
/// Servers of the JSON era and SkyRL have it; since 0.25 the hosted service takes a
/// `forward_backward` with `forward_only` instead.
pub(crate) const FORWARD: Route = Route::post("forward", Pool::Train);
pub(crate) const FORWARD_BACKWARD: Route =
    Route::post("forward_backward", Pool::Train).result_of("ForwardBackward");
pub(crate) const OPTIM_STEP: Route = Route::post("optim_step", Pool::Train).result_of("OptimStep");
pub(crate) const SAVE_WEIGHTS: Route = Route::post("save_weights", Pool::Train)
    .result_of("SaveWeights")
    .retries(0);
pub(crate) const SAVE_WEIGHTS_FOR_SAMPLER: Route =
    Route::post("save_weights_for_sampler", Pool::Train)
        .result_of("SaveWeightsForSampler")
        .retries(0);
pub(crate) const SAVE_WEIGHTS_EXTERNAL: Route = Route::post("save_weights_external", Pool::Train)
    .result_of("SaveWeightsExternal")
    .retries(0);
pub(crate) const LOAD_WEIGHTS: Route =
    Route::post("load_weights", Pool::Train).result_of("LoadWeights");
pub(crate) const WEIGHTS_INFO: Route = Route::post("weights_info", Pool::Train)
    .with_sdk_method(Some("get_weights_info_by_tinker_path"));
pub(crate) const CREATE_CUSTOM_LOSS: Route =
    Route::post("create_custom_loss", Pool::Train).result_of("CreateCustomLoss");
/// Servers of the JSON era and SkyRL have it; the reference asked for it last in 0.25.
pub(crate) const UNLOAD_MODEL: Route =
    Route::post("unload_model", Pool::Train).result_of("UnloadModel");

pub(crate) const CREATE_SAMPLING_SESSION: Route =
    Route::post("create_sampling_session", Pool::Session).once();
pub(crate) const JOIN_SAMPLING_SESSION: Route = Route::post("join_sampling_session", Pool::Session);
pub(crate) const ASAMPLE: Route = Route::post("asample", Pool::Retrieve).retries(0);
pub(crate) const GET_SAMPLER: Route = Route::rest(Get, "samplers/{id}", "get_sampler");

/// The future loops repeat it themselves.
pub(crate) const RETRIEVE_FUTURE: Route = Route::post("retrieve_future", Pool::Retrieve)
    .retries(0)
    .timeout(45)
    .once();
/// The poller repeats it itself.
pub(crate) const RETRIEVE_FUTURES: Route = Route::post("retrieve_futures", Pool::Poll)
    .retries(0)
    .timeout(45)
    .once();
pub(crate) const CANCEL_FUTURE: Route = Route::post("cancel_future", Pool::Retrieve)
    .retries(0)
    .timeout(30);

/// The telemetry queue repeats it itself.
pub(crate) const TELEMETRY: Route = Route::post("telemetry", Pool::Telemetry).timeout(5).once();

pub(crate) const COPY_WEIGHTS: Route = Route::rest(Method::Post, "copy_weights", "copy_weights");
pub(crate) const GET_TRAINING_RUN: Route =
    Route::rest(Get, "training_runs/{id}", "get_training_run");
pub(crate) const LIST_TRAINING_RUNS: Route =
    Route::rest(Get, "training_runs", "list_training_runs");
pub(crate) const LIST_CHECKPOINTS: Route =
    Route::rest(Get, "training_runs/{id}/checkpoints", "list_checkpoints");
pub(crate) const LIST_USER_CHECKPOINTS: Route =
    Route::rest(Get, "checkpoints", "list_user_checkpoints");
pub(crate) const DELETE_CHECKPOINT: Route = Route::rest(
    Delete,
    "training_runs/{id}/checkpoints/{ckpt}",
    "delete_checkpoint",
);
pub(crate) const PUBLISH_CHECKPOINT: Route = Route::rest(
    Method::Post,
    "training_runs/{id}/checkpoints/{ckpt}/publish",
    "publish_checkpoint_from_tinker_path",
);
pub(crate) const UNPUBLISH_CHECKPOINT: Route = Route::rest(
    Delete,
    "training_runs/{id}/checkpoints/{ckpt}/publish",
    "unpublish_checkpoint_from_tinker_path",
);
pub(crate) const SET_CHECKPOINT_TTL: Route = Route::rest(
    Put,
    "training_runs/{id}/checkpoints/{ckpt}/ttl",
    "set_checkpoint_ttl_from_tinker_path",
);
pub(crate) const EXTERNAL_WEIGHTS_URLS: Route = Route::rest(
    Get,
    "training_runs/{id}/checkpoints/{ckpt}/external_weights_urls",
    "get_external_weights_urls",
);
/// Servers of the JSON era and SkyRL redirect to one archive file here; the reference asked for it
/// last in 0.35.
pub(crate) const CHECKPOINT_ARCHIVE: Route = Route::rest(
    Get,
    "training_runs/{id}/checkpoints/{ckpt}/archive",
    "get_checkpoint_archive_url",
);
pub(crate) const LIST_SESSIONS: Route = Route::rest(Get, "sessions", "list_sessions");
pub(crate) const GET_SESSION: Route = Route::rest(Get, "sessions/{id}", "get_session");
pub(crate) const ASSIGN_SESSION_PROJECT: Route =
    Route::rest(Put, "sessions/{id}/project", "assign_session_project");
pub(crate) const EXPORT_SESSION_TRACE: Route =
    Route::rest(Get, "sessions/{id}/trace_export", "export_session_trace");
pub(crate) const SEARCH_SESSIONS: Route =
    Route::rest(Method::Post, "sessions/search", "search_sessions");
pub(crate) const AUDIT_LOG: Route = Route::rest(Get, "audit", "get_audit_log");
pub(crate) const BILLING_USAGE: Route =
    Route::rest(Get, "billing/usage/events", "get_billing_usage");
pub(crate) const CHECKPOINT_STORAGE_USAGE: Route = Route::rest(
    Get,
    "billing/usage/checkpoints/current",
    "get_current_checkpoint_storage_usage",
);
/// The command line checks and deletes stored keys with it.
pub(crate) const GET_API_KEY: Route = Route::new(Get, "auth/apikey/me", Pool::Rest)
    .timeout(30)
    .retries(0)
    .once();
pub(crate) const DELETE_API_KEY: Route = Route::new(Delete, "auth/apikey/me", Pool::Rest)
    .timeout(30)
    .retries(0)
    .once();

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(route: Route, values: &[&str], expected: &str) {
        assert_eq!(route.path(values).unwrap(), expected);
    }

    #[test]
    fn paths_keep_colons_and_the_slash_of_checkpoints() {
        check(OPTIM_STEP, &[], "/api/v1/optim_step");
        check(
            GET_SAMPLER,
            &["S1:sample:0"],
            "/api/v1/samplers/S1:sample:0",
        );
        check(
            PUBLISH_CHECKPOINT,
            &["R1", "weights/0001"],
            "/api/v1/training_runs/R1/checkpoints/weights/0001/publish",
        );
        check(
            DELETE_CHECKPOINT,
            &["a/b?c", "weights/é #"],
            "/api/v1/training_runs/a%2Fb%3Fc/checkpoints/weights/%C3%A9%20%23",
        );
    }

    #[test]
    fn paths_refuse_values_that_climb() {
        for (id, ckpt) in [
            ("", "weights/1"),
            ("..", "weights/1"),
            ("R", "weights/.."),
            ("R", "weights/"),
        ] {
            let error = DELETE_CHECKPOINT.path(&[id, ckpt]).unwrap_err();
            assert!(error.is_user_error(), "{error}");
        }
    }
}
