//! Reading what `peft` wrote, so that tests start from its own files.

use std::collections::HashMap;

use safetensors::tensor::SafeTensors;
use serde::Deserialize;

use super::super::checkpoint::{damaged, read_floats};
use super::super::config::Config;
use super::super::lora::{ALPHA, Adapter, LoraSpec};
use super::{PeftFiles, key};
use crate::error::{Error, Result};

impl Adapter {
    /// An adapter from `peft`'s files.
    ///
    /// Modules the files leave alone but which belong to a trained group (attention, MLP) start
    /// fresh. Another `lora_alpha` than this engine's is folded into `B`.
    ///
    /// # Errors
    ///
    /// If the files are damaged, belong to another model, or use a variant of LoRA this engine
    /// does not run; the message names it.
    pub(crate) fn from_peft(config: &Config, files: &PeftFiles) -> Result<Self> {
        let raw: Raw = serde_json::from_str(&files.config)
            .map_err(|error| Error::invalid("adapter_config.json", error.to_string()))?;
        raw.check()?;
        let file = SafeTensors::deserialize(&files.weights).map_err(damaged)?;
        let has = |parts: &[&str]| {
            file.names()
                .iter()
                .any(|name| parts.iter().any(|part| name.contains(part)))
        };
        let spec = LoraSpec {
            rank: raw.r,
            seed: 0,
            attn: has(&[".self_attn."]),
            mlp: has(&[".mlp."]),
            unembed: has(&["lm_head.lora_"]),
        };
        let mut adapter = Self::new(spec, config)?;
        let fold = raw.lora_alpha / ALPHA;
        let mut used = 0;
        for part in adapter.parts().to_vec() {
            let path = part.target.path();
            for (letter, range, factor) in [('A', part.a, 1.0), ('B', part.b, fold)] {
                let name = key(&path, letter);
                if !file.names().contains(&name.as_str()) {
                    continue;
                }
                let values = read_floats(&file, &name)?;
                let place = &mut adapter.params_mut()[range];
                if values.len() != place.len() {
                    return Err(Error::invalid(
                        name,
                        "has another shape than the model needs",
                    ));
                }
                for (place, value) in place.iter_mut().zip(values) {
                    *place = value * factor;
                }
                used += 1;
            }
        }
        let lora = file
            .names()
            .iter()
            .filter(|name| name.contains(".lora_"))
            .count();
        if used != lora {
            let problem = format!("has {lora} tensors, of which only {used} belong to this model");
            return Err(Error::invalid("adapter_model.safetensors", problem));
        }
        Ok(adapter)
    }
}

/// The settings of `adapter_config.json` that matter.
#[derive(Debug, Deserialize)]
struct Raw {
    peft_type: String,
    r: usize,
    lora_alpha: f32,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    rank_pattern: HashMap<String, serde_json::Value>,
    #[serde(default)]
    alpha_pattern: HashMap<String, serde_json::Value>,
    bias: Option<String>,
}

impl Raw {
    fn check(&self) -> Result<()> {
        let variants = [
            ("peft_type", self.peft_type != "LORA"),
            ("use_dora", self.use_dora),
            ("use_rslora", self.use_rslora),
            ("rank_pattern", !self.rank_pattern.is_empty()),
            ("alpha_pattern", !self.alpha_pattern.is_empty()),
            (
                "bias",
                self.bias.as_ref().is_some_and(|bias| bias != "none"),
            ),
        ];
        match variants.iter().find(|(_, present)| *present) {
            Some((name, _)) => Err(Error::invalid(
                format!("adapter_config.json {name}"),
                "only plain LoRA with one rank is supported",
            )),
            None => Ok(()),
        }
    }
}
