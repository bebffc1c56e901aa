//! What a crowd must not change, and what it must share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::local::engine::builtin;
use crate::local::engine::lora::LoraSpec;
use crate::local::engine::rng::Rng;
use crate::local::engine::sample::PromptTargets;

/// Samples one request and nothing else; texts are bytes.
pub(crate) fn sample(
    base: &Base,
    adapter: Option<&Arc<Adapter>>,
    request: &SampleRequest,
) -> Result<SampleOutput> {
    request.check(base)?;
    Ok(sample_all(base, adapter, std::slice::from_ref(request)).remove(0))
}

/// Samples some requests side by side.
pub(crate) fn sample_all(
    base: &Base,
    adapter: Option<&Arc<Adapter>>,
    requests: &[SampleRequest],
) -> Vec<SampleOutput> {
    let ears: Vec<Ear> = requests.iter().map(|_| Ear::default()).collect();
    let mut batch = Batch::new(base);
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

impl Listener for &Ear {
    fn decode(&self, tokens: &[u32]) -> Vec<u8> {
        builtin::decode(tokens)
    }

    fn token(&self, _: usize, token: u32) {
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

#[test]
fn a_request_gets_the_same_in_a_crowd_as_alone() {
    let base = Base::builtin(2).unwrap();
    let adapters = [None, Some(adapter(&base, 1)), Some(adapter(&base, 2))];
    let requests: Vec<SampleRequest> = (0..24u64)
        .map(|index| {
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
                request.prompt_logprobs_last_n = (index % 2 == 0).then_some(2);
                request.prompt_alt_tokens = index as usize % 2;
                request.target_prompt_logprobs = Some(PromptTargets {
                    tokens: vec![7; length - 1],
                    width: 1,
                });
            }
            request.stop.strings = vec!["e".into(), "zq".into()];
            request
        })
        .collect();
    let which = |index: usize| adapters[index % 3].as_ref();
    let alone: Vec<SampleOutput> = requests
        .iter()
        .enumerate()
        .map(|(index, request)| sample(&base, which(index), request).unwrap())
        .collect();
    for threads in [1, 3] {
        let base = Base::builtin(threads).unwrap();
        let ears: Vec<Ear> = requests.iter().map(|_| Ear::default()).collect();
        let mut batch = Batch::new(&base);
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
        assert_eq!(
            (batch.sequences, batch.rows),
            (0, 0),
            "everything is free again"
        );
        for (index, (ear, alone)) in ears.iter().zip(&alone).enumerate() {
            assert!(
                ear.output() == *alone,
                "request {index} on {threads} threads"
            );
        }
    }
}

#[test]
fn a_long_prompt_is_read_while_others_go_on() {
    let base = Base::builtin(1).unwrap();
    let (quick, long) = (Ear::default(), Ear::default());
    let mut batch = Batch::new(&base);
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
    let mut batch = Batch::new(&base);
    let mut many = SampleRequest::new(prompt(3, 1), 500);
    many.num_samples = 2 * SEQUENCES;
    many.stop.tokens.clear();
    batch.add(None, many, Box::new(&greedy)).unwrap();
    base.run(|| (0..4).for_each(|_| batch.round()));
    assert_eq!(batch.sequences, SEQUENCES);
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
    assert_eq!((batch.sequences, batch.rows), (0, 0));
}

#[test]
fn a_large_request_leaves_room_for_small_ones_and_memory_is_bounded() {
    let base = Base::builtin(1).unwrap();
    let (large, small) = (Ear::default(), Ear::default());
    let ears: Vec<Ear> = (0..5).map(|_| Ear::default()).collect();
    let mut batch = Batch::new(&base);
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

    // Room for two and a half of these; the one too large for all of it runs alone.
    batch.memory = 250 * Cache::bytes_per_row(base.config());
    for (index, ear) in ears.iter().enumerate() {
        let rows = if index == 3 { 400 } else { 90 };
        let mut request = SampleRequest::new(prompt(10, 9), rows);
        request.num_samples = 1 + index % 3;
        batch.add(None, request, Box::new(ear)).unwrap();
    }
    while !batch.is_idle() {
        base.run(|| batch.round());
        assert!(batch.rows <= 250 || batch.sequences == 1, "{batch:?}");
    }
    for (index, ear) in ears.iter().enumerate() {
        let expected = if index == 3 { 400 } else { 90 };
        let output = ear.output();
        let mut samples = output.sequences.iter();
        assert!(samples.all(|one| one.tokens.len() == expected));
    }
    assert_eq!((batch.sequences, batch.rows), (0, 0));
}
