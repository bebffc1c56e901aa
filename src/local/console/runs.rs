//! What the page shows of run folders.

use std::ops::RangeInclusive;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value as Json, json};

use super::folders::{Folders, Found, leads_inside};
use crate::local::http::{Refusal, Reply, Request, query};
use crate::plot::{Plot, Series, sparkline_svg};
use crate::train::{Row, RunReader, Value};

/// A row of the table of runs.
#[derive(Debug, Serialize)]
struct Listed {
    id: String,
    name: String,
    kind: &'static str,
    status: &'static str,
    model: Option<String>,
    steps: usize,
    /// From 0 to 1, as far as the run says.
    progress: Option<f64>,
    metric: Option<&'static str>,
    /// The last one, by its name if it is no finite number.
    value: Option<Json>,
    spark: String,
    /// Milliseconds since 1970.
    changed: Option<u64>,
}

/// Every run.
pub(super) fn list(folders: &Folders) -> impl Serialize {
    let runs = folders.find();
    let listed = |run: &Found| Some(listed(run, &*folders.read(run)?));
    let runs: Vec<Listed> = runs.iter().filter_map(listed).collect();
    json!({"folders": folders.names(), "runs": runs})
}

fn listed(found: &Found, run: &RunReader) -> Listed {
    let metric = run.main_metric();
    let values = metric.map_or_else(Vec::new, |name| values(run, name));
    let last = values.last().copied();
    Listed {
        id: found.id.clone(),
        name: found.name.clone(),
        kind: run.kind().as_str(),
        status: run.status(SystemTime::now()).as_str(),
        model: run.model().map(str::to_owned),
        steps: run.metrics.len(),
        progress: progress(run),
        metric,
        value: last.map(figure),
        spark: sparkline_svg(&finite(values), 96, 22),
        changed: run.changed().and_then(millis),
    }
}

fn values(run: &RunReader, metric: &str) -> Vec<f64> {
    let curve = run.curve(metric).into_iter();
    curve.map(|point| point.1).collect()
}

/// What can be drawn.
fn finite(mut values: Vec<f64>) -> Vec<f64> {
    values.retain(|value| value.is_finite());
    values
}

/// How much of a run is done, by what its loop wrote last about it.
fn progress(run: &RunReader) -> Option<f64> {
    let names = ["progress", "progress/done_frac"];
    let said = |row: &Row| names.iter().find_map(|name| row.number(name));
    run.metrics.iter().rev().find_map(said)
}

fn millis(time: SystemTime) -> Option<u64> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

/// One run: its settings, its metrics, its checkpoints, the end of its log.
pub(super) fn show(folders: &Folders, request: &Request) -> Result<Reply, Refusal> {
    let run = folders.open(&wanted(request, "run")?)?;
    let metrics = run.metric_names().into_iter().map(|name| {
        let values = values(&run, &name);
        json!({
            "name": name,
            "count": values.len(),
            "first": values.first().copied().map(figure),
            "last": values.last().copied().map(figure),
            "spark": sparkline_svg(&finite(values), 96, 18),
        })
    });
    let checkpoints = run
        .checkpoints
        .iter()
        .map(|record| as_json(&record.to_row()));
    let iterations = run.iterations().into_iter();
    Ok(Reply::json(&json!({
        "path": run.path,
        "kind": run.kind().as_str(),
        "status": run.status(SystemTime::now()).as_str(),
        "model": run.model(),
        "steps": run.metrics.len(),
        "progress": progress(&run),
        "changed": run.changed().and_then(millis),
        "config": run.config,
        "main": run.main_metric(),
        "metrics": metrics.collect::<Vec<_>>(),
        "checkpoints": checkpoints.collect::<Vec<_>>(),
        "iterations": iterations
            .map(|(number, labels)| json!({"iteration": number, "labels": labels}))
            .collect::<Vec<_>>(),
        "log": run.log_tail(200),
    })))
}

/// A metric of one run or of two, drawn, and its points for whoever points at them.
pub(super) fn plot(folders: &Folders, request: &Request) -> Result<Reply, Refusal> {
    let metric = wanted(request, "metric")?;
    let by_time = query(&request.query, "x").as_deref() == Some("time");
    let smoothing = number(request, "smooth")?.unwrap_or(0.0);
    let size = (number(request, "width")?, number(request, "height")?);
    let pixels =
        |size: Option<f64>, usual: u32| size.map_or(usual, |size| size.clamp(0.0, 4000.0) as u32);
    let mut plot = Plot::new(metric.as_str()).with_size(pixels(size.0, 640), pixels(size.1, 260));
    if query(&request.query, "log").is_some() {
        plot = plot.with_log_y();
    }
    let mut range = f64::NEG_INFINITY..=f64::INFINITY;
    if let (Some(from), Some(to)) = (number(request, "from")?, number(request, "to")?) {
        plot = plot.with_x_range(from, to);
        range = from..=to;
    }
    let mut series = Vec::new();
    let ids = [Some(wanted(request, "run")?), query(&request.query, "over")];
    for id in ids.into_iter().flatten() {
        let run = folders.open(&id)?;
        let points = match by_time {
            true => run.curve_over_time(&metric),
            false => run.curve(&metric),
        };
        let name = id.split_once('/').map_or(id.as_str(), |(_, name)| name);
        let curve = Series::new(name, points.iter().copied()).with_smoothing(smoothing);
        plot = plot.with_series(curve);
        series.push(json!({"name": name, "points": thin(points, &range)}));
    }
    Ok(Reply::json(
        &json!({"svg": plot.to_inline_svg(), "series": series}),
    ))
}

/// At most some thousand points of a range: more are closer together than a pointer can tell.
/// The last is always among them.
fn thin(mut points: Vec<(f64, f64)>, range: &RangeInclusive<f64>) -> Vec<(f64, f64)> {
    const MOST: usize = 4000;
    points.retain(|(x, y)| x.is_finite() && y.is_finite() && range.contains(x));
    let every = points.len().div_ceil(MOST).max(1);
    let last = points.len().saturating_sub(1);
    let kept = points.into_iter().enumerate();
    kept.filter(|(index, _)| index % every == 0 || *index == last)
        .map(|(_, point)| point)
        .collect()
}

/// Where the time of a step went; of the last step unless one is asked for.
pub(super) fn spans(folders: &Folders, request: &Request) -> Result<Reply, Refusal> {
    let run = folders.open(&wanted(request, "run")?)?;
    let timings = run.timings();
    let steps: Vec<u64> = timings.iter().filter_map(|row| row.count("step")).collect();
    let step = number(request, "step")?.map(|step| step as u64);
    let step = step.or(steps.last().copied());
    let row = timings.iter().rev().find(|row| row.count("step") == step);
    let spans = row.map_or(Json::Null, as_json)["spans"].take();
    Ok(Reply::json(
        &json!({"steps": steps, "step": step, "spans": spans}),
    ))
}

/// The rollouts of an iteration, as the run wrote them down.
pub(super) fn rollouts(folders: &Folders, request: &Request) -> Result<Reply, Refusal> {
    let run = folders.open(&wanted(request, "run")?)?;
    let iteration = number(request, "iteration")?.map_or(0, |number| number as usize);
    let label = wanted(request, "label")?;
    // Only what was listed can be asked for: a label is a part of a path.
    let known = run
        .iterations()
        .into_iter()
        .find(|known| known.0 == iteration);
    let known = known.is_some_and(|(_, labels)| labels.contains(&label));
    let file = run.rollouts_file(iteration, &label);
    let real = run.path.canonicalize().unwrap_or_default();
    if !known || !leads_inside(&real, &file) {
        let detail = format!("there are no rollouts {label} of iteration {iteration}");
        return Err(Refusal::missing(detail));
    }
    let rows = run.rollouts(iteration, &label);
    let rows: Vec<Json> = rows.iter().map(as_json).collect();
    Ok(Reply::json(&json!({"rollouts": rows})))
}

fn wanted(request: &Request, name: &str) -> Result<String, Refusal> {
    query(&request.query, name).ok_or_else(|| Refusal::bad(format!("{name} is required")))
}

fn number(request: &Request, name: &str) -> Result<Option<f64>, Refusal> {
    let Some(text) = query(&request.query, name) else {
        return Ok(None);
    };
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    let problem = || Refusal::bad(format!("{name} must be a number, got {text:?}"));
    number.map(Some).ok_or_else(problem)
}

/// A number as JSON proper, which has no NaN: what is not finite becomes its name.
fn figure(number: f64) -> Json {
    match number.is_finite() {
        true => json!(number),
        false => json!(Value::Float(number).to_string()),
    }
}

/// A row as JSON proper.
fn as_json(row: &Row) -> Json {
    let entries = row.iter().map(|(name, value)| {
        let value = match value {
            Value::Int(number) => json!(number),
            Value::Float(number) => figure(*number),
            Value::Row(row) => as_json(row),
            Value::Rows(rows) => rows.iter().map(as_json).collect(),
            Value::Json(value) => value.clone(),
            other => json!(other.to_string()),
        };
        (name.to_owned(), value)
    });
    Json::Object(entries.collect::<Map<_, _>>())
}
