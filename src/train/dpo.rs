//! Training on preferences, directly.

use serde::Serialize;
use serde_json::Value as Json;

use super::checkpoints::{Checkpoints, Position, SavePolicy};
use super::dataset::Dataset;
use super::evaluate::{Evaluator, Snapshot, check_count, evaluate_all, target_logprobs};
use super::model::Model;
use super::row::Row;
use super::run::{Outcome, Report, Run};
use super::schedule::Schedule;
use super::scores::{DpoScores, floats};
use super::steps::{check_settings, common_setters, total_steps};
use super::supervised::tokens;
use super::timing::Timing;
use crate::client::{SamplingClient, ServiceClient, TrainingClient};
use crate::loss::{LossValue, from_fn};
use crate::types::{AdamParams, Datum, TensorData};
use crate::{Error, Result};

/// Direct preference optimisation: of two answers the chosen one is made likelier than the
/// rejected one, relative to a reference that does not change.
///
/// The reference is the model as the run begins. It is saved then, and a resumed run uses the
/// same one. Batches hold pairs, the chosen example before the rejected one
/// ([`Batches::of_pairs`](super::Batches::of_pairs)).
///
/// ```no_run
/// use tinker::train::{Batches, Dpo, Existing, Run};
///
/// # fn main() -> tinker::Result<()> {
/// # let (service, pairs) = (tinker::ServiceClient::from_env()?, Vec::<tinker::Datum>::new());
/// let mut run = Run::open("runs/dpo", Existing::Resume)?;
/// let report = Dpo::new("Qwen/Qwen3-8B").train(&service, &mut run, &Batches::of_pairs(pairs, 64)?)?;
/// println!("{report}");
/// # Ok(()) }
/// ```
#[non_exhaustive]
pub struct Dpo {
    /// The model and how it is made.
    pub model: Model,
    /// The name of the recipe, for the run's records. Default: `dpo`.
    pub recipe: String,
    /// What the data was made from, for the run's records. Default: null.
    pub dataset: Json,
    /// How strongly preferences are held to the reference. Default: 0.1.
    pub beta: f64,
    /// The highest learning rate. Default: 1e-5.
    pub learning_rate: f64,
    /// How it changes. Default: linear.
    pub schedule: Schedule,
    /// The other parameters of the optimiser. Default: betas 0.9 and 0.95, epsilon 1e-8.
    pub adam: AdamParams,
    /// How often the data is gone through. Default: 1.
    pub epochs: usize,
    /// The most steps, whatever the epochs. Default: none.
    pub max_steps: Option<usize>,
    /// Steps between evaluations, which also come before the last step; 0 for none. Default: 10.
    pub eval_every: usize,
    /// When checkpoints are saved.
    pub save: SavePolicy,
    evaluators: Vec<Box<dyn Evaluator>>,
}

impl Dpo {
    /// Training of a model with the defaults.
    pub fn new(model: impl Into<Model>) -> Self {
        Self {
            model: model.into(),
            recipe: "dpo".into(),
            dataset: Json::Null,
            beta: 0.1,
            learning_rate: 1e-5,
            schedule: Schedule::default(),
            adam: AdamParams::default().with_eps(1e-8),
            epochs: 1,
            max_steps: None,
            eval_every: 10,
            save: SavePolicy::default(),
            evaluators: Vec::new(),
        }
    }

    common_setters!();

    /// Sets how the learning rate changes.
    #[must_use]
    pub fn with_schedule(mut self, schedule: impl Into<Schedule>) -> Self {
        self.schedule = schedule.into();
        self
    }

    /// Sets how strongly preferences are held to the reference.
    #[must_use]
    pub fn with_beta(mut self, beta: f64) -> Self {
        self.beta = beta;
        self
    }

    /// Sets how often the data is gone through.
    #[must_use]
    pub fn with_epochs(mut self, epochs: usize) -> Self {
        self.epochs = epochs;
        self
    }

    /// Trains, from the run's last checkpoint if it has one.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is nothing to train on, or a setting is wrong; else what the service, the data or an
    /// evaluator returns. The run can be resumed from its last checkpoint.
    pub fn train(
        &self,
        service: &ServiceClient,
        run: &mut Run,
        data: &dyn Dataset,
    ) -> Result<Report> {
        let rate = self.adam.with_learning_rate(self.learning_rate);
        check_settings(&self.model, &rate, &self.save)?;
        if !(self.beta.is_finite() && self.beta > 0.0) {
            let problem = format!("must be more than 0, got {}", self.beta);
            return Err(Error::invalid("beta", problem));
        }
        let batches = data.batches();
        let total = total_steps(batches, self.epochs, self.max_steps)?;
        let config = self.config(run);
        let Some((last, place)) = run.open_loop(&config, batches, total)? else {
            return run.end(Outcome::Completed);
        };
        let training = self.model.start(service, run, last.as_ref())?;
        let reference =
            self.model
                .reference(service, run, &training, last.is_some(), place.step)?;
        let folder = run.folder().clone();
        let tuner = Tuner {
            settings: self,
            checkpoints: Checkpoints::new(service, &training, &folder, self.save.clone(), 0),
            training,
            reference,
            batches,
            total,
        };
        tuner.go(run, data, place.step)
    }

    fn config(&self, run: &Run) -> DpoConfig<'_> {
        DpoConfig {
            log_path: run.folder().path().display().to_string(),
            model_name: &self.model.name,
            recipe_name: &self.recipe,
            dataset_builder: &self.dataset,
            load_checkpoint_path: self.model.load_checkpoint_path.as_deref(),
            renderer_name: self.model.renderer_name.as_deref(),
            learning_rate: self.learning_rate,
            lr_schedule: self.schedule,
            num_epochs: self.epochs,
            dpo_beta: self.beta,
            lora_rank: self.model.lora.rank,
            num_replicas: 8,
            base_url: (),
            evaluator_builders: [],
            infrequent_evaluator_builders: [],
            save_every: self.save.every,
            eval_every: self.eval_every,
            infrequent_eval_every: 100,
            ttl_seconds: self.save.ttl.map(|ttl| ttl.as_secs()),
            rolling_save_every: self.save.rolling_every,
            rolling_ttl_seconds: self.save.rolling_ttl.as_secs(),
            adam_beta1: self.adam.beta1,
            adam_beta2: self.adam.beta2,
            adam_eps: self.adam.eps,
            wandb_project: (),
            wandb_name: (),
            enable_trace: false,
            span_chart_every: 0,
            reference_model_name: (),
            max_steps: self.max_steps,
        }
    }
}

impl std::fmt::Debug for Dpo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dpo")
            .field("model", &self.model)
            .field("beta", &self.beta)
            .field("learning_rate", &self.learning_rate)
            .finish_non_exhaustive()
    }
}

/// `config.json`, with the names of the Python cookbook, in its order. What there is no setting
/// for here stands with its default there.
#[derive(Serialize)]
struct DpoConfig<'a> {
    log_path: String,
    model_name: &'a str,
    recipe_name: &'a str,
    dataset_builder: &'a Json,
    load_checkpoint_path: Option<&'a str>,
    renderer_name: Option<&'a str>,
    learning_rate: f64,
    lr_schedule: Schedule,
    num_epochs: usize,
    dpo_beta: f64,
    lora_rank: u32,
    num_replicas: usize,
    base_url: (),
    evaluator_builders: [(); 0],
    infrequent_evaluator_builders: [(); 0],
    save_every: usize,
    eval_every: usize,
    infrequent_eval_every: usize,
    ttl_seconds: Option<u64>,
    rolling_save_every: usize,
    rolling_ttl_seconds: u64,
    adam_beta1: f64,
    adam_beta2: f64,
    adam_eps: f64,
    wandb_project: (),
    wandb_name: (),
    enable_trace: bool,
    span_chart_every: usize,
    reference_model_name: (),
    max_steps: Option<usize>,
}

/// A run under way.
struct Tuner<'a> {
    settings: &'a Dpo,
    training: TrainingClient,
    reference: SamplingClient,
    checkpoints: Checkpoints,
    batches: usize,
    total: usize,
}

impl Tuner<'_> {
    fn go(mut self, run: &mut Run, data: &dyn Dataset, start: usize) -> Result<Report> {
        let mut step = start;
        while step < self.total && !run.is_interrupted() {
            let timing = Timing::start();
            let metrics = self.step(data, step, step > start, &timing)?;
            run.log(step, &metrics, &timing)?;
            step += 1;
        }
        let outcome = match step == self.total {
            true => Outcome::Completed,
            false => Outcome::Interrupted,
        };
        let position = self.position(step);
        run.end_loop(&mut self.checkpoints, &position, outcome)
    }

    fn position(&self, step: usize) -> Position {
        Position {
            steps: step,
            epoch: Some((step / self.batches) as u64),
            batch: (step % self.batches) as u64,
            ..Position::default()
        }
    }

    fn step(
        &mut self,
        data: &dyn Dataset,
        step: usize,
        may_save: bool,
        timing: &Timing,
    ) -> Result<Row> {
        let settings = self.settings;
        let (epoch, index) = (step / self.batches, step % self.batches);
        let mut metrics = Row::new().with("epoch", epoch);
        if may_save {
            let position = self.position(step);
            let saved = timing.span("save_checkpoint", || {
                self.checkpoints.save_if_due(&position)
            });
            if let Some(path) = saved?.and_then(|saved| saved.state_path) {
                metrics.set("state_path", path);
            }
        }
        let due = settings.eval_every > 0
            && (step.is_multiple_of(settings.eval_every) || step + 1 == self.total);
        if due && !settings.evaluators.is_empty() {
            let snapshot = Snapshot::of(&self.training);
            let measured = timing.span("evals", || {
                evaluate_all(&settings.evaluators, &snapshot, timing)
            });
            metrics.merge(measured?);
        }
        let mut pairs = timing.span("get_batch", || data.batch(epoch, index))?;
        // A last example without a partner cannot be judged.
        pairs.truncate(pairs.len() / 2 * 2);
        let reference = timing.span("get_ref_logprobs", || {
            target_logprobs(&self.reference, &pairs)
        })?;
        let rate = settings.learning_rate * settings.schedule.multiplier(step, self.total)?;
        metrics.set("num_pairs", pairs.len() / 2);
        metrics.set("num_tokens", tokens(&pairs)?);
        metrics.set("learning_rate", rate);
        metrics.set("progress", step as f64 / self.total as f64);
        let beta = settings.beta;
        let output = timing.span("step", || {
            let loss = from_fn(|data: &[Datum], logprobs: &[TensorData]| {
                dpo_loss(data, logprobs, &reference, beta)
            });
            let output = self.training.forward_backward_custom(&pairs, loss)?;
            let update = self
                .training
                .optim_step(settings.adam.with_learning_rate(rate))?;
            let output = output.join()?;
            update.join()?;
            Ok::<_, Error>(output)
        })?;
        let first = [
            "dpo_loss",
            "accuracy",
            "margin",
            "chosen_reward",
            "rejected_reward",
        ];
        for name in first {
            if let Some(value) = output.metrics.get(name) {
                metrics.set(name, *value);
            }
        }
        for (name, value) in output.metrics {
            metrics.set(name, value);
        }
        metrics.merge(timing.metrics());
        let seconds = timing.elapsed().as_secs_f64();
        metrics.set("time/total", seconds);
        metrics.set("batch_time", seconds);
        Ok(metrics)
    }
}

/// The loss of pairs and its gradients by the log probabilities.
fn dpo_loss(
    data: &[Datum],
    logprobs: &[TensorData],
    reference: &[Vec<f32>],
    beta: f64,
) -> anyhow::Result<LossValue> {
    let mut ratios = Vec::with_capacity(data.len());
    for ((datum, logprobs), reference) in data.iter().zip(logprobs).zip(reference) {
        let logprobs = logprobs.as_f32().unwrap_or_default();
        let weights = floats(datum, "weights")?;
        check_count(weights.len(), logprobs.len())?;
        let numbers = logprobs.iter().zip(reference).zip(weights);
        let ratio = numbers.map(|((own, reference), weight)| {
            (f64::from(*own) - f64::from(*reference)) * f64::from(*weight)
        });
        ratios.push(ratio.sum::<f64>());
    }
    let pairs: Vec<(f64, f64)> = ratios
        .chunks_exact(2)
        .map(|pair| (pair[0], pair[1]))
        .collect();
    let scores = DpoScores::of(&pairs, beta);
    let mut gradients = Vec::with_capacity(data.len());
    for (index, datum) in data.iter().enumerate() {
        let (chosen, rejected) = pairs[index / 2];
        let sign = if index % 2 == 0 { 1.0 } else { -1.0 };
        // d/dx of −log σ(βx) is −β σ(−βx).
        let slope = -beta / (1.0 + (beta * (chosen - rejected)).exp()) / pairs.len() as f64;
        let weights = floats(datum, "weights")?.iter();
        gradients.push(
            weights
                .map(|weight| weight * (sign * slope) as f32)
                .collect(),
        );
    }
    Ok(LossValue::new(scores.loss, gradients)
        .with_metric("dpo_loss", scores.loss)
        .with_metric("accuracy", scores.accuracy)
        .with_metric("margin", scores.margin)
        .with_metric("chosen_reward", scores.chosen_reward)
        .with_metric("rejected_reward", scores.rejected_reward))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_those_of_the_loss() {
        let data = [
            Datum::supervised(&[1], &[2, 3]),
            Datum::supervised(&[1], &[4, 5]),
        ];
        let reference = [vec![-1.0, -2.0], vec![-1.5, -0.5]];
        let at = |x: f32| {
            let logprobs = [
                TensorData::from(vec![-0.5, x]),
                TensorData::from(vec![-1.0f32, -0.25]),
            ];
            dpo_loss(&data, &logprobs, &reference, 0.7).unwrap()
        };
        let slope = (at(-0.999).loss - at(-1.001).loss) / 0.002;
        assert!((slope - f64::from(at(-1.0).gradients[0][1])).abs() < 1e-4);
        assert_eq!(at(-1.0).gradients[0][1], -at(-1.0).gradients[1][0]);
        let few = [vec![-0.5], vec![-1.0f32, -0.25]].map(TensorData::from);
        let error = dpo_loss(&data, &few, &reference, 0.7).unwrap_err();
        assert!(error.to_string().contains("2 targets"), "{error}");
    }
}
