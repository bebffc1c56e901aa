//! A trainer as bytes (safetensors) and back, bit for bit.

use std::collections::HashMap;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use super::lora::{Adapter, LoraSpec};
use super::model::Base;
use super::optim::AdamState;
use super::train::Trainer;
use crate::error::{Context, Error, Result};

/// The tensor of the gradients.
const GRADIENT: &str = "gradient";
/// The metadata entry that holds the header; its name tells a saved trainer from other files.
const KEY: &str = "tinker-sdk trainer 1";

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    rank: usize,
    seed: u64,
    train_attn: bool,
    train_mlp: bool,
    train_unembed: bool,
    step: u64,
}

/// Which part of a saved trainer to restore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Restore {
    /// The adapter, with a fresh optimiser.
    Weights,
    /// The adapter and the optimiser: training goes on from the last step.
    WithOptimizer,
    /// Those and the gradients gathered since: training goes on as if never interrupted.
    Everything,
}

impl Trainer {
    /// Adapter and optimiser as one safetensors file. Gradients not yet used are not saved.
    ///
    /// # Errors
    ///
    /// If there is not enough memory to write it.
    pub(crate) fn save(&self) -> Result<Vec<u8>> {
        self.encode(&[])
    }

    /// The same with the gradients gathered since the last step.
    ///
    /// # Errors
    ///
    /// As for [`save`](Self::save).
    pub(crate) fn save_everything(&self) -> Result<Vec<u8>> {
        self.encode(&[(GRADIENT, &self.gradient)])
    }

    fn encode(&self, more: &[(&str, &[f32])]) -> Result<Vec<u8>> {
        let spec = self.adapter.spec();
        let header = Header {
            rank: spec.rank,
            seed: spec.seed,
            train_attn: spec.attn,
            train_mlp: spec.mlp,
            train_unembed: spec.unembed,
            step: self.adam.step,
        };
        let header = serde_json::to_string(&header).map_err(|error| {
            Error::Internal(Context::caused("cannot write the checkpoint", error))
        })?;
        let metadata = HashMap::from([(KEY.to_owned(), header)]);
        let tensors = [
            ("adapter", self.adapter.params()),
            ("adam.mean", &self.adam.mean[..]),
            ("adam.square", &self.adam.square[..]),
        ];
        let views = tensors
            .iter()
            .chain(more)
            .map(|(name, values)| Ok((*name, floats(values)?)))
            .collect::<Result<Vec<_>>>()?;
        safetensors::serialize(views, Some(metadata)).map_err(write_failed)
    }

    /// A trainer from what [`save`](Self::save) wrote.
    ///
    /// # Errors
    ///
    /// If the bytes are damaged or belong to another kind of model.
    pub(crate) fn restore(base: &Base, bytes: &[u8], what: Restore) -> Result<Self> {
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
        let header = metadata
            .metadata()
            .as_ref()
            .and_then(|metadata| metadata.get(KEY));
        let header =
            header.ok_or_else(|| Error::invalid("checkpoint", "is not a saved trainer"))?;
        let header: Header = serde_json::from_str(header)
            .map_err(|error| Error::invalid("checkpoint", format!("is damaged: {error}")))?;
        let spec = LoraSpec {
            rank: header.rank,
            seed: header.seed,
            attn: header.train_attn,
            mlp: header.train_mlp,
            unembed: header.train_unembed,
        };
        let file = SafeTensors::deserialize(bytes).map_err(damaged)?;
        let mut adapter = Adapter::zeros(spec, base.config())?;
        let params = read_floats(&file, "adapter")?;
        if params.len() != adapter.params().len() {
            return Err(Error::invalid(
                "checkpoint",
                "belongs to a model of another shape",
            ));
        }
        adapter.params_mut().copy_from_slice(&params);
        let mut trainer = Self::from_adapter(base, adapter);
        if what != Restore::Weights {
            let (mean, square) = (
                read_floats(&file, "adam.mean")?,
                read_floats(&file, "adam.square")?,
            );
            let sizes = [0, params.len()];
            if mean.len() != square.len() || !sizes.contains(&mean.len()) {
                return Err(Error::invalid(
                    "checkpoint",
                    "has an optimiser of another shape",
                ));
            }
            trainer.adam = AdamState {
                step: header.step,
                mean,
                square,
            };
        }
        if what == Restore::Everything {
            trainer.gradient = read_floats(&file, GRADIENT)?;
            if ![0, params.len()].contains(&trainer.gradient.len()) {
                let problem = "has gradients of another shape";
                return Err(Error::invalid("checkpoint", problem));
            }
        }
        Ok(trainer)
    }
}

/// A one-dimensional tensor of `f32`.
pub(super) fn floats(values: &[f32]) -> Result<TensorView<'_>> {
    shaped(values, vec![values.len()])
}

/// A tensor of `f32` with a shape.
pub(super) fn shaped(values: &[f32], shape: Vec<usize>) -> Result<TensorView<'_>> {
    TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(values)).map_err(write_failed)
}

pub(super) fn write_failed(error: safetensors::SafeTensorError) -> Error {
    Error::Internal(Context::caused("cannot write the checkpoint", error))
}

pub(super) fn damaged(error: safetensors::SafeTensorError) -> Error {
    Error::invalid("checkpoint", format!("is damaged: {error}"))
}

pub(super) fn read_floats(file: &SafeTensors<'_>, name: &str) -> Result<Vec<f32>> {
    let tensor = file.tensor(name).map_err(damaged)?;
    if tensor.dtype() != Dtype::F32 {
        return Err(Error::invalid(
            "checkpoint",
            format!("`{name}` is not made of f32"),
        ));
    }
    let mut values = vec![0.0; tensor.data().len() / 4];
    super::quant::widen(tensor.data(), super::quant::Dtype::F32, &mut values);
    Ok(values)
}
