//! The `tinker` command line.

#[macro_use]
mod terminal;

mod commands;
mod context;
mod failure;
mod interrupt;
mod output;
mod units;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::context::Context;
use crate::failure::Exit;
use crate::output::Format;

#[derive(Parser)]
#[command(
    name = "tinker",
    about = "Fine-tune and sample language models with Tinker",
    arg_required_else_help = true,
    version
)]
struct Cli {
    /// How results are written: a table to read, or JSON of a stable shape.
    #[arg(short, long, global = true, value_enum, default_value_t)]
    format: Format,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Manage the stored API key.
    #[command(subcommand)]
    Auth(commands::auth::Auth),
    /// Show what was used and what it costs.
    #[command(subcommand)]
    Billing(commands::billing::Billing),
    /// List, change, download and delete checkpoints.
    #[command(subcommand)]
    Checkpoint(commands::checkpoint::Checkpoint),
    /// List the models the service offers.
    #[command(subcommand)]
    Model(commands::model::Model),
    /// List training runs of the service.
    #[command(subcommand)]
    Run(commands::run::Run),
    /// Look into sessions.
    #[command(subcommand)]
    Session(commands::session::Session),
    /// Print the version.
    Version,
    /// Sample from a model or from sampler weights: one prompt, or a file of them.
    Sample(commands::sample::Sample),
    /// Talk with a model or with sampler weights.
    Chat(commands::chat::Chat),
    /// Put the same prompts to two models.
    Compare(commands::compare::Compare),
    /// Measure the perplexity of a text file.
    Score(commands::score::Score),
    /// Show how likely each token of a text is.
    Logprobs(commands::score::Logprobs),
    /// Turn text into tokens, or tokens into text.
    Tokenize(commands::tokenize::Tokenize),
    /// Look at conversations as a model sees them: view, check, render, parse.
    #[command(subcommand)]
    Data(commands::data::Data),
    /// Train: fine-tuning, preferences, reinforcement, distillation.
    #[command(subcommand)]
    Train(commands::train::Train),
    /// Look at run folders on this machine.
    #[command(subcommand)]
    Runs(commands::runs::Runs),
    /// Count tokens and money, before a run or of one.
    Cost(commands::cost::Cost),
    /// Check credentials, network, clock and the server, with a remedy for what is wrong.
    Doctor(commands::doctor::Doctor),
    /// Print completions for a shell.
    Completions(commands::help::Completions),
    /// Print the manual page, or write all of them.
    Man(commands::help::Man),
    /// Write what was trained for other programs: an adapter, a whole model, a GGUF file.
    #[cfg(feature = "local")]
    Export(commands::export::Export),
    /// Look at run folders in a browser: no server, no model.
    #[cfg(feature = "local")]
    Console(commands::console::Console),
    /// Serve the embedded engine over HTTP, with a page to look at.
    #[cfg(feature = "local")]
    Serve(commands::serve::Serve),
    /// Let programs that speak OpenAI's or Anthropic's language use any Tinker server.
    #[cfg(feature = "local")]
    Proxy(commands::proxy::Proxy),
}

impl Command {
    /// A server ends by SIGTERM and Ctrl-C alike, and that is a success.
    fn has_signals_of_its_own(&self) -> bool {
        #[cfg(feature = "local")]
        if matches!(self, Self::Serve(_) | Self::Console(_) | Self::Proxy(_)) {
            return true;
        }
        false
    }

    fn run(self, context: &mut Context) -> anyhow::Result<()> {
        match self {
            Self::Auth(command) => command.run(context),
            Self::Billing(command) => command.run(context),
            Self::Checkpoint(command) => command.run(context),
            Self::Model(command) => command.run(context),
            Self::Run(command) => command.run(context),
            Self::Session(command) => command.run(context),
            Self::Version => context
                .out
                .line(&format!("tinker {}", env!("CARGO_PKG_VERSION"))),
            Self::Sample(command) => command.run(context),
            Self::Chat(command) => command.run(context),
            Self::Compare(command) => command.run(context),
            Self::Score(command) => command.run(context),
            Self::Logprobs(command) => command.run(context),
            Self::Tokenize(command) => command.run(context),
            Self::Data(command) => command.run(context),
            Self::Train(command) => command.run(context),
            Self::Runs(command) => command.run(context),
            Self::Cost(command) => command.run(context),
            Self::Doctor(command) => command.run(context),
            Self::Completions(command) => command.run(context, Cli::command()),
            Self::Man(command) => command.run(context, Cli::command()),
            #[cfg(feature = "local")]
            Self::Export(command) => command.run(context),
            #[cfg(feature = "local")]
            Self::Console(command) => command.run(),
            #[cfg(feature = "local")]
            Self::Serve(serve) => commands::serve::run(&serve),
            #[cfg(feature = "local")]
            Self::Proxy(proxy) => proxy.run(context),
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    let mut context = Context::new(cli.format);
    if !cli.command.has_signals_of_its_own() {
        interrupt::listen()?;
    }
    let outcome = cli.command.run(&mut context);
    let outcome = outcome.and_then(|()| context.out.flush());
    context.close(&outcome);
    outcome
}

/// The whole command line. What follows an option is its value, also where it looks like a number
/// below zero, so that the error is about the number.
fn program() -> clap::Command {
    fn with_numbers(command: clap::Command) -> clap::Command {
        command
            .mut_args(|arg| match arg.get_action().takes_values() {
                true => arg.allow_negative_numbers(true),
                false => arg,
            })
            .mut_subcommands(with_numbers)
    }
    with_numbers(Cli::command())
}

fn main() -> ExitCode {
    let matches = program().try_get_matches();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return failure::usage(&error, program()).into(),
    };
    let exit = match run(cli) {
        _ if interrupt::happened() => Exit::Interrupted,
        Ok(()) => Exit::Success,
        Err(error) => failure::report(&error),
    };
    exit.into()
}
