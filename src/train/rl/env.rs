//! Environments: plain blocking code that asks, listens and rewards.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::Error;
use crate::text::Tokenizer;
use crate::text::data::Trajectory;
use crate::train::dataset::places;
use crate::types::{ModelInput, SampledSequence, Stop, StopReason};

/// What the model reads next, and what ends its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// The whole prompt.
    pub prompt: ModelInput,
    /// What ends the answer. Default: the model's own end of sequence.
    pub stop: Option<Stop>,
}

impl Observation {
    /// A prompt.
    pub fn new(prompt: impl Into<ModelInput>) -> Self {
        Self {
            prompt: prompt.into(),
            stop: None,
        }
    }

    /// Sets what ends the answer.
    #[must_use]
    pub fn with_stop(mut self, stop: impl Into<Stop>) -> Self {
        self.stop = Some(stop.into());
        self
    }
}

/// What came of an answer: a reward, and the next prompt unless the episode is over. An episode in
/// messages ([`MessageEnv`](super::MessageEnv)) goes on with messages instead.
///
/// A reward that takes time to compute can be [`graded`](Self::graded) later, on the pool of
/// threads that is kept for that.
#[non_exhaustive]
pub struct Step<Next = Observation> {
    /// What the answer was worth.
    pub reward: f64,
    /// What the model reads next; nothing when the episode is over.
    pub next: Option<Next>,
    /// Numbers to average, by name.
    pub metrics: BTreeMap<String, f64>,
    /// Things to look at, by name.
    pub logs: BTreeMap<String, String>,
    pub(super) grading: Option<Grading>,
}

pub(super) type Grading = Box<dyn FnOnce() -> anyhow::Result<Grade> + Send>;

impl<Next> Step<Next> {
    /// The episode is over.
    pub fn done(reward: f64) -> Self {
        Self {
            reward,
            next: None,
            metrics: BTreeMap::new(),
            logs: BTreeMap::new(),
            grading: None,
        }
    }

    /// The episode goes on.
    pub fn next(next: Next) -> Self {
        Self {
            next: Some(next),
            ..Self::done(0.0)
        }
    }

    /// The episode is over, and its reward is computed on the pool of threads for rewards.
    pub fn graded(grade: impl FnOnce() -> anyhow::Result<Grade> + Send + 'static) -> Self {
        Self {
            grading: Some(Box::new(grade)),
            ..Self::done(0.0)
        }
    }

    /// Sets what the answer was worth.
    #[must_use]
    pub fn with_reward(mut self, reward: f64) -> Self {
        self.reward = reward;
        self
    }

    /// Adds a number to average.
    #[must_use]
    pub fn with_metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.insert(name.into(), value);
        self
    }

    /// Adds something to look at.
    #[must_use]
    pub fn with_log(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.logs.insert(name.into(), text.into());
        self
    }

    /// The same, with what the model reads next in another form.
    pub(super) fn try_map<Other>(
        self,
        next: impl FnOnce(Next) -> anyhow::Result<Other>,
    ) -> anyhow::Result<Step<Other>> {
        Ok(Step {
            reward: self.reward,
            next: self.next.map(next).transpose()?,
            metrics: self.metrics,
            logs: self.logs,
            grading: self.grading,
        })
    }
}

impl<Next: fmt::Debug> fmt::Debug for Step<Next> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Step")
            .field("reward", &self.reward)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

/// One episode: a question, answers, rewards. Its code may block: each episode under way has a
/// thread of its own.
///
/// ```
/// use tinker::ModelInput;
/// use tinker::train::rl::{Env, Observation, Step};
/// use tinker::types::SampledSequence;
///
/// /// Rewards short answers.
/// struct Brief(Vec<i32>);
/// impl Env for Brief {
///     fn start(&mut self) -> anyhow::Result<Observation> {
///         Ok(Observation::new(ModelInput::from_ints(self.0.clone())))
///     }
///     fn step(&mut self, answer: &SampledSequence) -> anyhow::Result<Step> {
///         Ok(Step::done(1.0 / (1.0 + answer.tokens.len() as f64)))
///     }
/// }
/// ```
pub trait Env: Send {
    /// The first prompt.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong; the run's [`FailurePolicy`](super::FailurePolicy) says what then.
    fn start(&mut self) -> anyhow::Result<Observation>;

    /// What comes of an answer.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    fn step(&mut self, answer: &SampledSequence) -> anyhow::Result<Step>;
}

/// Episodes of one problem, which are judged against each other.
pub trait EnvGroup: Send + Sync {
    /// Makes the episodes. A failed one may be made anew, by making all and taking the first.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong.
    fn envs(&self) -> anyhow::Result<Vec<Box<dyn Env>>>;

    /// What the group adds to each episode's reward once all are over, with numbers to average.
    /// Runs on the pool of threads for rewards. Default: nothing.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong.
    fn judge(&self, episodes: &[Trajectory]) -> anyhow::Result<Vec<Grade>> {
        Ok(vec![Grade::reward(0.0); episodes.len()])
    }

    /// Under which names its figures are kept apart. Default: none.
    fn tags(&self) -> Vec<String> {
        Vec::new()
    }

    /// The number of its data set, which is that of its teacher where there are several.
    /// Default: 0.
    fn dataset(&self) -> usize {
        0
    }

    /// What a teacher that knows more reads in place of the question, for
    /// [`SelfDistillation`](super::SelfDistillation). Default: nothing.
    fn teacher_prompt(&self) -> Option<ModelInput> {
        None
    }
}

/// Groups in batches, the same ones whenever a number is asked for.
pub trait EnvDataset: Sync {
    /// How many batches there are.
    fn batches(&self) -> usize;

    /// A batch of groups.
    ///
    /// # Errors
    ///
    /// Whatever goes wrong.
    fn batch(&self, index: usize) -> anyhow::Result<Vec<Arc<dyn EnvGroup>>>;
}

/// Groups in a list, so many to a batch; a last batch that is not full is left out.
pub struct EnvBatches {
    groups: Vec<Arc<dyn EnvGroup>>,
    size: usize,
}

impl EnvBatches {
    /// Groups in batches of this size; 0 counts as 1.
    pub fn new(groups: impl IntoIterator<Item = Arc<dyn EnvGroup>>, size: usize) -> Self {
        Self {
            groups: groups.into_iter().collect(),
            size: size.max(1),
        }
    }
}

impl fmt::Debug for EnvBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvBatches")
            .field("groups", &self.groups.len())
            .field("size", &self.size)
            .finish()
    }
}

impl EnvDataset for EnvBatches {
    fn batches(&self) -> usize {
        self.groups.len() / self.size
    }

    fn batch(&self, index: usize) -> anyhow::Result<Vec<Arc<dyn EnvGroup>>> {
        Ok(self.groups[places(index, self.size, self.groups.len())?].to_vec())
    }
}

/// A reward, and numbers to average with it.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Grade {
    /// The reward.
    pub reward: f64,
    /// Numbers to average, by name.
    pub metrics: BTreeMap<String, f64>,
}

impl Grade {
    /// A reward without more numbers.
    pub fn reward(reward: f64) -> Self {
        Self {
            reward,
            metrics: BTreeMap::new(),
        }
    }

    /// The grade of an answer that is right or wrong and has the form that was asked for or not:
    /// 1 if right, less 0.1 for a wrong form. Reports `correct` and `format`.
    pub fn answer(correct: bool, format: bool) -> Self {
        let (correct, format) = (f64::from(correct), f64::from(format));
        Self::reward(0.1 * (format - 1.0) + correct)
            .with_metric("format", format)
            .with_metric("correct", correct)
    }

    /// Adds a number to average.
    #[must_use]
    pub fn with_metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.insert(name.into(), value);
        self
    }
}

/// An answer to a [`Problem`], as its reward function sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// What the model said, without special tokens.
    pub text: String,
    /// The tokens it is made of.
    pub tokens: Vec<i32>,
    /// Whether it came to an end by itself.
    pub ended: bool,
}

type Reward = dyn Fn(&Answer) -> anyhow::Result<Grade> + Send + Sync;

/// A question that is answered several times and graded by a function: the plainest group of
/// environments.
///
/// ```no_run
/// # fn example(tokenizer: tinker::Tokenizer) -> tinker::Result<()> {
/// use tinker::train::rl::{Grade, Problem};
///
/// let prompt = tokenizer.encode("7 + 5 =")?;
/// let problem = Problem::new(&tokenizer, prompt, |answer| {
///     Ok(Grade::answer(answer.text.trim() == "12", answer.ended))
/// });
/// let problem = problem.with_group_size(16).with_stop("\n");
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Problem {
    tokenizer: Tokenizer,
    observation: Observation,
    group_size: usize,
    tags: Vec<String>,
    dataset: usize,
    teacher_prompt: Option<ModelInput>,
    reward: Arc<Reward>,
}

impl Problem {
    /// A question, and how its answers are graded. Grading runs on the pool of threads for
    /// rewards.
    pub fn new(
        tokenizer: &Tokenizer,
        prompt: impl Into<ModelInput>,
        reward: impl Fn(&Answer) -> anyhow::Result<Grade> + Send + Sync + 'static,
    ) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            observation: Observation::new(prompt),
            group_size: 4,
            tags: vec!["problems".into()],
            dataset: 0,
            teacher_prompt: None,
            reward: Arc::new(reward),
        }
    }

    /// A question without a reward, for learning from a teacher.
    pub fn without_reward(tokenizer: &Tokenizer, prompt: impl Into<ModelInput>) -> Self {
        Self::new(tokenizer, prompt, |_| Ok(Grade::reward(0.0)))
    }

    /// Sets how often it is answered, from 1 to 65,536 times; a batch that asks for it otherwise
    /// fails. Default: 4.
    #[must_use]
    pub fn with_group_size(mut self, answers: usize) -> Self {
        self.group_size = answers;
        self
    }

    /// Sets what ends an answer. Default: the model's own end of sequence.
    #[must_use]
    pub fn with_stop(mut self, stop: impl Into<Stop>) -> Self {
        self.observation = self.observation.with_stop(stop);
        self
    }

    /// Sets the name its figures are kept under. Default: `problems`.
    #[must_use]
    pub fn with_tag(mut self, tag: impl Into<String>) -> Self {
        self.tags = vec![tag.into()];
        self
    }

    /// Sets the number of its data set, and so its teacher. Default: 0.
    #[must_use]
    pub fn with_dataset(mut self, number: usize) -> Self {
        self.dataset = number;
        self
    }

    /// Sets what a teacher that knows more reads in place of the question.
    #[must_use]
    pub fn with_teacher_prompt(mut self, prompt: impl Into<ModelInput>) -> Self {
        self.teacher_prompt = Some(prompt.into());
        self
    }

    /// The problem as a group of environments.
    pub fn into_group(self) -> Arc<dyn EnvGroup> {
        Arc::new(self)
    }
}

impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Problem")
            .field("observation", &self.observation)
            .field("group_size", &self.group_size)
            .finish_non_exhaustive()
    }
}

/// A group of so many environments.
pub(super) fn same(
    group_size: usize,
    env: impl Fn() -> Box<dyn Env>,
) -> anyhow::Result<Vec<Box<dyn Env>>> {
    const MOST: usize = 65_536;
    if !(1..=MOST).contains(&group_size) {
        let problem = format!("must be from 1 to {MOST}, got {group_size}");
        return Err(Error::invalid("group_size", problem).into());
    }
    Ok((0..group_size).map(|_| env()).collect())
}

impl EnvGroup for Problem {
    fn envs(&self) -> anyhow::Result<Vec<Box<dyn Env>>> {
        same(self.group_size, || Box::new(ProblemEnv(self.clone())))
    }

    fn tags(&self) -> Vec<String> {
        self.tags.clone()
    }

    fn dataset(&self) -> usize {
        self.dataset
    }

    fn teacher_prompt(&self) -> Option<ModelInput> {
        self.teacher_prompt.clone()
    }
}

struct ProblemEnv(Problem);

impl Env for ProblemEnv {
    fn start(&mut self) -> anyhow::Result<Observation> {
        Ok(self.0.observation.clone())
    }

    fn step(&mut self, answer: &SampledSequence) -> anyhow::Result<Step> {
        let tokens = answer.tokens.as_slice().to_vec();
        let text = self.0.tokenizer.decode_plain(&tokens)?;
        let ended = answer.stop_reason == StopReason::Stop;
        let (reward, answer) = (
            self.0.reward.clone(),
            Answer {
                text: text.clone(),
                tokens,
                ended,
            },
        );
        let prompt = self.0.observation.prompt.to_ints();
        let prompt = prompt.and_then(|prompt| self.0.tokenizer.decode(&prompt));
        let step = Step::graded(move || reward(&answer)).with_log("answer", text);
        // A prompt with images has no text of its own.
        Ok(match prompt {
            Ok(prompt) => step.with_log("prompt", prompt),
            Err(_) => step,
        })
    }
}
