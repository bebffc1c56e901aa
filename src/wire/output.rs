//! Results of `forward_backward` as protobuf, both ways.
//!
//! The service batches the arrays of all datums, field by field; here they are cut apart again,
//! each array copied once into a vector of its own.

use std::collections::BTreeMap;

use prost::Message;
use prost::bytes::Bytes;

use super::sink::{Body, DoubleEntry, Entry, Sink, encode};
use super::tensor::{dtype, mismatch, sizes, stored_type, values};
use super::{le, proto};
use crate::error::{Context, Error, Result};
use crate::types::{ForwardBackwardOutput, LossOutput, TensorData, TensorValues};

/// The most datums believed of a message that carries no data for them. Every other count is
/// bounded by the bytes that came.
const MAX_STRIPPED_DATUMS: usize = 65_536;

/// The longest name of a field, in bytes. Every datum has its own copy of the name.
const MAX_NAME: usize = 256;

/// Reads a result. The body is released before returning.
///
/// # Errors
///
/// [`Error::Reply`] if it is damaged or contradicts itself.
pub(crate) fn decode_forward_backward_proto(body: Vec<u8>) -> Result<ForwardBackwardOutput> {
    let message = proto::ForwardBackwardOutput::decode(Bytes::from(body)).map_err(|error| {
        Error::Reply(Context::caused("the result is not a valid message", error))
    })?;
    let kind = output_type(&message);
    let mut declared = 0usize;
    let mut columns: BTreeMap<String, Vec<TensorData>> = BTreeMap::new();
    for record in message.loss_fn_outputs {
        declared = usize::try_from(record.num_datums)
            .ok()
            .and_then(|count| declared.checked_add(count))
            .ok_or_else(|| reply(format!("{} is not a count of datums", record.num_datums)))?;
        for (name, batch) in record.fields {
            if name.len() > MAX_NAME {
                return Err(reply(format!("a field's name has {} bytes", name.len())));
            }
            let arrays = split(&name, &batch)?;
            columns.entry(name).or_default().extend(arrays);
        }
    }
    let outputs = rows(declared, columns)?;
    Ok(ForwardBackwardOutput::new(kind, outputs, message.metrics))
}

/// The bare name of the record type; a message without records keeps it as written.
fn output_type(message: &proto::ForwardBackwardOutput) -> String {
    let full = message.loss_fn_output_type.as_str();
    if !message.loss_fn_outputs.is_empty() {
        full.rsplit(':').next().unwrap_or(full).to_owned()
    } else if full.is_empty() {
        "ArrayRecord".to_owned()
    } else {
        full.to_owned()
    }
}

/// Turns columns of arrays into one record per datum.
fn rows(declared: usize, columns: BTreeMap<String, Vec<TensorData>>) -> Result<Vec<LossOutput>> {
    let count = match (declared, columns.values().next()) {
        // Messages from before `num_datums` existed.
        (0, Some(column)) => column.len(),
        (0, None) => 0,
        (count, Some(_)) => count,
        (count, None) if count <= MAX_STRIPPED_DATUMS => count,
        (count, None) => return Err(reply(format!("{count} datums without any data"))),
    };
    let mut columns: Vec<_> = columns
        .into_iter()
        .map(|(name, column)| (name, column.into_iter()))
        .collect();
    let mut rows = Vec::new();
    for index in 0..count {
        let mut row = LossOutput::default();
        for (name, column) in &mut columns {
            let tensor = column
                .next()
                .ok_or_else(|| reply(format!("{name}: no array for datum {index} of {count}")))?;
            row.insert(name.clone(), tensor);
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Cuts the arrays of a batch apart at its offsets.
fn split(name: &str, batch: &proto::BatchedTensor) -> Result<Vec<TensorData>> {
    let kind = stored_type(name, batch.dtype)?;
    let trailing = sizes(name, &batch.trailing_shape)?;
    let per_row = trailing
        .iter()
        .try_fold(1usize, |product, &size| product.checked_mul(size))
        .ok_or_else(|| reply(format!("{name}: shape {trailing:?} is too large")))?;
    let mut offsets = le::whole::<i64>(name, &batch.offsets)?;
    let Some(mut start) = offsets.next() else {
        return Ok(Vec::new());
    };
    let mut tensors = Vec::with_capacity(offsets.len());
    for end in offsets {
        // Rising offsets also mean that no byte is copied twice.
        let bytes = usize::try_from(start)
            .ok()
            .zip(usize::try_from(end).ok())
            .and_then(|(start, end)| batch.data.get(start..end))
            .ok_or_else(|| {
                let length = batch.data.len();
                reply(format!(
                    "{name}: bytes {start} to {end} do not lie within {length}"
                ))
            })?;
        let values = values(name, kind, bytes)?;
        let leading = values.len().checked_div(per_row).unwrap_or(0);
        let shape = std::iter::once(leading).chain(trailing.iter().copied());
        let tensor = TensorData::from_parts(values, Some(shape.collect()), None);
        tensors.push(tensor.map_err(|error| mismatch(name, &error))?);
        start = end;
    }
    Ok(tensors)
}

fn reply(message: String) -> Error {
    Error::Reply(Context::new(message))
}

/// Writes a result, replacing what `out` held.
///
/// Datums whose arrays differ in type or trailing shape go into records of their own.
///
/// # Errors
///
/// [`Error::Invalid`] for what the message cannot hold: sparse tensors, or datums that do not all
/// have the same fields.
pub(crate) fn encode_forward_backward_output(
    output: &ForwardBackwardOutput,
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut records: Vec<Record<'_>> = Vec::new();
    for (index, datum) in output.loss_fn_outputs.iter().enumerate() {
        let at = format!("loss_fn_outputs[{index}]");
        if !datum.keys().eq(output.loss_fn_outputs[0].keys()) {
            return Err(Error::invalid(
                at,
                "must have the same fields as the datums before it",
            ));
        }
        if datum.values().any(|tensor| tensor.csr().is_some()) {
            return Err(Error::invalid(at, "must be dense"));
        }
        match records.last_mut() {
            Some(record) if record.takes(datum) => record.0.push(datum),
            _ => records.push(Record(vec![datum])),
        }
    }
    encode(&OutputBody { output, records }, out);
    Ok(())
}

struct OutputBody<'a> {
    output: &'a ForwardBackwardOutput,
    records: Vec<Record<'a>>,
}

impl Body for OutputBody<'_> {
    fn write(&self, sink: &mut impl Sink) {
        sink.bytes(1, self.output.loss_fn_output_type.as_bytes());
        for record in &self.records {
            sink.message(2, record);
        }
        for (key, &value) in &self.output.metrics {
            sink.message(3, &DoubleEntry { key, value });
        }
    }
}

/// Datums with the same fields, types and trailing shapes.
struct Record<'a>(Vec<&'a LossOutput>);

impl Record<'_> {
    fn takes(&self, datum: &LossOutput) -> bool {
        let layout = |tensor: &TensorData| (tensor.dtype(), trailing(tensor).to_vec());
        self.0[0]
            .values()
            .map(layout)
            .eq(datum.values().map(layout))
    }
}

impl Body for Record<'_> {
    fn write(&self, sink: &mut impl Sink) {
        for key in self.0[0].keys() {
            let tensors = self.0.iter().map(|datum| &datum[key]).collect();
            let value = Batch(tensors);
            sink.message(2, &Entry { key, value });
        }
        sink.integer(3, self.0.len() as i64);
    }
}

/// The arrays of one field, back to back.
struct Batch<'a>(Vec<&'a TensorData>);

impl Body for Batch<'_> {
    fn write(&self, sink: &mut impl Sink) {
        let mut offsets = Vec::with_capacity(self.0.len() + 1);
        let mut end = 0i64;
        offsets.push(end);
        for tensor in &self.0 {
            end += (tensor.len() * tensor.dtype().size()) as i64;
            offsets.push(end);
        }
        sink.prefix(1, end as usize);
        for tensor in &self.0 {
            match tensor.values() {
                TensorValues::F32(values) => sink.array(values),
                TensorValues::I64(values) => sink.array(values),
            }
        }
        sink.numbers(2, &offsets);
        sink.integer(3, dtype(self.0[0].values()) as i64);
        sink.sizes(4, trailing(self.0[0]));
    }
}

/// The shape below a datum's own length.
fn trailing(tensor: &TensorData) -> &[usize] {
    match tensor.shape() {
        Some([_, rest @ ..]) => rest,
        _ => &[],
    }
}
