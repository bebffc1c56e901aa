//! What depends on a terminal being there: width, colour, bars, questions.

use std::io::{self, IsTerminal};
use std::time::Duration;

use console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::failure::Failure;

/// A line for people on standard error. That nobody reads it, as when its pipe was closed, is no
/// reason to stop working.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// The same without the line's end.
macro_rules! ask {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($text)*);
    }};
}

/// The width tables may take; `None` where nobody looks, as in a pipe.
pub(crate) fn width() -> Option<usize> {
    let term = Term::stdout();
    term.is_term()
        .then(|| usize::from(term.size().1))
        .filter(|columns| *columns > 0)
}

/// Whether standard output takes colours: a terminal, and nobody said NO_COLOR.
pub(crate) fn colours() -> bool {
    console::colors_enabled() && io::stdout().is_terminal()
}

/// Whether progress can be drawn.
pub(crate) fn draws() -> bool {
    io::stderr().is_terminal()
}

/// A bar on standard error, drawn on a terminal only.
pub(crate) fn bar(length: u64, template: &str) -> ProgressBar {
    let target = match draws() {
        true => ProgressDrawTarget::stderr_with_hz(10),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(length), target);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("━╸ "));
    }
    if draws() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}

/// For counts of things.
pub(crate) const COUNTS: &str = "{prefix} {bar:24} {pos}/{len} {msg}";
/// For bytes.
pub(crate) const BYTES: &str =
    "{prefix} {bar:24} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} {msg}";

/// Asks on standard error; only `y` and `yes` agree.
pub(crate) fn confirm(question: &str) -> anyhow::Result<bool> {
    ask!("{question} [y/N]: ");
    let Some(answer) = line()? else {
        say!();
        return Err(Failure::new("nobody answered")
            .advise("Pass --yes to go on without being asked.")
            .into());
    };
    Ok(matches!(
        answer.trim().to_ascii_lowercase().as_str(),
        "y" | "yes"
    ))
}

/// One line of standard input; `None` at its end.
pub(crate) fn line() -> anyhow::Result<Option<String>> {
    let mut text = String::new();
    let read = crate::interrupt::while_asking(|| io::stdin().read_line(&mut text));
    Ok((read? > 0).then_some(text))
}

/// Asks for something that must not show. The terminal is as before afterwards, Ctrl-C included.
pub(crate) fn secret(question: &str) -> anyhow::Result<String> {
    if !io::stdin().is_terminal() {
        return Ok(line()?.unwrap_or_default().trim().to_owned());
    }
    // Before the question: what is typed the moment it appears must not be seen either.
    let quiet = Quiet::start()?;
    ask!("{question}: ");
    let text = line();
    drop(quiet);
    say!();
    Ok(text?.unwrap_or_default().trim().to_owned())
}

/// Keeps the terminal from echoing while it lives.
#[cfg(unix)]
struct Quiet(rustix::termios::Termios);

#[cfg(unix)]
impl Quiet {
    fn start() -> anyhow::Result<Self> {
        use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

        let before = tcgetattr(io::stdin())?;
        let restore = before.clone();
        crate::interrupt::on(move || {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &restore);
            say!();
            crate::interrupt::exit();
        });
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Now, &quiet)?;
        Ok(Self(before))
    }
}

#[cfg(unix)]
impl Drop for Quiet {
    fn drop(&mut self) {
        use rustix::termios::{OptionalActions, tcsetattr};

        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(not(unix))]
struct Quiet;

#[cfg(not(unix))]
impl Quiet {
    fn start() -> anyhow::Result<Self> {
        Ok(Self)
    }
}
