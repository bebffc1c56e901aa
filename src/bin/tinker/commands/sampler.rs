//! What commands that sample share: which model, with which parameters, through which tokenizer.

use clap::Args;
use tinker::text::{ChatOptions, Message, Tokenizer};
use tinker::types::{CheckpointKind, SampleOptions, SamplingParams, TinkerPath};
use tinker::{Error, SamplingClient, ServiceClient};

use crate::context::Context;
use crate::failure::Failure;

/// How to sample.
#[derive(Debug, Clone, Args)]
pub(crate) struct Params {
    /// How many tokens to sample at most.
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub(crate) max_tokens: u32,
    /// 0 takes the likeliest token each time.
    #[arg(long, default_value_t = 1.0, value_name = "T")]
    pub(crate) temperature: f64,
    /// Only the likeliest tokens that make up this much.
    #[arg(long, value_name = "P")]
    pub(crate) top_p: Option<f64>,
    /// Only the likeliest so many tokens.
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<i64>,
    /// Makes the same samples again.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<i64>,
    /// Ends a sample; may be repeated.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

impl Params {
    pub(crate) fn to_params(&self) -> anyhow::Result<SamplingParams> {
        let mut params =
            SamplingParams::max_tokens(self.max_tokens).with_temperature(self.temperature);
        if let Some(top_p) = self.top_p {
            params = params.with_top_p(top_p);
        }
        if let Some(top_k) = self.top_k {
            params = params.with_top_k(top_k);
        }
        if let Some(seed) = self.seed {
            params = params.with_seed(seed);
        }
        if !self.stop.is_empty() {
            params = params.with_stop(self.stop.clone());
        }
        params.validate()?;
        Ok(params)
    }

    pub(crate) fn to_options(&self, samples: u32) -> anyhow::Result<SampleOptions> {
        Ok(SampleOptions::from(self.to_params()?).with_num_samples(samples))
    }
}

/// A model's sampler and its tokenizer.
pub(crate) struct Voice {
    pub(crate) sampler: SamplingClient,
    pub(crate) tokenizer: Tokenizer,
}

impl Voice {
    /// A sampler of a base model or of sampler weights.
    pub(crate) fn open(
        service: &ServiceClient,
        model: &str,
        tokenizer: Option<&str>,
    ) -> anyhow::Result<Self> {
        sampled_from(model)?;
        let sampler = service.create_sampling_client(model)?;
        let tokenizer = match tokenizer {
            Some(place) => open_tokenizer(place)?,
            None => sampler.tokenizer()?,
        };
        Ok(Self { sampler, tokenizer })
    }

    /// The tokens of a conversation that awaits an answer.
    pub(crate) fn encode_chat(&self, messages: &[Message]) -> anyhow::Result<Vec<i32>> {
        let ids = self
            .tokenizer
            .encode_chat(messages, &ChatOptions::prompt())?;
        Ok(ids)
    }

    /// The text of sampled tokens, without the token that ended them.
    pub(crate) fn decode(&self, tokens: &[i32]) -> anyhow::Result<String> {
        Ok(self.tokenizer.decode_plain(tokens)?)
    }
}

/// A service that bears long work.
pub(crate) fn connect(context: &Context) -> anyhow::Result<ServiceClient> {
    context.patient_service()
}

/// A tokenizer by its place on this machine or by a model's name.
pub(crate) fn open_tokenizer(place: &str) -> anyhow::Result<Tokenizer> {
    let path = std::path::Path::new(place);
    match path.exists() {
        true => Ok(Tokenizer::open(place)?),
        false if path.is_absolute() || place.starts_with('.') => {
            Err(Failure::new(format!("there is no {place}"))
                .advise("Name a tokenizer's folder or file, or a model such as Qwen/Qwen3-8B.")
                .into())
        }
        false => Tokenizer::for_model(place).map_err(from_hub),
    }
}

/// A tokenizer of this machine or, where the service knows the model, the one it names.
pub(crate) fn tokenizer_of(context: &Context, model: &str) -> anyhow::Result<Tokenizer> {
    let here = open_tokenizer(model);
    match here {
        Err(error) if context.config()?.has_credential() => {
            let sampler = context
                .service()
                .and_then(|service| Ok(service.create_sampling_client(model)?));
            match sampler.and_then(|sampler| Ok(sampler.tokenizer()?)) {
                Ok(tokenizer) => Ok(tokenizer),
                Err(_) => Err(error),
            }
        }
        other => other,
    }
}

/// What came of asking the hub, with advice on that rather than on the service.
fn from_hub(error: Error) -> anyhow::Error {
    if matches!(error, Error::Invalid(_)) {
        return error.into();
    }
    let message = format!("{:#}", anyhow::Error::from(error));
    Failure::new(message)
        .advise(
            "Check the network and HF_ENDPOINT, or name a folder that has the tokenizer \
             (--tokenizer FOLDER).",
        )
        .into()
}

/// Explains what else a path may be, before the service refuses it.
fn sampled_from(model: &str) -> anyhow::Result<()> {
    if !model.starts_with(TinkerPath::PREFIX) {
        return Ok(());
    }
    // Some servers have paths of their own, which only they can judge.
    let Ok(path) = model.parse::<TinkerPath>() else {
        return Ok(());
    };
    let holds = match path.kind() {
        CheckpointKind::Sampler => return Ok(()),
        CheckpointKind::Training => {
            "a training state (weights and optimiser), to go on training from"
        }
        CheckpointKind::External => "weights for other programs, to download",
    };
    Err(
        Failure::new(format!("{model} is {holds}; it cannot be sampled from"))
            .advise(format!(
                "Sampler weights have the form tinker://{}/sampler_weights/NAME: \
             'tinker checkpoint list --run-id {}' shows them, save_weights_for_sampler makes them.",
                path.run_id(),
                path.run_id()
            ))
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sampler_weights_are_sampled_from() {
        assert!(sampled_from("Qwen/Qwen3-8B").is_ok());
        assert!(sampled_from("tinker://run/sampler_weights/a").is_ok());
        assert!(sampled_from("tinker://model/name").is_ok());
        let error = sampled_from("tinker://run/weights/a")
            .unwrap_err()
            .to_string();
        assert!(error.contains("training state"), "{error}");
        assert!(sampled_from("tinker://run/external_weights/a").is_err());
    }
}
