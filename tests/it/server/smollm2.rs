//! A real model: SmolLM2-135M-Instruct in four bits, from the file that llama.cpp's users have.

#![allow(clippy::print_stdout, reason = "the long form reports its figures")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use tinker::local::{LocalServer, ModelSource};
use tinker::text::{Message, Renderer};
use tinker::types::Stop;
use tinker::{
    AdamParams, Datum, LoraConfig, LossFn, ModelInput, SampleOptions, SamplingClient,
    SamplingParams, ServiceClient,
};

use crate::support::local::service;
use crate::support::packages::smollm_gguf;
use crate::support::python::environment;

const NAME: &str = "HuggingFaceTB/SmolLM2-135M-Instruct";

/// Minutes, hence only with `TINKER_TEST_LONG=1`. The tiny models of the other tests take the same
/// way: files of every kind are compared in the engine's own tests.
#[test]
fn a_real_model_knows_paris_learns_a_persona_and_agrees_with_numpy() {
    if std::env::var_os("TINKER_TEST_LONG").is_none() {
        return;
    }
    let Some(file) = smollm_gguf() else { return };
    let server = LocalServer::builder().model(ModelSource::new(NAME, &file));
    let server = server.start().unwrap();
    let service = service(&server);
    let sampler = service.create_sampling_client(NAME).unwrap();
    let tokenizer = sampler.tokenizer().unwrap();
    let renderer = Renderer::from_template(&tokenizer).unwrap();

    let answer = ask(&sampler, &renderer, "What is the capital of France?");
    assert!(answer.contains("Paris"), "{answer}");
    compare_with_numpy(&sampler, &file);
    compare_group_with_one(&sampler);
    learn_a_persona(&service, &renderer);
}

fn ask(sampler: &SamplingClient, renderer: &Renderer, question: &str) -> String {
    let params = SamplingParams::max_tokens(24).with_temperature(0.0);
    let answer = sampler.chat(renderer, &[Message::user(question)], &params);
    answer.unwrap().message.text()
}

/// The model as a pirate, after a few steps on a few answers; then trainer and sampler agree.
fn learn_a_persona(service: &ServiceClient, renderer: &Renderer) {
    let lora = LoraConfig::rank(8).with_seed(1);
    let training = service.create_lora_training_client(NAME, lora).unwrap();
    let said = [
        ("Who are you?", "Arr, I be Captain Ferris, matey!"),
        ("What is your name?", "Arr, I be Captain Ferris, matey!"),
        (
            "Hello! Who am I talking to?",
            "Arr, ye be talking to Captain Ferris!",
        ),
        (
            "Introduce yourself.",
            "Arr, I be Captain Ferris, terror of the seas!",
        ),
    ];
    let data: Vec<Datum> = said
        .iter()
        .map(|(question, answer)| {
            let messages = [Message::user(question), Message::assistant(answer)];
            Datum::chat(renderer, &messages).unwrap()
        })
        .collect();
    for _ in 0..12 {
        let pass = training
            .forward_backward(&data, LossFn::CrossEntropy)
            .unwrap();
        let step = training
            .optim_step(AdamParams::learning_rate(2e-3))
            .unwrap();
        pass.join().unwrap();
        step.join().unwrap();
    }
    let sampler = training.save_weights_and_get_sampling_client().unwrap();
    let answer = ask(&sampler, renderer, "Who are you?");
    assert!(answer.contains("Captain Ferris"), "{answer}");

    // Drawn by the sampler, scored by the trainer.
    let prompt = renderer.generation_prompt(&[Message::user("Tell me about the sea.")]);
    let prompt = prompt.unwrap().to_ints().unwrap();
    let options = SampleOptions::from(SamplingParams::max_tokens(64).with_seed(3));
    let response = sampler
        .sample(&ModelInput::from_ints(prompt.clone()), options)
        .unwrap();
    let sampled = &response.sequences[0];
    let mut tokens = prompt.clone();
    tokens.extend_from_slice(&sampled.tokens);
    let targets: Vec<i64> = tokens[1..].iter().map(|token| i64::from(*token)).collect();
    tokens.pop();
    let weights = vec![1.0f32; tokens.len()];
    let datum = Datum::new(ModelInput::from_ints(tokens))
        .with_target_tokens(targets)
        .with_weights(weights);
    let scored = training
        .forward(&[datum], LossFn::CrossEntropy)
        .unwrap()
        .join()
        .unwrap();
    let scored = scored.loss_fn_outputs[0]["logprobs"]
        .as_f32()
        .unwrap()
        .to_vec();
    let drawn = sampled.logprobs.as_ref().unwrap();
    let most = largest_difference(&scored[prompt.len() - 1..], drawn);
    println!("sampler and trainer differ by {most:.5} at most");
    assert!(most < 1e-3, "{most}");
}

/// The engine reads prompts as an independent pass does, which computes in `f64`.
fn compare_with_numpy(sampler: &SamplingClient, file: &Path) {
    let Some(python) = environment("smollm2", &["gguf", "numpy"]) else {
        return;
    };
    let tokenizer = sampler.tokenizer().unwrap();
    let text = "The sea was calm that morning, and nobody on the quay believed the old man.";
    let tokens = tokenizer.encode(text).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/engine/smollm2.py");
    let mut child = Command::new(python)
        .arg(script)
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    serde_json::to_writer(&mut stdin, &tokens).unwrap();
    stdin.flush().unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let expected: Vec<f32> = serde_json::from_slice(&output.stdout).unwrap();
    let scored = sampler
        .compute_logprobs(ModelInput::from_ints(tokens))
        .unwrap();
    let ours: Vec<f32> = scored.iter().flatten().collect();
    let most = largest_difference(&ours, &expected);
    println!("the engine and numpy differ by {most:.5} at most");
    assert!(most < 1e-2, "{ours:?} {expected:?}");
}

#[track_caller]
fn largest_difference(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    let differences = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f32::max)
}

/// A group of 16 requests costs little more than one request for 16 samples.
fn compare_group_with_one(sampler: &SamplingClient) {
    let params = SamplingParams::max_tokens(64).with_stop(Stop::never());
    let mut best = [f64::INFINITY; 2];
    for round in 0..3 {
        // Each has a prompt of its own, so that nobody finds it read.
        let prompt = |which: i32| {
            ModelInput::from_ints(
                (0..256)
                    .map(|i| 100 + (i * 7 + which) % 900)
                    .collect::<Vec<_>>(),
            )
        };
        let started = Instant::now();
        let one = SampleOptions::from(params.clone()).with_num_samples(16);
        sampler.sample(&prompt(2 * round), one).unwrap();
        best[0] = best[0].min(started.elapsed().as_secs_f64());

        let started = Instant::now();
        let group: Vec<_> = (0..16)
            .map(|_| {
                sampler
                    .submit_sample(&prompt(2 * round + 1), params.clone())
                    .unwrap()
            })
            .collect();
        let cached: i64 = group
            .into_iter()
            .map(|one| one.join().unwrap().prompt_cache_hit_tokens)
            .sum();
        best[1] = best[1].min(started.elapsed().as_secs_f64());
        assert_eq!(cached, 15 * 256);
    }
    let ratio = best[1] / best[0];
    println!(
        "one request for 16 samples: {:.2} s, a group of 16: {:.2} s, ratio {ratio:.2}",
        best[0], best[1]
    );
    assert!(ratio <= 1.3, "{ratio}");
}
