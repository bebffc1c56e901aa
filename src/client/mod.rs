//! The clients: short documented methods that delegate.
//!
//! Rule: operations of a model's queue return a [`Pending`](crate::Pending); everything else
//! blocks; `submit_` marks the handle twin of a blocking call. Every client is `Clone + Send +
//! Sync` around one `Arc`: clone it into your threads.
//!
//! After `fork` without `exec` clients are unusable in the child: their threads do not exist
//! there. A child that drops one leaves the parent's session alone.

mod attach;
mod batch;
mod call;
#[cfg(feature = "text")]
mod chat;
mod parallel;
#[cfg(all(test, feature = "local"))]
mod parity;
mod rest;
mod resume;
mod sampling;
mod scope;
mod service;
mod stream;
mod training;

#[cfg(feature = "archive")]
pub use crate::runtime::calls::unpack::unpack;
pub use crate::runtime::sampling::SamplingProgress;
pub use crate::runtime::training::{Attachable, ChunkOutput};
pub use crate::wire::sse::Event;
pub use batch::{SampleBatch, Samples};
pub use call::{CallBody, RawAnswer, RawCall};
pub use parallel::ParallelMap;
pub use rest::{
    CopyOptions, DownloadOptions, DownloadProgress, Downloaded, ListOptions, Pages, RestClient,
};
pub use resume::{Recovery, Resume};
pub use sampling::{LogprobsRequest, SamplerSource, SamplingClient};
pub use service::{ServiceClient, TrainingOptions};
pub use stream::{Events, RawStream};
pub use training::{ChunkOutputs, Export, Load, Save, TrainStep, TrainingClient};

/// Clients go from thread to thread and are shared by them.
const _: () = {
    const fn shared<T: Send + Sync + 'static>() {}
    shared::<ServiceClient>();
    shared::<TrainingClient>();
    shared::<SamplingClient>();
    shared::<RestClient>();
    shared::<crate::Pending<crate::SampleResponse>>();
};
