//! The service's values as the engine's, and back.

use crate::error::{Error, Result};
use crate::local::engine;
use crate::types::{
    AdamParams, Datum, Dtype, ForwardBackwardOutput, Loss, LossConfigValue, LossOutput, ModelInput,
    OptimizerParams, PromptAltTokens, SampleResponse, SampledSequence, SamplingParams, Stop,
    StopReason, TensorData, TensorValues, TopkLogprobs,
};
use crate::wire::request::AsampleRequest;

/// The loss a request names.
pub(in crate::local) fn loss(loss: &Loss) -> Result<engine::Loss> {
    let mut numbers = Vec::new();
    for (name, value) in &loss.config {
        match value {
            LossConfigValue::Number(number) => numbers.push((name.as_str(), *number)),
            LossConfigValue::Text(_) => {
                let field = format!("loss_fn_config.{name}");
                return Err(Error::invalid(field, "must be a number"));
            }
        }
    }
    engine::Loss::parse(loss.function.as_str(), numbers)
}

/// The numbers all tensors of one request may have, written out: a sparse one can claim any size.
const CELLS: usize = 1 << 26;

/// Refuses data that would take more memory than any batch needs.
pub(in crate::local) fn check_size(data: &[Datum]) -> Result<()> {
    let mut left = CELLS;
    for (index, datum) in data.iter().enumerate() {
        for (name, tensor) in datum.loss_fn_inputs() {
            left = take_cells(left, tensor)
                .map_err(|error| error.within(&format!("data[{index}].loss_fn_inputs.{name}")))?;
        }
    }
    Ok(())
}

/// What is left after a tensor's numbers.
fn take_cells(left: usize, tensor: &TensorData) -> Result<usize> {
    let dense = tensor.shape().filter(|_| tensor.csr().is_some());
    let cells = dense.map_or(Some(tensor.len()), |shape| {
        shape
            .iter()
            .try_fold(1usize, |product, size| product.checked_mul(*size))
    });
    cells
        .and_then(|cells| left.checked_sub(cells))
        .ok_or_else(|| {
            let problem = format!("a request may have {CELLS} numbers, written out");
            Error::invalid("shape", problem)
        })
}

/// The examples of a request.
pub(in crate::local) fn data(data: &[Datum]) -> Result<Vec<engine::Datum>> {
    if data.is_empty() {
        return Err(Error::invalid("data", "must not be empty"));
    }
    data.iter()
        .enumerate()
        .map(|(index, one)| datum(one).map_err(|error| error.within(&format!("data[{index}]"))))
        .collect()
}

/// The examples of a request with nothing but their targets, which weigh nothing.
pub(in crate::local) fn targets_only(data: &[Datum]) -> Result<Vec<engine::Datum>> {
    let bare: Vec<Datum> = data
        .iter()
        .map(|datum| {
            let bare = Datum::new(datum.model_input().clone());
            match datum.input("target_tokens") {
                Some(targets) => bare.with_target_tokens(targets.clone()),
                None => bare,
            }
        })
        .collect();
    let mut data = self::data(&bare)?;
    for datum in &mut data {
        datum.inputs.weights = vec![0.0; datum.targets.len()];
    }
    Ok(data)
}

fn datum(datum: &Datum) -> Result<engine::Datum> {
    let tokens = prompt(datum.model_input()).map_err(|error| error.within("model_input"))?;
    let within = |name: &str, error: Error| error.within(&format!("loss_fn_inputs.{name}"));
    let missing = || Error::invalid("loss_fn_inputs.target_tokens", "is missing");
    let targets = datum.input("target_tokens").ok_or_else(missing)?;
    let targets = targets
        .to_dense(0)
        .map_err(|error| within("target_tokens", error))?;
    let width = match targets.shape() {
        Some([rows, width]) if *rows == tokens.len() => *width,
        Some([_]) | None => 1,
        Some(shape) => {
            let problem = format!("has shape {shape:?} for {} tokens", tokens.len());
            return Err(Error::invalid("loss_fn_inputs.target_tokens", problem));
        }
    };
    let TensorValues::I64(targets) = targets.values() else {
        let problem = "must be integers";
        return Err(Error::invalid("loss_fn_inputs.target_tokens", problem));
    };
    let mut inputs = engine::LossInputs::default();
    for (name, tensor) in datum.loss_fn_inputs() {
        let slot = match name.as_str() {
            "target_tokens" => continue,
            "weights" => &mut inputs.weights,
            "logprobs" => &mut inputs.logprobs,
            "advantages" => &mut inputs.advantages,
            "clip_low_threshold" => &mut inputs.clip_low_threshold,
            "clip_high_threshold" => &mut inputs.clip_high_threshold,
            "sequence_ratio_mask" => &mut inputs.sequence_ratio_mask,
            // What no loss here reads does no harm.
            _ => continue,
        };
        let dense = tensor.to_dense(0).map_err(|error| within(name, error))?;
        *slot = match dense.cast(Dtype::Float32).values() {
            TensorValues::F32(values) => values.to_vec(),
            TensorValues::I64(_) => Vec::new(),
        };
    }
    Ok(engine::Datum {
        targets: token_ids("loss_fn_inputs.target_tokens", targets.iter().copied())?,
        tokens,
        width,
        inputs,
    })
}

/// The tokens of an input; this engine reads text only.
pub(in crate::local) fn prompt(input: &ModelInput) -> Result<Vec<u32>> {
    token_ids("tokens", input.to_ints()?.into_iter().map(i64::from))
}

fn token_ids(field: &str, tokens: impl Iterator<Item = i64>) -> Result<Vec<u32>> {
    tokens
        .enumerate()
        .map(|(index, token)| {
            u32::try_from(token).map_err(|_| {
                Error::invalid(
                    format!("{field}[{index}]"),
                    format!("{token} is not a token"),
                )
            })
        })
        .collect()
}

/// The result of a pass.
pub(in crate::local) fn output(
    data: &[engine::Datum],
    output: engine::LossOutput,
) -> ForwardBackwardOutput {
    let outputs = data.iter().zip(output.data).map(|(datum, result)| {
        let tensor = |values: Vec<f32>| {
            let tensor = TensorData::from(values);
            if datum.width == 1 {
                return tensor;
            }
            let shape = vec![datum.tokens.len(), datum.width];
            tensor.clone().with_shape(shape).unwrap_or(tensor)
        };
        LossOutput::from([
            (
                "elementwise_loss".to_owned(),
                tensor(result.elementwise_loss),
            ),
            ("logprobs".to_owned(), tensor(result.logprobs)),
        ])
    });
    let metrics = [("loss:sum".to_owned(), output.loss)];
    ForwardBackwardOutput::new("TorchLossReturn", outputs.collect(), metrics.into())
}

/// Why no other optimiser is taken: the service has published Dimuon's settings, not its update.
pub(in crate::local) const ADAM_ONLY: &str = "this server has the optimiser adamw only (dimuon's update rule is not public): use adamw, \
     with a learning rate that suits it";

/// The settings of an optimiser step; Adam's only.
pub(in crate::local) fn adam(params: &OptimizerParams) -> Result<engine::AdamParams> {
    let OptimizerParams::Adam(AdamParams {
        learning_rate,
        beta1,
        beta2,
        eps,
        weight_decay,
        grad_clip_norm,
        ..
    }) = params
    else {
        return Err(Error::invalid("optimizer_params", ADAM_ONLY));
    };
    Ok(engine::AdamParams {
        learning_rate: *learning_rate,
        beta1: *beta1,
        beta2: *beta2,
        eps: *eps,
        weight_decay: *weight_decay,
        grad_clip_norm: *grad_clip_norm,
    })
}

/// What a sampling request asks of the engine.
pub(in crate::local) fn sample_request(
    request: &AsampleRequest<'_>,
    config: &engine::Config,
) -> Result<engine::SampleRequest> {
    let prompt = prompt(&request.prompt).map_err(|error| error.within("prompt"))?;
    let params: &SamplingParams = &request.sampling_params;
    let room = (config.max_positions + 1).saturating_sub(prompt.len());
    let max_tokens = params.max_tokens.map_or(room, |max| max as usize);
    let targets = request.target_prompt_logprobs.as_deref().map(targets);
    let count = |number: u32| number as usize;
    Ok(engine::SampleRequest {
        num_samples: count(request.num_samples),
        max_tokens,
        temperature: params.temperature,
        top_k: match params.top_k {
            -1 => None,
            top_k => Some(usize::try_from(top_k).unwrap_or(0)),
        },
        top_p: params.top_p,
        seed: params.seed.map(i64::cast_unsigned),
        stop: stop(params.stop.as_ref(), config)?,
        prompt_logprobs: request.prompt_logprobs.unwrap_or(false),
        prompt_logprobs_last_n: request.prompt_logprobs_last_n.map(count),
        topk_prompt_logprobs: count(request.topk_prompt_logprobs),
        topk_sample_logprobs: count(request.topk_sample_logprobs),
        target_prompt_logprobs: targets.transpose()?,
        prompt_alt_tokens: count(request.prompt_alt_tokens_k),
        ..engine::SampleRequest::new(prompt, max_tokens)
    })
}

/// What ends a sample: the model's own end of sequence too, unless an empty list forbids it.
fn stop(stop: Option<&Stop>, config: &engine::Config) -> Result<engine::Stop> {
    let (tokens, strings) = match stop {
        None => (&[][..], Vec::new()),
        Some(Stop::Text(text)) => (&[][..], vec![text.clone()]),
        Some(Stop::Texts(texts)) => (&[][..], texts.clone()),
        Some(Stop::Tokens(tokens)) => (&tokens[..], Vec::new()),
    };
    if stop.is_some() && tokens.is_empty() && strings.is_empty() {
        return Ok(engine::Stop::default());
    }
    let mut ids = token_ids("stop", tokens.iter().map(|token| i64::from(*token)))?;
    ids.extend(&config.eos);
    Ok(engine::Stop {
        tokens: ids,
        strings,
    })
}

fn targets(tensor: &TensorData) -> Result<engine::PromptTargets> {
    take_cells(CELLS, tensor).map_err(|error| error.within("target_prompt_logprobs"))?;
    let dense = tensor.to_dense(-1)?;
    let refuse = |problem: &str| Error::invalid("target_prompt_logprobs", problem);
    let (Some([_, width]), Some(tokens)) = (dense.shape(), dense.as_i64()) else {
        return Err(refuse("must be a matrix of integers"));
    };
    Ok(engine::PromptTargets {
        tokens: tokens.to_vec(),
        width: *width,
    })
}

/// The result of sampling.
pub(in crate::local) fn sample_response(
    request: &engine::SampleRequest,
    output: engine::SampleOutput,
) -> Result<SampleResponse> {
    let rows = request.prompt.len() - 1;
    let sequences = output.sequences.into_iter().map(sequence).collect();
    let mut response = SampleResponse::new(sequences);
    response.prompt_cache_hit_tokens = output.cached as i64;
    response.prompt_logprobs = output
        .prompt_logprobs
        .map(|logprobs| logprobs.into_iter().collect());
    response.topk_prompt_logprobs = output.topk_prompt_logprobs.map(|lists| topk(&lists));
    if let (Some(values), Some(targets)) = (
        output.target_prompt_logprobs,
        &request.target_prompt_logprobs,
    ) {
        let tensor = TensorData::from(values).with_shape(vec![rows, targets.width])?;
        response.target_prompt_logprobs = Some(tensor);
    }
    if let Some(drawn) = output.prompt_alt_tokens {
        let shape = vec![rows, request.prompt_alt_tokens];
        let (tokens, logprobs): (Vec<i64>, Vec<f32>) = drawn
            .into_iter()
            .map(|(token, logprob)| (i64::from(token), logprob))
            .unzip();
        response.prompt_alt_tokens = Some(PromptAltTokens {
            tokens: TensorData::from(tokens).with_shape(shape.clone())?,
            logprobs: TensorData::from(logprobs).with_shape(shape)?,
        });
    }
    Ok(response)
}

fn sequence(sampled: engine::SampledSequence) -> SampledSequence {
    let reason = match sampled.stop_reason {
        engine::StopReason::Stop => StopReason::Stop,
        engine::StopReason::Length => StopReason::Length,
    };
    let tokens: Vec<i32> = sampled.tokens.iter().map(|token| *token as i32).collect();
    let mut sequence = SampledSequence::new(reason, tokens);
    sequence.logprobs = Some(sampled.logprobs);
    if !sampled.topk.is_empty() {
        let lists: Vec<_> = sampled.topk.into_iter().map(Some).collect();
        sequence.topk_logprobs = Some(topk(&lists));
    }
    sequence
}

fn topk(lists: &[Option<Vec<(u32, f32)>>]) -> TopkLogprobs {
    let signed: Vec<Option<Vec<(i32, f32)>>> = lists
        .iter()
        .map(|list| {
            let list = list.as_ref()?;
            Some(
                list.iter()
                    .map(|(token, lp)| (*token as i32, *lp))
                    .collect(),
            )
        })
        .collect();
    TopkLogprobs::from_lists(&signed)
}
