//! Adapters in the layout of Python's `peft`: `adapter_config.json`, `adapter_model.safetensors`.

mod import;

use std::collections::HashMap;

use serde_json::{Map, json};

pub(crate) use import::base_model;

use super::checkpoint::{shaped, write_failed};
use super::config::Config;
use super::lora::{ALPHA, Adapter, Part, Target};
use super::model::Projection;
use crate::error::Result;

/// An adapter's two files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeftFiles {
    /// `adapter_config.json`
    pub(crate) config: String,
    /// `adapter_model.safetensors`
    pub(crate) weights: Vec<u8>,
}

impl PeftFiles {
    /// What the files are called.
    pub(crate) const CONFIG: &'static str = "adapter_config.json";
    pub(crate) const WEIGHTS: &'static str = "adapter_model.safetensors";
}

impl Adapter {
    /// The adapter as `peft` reads it; `base_model` is the name or folder it belongs to.
    ///
    /// Where a family stores several matrices as one, `peft` sees only that one: its correction
    /// has the ranks of all of them, each with outputs of its own.
    ///
    /// # Errors
    ///
    /// If there is not enough memory to write it.
    pub(crate) fn to_peft(&self, base_model: &str, config: &Config) -> Result<PeftFiles> {
        let rank = self.spec().rank;
        let mut factors = Vec::new();
        let (mut ranks, mut alphas) = (Map::new(), Map::new());
        let mut modules: Vec<String> = Vec::new();
        for (path, members) in self.stored(config) {
            let own = rank * members.len();
            let module = path.rsplit('.').next().unwrap_or(&path).to_owned();
            if members.len() > 1 {
                ranks.insert(module.clone(), own.into());
                let alpha = f64::from(ALPHA) * members.len() as f64;
                alphas.insert(module.clone(), alpha.into());
            }
            if !modules.contains(&module) {
                modules.push(module);
            }
            let (mut a, mut b) = (Vec::new(), Vec::new());
            for (index, part) in members.iter().enumerate() {
                a.extend_from_slice(&self.params()[part.a.clone()]);
                for row in self.params()[part.b.clone()].chunks_exact(rank) {
                    let start = b.len();
                    b.resize(start + own, 0.0);
                    b[start + index * rank..start + (index + 1) * rank].copy_from_slice(row);
                }
            }
            let (inputs, outputs) = (members[0].inputs, b.len() / own);
            factors.push((key(&path, 'A'), a, vec![own, inputs]));
            factors.push((key(&path, 'B'), b, vec![outputs, own]));
        }
        let tensors = factors
            .iter()
            .map(|(name, values, shape)| Ok((name.as_str(), shaped(values, shape.clone())?)))
            .collect::<Result<Vec<_>>>()?;
        let config = json!({
            "alpha_pattern": alphas,
            "base_model_name_or_path": base_model,
            "bias": "none",
            "fan_in_fan_out": false,
            "inference_mode": true,
            "lora_alpha": ALPHA,
            "lora_dropout": 0.0,
            "modules_to_save": null,
            "peft_type": "LORA",
            "r": rank,
            "rank_pattern": ranks,
            "target_modules": modules,
            "task_type": "CAUSAL_LM",
        });
        Ok(PeftFiles {
            config: format!("{config:#}\n"),
            weights: safetensors::serialize(tensors, Some(pytorch())).map_err(write_failed)?,
        })
    }

    /// The corrections by the modules that files have, each with what it is made of.
    fn stored(&self, config: &Config) -> Vec<(String, Vec<&Part>)> {
        let mut stored: Vec<(String, Vec<&Part>)> = Vec::new();
        for part in self.parts() {
            let path = match part.target {
                Target::Layer(layer, projection) => {
                    let fused = fused(config)
                        .iter()
                        .find(|(_, parts)| parts.contains(&projection));
                    let module = fused.map_or(projection.path(), |(name, _)| name);
                    format!("model.layers.{layer}.{module}")
                }
                Target::Head => part.target.path(),
            };
            match stored.last_mut() {
                Some((last, members)) if *last == path => members.push(part),
                _ => stored.push((path, vec![part])),
            }
        }
        stored
    }
}

/// The modules that a family stores as one, and what they are made of.
pub(super) fn fused(config: &Config) -> &'static [(&'static str, &'static [Projection])] {
    use Projection::{Gate, K, Q, Up, V};
    match config.family.fused {
        true => &[
            ("self_attn.qkv_proj", &[Q, K, V]),
            ("mlp.gate_up_proj", &[Gate, Up]),
        ],
        false => &[],
    }
}

fn pytorch() -> HashMap<String, String> {
    HashMap::from([("format".to_owned(), "pt".to_owned())])
}

fn key(path: &str, letter: char) -> String {
    format!("base_model.model.{path}.lora_{letter}.weight")
}
