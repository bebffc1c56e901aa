//! What the program under test does all day: train, sample, list.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tinker::config::Config;
use tinker::types::Stop;
use tinker::unversioned::Intervals;
use tinker::{
    AdamParams, Datum, Error, LoraConfig, LossFn, ModelInput, SamplingParams, ServiceClient,
    TrainingClient,
};

/// Steps between checkpoints.
const SAVE_EVERY: usize = 4;
/// Checkpoints that a run keeps.
const KEPT: usize = 3;
/// How long an answer may be silent: short, so that those that stall are not waited for.
const SILENCE: Duration = Duration::from_secs(3);

pub(super) fn service(url: &str) -> ServiceClient {
    let authority = std::fs::read(super::front::fixture("ca.pem")).unwrap();
    let config = Config::default()
        .with_base_url(url)
        .with_root_certificates(authority)
        .with_api_key("tml-test")
        .with_telemetry(false)
        .with_read_timeout(SILENCE)
        .with_poll_timeout(SILENCE)
        .with_close_timeout(Duration::from_secs(1));
    ServiceClient::new(config).unwrap()
}

/// What cannot be had at once on a bad day is asked for again, by a new client: the session of the
/// old one may have gone with its server.
fn insist<T>(url: &str, call: impl Fn(&ServiceClient) -> tinker::Result<T>) -> (ServiceClient, T) {
    let mut attempts = 0;
    loop {
        let service = service(url);
        match call(&service) {
            Ok(value) => return (service, value),
            Err(error) => {
                attempts += 1;
                assert!(attempts < 100, "{error}");
            }
        }
    }
}

fn base_model(service: &ServiceClient) -> tinker::Result<String> {
    let models = service.capabilities()?.supported_models;
    Ok(models[0].model_name.clone().unwrap())
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
    /// Every checkpoint that was acknowledged and not deleted since, the oldest first.
    pub(super) kept: Vec<String>,
    /// Those that were to be deleted, each with what is known of that.
    pub(super) deleted: Vec<(String, String)>,
    pub(super) losses: Vec<f64>,
    notes: Notes,
}

/// Where a worker's errors and samples go at once: kept in memory, they would hide what the client
/// keeps there.
pub(super) type Notes = Box<dyn FnMut(Note) + Send>;

/// What is written down of a day's work.
#[derive(Debug)]
pub(super) enum Note {
    Drawn(Value),
    Error(Value),
}

impl Trainer {
    pub(super) fn new(worker: usize, url: &str, notes: Notes) -> Self {
        let (service, training) = Self::begin(worker, url);
        Self {
            worker,
            url: url.to_owned(),
            training,
            service,
            saved: None,
            kept: Vec::new(),
            deleted: Vec::new(),
            losses: Vec::new(),
            notes,
        }
    }

    fn begin(worker: usize, url: &str) -> (ServiceClient, TrainingClient) {
        let config = LoraConfig::rank(2).with_seed(worker as i64);
        insist(url, |service| {
            service.create_lora_training_client(&base_model(service)?, config.clone())
        })
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
            Ok(saved) => {
                self.kept.push(saved.path.clone());
                self.saved = Some((step, saved.path));
                self.tidy();
            }
            Err(error) => self.recover("save_weights", name.as_bytes(), &error),
        }
    }

    /// Deletes the oldest checkpoint when there are more than a few.
    fn tidy(&mut self) {
        if self.kept.len() <= KEPT {
            return;
        }
        let path = self.kept.remove(0);
        let outcome = match self.service.rest().delete_checkpoint(path.as_str()) {
            Ok(()) => "Done".to_owned(),
            Err(error) => format!("{:?}", error.effect()),
        };
        self.deleted.push((path, outcome));
    }

    fn recover(&mut self, endpoint: &str, mark: &[u8], error: &Error) {
        let model = self.training.model_id().to_string();
        (self.notes)(Note::Error(report(&model, endpoint, mark, error)));
        (self.service, self.training) = match &self.saved {
            Some((step, path)) => {
                self.losses.truncate(*step);
                insist(&self.url, |service| {
                    service.create_training_client_from_state_with_optimizer(path.as_str())
                })
            }
            None => {
                self.losses.clear();
                Self::begin(self.worker, &self.url)
            }
        };
    }
}

/// Draws sample after sample, each with a seed of its own.
pub(super) fn sample(url: &str, first: i64, stop: &AtomicBool, mut notes: impl FnMut(Note)) {
    let begin = || {
        let create =
            |service: &ServiceClient| service.create_sampling_client(&base_model(service)?);
        insist(url, create).1
    };
    let mut sampler = begin();
    let mut seed = first;
    while !stop.load(Ordering::SeqCst) {
        let prompt = ModelInput::from_ints(vec![104, 101, 97 + (seed % 26) as i32]);
        let params = SamplingParams::max_tokens(8)
            .with_stop(Stop::never())
            .with_seed(seed);
        match sampler.sample(&prompt, params) {
            Ok(response) => {
                notes(Note::Drawn(json!([seed, response.sequences[0].tokens])));
                seed += 1;
            }
            // A server that was killed knows its old sessions no more.
            Err(error) => {
                let mark = format!("\"seed\":{seed}");
                let session = sampler.sampling_session_id().to_string();
                notes(Note::Error(report(
                    &session,
                    "asample",
                    mark.as_bytes(),
                    &error,
                )));
                sampler = begin();
            }
        }
    }
}

/// What an error says, and the bytes by which its request is known.
fn report(model: &str, endpoint: &str, mark: &[u8], error: &Error) -> Value {
    json!({"model": model, "endpoint": endpoint, "mark": mark,
        "effect": format!("{:?}", error.effect()), "text": error.to_string()})
}

/// How many runs are listed: all of a long day's would take more and more memory.
const LISTED: usize = 50;

/// Lists runs and checkpoints, page by page; how often it got through.
pub(super) fn list(url: &str, stop: &AtomicBool) -> usize {
    let mut listings = 0;
    while !stop.load(Ordering::SeqCst) {
        let rest = service(url).rest();
        let runs: tinker::Result<Vec<_>> = rest.training_runs(10).take(LISTED).collect();
        let checkpoints = rest.list_user_checkpoints(10);
        listings += usize::from(runs.is_ok() && checkpoints.is_ok());
    }
    listings
}
