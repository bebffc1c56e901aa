//! Where results go: standard output, as a table or as JSON.

use std::fmt;
use std::io::{self, BufWriter, Stdout, Write};

use clap::ValueEnum;
use console::{measure_text_width, style};
use serde::Serialize;

use crate::terminal;

/// How results are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table, fitted to the terminal.
    #[default]
    Table,
    /// JSON.
    Json,
}

/// Standard output. Every write can fail because its reader went away.
pub(crate) struct Out(BufWriter<Stdout>);

/// Nobody reads standard output any more.
#[derive(Debug)]
pub(crate) struct ClosedPipe;

impl fmt::Display for ClosedPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("nobody reads the output")
    }
}

impl std::error::Error for ClosedPipe {}

impl Default for Out {
    fn default() -> Self {
        Self(BufWriter::new(io::stdout()))
    }
}

impl Out {
    /// Text as it is.
    pub(crate) fn text(&mut self, text: &str) -> anyhow::Result<()> {
        written(self.0.write_all(text.as_bytes()))
    }

    /// A line.
    pub(crate) fn line(&mut self, text: &str) -> anyhow::Result<()> {
        self.text(text)?;
        self.text("\n")
    }

    /// A value as JSON, indented by two, and a line's end.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        self.line(&serde_json::to_string_pretty(value)?)
    }

    /// A value as JSON in one line, handed on at once: programs read such lines as they come.
    pub(crate) fn json_line(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        self.line(&serde_json::to_string(value)?)?;
        self.flush()
    }

    /// Hands on what is buffered.
    pub(crate) fn flush(&mut self) -> anyhow::Result<()> {
        written(self.0.flush())
    }

    /// A whole table.
    pub(crate) fn table(&mut self, table: &Table) -> anyhow::Result<()> {
        Listing::start(table.title.clone(), table.columns.clone()).rows(self, &table.rows)
    }
}

fn written(result: io::Result<()>) -> anyhow::Result<()> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => ClosedPipe.into(),
        _ => anyhow::Error::new(error).context("cannot write the output"),
    })
}

/// A table in memory, for what is small.
#[derive(Debug, Default)]
pub(crate) struct Table {
    title: Option<String>,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<T: Into<String>>(columns: impl IntoIterator<Item = T>) -> Self {
        Self {
            columns: columns.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// A table of properties of one thing.
    pub(crate) fn properties() -> Self {
        Self::new(["Property", "Value"])
    }

    #[must_use]
    pub(crate) fn titled(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    pub(crate) fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

/// A table that is written while its rows arrive. The first rows decide the columns' widths.
pub(crate) struct Listing {
    title: Option<String>,
    columns: Vec<String>,
    layout: Option<Layout>,
}

/// How a row is laid out.
enum Layout {
    /// Its cells beside each other, in columns of these widths.
    Columns(Vec<usize>),
    /// Its cells one below the other, in lines of this width.
    Paragraphs(usize),
}

impl Listing {
    pub(crate) fn start(title: Option<String>, columns: Vec<String>) -> Self {
        Self {
            title,
            columns,
            layout: None,
        }
    }

    pub(crate) fn rows(&mut self, out: &mut Out, rows: &[Vec<String>]) -> anyhow::Result<()> {
        let mut text = String::new();
        match &mut self.layout {
            None => self.head(&mut text, rows),
            // Where no width is given a row keeps its line, wider than the rows before if need be.
            Some(Layout::Columns(widths)) if terminal::width().is_none() => {
                let wanted = fit(&self.columns, rows, None);
                for (width, wanted) in widths.iter_mut().zip(wanted) {
                    *width = wanted.max(*width);
                }
            }
            Some(_) => {}
        }
        for row in rows {
            match &self.layout {
                Some(Layout::Columns(widths)) => draw(&mut text, row, widths, false),
                Some(Layout::Paragraphs(room)) => {
                    paragraph(&mut text, &self.columns, row, *room, terminal::colours());
                }
                None => {}
            }
        }
        out.text(&text)
    }

    fn head(&mut self, text: &mut String, rows: &[Vec<String>]) {
        let layout = layout(&self.columns, rows, terminal::width());
        if let Some(title) = &self.title {
            text.extend(
                title
                    .chars()
                    .filter(|letter| *letter == '\n' || !is_command(*letter)),
            );
            text.push('\n');
        }
        if let Layout::Columns(widths) = &layout
            && !rows.is_empty()
        {
            draw(text, &self.columns, widths, terminal::colours());
            let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
            draw(text, &rule, widths, false);
        }
        self.layout = Some(layout);
    }
}

const GAP: usize = 2;
/// No column becomes narrower than this, whatever the terminal.
const NARROWEST: usize = 8;

/// Columns, unless the terminal is too narrow for all of them.
fn layout(columns: &[String], rows: &[Vec<String>], room: Option<usize>) -> Layout {
    let widths = fit(columns, rows, room);
    let all = widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
    match room {
        Some(room) if all > room => Layout::Paragraphs(room),
        _ => Layout::Columns(widths),
    }
}

/// The columns' widths: as wide as their content, or fitted by taking from the widest. The first
/// column names the row and gives last.
fn fit(columns: &[String], rows: &[Vec<String>], room: Option<usize>) -> Vec<usize> {
    let cells = |index: usize| rows.iter().filter_map(move |row| row.get(index));
    let mut widths: Vec<usize> = (0..columns.len())
        .map(|index| {
            let lines = cells(index).flat_map(|cell| cell.lines());
            let widest = lines.map(measure_text_width).max();
            widest.unwrap_or(0).max(measure_text_width(&columns[index]))
        })
        .collect();
    let Some(room) = room else {
        return widths;
    };
    let gaps = GAP * widths.len().saturating_sub(1);
    while widths.iter().sum::<usize>() + gaps > room {
        let widest = (0..widths.len())
            .rev()
            .filter(|index| widths[*index] > NARROWEST)
            .max_by_key(|index| match index {
                0 => widths[0] / 2,
                _ => widths[*index],
            });
        match widest {
            Some(index) => widths[index] -= 1,
            None => break,
        }
    }
    widths
}

/// Draws a row over as many lines as its longest cell needs.
fn draw(text: &mut String, row: &[String], widths: &[usize], bold: bool) {
    let cells: Vec<Vec<String>> = row
        .iter()
        .zip(widths)
        .map(|(cell, width)| wrap(cell, *width))
        .collect();
    let lines = cells.iter().map(Vec::len).max().unwrap_or(0);
    for line in 0..lines {
        let mut drawn = String::new();
        for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let part = cell.get(line).map_or("", String::as_str);
            let padding = width.saturating_sub(measure_text_width(part));
            match bold && !part.is_empty() {
                true => drawn.push_str(&style(part).bold().to_string()),
                false => drawn.push_str(part),
            }
            if index + 1 < cells.len() {
                drawn.push_str(&" ".repeat(padding + GAP));
            }
        }
        text.push_str(drawn.trim_end());
        text.push('\n');
    }
}

/// Draws a row as a paragraph: a column's name and its cell in a line, or as many as they need.
fn paragraph(text: &mut String, columns: &[String], row: &[String], room: usize, bold: bool) {
    for (column, cell) in columns.iter().zip(row) {
        let named = match column.is_empty() {
            true => cell.clone(),
            false => format!("{column}: {cell}"),
        };
        for (number, line) in wrap(&named, room).iter().enumerate() {
            match line.strip_prefix(column.as_str()) {
                Some(rest) if bold && number == 0 && !column.is_empty() => {
                    text.push_str(&format!("{}{}", style(column).bold(), rest.trim_end()));
                }
                _ => text.push_str(line.trim_end()),
            }
            text.push('\n');
        }
    }
    text.push('\n');
}

/// Whether a terminal would take a letter for a command, as nothing that a server says must be.
fn is_command(letter: char) -> bool {
    letter.is_control()
}

/// Breaks a cell into lines of at most `width` columns, at spaces where there are some.
fn wrap(cell: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in cell.split('\n') {
        let mut line = String::new();
        let mut used = 0;
        for word in paragraph.split_inclusive(' ') {
            let fits = used + measure_text_width(word.trim_end()) <= width;
            if !fits && used > 0 {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            for letter in word.chars().filter(|letter| !is_command(*letter)) {
                let columns = measure_text_width(letter.encode_utf8(&mut [0; 4]));
                if used + columns > width && letter != ' ' && width > 0 {
                    lines.push(std::mem::take(&mut line));
                    used = 0;
                }
                line.push(letter);
                used += columns;
            }
        }
        lines.push(line);
    }
    lines
}

/// `{"<fields>…, "<key>": [items…]}` in the form of [`Out::json`], written while the items arrive:
/// nothing before the first, so that what fails at once leaves no half of a text.
pub(crate) struct JsonList<'a> {
    out: &'a mut Out,
    /// What stands before the next item.
    before: String,
    empty: bool,
}

impl<'a> JsonList<'a> {
    /// Begins with these fields, already in their order.
    pub(crate) fn start(
        out: &'a mut Out,
        fields: &[(&str, &str)],
        key: &str,
    ) -> anyhow::Result<Self> {
        let mut before = String::from("{\n");
        for (name, value) in fields {
            let value = serde_json::to_string(value)?;
            before.push_str(&format!("  \"{name}\": {value},\n"));
        }
        before.push_str(&format!("  \"{key}\": ["));
        Ok(Self {
            out,
            before,
            empty: true,
        })
    }

    pub(crate) fn item(&mut self, item: &impl Serialize) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(item)?.replace('\n', "\n    ");
        let before = std::mem::replace(&mut self.before, ",".into());
        self.empty = false;
        self.out.text(&format!("{before}\n    {text}"))
    }

    pub(crate) fn end(self) -> anyhow::Result<()> {
        match self.empty {
            true => self.out.text(&format!("{}]\n}}\n", self.before)),
            false => self.out.text("\n  ]\n}\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[track_caller]
    fn check(columns: &[&str], rows: &[&[&str]], room: Option<usize>, expected: &[&str]) {
        let columns = texts(columns);
        let rows: Vec<Vec<String>> = rows.iter().map(|row| texts(row)).collect();
        let mut text = String::new();
        match layout(&columns, &rows, room) {
            Layout::Columns(widths) => {
                for row in [&columns].into_iter().chain(&rows) {
                    draw(&mut text, row, &widths, false);
                }
            }
            Layout::Paragraphs(room) => {
                for row in &rows {
                    paragraph(&mut text, &columns, row, room, false);
                }
            }
        }
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn no_title_is_a_command() {
        let mut listing = Listing::start(Some("a\u{1b}[31m\nb\u{9b}2J".into()), Vec::new());
        let mut text = String::new();
        listing.head(&mut text, &[]);
        assert_eq!(text, "a[31m\nb2J\n");
    }

    #[test]
    fn tables_fit_where_there_is_a_width() {
        check(
            &["Id", "Path"],
            &[&["a", "tinker://run/weights/one"]],
            None,
            &["Id  Path", "a   tinker://run/weights/one"],
        );
        check(
            &["Id", "Path"],
            &[&["a", "tinker://run/weights/one"]],
            Some(16),
            &["Id  Path", "a   tinker://run", "    /weights/one"],
        );
        check(
            &["Id", "Note"],
            &[&["日本", "two words here"]],
            Some(14),
            &["Id    Note", "日本  two", "      words", "      here"],
        );
        // Narrower than any table can be: still every letter is there.
        check(
            &["A", "B"],
            &[&["0123456789", "x"], &["", "y"]],
            Some(9),
            &["A:", "012345678", "9", "B: x", "", "A:", "B: y", ""],
        );
    }
}
