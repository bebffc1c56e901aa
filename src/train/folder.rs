//! The folder of a run: what is written there, and what happens if it is there already.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, Write};
use std::panic::Location;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::record::CheckpointRecord;
use super::row::Row;
use super::timing::Timing;
use super::{code, fault, reader};
use crate::{Error, Result, files};

/// What to do with a folder that already holds a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Delete what that run wrote, and nothing else, and start afresh.
    Delete,
    /// Go on from its last checkpoint.
    Resume,
    /// Refuse to start.
    Raise,
}

impl Existing {
    /// Asks a person: writes a question to `output`, reads answers from `input` until one is
    /// `delete`, `resume` or `exit` (or their first letter).
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if the answer is `exit`, the input ends, or neither can be used.
    pub fn ask(folder: &Path, input: &mut dyn BufRead, output: &mut dyn Write) -> Result<Self> {
        let question = format!(
            "{} holds a run already. Delete it, resume it, or exit? [d/r/e] ",
            folder.display()
        );
        loop {
            let mut answer = String::new();
            let asked = output.write_all(question.as_bytes());
            let read = asked.and_then(|()| output.flush());
            let read = read.and_then(|()| input.read_line(&mut answer));
            match (read, answer.trim().to_lowercase().as_str()) {
                (Ok(1..), "d" | "delete") => return Ok(Self::Delete),
                (Ok(1..), "r" | "resume") => return Ok(Self::Resume),
                (Ok(1..), answer) if !matches!(answer, "e" | "exit") => {}
                _ => return Err(in_the_way(folder)),
            }
        }
    }
}

/// What a run writes at the top of its folder, and hardly anybody else anywhere: where none of
/// these is, there is no run.
const MARKS: [&str; 5] = [
    "metrics.jsonl",
    "checkpoints.jsonl",
    "timing_spans.jsonl",
    "trace_events.jsonl",
    "code.diff",
];
/// What a run writes there over what was before. A model's folder has a `config.json` as well.
const REPLACED: [&str; 4] = ["config.json", "summary.txt", "loss.svg", "reward.svg"];
const LOG: &str = "logs.log";

/// The folder a run is kept in: the files of the Python cookbook, so that its tools read our runs
/// and ours read theirs ([`RunReader`](super::RunReader)).
///
/// | file | holds |
/// |---|---|
/// | `config.json` | the settings |
/// | `metrics.jsonl` | a line per step |
/// | `checkpoints.jsonl` | a line per saved checkpoint |
/// | `timing_spans.jsonl` | where each step's time went |
/// | `logs.log` | what was noted on the way; its first line is the command |
/// | `code.diff` | the state of the program's source |
/// | `iteration_000000/…` | summaries of rollouts, for reinforcement learning |
/// | `summary.txt`, `loss.svg`, `reward.svg` | how it ended |
///
/// ```
/// use tinker::train::{Existing, Row, RunFolder};
///
/// let root = tempfile::tempdir()?;
/// let folder = RunFolder::open(root.path().join("first"), Existing::Raise)?;
/// folder.append_metrics(&Row::new().with("step", 0usize).with("loss", 1.5))?;
/// assert!(RunFolder::open(folder.path(), Existing::Raise).is_err());
/// assert!(RunFolder::open(folder.path(), Existing::Resume).is_ok());
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Opens a folder for a run, making it if need be. A folder without a run is as good as new,
    /// whatever else it holds, unless the run would write over it. In a run that goes on, a last
    /// line that was cut short when the process died is cut off, so that the next one is readable.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it holds a run and that is to be refused, if it holds a file of
    /// another's that has the name of one of a run's, or if it cannot be written.
    pub fn open(path: impl Into<PathBuf>, existing: Existing) -> Result<Self> {
        Self::open_or_ask(path, |_| Ok(existing))
    }

    /// Opens a folder, and asks what to do only if it holds a run.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and what `ask` returns.
    pub fn open_or_ask(
        path: impl Into<PathBuf>,
        ask: impl FnOnce(&Path) -> Result<Existing>,
    ) -> Result<Self> {
        let path = path.into();
        let is_there = |file: &str| path.join(file).exists();
        if MARKS.into_iter().any(is_there) {
            match ask(&path)? {
                Existing::Resume => mend(&path)?,
                Existing::Raise => return Err(in_the_way(&path)),
                Existing::Delete => delete_run(&path)?,
            }
        } else if let Some(file) = REPLACED.into_iter().find(|file| is_there(file)) {
            return Err(fault::setup(format!(
                "{} holds no run, but a {file} that one would write over; choose another folder",
                path.display()
            )));
        }
        fs::create_dir_all(&path).map_err(|error| fault::file(&path, "make the folder", error))?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is in it so far.
    ///
    /// # Errors
    ///
    /// As [`RunReader::open`](super::RunReader::open).
    pub fn read(&self) -> Result<reader::RunReader> {
        reader::RunReader::open(&self.path)
    }

    /// Writes `config.json`, and `code.diff` beside it.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if a file cannot be written.
    pub fn write_config(&self, config: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(config)
            .map_err(|error| Error::invalid("config", error.to_string()))?;
        // The mark first: a configuration alone would not be known for a run's.
        self.write("code.diff", &code::state())?;
        self.write("config.json", &text)
    }

    /// Adds a line to `metrics.jsonl`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it cannot be written.
    pub fn append_metrics(&self, row: &Row) -> Result<()> {
        self.append("metrics.jsonl", &row.to_line())
    }

    /// Adds a line to `checkpoints.jsonl`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it cannot be written.
    pub fn append_checkpoint(&self, record: &CheckpointRecord) -> Result<()> {
        self.append("checkpoints.jsonl", &record.to_row().to_line())
    }

    /// Adds a line to `timing_spans.jsonl`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it cannot be written.
    pub fn append_timing(&self, step: usize, timing: &Timing) -> Result<()> {
        self.append("timing_spans.jsonl", &timing.line(step).to_line())
    }

    /// Writes the summaries of an iteration's rollouts, `iteration_%06d/<label>_rollout_summaries.jsonl`.
    /// In the label, each stretch of what does not belong in a file's name becomes `_`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if they cannot be written.
    pub fn write_rollouts(&self, iteration: usize, label: &str, rows: &[Row]) -> Result<()> {
        let folder = format!("iteration_{iteration:06}");
        let made = self.path.join(&folder);
        fs::create_dir_all(&made).map_err(|error| fault::file(&made, "make the folder", error))?;
        let lines: String = rows.iter().map(|row| row.to_line() + "\n").collect();
        let file = format!("{folder}/{}_rollout_summaries.jsonl", safe_label(label));
        self.write(&file, &lines)
    }

    /// Adds a line to `logs.log`, as `name:line [INFO] message`, and logs it.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it cannot be written.
    #[track_caller]
    pub fn note(&self, message: &str) -> Result<()> {
        ::log::info!("{message}");
        let caller = Location::caller();
        let name = Path::new(caller.file()).file_stem().unwrap_or_default();
        let (name, line) = (name.to_string_lossy(), caller.line());
        self.append(LOG, &format!("{name}:{line} [INFO] {message}"))
    }

    /// Writes a file of the folder in whole: a crash leaves the old content or the new.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if it cannot be written.
    pub fn write(&self, file: &str, text: &str) -> Result<()> {
        self.replace(file, &[text.as_bytes()])
    }

    fn replace(&self, file: &str, parts: &[&[u8]]) -> Result<()> {
        let path = self.path.join(file);
        let written = files::replace(&path, parts, |partial| File::create(partial));
        written.map_err(|error| fault::file(&path, "write", error))
    }

    /// Forgets what was logged at or after a step: those steps are done again. What stays is no
    /// longer `final`, since the run goes on. Lines that cannot be read go too.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if a file cannot be read or written.
    pub fn rewind(&self, step: usize) -> Result<()> {
        for file in ["metrics.jsonl", "timing_spans.jsonl"] {
            let written = reader::bytes(&self.path.join(file))?;
            let stays = |line: &[u8]| {
                let mut row = reader::row(line).ok()?;
                let before = row.count("step").is_none_or(|at| at < step as u64);
                let line = match row.remove("final") {
                    Some(_) => row.to_line().into_bytes(),
                    None => line.to_owned(),
                };
                before.then(|| [&line, b"\n".as_slice()].concat())
            };
            let lines = written.split(|byte| *byte == b'\n');
            let kept = lines.filter_map(stays).collect::<Vec<_>>().concat();
            if kept != written {
                self.replace(file, &[&kept])?;
            }
        }
        Ok(())
    }

    /// Says in the last row of metrics that the run has come to its end.
    pub(super) fn mark_final(&self) -> Result<()> {
        let written = reader::bytes(&self.path.join("metrics.jsonl"))?;
        let rows = written.trim_ascii_end();
        let (before, last) = rows.split_at(end_of_lines(rows));
        match reader::row(last) {
            Ok(mut row) if !row.is_true("final") => {
                row.set("final", true);
                self.replace("metrics.jsonl", &[before, row.to_line().as_bytes(), b"\n"])
            }
            _ => Ok(()),
        }
    }

    fn append(&self, file: &str, line: &str) -> Result<()> {
        let path = self.path.join(file);
        let opened = OpenOptions::new().create(true).append(true).open(&path);
        let written = opened.and_then(|mut file| {
            let before = file.metadata()?.len();
            // One write, so that a reader or a crash meets whole lines.
            let written = file.write_all(format!("{line}\n").as_bytes());
            if written.is_err() {
                // Nothing can be done if half a line stays: it is cut off when the run goes on.
                let _ = file.set_len(before);
            }
            written
        });
        written.map_err(|error| fault::file(&path, "write", error))
    }
}

fn in_the_way(path: &Path) -> Error {
    fault::setup(format!(
        "{} already holds a run; resume it, delete it, or choose another folder",
        path.display()
    ))
}

/// Ends the last line of a run's files of lines: by a line end if that is all that is missing, else
/// by cutting it off.
fn mend(path: &Path) -> Result<()> {
    for file in MARKS.iter().filter(|file| file.ends_with(".jsonl")) {
        let path = path.join(file);
        let written = reader::bytes(&path)?;
        let whole = end_of_lines(&written);
        let last = &written[whole..];
        if last.is_empty() {
            continue;
        }
        let opened = OpenOptions::new().append(true).open(&path);
        let mended = opened.and_then(|mut file| match reader::row(last) {
            Ok(_) => file.write_all(b"\n"),
            Err(_) => file.set_len(whole as u64),
        });
        mended.map_err(|error| fault::file(&path, "mend", error))?;
    }
    Ok(())
}

/// Where the last line begins that has no end.
fn end_of_lines(bytes: &[u8]) -> usize {
    let last = bytes.iter().rposition(|byte| *byte == b'\n');
    last.map_or(0, |at| at + 1)
}

/// Deletes a run's own files. Folders go only if nothing else is left in them.
fn delete_run(path: &Path) -> Result<()> {
    let remove = |file: &Path| match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(fault::file(file, "delete", error))
        }
        _ => Ok(()),
    };
    for file in MARKS.into_iter().chain(REPLACED).chain([LOG]) {
        remove(&path.join(file))?;
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !is_iteration(&name.to_string_lossy()) {
            continue;
        }
        for inner in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            if is_of_iteration(&inner.file_name().to_string_lossy()) {
                remove(&inner.path())?;
            }
        }
        // A folder with other files in it stays.
        let _ = fs::remove_dir(entry.path());
    }
    Ok(())
}

fn is_iteration(name: &str) -> bool {
    let number = name.strip_prefix("iteration_");
    number.is_some_and(|number| number.len() >= 6 && number.bytes().all(|b| b.is_ascii_digit()))
}

fn is_of_iteration(name: &str) -> bool {
    let endings = [".html", "_logtree.json", "_rollout_summaries.jsonl"];
    name == "timing_gantt.html"
        || (name.starts_with("train") || name.starts_with("eval_"))
            && endings.iter().any(|ending| name.ends_with(ending))
}

fn safe_label(label: &str) -> String {
    let is_safe = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let letters: Vec<char> = label.chars().collect();
    // However many letters in a row do not belong there, they become one.
    let runs = letters.chunk_by(|one, next| !is_safe(one) && !is_safe(next));
    let safe: String = runs
        .map(|run| Some(run[0]).filter(is_safe).unwrap_or('_'))
        .collect();
    match safe.trim_matches(['.', '_']) {
        "" => "unnamed".into(),
        safe => safe.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn deleting_leaves_what_a_run_did_not_write() {
        let root = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(root.path(), Existing::Raise).unwrap();
        folder
            .write_config(&serde_json::json!({"num_epochs": 1}))
            .unwrap();
        folder
            .append_metrics(&Row::new().with("step", 0usize))
            .unwrap();
        folder.write_rollouts(0, "train", &[]).unwrap();
        folder.write_rollouts(1, "eval_test", &[]).unwrap();
        folder.write("iteration_000001/mine.txt", "").unwrap();
        folder.write("mine.txt", "").unwrap();
        assert!(RunFolder::open(root.path(), Existing::Raise).is_err());
        RunFolder::open(root.path(), Existing::Delete).unwrap();
        assert_eq!(names(root.path()), ["iteration_000001", "mine.txt"]);
        assert_eq!(names(&root.path().join("iteration_000001")), ["mine.txt"]);
        RunFolder::open(root.path(), Existing::Raise).unwrap();
    }

    /// Such as the folder of a model, which has a configuration of its own.
    #[test]
    fn a_file_of_another_s_is_never_taken_for_a_run_s() {
        for file in REPLACED {
            let root = tempfile::tempdir().unwrap();
            fs::write(root.path().join(file), "mine").unwrap();
            for existing in [Existing::Raise, Existing::Resume, Existing::Delete] {
                let error = RunFolder::open(root.path(), existing).unwrap_err();
                assert!(error.to_string().contains(file), "{error}");
            }
            assert_eq!(fs::read(root.path().join(file)).unwrap(), b"mine");
        }
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(LOG), "mine\n").unwrap();
        let folder = RunFolder::open(root.path(), Existing::Delete).unwrap();
        folder.note("a run").unwrap();
        let log = fs::read_to_string(root.path().join(LOG)).unwrap();
        assert!(
            log.starts_with("mine\n") && log.ends_with("a run\n"),
            "{log}"
        );
    }

    #[test]
    fn rewinding_keeps_each_step_once() {
        let root = tempfile::tempdir().unwrap();
        let folder = RunFolder::open(root.path(), Existing::Raise).unwrap();
        for step in 0..4usize {
            let row = Row::new().with("step", step);
            let last = step == 1;
            let row = if last { row.with("final", true) } else { row };
            folder.append_metrics(&row).unwrap();
        }
        let path = root.path().join("metrics.jsonl");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text + r#"{"step": 4, "lo"#).unwrap();
        folder.rewind(2).unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "{\"step\": 0}\n{\"step\": 1}\n"
        );
    }

    #[test]
    fn answers_of_a_person() {
        #[track_caller]
        fn check(typed: &str, expected: Option<Existing>) {
            let mut output = Vec::new();
            let answer = Existing::ask(Path::new("x"), &mut typed.as_bytes(), &mut output);
            assert_eq!(answer.ok(), expected, "{typed:?}");
            assert!(
                String::from_utf8(output)
                    .unwrap()
                    .starts_with("x holds a run")
            );
        }
        check("d\n", Some(Existing::Delete));
        check("what?\nResume\n", Some(Existing::Resume));
        check("exit\n", None);
        check("", None);
    }

    #[test]
    fn labels_are_safe_in_file_names() {
        for (label, safe) in [
            ("train", "train"),
            ("a/b c", "a_b_c"),
            ("a: b__c", "a_b__c"),
            ("..", "unnamed"),
            ("_x.", "x"),
        ] {
            assert_eq!(safe_label(label), safe);
        }
    }
}
