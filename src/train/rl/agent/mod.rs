//! A model with tools: its calls are carried out, and the whole conversation is graded.

mod tool;

use std::fmt;
use std::sync::Arc;
use std::thread;

use super::env::{Env, EnvGroup, Grade, Step, same};
use super::messages::{ChatEnv, MessageEnv, ParseErrors};
use crate::text::{Message, Renderer, ToolCall};
use crate::{Error, Result};

pub use tool::{Tool, ToolOutput};

/// How many calls of an answer are carried out at once: a model may ask for hundreds.
const AT_ONCE: usize = 16;

/// How many letters of what was wrong a model is told.
const DETAILS: usize = 16_000;

type Judge = dyn Fn(&[Message]) -> anyhow::Result<Grade> + Send + Sync;

/// A task that a model with tools does several times: a group of episodes, each of which ends with an
/// answer without calls, by a tool, or at a limit, and is then graded by its whole conversation.
///
/// Failures of tools and unknown ones are told to the model as the Tinker cookbook tells them. What
/// was called and what came of it is in the rollouts' logs.
///
/// ```no_run
/// # fn example(renderer: tinker::text::Renderer, add: tinker::train::rl::Tool) -> tinker::Result<()> {
/// use tinker::text::Message;
/// use tinker::train::rl::{Agent, EnvBatches, Grade};
///
/// let task = [Message::user("What is 17 + 25? Use the tool.")];
/// let agent = Agent::new(&renderer, task, [add], |conversation| {
///     let answer = conversation.last().map(Message::text).unwrap_or_default();
///     Ok(Grade::reward(f64::from(answer.contains("42"))))
/// })?;
/// let data = EnvBatches::new([agent.with_group_size(8).with_max_turns(3).into_group()], 1);
/// # Ok(()) }
/// ```
#[doc(alias = "AgentToolMessageEnv")]
#[doc(alias = "build_agent_tool_env")]
#[derive(Clone)]
pub struct Agent {
    renderer: Renderer,
    task: Vec<Message>,
    tools: Arc<[Tool]>,
    judge: Arc<Judge>,
    group_size: usize,
    tags: Vec<String>,
    max_turns: usize,
    max_tool_calls: usize,
    side_by_side: bool,
    goes_on_when_cut_off: bool,
    parse_errors: ParseErrors,
}

impl Agent {
    /// A task, the tools for it, and how a conversation is graded, its first messages included.
    /// Grading runs on the pool of threads for rewards.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if two tools have one name, or the renderer cannot declare tools.
    pub fn new(
        renderer: &Renderer,
        task: impl Into<Vec<Message>>,
        tools: impl IntoIterator<Item = Tool>,
        grade: impl Fn(&[Message]) -> anyhow::Result<Grade> + Send + Sync + 'static,
    ) -> Result<Self> {
        let tools: Arc<[Tool]> = tools.into_iter().collect();
        for (index, tool) in tools.iter().enumerate() {
            if tools[..index]
                .iter()
                .any(|other| other.name() == tool.name())
            {
                let problem = format!("two are named {:?}", tool.name());
                return Err(Error::invalid("tools", problem));
            }
        }
        Ok(Self {
            renderer: renderer.with_tools(tools.iter().map(Tool::spec))?,
            task: task.into(),
            tools,
            judge: Arc::new(grade),
            group_size: 4,
            tags: vec!["agents".into()],
            max_turns: 5,
            max_tool_calls: usize::MAX,
            side_by_side: false,
            goes_on_when_cut_off: false,
            parse_errors: ParseErrors::default().with_reward(-0.1),
        })
    }

    /// Sets how often the task is done, from 1 to 65,536. Default: 4.
    #[must_use]
    pub fn with_group_size(mut self, episodes: usize) -> Self {
        self.group_size = episodes;
        self
    }

    /// Sets the name its figures are kept under. Default: `agents`.
    #[must_use]
    pub fn with_tag(mut self, tag: impl Into<String>) -> Self {
        self.tags = vec![tag.into()];
        self
    }

    /// Sets the most answers; the conversation is graded where the last of them leaves it. Default: 5.
    #[must_use]
    pub fn with_max_turns(mut self, turns: usize) -> Self {
        self.max_turns = turns;
        self
    }

    /// Sets the most calls, of which no more are carried out. Default: no limit.
    #[must_use]
    pub fn with_max_tool_calls(mut self, calls: usize) -> Self {
        self.max_tool_calls = calls;
        self
    }

    /// Carries out the calls of an answer side by side, each on a thread of its own, 16 at a time.
    /// Default: one after the other, as the model asked for them.
    #[must_use]
    pub fn with_calls_side_by_side(mut self) -> Self {
        self.side_by_side = true;
        self
    }

    /// Sets what becomes of answers that cannot be read. Default: they end the episode with -0.1.
    #[must_use]
    pub fn with_parse_errors(mut self, policy: ParseErrors) -> Self {
        self.parse_errors = policy;
        self
    }

    /// Goes on after an answer that became too long; its calls are not carried out. Default: it ends
    /// the episode with -0.1.
    #[must_use]
    pub fn going_on_when_cut_off(mut self) -> Self {
        self.goes_on_when_cut_off = true;
        self
    }

    /// The task as a group of environments.
    pub fn into_group(self) -> Arc<dyn EnvGroup> {
        Arc::new(self)
    }

    fn call(&self, call: &ToolCall) -> ToolOutput {
        let Some(tool) = self.tools.iter().find(|tool| tool.name() == call.name) else {
            return ToolOutput::failure(&format!("Tool '{}' not found", call.name));
        };
        tool.call(&call.arguments)
    }

    /// What came of calls, in their order.
    fn call_all(&self, calls: &[ToolCall]) -> anyhow::Result<Vec<ToolOutput>> {
        if !self.side_by_side || calls.len() < 2 {
            return Ok(calls.iter().map(|call| self.call(call)).collect());
        }
        let mut outputs = Vec::with_capacity(calls.len());
        for calls in calls.chunks(AT_ONCE) {
            outputs.extend(self.call_together(calls)?);
        }
        Ok(outputs)
    }

    fn call_together(&self, calls: &[ToolCall]) -> anyhow::Result<Vec<ToolOutput>> {
        thread::scope(|scope| {
            let spawn = |call| {
                let thread = thread::Builder::new().name("tinker-tool".into());
                thread.spawn_scoped(scope, move || self.call(call))
            };
            let threads: Vec<_> = calls.iter().map(spawn).collect::<std::io::Result<_>>()?;
            let join = |thread: thread::ScopedJoinHandle<'_, ToolOutput>| {
                thread.join().expect("a call's panic is caught")
            };
            Ok(threads.into_iter().map(join).collect())
        })
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("task", &self.task)
            .field("tools", &self.tools)
            .field("group_size", &self.group_size)
            .finish_non_exhaustive()
    }
}

impl EnvGroup for Agent {
    fn envs(&self) -> anyhow::Result<Vec<Box<dyn Env>>> {
        same(self.group_size, || {
            let env = ChatEnv::new(&self.renderer, Episode::new(self))
                .with_parse_errors(self.parse_errors.clone());
            Box::new(match self.goes_on_when_cut_off {
                true => env.going_on_when_cut_off(),
                false => env,
            })
        })
    }

    fn tags(&self) -> Vec<String> {
        self.tags.clone()
    }
}

struct Episode {
    agent: Agent,
    conversation: Vec<Message>,
    turns: usize,
    calls: usize,
    /// Answers in a row whose calls could not be read.
    errors: usize,
}

impl Episode {
    fn new(agent: &Agent) -> Self {
        Self {
            agent: agent.clone(),
            conversation: agent.task.clone(),
            turns: 0,
            calls: 0,
            errors: 0,
        }
    }

    /// Why the episode ends, by the name of its metric.
    fn end(&self, has_calls: bool, is_stopped: bool, is_capped: bool) -> Option<&'static str> {
        match (has_calls, is_stopped, is_capped) {
            (false, ..) => Some("completed"),
            (_, true, _) => Some("tool_stopped"),
            (_, _, true) => Some("max_tool_calls"),
            _ => self.is_last_turn().then_some("max_turns"),
        }
    }

    fn is_last_turn(&self) -> bool {
        self.turns >= self.agent.max_turns
    }

    /// After an answer whose calls could not be read, none of them.
    fn unread(&mut self, problems: &str) -> Step<Vec<Message>> {
        self.errors += 1;
        let policy = &self.agent.parse_errors;
        let is_last = self.is_last_turn();
        let step = match self.errors <= policy.retries && !is_last {
            false => Step::done(policy.reward),
            true => {
                let details: String = problems.chars().take(DETAILS).collect();
                let reply = Message::user(&policy.reply.replace("{details}", &details));
                self.conversation.push(reply.clone());
                Step::next(vec![reply]).with_reward(-policy.penalty)
            }
        };
        let step = policy.note(step.with_log("parse_failure_kind", "content"));
        match is_last {
            true => step.with_metric("max_turns", 1.0),
            false => step,
        }
    }

    /// Carries out calls; gives their results as messages, and whether one ends the episode.
    fn carry_out(&mut self, calls: &[ToolCall]) -> anyhow::Result<(Vec<Message>, bool)> {
        self.calls += calls.len();
        let outputs = self.agent.call_all(calls)?;
        let is_stopped = outputs.iter().any(|output| output.is_last);
        let message = |(call, output): (&ToolCall, ToolOutput)| {
            let id = call.id.as_deref().unwrap_or_default();
            Message::new("tool", output.content).answering(id, &call.name)
        };
        Ok((calls.iter().zip(outputs).map(message).collect(), is_stopped))
    }
}

impl MessageEnv for Episode {
    fn start(&mut self) -> anyhow::Result<Vec<Message>> {
        Ok(self.conversation.clone())
    }

    fn step(&mut self, said: &Message) -> anyhow::Result<Step<Vec<Message>>> {
        self.turns += 1;
        self.conversation.push(said.clone());
        let calls = said.tool_calls()?;
        let unread = said.unparsed_tool_calls();
        let problems: Vec<&str> = unread.iter().map(|call| call.error.as_str()).collect();
        let problems = problems.join("\n");
        if calls.is_empty() && !unread.is_empty() {
            let step = self.unread(&problems).with_log("parse_errors", problems);
            return Ok(log_text(step, said));
        }
        self.errors = 0;
        let room = self.agent.max_tool_calls - self.calls;
        let carried = &calls[..calls.len().min(room)];
        let dropped = calls.len() - carried.len();
        let (results, is_stopped) = self.carry_out(carried)?;
        self.conversation.extend(results.iter().cloned());

        let mut step = match self.end(!calls.is_empty(), is_stopped, dropped > 0) {
            None => Step::next(results.clone()),
            Some(reason) => {
                let (judge, conversation) = (self.agent.judge.clone(), self.conversation.clone());
                let step = Step::graded(move || judge(&conversation));
                step.with_metric(format!("stop/{reason}"), 1.0)
            }
        };
        for (name, is_so) in [
            ("max_turns", !calls.is_empty() && self.is_last_turn()),
            ("tool_stopped", is_stopped),
            ("max_tool_calls", dropped > 0),
            ("parse_error", !unread.is_empty()),
        ] {
            if is_so {
                step = step.with_metric(name, 1.0);
            }
        }
        for (index, (call, result)) in carried.iter().zip(&results).enumerate() {
            let asked = format!("{}({})", call.name, call.arguments);
            step = step
                .with_log(format!("tool_call_{index}"), asked)
                .with_log(format!("tool_result_{index}"), result.text());
        }
        if dropped > 0 {
            let most = self.agent.max_tool_calls;
            let note = format!("{dropped} more than the {most} there may be");
            step = step.with_log("tool_calls_dropped", note);
        }
        if !unread.is_empty() {
            step = step.with_log("parse_errors", problems);
        }
        Ok(log_text(step, said))
    }
}

fn log_text<Next>(step: Step<Next>, said: &Message) -> Step<Next> {
    match said.text() {
        text if text.is_empty() => step,
        text => step.with_log("assistant_content", text),
    }
}

#[cfg(test)]
mod tests;
