//! Supervised: Pig Latin, on words it has never seen.

use std::time::Instant;

use crate::drive::sample;
use crate::local::engine::inside::Rng;
use crate::local::engine::{
    AdamParams, Base, Datum, LoraSpec, Loss, SampleRequest, Trainer,
    builtin::{self, BOS, EOS},
};
use crate::tasks;

/// How many steps the learning rate takes to reach 0.
const STEPS: usize = 300;

pub(crate) fn learns_pig_latin_on_words_it_has_never_seen(long: bool) {
    let base = Base::builtin(2).unwrap();
    let mut words = tasks::words();
    let mut rng = Rng::new(4);
    for index in (1..words.len()).rev() {
        words.swap(index, rng.below(index + 1));
    }
    let (held_out, known) = words.split_at(100);
    let accuracy = |trainer: &Trainer| {
        let adapter = trainer.adapter();
        let hits = held_out.iter().filter(|word| {
            let (prompt, answer) = question(word);
            let mut request = SampleRequest::new(prompt, answer.len());
            request.temperature = 0.0;
            let output = sample(&base, Some(&adapter), &request).unwrap();
            output.sequences[0].tokens == answer
        });
        hits.count()
    };
    let mut trainer = Trainer::new(&base, LoraSpec::new(32, 1)).unwrap();
    assert_eq!(accuracy(&trainer), 0, "it was never shown any");
    let started = Instant::now();
    let mut losses = Vec::new();
    for step in 0..if long { STEPS } else { 12 } {
        let batch: Vec<Datum> = (0..64)
            .map(|_| {
                let (prompt, answer) = question(known[rng.below(known.len())]);
                tasks::datum(&prompt, &answer, 0.0)
            })
            .collect();
        let count: f32 = batch.iter().flat_map(|datum| &datum.inputs.weights).sum();
        let output = trainer.forward_backward(&batch, &Loss::CrossEntropy);
        losses.push(output.unwrap().loss / f64::from(count));
        let adam = AdamParams {
            learning_rate: 5e-3 * (1.0 - step as f64 / STEPS as f64),
            ..AdamParams::default()
        };
        trainer.optim_step(&adam).unwrap();
    }
    let seconds = started.elapsed().as_secs_f32();
    if long {
        let after = accuracy(&trainer);
        println!("Pig Latin: 0 % -> {after} % of 100 held-out words in {seconds:.1} s");
        assert!(after >= 95);
    } else {
        assert!(losses[11] < losses[0] / 2.0, "{losses:?}");
    }
}

pub(crate) fn question(word: &str) -> (Vec<u32>, Vec<u32>) {
    let mut prompt = vec![BOS];
    prompt.extend(builtin::encode(&format!("English: {word}\nPig Latin: ")));
    let mut answer = builtin::encode(&pig_latin(word));
    answer.push(EOS);
    (prompt, answer)
}

/// Leading consonants move to the end and "ay" follows; after a leading vowel, "way" does.
fn pig_latin(word: &str) -> String {
    let start = word.find(|letter| "aeiou".contains(letter)).unwrap_or(0);
    match start {
        0 => format!("{word}way"),
        _ => format!("{}{}ay", &word[start..], &word[..start]),
    }
}
