//! Adapters in the layout of Python's `peft`: `adapter_config.json`, `adapter_model.safetensors`.

#[cfg(test)]
mod import;

use std::collections::HashMap;

use super::checkpoint::{shaped, write_failed};
use super::lora::{ALPHA, Adapter, Target};
use crate::error::Result;

/// An adapter's two files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeftFiles {
    /// `adapter_config.json`
    pub(crate) config: String,
    /// `adapter_model.safetensors`
    pub(crate) weights: Vec<u8>,
}

impl Adapter {
    /// The adapter as `peft` reads it; `base_model` is the name or folder it belongs to.
    ///
    /// # Errors
    ///
    /// If there is not enough memory to write it.
    pub(crate) fn to_peft(&self, base_model: &str) -> Result<PeftFiles> {
        let rank = self.spec().rank;
        let mut tensors = Vec::new();
        for part in self.parts() {
            let path = part.target.path();
            let (a, b) = (
                &self.params()[part.a.clone()],
                &self.params()[part.b.clone()],
            );
            tensors.push((key(&path, 'A'), shaped(a, vec![rank, part.inputs])?));
            tensors.push((key(&path, 'B'), shaped(b, vec![part.outputs, rank])?));
        }
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let config = serde_json::json!({
            "base_model_name_or_path": base_model,
            "bias": "none",
            "fan_in_fan_out": false,
            "inference_mode": true,
            "lora_alpha": ALPHA,
            "lora_dropout": 0.0,
            "modules_to_save": null,
            "peft_type": "LORA",
            "r": rank,
            "target_modules": self.modules(),
            "task_type": "CAUSAL_LM",
        });
        Ok(PeftFiles {
            config: format!("{config:#}\n"),
            weights: safetensors::serialize(tensors, Some(metadata)).map_err(write_failed)?,
        })
    }

    /// The names of the modules it corrects, each once.
    fn modules(&self) -> Vec<&'static str> {
        let mut modules: Vec<&str> = Vec::new();
        for part in self.parts() {
            let name = match part.target {
                Target::Layer(_, projection) => {
                    projection.path().rsplit('.').next().unwrap_or_default()
                }
                Target::Head => "lm_head",
            };
            if !modules.contains(&name) {
                modules.push(name);
            }
        }
        modules
    }
}

fn key(path: &str, letter: char) -> String {
    format!("base_model.model.{path}.lora_{letter}.weight")
}
