//! Operations of one JSON request.

use std::sync::Arc;
use std::time::Instant;

use super::queue::{Gate, Operation, Worker};
use super::sequence::{Conflict, Sent, classify};
use crate::error::{Effect, Error, Result};
use crate::runtime::calls::{Effort, Link};
use crate::runtime::futures::{Accepted, Decode, Watch};
use crate::runtime::pending::{Promise, Status};
use crate::transport::{Body, Request};
use crate::wire::reply::FutureReply;
use crate::wire::route::{Route, SAVE_WEIGHTS, SAVE_WEIGHTS_EXTERNAL, SAVE_WEIGHTS_FOR_SAMPLER};

/// An operation of one JSON request.
pub(crate) struct Single<T> {
    pub(crate) route: &'static Route,
    /// Makes the body, given the sequence number.
    pub(crate) body: Box<dyn FnOnce(i32) -> Result<Vec<u8>> + Send>,
    pub(crate) decode: Decode<T>,
    pub(crate) status: Arc<Status>,
    pub(crate) promise: Promise<T>,
    /// Not sent unless the operation before it was.
    pub(crate) after: Option<Gate>,
}

impl<T: Send + 'static> Operation for Single<T> {
    fn run(self: Box<Self>, worker: &mut Worker) {
        if let Some(Err(error)) = self.after.as_ref().map(Gate::check) {
            return self.fail(error);
        }
        let number = match worker.numbers(1) {
            Ok(numbers) => numbers.start,
            Err(error) => return self.fail(error),
        };
        let shared = worker.shared.clone();
        let results = shared.training.results.clone();
        let body = match (self.body)(number) {
            Ok(body) => body,
            Err(error) => return self.promise.resolve(Err(error)),
        };
        let started = Instant::now();
        self.status.sending();
        match post(&results.link, self.route, &body) {
            Ok(reply) => {
                // Accepted, so the sequence cannot be broken.
                let _ = worker.settle(&[Sent::Accepted], None, |_| Ok(()));
                self.status.accepted(&reply.request_id);
                let accepted = Accepted {
                    request_id: reply.request_id,
                    request_type: self.route.request_type,
                    binary: false,
                    roundtrip: started.elapsed(),
                };
                let promise = self.promise;
                let done = move |outcome| promise.resolve(shared.result(outcome));
                Watch::new(results, accepted, self.status, self.decode, done).start();
            }
            Err(error) => {
                let sent = classify(&error, conflict(self.route));
                let settled = worker.settle(&[sent], Some(&error), |_| Ok(()));
                self.promise.resolve(Err(match (settled, sent) {
                    (Err(broken), _) => broken,
                    // Taken, but nobody knows by whom.
                    (Ok(()), Sent::Accepted) => error.with_effect(Effect::Unknown),
                    (Ok(()), _) => shared.refused(error),
                }));
            }
        }
    }

    fn fail(self: Box<Self>, error: Error) {
        let operation = self.status.operation();
        self.promise.resolve(Err(error.for_request(operation)));
    }
}

/// What a 409 of a route is about.
fn conflict(route: &Route) -> Conflict {
    let saves = [
        SAVE_WEIGHTS,
        SAVE_WEIGHTS_FOR_SAMPLER,
        SAVE_WEIGHTS_EXTERNAL,
    ];
    match saves.contains(route) {
        true => Conflict::Name,
        false => Conflict::Number,
    }
}

fn post(link: &Link, route: &Route, body: &[u8]) -> Result<FutureReply> {
    let request = Request::to(route, route.fixed_path()).with_body(Body::Json(body));
    let effort = Effort::from(route);
    link.submit(
        request,
        match conflict(route) {
            // A name that is taken stays taken.
            Conflict::Name => effort.with_final_conflict(),
            Conflict::Number => effort,
        },
    )
}
