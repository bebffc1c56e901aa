//! Round trips, and bytes that nobody meant: no decoder panics, and none takes memory out of
//! proportion to its input.

use allocation_counter::measure;
use fastrand::Rng;
use proptest::prelude::*;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{plain, random, values};
use crate::error::Error;
use crate::types::SessionSearch;
use crate::wire::compress::{compress, decompress};
use crate::wire::decoders::{DECODERS, Decode};
use crate::wire::dialect::{
    decode_forward_backward, decode_request, decode_sample, encode_forward_backward_json,
    encode_sample_json,
};
use crate::wire::forward_backward::encode_forward_backward;
use crate::wire::handle::SamplerHandle;
use crate::wire::output::encode_forward_backward_output;
use crate::wire::request::{AsampleRequest, CreateModelRequest, from_json, to_json};
use crate::wire::sample::encode_sample;

const PROTOBUF: Option<&str> = Some(crate::wire::reply::PROTOBUF);
const JSON: Option<&str> = Some("application/json");

/// The most memory a decoder may hold at once, per byte of input. Ordinary bodies take two to
/// three; this is for bodies made of nothing but empty messages, whose values are larger than
/// their two bytes.
const MOST_PER_BYTE: u64 = 512;

/// And on top of it: datums that come without data, and the text of errors.
const MOST_EXTRA: u64 = 2 << 20;

#[track_caller]
fn check_bytes(bytes: &[u8]) {
    for (name, decode) in DECODERS {
        check_decoder(name, decode, bytes);
    }
}

#[track_caller]
fn check_decoder(name: &str, decode: Decode, bytes: &[u8]) {
    let mut result = Ok(());
    let memory = measure(|| result = decode(bytes));
    let most = MOST_PER_BYTE * bytes.len() as u64 + MOST_EXTRA;
    assert!(
        memory.bytes_max <= most,
        "{name}: {} bytes of memory for {} bytes of input",
        memory.bytes_max,
        bytes.len()
    );
    if let Err(error) = result {
        assert!(
            matches!(error, Error::Reply(_) | Error::Invalid(_)),
            "{name}: {error}"
        );
        let text = error.to_string();
        assert!(text.len() > 20, "{name}: {text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn arbitrary_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        check_bytes(&bytes);
    }

    /// Bytes that look like protobuf more often than chance would have it.
    #[test]
    fn arbitrary_fields_are_survived(
        fields in proptest::collection::vec((1u8..8, 0u8..6, 0u8..20, any::<[u8; 8]>()), 0..40),
    ) {
        let mut bytes = Vec::new();
        for (number, kind, length, content) in fields {
            bytes.push(number << 3 | kind);
            bytes.push(length);
            bytes.extend_from_slice(&content);
        }
        check_bytes(&bytes);
    }

    #[test]
    fn arbitrary_text_is_survived(text in "[\\[\\]{}\",:0-9a-z. \\-]{0,200}") {
        check_bytes(text.as_bytes());
        let _ = SamplerHandle::decode(&text);
    }

    #[test]
    fn arbitrary_frames_are_survived(mut bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
        let check = |bytes: &[u8]| {
            let memory = measure(|| drop(decompress(bytes, 10_000)));
            assert!(memory.bytes_max <= 10_000 * 4 + MOST_EXTRA);
        };
        check(&bytes);
        bytes.splice(0..0, MAGIC);
        check(&bytes);
    }
}

/// Valid bodies of every kind.
fn bodies(rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut proto_output = Vec::new();
    encode_forward_backward_output(&values::output(rng, false), &mut proto_output).unwrap();
    let mut proto_sample = Vec::new();
    encode_sample(&values::sample(rng, false), &mut proto_sample);
    let mut proto_request = Vec::new();
    encode_forward_backward(
        &values::request(rng, false).as_request(),
        &mut proto_request,
    )
    .unwrap();
    let mut bodies = vec![
        proto_output,
        proto_sample,
        proto_request,
        to_json(&values::output(rng, true)).unwrap(),
        encode_sample_json(&values::sample(rng, true)).unwrap(),
        encode_forward_backward_json(&values::request(rng, true).as_request()).unwrap(),
    ];
    bodies.extend(random::REQUESTS.iter().map(|generate| generate(rng).1));
    bodies
}

#[test]
fn truncated_and_damaged_bodies_are_survived() {
    for seed in 0..40 {
        let mut rng = Rng::with_seed(seed);
        for body in bodies(&mut rng) {
            let end = rng.usize(0..=body.len());
            check_bytes(&body[..end]);
            let mut damaged = body.clone();
            for _ in 0..rng.usize(1..4) {
                if let Some(index) = (!damaged.is_empty()).then(|| rng.usize(0..damaged.len())) {
                    damaged[index] = rng.u8(..);
                }
            }
            check_bytes(&damaged);
        }
    }
}

/// A JSON body that ends early is always an error.
#[test]
fn truncated_json_is_refused() {
    for seed in 0..40 {
        let mut rng = Rng::with_seed(seed);
        for generate in random::REQUESTS {
            let (kind, body) = generate(&mut rng);
            let cut = &body[..rng.usize(0..body.len())];
            assert!(from_json::<IgnoredAny>(cut).is_err(), "{kind}");
        }
    }
}

fn delimited(number: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut length = content.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(content);
    out
}

/// A result with one record of one field, whose message has these parts.
fn record(name: &[u8], batch: &[&[u8]], num_datums: &[u8]) -> Vec<u8> {
    let entry = [delimited(1, name), delimited(2, &batch.concat())].concat();
    delimited(2, &[delimited(2, &entry), num_datums.to_vec()].concat())
}

fn offsets(values: &[i64]) -> Vec<u8> {
    let bytes: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    delimited(2, &bytes)
}

/// Bodies that claim much more than they hold.
#[test]
fn greedy_bodies_are_refused() {
    const FLOATS: &[u8] = &[0x18, 1];
    const MANY: &[u8] = &[0x18, 0xff, 0xff, 0xff, 0xff, 0x0f];
    let data = delimited(1, &[0; 4000]);
    let at = |values: &[i64]| record(b"x", &[&data, &offsets(values), FLOATS], &[]);
    let shaped = |shape: &[u8]| {
        let shape = delimited(4, shape);
        record(b"x", &[&shape, &offsets(&[0; 500]), FLOATS], &[])
    };
    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f].repeat(2);
    let cases = [
        ("datums without data", delimited(2, MANY)),
        (
            "datums beyond the data",
            record(b"x", &[&data, &offsets(&[0, 4]), FLOATS], MANY),
        ),
        ("overlapping arrays", at(&[0, 4000, 0, 4000])),
        ("arrays beyond the data", at(&[0, i64::MAX])),
        ("negative offsets", at(&[-8, 0])),
        ("long shapes", shaped(&[1; 4000])),
        ("huge shapes", shaped(&huge)),
        (
            "long names",
            record(&[b'x'; 4000], &[&offsets(&[0; 500]), FLOATS], &[]),
        ),
    ];
    for (name, body) in cases {
        check_bytes(&body);
        assert!(decode_forward_backward(PROTOBUF, body).is_err(), "{name}");
    }
    let topk = [MANY, &[0x20, 0xff, 0xff, 0xff, 0xff, 0x0f]].concat();
    assert!(decode_sample(PROTOBUF, delimited(3, &topk), None).is_err());
}

/// Nothing but empty values, which are larger in memory than on the wire.
#[test]
fn bodies_of_empty_values_stay_in_proportion() {
    for number in 1..8u8 {
        let empty = [number << 3 | 2, 0].repeat(5000);
        check_bytes(&empty);
        check_bytes(&delimited(1, &empty));
        check_bytes(&delimited(3, &empty));
    }
    check_bytes(&record(b"x", &[&offsets(&[0; 5000]), &[0x18, 1]], &[]));
    check_bytes(&record(
        &[b'x'; 256],
        &[&offsets(&[0; 5000]), &[0x18, 1]],
        &[],
    ));
    check_bytes(&record(b"x", &[&offsets(&[0, 0]), &[0x18, 1]], &[]).repeat(500));
}

#[test]
fn greedy_json_stays_small() {
    for item in ["0,", "[],", "{},", "null,", "\"\",", "[[0,0]],"] {
        let list = format!("[{}0]", item.repeat(3000));
        for key in [
            "loss_fn_outputs",
            "sequences",
            "prompt_logprobs",
            "topk_prompt_logprobs",
            "error",
            "completions",
            "user_metadata",
        ] {
            check_bytes(format!(r#"{{"sequences":[],"{key}":{list}}}"#).as_bytes());
        }
    }
    let uneven = format!("[[{}[1,0]]{}]", "[0,0],".repeat(3000), ",null".repeat(3000));
    check_bytes(format!(r#"{{"sequences":[],"topk_prompt_logprobs":{uneven}}}"#).as_bytes());
    check_bytes("[".repeat(10_000).as_bytes());
    check_bytes(r#"{"error":"#.repeat(3000).as_bytes());
}

#[test]
fn values_survive_both_dialects() {
    let mut bytes = vec![1, 2, 3];
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let request = values::request(&mut rng, false);
        encode_forward_backward(&request.as_request(), &mut bytes).unwrap();
        let again = decode_request(PROTOBUF, bytes.clone()).unwrap();
        assert_eq!(plain::request(&again), plain::request(&request));

        let request = values::request(&mut rng, true);
        let body = encode_forward_backward_json(&request.as_request()).unwrap();
        assert_eq!(decode_request(JSON, body).unwrap(), request);

        let output = values::output(&mut rng, false);
        encode_forward_backward_output(&output, &mut bytes).unwrap();
        let again = decode_forward_backward(PROTOBUF, bytes.clone()).unwrap();
        assert_eq!(plain::output(&again), plain::output(&output));

        let output = values::output(&mut rng, true);
        let body = to_json(&output).unwrap();
        assert_eq!(decode_forward_backward(JSON, body).unwrap(), output);

        let response = values::sample(&mut rng, false);
        encode_sample(&response, &mut bytes);
        let again = decode_sample(PROTOBUF, bytes.clone(), None).unwrap();
        assert_eq!(plain::sample(&again), plain::sample(&response));

        let response = values::sample(&mut rng, true);
        let body = encode_sample_json(&response).unwrap();
        assert_eq!(decode_sample(JSON, body, None).unwrap(), response);
    }
}

/// Requests read back as what was written, so that the server sees what the client meant.
#[test]
fn json_requests_read_back() {
    fn again<'a, T: Deserialize<'a> + serde::Serialize>(body: &'a [u8]) -> Vec<u8> {
        to_json(&from_json::<T>(body).unwrap()).unwrap()
    }
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        for generate in random::REQUESTS {
            let (kind, body) = generate(&mut rng);
            let read = match kind {
                "CreateModelRequest" => again::<CreateModelRequest<'_>>(&body),
                "SampleRequest" => again::<AsampleRequest<'_>>(&body),
                "SessionSearchRequest" => again::<SessionSearch>(&body),
                _ => continue,
            };
            assert_eq!(String::from_utf8(read), String::from_utf8(body), "{kind}");
        }
    }
}

#[test]
fn frames_round_trip() {
    let mut frame = Vec::new();
    for seed in 0..50 {
        let mut rng = Rng::with_seed(seed);
        for body in bodies(&mut rng) {
            compress(&body, &mut frame).unwrap();
            assert_eq!(decompress(&frame, body.len()).unwrap(), body);
            if !body.is_empty() {
                assert!(decompress(&frame, body.len() - 1).is_err());
            }
        }
    }
}
