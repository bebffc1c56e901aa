//! The values the service speaks in: plain data and its invariants.
//!
//! Values a program builds (tensors, inputs, parameters) are checked when they are built or
//! before they are sent, and an [`Error::Invalid`](crate::Error::Invalid) names the field and
//! what is allowed. Values the service answers with are read leniently: unknown fields are
//! ignored and, except where noted, unknown words are kept as `Other`.
//!
//! Everything here converts to and from the service's JSON form with serde, so data sets and
//! results can be stored and read back.
//!
//! ```
//! use tinker::{Datum, ModelInput};
//!
//! let datum = Datum::new(ModelInput::from_ints(vec![1, 2, 3]))
//!     .with_target_tokens(vec![2, 3, 4])
//!     .with_weights(vec![0.0, 1.0, 1.0]);
//! let text = serde_json::to_string(&datum)?;
//! assert_eq!(serde_json::from_str::<Datum>(&text)?, datum);
//! # Ok::<(), serde_json::Error>(())
//! ```

mod macros;

mod checkpoint_ref;
pub mod console;
mod custom_loss;
mod datum;
mod event;
mod ids;
mod input;
mod metrics;
mod optimizer;
mod output;
pub(crate) mod percent;
mod queue;
mod records;
mod retry;
mod sampled;
mod sampling;
pub(crate) mod server_config;
pub(crate) mod telemetry;
mod tensor;
mod time;
mod training;
pub(crate) mod url;

pub use checkpoint_ref::CheckpointRef;
pub use custom_loss::{CustomLossGraph, CustomLossInput, CustomLossNode, CustomLossOp};
pub use datum::{Datum, DatumRange, Provenance, ProvenanceSpan, SpanKind, chunk_ranges};
pub use event::ClientEvent;
#[cfg(feature = "local")]
pub(crate) use ids::CHECKPOINT_TTL;
pub(crate) use ids::checkpoint_ttl;
pub use ids::{
    CheckpointKind, ModelId, RequestId, SamplingSessionId, SequenceId, SessionId, TinkerPath,
};
pub use input::{
    Chunk, DmelChunk, EncodedTextChunk, ImageAssetPointerChunk, ImageChunk, ImageFormat,
    ModelInput, Tokens,
};
pub use metrics::{ClientMetrics, Unfinished};
pub use optimizer::{AdamParams, DimuonParams, OptimizerConfig, OptimizerFamily, OptimizerParams};
pub use output::{ForwardBackwardOutput, LossOutput};
pub use queue::{QueueStatus, QueueUpdate};
pub use records::*;
pub use retry::RetryConfig;
pub use sampled::{
    PromptAltTokens, PromptLogprobs, SampleResponse, SampledSequence, StopReason, TopkLogprobs,
};
pub use sampling::{SampleOptions, SampleRequest, SamplingParams, Stop};
pub(crate) use server_config::{ClientConfig, DynamicConfig};
pub use tensor::{Csr, Dtype, TensorData, TensorValues};
pub use time::{Date, Timestamp};
pub use training::{
    LoadWeightsResponse, LoraConfig, Loss, LossConfig, LossConfigValue, LossFn, ModelData,
    ModelInfo, OptimStepResponse, SaveWeightsExternalResponse, SaveWeightsForSamplerResponse,
    SaveWeightsResponse, WeightsInfo,
};
