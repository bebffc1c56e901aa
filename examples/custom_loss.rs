//! A loss of one's own, as a formula: `cargo run --release --example custom_loss [STEPS]`.
//!
//! Plain cross-entropy makes one answer ever likelier. Here a second term holds the model's
//! log-probability near −0.5: it learns the answer, and stops short of certainty.

#![allow(clippy::print_stdout, reason = "an example prints")]

use anyhow::Context;
use tinker::config::Config;
use tinker::loss::{input, logprobs};
use tinker::{AdamParams, Datum, LoraConfig, LossFn, ServiceClient};

fn main() -> anyhow::Result<()> {
    let steps: usize = std::env::args().nth(1).map_or(Ok(60), |n| n.parse())?;
    let service = match Config::from_env()?.has_credential() {
        true => ServiceClient::from_env()?,
        false => ServiceClient::local()?,
    };
    let models = service.capabilities()?;
    let model = models.model_names().next().context("no model")?;
    let training = service.create_lora_training_client(model, LoraConfig::rank(8).with_seed(1))?;
    let tokenizer = training.tokenizer()?;
    let question = tokenizer.encode("The sky is")?;
    let answer = tokenizer.encode_plain(" green")?;
    let data = [Datum::supervised(&question, &answer)];

    // Squared distance from -0.5, on the tokens that count. The same formula can be run here or,
    // where the service offers that, on the service: the call is the same.
    let distance = logprobs() + 0.5;
    let loss = (distance.clone() * distance * input("weights")).sum();
    for step in 0..steps {
        let adam = AdamParams::learning_rate(2e-3);
        let gradients = training.forward_backward_custom(&data, loss.clone())?;
        let update = training.optim_step(adam)?;
        let value = gradients.join()?.loss().context("no loss")?;
        update.join()?;
        if step % 20 == 0 || step + 1 == steps {
            println!("step {step:3}: loss {value:.4}");
        }
    }
    let scored = training.forward(&data, LossFn::CrossEntropy)?.join()?;
    let scored = scored.logprobs(0).context("no log probabilities")?;
    let answers = &scored[question.len() - 1..];
    let mean = answers.iter().sum::<f32>() / answers.len() as f32;
    println!("mean log probability of the answer: {mean:.3}");
    Ok(())
}
