//! A scripted service: every route answers as the real one does on a good day, and a test makes
//! single answers go wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tinker::config::Config;
use tinker::unversioned::Clock;
use tinker::{
    AdamParams, LoraConfig, OptimStepResponse, Pending, SamplingClient, ServiceClient,
    TrainingClient,
};

use super::scripted::{Gate, Recorded, Reply, Server};

pub(crate) const API: &str = "/api/v1/";

pub(crate) struct Fake {
    pub(crate) server: Arc<Server>,
    pub(crate) clock: Clock,
}

/// A route below `/api/v1/`.
pub(crate) fn route(name: &str) -> String {
    format!("{API}{name}")
}

impl Fake {
    pub(crate) fn start() -> Self {
        Self::with_flags(json!({}))
    }

    /// A service whose `client/config` answers with these flags.
    pub(crate) fn with_flags(flags: Value) -> Self {
        let server = Server::start();
        let post = |name: &str, answer: Value| {
            server.always("POST", &route(name), Reply::json(&answer));
        };
        post("client/config", flags);
        post("client/dynamic_config", json!({}));
        post(
            "create_session",
            json!({"session_id": "S1", "type": "create_session"}),
        );
        post("session_heartbeat", json!({"type": "session_heartbeat"}));
        post("sessions/S1/finish", json!({}));
        post("telemetry", json!({"status": "accepted"}));
        post(
            "create_sampling_session",
            json!({"sampling_session_id": "S1:sample:0", "type": "create_sampling_session"}),
        );
        let next = Arc::new(AtomicUsize::new(1));
        let accept = move |request: &Recorded| {
            let id = format!("req-{}", next.fetch_add(1, Ordering::SeqCst));
            let mut answer = json!({ "request_id": id });
            if request.path.ends_with("asample") {
                let count = request.json()["num_samples"].as_u64().unwrap();
                let ids: Vec<String> = (0..count).map(|n| format!("{id}-{n}")).collect();
                answer["sample_sequence_ids"] = json!(ids);
            }
            Reply::json(&answer)
        };
        let accept = Arc::new(accept);
        for name in [
            "create_model",
            "forward_backward",
            "optim_step",
            "save_weights",
            "save_weights_for_sampler",
            "load_weights",
            "asample",
        ] {
            let accept = accept.clone();
            server.on("POST", &route(name), move |request| accept(request));
        }
        server.on("POST", &route("retrieve_future"), |request| {
            Reply::json(&result_of(request.header("x-tinker-request-type").unwrap()))
        });
        Self {
            server: Arc::new(server),
            clock: Clock::recorded(),
        }
    }

    /// Queues an answer for a route below `/api/v1/`.
    pub(crate) fn reply(&self, name: &str, reply: Reply) {
        self.server.reply("POST", &route(name), reply);
    }

    pub(crate) fn config(&self) -> Config {
        Config::default()
            .with_base_url(self.server.url())
            .with_api_key("tml-secret-key")
            .with_telemetry(false)
    }

    /// A client whose pauses are recorded instead of slept through.
    pub(crate) fn service(&self) -> ServiceClient {
        self.client(self.config())
    }

    /// The same with a configuration of its own.
    pub(crate) fn client(&self, config: Config) -> ServiceClient {
        tinker::unversioned::client_with_clock(config, self.clock.clone()).unwrap()
    }

    pub(crate) fn training(&self) -> TrainingClient {
        train(&self.service())
    }

    pub(crate) fn sampler(&self) -> SamplingClient {
        self.service().create_sampling_client("some/model").unwrap()
    }

    /// A step whose result is being asked for and does not come before the gate opens.
    pub(crate) fn held_step(
        &self,
        training: &TrainingClient,
    ) -> (Pending<OptimStepResponse>, Gate) {
        let gate = Gate::new();
        self.reply("retrieve_future", Reply::json(&json!({})).after(&gate));
        let pending = training.optim_step(AdamParams::default()).unwrap();
        gate.wait_for(1);
        (pending, gate)
    }

    /// The recorded requests to a route, as JSON bodies.
    pub(crate) fn bodies(&self, name: &str) -> Vec<Value> {
        let requests = self.server.requests_to(&route(name));
        requests.iter().map(Recorded::json).collect()
    }

    /// Asserts the pauses so far; jitter shortens each by up to a quarter.
    #[track_caller]
    pub(crate) fn check_pauses(&self, expected: &[u64]) {
        let pauses = self.clock.pauses();
        let fits = |(pause, expected): (&std::time::Duration, &u64)| {
            let ratio = pause.as_secs_f64() / *expected as f64;
            (0.749..=1.001).contains(&ratio)
        };
        let all = pauses.len() == expected.len() && pauses.iter().zip(expected).all(fits);
        assert!(all, "{pauses:?} are not {expected:?}");
    }
}

pub(crate) fn train(service: &ServiceClient) -> TrainingClient {
    service
        .create_lora_training_client("some/model", LoraConfig::rank(4))
        .unwrap()
}

/// What a finished request of this type answers.
pub(crate) fn result_of(request_type: &str) -> Value {
    match request_type {
        "CreateModel" => json!({"model_id": "S1:train:0", "type": "create_model"}),
        "OptimStep" => json!({"metrics": {"grad_norm:mean": 1.0}}),
        "Forward" | "ForwardBackward" => json!({
            "loss_fn_output_type": "TorchLossReturn",
            "loss_fn_outputs": [{"logprobs": {"data": [-1.0], "dtype": "float32", "shape": [1]}}],
            "metrics": {"loss:sum": 1.0},
        }),
        "SaveWeights" => json!({"path": "tinker://S1:train:0/weights/x", "type": "save_weights"}),
        "LoadWeights" => json!({"path": "tinker://S1:train:0/weights/x"}),
        "Sample" => json!({
            "sequences": [{"stop_reason": "stop", "tokens": [1, 2], "logprobs": [-0.5, -0.25]}],
            "type": "sample",
        }),
        other => json!({ "error": format!("no result for {other}"), "category": "user" }),
    }
}
