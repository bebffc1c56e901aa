//! The JSON bodies of requests, one struct per endpoint.
//!
//! A field that is `None` is left out; defaults are written. The two bodies in which a null means
//! something ([`FinishSessionRequest`], [`SetTtlRequest`]) write it. The structs borrow what they
//! send; the embedded server reads the same structs, as owned values.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::types::{
    AdamParams, CustomLossGraph, CustomLossInput, FinishReason, LoraConfig, ModelInput,
    OptimizerConfig, OptimizerParams, SampleOptions, SamplingParams, TensorData,
};

/// Writes a request's body: compact JSON, floats always as floats.
///
/// # Errors
///
/// [`Error::Invalid`] for a value JSON cannot hold, such as NaN in a tensor.
pub(crate) fn to_json<T: Serialize + ?Sized>(request: &T) -> Result<Vec<u8>> {
    to_json_sized(request, 128)
}

/// The same, with an idea of how long it will be: growing step by step costs as much as writing.
pub(crate) fn to_json_sized<T: Serialize + ?Sized>(request: &T, bytes: usize) -> Result<Vec<u8>> {
    let mut body = Vec::with_capacity(bytes);
    serde_json::to_writer(&mut body, request)
        .map_err(|error| Error::invalid("request", error.to_string()))?;
    Ok(body)
}

/// Reads a request's body, on the server.
///
/// # Errors
///
/// [`Error::Invalid`] if it is not JSON or does not have the expected shape.
pub(crate) fn from_json<'de, T: Deserialize<'de>>(body: &'de [u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| Error::invalid("body", error.to_string()))
}

/// The body of `client/config` and `client/dynamic_config`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ClientConfigRequest<'a> {
    pub(crate) sdk_version: Cow<'a, str>,
}

/// The body of `auth/token`: the credential itself travels in a header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct AuthTokenRequest {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "create_session")]
pub(crate) struct CreateSessionRequest<'a> {
    #[serde(default)]
    pub(crate) tags: Cow<'a, [String]>,
    #[serde(default)]
    pub(crate) user_metadata: Cow<'a, Map<String, Value>>,
    #[serde(default)]
    pub(crate) sdk_version: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) project_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) display_name: Option<Cow<'a, str>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "session_heartbeat")]
pub(crate) struct SessionHeartbeatRequest<'a> {
    pub(crate) session_id: Cow<'a, str>,
}

/// The body of `sessions/{id}/finish`; `detail` is written even when absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FinishSessionRequest<'a> {
    reason: FinishTag,
    pub(crate) detail: Option<Cow<'a, str>>,
}

/// The reason is an object on the wire: `{"type": "success"}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct FinishTag {
    r#type: FinishReason,
}

impl<'a> FinishSessionRequest<'a> {
    pub(crate) fn new(reason: FinishReason, detail: Option<Cow<'a, str>>) -> Self {
        let reason = FinishTag { r#type: reason };
        Self { reason, detail }
    }

    pub(crate) fn reason(&self) -> &FinishReason {
        &self.reason.r#type
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "create_model")]
pub(crate) struct CreateModelRequest<'a> {
    pub(crate) session_id: Cow<'a, str>,
    pub(crate) model_seq_id: u64,
    pub(crate) base_model: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user_metadata: Option<Cow<'a, Map<String, Value>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lora_config: Option<Cow<'a, LoraConfig>>,
    #[serde(default)]
    pub(crate) optimizer_config: Cow<'a, OptimizerConfig>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "get_info")]
pub(crate) struct GetInfoRequest<'a> {
    pub(crate) model_id: Cow<'a, str>,
}

/// The body of `optim_step`: Adam's parameters and other families' have different keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "optim_step")]
pub(crate) struct OptimStepRequest<'a> {
    pub(crate) model_id: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seq_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adam_params: Option<AdamParams>,
    #[serde(skip_serializing_if = "Option::is_none")]
    optimizer_params: Option<Cow<'a, OptimizerParams>>,
}

impl<'a> OptimStepRequest<'a> {
    pub(crate) fn new(
        model_id: impl Into<Cow<'a, str>>,
        seq_id: Option<u64>,
        params: &'a OptimizerParams,
    ) -> Self {
        let (adam_params, optimizer_params) = match params {
            OptimizerParams::Adam(adam) => (Some(*adam), None),
            other => (None, Some(Cow::Borrowed(other))),
        };
        Self {
            model_id: model_id.into(),
            seq_id,
            adam_params,
            optimizer_params,
        }
    }

    /// The parameters, whichever key they came under; `None` if neither was there.
    pub(crate) fn params(&self) -> Option<OptimizerParams> {
        match (&self.adam_params, &self.optimizer_params) {
            (Some(adam), _) => Some(OptimizerParams::Adam(*adam)),
            (None, other) => other.as_deref().cloned(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "save_weights")]
pub(crate) struct SaveWeightsRequest<'a> {
    pub(crate) model_id: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seq_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_seconds: Option<u64>,
    #[serde(default)]
    pub(crate) overwrite: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user_metadata: Option<Cow<'a, BTreeMap<String, String>>>,
}

/// The body of `save_weights_for_sampler`: a name to keep the weights under, or the number of the
/// sampling session that is to use them once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "save_weights_for_sampler")]
pub(crate) struct SaveWeightsForSamplerRequest<'a> {
    pub(crate) model_id: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) path: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sampling_session_seq_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seq_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user_metadata: Option<Cow<'a, BTreeMap<String, String>>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "save_weights_external")]
pub(crate) struct SaveWeightsExternalRequest<'a> {
    pub(crate) model_id: Cow<'a, str>,
    pub(crate) path: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seq_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) age_encryption_recipients: Option<Cow<'a, [String]>>,
}

/// The body of `load_weights`: into an existing model, or as the first request of a new one.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "load_weights")]
pub(crate) struct LoadWeightsRequest<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seq_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model_seq_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) base_model: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user_metadata: Option<Cow<'a, Map<String, Value>>>,
    pub(crate) path: Cow<'a, str>,
    pub(crate) optimizer: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) optimizer_config: Option<Cow<'a, OptimizerConfig>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) weights_access_token: Option<Cow<'a, str>>,
}

impl<'a> LoadWeightsRequest<'a> {
    /// Loads into an existing model, as its request number `seq_id`.
    pub(crate) fn into_model(
        model_id: impl Into<Cow<'a, str>>,
        seq_id: u64,
        path: impl Into<Cow<'a, str>>,
        optimizer: bool,
    ) -> Self {
        Self {
            model_id: Some(model_id.into()),
            seq_id: Some(seq_id),
            ..Self::bare(path.into(), optimizer)
        }
    }

    /// Creates the session's model number `model_seq_id` from the weights.
    pub(crate) fn new_model(
        session_id: impl Into<Cow<'a, str>>,
        model_seq_id: u64,
        path: impl Into<Cow<'a, str>>,
        optimizer: bool,
    ) -> Self {
        Self {
            session_id: Some(session_id.into()),
            model_seq_id: Some(model_seq_id),
            ..Self::bare(path.into(), optimizer)
        }
    }

    fn bare(path: Cow<'a, str>, optimizer: bool) -> Self {
        Self {
            model_id: None,
            seq_id: None,
            session_id: None,
            model_seq_id: None,
            base_model: None,
            user_metadata: None,
            path,
            optimizer,
            optimizer_config: None,
            weights_access_token: None,
        }
    }
}

// Not derived: the access token is a secret.
impl std::fmt::Debug for LoadWeightsRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadWeightsRequest")
            .field("model_id", &self.model_id)
            .field("session_id", &self.session_id)
            .field("path", &self.path)
            .field("optimizer", &self.optimizer)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WeightsInfoRequest<'a> {
    pub(crate) tinker_path: Cow<'a, str>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "create_custom_loss")]
pub(crate) struct CreateCustomLossRequest<'a> {
    pub(crate) session_id: Cow<'a, str>,
    pub(crate) custom_loss_seq_id: u64,
    pub(crate) name: Cow<'a, str>,
    pub(crate) inputs: Cow<'a, [CustomLossInput]>,
    pub(crate) graph: Cow<'a, CustomLossGraph>,
}

/// The body of `unload_model`, which only servers of the JSON era have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "unload_model")]
pub(crate) struct UnloadModelRequest<'a> {
    pub(crate) model_id: Cow<'a, str>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "create_sampling_session")]
pub(crate) struct CreateSamplingSessionRequest<'a> {
    pub(crate) session_id: Cow<'a, str>,
    pub(crate) sampling_session_seq_id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) base_model: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model_path: Option<Cow<'a, str>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "join_sampling_session")]
pub(crate) struct JoinSamplingSessionRequest<'a> {
    pub(crate) sampling_session_id: Cow<'a, str>,
}

/// The body of `asample`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "sample")]
pub(crate) struct AsampleRequest<'a> {
    #[serde(default = "one")]
    pub(crate) num_samples: u32,
    pub(crate) prompt: Cow<'a, ModelInput>,
    pub(crate) sampling_params: Cow<'a, SamplingParams>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) base_model: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model_path: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sampling_session_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seq_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<bool>,
    #[serde(default)]
    pub(crate) topk_prompt_logprobs: u32,
    #[serde(default)]
    pub(crate) topk_sample_logprobs: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target_prompt_logprobs: Option<Cow<'a, TensorData>>,
    #[serde(default)]
    pub(crate) prompt_alt_tokens_k: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs_last_n: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) record_stability_info: Option<bool>,
}

fn one() -> u32 {
    1
}

impl<'a> AsampleRequest<'a> {
    /// Request number `seq_id` of a sampling session, as clients send it.
    pub(crate) fn new(
        sampling_session_id: impl Into<Cow<'a, str>>,
        seq_id: u64,
        prompt: &'a ModelInput,
        options: &'a SampleOptions,
    ) -> Self {
        Self {
            num_samples: options.num_samples,
            prompt: Cow::Borrowed(prompt),
            sampling_params: Cow::Borrowed(&options.params),
            base_model: None,
            model_path: None,
            sampling_session_id: Some(sampling_session_id.into()),
            seq_id: Some(seq_id),
            prompt_logprobs: Some(options.prompt_logprobs),
            topk_prompt_logprobs: options.topk_prompt_logprobs,
            topk_sample_logprobs: options.topk_sample_logprobs,
            target_prompt_logprobs: options.target_prompt_logprobs.as_ref().map(Cow::Borrowed),
            prompt_alt_tokens_k: options.prompt_alt_tokens_k,
            prompt_logprobs_last_n: options.prompt_logprobs_last_n,
            record_stability_info: Some(false),
        }
    }

    /// Asks the service to remember what stability-aware training needs.
    pub(crate) fn with_stability_info(mut self, record: bool) -> Self {
        self.record_stability_info = Some(record);
        self
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RetrieveFutureRequest<'a> {
    pub(crate) request_id: Cow<'a, str>,
    #[serde(default)]
    pub(crate) allow_metadata_only: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RetrieveFuturesRequest<'a> {
    pub(crate) target: FuturesTarget<'a>,
    #[serde(default)]
    pub(crate) prev_cursor: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<f64>,
    #[serde(default)]
    pub(crate) retrieved_request_ids: Cow<'a, [String]>,
}

/// Whose completions a poll asks for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "sampling_session")]
pub(crate) struct FuturesTarget<'a> {
    pub(crate) sampling_session_id: Cow<'a, str>,
    #[serde(default)]
    pub(crate) cloned_sampler_id: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CancelFutureRequest<'a> {
    pub(crate) request_id: Cow<'a, str>,
}

/// The body of `copy_weights`; the access token travels in a header.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CopyWeightsRequest<'a> {
    pub(crate) source_path: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) destination_project_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) session_id: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model_seq_id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_seconds: Option<u64>,
}

/// The body of `…/ttl`: a null, which removes the limit, is written.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct SetTtlRequest {
    pub(crate) ttl_seconds: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct AssignProjectRequest<'a> {
    pub(crate) project_id: Cow<'a, str>,
}
