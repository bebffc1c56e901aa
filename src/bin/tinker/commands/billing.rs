//! `tinker billing`: what was used and what it costs.

use std::fmt;
use std::fs;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use tinker::types::{BillingEvent, BillingUsage, StorageUsage, Timestamp};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::Table;

#[derive(Debug, Subcommand)]
pub(crate) enum Billing {
    /// Show your organization's usage by the hour.
    ///
    /// Costs are estimates before credits and commits, not amounts due. A table shows a cost that
    /// is not known yet as `null`; CSV leaves it empty. Needs billing access.
    Usage(Usage),
    /// Show what checkpoints take at present and would cost in a month.
    CheckpointStorage {
        /// Only this project.
        #[arg(long, value_name = "ID")]
        project_id: Option<String>,
        /// Write CSV to this file instead; `-` for standard output.
        #[arg(long, value_name = "PATH")]
        csv: Option<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Usage {
    /// The first hour, as 2026-07-13T00:00:00Z.
    starting_on: String,
    /// The hour after the last; at most 14 days later.
    ending_before: String,
    /// Write the rows as CSV to this file instead; `-` for standard output.
    #[arg(long, value_name = "PATH")]
    csv: Option<String>,
    /// Write each session's notes as CSV to this file; `-` for standard output.
    #[arg(long, value_name = "PATH")]
    sessions_csv: Option<String>,
}

/// A record's fields in their order.
type Row = Vec<(String, Value)>;

impl Billing {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        match self {
            Self::Usage(usage) => usage.run(context),
            Self::CheckpointStorage { project_id, csv } => {
                storage(context, project_id.as_deref(), csv.as_deref())
            }
        }
    }
}

impl Usage {
    fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let from = time("STARTING_ON", &self.starting_on)?;
        let to = time("ENDING_BEFORE", &self.ending_before)?;
        let usage = context.rest()?.billing_usage(from, to)?;
        if let Some(path) = &self.sessions_csv {
            write_csv(context, &session_rows(&usage)?, path)?;
        }
        if let Some(path) = &self.csv {
            let rows = usage.data.iter().map(flat).collect::<Result<Vec<_>, _>>()?;
            write_csv(context, &rows, path)?;
        }
        if self.csv.is_some() || self.sessions_csv.is_some() {
            return Ok(());
        }
        if context.is_json() {
            return context.out.json(&usage);
        }
        let title = match usage.data.len() {
            0 => "No billing usage in this window".to_owned(),
            count => format!("{count} hourly usage row(s)"),
        };
        let mut rows = usage.data.iter().map(flat).collect::<Result<Vec<_>, _>>()?;
        rows.iter_mut().for_each(show_unknown_costs);
        context.out.table(&table(&rows).titled(title))
    }
}

fn storage(
    context: &mut Context,
    project_id: Option<&str>,
    csv: Option<&str>,
) -> anyhow::Result<()> {
    let usage: StorageUsage = context.rest()?.storage_usage(project_id)?;
    let rate = "effective_rate_usd_per_gigabyte_month";
    let rows = usage
        .data
        .iter()
        .map(|item| {
            let mut row = vec![(
                rate.to_owned(),
                serde_json::to_value(usage.effective_rate_usd_per_gigabyte_month)?,
            )];
            row.extend(fields(item)?);
            Ok(row)
        })
        .collect::<anyhow::Result<Vec<Row>>>()?;
    if let Some(path) = csv {
        return write_csv(context, &rows, path);
    }
    if context.is_json() {
        return context.out.json(&usage);
    }
    let title = match rows.is_empty() {
        true => "No active checkpoint storage",
        false => "Current checkpoint storage",
    };
    context.out.table(&table(&rows).titled(title))
}

fn time(name: &str, text: &str) -> anyhow::Result<Timestamp> {
    text.parse().map_err(|_| {
        Failure::usage(format!("{name}: not a time: {text:?}"))
            .advise("Write it as 2026-07-13T00:00:00Z.")
            .into()
    })
}

/// An event with what was used among its own fields.
fn flat(event: &BillingEvent) -> anyhow::Result<Row> {
    let mut row = fields(event)?;
    row.retain(|(name, _)| name != "event_info");
    row.extend(fields(&event.event_info)?);
    Ok(row)
}

/// A cost that applies but is not known is told from one that does not apply.
fn show_unknown_costs(row: &mut Row) {
    let kind = row.iter().find(|(name, _)| name == "type");
    let applies: &[&str] = match kind.and_then(|(_, value)| value.as_str()) {
        Some("training" | "sampling_prefill" | "sampling_sample") => &[
            "estimated_cost_usd",
            "effective_rate_usd_per_million_tokens",
        ],
        Some("storage") => &[
            "estimated_cost_usd",
            "effective_rate_usd_per_gigabyte_month",
        ],
        _ => &[],
    };
    for (name, value) in row {
        if value.is_null() && applies.contains(&name.as_str()) {
            *value = "null".into();
        }
    }
}

fn session_rows(usage: &BillingUsage) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (id, session) in &usage.sessions {
        let notes = match &session.user_metadata {
            Some(notes) => Value::String(serde_json::to_string(notes)?),
            None => Value::Null,
        };
        rows.push(vec![
            ("session_id".to_owned(), id.as_str().into()),
            ("user_metadata".to_owned(), notes),
        ]);
    }
    Ok(rows)
}

/// Every field that some row has, those of the first row first.
fn columns(rows: &[Row]) -> Vec<String> {
    let mut columns: Vec<String> = Vec::new();
    for (name, _) in rows.iter().flatten() {
        if !columns.contains(name) {
            columns.push(name.clone());
        }
    }
    columns
}

fn cells<'a>(row: &'a Row, columns: &'a [String]) -> impl Iterator<Item = String> + 'a {
    let find = |column: &String| row.iter().find(|(name, _)| name == column);
    columns
        .iter()
        .map(move |column| find(column).map_or_else(String::new, |(_, value)| cell(value)))
}

/// A value as Python prints it.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn table(rows: &[Row]) -> Table {
    let columns = columns(rows);
    let mut table = Table::new(columns.clone());
    for row in rows {
        table.row(cells(row, &columns));
    }
    table
}

fn write_csv(context: &mut Context, rows: &[Row], path: &str) -> anyhow::Result<()> {
    let columns = columns(rows);
    let mut text = csv_line(columns.iter().cloned());
    for row in rows {
        text.push_str(&csv_line(cells(row, &columns)));
    }
    if path == "-" {
        return context.out.text(&text);
    }
    fs::write(path, text).with_context(|| format!("cannot write {path}"))?;
    say!("Wrote {} row(s) to {path}", rows.len());
    Ok(())
}

fn csv_line(cells: impl Iterator<Item = String>) -> String {
    let quoted: Vec<String> = cells
        .map(|cell| match cell.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", cell.replace('"', "\"\"")),
            false => cell,
        })
        .collect();
    quoted.join(",") + "\n"
}

/// A record's fields in the order in which it writes them, which a JSON object would lose.
fn fields(record: &impl Serialize) -> anyhow::Result<Row> {
    struct Ordered(Row);

    impl<'de> Deserialize<'de> for Ordered {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Fields;

            impl<'de> Visitor<'de> for Fields {
                type Value = Row;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a record")
                }

                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Row, A::Error> {
                    let mut row = Row::new();
                    while let Some(entry) = map.next_entry()? {
                        row.push(entry);
                    }
                    Ok(row)
                }
            }

            deserializer.deserialize_map(Fields).map(Ordered)
        }
    }

    let text = serde_json::to_string(record)?;
    let Ordered(row) = serde_json::from_str(&text)?;
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_quotes_what_needs_it() {
        let line = csv_line(
            ["a", "b,c", "say \"hi\"", ""]
                .map(str::to_owned)
                .into_iter(),
        );
        assert_eq!(line, "a,\"b,c\",\"say \"\"hi\"\"\",\n");
    }
}
