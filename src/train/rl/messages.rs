//! Episodes in messages: what the model says is parsed, and what follows is laid out for it.

use super::env::{Env, Observation, Step};
use crate::text::data::PARSE_ERROR_MASKED;
use crate::text::{Message, Renderer};
use crate::types::{SampledSequence, StopReason};

/// The metric of an answer that could not be read.
pub(super) const PARSE_ERROR: &str = "parse_error";

/// One episode in messages, which [`ChatEnv`] plays: a conversation with somebody, or a game told in
/// words. Its code may block, as an [`Env`]'s may.
///
/// ```
/// use tinker::text::Message;
/// use tinker::train::rl::{MessageEnv, Step};
///
/// /// Guess a number; the reply says higher or lower.
/// struct Guess {
///     secret: i64,
///     turns: usize,
/// }
///
/// impl MessageEnv for Guess {
///     fn start(&mut self) -> anyhow::Result<Vec<Message>> {
///         Ok(vec![Message::user("Guess a number from 0 to 9.")])
///     }
///
///     fn step(&mut self, said: &Message) -> anyhow::Result<Step<Vec<Message>>> {
///         self.turns += 1;
///         let reply = match said.text().trim().parse::<i64>() {
///             Err(_) => return Ok(Step::done(-1.0).with_metric("format", 0.0)),
///             Ok(number) if number == self.secret => return Ok(Step::done(1.0)),
///             Ok(_) if self.turns == 4 => return Ok(Step::done(0.0)),
///             Ok(number) if number < self.secret => "higher",
///             Ok(_) => "lower",
///         };
///         Ok(Step::next(vec![Message::user(reply)]))
///     }
/// }
/// ```
pub trait MessageEnv: Send {
    /// How the conversation begins.
    ///
    /// # Errors
    ///
    /// Whatever went wrong; the [`FailurePolicy`](super::FailurePolicy) decides what that means.
    #[doc(alias = "initial_observation")]
    fn start(&mut self) -> anyhow::Result<Vec<Message>>;

    /// What comes of what the model said: a reward, and the messages that follow it unless the episode
    /// is over.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    fn step(&mut self, said: &Message) -> anyhow::Result<Step<Vec<Message>>>;
}

/// What becomes of answers that cannot be read.
///
/// Of an answer without its end nobody knows where it ends, so it ends the episode. Where only the
/// calls in it are no calls, the model can be told and go on.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ParseErrors {
    /// What an episode is worth that ends so. Default: -1; -0.1 for an [`Agent`](super::Agent).
    pub reward: f64,
    /// How many answers in a row whose calls cannot be read are replied to, and not the end.
    /// Default: 0.
    pub retries: usize,
    /// What the model is told then; `{details}` stands for what was wrong.
    pub reply: String,
    /// What each such answer costs. Default: 0.
    pub penalty: f64,
    /// Whether answers that cannot be read are left out of training. Default: no.
    pub masked: bool,
}

impl Default for ParseErrors {
    fn default() -> Self {
        Self {
            reward: -1.0,
            retries: 0,
            reply: "That could not be read: {details}\nPlease try again.".to_owned(),
            penalty: 0.0,
            masked: false,
        }
    }
}

impl ParseErrors {
    /// Sets what an episode is worth that ends so.
    #[must_use]
    pub fn with_reward(mut self, reward: f64) -> Self {
        self.reward = reward;
        self
    }

    /// Replies to so many answers in a row whose calls cannot be read.
    #[must_use]
    pub fn with_retries(mut self, retries: usize) -> Self {
        self.retries = retries;
        self
    }

    /// Sets what the model is told then; `{details}` stands for what was wrong.
    #[must_use]
    pub fn with_reply(mut self, reply: impl Into<String>) -> Self {
        self.reply = reply.into();
        self
    }

    /// Sets what each such answer costs.
    #[must_use]
    pub fn with_penalty(mut self, penalty: f64) -> Self {
        self.penalty = penalty;
        self
    }

    /// Leaves answers that cannot be read out of training.
    #[must_use]
    pub fn masked(mut self) -> Self {
        self.masked = true;
        self
    }

    /// The end of an episode, or what an answer leads to that could not be read.
    pub(super) fn note<Next>(&self, step: Step<Next>) -> Step<Next> {
        let step = match step.next {
            Some(_) => step,
            None => step.with_metric("stop/parse_error", 1.0),
        };
        let step = step.with_metric(PARSE_ERROR, 1.0);
        match self.masked {
            true => step.with_metric(PARSE_ERROR_MASKED, 1.0),
            false => step,
        }
    }
}

/// An episode in messages as an [`Env`]: a renderer lays the conversation out and reads the answers,
/// which stay the tokens that were sampled.
#[doc(alias = "EnvFromMessageEnv")]
#[derive(Debug)]
pub struct ChatEnv<E> {
    renderer: Renderer,
    env: E,
    history: Vec<Message>,
    parse_errors: ParseErrors,
    cut_off: Option<f64>,
}

impl<E: MessageEnv> ChatEnv<E> {
    /// An episode and the renderer of the model that plays it. Tools are declared by
    /// [`Renderer::with_tools`].
    pub fn new(renderer: &Renderer, env: E) -> Self {
        Self {
            renderer: renderer.clone(),
            env,
            history: Vec::new(),
            parse_errors: ParseErrors::default(),
            cut_off: Some(-0.1),
        }
    }

    /// Sets what becomes of answers that cannot be read. Of this only what concerns answers without
    /// an end is for every episode; what calls are is the episode's own affair.
    #[must_use]
    pub fn with_parse_errors(mut self, policy: ParseErrors) -> Self {
        self.parse_errors = policy;
        self
    }

    /// Sets what an episode is worth that ends because an answer became too long. Default: -0.1.
    #[doc(alias = "context_overflow_reward")]
    #[must_use]
    pub fn with_cut_off_reward(mut self, reward: f64) -> Self {
        self.cut_off = Some(reward);
        self
    }

    /// Goes on after an answer that became too long, which stays as it is and is not shown to the
    /// episode. [`Limits`](super::Limits) then end it.
    #[doc(alias = "terminate_on_length")]
    #[must_use]
    pub fn going_on_when_cut_off(mut self) -> Self {
        self.cut_off = None;
        self
    }

    fn observe(&self) -> anyhow::Result<Observation> {
        let prompt = self.renderer.generation_prompt(&self.history)?;
        Ok(Observation::new(prompt).with_stop(self.renderer.stop()))
    }
}

impl<E: MessageEnv> Env for ChatEnv<E> {
    fn start(&mut self) -> anyhow::Result<Observation> {
        self.history = self.env.start()?;
        self.observe()
    }

    fn step(&mut self, answer: &SampledSequence) -> anyhow::Result<Step> {
        let is_cut = answer.stop_reason == StopReason::Length;
        if let (true, Some(reward)) = (is_cut, self.cut_off) {
            let step = Step::done(reward).with_metric("max_tokens_reached", 1.0);
            return Ok(step.with_metric("stop/max_tokens", 1.0));
        }
        let parsed = self.renderer.parse(answer.tokens.as_slice())?;
        if !is_cut && !parsed.termination.is_clean() {
            let step = Step::done(self.parse_errors.reward);
            let step = step.with_log("parse_failure_kind", "structural");
            return Ok(self.parse_errors.note(step));
        }
        let step = match is_cut {
            true => Step::next(Vec::new()).with_log("truncated_turn", "the answer was cut off"),
            false => self.env.step(&parsed.message)?,
        };
        self.history.push(parsed.message);
        step.try_map(|messages| {
            self.history.extend(messages);
            self.observe()
        })
    }
}
