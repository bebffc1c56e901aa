//! Rows from files, and datums from rows: streamed, on all cores.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::marker::PhantomData;
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::super::renderers::{Renderer, TrainOnWhat};
use super::example::{DatumOptions, Reduction};
use super::rows::Row;
use super::statistics::Statistics;
use crate::error::{Context, Error, Result};
use crate::types::Datum;

/// Rows of a file of JSON lines, read one at a time; files that are gzip-compressed are
/// unpacked on the way.
///
/// What is wrong with a line is an error that names the file and the line, or a counted
/// [skip](Self::skipping) where asked for. Empty lines are no rows.
///
/// ```
/// use tinker::text::data::{Conversation, Reader};
///
/// let lines = r#"{"messages": [{"role": "user", "content": "Hi"}]}
/// {"messages": []}"#;
/// let mut rows = Reader::<Conversation>::new("chats.jsonl", lines.as_bytes());
/// assert_eq!(rows.next().unwrap()?.messages[0].text(), "Hi");
/// let error = rows.next().unwrap().unwrap_err();
/// assert_eq!(error.to_string(), "invalid chats.jsonl:2.messages: is empty");
/// # Ok::<(), tinker::Error>(())
/// ```
pub struct Reader<T> {
    name: String,
    lines: Box<dyn BufRead + Send>,
    line: usize,
    done: bool,
    skips: Option<Skipped>,
    row: PhantomData<fn() -> T>,
}

/// Rows that were left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// How many.
    pub count: usize,
    /// What was wrong with the first ones, up to a hundred: file, line and reason.
    pub first: Vec<String>,
}

impl Skipped {
    fn add(&mut self, error: &Error) {
        self.count += 1;
        if self.first.len() < 100 {
            self.first.push(error.to_string());
        }
    }
}

const GZIP: [u8; 2] = [0x1f, 0x8b];

impl<T: Row> Reader<T> {
    /// The rows of a file.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be opened.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| unreadable(&name, error))?;
        let mut lines = BufReader::new(file);
        let start = lines.fill_buf().map_err(|error| unreadable(&name, error))?;
        Ok(match start.starts_with(&GZIP) {
            true => Self::new(&name, MultiGzDecoder::new(lines)),
            false => Self::new(&name, lines),
        })
    }

    /// The rows of anything that can be read; the name is for errors.
    pub fn new(name: &str, source: impl Read + Send + 'static) -> Self {
        Self {
            name: name.to_owned(),
            lines: Box::new(BufReader::new(source)),
            line: 0,
            done: false,
            skips: None,
            row: PhantomData,
        }
    }

    /// Leaves out rows that cannot be read instead of failing, and counts them.
    #[must_use]
    pub fn skipping(mut self) -> Self {
        self.skips = Some(Skipped::default());
        self
    }

    /// What was left out so far.
    pub fn skipped(&self) -> Skipped {
        self.skips.clone().unwrap_or_default()
    }

    /// The datums of the rows, in order, rendered on all cores.
    ///
    /// So many rows at a time are read and rendered; memory is bounded by that window.
    pub fn datums(self, renderer: &Renderer, options: RenderOptions) -> Datums<T> {
        Datums {
            reader: self,
            renderer: renderer.clone(),
            options,
            ready: VecDeque::new(),
            statistics: Statistics::default(),
        }
    }

    /// The next row with the number of its line.
    fn next_row(&mut self) -> Option<(usize, Result<T>)> {
        let mut bytes = Vec::new();
        while !self.done {
            bytes.clear();
            self.line += 1;
            match self.lines.read_until(b'\n', &mut bytes) {
                Ok(0) => self.done = true,
                Ok(_) => {
                    let Some(row) = self.row(&bytes).transpose() else {
                        continue;
                    };
                    return Some((self.line, row));
                }
                Err(error) => {
                    self.done = true;
                    let place = format!("{}:{}", self.name, self.line);
                    return Some((self.line, Err(unreadable(&place, error))));
                }
            }
        }
        None
    }

    /// The row of a line, if it is not empty.
    fn row(&self, line: &[u8]) -> Result<Option<T>> {
        let place = format!("{}:{}", self.name, self.line);
        let text = std::str::from_utf8(line).map_err(|error| {
            let problem = format!("is no UTF-8 text from byte {} on", error.valid_up_to() + 1);
            Error::invalid(&*place, problem)
        })?;
        // Some editors mark the start of a file.
        let text = match self.line {
            1 => text.strip_prefix('\u{feff}').unwrap_or(text),
            _ => text,
        };
        match text.trim() {
            "" => Ok(None),
            text => T::read(text)
                .map(Some)
                .map_err(|error| error.within(&place)),
        }
    }

    fn located(&self, line: usize, error: Error) -> Error {
        error.within(&format!("{}:{line}", self.name))
    }

    /// The error, or nothing if bad rows are left out. A file that cannot be read is no bad row.
    fn or_skip(&mut self, error: Error) -> Option<Error> {
        match (&mut self.skips, &error) {
            (Some(skips), Error::Invalid(_)) => {
                skips.add(&error);
                None
            }
            _ => Some(error),
        }
    }
}

impl<T: Row> Iterator for Reader<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        loop {
            match self.next_row()?.1 {
                Ok(row) => return Some(Ok(row)),
                Err(error) => {
                    if let Some(error) = self.or_skip(error) {
                        return Some(Err(error));
                    }
                }
            }
        }
    }
}

impl<T> std::fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("name", &self.name)
            .field("line", &self.line)
            .finish_non_exhaustive()
    }
}

fn unreadable(place: &str, error: std::io::Error) -> Error {
    Error::Io(Context::caused(format!("cannot read {place}"), error))
}

/// How rows become datums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RenderOptions {
    /// Which parts of a conversation are trained on. Default: all the assistant says.
    pub train_on_what: TrainOnWhat,
    /// The most tokens of a sequence. Default: no limit.
    pub max_length: Option<usize>,
    /// Whether a sequence that is too long is refused rather than cut. Default: cut.
    pub refuse_too_long: bool,
    /// What is done to the weights. Default: what the kind of row asks for.
    pub reduction: Option<Reduction>,
    /// How many rows are read ahead and rendered at once. Default: 1024.
    pub window: usize,
    /// Whether to find out how many sequences are the same as one before; keeps a number in
    /// memory for each. Default: no.
    pub count_duplicates: bool,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            train_on_what: TrainOnWhat::default(),
            max_length: None,
            refuse_too_long: false,
            reduction: None,
            window: 1024,
            count_duplicates: false,
        }
    }
}

impl RenderOptions {
    /// Sets [`train_on_what`](Self::train_on_what).
    #[must_use]
    pub fn with_train_on_what(mut self, what: TrainOnWhat) -> Self {
        self.train_on_what = what;
        self
    }

    /// Sets [`max_length`](Self::max_length).
    #[must_use]
    pub fn with_max_length(mut self, tokens: usize) -> Self {
        self.max_length = Some(tokens);
        self
    }

    /// Sets [`refuse_too_long`](Self::refuse_too_long).
    #[must_use]
    pub fn refusing_too_long(mut self) -> Self {
        self.refuse_too_long = true;
        self
    }

    /// Sets [`reduction`](Self::reduction).
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = Some(reduction);
        self
    }

    /// Sets [`window`](Self::window).
    #[must_use]
    pub fn with_window(mut self, rows: usize) -> Self {
        self.window = rows.max(1);
        self
    }

    /// Sets [`count_duplicates`](Self::count_duplicates).
    #[must_use]
    pub fn counting_duplicates(mut self) -> Self {
        self.count_duplicates = true;
        self
    }

    /// The datums of one row, each with what statistics want to know.
    fn render<T: Row>(&self, row: &T, renderer: &Renderer) -> Result<Vec<(Datum, Facts)>> {
        let options = DatumOptions {
            max_length: self.max_length,
            reduction: self.reduction.unwrap_or(T::reduction()),
        };
        let each = row.examples(renderer, self.train_on_what)?.into_iter();
        each.map(|example| {
            let length = example.weights().len();
            let too_long = self.max_length.is_some_and(|max| length > max);
            if too_long && self.refuse_too_long {
                let max = self.max_length.unwrap_or_default();
                let problem = format!("{length} tokens, more than {max}");
                return Err(Error::invalid("row", problem));
            }
            let datum = example.to_datum(&options)?;
            let facts = Facts {
                length,
                truncated: too_long,
            };
            Ok((datum, facts))
        })
        .collect()
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) length: usize,
    pub(super) truncated: bool,
}

/// The datums of a file's rows; see [`Reader::datums`].
#[derive(Debug)]
pub struct Datums<T> {
    reader: Reader<T>,
    renderer: Renderer,
    options: RenderOptions,
    ready: VecDeque<Result<Datum>>,
    statistics: Statistics,
}

impl<T: Row> Datums<T> {
    /// What was seen so far.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// What was left out so far.
    pub fn skipped(&self) -> Skipped {
        self.reader.skipped()
    }

    /// Reads and renders the next window; nothing is left to read if that gives nothing.
    fn fill(&mut self) -> bool {
        let mut rows = Vec::new();
        while rows.len() < self.options.window {
            match self.reader.next_row() {
                Some(row) => rows.push(row),
                None => break,
            }
        }
        if rows.is_empty() {
            return false;
        }
        let (renderer, options) = (self.renderer.clone(), self.options);
        let lines: Vec<usize> = rows.iter().map(|(line, _)| *line).collect();
        let workers = self.renderer.tokenizer().workers();
        let rendered = workers.map(rows, move |_, (_, row)| {
            Ok(match row {
                Ok(row) => options.render(row, &renderer),
                Err(error) => Err(error.clone()),
            })
        });
        match rendered {
            Ok(rendered) => {
                for (line, result) in lines.into_iter().zip(rendered) {
                    self.take(line, result);
                }
            }
            Err(error) => self.ready.push_back(Err(error)),
        }
        true
    }

    fn take(&mut self, line: usize, result: Result<Vec<(Datum, Facts)>>) {
        match result {
            Ok(datums) => {
                self.statistics.rows += 1;
                for (datum, facts) in datums {
                    self.statistics
                        .add(&datum, facts, self.options.count_duplicates);
                    self.ready.push_back(Ok(datum));
                }
            }
            Err(error) => {
                let place = format!("{}:{line}", self.reader.name);
                let error = match error.to_string().contains(&place) {
                    true => error,
                    false => self.reader.located(line, error),
                };
                if let Some(error) = self.reader.or_skip(error) {
                    self.ready.push_back(Err(error));
                }
            }
        }
    }
}

impl<T: Row> Iterator for Datums<T> {
    type Item = Result<Datum>;

    fn next(&mut self) -> Option<Result<Datum>> {
        while self.ready.is_empty() && self.fill() {}
        self.ready.pop_front()
    }
}

impl Renderer {
    /// The datums of rows that are in memory, in their order, rendered on all cores.
    ///
    /// # Errors
    ///
    /// That of the first row that cannot be rendered; it names the row's place in the list.
    pub fn datums<T: Row>(&self, rows: Vec<T>, options: RenderOptions) -> Result<Vec<Datum>> {
        let renderer = self.clone();
        let rendered = self.tokenizer().workers().map(rows, move |index, row| {
            let datums = options.render(row, &renderer);
            datums.map_err(|error| error.within(&format!("rows[{index}]")))
        })?;
        let datums = rendered.into_iter().flatten();
        Ok(datums.map(|(datum, _)| datum).collect())
    }
}

/// The first rows of a shuffled list for a test, the rest to train on; all to train on if there
/// are not more than the test wants.
///
/// ```
/// use tinker::text::data::split;
///
/// assert_eq!(split(vec![1, 2, 3], 1), (vec![2, 3], vec![1]));
/// assert_eq!(split(vec![1], 1), (vec![1], vec![]));
/// ```
pub fn split<T>(mut rows: Vec<T>, test: usize) -> (Vec<T>, Vec<T>) {
    if test == 0 || rows.len() <= test {
        return (rows, Vec::new());
    }
    let rest = rows.split_off(test);
    (rest, rows)
}
