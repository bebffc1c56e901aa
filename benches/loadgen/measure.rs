//! Workloads that measure.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tinker::types::{LossOutput, SampledSequence, StopReason};
use tinker::unversioned::bench as wire;
use tinker::{AdamParams, ForwardBackwardOutput, LossFn, ModelInput};
use tinker::{SampleOptions, SampleResponse, TensorData};

use crate::process::{Figures, Meter, Process};
use crate::{Load, exactly};

impl Load {
    pub(crate) fn sample_many(&self) -> anyhow::Result<()> {
        let (n, tokens) = (self.number("n", 1000)?, self.number("tokens", 64)?);
        let (_service, sampler) = self.sampler()?;
        let prompts = (0..n)
            .map(|i| self.prompt(i))
            .collect::<anyhow::Result<Vec<_>>>()?;
        sampler.sample(&self.prompt(n)?, exactly(tokens))?;
        let meter = Meter::start();
        let submit = |prompt: &ModelInput| sampler.submit_sample(prompt, exactly(tokens));
        let pending = prompts
            .iter()
            .map(submit)
            .collect::<tinker::Result<Vec<_>>>()?;
        let results = tinker::join_all(pending);
        let figures = meter.stop();
        check_samples(results, 1, tokens)?;
        self.report(figures, n as f64, "samples", json!({}))
    }

    pub(crate) fn sample_groups(&self) -> anyhow::Result<()> {
        let (prompts, samples) = (self.number("prompts", 200)?, self.number("samples", 16)?);
        let tokens = self.number("tokens", 512)?;
        let (_service, sampler) = self.sampler()?;
        let options = SampleOptions::from(exactly(tokens)).with_num_samples(samples as u32);
        let inputs = (0..prompts)
            .map(|i| self.prompt(i))
            .collect::<anyhow::Result<Vec<_>>>()?;
        sampler.sample(&self.prompt(prompts)?, exactly(1))?;
        let meter = Meter::start();
        let submit = |prompt: &ModelInput| sampler.submit_sample(prompt, &options);
        let pending = inputs
            .iter()
            .map(submit)
            .collect::<tinker::Result<Vec<_>>>()?;
        let results = tinker::join_all(pending);
        let figures = meter.stop();
        check_samples(results, samples, tokens)?;
        self.report(figures, (prompts * samples) as f64, "samples", json!({}))
    }

    pub(crate) fn fwdbwd_big(&self) -> anyhow::Result<()> {
        let (datums, tokens) = (self.number("datums", 1024)?, self.number("tokens", 4096)?);
        let (_service, training) = self.trainer()?;
        let data = (0..datums)
            .map(|i| self.datum(i, tokens))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let small = [self.datum(0, 8)?];
        training
            .forward_backward(&small, LossFn::CrossEntropy)?
            .join()?;
        let meter = Meter::start();
        let output = training
            .forward_backward(&data, LossFn::CrossEntropy)?
            .join()?;
        let figures = meter.stop();
        check_logprobs(&output, &vec![tokens; datums])?;
        self.report(figures, (datums * tokens) as f64, "tokens", json!({}))
    }

    pub(crate) fn train_loop(&self) -> anyhow::Result<()> {
        let (steps, datums) = (self.number("steps", 200)?, self.number("datums", 32)?);
        let tokens = self.number("tokens", 512)?;
        let (_service, training) = self.trainer()?;
        let data = (0..datums)
            .map(|i| self.datum(i, tokens))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let small = [self.datum(0, 8)?];
        training.forward(&small, LossFn::CrossEntropy)?.join()?;
        let mut outputs = Vec::with_capacity(steps);
        let meter = Meter::start();
        for _ in 0..steps {
            let gradients = training.forward_backward(&data, LossFn::CrossEntropy)?;
            let update = training.optim_step(AdamParams::default())?;
            outputs.push(gradients.join()?);
            update.join()?;
        }
        let figures = meter.stop();
        for output in &outputs {
            check_logprobs(output, &vec![tokens; datums])?;
        }
        let more = json!({"ms_per_step": figures.wall * 1e3 / steps as f64});
        self.report(figures, steps as f64, "steps", more)
    }

    pub(crate) fn decode(&self) -> anyhow::Result<()> {
        let values = self.number("mb", 50)? * 1_000_000 / 8;
        let rounds = self.number("rounds", 5)?;
        let kind = self.keys.get("kind").map_or("sample", String::as_str);
        let body = match kind {
            "sample" => wire::encode_sample(&large_sample(values)),
            "fwdbwd" => wire::encode_output(&large_output(2 * values))?,
            other => bail!("kind={other}: must be sample or fwdbwd"),
        };
        let decode = |body: Vec<u8>| -> tinker::Result<()> {
            match kind {
                "sample" => drop(black_box(wire::decode_sample(body)?)),
                _ => drop(black_box(wire::decode_output(body)?)),
            }
            Ok(())
        };
        decode(body.clone())?;
        let bodies: Vec<_> = (0..rounds).map(|_| body.clone()).collect();
        let meter = Meter::start();
        for body in bodies {
            decode(body)?;
        }
        let mut figures = meter.stop();
        figures.wall /= rounds as f64;
        figures.cpu /= rounds as f64;
        self.report(
            figures,
            body.len() as f64 / 1e6,
            "MB",
            json!({"kind": kind}),
        )
    }

    pub(crate) fn first_sample(&self) -> anyhow::Result<()> {
        let base = Process::now();
        let (_service, sampler) = self.sampler()?;
        let result = sampler.sample(&self.prompt(0)?, exactly(1))?;
        let began = match std::env::var("BENCH_T0") {
            Ok(text) => UNIX_EPOCH + Duration::from_secs_f64(text.parse().context("BENCH_T0")?),
            Err(_) => self.began,
        };
        let wall = SystemTime::now().duration_since(began)?.as_secs_f64();
        let figures = Figures {
            wall,
            cpu: Process::now().cpu,
            base_rss: base.rss,
        };
        check_samples(vec![Ok(result)], 1, 1)?;
        self.report(figures, 1.0, "samples", json!({}))
    }

    pub(crate) fn idle(&self) -> anyhow::Result<()> {
        let seconds = self.number("seconds", 30)?;
        let (_service, sampler) = self.sampler()?;
        sampler.sample(&self.prompt(0)?, exactly(1))?;
        let meter = Meter::start();
        thread::sleep(Duration::from_secs(seconds as u64));
        self.report(meter.stop(), seconds as f64, "seconds", json!({}))
    }

    fn report(&self, figures: Figures, units: f64, unit: &str, more: Value) -> anyhow::Result<()> {
        let mut line = json!({
            "workload": self.workload,
            "wall_s": figures.wall,
            "cpu_s": figures.cpu,
            "peak_rss_mb": Process::now().peak_rss,
            "base_rss_mb": figures.base_rss,
            "units": units,
            "unit": unit,
            "per_s": units / figures.wall,
        });
        if let (Some(line), Some(more)) = (line.as_object_mut(), more.as_object()) {
            line.extend(more.clone());
        }
        println!("{line}");
        Ok(())
    }
}

fn check_samples(
    results: Vec<tinker::Result<SampleResponse>>,
    samples: usize,
    tokens: usize,
) -> anyhow::Result<()> {
    for (index, result) in results.into_iter().enumerate() {
        let result = result.with_context(|| format!("sample {index}"))?;
        let lengths: Vec<usize> = result.sequences.iter().map(|s| s.tokens.len()).collect();
        ensure!(
            lengths == vec![tokens; samples],
            "sample {index} has {lengths:?} tokens"
        );
    }
    Ok(())
}

pub(crate) fn check_logprobs(
    output: &ForwardBackwardOutput,
    lengths: &[usize],
) -> anyhow::Result<()> {
    let found: Vec<usize> = (0..output.loss_fn_outputs.len())
        .map(|index| output.logprobs(index).map_or(0, <[f32]>::len))
        .collect();
    ensure!(
        found == lengths,
        "logprobs of {found:?} tokens, expected {lengths:?}"
    );
    Ok(())
}

/// Two sequences of tokens and logprobs.
fn large_sample(values: usize) -> SampleResponse {
    let sequence = |_| {
        let tokens: Vec<i32> = (0..values as i32 / 2)
            .map(|index| index % 150_000)
            .collect();
        let mut sequence = SampledSequence::new(StopReason::Length, tokens);
        sequence.logprobs = Some(
            (0..values / 2)
                .map(|index| -(index as f32) * 1e-6)
                .collect(),
        );
        sequence
    };
    SampleResponse::new((0..2).map(sequence).collect())
}

/// Records of 4096 logprobs each.
fn large_output(values: usize) -> ForwardBackwardOutput {
    let record = |_| {
        let logprobs: Vec<f32> = (0..4096).map(|index| -(index as f32) * 1e-3).collect();
        LossOutput::from([("logprobs".to_owned(), TensorData::from(logprobs))])
    };
    let metrics = BTreeMap::from([("loss:sum".to_owned(), 1.0)]);
    let records = (0..values.div_ceil(4096)).map(record).collect();
    ForwardBackwardOutput::new("TorchLossReturn", records, metrics)
}
