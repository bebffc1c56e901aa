//! Metrics as a table that other tools import.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;

use jiff::Timestamp;

use super::log::Logger;
use super::row::{Row, Value};

/// The numbers of every step as a CSV file, which spreadsheets, pandas and
/// [trackio](https://github.com/gradio-app/trackio) read:
///
/// ```text
/// trackio.import_csv("runs/chats/metrics.csv", project="chats", name="first")
/// ```
///
/// The columns are `step`, `timestamp` and the metrics, in the order in which they first came. A
/// run that is resumed goes on in the same file, from the step it resumed at; a file that is no
/// such table is left alone. (trackio shortens names to ten letters when it imports them.)
///
/// ```
/// use tinker::train::{Csv, Logger, Row};
///
/// # let folder = tempfile::tempdir()?;
/// let file = folder.path().join("metrics.csv");
/// let mut table = Csv::new(&file);
/// table.metrics(0, &Row::new().with("loss", 0.5));
/// table.metrics(1, &Row::new().with("loss", 0.25).with("test/nll", 1.5));
/// table.close();
/// let text = std::fs::read_to_string(&file)?;
/// assert!(text.starts_with("step,timestamp,loss,test/nll\n0,"));
/// assert!(text.ends_with(",0.25,1.5\n"));
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug)]
pub struct Csv {
    path: PathBuf,
    columns: Vec<String>,
    /// The cells of every step, empty where it had no such metric.
    rows: Vec<(usize, Vec<String>)>,
    /// How many columns the file has; none before the first step.
    written: Option<usize>,
    /// Whether the file is another's.
    is_foreign: bool,
}

const FIRST: [&str; 2] = ["step", "timestamp"];

impl Csv {
    /// A table in this file.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            columns: FIRST.map(str::to_owned).into(),
            rows: Vec::new(),
            written: None,
            is_foreign: false,
        }
    }

    /// What an earlier part of the run wrote before this step.
    fn go_on(&mut self, step: usize) -> io::Result<()> {
        let text = match fs::read_to_string(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            read => read?,
        };
        let mut lines = text.lines().map(|line| line.split(',').map(str::to_owned));
        let Some(columns) = lines.next().map(Iterator::collect::<Vec<_>>) else {
            return Ok(());
        };
        if !columns.starts_with(&FIRST.map(str::to_owned)) {
            return Err(io::Error::other("it is no table of metrics"));
        }
        self.columns = columns;
        for cells in lines {
            let cells: Vec<String> = cells.take(self.columns.len()).collect();
            match cells[0].parse() {
                Ok(earlier) if earlier < step => self.rows.push((earlier, cells)),
                _ => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, step: usize, row: &Row, now: Timestamp) {
        let mut cells = vec![String::new(); self.columns.len()];
        cells[0] = step.to_string();
        cells[1] = format!("{now:.3}");
        for (name, value) in row.iter() {
            let Some(number) = number(value) else {
                continue;
            };
            let name = column(name);
            let at = match self.columns.iter().position(|known| *known == name) {
                // Where a metric has the name of a column of ours, ours counts.
                Some(0 | 1) => continue,
                Some(at) => at,
                None => {
                    self.columns.push(name);
                    cells.push(String::new());
                    self.columns.len() - 1
                }
            };
            cells[at] = number;
        }
        self.rows.push((step, cells));
    }

    fn text(&self) -> String {
        let lines = self.rows.iter().map(|row| self.line(row));
        self.columns.join(",") + "\n" + &lines.collect::<String>()
    }

    fn line(&self, (_, cells): &(usize, Vec<String>)) -> String {
        let missing = ",".repeat(self.columns.len() - cells.len());
        cells.join(",") + &missing + "\n"
    }

    /// Writes the last row, and all of them where there are new columns.
    fn write(&self) -> io::Result<()> {
        let columns = Some(self.columns.len());
        match self.rows.last() {
            Some(last) if self.written == columns => {
                let mut file = OpenOptions::new().append(true).open(&self.path)?;
                file.write_all(self.line(last).as_bytes())
            }
            _ => fs::write(&self.path, self.text()),
        }
    }
}

impl Logger for Csv {
    fn metrics(&mut self, step: usize, row: &Row) {
        if self.is_foreign {
            return;
        }
        let path = self.path.display().to_string();
        if self.rows.is_empty()
            && let Err(error) = self.go_on(step)
        {
            self.is_foreign = true;
            return ::log::error!("no metrics are written to {path}: {error}");
        }
        self.add(step, row, Timestamp::now());
        self.written = match self.write() {
            Ok(()) => Some(self.columns.len()),
            Err(error) => {
                ::log::warn!("the metrics of step {step} are not in {path} yet: {error}");
                None
            }
        };
    }
}

/// A name without what separates cells.
fn column(name: &str) -> String {
    name.replace([',', '"', '\n', '\r'], "_")
}

/// Whatever can be drawn as a curve.
fn number(value: &Value) -> Option<String> {
    match value {
        Value::Float(number) if number.is_finite() => Some(number.to_string()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_appear_as_metrics_do() {
        let mut table = Csv::new("unused");
        let now = Timestamp::UNIX_EPOCH;
        table.add(
            0,
            &Row::new().with("a", 1usize).with("text", "no number"),
            now,
        );
        table.add(1, &Row::new().with("b,c", 0.5).with("step", 7usize), now);
        let expected = "step,timestamp,a,b_c\n0,1970-01-01T00:00:00.000Z,1,\n\
                        1,1970-01-01T00:00:00.000Z,,0.5\n";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn a_resumed_run_goes_on_in_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.csv");
        let mut first = Csv::new(&path);
        for step in 0..4 {
            first.metrics(step, &Row::new().with("a", step));
        }
        let mut second = Csv::new(&path);
        second.metrics(2, &Row::new().with("a", 20usize).with("b", 1usize));
        let text = fs::read_to_string(&path).unwrap();
        let cells = |line: &str| -> Vec<String> {
            let cells = line.split(',').map(str::to_owned).enumerate();
            cells
                .filter(|(at, _)| *at != 1)
                .map(|(_, cell)| cell)
                .collect()
        };
        let lines: Vec<Vec<String>> = text.lines().map(cells).collect();
        let expected = [
            ["step", "a", "b"],
            ["0", "0", ""],
            ["1", "1", ""],
            ["2", "20", "1"],
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn what_is_no_table_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.csv");
        for mine in [&b"name,age\nann,7\n"[..], b"\xff\xfe", b"\n"] {
            fs::write(&path, mine).unwrap();
            let mut table = Csv::new(&path);
            table.metrics(0, &Row::new().with("a", 1usize));
            table.metrics(1, &Row::new().with("a", 1usize));
            assert_eq!(fs::read(&path).unwrap(), mine);
        }
        fs::write(&path, "").unwrap();
        Csv::new(&path).metrics(0, &Row::new().with("a", 1usize));
        assert!(fs::read_to_string(&path).unwrap().ends_with(",1\n"));
    }

    #[test]
    fn a_row_that_is_longer_than_its_table_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.csv");
        fs::write(&path, "step,timestamp,a\n0,then,1,2,3\n").unwrap();
        Csv::new(&path).metrics(1, &Row::new().with("a", 5usize));
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("step,timestamp,a\n0,then,1\n1,"), "{text}");
    }
}
