//! Everything that lives longer than a call: threads, queues, futures.
//!
//! A room here may use those above it in this file, never those below.
//!
//! # Threads
//!
//! | name | owner | waits for | ends |
//! |---|---|---|---|
//! | `tinker-train` | a model's `training::Queue` | operations, then their submission | when the queue is dropped and empty, or halted |
//! | `tinker-submit-N` | `training::Training` | the submission of one chunk of a large call | idle for 3 s, or at shutdown |
//! | `tinker-wait-N` | `futures::Results` | one result that is not a sample's (a long poll each) | idle for 3 s, or at shutdown |
//! | `tinker-dispatch` | `sampling::Sampling`, with the first sample | a sample and its permits | when the dispatcher is closed |
//! | `tinker-sample-N` | `sampling::Sampling` | the submission of a sample, and its result if nobody polls for all | idle for 3 s, or at shutdown |
//! | `tinker-poll` | a `sampling::Sampler`, where the service offers it | one long poll for all its samples | when the sampler is dropped, after its present poll |
//! | `tinker-fetch-N` | `sampling::Sampling` | a result that a poller announced | idle for 3 s, or at shutdown |
//! | `tinker-cpu-N` | `threads::Cpu` (a rayon pool) | encoding, decoding; never the network | with the session |
//! | `tinker-heartbeat` | `session::Session` | the next heartbeat | at shutdown |
//! | `tinker-upkeep` | `session::Session` | the next renewal of a token or of the configuration, the next look for idle connections | at shutdown |
//! | `tinker-telemetry` | `session::Session` | events to report | at shutdown |
//!
//! Shutdown is: set the stop, stop the transport (blocked calls return), close queues and
//! dispatcher, join. Nobody joins himself: the last handle may be dropped on one of these threads.
//!
//! # Two walks
//!
//! ```text
//! forward_backward                          training/                         futures/
//! caller ---> Queue::submit --> tinker-train: Operation::run
//!             Pending <-.        |  Forward::prepare   validate, cut into chunks
//!                       |        |  Worker::numbers    sequence numbers
//!                       |        |  Sending::send      (tinker-submit: chunks side by side)
//!                       |        |    Bytes::take      byte semaphore
//!                       |        |    Link::submit     retries --------------> Watch::start
//!                       |        `  Worker::settle     refused numbers         tinker-wait: Watch::run
//!                       |                                                        poll, Machine::next, ...
//!                       `---------- Gathered::put <------------------------------ done
//!
//! sample                                    sampling/                         futures/
//! caller ---> Sampler::submit -> Dispatcher::push
//!             Pending <-.        tinker-dispatch: Dispatcher::next   permits, bytes, rate limit
//!                       |        tinker-sample: Job::go
//!                       |          submit, once; refused: Dispatcher::push_front or push_later
//!                       |          await_result --- no poller ---------------> Watch::run
//!                       |                       `-- Poller::wait ... tinker-fetch: Watch::run
//!                       `-------- Job::succeed <--------------------------------- done
//!                                 Job::retry (lost, 5xx): Dispatcher::push_later, a new number
//! ```

pub(crate) mod clock;
pub(crate) mod deadline;
pub(crate) mod opened;
pub(crate) mod process;
pub(crate) mod stop;

pub(crate) mod pending;

pub(crate) mod threads;

pub(crate) mod calls;

pub(crate) mod futures;

pub(crate) mod training;

pub(crate) mod sampling;

pub(crate) mod session;
