//! Workloads about behaviour under faults.

use std::collections::{BTreeMap, HashSet};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use tinker::{AdamParams, Datum, Error, LossFn, Pending, ServiceClient};

use crate::measure::check_logprobs;
use crate::process::{Figures, Meter, Process, ThreadCount};
use crate::{Load, exactly};

/// How long closing may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(20);
/// When closing fails or takes longer.
const CLOSE_FAILED: u8 = 3;

impl Load {
    fn deadline(&self) -> anyhow::Result<Duration> {
        Ok(Duration::from_secs(self.number("deadline", 120)? as u64))
    }

    pub(crate) fn faults_sample(&self) -> anyhow::Result<ExitCode> {
        let (n, limit) = (self.number("n", 1000)?, self.deadline()?);
        let (service, sampler) = self.sampler()?;
        let prompts = (0..n)
            .map(|i| self.prompt(i))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let length = |index: usize| 8 + index % 57;
        let mut tally = Tally::default();
        let (meter, threads) = (Meter::start(), ThreadCount::start());
        let deadline = Instant::now() + limit;
        let submit = |(index, prompt)| sampler.submit_sample(prompt, exactly(length(index)));
        let pending: Vec<_> = prompts.iter().enumerate().map(submit).collect();
        let results: Vec<_> = pending
            .into_iter()
            .map(|handle| wait(handle, deadline))
            .collect();
        let (figures, threads) = (meter.stop(), threads.stop());
        let mut seen = HashSet::new();
        for (index, result) in results.into_iter().enumerate() {
            tally.count(vec![result.and_then(|response| {
                let tokens: Vec<usize> =
                    response.sequences.iter().map(|s| s.tokens.len()).collect();
                let mut ids = response
                    .sequences
                    .iter()
                    .filter_map(|s| s.sequence_id.clone());
                if tokens != [length(index)] {
                    Err("wrong number of tokens".to_owned())
                } else if !ids.all(|id| seen.insert(id)) {
                    Err("repeated sequence id".to_owned())
                } else {
                    Ok(())
                }
            })]);
        }
        self.report_faults(&tally, figures, threads, || drop(sampler), service)
    }

    pub(crate) fn faults_train(&self) -> anyhow::Result<ExitCode> {
        let (steps, limit) = (self.number("steps", 50)?, self.deadline()?);
        let (service, training) = self.trainer()?;
        let length = |step: usize, index: usize| 16 + (5 * step + 3 * index) % 31;
        let batch = |step: usize| (0..16).map(move |i| self.datum(step + i, length(step, i)));
        let data = (0..steps)
            .map(|step| batch(step).collect())
            .collect::<anyhow::Result<Vec<Vec<Datum>>>>()?;
        let mut tally = Tally::default();
        let (meter, threads) = (Meter::start(), ThreadCount::start());
        let deadline = Instant::now() + limit;
        let submit = |data: &Vec<Datum>| {
            let gradients = training.forward_backward(data, LossFn::CrossEntropy);
            (gradients, training.optim_step(AdamParams::default()))
        };
        let pending: Vec<_> = data.iter().map(submit).collect();
        let results: Vec<_> = pending
            .into_iter()
            .map(|(gradients, update)| (wait(gradients, deadline), wait(update, deadline)))
            .collect();
        let (figures, threads) = (meter.stop(), threads.stop());
        for (step, (gradients, update)) in results.into_iter().enumerate() {
            let lengths: Vec<usize> = (0..16).map(|index| length(step, index)).collect();
            let gradients = gradients.and_then(|output| {
                check_logprobs(&output, &lengths)
                    .map_err(|_| "wrong lengths of logprobs".to_owned())
            });
            tally.count(vec![
                gradients.map_err(|kind| format!("forward_backward: {kind}")),
                update
                    .map(drop)
                    .map_err(|kind| format!("optim_step: {kind}")),
            ]);
        }
        self.report_faults(&tally, figures, threads, || drop(training), service)
    }

    /// Prints the line, then closes: a client must come to its end whatever the server did.
    fn report_faults(
        &self,
        tally: &Tally,
        figures: Figures,
        threads_max: usize,
        release: impl FnOnce(),
        service: ServiceClient,
    ) -> anyhow::Result<ExitCode> {
        let line = json!({
            "workload": self.workload,
            "ok": tally.ok,
            "failed": tally.failed,
            "errors": tally.errors,
            "wall_s": figures.wall,
            "cpu_s": figures.cpu,
            "peak_rss_mb": Process::now().peak_rss,
            "threads_max": threads_max,
        });
        println!("{line}");
        release();
        let (sender, closed) = std::sync::mpsc::channel();
        thread::spawn(move || sender.send(service.close()));
        match closed.recv_timeout(CLOSE_LIMIT) {
            Ok(Ok(())) => Ok(ExitCode::SUCCESS),
            Ok(Err(error)) => {
                eprintln!("closing failed: {error}");
                Ok(ExitCode::from(CLOSE_FAILED))
            }
            Err(_) => {
                eprintln!("closing takes more than {CLOSE_LIMIT:?}");
                // The client's threads are what hangs: do not wait for them.
                std::process::exit(CLOSE_FAILED.into());
            }
        }
    }
}

/// What became of the units of work; a unit is fine if all its calls are.
#[derive(Default)]
struct Tally {
    ok: usize,
    failed: usize,
    errors: BTreeMap<String, usize>,
}

impl Tally {
    fn count(&mut self, calls: Vec<Result<(), String>>) {
        match calls.iter().all(Result::is_ok) {
            true => self.ok += 1,
            false => self.failed += 1,
        }
        for kind in calls.into_iter().filter_map(Result::err) {
            *self.errors.entry(kind).or_default() += 1;
        }
    }
}

fn wait<T: Send + 'static>(
    handle: tinker::Result<Pending<T>>,
    deadline: Instant,
) -> Result<T, String> {
    let handle = handle.map_err(|error| kind(&error))?;
    let left = deadline.saturating_duration_since(Instant::now());
    match handle.join_timeout(left) {
        Some(result) => result.map_err(|error| kind(&error)),
        None => Err("hung".to_owned()),
    }
}

/// A short name for an error: `BadRequest 400`, `Connection`, `Failed user`.
fn kind(error: &Error) -> String {
    let name = match error {
        Error::Invalid(_) => "Invalid",
        Error::Config(_) => "Config",
        Error::Credentials(_) => "Credentials",
        Error::Status(_) => match error.status().unwrap_or(0) {
            400 => "BadRequest",
            401 => "Authentication",
            403 => "PermissionDenied",
            404 => "NotFound",
            409 => "Conflict",
            422 => "UnprocessableEntity",
            429 => "RateLimit",
            500.. => "InternalServer",
            _ => "Status",
        },
        Error::Connection(_) => "Connection",
        Error::Timeout(_) => "Timeout",
        Error::Reply(_) => "Reply",
        Error::Failed(_) => "Failed",
        Error::Lost(_) => "Lost",
        Error::Broken(_) => "Broken",
        Error::Closed(_) => "Closed",
        _ => "Internal",
    };
    match (error.status(), error.category()) {
        (Some(status), _) => format!("{name} {status}"),
        (None, Some(category)) => format!("{name} {category}"),
        (None, None) => name.to_owned(),
    }
}
