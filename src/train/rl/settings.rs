//! What reinforcement learning is told.

use std::fmt;

use serde::Serialize;
use serde_json::{Value as Json, json};

use super::env::EnvDataset;
use super::rollout::{FailurePolicy, Limits};
use super::teach::SelfDistillation;
use crate::client::SamplerSource;
use crate::loss::Objective;
use crate::text::data::KlPenalty;
use crate::train::checkpoints::SavePolicy;
use crate::train::evaluate::Evaluator;
use crate::train::model::Model;
use crate::train::run::Run;
use crate::train::steps::{check_settings, common_setters};
use crate::types::{AdamParams, Loss, LossFn, SamplingParams};
use crate::{Error, Result};

/// How sampling and training take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Mode {
    /// All groups of a batch are played, then trained on.
    #[default]
    Sync,
    /// Groups are trained on as soon as enough for one of this many parts are there; what is played
    /// has the weights from before the batch, so it is still on-policy.
    ///
    /// Which groups make up a part depends on how fast they were. With one substep that changes
    /// nothing but the order of a sum, and a resumed run is the one it would have become; with
    /// several, not quite.
    Stream {
        /// Parts per substep. They and the substeps must divide the batch evenly.
        minibatches: usize,
    },
    /// Playing goes on while training does; what was played with weights more steps old than this
    /// is played again.
    ///
    /// Which group is played with which weights depends on how fast others were, so no two runs are
    /// the same, and a resumed one is not the one it would have become. It trains on every group
    /// once all the same: checkpoints say which were on their way, and those are played anew.
    Async {
        /// The oldest weights a group may have been played with, in steps.
        max_steps_off_policy: usize,
    },
}

/// The loss of a policy step.
#[derive(Debug, Clone)]
pub enum PolicyLoss {
    /// One the service runs.
    Server(Loss),
    /// A formula of your own over `logprobs()`, `input("logprobs")` and `input("advantages")`.
    Custom(Objective),
}

impl From<LossFn> for PolicyLoss {
    fn from(loss: LossFn) -> Self {
        Self::Server(loss.into())
    }
}

impl From<Loss> for PolicyLoss {
    fn from(loss: Loss) -> Self {
        Self::Server(loss)
    }
}

impl From<Objective> for PolicyLoss {
    fn from(objective: Objective) -> Self {
        Self::Custom(objective)
    }
}

/// Reinforcement learning: environments are played in groups, answers are judged against their
/// group's mean, and the policy is trained on what was sampled.
///
/// ```no_run
/// use tinker::train::rl::{EnvBatches, Rl};
/// use tinker::train::{Existing, Run};
///
/// # fn example(service: tinker::ServiceClient, problems: EnvBatches) -> tinker::Result<()> {
/// let mut run = Run::open("runs/arithmetic", Existing::Resume)?;
/// let report = Rl::new("Qwen/Qwen3-8B", 64)
///     .with_learning_rate(4e-5)
///     .train(&service, &mut run, &problems)?;
/// println!("{report}");
/// # Ok(()) }
/// ```
#[non_exhaustive]
pub struct Rl {
    /// The model and how it is made.
    pub model: Model,
    /// The name of the recipe, for the run's records. Default: `rl`.
    pub recipe: String,
    /// What the environments were made from, for the run's records. Default: null.
    pub dataset: Json,
    /// The learning rate, which stays as it is. Default: 1e-5.
    pub learning_rate: f64,
    /// The other parameters of the optimiser. Default: betas 0.9 and 0.95, epsilon 1e-8.
    pub adam: AdamParams,
    /// How answers are sampled. Default: temperature 1.
    pub sampling: SamplingParams,
    /// The loss. Default: importance sampling.
    pub loss: PolicyLoss,
    /// A penalty for moving away from a reference. Default: none.
    pub kl_penalty: Option<(KlPenalty, SamplerSource)>,
    /// Into how many optimiser steps a batch is cut. Default: 1.
    pub substeps: usize,
    /// Whether groups whose rewards are all equal are left out. Default: no.
    pub remove_constant_reward_groups: bool,
    /// Whether the distance between the weights before and after a step is measured.
    /// Default: no.
    pub compute_post_kl: bool,
    /// How sampling and training take turns. Default: one after the other.
    pub mode: Mode,
    /// What happens to failed episodes. Default: the run ends.
    pub failures: FailurePolicy,
    /// How long episodes may become. Default: no limits.
    pub limits: Limits,
    /// Makes samples the same in every run; without one the service draws as it likes.
    /// Default: 0.
    pub seed: Option<u64>,
    /// How many episodes are played at once. Default: 256.
    pub threads: usize,
    /// Batches between evaluations; 0 for none. Default: 20.
    pub eval_every: usize,
    /// The most batches. Default: none.
    pub max_steps: Option<usize>,
    /// When checkpoints are saved.
    pub save: SavePolicy,
    pub(super) kl_to_start: Option<KlPenalty>,
    pub(super) teachers: Option<(KlPenalty, Vec<SamplerSource>)>,
    pub(super) self_distillation: Option<SelfDistillation>,
    pub(super) test: Option<Box<dyn EnvDataset + Send>>,
    pub(super) evaluators: Vec<Box<dyn Evaluator>>,
}

impl Rl {
    /// Training of a model whose answers have at most so many tokens, at least 1.
    pub fn new(model: impl Into<Model>, max_tokens: u32) -> Self {
        Self {
            model: model.into(),
            recipe: "rl".into(),
            dataset: Json::Null,
            learning_rate: 1e-5,
            adam: AdamParams::default().with_eps(1e-8),
            sampling: SamplingParams::max_tokens(max_tokens),
            loss: LossFn::ImportanceSampling.into(),
            kl_penalty: None,
            substeps: 1,
            remove_constant_reward_groups: false,
            compute_post_kl: false,
            mode: Mode::default(),
            failures: FailurePolicy::default(),
            limits: Limits::default(),
            seed: Some(0),
            threads: 256,
            eval_every: 20,
            max_steps: None,
            save: SavePolicy::default(),
            kl_to_start: None,
            teachers: None,
            self_distillation: None,
            test: None,
            evaluators: Vec::new(),
        }
    }

    common_setters!();

    /// Sets how answers are sampled.
    #[must_use]
    pub fn with_sampling(mut self, params: SamplingParams) -> Self {
        self.sampling = params;
        self
    }

    /// Sets the loss: one of the service's, or a formula of your own.
    #[must_use]
    pub fn with_loss(mut self, loss: impl Into<PolicyLoss>) -> Self {
        self.loss = loss.into();
        self
    }

    /// Penalises moving away from a reference.
    #[must_use]
    pub fn with_kl_penalty(mut self, penalty: KlPenalty, to: impl Into<SamplerSource>) -> Self {
        self.kl_penalty = Some((penalty, to.into()));
        self
    }

    /// Penalises moving away from the model as the run began, which is saved then.
    #[must_use]
    pub fn with_kl_penalty_to_start(mut self, penalty: KlPenalty) -> Self {
        self.kl_to_start = Some(penalty);
        self
    }

    /// Learns from how likely a teacher finds what was sampled: on-policy distillation. Called
    /// again it adds the teacher of the next data set ([`EnvGroup::dataset`](super::EnvGroup)).
    #[must_use]
    pub fn with_teacher(mut self, penalty: KlPenalty, teacher: impl Into<SamplerSource>) -> Self {
        let (_, mut teachers) = self.teachers.unwrap_or((penalty, Vec::new()));
        teachers.push(teacher.into());
        self.teachers = Some((penalty, teachers));
        self
    }

    /// Learns from itself, reading a prompt that knows the answer.
    #[must_use]
    pub fn with_self_distillation(mut self, distillation: SelfDistillation) -> Self {
        self.self_distillation = Some(distillation);
        self
    }

    /// Sets into how many optimiser steps a batch is cut.
    #[must_use]
    pub fn with_substeps(mut self, substeps: usize) -> Self {
        self.substeps = substeps;
        self
    }

    /// Sets how sampling and training take turns.
    #[must_use]
    pub fn with_mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets what happens to failed episodes.
    #[must_use]
    pub fn with_failures(mut self, policy: FailurePolicy) -> Self {
        self.failures = policy;
        self
    }

    /// Sets how long episodes may become.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Plays these environments on the way, without training on them: `test/env/all/…`.
    #[must_use]
    pub fn with_test(mut self, test: impl EnvDataset + Send + 'static) -> Self {
        self.test = Some(Box::new(test));
        self
    }

    /// Checks what would otherwise be refused in the middle of a run, or never.
    pub(super) fn check(&self) -> Result<()> {
        let adam = self.adam.with_learning_rate(self.learning_rate);
        check_settings(&self.model, &adam, &self.save)?;
        self.sampling.validate()?;
        if self.sampling.max_tokens == Some(0) {
            let problem = "must be at least 1, got 0: nothing would be said, so nothing learned";
            return Err(Error::invalid("sampling.max_tokens", problem));
        }
        if let PolicyLoss::Server(loss) = &self.loss {
            loss.validate()?;
        }
        self.limits.check()?;
        self.failures.check()?;
        if self.substeps == 0 {
            return Err(Error::invalid("substeps", "must be at least 1, got 0"));
        }
        if let Mode::Stream { minibatches } = self.mode
            && (minibatches == 0 || minibatches.checked_mul(self.substeps).is_none())
        {
            let problem = format!("cannot be {minibatches}: no batch has so many parts");
            return Err(Error::invalid("minibatches", problem));
        }
        let to_base = self.kl_penalty.iter().map(|(penalty, _)| penalty);
        let to_teachers = self.teachers.iter().map(|(penalty, _)| penalty);
        for penalty in to_base.chain(&self.kl_to_start).chain(to_teachers) {
            penalty.validate()?;
        }
        match &self.self_distillation {
            Some(distillation) => distillation.check(),
            None => Ok(()),
        }
    }

    pub(super) fn config(&self, run: &Run) -> RlConfig<'_> {
        let (loss_fn, loss_fn_config) = match &self.loss {
            PolicyLoss::Server(loss) => (loss.function.as_str().to_owned(), json!(loss.config)),
            PolicyLoss::Custom(_) => ("custom".to_owned(), Json::Null),
        };
        let (penalty, reference) = match (&self.kl_penalty, self.kl_to_start) {
            (_, Some(penalty)) => {
                let start = self.model.load_checkpoint_path.as_deref();
                let name = &self.model.name;
                let reference = json!({"base_model": name, "load_checkpoint_path": start});
                (penalty, reference)
            }
            (Some((penalty, source)), None) => {
                let reference = match source {
                    SamplerSource::BaseModel(name) => json!({"base_model": name}),
                    other => json!({"load_checkpoint_path": format!("{other:?}")}),
                };
                (*penalty, reference)
            }
            (None, None) => (
                KlPenalty {
                    coefficient: 0.0,
                    discount: 0.0,
                },
                Json::Null,
            ),
        };
        let (async_config, stream_minibatch_config) = match self.mode {
            Mode::Sync => (Json::Null, Json::Null),
            Mode::Stream { minibatches } => (Json::Null, json!({"num_minibatches": minibatches})),
            Mode::Async {
                max_steps_off_policy,
            } => (
                json!({"max_steps_off_policy": max_steps_off_policy}),
                Json::Null,
            ),
        };
        RlConfig {
            learning_rate: self.learning_rate,
            dataset_builder: &self.dataset,
            model_name: &self.model.name,
            recipe_name: &self.recipe,
            max_tokens: self.sampling.max_tokens,
            log_path: run.folder().path().display().to_string(),
            eval_every: self.eval_every,
            save_every: self.save.every,
            evaluator_builders: [],
            load_checkpoint_path: self.model.load_checkpoint_path.as_deref(),
            renderer_name: self.model.renderer_name.as_deref(),
            wandb_project: (),
            wandb_name: (),
            session_name: (),
            kl_penalty_coef: penalty.coefficient,
            kl_discount_factor: penalty.discount,
            kl_reference_config: reference,
            loss_fn,
            loss_fn_config,
            num_substeps: self.substeps,
            lora_rank: self.model.lora.rank,
            temperature: self.sampling.temperature,
            compute_post_kl: self.compute_post_kl,
            remove_constant_reward_groups: self.remove_constant_reward_groups,
            rollout_error_tolerance: match self.failures {
                FailurePolicy::FailFast => None,
                policy => Some(format!("{policy:?}")),
            },
            termination: (),
            enable_trace: false,
            span_chart_every: 0,
            async_config,
            stream_minibatch_config,
            base_url: (),
            ttl_seconds: self.save.ttl.map(|ttl| ttl.as_secs()),
            rolling_save_every: self.save.rolling_every,
            rolling_ttl_seconds: self.save.rolling_ttl.as_secs(),
            num_groups_to_log: 0,
            rollout_json_export: true,
            max_steps: self.max_steps,
            seed: self.seed,
        }
    }
}

impl fmt::Debug for Rl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rl")
            .field("model", &self.model)
            .field("learning_rate", &self.learning_rate)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// `config.json`, with the names of the Python cookbook, in its order, and the seed. What there is
/// no setting for here stands with its default there.
#[derive(Serialize)]
pub(super) struct RlConfig<'a> {
    learning_rate: f64,
    dataset_builder: &'a Json,
    model_name: &'a str,
    recipe_name: &'a str,
    max_tokens: Option<u32>,
    log_path: String,
    eval_every: usize,
    save_every: usize,
    evaluator_builders: [(); 0],
    load_checkpoint_path: Option<&'a str>,
    renderer_name: Option<&'a str>,
    wandb_project: (),
    wandb_name: (),
    session_name: (),
    kl_penalty_coef: f32,
    kl_discount_factor: f32,
    kl_reference_config: Json,
    loss_fn: String,
    loss_fn_config: Json,
    num_substeps: usize,
    lora_rank: u32,
    temperature: f64,
    compute_post_kl: bool,
    remove_constant_reward_groups: bool,
    rollout_error_tolerance: Option<String>,
    termination: (),
    enable_trace: bool,
    span_chart_every: usize,
    async_config: Json,
    stream_minibatch_config: Json,
    base_url: (),
    ttl_seconds: Option<u64>,
    rolling_save_every: usize,
    rolling_ttl_seconds: u64,
    num_groups_to_log: usize,
    rollout_json_export: bool,
    max_steps: Option<usize>,
    seed: Option<u64>,
}
