//! Taking up an accepted request again by its id: after a crash, or in another process.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::lost::plain_result;
use super::queue::Queue;
use super::room::Training;
use crate::error::{Error, Result};
use crate::runtime::futures::{Accepted, Outcome, Watch};
use crate::runtime::pending::{OnDrop, Pending, Promise, Status, promise};
use crate::types::{
    ForwardBackwardOutput, LoadWeightsResponse, OptimStepResponse, SaveWeightsExternalResponse,
    SaveWeightsForSamplerResponse, SaveWeightsResponse,
};
use crate::wire::dialect::decode_forward_backward;
use crate::wire::reply::decode_json;
use crate::wire::route::{
    FORWARD_BACKWARD, LOAD_WEIGHTS, OPTIM_STEP, Route, SAVE_WEIGHTS, SAVE_WEIGHTS_EXTERNAL,
    SAVE_WEIGHTS_FOR_SAMPLER,
};

/// A result that can be asked for by a request id: see
/// [`TrainingClient::attach`](crate::TrainingClient::attach).
pub trait Attachable: sealed::Result {}

impl<T: sealed::Result> Attachable for T {}

mod sealed {
    use super::Route;

    /// Which request brings the result, and how it is read.
    pub trait Result: Sized + Send + 'static {
        #[doc(hidden)]
        #[allow(private_interfaces, reason = "nobody outside can name or implement it")]
        const ROUTE: Route;
        #[doc(hidden)]
        fn read(content_type: Option<&str>, body: Vec<u8>) -> crate::Result<Self>;
    }
}

fn read_json<T: DeserializeOwned>(_: Option<&str>, body: Vec<u8>) -> Result<T> {
    decode_json(&body)
}

macro_rules! attachable {
    ($($kind:ty: $route:ident, $read:path;)*) => {
        $(
            impl sealed::Result for $kind {
                #[allow(private_interfaces, reason = "nobody outside can name or implement it")]
                const ROUTE: Route = $route;
                fn read(content_type: Option<&str>, body: Vec<u8>) -> Result<Self> {
                    $read(content_type, body)
                }
            }
        )*
    };
}

attachable! {
    ForwardBackwardOutput: FORWARD_BACKWARD, decode_forward_backward;
    OptimStepResponse: OPTIM_STEP, read_json;
    SaveWeightsResponse: SAVE_WEIGHTS, read_json;
    SaveWeightsForSamplerResponse: SAVE_WEIGHTS_FOR_SAMPLER, read_json;
    SaveWeightsExternalResponse: SAVE_WEIGHTS_EXTERNAL, read_json;
    LoadWeightsResponse: LOAD_WEIGHTS, read_json;
}

impl Queue {
    /// Waits for the result of a request of this model that was accepted before.
    pub(crate) fn attach<T: Attachable>(self: &Arc<Self>, request_id: &str) -> Result<Pending<T>> {
        let shared = self.shared().clone();
        if let Some(broken) = shared.broken() {
            return Err(broken);
        }
        let (status, promise, pending) = self.promise(T::ROUTE.template);
        let training = shared.training.clone();
        training.watch(request_id, status, promise, move |outcome| {
            shared.result(outcome)
        })?;
        Ok(pending)
    }
}

impl Training {
    /// The same for a request of a model that no client of this process trains. `keep` is held by
    /// the handle: its session.
    pub(crate) fn attach<T: Attachable>(
        &self,
        keep: Arc<dyn Any + Send + Sync>,
        request_id: &str,
    ) -> Result<Pending<T>> {
        let status = Status::new(T::ROUTE.template);
        let (promise, pending) = promise(status.clone(), OnDrop::GoesOn, keep);
        let promise = promise.counted(&self.results.outstanding, &status);
        self.watch(request_id, status, promise, plain_result)?;
        Ok(pending)
    }

    fn watch<T: Attachable>(
        &self,
        request_id: &str,
        status: Arc<Status>,
        promise: Promise<T>,
        result: impl FnOnce(Outcome<T>) -> Result<T> + Send + 'static,
    ) -> Result<()> {
        self.results.check_open()?;
        if request_id.is_empty() {
            return Err(Error::invalid("request_id", "must not be empty"));
        }
        status.accepted(request_id);
        let accepted = Accepted {
            request_id: request_id.to_owned(),
            request_type: T::ROUTE.request_type,
            binary: T::ROUTE == FORWARD_BACKWARD,
            roundtrip: Duration::ZERO,
        };
        let done = move |outcome| promise.resolve(result(outcome));
        Watch::new(
            self.results.clone(),
            accepted,
            status,
            Arc::new(T::read),
            done,
        )
        .start();
        Ok(())
    }
}
