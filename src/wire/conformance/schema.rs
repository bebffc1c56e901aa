//! Checks the messages against the recorded schema: numbers, types, labels, names.
//!
//! A derived message cannot be asked for its schema, so each field is written by hand from the
//! recorded one, with a value that only the right type carries through, then decoded and encoded
//! again. An unknown number would vanish, a wrong type would fail or change the bytes.

use prost::Message;
use prost::encoding::encode_varint;
use serde::Deserialize;
use std::collections::BTreeMap;

use crate::wire::proto::*;

#[derive(Deserialize)]
struct Schema {
    messages: BTreeMap<String, Vec<Field>>,
    enums: BTreeMap<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct Field {
    number: u32,
    name: String,
    #[serde(rename = "type")]
    kind: String,
    label: String,
    oneof: Option<String>,
}

/// Decodes and encodes again, with the debug text, or says why not.
type Echo = fn(&[u8]) -> Result<(Vec<u8>, String), String>;

fn echo<M: Message + Default + std::fmt::Debug>(bytes: &[u8]) -> Result<(Vec<u8>, String), String> {
    let message = M::decode(bytes).map_err(|error| error.to_string())?;
    Ok((message.encode_to_vec(), format!("{message:?}")))
}

fn echoes() -> BTreeMap<&'static str, Echo> {
    BTreeMap::from([
        (
            "ForwardBackwardRequest",
            echo::<ForwardBackwardRequest> as Echo,
        ),
        ("LossConfigValue", echo::<LossConfigValue>),
        ("Datum", echo::<Datum>),
        ("Chunk", echo::<Chunk>),
        ("EncodedTextChunk", echo::<EncodedTextChunk>),
        ("ImageChunk", echo::<ImageChunk>),
        ("ImageDimensions", echo::<ImageDimensions>),
        ("DmelChunk", echo::<DmelChunk>),
        ("ProvenanceSpan", echo::<ProvenanceSpan>),
        ("PromptProvenanceSpan", echo::<PromptProvenanceSpan>),
        ("SampledProvenanceSpan", echo::<SampledProvenanceSpan>),
        ("Tensor", echo::<Tensor>),
        ("SparseCsr", echo::<SparseCsr>),
        ("ForwardBackwardOutput", echo::<ForwardBackwardOutput>),
        ("ArrayRecord", echo::<ArrayRecord>),
        ("BatchedTensor", echo::<BatchedTensor>),
        ("SampleResponse", echo::<SampleResponse>),
        ("SampledSequence", echo::<SampledSequence>),
        ("TopkLogprobs", echo::<TopkLogprobs>),
        ("PromptAltTokens", echo::<PromptAltTokens>),
    ])
}

/// In the schema, but in no request or answer.
const UNUSED: [&str; 3] = ["SamplingParams", "StopStrings", "StopTokens"];

fn schema() -> Schema {
    serde_json::from_str(include_str!(
        "../../../tests/fixtures/wire/proto_schema.json"
    ))
    .unwrap()
}

fn delimited(number: u32, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_varint(u64::from(number << 3 | 2), &mut out);
    encode_varint(value.len() as u64, &mut out);
    out.extend_from_slice(value);
    out
}

fn varint(number: u32, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    encode_varint(u64::from(number << 3), &mut out);
    encode_varint(value, &mut out);
    out
}

fn double(number: u32) -> Vec<u8> {
    let mut out = Vec::new();
    encode_varint(u64::from(number << 3 | 1), &mut out);
    out.extend_from_slice(&1.5f64.to_le_bytes());
    out
}

/// Bytes that only a field of this very type carries through.
fn probe(schema: &Schema, field: &Field) -> Vec<u8> {
    let number = field.number;
    let kind = field.kind.as_str();
    if kind.ends_with("Entry") {
        let mut entry = delimited(1, "clé".as_bytes());
        if schema.messages[kind][1].kind == "double" {
            entry.extend(double(2));
        }
        return delimited(number, &entry);
    }
    match kind {
        "string" => delimited(number, "é".as_bytes()),
        "bytes" => delimited(number, &[0xff, 0xfe]),
        "bool" => varint(number, 1),
        "double" => double(number),
        "int32" => varint(number, -1i64 as u64),
        "uint32" => varint(number, u64::from(u32::MAX)),
        "int64" if field.label == "repeated" => {
            let mut packed = Vec::new();
            encode_varint(1 << 40, &mut packed);
            encode_varint(3, &mut packed);
            delimited(number, &packed)
        }
        "int64" => varint(number, 1 << 40),
        _ if schema.enums.contains_key(kind) => varint(number, 1),
        _ => delimited(number, &[]),
    }
}

#[test]
fn every_message_and_field_is_there() {
    let schema = schema();
    let echoes = echoes();
    for (name, fields) in &schema.messages {
        if UNUSED.contains(&name.as_str()) || name.ends_with("Entry") {
            continue;
        }
        let echo = echoes
            .get(name.as_str())
            .unwrap_or_else(|| panic!("{name} is missing"));
        for field in fields {
            let bytes = probe(&schema, field);
            let at = format!("{name}.{}", field.name);
            let (again, debug) = echo(&bytes).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(
                again, bytes,
                "{at}: number {} as {}",
                field.number, field.kind
            );
            let shown = match &field.oneof {
                Some(oneof) if !oneof.starts_with('_') => oneof,
                _ => &field.name,
            };
            assert!(debug.contains(&format!("{shown}: ")), "{at}: {debug}");
            if field.kind == "string" {
                echo(&delimited(field.number, &[0xff])).expect_err("strings are UTF-8");
            }
        }
    }
    let known = schema
        .messages
        .keys()
        .filter(|name| !name.ends_with("Entry"));
    assert_eq!(echoes.len() + UNUSED.len(), known.count());
}

/// A scalar's zero is written only where the schema tracks presence.
#[test]
fn presence_is_tracked_where_the_schema_says() {
    let schema = schema();
    let echoes = echoes();
    for (name, fields) in &schema.messages {
        for field in fields {
            let zero = match field.kind.as_str() {
                _ if field.label == "repeated" => continue,
                "string" | "bytes" => delimited(field.number, &[]),
                "bool" | "int32" | "uint32" | "int64" => varint(field.number, 0),
                _ => continue,
            };
            let Some(echo) = echoes.get(name.as_str()) else {
                continue;
            };
            let tracked = field.label == "optional" || field.oneof.is_some();
            let (again, _) = echo(&zero).unwrap();
            assert_eq!(!again.is_empty(), tracked, "{name}.{}", field.name);
        }
    }
}

#[test]
fn enum_values_match() {
    let schema = schema();
    let stop = [
        ("STOP_REASON_STOP", StopReason::Stop as i32),
        ("STOP_REASON_LENGTH", StopReason::Length as i32),
    ];
    let dtype = [
        ("DTYPE_UNSPECIFIED", DType::Unspecified as i32),
        ("DTYPE_FLOAT32", DType::Float32 as i32),
        ("DTYPE_INT64", DType::Int64 as i32),
        ("DTYPE_INT32", DType::Int32 as i32),
        ("DTYPE_BFLOAT16", DType::Bfloat16 as i32),
    ];
    let values = |pairs: &[(&str, i32)]| -> BTreeMap<String, i32> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect()
    };
    let recorded = |name: &str| -> BTreeMap<String, i32> {
        serde_json::from_value(schema.enums[name].clone()).unwrap()
    };
    assert_eq!(recorded("StopReason"), values(&stop));
    assert_eq!(recorded("DType"), values(&dtype));
    assert_eq!(schema.enums.len(), 2);
}
