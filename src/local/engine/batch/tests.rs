//! What a crowd must not change, and what it must share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::local::engine::builtin;
use crate::local::engine::config::Config;
use crate::local::engine::lora::LoraSpec;
use crate::local::engine::loss::Loss;
use crate::local::engine::mapping::Mapping;
use crate::local::engine::matrix::{Matrix, Order};
use crate::local::engine::quant::Dtype;
use crate::local::engine::rng::Rng;
use crate::local::engine::sample::PromptTargets;
use crate::local::engine::train::{Datum, LossInputs, forward};

/// Samples one request and nothing else; texts are bytes.
pub(crate) fn sample(
    base: &Base,
    adapter: Option<&Arc<Adapter>>,
    request: &SampleRequest,
) -> Result<SampleOutput> {
    request.check(base.config())?;
    Ok(sample_all(base, adapter, std::slice::from_ref(request)).remove(0))
}

/// Samples some requests side by side.
fn sample_all(
    base: &Base,
    adapter: Option<&Arc<Adapter>>,
    requests: &[SampleRequest],
) -> Vec<SampleOutput> {
    let ears: Vec<Ear> = requests.iter().map(|_| Ear::default()).collect();
    let mut batch = Batch::new(base, Batch::MEMORY);
    for (request, ear) in requests.iter().zip(&ears) {
        batch
            .add(adapter.cloned(), request.clone(), Box::new(ear))
            .unwrap();
    }
    base.run(|| {
        while !batch.is_idle() {
            batch.round();
        }
    });
    ears.iter().map(Ear::output).collect()
}

/// Remembers what it hears.
#[derive(Debug, Default)]
struct Ear {
    heard: Mutex<Vec<u32>>,
    output: Mutex<Option<SampleOutput>>,
    cancelled: AtomicBool,
}

impl Ear {
    fn heard(&self) -> usize {
        self.heard.lock().unwrap().len()
    }

    fn is_finished(&self) -> bool {
        self.output.lock().unwrap().is_some()
    }

    #[track_caller]
    fn output(&self) -> SampleOutput {
        self.output.lock().unwrap().take().unwrap()
    }
}

impl<T: std::ops::Deref<Target = Ear> + Send + Sync> Listener for T {
    fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        builtin::decode(tokens)
    }

    fn token(&self, _: usize, so_far: &SampledSequence) {
        let token = *so_far.tokens.last().unwrap();
        self.heard.lock().unwrap().push(token);
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn finish(&self, _: &SampleRequest, output: SampleOutput) {
        let before = self.output.lock().unwrap().replace(output);
        assert!(before.is_none(), "finished twice");
    }
}

fn prompt(len: usize, seed: u64) -> Vec<u32> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.below(256) as u32).collect()
}

/// An adapter that changes what the model says.
fn adapter(base: &Base, seed: u64) -> Arc<Adapter> {
    let mut adapter = Adapter::new(LoraSpec::new(4, seed), base.config()).unwrap();
    let mut rng = Rng::new(seed);
    for value in adapter.params_mut() {
        *value += 0.02 * rng.normal();
    }
    Arc::new(adapter)
}

/// Nothing runs, and nothing holds pages but prompts that may come again.
#[track_caller]
fn check_free(batch: &mut Batch<'_>) {
    assert!(batch.is_idle());
    assert_eq!(batch.places(), 0);
    batch.prefixes.clear();
    assert_eq!(batch.pool.used(), 0, "everything is free again");
}

/// Requests of every kind, with prompts of every length.
fn requests(count: u64) -> Vec<SampleRequest> {
    let request = |index: u64| {
        let length = [1, 3, 17, 130, 300][index as usize % 5];
        let mut request = SampleRequest::new(prompt(length, index), 5 + index as usize);
        request.seed = Some(100 + index);
        request.num_samples = 1 + index as usize % 4;
        request.temperature = [1.0, 0.7, 0.0][index as usize % 3];
        request.top_k = (index % 4 == 1).then_some(20);
        request.top_p = if index % 5 == 2 { 0.9 } else { 1.0 };
        request.topk_sample_logprobs = index as usize % 3;
        if length > 3 {
            request.prompt_logprobs = true;
            request.topk_prompt_logprobs = 2;
            request.prompt_logprobs_last_n = index.is_multiple_of(2).then_some(2);
            request.prompt_alt_tokens = index as usize % 2;
            request.target_prompt_logprobs = Some(PromptTargets {
                tokens: vec![7; length - 1],
                width: 1,
            });
        }
        request.stop.strings = vec!["e".into(), "zq".into()];
        request
    };
    (0..count).map(request).collect()
}

#[test]
fn a_request_gets_the_same_in_a_crowd_as_alone() {
    check_crowd(|threads| Base::builtin(threads).unwrap(), &requests(24));
}

/// The same for a model whose products are spread over threads, and whose prompts are read together.
#[test]
fn a_request_to_a_large_model_gets_the_same_in_a_crowd_as_alone() {
    let mut requests = requests(6);
    // Longer than what is read at once, and one that begins alike.
    requests.push(SampleRequest::new(prompt(700, 9), 2));
    requests.push(SampleRequest::new(prompt(700, 9)[..400].to_vec(), 2));
    for request in &mut requests {
        request.seed = Some(7);
    }
    check_crowd(large, &requests);
    check_crowd(
        |threads| large(threads).sampling_quantised(),
        &requests[..4],
    );
    check_crowd(
        |threads| Base::new(large_weights(), threads).unwrap(),
        &requests[..4],
    );
}

/// A model just large enough to be run as large ones are, kept as in a file.
fn large(threads: usize) -> Base {
    let mut weights = large_weights();
    let layers = weights.layers.iter_mut();
    let matrices = layers.flat_map(|layer| &mut layer.projections);
    for matrix in matrices.chain([&mut weights.embed]) {
        let upper = |x: f32| [(x.to_bits() >> 16) as u8, (x.to_bits() >> 24) as u8];
        let bytes = matrix.to_f32().into_iter().flat_map(upper).collect();
        let file = Mapping::memory(bytes);
        let section = file.section(0..file.bytes().len());
        *matrix = Matrix::mapped(
            matrix.rows(),
            matrix.cols(),
            section,
            Dtype::Bf16,
            Order::Plain,
        );
    }
    Base::new(weights, threads).unwrap()
}

/// The same in `f32`.
fn large_weights() -> Weights {
    let config = Config {
        vocab: 32768,
        width: 256,
        ..Config::tiny()
    };
    let weights = Weights::random(config, 3);
    assert!(weights.len() > Merged::LIMIT);
    weights
}

/// Q8_0 is near the weights it is made of; training does not notice it.
#[test]
fn quantised_samples_are_near_and_training_is_the_same() {
    let (plain, quantised) = (large(2), large(2).sampling_quantised());
    assert!(quantised.bytes() > plain.bytes() && quantised.bytes() < 2 * plain.bytes());
    let mut request = SampleRequest::new(prompt(40, 1), 1);
    request.prompt_logprobs = true;
    let score = |base: &Base| -> Vec<f32> {
        let output = sample(base, None, &request).unwrap();
        output
            .prompt_logprobs
            .unwrap()
            .into_iter()
            .flatten()
            .collect()
    };
    let (exact, near) = (score(&plain), score(&quantised));
    let pairs = exact.iter().zip(&near);
    let furthest = pairs.fold(0f32, |most, (exact, near)| most.max((exact - near).abs()));
    assert!(furthest > 0.0 && furthest < 0.05, "{furthest}");

    let tokens = prompt(40, 1);
    let datum = Datum {
        targets: tokens[1..].to_vec(),
        tokens: tokens[..39].to_vec(),
        width: 1,
        inputs: LossInputs {
            weights: vec![1.0; 39],
            ..LossInputs::default()
        },
    };
    let loss = |base: &Base| {
        forward(
            base,
            None,
            std::slice::from_ref(&datum),
            &Loss::CrossEntropy,
        )
    };
    let (one, other) = (loss(&plain).unwrap(), loss(&quantised).unwrap());
    assert_eq!(one.data[0].logprobs, other.data[0].logprobs);
    // And a sampler of the weights as they are scores as training does.
    for (trained, sampled) in one.data[0].logprobs.iter().zip(&exact) {
        assert!((trained - sampled).abs() < 1e-3, "{trained} {sampled}");
    }
}

fn check_crowd(make: impl Fn(usize) -> Base, requests: &[SampleRequest]) {
    let base = make(2);
    let adapters = [None, Some(adapter(&base, 1)), Some(adapter(&base, 2))];
    let which = |index: usize| adapters[index % 3].as_ref();
    let alone: Vec<SampleOutput> = requests
        .iter()
        .enumerate()
        .map(|(index, request)| sample(&base, which(index), request).unwrap())
        .collect();
    for threads in [1, 3] {
        let base = make(threads);
        let ears: Vec<Ear> = requests.iter().map(|_| Ear::default()).collect();
        let mut batch = Batch::new(&base, Batch::MEMORY);
        base.run(|| {
            // They join one by one, some while others are at work.
            for (index, request) in requests.iter().enumerate() {
                let ear = Box::new(&ears[index]);
                batch
                    .add(which(index).cloned(), request.clone(), ear)
                    .unwrap();
                for _ in 0..index % 3 {
                    batch.round();
                }
            }
            while !batch.is_idle() {
                batch.round();
            }
        });
        check_free(&mut batch);
        for (index, (ear, alone)) in ears.iter().zip(&alone).enumerate() {
            let what = format!("request {index} on {threads} threads");
            check_same(ear.output(), alone, &what);
        }
    }
}

#[test]
fn a_long_prompt_is_read_while_others_go_on() {
    let base = Base::builtin(1).unwrap();
    let (quick, long) = (Ear::default(), Ear::default());
    let mut batch = Batch::new(&base, Batch::MEMORY);
    batch
        .add(
            None,
            SampleRequest::new(prompt(2, 1), 100),
            Box::new(&quick),
        )
        .unwrap();
    base.run(|| {
        batch.round();
        batch.round();
    });
    let before = quick.heard();
    let request = SampleRequest::new(prompt(1000, 2), 2);
    batch.add(None, request, Box::new(&long)).unwrap();
    let mut rounds = 0;
    while long.heard() == 0 {
        base.run(|| batch.round());
        rounds += 1;
        assert_eq!(quick.heard(), before + rounds, "one token every round");
    }
    assert_eq!(rounds, 1000usize.div_ceil(PIECE) + 1);
}

#[test]
fn a_cancelled_request_makes_room_and_gives_what_it_has() {
    let base = Base::builtin(1).unwrap();
    let (greedy, reading, waiting, next) = (
        Ear::default(),
        Ear::default(),
        Ear::default(),
        Ear::default(),
    );
    let mut batch = Batch::new(&base, Batch::MEMORY);
    let mut many = SampleRequest::new(prompt(3, 1), 500);
    many.num_samples = 2 * SEQUENCES;
    many.stop.tokens.clear();
    batch.add(None, many, Box::new(&greedy)).unwrap();
    base.run(|| (0..4).for_each(|_| batch.round()));
    assert_eq!(batch.places(), SEQUENCES);
    for ear in [&reading, &waiting] {
        let request = SampleRequest::new(prompt(600, 2), 500);
        batch.add(None, request, Box::new(ear)).unwrap();
    }
    batch
        .add(None, SampleRequest::new(prompt(3, 3), 3), Box::new(&next))
        .unwrap();
    base.run(|| batch.round());
    assert!(!next.is_finished());
    waiting.cancelled.store(true, Ordering::Relaxed);
    greedy.cancelled.store(true, Ordering::Relaxed);
    base.run(|| (0..2).for_each(|_| batch.round()));
    let got = greedy.output();
    assert!(got.sequences.iter().any(|one| one.tokens.len() > 1));
    reading.cancelled.store(true, Ordering::Relaxed);
    base.run(|| (0..4).for_each(|_| batch.round()));
    assert!(reading.is_finished() && waiting.is_finished());
    assert_eq!(next.output().sequences[0].tokens.len(), 3);
    assert!(batch.is_idle());
    check_free(&mut batch);
}

#[test]
fn a_large_request_leaves_room_for_small_ones() {
    let base = Base::builtin(1).unwrap();
    let (large, small) = (Ear::default(), Ear::default());
    let mut batch = Batch::new(&base, Batch::MEMORY);
    let mut request = SampleRequest::new(prompt(3, 1), 40);
    request.num_samples = 3 * SEQUENCES;
    batch.add(None, request, Box::new(&large)).unwrap();
    let request = SampleRequest::new(prompt(3, 2), 10);
    batch.add(None, request, Box::new(&small)).unwrap();
    while !small.is_finished() {
        base.run(|| batch.round());
    }
    assert!(!large.is_finished());
    large.cancelled.store(true, Ordering::Relaxed);
    base.run(|| (0..2).for_each(|_| batch.round()));
    assert!(batch.is_idle());
}

/// The same answer, whoever read the prompt.
#[track_caller]
fn check_same(ours: SampleOutput, expected: &SampleOutput, what: &str) {
    let ours = SampleOutput {
        cached: expected.cached,
        ..ours
    };
    assert!(ours == *expected, "{what}");
}

/// A small pool: a few hundred positions, in either precision.
fn small<'a>(base: &Base, precision: Precision, memory: usize) -> Batch<'a> {
    let mut batch = Batch::new(base, 0);
    batch.pool = Pool::new(base.weights(), precision, memory);
    batch
}

/// Runs requests side by side until all are answered; true if some had to rest.
fn run(batch: &mut Batch<'_>, base: &Base) -> bool {
    let mut rested = false;
    while !batch.is_idle() {
        base.run(|| batch.round());
        let began = |one: &Pending<'_>| !one.samples[0].sequence.tokens.is_empty();
        rested |= batch.waiting.iter().any(began);
    }
    rested
}

#[test]
fn a_sample_that_had_to_rest_is_the_same_to_the_last_bit() {
    let base = Base::builtin(2).unwrap();
    let adapters = [None, Some(adapter(&base, 1))];
    let requests: Vec<SampleRequest> = (0..10u64)
        .map(|index| {
            // Most begin alike, two with a piece that others have too.
            let mut tokens = prompt(150, index % 3);
            tokens.truncate([150, 130, 20][index as usize % 3]);
            let mut request = SampleRequest::new(tokens, 60 + 9 * index as usize);
            request.seed = Some(index);
            request.num_samples = 1 + index as usize % 3;
            request.prompt_logprobs = index % 4 == 1;
            request.topk_sample_logprobs = index as usize % 2;
            request
        })
        .collect();
    for precision in [Precision::Single, Precision::Half] {
        let run_all = |memory: usize, threads: usize, together: bool| {
            let base = Base::builtin(threads).unwrap();
            let ears: Vec<Ear> = requests.iter().map(|_| Ear::default()).collect();
            let mut rested = false;
            let mut batch = small(&base, precision, memory);
            for (index, (request, ear)) in requests.iter().zip(&ears).enumerate() {
                let adapter = adapters[index % 2].clone();
                batch.add(adapter, request.clone(), Box::new(ear)).unwrap();
                if !together {
                    rested |= run(&mut batch, &base);
                    batch.prefixes.clear();
                }
            }
            rested |= run(&mut batch, &base);
            check_free(&mut batch);
            let outputs: Vec<SampleOutput> = ears.iter().map(Ear::output).collect();
            (rested, outputs)
        };
        let (rested, alone) = run_all(1 << 30, 1, false);
        assert!(!rested);
        let (rested, crowd) = run_all(1 << 30, 2, true);
        assert!(!rested);
        for threads in [1, 3] {
            let (rested, short) = run_all(0, threads, true);
            assert!(rested, "there are too few pages for all");
            for (index, (short, alone)) in short.into_iter().zip(&alone).enumerate() {
                check_same(short, alone, &format!("request {index}, {precision:?}"));
            }
        }
        for (index, (crowd, alone)) in crowd.into_iter().zip(&alone).enumerate() {
            check_same(crowd, alone, &format!("request {index}, {precision:?}"));
        }
    }
}

#[test]
fn a_prompt_is_read_once_for_all_who_share_it() {
    let base = Base::builtin(2).unwrap();
    let mut batch = Batch::new(&base, Batch::MEMORY);
    let adapters = [adapter(&base, 1), adapter(&base, 2)];
    let ask =
        |batch: &mut Batch<'_>, adapter: Option<&Arc<Adapter>>, tokens: &[u32], count: u64| {
            let ears: Vec<Arc<Ear>> = (0..count).map(|_| Arc::default()).collect();
            let request = |seed: u64| {
                let mut request = SampleRequest::new(tokens.to_vec(), 5);
                request.seed = Some(seed);
                request
            };
            for (seed, ear) in (0..).zip(&ears) {
                let (request, ear) = (request(seed), Box::new(ear.clone()));
                batch.add(adapter.cloned(), request, ear).unwrap();
            }
            run(batch, &base);
            (0..count)
                .zip(&ears)
                .map(|(seed, ear)| {
                    let (ours, alone) = (
                        ear.output(),
                        sample(&base, adapter, &request(seed)).unwrap(),
                    );
                    let cached = ours.cached;
                    check_same(ours, &alone, "found or read");
                    cached
                })
                .collect::<Vec<usize>>()
        };
    let tokens = prompt(300, 1);
    let mut sixteen = vec![300; 16];
    sixteen[0] = 0;
    assert_eq!(ask(&mut batch, None, &tokens, 16), sixteen, "read once");
    assert_eq!(ask(&mut batch, None, &tokens, 2), [300, 300], "later too");
    // Only whole pieces of another prompt are the same to the last bit.
    assert_eq!(ask(&mut batch, None, &tokens[..290], 1), [256]);
    assert_eq!(ask(&mut batch, None, &tokens[..256], 1), [256]);
    assert_eq!(ask(&mut batch, None, &tokens[1..], 1), [0]);
    // Other weights read for themselves.
    assert_eq!(ask(&mut batch, Some(&adapters[0]), &tokens, 2), [0, 300]);
    assert_eq!(ask(&mut batch, Some(&adapters[1]), &tokens, 1), [0]);
    let before = batch.pool.used();
    drop(adapters);
    batch.prefixes.evict(0);
    assert!(
        batch.pool.used() < before,
        "old weights' prompts are forgotten"
    );
    check_free(&mut batch);
}

#[test]
fn a_prompt_whose_tokens_are_scored_is_read_for_that() {
    let base = Base::builtin(1).unwrap();
    let mut request = SampleRequest::new(prompt(300, 4), 3);
    request.seed = Some(1);
    request.prompt_logprobs = true;
    let mut last = request.clone();
    last.prompt_logprobs_last_n = Some(20);
    let requests = [request.clone(), last, request];
    let together = sample_all(&base, None, &requests);
    let cached: Vec<usize> = together.iter().map(|one| one.cached).collect();
    assert_eq!(cached, [0, 256, 0]);
    for (together, request) in together.into_iter().zip(&requests) {
        check_same(together, &sample(&base, None, request).unwrap(), "scored");
    }
}

#[test]
fn beside_one_that_fills_all_memory_short_ones_are_answered() {
    let base = Base::builtin(1).unwrap();
    let ears: Vec<Ear> = (0..4).map(|_| Ear::default()).collect();
    let mut batch = small(&base, Precision::Half, 0);
    let room = batch.pool.limit() * PAGE;
    for ear in &ears[..2] {
        let endless = SampleRequest::new(prompt(10, 1), 3 * room);
        batch.add(None, endless, Box::new(ear)).unwrap();
    }
    while ears[0].heard() < 2 * room {
        base.run(|| batch.round());
        let most = ears[0].heard().div_ceil(PAGE) + 1 + batch.pool.limit() / 4;
        assert!(batch.pool.used() <= most.max(batch.pool.limit()));
    }
    for ear in &ears[2..] {
        let short = SampleRequest::new(prompt(20, 2), 4);
        batch.add(None, short, Box::new(ear)).unwrap();
        while !ear.is_finished() {
            base.run(|| batch.round());
        }
    }
    assert!(!ears[0].is_finished() && !ears[1].is_finished());
    run(&mut batch, &base);
    for ear in &ears[..2] {
        assert_eq!(ear.heard(), 3 * room, "no token is told twice");
    }
    check_free(&mut batch);
}
