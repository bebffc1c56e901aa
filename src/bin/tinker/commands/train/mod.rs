//! `tinker train`: the toolkit's loops from the command line.

mod dashboard;
mod preference;
mod reinforce;
mod settings;
mod supervised;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::Context as _;
use clap::Subcommand;
use tinker::text::data::{shuffle, split};
use tinker::text::{Renderer, Tokenizer};
use tinker::train::{Existing, Interrupt, JsonLines, Model, Outcome, Report, Run, RunFolder};
use tinker::{LoraConfig, ServiceClient};

use self::dashboard::{Dashboard, Lines, Queue};
use self::settings::Settings;
use crate::context::Context;
use crate::failure::{self, Failure};
use crate::interrupt;
use crate::terminal;

#[derive(Debug, Subcommand)]
pub(crate) enum Train {
    /// Fine-tune on conversations: lines of JSON with `messages`.
    Sft(Settings),
    /// Learn preferences: lines of JSON with `chosen` and `rejected`, or the cookbook's comparisons.
    Dpo(Settings),
    /// Reinforce answers that a grader finds right: lines of JSON with `prompt` and `answer`.
    Rl(Settings),
    /// Learn from a teacher's probabilities on the student's own answers: lines with `prompt`.
    Distill(Settings),
}

impl Train {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        type Loop = fn(&mut Desk) -> anyhow::Result<Report>;
        let (kind, settings, train): (&str, Settings, Loop) = match self {
            Self::Sft(settings) => ("sft", settings, supervised::train),
            Self::Dpo(settings) => ("dpo", settings, preference::train),
            Self::Rl(settings) => ("rl", settings, reinforce::train),
            Self::Distill(settings) => ("distill", settings, reinforce::distill),
        };
        let settings = settings.with_file()?;
        settings.check(kind)?;
        let mut desk = Desk::open(context, kind, settings)?;
        let trained = train(&mut desk);
        if trained.is_err() {
            desk.leave();
        }
        if let (Err(error), true) = (&trained, interrupt::happened()) {
            // The program ends by the interruption, but a checkpoint was promised before.
            failure::report(error);
        }
        desk.end(context, &trained?)
    }
}

/// What every kind of training needs.
struct Desk {
    settings: Settings,
    service: ServiceClient,
    model: String,
    tokenizer: Tokenizer,
    renderer: Renderer,
    run: Run,
    folder: PathBuf,
    /// Whether the folder held no run.
    is_new: bool,
}

impl Desk {
    fn open(context: &Context, kind: &str, settings: Settings) -> anyhow::Result<Self> {
        let model = settings
            .model
            .clone()
            .ok_or_else(|| missing(kind, "--model"))?;
        settings
            .data
            .as_ref()
            .ok_or_else(|| missing(kind, "a file of data"))?;
        let folder = settings
            .log_path
            .clone()
            .ok_or_else(|| missing(kind, "--log-path"))?;
        // The folder first: whether it may be written to is known before anything costs.
        let existing = match (settings.resume, settings.overwrite) {
            (true, true) => {
                return Err(Failure::usage("--resume and --overwrite exclude each other").into());
            }
            // What is there is deleted once nothing else can be wrong.
            (true, false) | (false, true) => Existing::Resume,
            (false, false) => Existing::Raise,
        };
        let mut is_refused = false;
        let opened = RunFolder::open_or_ask(&folder, |_| {
            is_refused = existing == Existing::Raise;
            Ok(existing)
        });
        let run = opened.map(Run::from).map_err(|error| {
            let failure = Failure::because(error);
            match is_refused {
                true => failure.advise(
                    "--resume goes on with the run that is there, --overwrite begins anew.",
                ),
                false => failure,
            }
        })?;
        let queue = Queue::default();
        let seen = queue.clone();
        let config = context
            .config()?
            .with_queue_observer(move |update| seen.hear(update));
        let service = context.open(config)?;
        let tokenizer = match &settings.tokenizer {
            Some(place) => super::sampler::open_tokenizer(place)?,
            None => service
                .create_sampling_client(model.as_str())?
                .tokenizer()?,
        };
        let renderer = match &settings.renderer {
            Some(name) => Renderer::named(name, &tokenizer)?,
            None => Renderer::for_model(&model, &tokenizer)?,
        };
        let interrupt = Interrupt::new();
        let wish = interrupt.clone();
        interrupt::on(move || {
            say!("\nSaving a checkpoint; Ctrl-C again ends at once.");
            wish.set();
        });
        let run = run.with_interrupt(interrupt);
        let run = match (context.is_json(), terminal::draws()) {
            (true, _) => run.with_logger(JsonLines(std::io::stdout())),
            (false, true) => run.with_logger(Dashboard::new(queue)),
            (false, false) => run.with_logger(Lines::default()),
        };
        Ok(Self {
            settings,
            service,
            model,
            tokenizer,
            renderer,
            run,
            folder,
            is_new: matches!(existing, Existing::Raise),
        })
    }

    fn model(&self) -> Model {
        let lora = LoraConfig::rank(self.settings.rank.unwrap_or(32));
        let lora = match self.settings.seed {
            Some(seed) => lora.with_seed(seed),
            None => lora,
        };
        let model = Model::new(&self.model)
            .with_lora(lora)
            .with_renderer(self.renderer.name());
        match &self.settings.load_checkpoint {
            Some(path) => model.with_weights(path),
            None => model,
        }
    }

    /// Begins to train, in an empty folder if that is wished.
    fn begin(&mut self) -> anyhow::Result<(&ServiceClient, &mut Run)> {
        if self.settings.overwrite {
            RunFolder::open(&self.folder, Existing::Delete)?;
        }
        Ok((&self.service, &mut self.run))
    }

    /// Leaves nothing of a run that could not begin, so that the same command may be given again.
    fn leave(&self) {
        let has = |file: &str| self.folder.join(file).exists();
        let begun = ["metrics.jsonl", "timing_spans.jsonl", "checkpoints.jsonl"];
        if !self.is_new || begun.into_iter().any(has) {
            return;
        }
        for file in ["config.json", "code.diff", "logs.log"] {
            // What cannot be deleted is in the way of the next try, which says so.
            let _ = std::fs::remove_file(self.folder.join(file));
        }
    }

    /// What is trained on, and what is kept for evaluation.
    fn split<T>(&self, lines: Vec<T>) -> anyhow::Result<(Vec<T>, Vec<T>)> {
        match self.settings.test_size.unwrap_or(0) {
            0 => Ok((lines, Vec::new())),
            _ => self.shuffled_split(lines),
        }
    }

    /// The same, shuffled as the Python cookbook does, so that both keep the same lines apart and
    /// train on the others in the same order.
    fn shuffled_split<T>(&self, mut lines: Vec<T>) -> anyhow::Result<(Vec<T>, Vec<T>)> {
        let test_size = self.settings.test_size.unwrap_or(0);
        if test_size > 0 && test_size >= lines.len() {
            let count = lines.len();
            let problem = format!("--test-size {test_size} leaves nothing to train on");
            return Err(Failure::usage(format!("{problem}: the data has {count} lines")).into());
        }
        shuffle(&mut lines, 0);
        Ok(split(lines, test_size))
    }

    fn data(&self) -> anyhow::Result<&PathBuf> {
        self.settings
            .data
            .as_ref()
            .context("the data was asked for at the beginning")
    }

    /// Tells the service how the run ended, and the user what came of it.
    fn end(self, context: &mut Context, report: &Report) -> anyhow::Result<()> {
        // The checkpoint is saved; a service that cannot be told is no failure of the run.
        let _ = report.close(&self.service);
        if !context.is_json() {
            context.out.line(&report.summary.to_string())?;
            context.out.flush()?;
        }
        let checkpoint = report.checkpoint.as_ref();
        if let Some(path) = checkpoint.and_then(|last| last.sampler_path.as_deref()) {
            context.note(&format!("Try it:   tinker chat {path}"));
        }
        let folder = self.folder.display();
        match report.outcome {
            Outcome::Completed => context.note(&format!("Look at it: tinker runs show {folder}")),
            Outcome::Interrupted => {
                say!("Go on with the same command and --resume (run folder: {folder}).");
            }
        }
        Ok(())
    }
}

fn missing(kind: &str, what: &str) -> Failure {
    Failure::usage(format!("{what} is needed, as an argument or in --config"))
        .advise(format!("'tinker train {kind} --help' shows what there is."))
}

/// Shared between the client's threads and the dashboard.
type Shared<T> = Arc<Mutex<T>>;
