//! How a command ends: exit codes, and errors in one line with what to do next.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::Command;
use clap::error::ErrorKind;
use serde_json::Value;
use tinker::Error;
use tinker::error::ErrorCategory;

use crate::output::ClosedPipe;

/// Every way in which the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Success = 0,
    Failure = 1,
    Usage = 2,
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A problem a command found itself, and what to do about it.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    advice: Option<String>,
    exit: Exit,
}

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            advice: None,
            exit: Exit::Failure,
        }
    }

    /// An error of the library, which the command knows advice on.
    pub(crate) fn because(error: Error) -> Self {
        Self::new(format!("{:#}", anyhow::Error::from(error)))
    }

    /// Something wrong with what was typed.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self {
            exit: Exit::Usage,
            ..Self::new(message)
        }
    }

    /// Says what to do next.
    #[must_use]
    pub(crate) fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Prints what went wrong and what to do next; how the program ends.
pub(crate) fn report(error: &anyhow::Error) -> Exit {
    if error.is::<ClosedPipe>() {
        // Whoever read our output has had enough, as `head` does.
        return Exit::Success;
    }
    say!("Error: {}", one_line(&format!("{error:#}")));
    let failure = error.downcast_ref::<Failure>();
    let from_service = || {
        error
            .chain()
            .find_map(|cause| cause.downcast_ref::<Error>())
    };
    let advice = match failure {
        Some(failure) => failure.advice.clone(),
        None => from_service().and_then(advice).map(str::to_owned),
    };
    if let Some(advice) = advice {
        say!("{advice}");
    }
    failure.map_or(Exit::Failure, |failure| failure.exit)
}

/// What a client is made from is wrong; the doctor looks at all of it.
pub(crate) fn of_settings(error: Error) -> anyhow::Error {
    match error {
        Error::Config(_) => Failure::because(error)
            .advise("Correct the setting; 'tinker doctor' checks them all.")
            .into(),
        other => other.into(),
    }
}

/// Whether an answer is none of Tinker's, which says in JSON what it refuses.
pub(crate) fn is_foreign(error: &Error) -> bool {
    matches!(error.body(), Some(Value::String(_)))
}

/// What to do about an error of the library.
fn advice(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::Invalid(_) => return None,
        Error::Credentials(_) => "Set TINKER_API_KEY, or store a key with 'tinker auth login'.",
        // A file or a folder, as the message says, unless it is about a request.
        Error::Config(context) if context.request.is_none() || context.status.is_some() => {
            return None;
        }
        Error::Config(_) => "Correct the setting; 'tinker doctor' looks further.",
        Error::Connection(_) | Error::Timeout(_) => {
            "Check the network and TINKER_BASE_URL; 'tinker doctor' looks further."
        }
        Error::Reply(_) => NO_TINKER,
        Error::Status(context) => match context.status.unwrap_or_default() {
            404 | 405 | 501 if is_foreign(error) => NO_TINKER,
            401 => "The server refused the key: check TINKER_API_KEY or run 'tinker auth login'.",
            402 => "Add credit or a payment method in the console.",
            403 => "The key may not do this: use one of the owner or of an administrator.",
            404 => "Check the name: 'tinker run list' and 'tinker checkpoint list' show yours.",
            409 => "It is so already, or something else holds it: look again before repeating.",
            429 => "Wait a moment, then try again.",
            500.. => "The service is in trouble: try again later.",
            _ => return None,
        },
        // The request itself is at fault, as the message says.
        Error::Failed(_) if error.category() == Some(ErrorCategory::User) => return None,
        Error::Failed(_) | Error::Lost(_) => {
            "Try again; report it with the request's id if it stays."
        }
        Error::Broken(_) => "Go on from the last checkpoint.",
        _ => return None,
    })
}

/// What answers is no Tinker server.
const NO_TINKER: &str =
    "Check that TINKER_BASE_URL is that of a Tinker server; 'tinker doctor' looks further.";

/// At most so much of a message is shown: some servers answer with a page.
const LONGEST: usize = 600;

pub(crate) fn one_line(text: &str) -> String {
    let mut words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = words.char_indices().nth(LONGEST) {
        words.truncate(end);
        words.push('…');
    }
    // What a server says must not reach the terminal as commands.
    words.retain(|letter| !letter.is_control());
    words
}

/// Prints help where it was asked for; otherwise what is wrong with what was typed.
pub(crate) fn usage(error: &clap::Error, program: Command) -> Exit {
    let shown = |exit| match error.print() {
        // A closed pipe is not an error.
        Err(problem) if problem.kind() != io::ErrorKind::BrokenPipe => {
            say!("Error: cannot write the output: {problem}");
            Exit::Failure
        }
        _ => exit,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return shown(Exit::Success),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => return shown(Exit::Usage),
        _ => {}
    }
    let rendered = error.to_string();
    // About a value that is wrong, clap does not say which command it was for.
    let typed = typed_usage(program, std::env::args_os().skip(1));
    let (problem, rest) = rendered
        .split_once("Usage: ")
        .unwrap_or((&rendered, &typed));
    let problem = problem.split("\n\nFor more information").next();
    let problem = problem.unwrap_or_default();
    let usage = rest.lines().next().unwrap_or("tinker");
    say!("Usage: {usage}");
    say!("Try '{} --help' for help.", command_of(usage));
    say!();
    let problem = problem.trim_start_matches("error: ").trim_end();
    // clap puts its tips in paragraphs of their own.
    say!("Error: {}", one_line(&problem.replace("\n\n", "; ")));
    Exit::Usage
}

/// The command that a usage line is of: its words before the first option or argument.
fn command_of(usage: &str) -> String {
    let names = usage.split_whitespace();
    let names = names.take_while(|word| !word.starts_with(['[', '<', '-']));
    names.collect::<Vec<_>>().join(" ")
}

/// How the command that was typed is used.
fn typed_usage(mut command: Command, words: impl Iterator<Item = OsString>) -> String {
    command.build();
    for word in words {
        if let Some(inner) = command.find_subcommand(&word) {
            command = inner.clone();
        }
    }
    let usage = command.render_usage().to_string();
    usage.trim_start_matches("Usage: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_take_one_line_and_no_commands() {
        assert_eq!(one_line("a\n  b\tc"), "a b c");
        assert_eq!(one_line("a\u{1b}[31mb\u{7}"), "a[31mb");
        let long = one_line(&"é".repeat(2_000));
        assert_eq!(long.chars().count(), LONGEST + 1);
    }
}
