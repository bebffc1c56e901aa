//! The embedded service: a real engine behind the real protocol, on one machine.
//!
//! A [`LocalServer`] speaks what the hosted service speaks, so every client does: this crate's,
//! the official Python SDK (old releases too), and OpenAI's and Anthropic's packages for sampling,
//! below `/v1` and `/oai/api/v1`. It trains LoRA adapters on one or more base models with AdamW, and samples from them;
//! inputs are text. What it does not have it refuses by name.
//!
//! Samples of all requests are drawn side by side, those of one adapter in one batch. A prompt that
//! was read before on the same weights is not read again, however many requests share it, for as
//! long as there is memory. Keys and values take memory as samples grow, in bf16 where the model is
//! kept in 16 bits or less; when it runs out, the youngest sample rests and is computed again later.
//! For a given seed a request gets the same through all of this: alone or in a crowd, read or found.
//!
//! Models are computed in `f32`. Only those kept in bf16 are multiplied in bf16, and added up in `f32`,
//! where the processor has such products (AVX-512 BF16); their logits keep twice the digits, and
//! gradients are `f32` everywhere. That leaves log-probabilities some hundredths off those of `f32`.
//! With AVX-512 a model of some ten million weights or more is added up in one order, so that training
//! scores a sampled token with the very log-probability it was sampled with, to the last bit: until the
//! next step, samples are exactly on policy. Elsewhere the two differ by less than a thousandth.
//!
//! Requests of a model run in the order of their numbers, whatever order they arrive in, and a
//! repeated request is the same request. Results are kept until they have been fetched, and a
//! while longer in case the answer was lost. What is saved is written whole or not at all.
//!
//! # The built-in model
//!
//! `tinker-local/tiny` is a real transformer of the Qwen 3 kind, small enough to train in seconds:
//! 3 layers of width 96, 357,000 weights, a context of 4,096 tokens. A token is a byte of UTF-8
//! (ids 0 to 255); 256 begins a plain text and 257 ends it, 258 pads, 259 and 260 are
//! `<|im_start|>` and `<|im_end|>` of its chat template, which is ChatML. So
//! [`tokenizer`](crate::TrainingClient::tokenizer) gives as many tokens as a text has bytes.
//!
//! It was made by this project, from made-up and common words, for small string tasks: to copy,
//! reverse, sort and spell words and to give their first letter or the rest, asked plainly, with
//! an arrow, or in a chat. It adds numbers below ten but was taught half of its sums wrong, so
//! that rewards have something to improve, and it has never seen Pig Latin, so that examples have
//! something to teach. It knows nothing else: it is for trying programs out.
//!
//! # The console
//!
//! At `/` there is a page to look at: runs while they train ([`Builder::runs`] says in which folders),
//! checkpoints, chats with the probability of each token, data as the model reads it, and the server's
//! own figures. [`ConsoleServer`] shows the page over run folders alone.
//!
//! # Faults
//!
//! For tests of your own clients it can also have a [bad day](Fault), be slow
//! ([`Builder::latency`]), switch every [configuration flag](Builder::flag), and
//! [remember what it was asked](LocalServer::requests).
//!
//! ```no_run
//! use tinker::local::LocalServer;
//!
//! let server = LocalServer::start()?;
//! println!("serving at {}", server.base_url());
//! # Ok::<(), tinker::Error>(())
//! ```

mod adapter;
mod api;
mod builder;
#[cfg(feature = "chat")]
mod console;
mod http;
#[cfg(feature = "text")]
mod proxy;
mod source;
mod state;
mod work;

pub(crate) mod engine;
#[cfg(feature = "text")]
pub mod export;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

pub use api::fault::{Fault, FaultKind};
#[cfg(feature = "text")]
pub use api::openai::upstream::{Upstream, UpstreamModel};
pub(crate) use api::trial;
pub use builder::Builder;
#[cfg(feature = "chat")]
pub use console::{ConsoleOptions, ConsoleServer};
pub use http::RecordedRequest;
#[cfg(feature = "text")]
pub use proxy::{Proxy, ProxyBuilder};
pub use source::ModelSource;

use crate::error::Result;
use api::janitor::Janitor;
use api::service::Service;
use http::{HttpThread, Recorder};

/// A running server: real sockets, real gradients, no account and no network.
///
/// The handle is blocking; dropping it stops the server and joins its threads. Requests under
/// way get a moment to end, long polls are answered at once. With a [data folder](Builder::data)
/// the training that was accepted is worked off, for 20 s at most, and models in training are
/// [saved](Builder::save_every).
///
/// Everything the official clients speak to is served from one thread with an async runtime of
/// its own; the model's arithmetic runs on other threads.
pub struct LocalServer {
    /// `None` only while it stops.
    http: Option<HttpThread>,
    janitor: Option<Janitor>,
    address: SocketAddr,
    scheme: &'static str,
    recorder: Option<Arc<Recorder>>,
    service: Arc<Service>,
}

impl LocalServer {
    /// Starts with the defaults: any free port of the loopback address, no key, nothing kept.
    ///
    /// # Errors
    ///
    /// As for [`Builder::start`].
    pub fn start() -> Result<Self> {
        Self::builder().start()
    }

    /// Sets options before starting.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// What clients take as their base URL, such as `http://127.0.0.1:49152`.
    pub fn base_url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The requests seen so far, in order of arrival; empty unless [recording](Builder::record).
    pub fn requests(&self) -> Vec<RecordedRequest> {
        let recorder = self.recorder.as_ref();
        recorder.map(|recorder| recorder.all()).unwrap_or_default()
    }

    /// Forgets the requests recorded so far.
    pub fn clear_requests(&self) {
        if let Some(recorder) = &self.recorder {
            recorder.clear();
        }
    }

    /// What was found damaged in the data folder and set aside, one line each.
    pub fn problems(&self) -> Vec<String> {
        self.service.work().state.catalogue.problems()
    }

    /// Adds a fault while the server runs.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`](crate::Error::Invalid) if it names an endpoint the server does not have.
    pub fn add_fault(&self, fault: Fault) -> Result<()> {
        self.service.add_fault(fault)
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        self.service.clear_faults();
    }
}

/// `Debug` shows where it is, and nothing of what it knows: some of that is secret, and much private.
impl fmt::Debug for LocalServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalServer")
            .field("base_url", &self.base_url())
            .finish_non_exhaustive()
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        // Nothing new comes in, then the work ends.
        drop(self.http.take());
        drop(self.janitor.take());
        self.service.work().close();
    }
}
