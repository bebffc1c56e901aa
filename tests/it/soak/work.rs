//! What the program under test does all day: train, sample, list.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tinker::config::Config;
use tinker::types::Stop;
use tinker::{
    AdamParams, Datum, Error, LoraConfig, LossFn, ModelInput, SamplingParams, ServiceClient,
    TrainingClient,
};

/// Steps between checkpoints.
const SAVE_EVERY: usize = 4;

pub(super) fn service(url: &str) -> ServiceClient {
    let config = Config::default()
        .with_base_url(url)
        .with_api_key("tml-test")
        .with_telemetry(false)
        .with_close_timeout(Duration::from_secs(1));
    ServiceClient::new(config).unwrap()
}

/// What cannot be had at once on a bad day is asked for again.
fn insist<T>(mut call: impl FnMut() -> tinker::Result<T>) -> T {
    let mut attempts = 0;
    loop {
        match call() {
            Ok(value) => return value,
            Err(error) => {
                attempts += 1;
                assert!(attempts < 100, "{error}");
            }
        }
    }
}

fn base_model(service: &ServiceClient) -> String {
    let models = insist(|| service.capabilities()).supported_models;
    models[0].model_name.clone().unwrap()
}

/// A number that is told apart in a request's bytes.
fn weight(step: usize) -> f32 {
    1.0 + step as f32 / 65_536.0
}

fn learning_rate(step: usize) -> f64 {
    1e-3 + step as f64 * 1e-7
}

fn data(worker: usize, step: usize) -> [Datum; 1] {
    let text: Vec<i32> = (0..6)
        .map(|at| 97 + ((worker * 7 + step * 3 + at) % 26) as i32)
        .collect();
    let targets: Vec<i64> = text
        .iter()
        .skip(1)
        .chain([&97])
        .map(|&id| i64::from(id))
        .collect();
    let weights = vec![weight(step); text.len()];
    [Datum::new(ModelInput::from_ints(text))
        .with_target_tokens(targets)
        .with_weights(weights)]
}

/// A run that is to look as if nothing had happened.
pub(super) struct Trainer {
    worker: usize,
    url: String,
    service: ServiceClient,
    training: TrainingClient,
    saved: Option<(usize, String)>,
    pub(super) losses: Vec<f64>,
    pub(super) errors: Vec<Value>,
}

impl Trainer {
    pub(super) fn new(worker: usize, url: &str) -> Self {
        let service = service(url);
        Self {
            worker,
            url: url.to_owned(),
            training: Self::begin(&service, worker),
            service,
            saved: None,
            losses: Vec::new(),
            errors: Vec::new(),
        }
    }

    fn begin(service: &ServiceClient, worker: usize) -> TrainingClient {
        let config = LoraConfig::rank(2).with_seed(worker as i64);
        let base = base_model(service);
        insist(|| service.create_lora_training_client(&base, config.clone()))
    }

    /// One step, and a checkpoint now and then; an error is noted, and the run taken up again from
    /// its last checkpoint.
    pub(super) fn step(&mut self) {
        let step = self.losses.len();
        let mark = weight(step).to_le_bytes().to_vec();
        let rate = learning_rate(step);
        let pass = self
            .training
            .forward_backward(&data(self.worker, step), LossFn::CrossEntropy);
        let update = self.training.optim_step(AdamParams::learning_rate(rate));
        let loss = match pass.and_then(|pending| pending.join()) {
            Ok(output) => output.loss().unwrap(),
            Err(error) => return self.recover("forward_backward", &mark, &error),
        };
        if let Err(error) = update.and_then(|pending| pending.join()) {
            let mark = json!(rate).to_string();
            return self.recover("optim_step", mark.as_bytes(), &error);
        }
        self.losses.push(loss);
        if self.losses.len().is_multiple_of(SAVE_EVERY) {
            self.save();
        }
    }

    fn save(&mut self) {
        let step = self.losses.len();
        let name = format!("w{}-s{step}", self.worker);
        let saved = self.training.save_state(name.as_str());
        match saved.and_then(|pending| pending.join()) {
            Ok(saved) => self.saved = Some((step, saved.path)),
            Err(error) => self.recover("save_weights", name.as_bytes(), &error),
        }
    }

    fn recover(&mut self, endpoint: &str, mark: &[u8], error: &Error) {
        self.errors
            .push(json!({"model": self.training.model_id().to_string(),
            "endpoint": endpoint, "mark": mark, "effect": format!("{:?}", error.effect()),
            "text": error.to_string()}));
        self.service = service(&self.url);
        let service = &self.service;
        match &self.saved {
            Some((step, path)) => {
                self.losses.truncate(*step);
                let resume =
                    || service.create_training_client_from_state_with_optimizer(path.as_str());
                self.training = insist(resume);
            }
            None => {
                self.losses.clear();
                self.training = Self::begin(service, self.worker);
            }
        }
    }
}

/// Draws sample after sample, each with a seed of its own.
pub(super) fn sample(url: &str, first: i64, stop: &AtomicBool, every: impl Fn()) -> Vec<Value> {
    let begin = || {
        let service = service(url);
        let base = base_model(&service);
        insist(|| service.create_sampling_client(&base))
    };
    let mut sampler = begin();
    let mut drawn = Vec::new();
    let mut seed = first;
    while !stop.load(Ordering::SeqCst) {
        let prompt = ModelInput::from_ints(vec![104, 101, 97 + (seed % 26) as i32]);
        let params = SamplingParams::max_tokens(8)
            .with_stop(Stop::never())
            .with_seed(seed);
        match sampler.sample(&prompt, params) {
            Ok(response) => {
                drawn.push(json!([seed, response.sequences[0].tokens]));
                seed += 1;
            }
            // A server that was killed knows its old sessions no more.
            Err(_) => sampler = begin(),
        }
        every();
    }
    drawn
}

/// Lists runs and checkpoints, page by page; how often it got through.
pub(super) fn list(url: &str, stop: &AtomicBool) -> usize {
    let service = service(url);
    let rest = service.rest();
    let mut listings = 0;
    while !stop.load(Ordering::SeqCst) {
        let runs: tinker::Result<Vec<_>> = rest.training_runs(10).collect();
        let checkpoints = rest.list_user_checkpoints(10);
        listings += usize::from(runs.is_ok() && checkpoints.is_ok());
    }
    listings
}
