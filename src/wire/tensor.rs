//! Tensors as protobuf messages.

use super::le;
use super::proto;
use super::sink::{Body, Sink};
use crate::error::{Context, Error, Result};
use crate::types::{TensorData, TensorValues};

/// A tensor on its way out: 32-bit floats or 64-bit integers, dense or sparse as it is.
pub(super) struct TensorBody<'a>(pub(super) &'a TensorData);

impl Body for TensorBody<'_> {
    fn write(&self, sink: &mut impl Sink) {
        let tensor = self.0;
        if tensor.csr().is_some() {
            sink.message(2, &CsrBody(tensor));
        } else {
            present_values(sink, 1, tensor.values());
        }
        sink.integer(3, dtype(tensor.values()) as i64);
        sink.sizes(4, tensor.shape().unwrap_or_default());
    }
}

struct CsrBody<'a>(&'a TensorData);

impl Body for CsrBody<'_> {
    fn write(&self, sink: &mut impl Sink) {
        match self.0.values() {
            TensorValues::F32(values) => sink.numbers(1, values),
            TensorValues::I64(values) => sink.numbers(1, values),
        }
        if let Some(csr) = self.0.csr() {
            sink.numbers(2, csr.crow_indices());
            sink.numbers(3, csr.col_indices());
        }
    }
}

fn present_values(sink: &mut impl Sink, number: u32, values: &TensorValues) {
    match values {
        TensorValues::F32(values) => sink.present_numbers(number, values),
        TensorValues::I64(values) => sink.present_numbers(number, values),
    }
}

/// The message's name for the type of these values.
pub(super) fn dtype(values: &TensorValues) -> proto::DType {
    match values {
        TensorValues::F32(_) => proto::DType::Float32,
        TensorValues::I64(_) => proto::DType::Int64,
    }
}

/// Reads a tensor, copying its numbers once. Narrow types widen: int32 to int64, bfloat16 to
/// float32.
///
/// # Errors
///
/// [`Error::Reply`] if the parts do not fit together.
pub(super) fn decode(what: &str, tensor: &proto::Tensor) -> Result<TensorData> {
    let kind = stored_type(what, tensor.dtype)?;
    let shape = sizes(what, &tensor.shape)?;
    let shape = (!shape.is_empty()).then_some(shape);
    let (values, csr) = match &tensor.encoding {
        Some(proto::TensorEncoding::SparseCsr(csr)) => {
            let crow = le::read(what, &csr.crow_indices)?;
            let col = le::read(what, &csr.col_indices)?;
            (values(what, kind, &csr.values)?, Some((crow, col)))
        }
        Some(proto::TensorEncoding::Dense(bytes)) => (values(what, kind, bytes)?, None),
        // An absent oneof is how some encoders write an empty tensor.
        None => (values(what, kind, &[])?, None),
    };
    TensorData::from_parts(values, shape, csr).map_err(|error| mismatch(what, &error))
}

/// The stored number type behind its wire value.
pub(super) fn stored_type(what: &str, dtype: i32) -> Result<proto::DType> {
    match proto::DType::try_from(dtype) {
        Ok(proto::DType::Unspecified) | Err(_) => Err(Error::Reply(Context::new(format!(
            "{what}: unknown number type {dtype}"
        )))),
        Ok(kind) => Ok(kind),
    }
}

/// Copies stored numbers into an aligned vector of their public type.
pub(super) fn values(what: &str, kind: proto::DType, bytes: &[u8]) -> Result<TensorValues> {
    Ok(match kind {
        proto::DType::Float32 => le::read::<f32>(what, bytes)?.into(),
        proto::DType::Int64 => le::read::<i64>(what, bytes)?.into(),
        proto::DType::Int32 => le::read_as::<i32, i64>(what, bytes, i64::from)?.into(),
        proto::DType::Bfloat16 => le::read_as::<u16, f32>(what, bytes, le::widen_bfloat16)?.into(),
        proto::DType::Unspecified => {
            return Err(Error::Reply(Context::new(format!(
                "{what}: the number type is not given"
            ))));
        }
    })
}

/// More dimensions than any array library takes. A shape is copied for every datum of a batch, so
/// it must not be long.
const MAX_DIMENSIONS: usize = 64;

/// Reads a shape: every dimension a size.
pub(super) fn sizes(what: &str, shape: &[i64]) -> Result<Vec<usize>> {
    if shape.len() > MAX_DIMENSIONS {
        return Err(Error::Reply(Context::new(format!(
            "{what}: {} dimensions are too many",
            shape.len()
        ))));
    }
    shape
        .iter()
        .map(|&size| {
            usize::try_from(size).map_err(|_| {
                Error::Reply(Context::new(format!("{what}: {size} is not a dimension")))
            })
        })
        .collect()
}

/// What the constructor of a value refused, as a fault of the answer it came in.
pub(super) fn mismatch(what: &str, error: &Error) -> Error {
    Error::Reply(Context::new(format!("{what}: {error}")))
}
