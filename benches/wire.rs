//! Encoding a large training request and decoding large results, next to plain copies of the
//! same size in the same run.
//!
//! ```text
//! cargo bench --bench wire
//! ```
//!
//! Copying into memory that was just handed out costs several times the copy itself (the system
//! clears each page on first touch), so there are two yardsticks. "Warm" reuses its target, as
//! requests do: they are encoded chunk by chunk into recycled buffers, which are small enough to
//! stay in the cache, so encoding may even beat its yardstick. "Fresh" allocates it, as
//! results must: they own their vectors.

#![allow(clippy::print_stdout, reason = "the figures are this program's output")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use tinker::types::{LossOutput, SampledSequence, StopReason, chunk_ranges};
use tinker::unversioned::{ClientConfig, bench as wire};
use tinker::{Datum, ForwardBackwardOutput, ModelInput, Result};
use tinker::{SampleResponse, TensorData};

const DATUMS: usize = 1024;
const TOKENS: usize = 4096;
const ROUNDS: usize = 15;

fn main() -> Result<()> {
    // Cargo passes `--bench` to measure; without it there is only to show that this builds.
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("run with `cargo bench --bench wire`");
        return Ok(());
    }
    bench_encode()?;
    bench_decode()
}

fn bench_encode() -> Result<()> {
    let data: Vec<Datum> = (0..DATUMS).map(example).collect();
    let config = ClientConfig::default();
    let chunks = chunk_ranges(
        &data,
        config.fwdbwd_max_chunk_len,
        config.fwdbwd_max_chunk_bytes_count,
    );
    let mut whole = Vec::new();
    wire::encode_request(&data, &mut whole)?;
    let mut warm = whole.clone();
    let mut recycled = Vec::new();

    let [warm_copy, chunked, fresh_copy, fresh] = measure([
        &mut || {
            warm.copy_from_slice(&whole);
            black_box(&warm);
            Ok(Duration::ZERO)
        },
        &mut || {
            for chunk in &chunks {
                wire::encode_request(&data[chunk.range.clone()], &mut recycled)?;
                black_box(&recycled);
            }
            Ok(Duration::ZERO)
        },
        &mut || Ok(released(whole.clone())),
        &mut || {
            let mut out = Vec::new();
            wire::encode_request(&data, &mut out)?;
            Ok(released(out))
        },
    ])?;

    let bytes = whole.len();
    title("forward_backward request", bytes);
    row("copy into warm memory", warm_copy, bytes, None);
    let name = format!("encode, {} chunks into one buffer", chunks.len());
    let aim = Some((warm_copy, "a warm copy, aim at most 2"));
    row(&name, chunked, bytes, aim);
    row("copy into fresh memory", fresh_copy, bytes, None);
    let aim = Some((fresh_copy, "a fresh copy, aim at most 1.3"));
    row("encode into fresh memory", fresh, bytes, aim);
    Ok(())
}

fn bench_decode() -> Result<()> {
    let outputs = (0..DATUMS).map(|_| record(6400)).collect();
    let output = ForwardBackwardOutput::new("TorchLossReturn", outputs, [].into());
    let output = wire::encode_output(&output)?;
    let sample = SampleResponse::new((0..64).map(|_| sequence(100_000)).collect());
    let sample = wire::encode_sample(&sample);

    decode("sample result (Python: 70 ms)", &sample, |body| {
        Ok(released(wire::decode_sample(body)?))
    })?;
    decode(
        "forward_backward result (Python: 140 ms)",
        &output,
        |body| Ok(released(wire::decode_output(body)?)),
    )
}

fn decode(
    name: &str,
    body: &[u8],
    mut decode: impl FnMut(Vec<u8>) -> Result<Duration>,
) -> Result<()> {
    let [fresh_copy, decoded] = measure([&mut || Ok(released(body.to_vec())), &mut || {
        // Decoding consumes the body it was given; making that body is not part of it.
        let start = Instant::now();
        let body = body.to_vec();
        let copying = start.elapsed();
        Ok(copying + decode(body)?)
    }])?;
    title(name, body.len());
    row("copy into fresh memory", fresh_copy, body.len(), None);
    let against = Some((fresh_copy, "a fresh copy"));
    row("decode, releasing the body", decoded, body.len(), against);
    Ok(())
}

/// Drops a result and says how long that took, so that it can be left out.
fn released<T>(value: T) -> Duration {
    black_box(&value);
    let start = Instant::now();
    drop(value);
    start.elapsed()
}

/// The median time of each subject, taken in turns so that disturbances strike them alike. A
/// subject says how much of its time does not count.
fn measure<const N: usize>(
    mut subjects: [&mut dyn FnMut() -> Result<Duration>; N],
) -> Result<[Duration; N]> {
    let mut times = [const { Vec::new() }; N];
    for _ in 0..ROUNDS {
        for (subject, times) in subjects.iter_mut().zip(&mut times) {
            let start = Instant::now();
            let excluded = subject()?;
            times.push(start.elapsed() - excluded);
        }
    }
    Ok(times.map(|mut times| {
        times.sort();
        times[ROUNDS / 2]
    }))
}

fn title(name: &str, bytes: usize) {
    println!("{name}: {:.1} MB", bytes as f64 / 1e6);
}

fn row(name: &str, time: Duration, bytes: usize, against: Option<(Duration, &str)>) {
    let seconds = time.as_secs_f64();
    let speed = bytes as f64 / seconds / 1e9;
    print!("  {name:<34} {:>6.1} ms {speed:>6.2} GB/s", seconds * 1e3);
    match against {
        Some((other, what)) => println!("  {:.2} times {what}", seconds / other.as_secs_f64()),
        None => println!(),
    }
}

fn example(seed: usize) -> Datum {
    let tokens: Vec<i32> = (0..TOKENS as i32)
        .map(|index| index * 7 + seed as i32)
        .collect();
    let targets: Vec<i64> = tokens.iter().map(|&token| i64::from(token) + 1).collect();
    Datum::new(ModelInput::from_ints(tokens))
        .with_target_tokens(targets)
        .with_weights(vec![0.5f32; TOKENS])
}

fn record(length: usize) -> LossOutput {
    ["logprobs", "elementwise_loss"]
        .map(|name| (name.to_owned(), TensorData::from(vec![-0.5f32; length])))
        .into()
}

fn sequence(length: usize) -> SampledSequence {
    let mut sequence = SampledSequence::new(StopReason::Length, vec![7; length]);
    sequence.logprobs = Some(vec![-0.5; length]);
    sequence
}
