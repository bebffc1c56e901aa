//! Reading what `peft`, the hosted service or this engine wrote.

use std::collections::{BTreeMap, HashMap};

use safetensors::tensor::{Dtype as FileDtype, SafeTensors};
use serde::Deserialize;
use serde_json::Value;

use super::super::checkpoint::damaged;
use super::super::config::Config;
use super::super::lora::{Adapter, LoraSpec, Target};
use super::super::model::Projection;
use super::super::quant::{Dtype, widen};
use super::{PeftFiles, fused};
use crate::error::{Error, Result};

impl Adapter {
    /// An adapter from `peft`'s files.
    ///
    /// Modules the files leave alone but which belong to a trained group (attention, MLP) start
    /// fresh, and so do ranks beyond a module's own where modules differ. Whatever the files say
    /// of scale is folded into `B`.
    ///
    /// # Errors
    ///
    /// If the files are damaged, belong to another model, or use a variant of LoRA this engine
    /// does not run; the message names it.
    pub(crate) fn from_peft(config: &Config, files: &PeftFiles) -> Result<Self> {
        let mut modules = read(config, files)?;
        let has = |find: &dyn Fn(&Target) -> bool| modules.keys().any(|path| find(&path.target()));
        let in_layer = |attention: bool| move |target: &Target| matches!(target, Target::Layer(_, one) if one.is_attention() == attention);
        let spec = LoraSpec {
            rank: modules
                .values()
                .map(|module| module.rank)
                .max()
                .unwrap_or(0),
            seed: 0,
            attn: has(&in_layer(true)),
            mlp: has(&in_layer(false)),
            unembed: has(&|target| *target == Target::Head),
        };
        let mut adapter = Self::new(spec, config)?;
        let (rank, scale) = (adapter.spec().rank, adapter.scale());
        for part in adapter.parts().to_vec() {
            let Some(module) = modules.remove(&Place::of(part.target)) else {
                continue;
            };
            let (fold, own) = (module.scale / scale, module.rank);
            let params = adapter.params_mut();
            params[part.a][..own * part.inputs].copy_from_slice(&module.a);
            let rows = params[part.b].chunks_exact_mut(rank);
            for (place, row) in rows.zip(module.b.chunks_exact(own.max(1))) {
                for (place, value) in place.iter_mut().zip(row) {
                    *place = value * fold;
                }
            }
        }
        Ok(adapter)
    }
}

#[cfg(feature = "text")]
impl PeftFiles {
    /// The same under the names that `peft` knows: the hosted service calls the head otherwise.
    ///
    /// # Errors
    ///
    /// If the files are damaged.
    pub(crate) fn renamed(&self) -> Result<Self> {
        let file = SafeTensors::deserialize(&self.weights).map_err(damaged)?;
        let mut tensors = Vec::new();
        for (name, tensor) in file.tensors() {
            let name = match module_of(&name) {
                Some((module, letter)) => super::key(module, letter),
                None => name,
            };
            tensors.push((name, tensor));
        }
        let mut config: Value = serde_json::from_str(&self.config)
            .map_err(|error| Error::invalid(Self::CONFIG, error.to_string()))?;
        if let Some(Value::Array(modules)) = config.get_mut("target_modules") {
            for module in modules.iter_mut().filter(|one| *one == "unembed_tokens") {
                *module = "lm_head".into();
            }
        }
        Ok(Self {
            config: format!("{config:#}\n"),
            weights: safetensors::serialize(tensors, Some(super::pytorch()))
                .map_err(super::write_failed)?,
        })
    }
}

/// The name of the model that an adapter says it belongs to.
pub(crate) fn base_model(config: &str) -> Option<String> {
    let config: Value = serde_json::from_str(config).ok()?;
    let name = config.get("base_model_name_or_path")?.as_str()?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// The module a tensor's name belongs to, and whether it is `A` or `B`.
fn module_of(name: &str) -> Option<(&str, char)> {
    let name = name.strip_prefix("base_model.model.").unwrap_or(name);
    let name = name.strip_suffix(".weight")?;
    let name = name.strip_suffix(".default").unwrap_or(name);
    let (module, letter) = name.rsplit_once(".lora_")?;
    let letter = match letter {
        "A" => 'A',
        "B" => 'B',
        _ => return None,
    };
    let module = match module {
        // What the hosted service calls the head.
        "unembed_tokens" | "model.unembed_tokens" | "model.lm_head" => "lm_head",
        other => other,
    };
    Some((module, letter))
}

/// Whether a tensor is the base's own head.
fn is_base(name: &str) -> bool {
    name.strip_suffix(".base_layer.weight")
        .is_some_and(|name| name.ends_with("lm_head") || name.ends_with("unembed_tokens"))
}

/// A target that can be looked up.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place(usize, usize);

impl Place {
    fn of(target: Target) -> Self {
        match target {
            Target::Layer(layer, projection) => Self(layer, projection as usize),
            Target::Head => Self(usize::MAX, 0),
        }
    }

    fn target(&self) -> Target {
        match self {
            Self(usize::MAX, _) => Target::Head,
            Self(layer, projection) => Target::Layer(*layer, Projection::ALL[*projection]),
        }
    }
}

/// The two factors of one correction.
#[derive(Debug)]
struct Module {
    rank: usize,
    /// What stands before `B A`.
    scale: f32,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Module {
    /// Some of the outputs, without the ranks that do nothing for them.
    fn slice(&self, rows: std::ops::Range<usize>, inputs: usize) -> Self {
        let b = &self.b[rows.start * self.rank..rows.end * self.rank];
        let used: Vec<usize> = (0..self.rank)
            .filter(|rank| b.iter().skip(*rank).step_by(self.rank).any(|b| *b != 0.0))
            .collect();
        let row = |rank: &usize| &self.a[rank * inputs..(rank + 1) * inputs];
        let a = used.iter().flat_map(row).copied().collect();
        let columns = |row: &[f32]| used.iter().map(|rank| row[*rank]).collect::<Vec<f32>>();
        Self {
            rank: used.len(),
            scale: self.scale,
            a,
            b: b.chunks_exact(self.rank).flat_map(columns).collect(),
        }
    }
}

/// Every correction of the files, by what it corrects.
fn read(config: &Config, files: &PeftFiles) -> Result<BTreeMap<Place, Module>> {
    let raw: Raw = serde_json::from_str(&files.config)
        .map_err(|error| Error::invalid("adapter_config.json", error.to_string()))?;
    raw.check()?;
    let file = SafeTensors::deserialize(&files.weights).map_err(damaged)?;
    let mut names: BTreeMap<&str, HashMap<char, &str>> = BTreeMap::new();
    for name in file.names() {
        if is_base(name) {
            // `peft` adds a copy of the base's head to an adapter of the head.
            numbers(&file, name, &[config.vocab, config.width])?;
            continue;
        }
        let (module, letter) = module_of(name)
            .ok_or_else(|| Error::invalid(name, "is no part of a plain LoRA of a matrix"))?;
        names.entry(module).or_default().insert(letter, name);
    }
    if names.is_empty() {
        let problem = "has no LoRA in it";
        return Err(Error::invalid("adapter_model.safetensors", problem));
    }
    let targets = Targets::new(config);
    let mut modules = BTreeMap::new();
    for (path, pair) in names {
        let (Some(a), Some(b)) = (pair.get(&'A'), pair.get(&'B')) else {
            return Err(Error::invalid(path, "has only one of lora_A and lora_B"));
        };
        let parts = targets.of(path)?;
        let outputs: usize = parts.iter().map(|(_, outputs, _)| outputs).sum();
        let inputs = parts[0].2;
        let (rank, scale) = raw.rank_and_scale(path)?;
        let module = Module {
            rank,
            scale,
            a: numbers(&file, a, &[rank, inputs])?,
            b: numbers(&file, b, &[outputs, rank])?,
        };
        if let [(target, ..)] = parts[..] {
            modules.insert(Place::of(target), module);
            continue;
        }
        let mut start = 0;
        for (target, outputs, _) in parts {
            let slice = module.slice(start..start + outputs, inputs);
            modules.insert(Place::of(target), slice);
            start += outputs;
        }
    }
    Ok(modules)
}

/// A target with its outputs and inputs.
type Sized = (Target, usize, usize);

/// What module paths stand for in a model.
struct Targets<'a> {
    config: &'a Config,
}

impl<'a> Targets<'a> {
    fn new(config: &'a Config) -> Self {
        Self { config }
    }

    /// The matrices of a module: several where the family stores them as one.
    fn of(&self, path: &str) -> Result<Vec<Sized>> {
        let config = self.config;
        if path == "lm_head" {
            return Ok(vec![(Target::Head, config.vocab, config.width)]);
        }
        let missing = || {
            let problem = format!("is no matrix of this {} model", config.family.name);
            Error::invalid(path, problem)
        };
        let rest = path.strip_prefix("model.layers.").ok_or_else(missing)?;
        let (layer, module) = rest.split_once('.').ok_or_else(missing)?;
        let layer: usize = layer.parse().map_err(|_| missing())?;
        if layer >= config.layers.len() {
            let problem = format!("this model has {} layers", config.layers.len());
            return Err(Error::invalid(path, problem));
        }
        let sized = |projection: Projection| {
            let (outputs, inputs) = projection.shape(config);
            (Target::Layer(layer, projection), outputs, inputs)
        };
        let fused = fused(config).iter().find(|(name, _)| *name == module);
        if let Some((_, projections)) = fused {
            return Ok(projections.iter().copied().map(sized).collect());
        }
        let mut all = Projection::ALL.into_iter();
        let found = all.find(|projection| projection.path() == module);
        found.map(|one| vec![sized(one)]).ok_or_else(missing)
    }
}

/// A tensor's numbers, however they are spelt.
fn numbers(file: &SafeTensors<'_>, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
    let tensor = file.tensor(name).map_err(damaged)?;
    if tensor.shape() != shape {
        let problem = format!(
            "has the shape {:?}, but model and adapter_config.json say {shape:?}",
            tensor.shape()
        );
        return Err(Error::invalid(name, problem));
    }
    let dtype = match tensor.dtype() {
        FileDtype::F32 => Dtype::F32,
        FileDtype::F16 => Dtype::F16,
        FileDtype::BF16 => Dtype::Bf16,
        other => {
            let problem = format!("is stored as {other:?}; only F32, F16 and BF16 are read");
            return Err(Error::invalid(name, problem));
        }
    };
    let mut values = vec![0.0; shape.iter().product()];
    widen(tensor.data(), dtype, &mut values);
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(values),
        false => Err(Error::invalid(name, "holds what is no number")),
    }
}

/// The settings of `adapter_config.json` that matter.
#[derive(Debug, Deserialize)]
struct Raw {
    peft_type: String,
    r: usize,
    lora_alpha: f32,
    use_rslora: Option<bool>,
    rank_pattern: Option<BTreeMap<String, usize>>,
    alpha_pattern: Option<BTreeMap<String, f32>>,
    #[serde(flatten)]
    rest: HashMap<String, Value>,
}

/// Settings that are not run here if they are set to anything.
const VARIANTS: [&str; 10] = [
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "lora_bias",
    "fan_in_fan_out",
    "modules_to_save",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
];

/// Ways to begin that change the base model as well.
const CHANGES_BASE: [&str; 5] = ["pissa", "olora", "corda", "loftq", "lora_ga"];

impl Raw {
    fn check(&self) -> Result<()> {
        let refuse = |name: &str, problem: &str| {
            Err(Error::invalid(
                format!("adapter_config.json {name}"),
                problem,
            ))
        };
        const PLAIN: &str = "is not supported: only plain LoRA is";
        if self.peft_type != "LORA" {
            return refuse("peft_type", PLAIN);
        }
        let setting = |name: &str| self.rest.get(name).unwrap_or(&Value::Null);
        let is_set = |name: &str| match setting(name) {
            Value::Null | Value::Bool(false) => false,
            Value::Array(list) => !list.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            _ => true,
        };
        if let Some(name) = VARIANTS.iter().find(|name| is_set(name)) {
            return refuse(name, PLAIN);
        }
        if setting("bias").as_str().is_some_and(|bias| bias != "none") {
            return refuse("bias", PLAIN);
        }
        let begun = setting("init_lora_weights").as_str().unwrap_or_default();
        if CHANGES_BASE.iter().any(|way| begun.starts_with(way)) {
            let problem = "says that the base model was changed too: convert it to plain LoRA";
            return refuse("init_lora_weights", problem);
        }
        let sensible = |rank: &usize| (1..=1 << 16).contains(rank);
        let mut ranks = self.rank_pattern.iter().flat_map(BTreeMap::values);
        if !sensible(&self.r) || !ranks.all(sensible) {
            return refuse("r", "is no sensible rank");
        }
        let alphas = self.alpha_pattern.iter().flat_map(BTreeMap::values);
        if !alphas
            .chain([&self.lora_alpha])
            .all(|alpha| alpha.is_finite())
        {
            return refuse("lora_alpha", "is no sensible number");
        }
        Ok(())
    }

    fn rank_and_scale(&self, path: &str) -> Result<(usize, f32)> {
        let rank = own("rank_pattern", self.rank_pattern.as_ref(), path)?;
        let alpha = own("alpha_pattern", self.alpha_pattern.as_ref(), path)?;
        let (rank, alpha) = (rank.unwrap_or(self.r), alpha.unwrap_or(self.lora_alpha));
        let divisor = match self.use_rslora {
            Some(true) => (rank as f32).sqrt(),
            _ => rank as f32,
        };
        Ok((rank, alpha / divisor))
    }
}

/// What a pattern says of a module. `peft` takes patterns for regular expressions; those that are
/// plain names are understood.
fn own<T: Copy + PartialEq>(
    field: &str,
    pattern: Option<&BTreeMap<String, T>>,
    path: &str,
) -> Result<Option<T>> {
    let mut found = None;
    for (name, value) in pattern.into_iter().flatten() {
        let refuse = |problem: &str| {
            let field = format!("adapter_config.json {field}");
            Err(Error::invalid(field, format!("`{name}` {problem}")))
        };
        if name.contains(|c: char| "\\^$*+?()|[]{}".contains(c)) {
            return refuse("is a pattern; only plain names of modules are supported");
        }
        let rest = path.strip_suffix(name.as_str());
        if !rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.')) {
            continue;
        }
        if found.is_some_and(|other| other != *value) {
            return refuse("contradicts another name");
        }
        found = Some(*value);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_module_is_understood() {
        #[track_caller]
        fn check(name: &str, expected: Option<(&str, char)>) {
            assert_eq!(module_of(name), expected);
        }
        let q = "model.layers.3.self_attn.q_proj";
        let name = format!("base_model.model.{q}.lora_A.weight");
        check(&name, Some((q, 'A')));
        check(&format!("{q}.lora_B.default.weight"), Some((q, 'B')));
        for head in ["unembed_tokens", "model.unembed_tokens", "lm_head"] {
            let name = format!("base_model.model.{head}.lora_B.weight");
            check(&name, Some(("lm_head", 'B')));
        }
        check("base_model.model.model.norm.weight", None);
        check(&format!("{q}.lora_magnitude_vector"), None);
        check(&format!("{q}.lora_B.bias"), None);
    }

    #[test]
    fn patterns_are_plain_names() {
        let pattern = |name: &str| BTreeMap::from([(name.to_owned(), 2)]);
        let path = "model.layers.10.self_attn.q_proj";
        let own = |name| own("rank_pattern", Some(&pattern(name)), path);
        assert_eq!(own("q_proj").unwrap(), Some(2));
        assert_eq!(own("layers.10.self_attn.q_proj").unwrap(), Some(2));
        assert_eq!(own("0.self_attn.q_proj").unwrap(), None);
        assert_eq!(own("k_proj").unwrap(), None);
        let error = own(r".*\.q_proj").unwrap_err().to_string();
        assert!(error.contains("rank_pattern"), "{error}");
    }
}
