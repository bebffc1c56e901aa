//! One chunk on the wire: encoded, in the dialect the server understands.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use super::chunks::{Call, Sending};
use super::dialect::{Hint, Spoken, hint};
use crate::error::{Context, Effect, Error, Result};
use crate::transport::retry::{Meaning, error_from_response};
use crate::transport::{Body, Request};
use crate::wire::dialect::{encode_forward_backward_json, json_route, validate_json};
use crate::wire::forward_backward::encode_forward_backward;
use crate::wire::reply::{FutureReply, decode_json};
use crate::wire::route::{FORWARD_BACKWARD, Route};

impl Sending {
    pub(super) fn post(
        &self,
        call: &Arc<Call>,
        range: Range<usize>,
        bytes: usize,
        number: i32,
    ) -> Result<FutureReply> {
        let training = self.training();
        let closed = || Error::Closed(Context::new("closed while a chunk waited"));
        let _budget = training.budget.take(bytes as u64).ok_or_else(closed)?;
        let posted = match training.dialect.spoken() {
            Spoken::Json => self.post_json(call, range, bytes, number),
            spoken => self.post_proto(call, range, bytes, number, spoken),
        };
        posted.map_err(|error| match call.forward_only {
            true => error.for_idempotent(),
            false => error,
        })
    }

    fn post_proto(
        &self,
        call: &Arc<Call>,
        range: Range<usize>,
        bytes: usize,
        number: i32,
        spoken: Spoken,
    ) -> Result<FutureReply> {
        let training = self.training();
        let body = self.encode(call, range.clone(), bytes, number)?;
        let request =
            Request::to(&FORWARD_BACKWARD, FORWARD_BACKWARD.fixed_path()).with_body(Body::Proto {
                bytes: &body.bytes,
                zstd: body.zstd,
            });
        let probed = match spoken {
            Spoken::Unknown => self.probe(&request, || {
                // A call that JSON cannot hold is not begun in JSON.
                let whole = call.clone();
                let check = move || validate_json(&whole.whole());
                self.training().results.cpu.run(bytes, check)?;
                self.encode_json(call, range, bytes, number)
            }),
            _ => Probed::Open(Effect::None),
        };
        let sent = match probed {
            Probed::Accepted(reply) => Ok(reply),
            Probed::Refused(error) => Err(error),
            Probed::Open(effect) => training
                .results
                .link
                .submit(request, (&FORWARD_BACKWARD).into())
                .inspect(|_| training.dialect.proto_worked())
                .map_err(|error| {
                    let effect = error.effect().and(effect);
                    error.with_effect(effect)
                }),
        };
        training.buffers.give(body.bytes);
        sent
    }

    /// Finds out whether the server takes protobuf, with single attempts of this very request: see
    /// [`dialect`](super::dialect).
    fn probe(
        &self,
        request: &Request<'_>,
        json: impl FnOnce() -> Result<(Route, Vec<u8>)>,
    ) -> Probed {
        let (training, label) = (self.training(), FORWARD_BACKWARD.label());
        let link = &training.results.link;
        let mut effect = Effect::None;
        let (mut stumbles, mut resets) = (0, 0);
        let (found, refusal) = loop {
            let mut attempt = request.clone();
            if stumbles > 0 {
                // SkyRL resets a connection it stumbled on after it has answered. So that the
                // attempt in JSON meets none, this one leaves no connection behind.
                attempt = attempt.with_header("connection", "close");
            }
            let response = match link.attempt(attempt) {
                Ok(response) => response,
                Err(failed) => {
                    let (meaning, error) = failed.read(&label);
                    effect = effect.and(meaning.effect());
                    if !meaning.is_passing() {
                        return Probed::Refused(error.with_effect(effect));
                    }
                    resets += 1;
                    if stumbles == 0 || resets > 1 {
                        return Probed::Open(effect);
                    }
                    continue;
                }
            };
            let found = hint(&response);
            if found == Hint::Understood {
                return match decode_json(&response.body) {
                    Ok(reply) => {
                        training.dialect.proto_worked();
                        Probed::Accepted(reply)
                    }
                    Err(_) => Probed::Open(Effect::Unknown),
                };
            }
            effect = effect.and(response.head.effect());
            stumbles += u32::from(found == Hint::Stumbled);
            if found != Hint::Stumbled || stumbles > 1 {
                break (found, response);
            }
        };
        let meaning = Meaning::of_status(refusal.status());
        let error = error_from_response(&refusal, &label, SystemTime::now());
        if found != Hint::Silent
            && let Some(reply) = self.try_json(json, &mut effect)
        {
            training.dialect.json_worked(found);
            return Probed::Accepted(reply);
        }
        // What passes, or waits for a payment, is left to the ordinary retries.
        match meaning.is_passing() || meaning == Meaning::Unpaid {
            true => Probed::Open(effect),
            false => Probed::Refused(error.with_effect(effect)),
        }
    }

    /// One attempt in the other dialect.
    fn try_json(
        &self,
        json: impl FnOnce() -> Result<(Route, Vec<u8>)>,
        effect: &mut Effect,
    ) -> Option<FutureReply> {
        let (route, body) = json().ok()?;
        let request = Request::to(&route, route.fixed_path()).with_body(Body::Json(&body));
        match self.training().results.link.attempt(request) {
            Ok(response) if response.is_success() => {
                *effect = effect.and(Effect::Unknown);
                decode_json(&response.body).ok()
            }
            Ok(response) => {
                *effect = effect.and(response.head.effect());
                None
            }
            Err(failed) => {
                *effect = effect.and(failed.read("").0.effect());
                None
            }
        }
    }

    fn post_json(
        &self,
        call: &Arc<Call>,
        range: Range<usize>,
        bytes: usize,
        number: i32,
    ) -> Result<FutureReply> {
        let (route, body) = self.encode_json(call, range, bytes, number)?;
        let request = Request::to(&route, route.fixed_path()).with_body(Body::Json(&body));
        self.training()
            .results
            .link
            .submit(request, (&route).into())
    }

    fn encode_json(
        &self,
        call: &Arc<Call>,
        range: Range<usize>,
        bytes: usize,
        number: i32,
    ) -> Result<(Route, Vec<u8>)> {
        let call = call.clone();
        self.training().results.cpu.run(bytes, move || {
            let request = call.request(range, Some(number));
            // The session may have gone over to JSON since the call was checked. What is wrong is
            // named by its place in the call.
            let body = encode_forward_backward_json(&request)
                .or_else(|error| validate_json(&call.whole()).and(Err(error)))?;
            Ok((json_route(&request), body))
        })
    }

    /// Encodes a chunk on the pool, into a buffer that is used again.
    fn encode(
        &self,
        call: &Arc<Call>,
        range: Range<usize>,
        bytes: usize,
        number: i32,
    ) -> Result<Encoded> {
        let call = call.clone();
        let mut buffer = self.training().buffers.take();
        let compress = self.training().results.client_config.proto_compress_fwdbwd;
        self.training().results.cpu.run(bytes, move || {
            encode_forward_backward(&call.request(range, Some(number)), &mut buffer)?;
            finish_encoding(buffer, compress)
        })
    }
}

/// What probing brought.
enum Probed {
    Accepted(FutureReply),
    Refused(Error),
    /// Nothing yet, but for what attempts may have done.
    Open(Effect),
}

struct Encoded {
    bytes: Vec<u8>,
    zstd: bool,
}

#[cfg(feature = "zstd")]
fn finish_encoding(buffer: Vec<u8>, compress: bool) -> Result<Encoded> {
    if !compress {
        return Ok(Encoded {
            bytes: buffer,
            zstd: false,
        });
    }
    let mut bytes = Vec::new();
    crate::wire::compress::compress(&buffer, &mut bytes)?;
    Ok(Encoded { bytes, zstd: true })
}

/// Compression is the service's wish, not its condition.
#[cfg(not(feature = "zstd"))]
fn finish_encoding(buffer: Vec<u8>, _compress: bool) -> Result<Encoded> {
    Ok(Encoded {
        bytes: buffer,
        zstd: false,
    })
}
