//! Training on examples.

use std::collections::VecDeque;

use serde::Serialize;
use serde_json::Value as Json;

use super::checkpoints::{Checkpoints, Due, Position, SavePolicy};
use super::dataset::Dataset;
use super::evaluate::{Evaluator, Snapshot, check_scored, evaluate_all, weighted_nll};
use super::fault;
use super::model::Model;
use super::row::Row;
use super::run::{Outcome, Report, Run};
use super::schedule::Schedule;
use super::scores::floats;
use super::steps::{check_settings, common_setters, total_steps};
use super::timing::Timing;
use crate::client::{ServiceClient, TrainStep, TrainingClient};
use crate::text::Tokenizer;
use crate::types::{AdamParams, Datum, ForwardBackwardOutput, LossFn, OptimStepResponse};
use crate::{Error, Result};

/// Supervised training: cross-entropy over batches of examples, several steps submitted ahead,
/// with evaluation, checkpoints and exact resuming.
///
/// ```no_run
/// use tinker::train::{Batches, Existing, Run, Supervised};
///
/// # fn main() -> tinker::Result<()> {
/// # let (service, data) = (tinker::ServiceClient::from_env()?, Vec::<tinker::Datum>::new());
/// let mut run = Run::open("runs/first", Existing::Resume)?;
/// let report = Supervised::new("Qwen/Qwen3-8B")
///     .with_learning_rate(2e-4)
///     .with_epochs(2)
///     .train(&service, &mut run, &Batches::new(data, 128)?)?;
/// println!("{report}");
/// # Ok(()) }
/// ```
#[non_exhaustive]
pub struct Supervised {
    /// The model and how it is made.
    pub model: Model,
    /// The name of the recipe, for the run's records. Default: `supervised`.
    pub recipe: String,
    /// What the data was made from, for the run's records. Default: null.
    pub dataset: Json,
    /// The highest learning rate. Default: 1e-4.
    pub learning_rate: f64,
    /// How it changes. Default: linear.
    pub schedule: Schedule,
    /// The other parameters of the optimiser. Default: betas 0.9 and 0.95, epsilon 1e-8.
    pub adam: AdamParams,
    /// How often the data is gone through. Default: 1.
    pub epochs: usize,
    /// The most steps, whatever the epochs. Default: none.
    pub max_steps: Option<usize>,
    /// How many steps are submitted before the oldest result is awaited. Default: 1.
    pub submit_ahead: usize,
    /// Steps between evaluations, which see the weights before their step; 0 for none.
    /// Default: 10.
    pub eval_every: usize,
    /// Steps between the infrequent ones. Default: 100.
    pub infrequent_eval_every: usize,
    /// When checkpoints are saved.
    pub save: SavePolicy,
    evaluators: Vec<Box<dyn Evaluator>>,
    infrequent: Vec<Box<dyn Evaluator>>,
}

impl Supervised {
    /// Training of a model with the defaults.
    pub fn new(model: impl Into<Model>) -> Self {
        Self {
            model: model.into(),
            recipe: "supervised".into(),
            dataset: Json::Null,
            learning_rate: 1e-4,
            schedule: Schedule::default(),
            adam: AdamParams::default().with_eps(1e-8),
            epochs: 1,
            max_steps: None,
            submit_ahead: 1,
            eval_every: 10,
            infrequent_eval_every: 100,
            save: SavePolicy::default(),
            evaluators: Vec::new(),
            infrequent: Vec::new(),
        }
    }

    common_setters!();

    /// Sets how the learning rate changes.
    #[must_use]
    pub fn with_schedule(mut self, schedule: impl Into<Schedule>) -> Self {
        self.schedule = schedule.into();
        self
    }

    /// Sets how often the data is gone through.
    #[must_use]
    pub fn with_epochs(mut self, epochs: usize) -> Self {
        self.epochs = epochs;
        self
    }

    /// Sets how many steps are submitted ahead.
    #[must_use]
    pub fn with_submit_ahead(mut self, steps: usize) -> Self {
        self.submit_ahead = steps;
        self
    }

    /// Adds an evaluator that runs seldom.
    #[must_use]
    pub fn with_infrequent_evaluator(mut self, evaluator: impl Evaluator + 'static) -> Self {
        self.infrequent.push(Box::new(evaluator));
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
        let batches = data.batches();
        let total = total_steps(batches, self.epochs, self.max_steps)?;
        let config = self.config(run);
        let Some((last, place)) = run.open_loop(&config, batches, total)? else {
            return run.end(Outcome::Completed);
        };
        let training = self.model.start(service, run, last.as_ref())?;
        let policy = self.save.clone();
        let folder = run.folder().clone();
        let mut progress = Progress {
            settings: self,
            batches,
            total,
            tokens: place.tokens,
            checkpoints: Checkpoints::new(service, &training, &folder, policy, place.tokens),
            tokenizer: training.tokenizer().ok(),
            training,
            pending: VecDeque::new(),
        };
        progress.go(run, data, place.step)
    }

    fn config(&self, run: &Run) -> SupervisedConfig<'_> {
        SupervisedConfig {
            log_path: run.folder().path().display().to_string(),
            model_name: &self.model.name,
            recipe_name: &self.recipe,
            load_checkpoint_path: self.model.load_checkpoint_path.as_deref(),
            renderer_name: self.model.renderer_name.as_deref(),
            dataset_builder: &self.dataset,
            learning_rate: self.learning_rate,
            lr_schedule: self.schedule,
            num_epochs: self.epochs,
            lora_rank: self.model.lora.rank,
            base_url: (),
            evaluator_builders: [],
            infrequent_evaluator_builders: [],
            save_every: self.save.every,
            save_every_tokens: self.save.every_tokens,
            save_every_seconds: self.save.every_time.as_secs_f64(),
            eval_every: self.eval_every,
            infrequent_eval_every: self.infrequent_eval_every,
            ttl_seconds: self.save.ttl.map(|ttl| ttl.as_secs()),
            rolling_save_every: self.save.rolling_every,
            rolling_ttl_seconds: self.save.rolling_ttl.as_secs(),
            async_periodic_saves: self.save.background,
            adam_beta1: self.adam.beta1,
            adam_beta2: self.adam.beta2,
            adam_eps: self.adam.eps,
            wandb_project: (),
            wandb_name: (),
            session_name: (),
            enable_trace: false,
            span_chart_every: 0,
            max_steps: self.max_steps,
            submit_ahead: self.submit_ahead,
        }
    }
}

impl std::fmt::Debug for Supervised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervised")
            .field("model", &self.model)
            .field("learning_rate", &self.learning_rate)
            .field("epochs", &self.epochs)
            .field("evaluators", &self.evaluators.len())
            .finish_non_exhaustive()
    }
}

/// `config.json`, with the names of the Python cookbook, in its order. What there is no setting
/// for here stands with its default there.
#[derive(Serialize)]
struct SupervisedConfig<'a> {
    log_path: String,
    model_name: &'a str,
    recipe_name: &'a str,
    load_checkpoint_path: Option<&'a str>,
    renderer_name: Option<&'a str>,
    dataset_builder: &'a Json,
    learning_rate: f64,
    lr_schedule: Schedule,
    num_epochs: usize,
    lora_rank: u32,
    base_url: (),
    evaluator_builders: [(); 0],
    infrequent_evaluator_builders: [(); 0],
    save_every: usize,
    save_every_tokens: u64,
    save_every_seconds: f64,
    eval_every: usize,
    infrequent_eval_every: usize,
    ttl_seconds: Option<u64>,
    rolling_save_every: usize,
    rolling_ttl_seconds: u64,
    async_periodic_saves: bool,
    adam_beta1: f64,
    adam_beta2: f64,
    adam_eps: f64,
    wandb_project: (),
    wandb_name: (),
    session_name: (),
    enable_trace: bool,
    span_chart_every: usize,
    max_steps: Option<usize>,
    submit_ahead: usize,
}

/// A run under way.
struct Progress<'a> {
    settings: &'a Supervised,
    batches: usize,
    total: usize,
    tokens: u64,
    training: TrainingClient,
    checkpoints: Checkpoints,
    tokenizer: Option<Tokenizer>,
    pending: VecDeque<Submitted>,
}

/// A step whose results are awaited.
struct Submitted {
    step: usize,
    metrics: Row,
    evaluated: Row,
    data: Vec<Datum>,
    under_way: TrainStep,
    timing: Timing,
}

impl Progress<'_> {
    fn go(&mut self, run: &mut Run, data: &dyn Dataset, start: usize) -> Result<Report> {
        let (batches, epochs) = (self.batches, self.settings.epochs);
        run.folder().note(&format!(
            "Training for {batches} batches x {epochs} epochs = {} steps",
            batches.saturating_mul(epochs)
        ))?;
        let mut step = start;
        while step < self.total && !run.is_interrupted() {
            let timing = Timing::start();
            if step > start {
                self.save(run, step, &timing)?;
            }
            let submitted = self.submit(data, step, timing)?;
            self.pending.push_back(submitted);
            step += 1;
            if self.pending.len() > self.settings.submit_ahead {
                self.finish_oldest(run)?;
            }
        }
        while !self.pending.is_empty() {
            self.finish_oldest(run)?;
        }
        let outcome = match step == self.total {
            true => Outcome::Completed,
            false => Outcome::Interrupted,
        };
        let position = self.position(step);
        run.end_loop(&mut self.checkpoints, &position, outcome)
    }

    /// Saves what is due before a step, once all steps before it are logged.
    fn save(&mut self, run: &mut Run, step: usize, timing: &Timing) -> Result<()> {
        let position = self.position(step);
        let due = self.checkpoints.due(&position);
        while due != Due::Nothing && !self.pending.is_empty() {
            self.finish_oldest(run)?;
        }
        timing.span("save_checkpoint", || {
            self.checkpoints.save_unwritten(due, &position)?;
            self.checkpoints.write_down()
        })
    }

    /// Before a step.
    fn position(&self, step: usize) -> Position {
        Position {
            steps: step,
            epoch: Some((step / self.batches) as u64),
            batch: (step % self.batches) as u64,
            tokens: Some(self.tokens),
            ..Position::default()
        }
    }

    fn submit(&mut self, data: &dyn Dataset, step: usize, timing: Timing) -> Result<Submitted> {
        let settings = self.settings;
        let (epoch, index) = (step / self.batches, step % self.batches);
        let rate = settings.learning_rate * settings.schedule.multiplier(step, self.total)?;
        let submitted = timing.span("submit_batch", || {
            let batch = timing.span("get_batch", || data.batch(epoch, index))?;
            let evaluated = self.evaluate(step, &timing)?;
            let adam = settings.adam.with_learning_rate(rate);
            let under_way = self
                .training
                .train_step(&batch, LossFn::CrossEntropy, adam)?;
            Ok::<_, Error>((batch, evaluated, under_way))
        });
        let (batch, evaluated, under_way) = submitted?;
        self.tokens += tokens(&batch)?;
        let done = (step + 1) as f64 / self.total as f64;
        let metrics = Row::new()
            .with("epoch", epoch)
            .with("progress", done.min(1.0))
            .with("learning_rate", rate);
        Ok(Submitted {
            step,
            metrics,
            evaluated,
            data: batch,
            under_way,
            timing,
        })
    }

    /// What the evaluators that are due say about the weights before a step.
    fn evaluate(&self, step: usize, timing: &Timing) -> Result<Row> {
        let settings = self.settings;
        let on = |every: usize| every > 0 && step.is_multiple_of(every);
        let snapshot = Snapshot::of(&self.training);
        let mut metrics = Row::new();
        let kinds = [
            ("evals", settings.eval_every, &settings.evaluators),
            (
                "infrequent_evals",
                settings.infrequent_eval_every,
                &settings.infrequent,
            ),
        ];
        for (name, every, evaluators) in kinds {
            if on(every) && !evaluators.is_empty() {
                let measured = timing.span(name, || evaluate_all(evaluators, &snapshot, timing));
                metrics.merge(measured?);
            }
        }
        Ok(metrics)
    }

    fn finish_oldest(&mut self, run: &mut Run) -> Result<()> {
        let Some(oldest) = self.pending.pop_front() else {
            return Ok(());
        };
        let (step, metrics, timing) = self.finish(oldest)?;
        run.log(step, &metrics, &timing)
    }

    fn finish(&self, submitted: Submitted) -> Result<(usize, Row, Timing)> {
        let Submitted {
            step,
            mut metrics,
            evaluated,
            data,
            under_way,
            timing,
        } = submitted;
        let results = timing.span("finish_batch", || timing.span("step", || under_way.join()))?;
        let (output, optim): (ForwardBackwardOutput, OptimStepResponse) = results;
        for (name, value) in optim.metrics.into_iter().flatten() {
            metrics.set(name, value);
        }
        let logprobs = logprobs(&output, data.len())?;
        check_scored(&data, &logprobs)?;
        let weights = data.iter().map(|datum| floats(datum, "weights"));
        let weights = weights.collect::<Result<Vec<_>>>()?;
        let total: f64 = weights.into_iter().flatten().map(|&w| f64::from(w)).sum();
        metrics.set("num_sequences", data.len());
        metrics.set("num_tokens", tokens(&data)?);
        metrics.set("num_loss_tokens", total);
        metrics.set("train_mean_nll", weighted_nll(&data, &logprobs)?);
        let plain = |datum: &Datum| {
            let shape = datum
                .input("target_tokens")
                .and_then(|targets| targets.shape());
            shape.is_none_or(|shape| shape.len() < 2)
        };
        // Distributions over tokens have no text.
        if let Some(tokenizer) = self.tokenizer.as_ref().filter(|_| data.iter().all(plain)) {
            let bpb = super::evaluate::bits_per_byte(&data, &logprobs, tokenizer)?;
            metrics.set("train_mean_bpb", bpb);
        }
        metrics.merge(evaluated);
        metrics.merge(timing.metrics());
        Ok((step, metrics, timing))
    }
}

/// The log probabilities of every datum's targets, as a pass returned them.
pub(super) fn logprobs(output: &ForwardBackwardOutput, count: usize) -> Result<Vec<Vec<f32>>> {
    let of = |index: usize| match output.logprobs(index) {
        Some(logprobs) => Ok(logprobs.to_vec()),
        None => Err(fault::reply(format!(
            "no log probabilities came for data[{index}]"
        ))),
    };
    (0..count).map(of).collect()
}

/// The tokens a batch feeds to the model.
pub(super) fn tokens(data: &[Datum]) -> Result<u64> {
    let lengths = data.iter().map(|datum| datum.model_input().length());
    let lengths = lengths.collect::<Result<Vec<usize>>>()?;
    Ok(lengths.iter().map(|&length| length as u64).sum())
}
