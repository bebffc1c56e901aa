//! Models as GGUF files, for llama.cpp.

use std::path::Path;

use super::output::{Failure, Output};
use super::{Export, Exported, Opened, WeightType};
use crate::error::{Error, Result};
use crate::gguf::write::{ALIGNMENT, Header};
use crate::gguf::{Gguf, Value};
use crate::local::engine::{
    Config, Family, Layout, MergedTensor, Rope, Scaling, Windows, builtin, ggml_name,
};
use crate::local::source::Files;
use crate::text::to_gguf::{self, Values};

pub(super) fn write(export: &Export, opened: &Opened, file: &Path) -> Result<Exported> {
    let config = &opened.weights.config;
    let weight_type = export.weight_type.unwrap_or(WeightType::F16);
    check(config)?;
    let mut values = general(&opened.name, config, weight_type);
    values.extend(shape(config)?);
    values.extend(vocabulary(opened)?);
    let mut header = Header::default();
    for (name, value) in &values {
        header.put(name, value);
    }
    let factors = frequency_factors(config);
    if let Some(factors) = &factors {
        header.tensor(
            ROPE_FREQS,
            &[factors.len()],
            kind(WeightType::F32),
            factors.len() * 4,
        );
    }
    let weights = &opened.weights;
    let tensors = weights.merged(Some(&opened.adapter), Layout::Gguf);
    for tensor in &tensors {
        let name = ggml_name(&tensor.name, config.family);
        let own = type_of(tensor, weight_type);
        header.tensor(&name, &tensor.shape, kind(own), own.bytes(tensor.len()));
    }
    let total = header.data_bytes();
    let header = header.finish();
    let output = Output::file(file, export.force, &opened.sources(export))?;
    output.stream("", |out| {
        out.write_all(&header)?;
        let mut writer = Numbers {
            export,
            out,
            done: 0,
            total,
        };
        if let Some(factors) = &factors {
            writer.piece(ROPE_FREQS, factors, WeightType::F32)?;
            writer.pad()?;
        }
        for tensor in &tensors {
            let own = type_of(tensor, weight_type);
            tensor.each(|numbers| writer.piece(&tensor.name, numbers, own))?;
            writer.pad()?;
        }
        Ok(())
    })?;
    Ok(Exported {
        path: output.publish()?,
        bytes: header.len() as u64 + total,
        weight_type: Some(weight_type),
        untied: opened.unties(),
    })
}

/// The tensor that carries Llama 3's stretched positions.
const ROPE_FREQS: &str = "rope_freqs.weight";

/// Numbers on their way into the file.
struct Numbers<'a> {
    export: &'a Export,
    out: &'a mut dyn std::io::Write,
    done: u64,
    total: u64,
}

impl Numbers<'_> {
    fn piece(&mut self, name: &str, numbers: &[f32], own: WeightType) -> Result<(), Failure> {
        let mut buffer = Vec::with_capacity(own.bytes(numbers.len()));
        own.spell(numbers, &mut buffer)
            .map_err(|problem| Failure::Weights(Error::invalid(name, problem)))?;
        self.out.write_all(&buffer)?;
        self.done += buffer.len() as u64;
        self.export.hear(self.done, self.total)
    }

    fn pad(&mut self) -> Result<(), Failure> {
        let end = self.done.next_multiple_of(ALIGNMENT);
        let padding = &[0; ALIGNMENT as usize][..(end - self.done) as usize];
        self.out.write_all(padding)?;
        self.done = end;
        Ok(())
    }
}

/// Vectors stay exact; rows that are no whole number of blocks cannot be quantised.
fn type_of(tensor: &MergedTensor<'_>, wanted: WeightType) -> WeightType {
    match tensor.shape[..] {
        [_, width] if wanted.fits(width) => wanted,
        [_, _] => WeightType::F16,
        _ => WeightType::F32,
    }
}

/// ggml's number of a type.
fn kind(weight_type: WeightType) -> u32 {
    match weight_type {
        WeightType::F32 => 0,
        WeightType::F16 => 1,
        WeightType::Q8_0 => 8,
        WeightType::Bf16 => 30,
    }
}

/// What llama.cpp calls a file whose weights are mostly of a type.
fn file_type(weight_type: WeightType) -> u64 {
    match weight_type {
        WeightType::F32 => 0,
        WeightType::F16 => 1,
        WeightType::Q8_0 => 7,
        WeightType::Bf16 => 32,
    }
}

/// What GGUF files call the family; Mistral's models are llamas there.
fn architecture(family: &Family) -> &'static str {
    match family.gguf {
        "" => "llama",
        known => known,
    }
}

fn general(name: &str, config: &Config, weight_type: WeightType) -> Values {
    let text = |text: &str| Value::Text(text.to_owned());
    vec![
        (
            "general.architecture".into(),
            text(architecture(config.family)),
        ),
        ("general.type".into(), text("model")),
        ("general.name".into(), text(name)),
        (
            "general.file_type".into(),
            Value::Uint(file_type(weight_type)),
        ),
        ("general.quantization_version".into(), Value::Uint(2)),
        ("general.alignment".into(), Value::Uint(ALIGNMENT)),
    ]
}

/// Sizes, norms and positions.
fn shape(config: &Config) -> Result<Values> {
    let mut values = Values::new();
    let prefix = architecture(config.family);
    let mut put = |name: &str, value: Value| values.push((format!("{prefix}.{name}"), value));
    for (name, size) in [
        ("context_length", config.max_positions),
        ("embedding_length", config.width),
        ("block_count", config.layers.len()),
        ("feed_forward_length", config.mlp),
        ("attention.head_count", config.heads),
        ("attention.head_count_kv", config.kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", config.rotary_dim),
        ("vocab_size", config.vocab),
    ] {
        put(name, Value::Uint(size as u64));
    }
    let eps = f64::from(config.norm_eps);
    put("attention.layer_norm_rms_epsilon", Value::Float(eps));
    put("rope.freq_base", Value::Float(config.ropes[0].theta));
    if let Some(window) = config.layers.iter().find_map(|layer| layer.window) {
        put("attention.sliding_window", Value::Uint(window as u64));
    }
    let kind = |name: &str| Value::Text(name.to_owned());
    match config.ropes[0].scaling {
        Scaling::None | Scaling::Llama3 { .. } | Scaling::Factors(_) => {}
        Scaling::Linear { factor } => {
            put("rope.scaling.type", kind("linear"));
            put("rope.scaling.factor", Value::Float(factor));
        }
        Scaling::Yarn {
            factor,
            original_positions,
            attention,
            ..
        } => {
            put("rope.scaling.type", kind("yarn"));
            put("rope.scaling.factor", Value::Float(factor));
            let original = Value::Uint(original_positions as u64);
            put("rope.scaling.original_context_length", original);
            let usual = 0.1 * factor.max(1.0).ln() + 1.0;
            put("rope.scaling.attn_factor", Value::Float(attention / usual));
        }
    }
    Ok(values)
}

/// Refuses what a GGUF file has no place for, or what llama.cpp takes for granted otherwise.
fn check(config: &Config) -> Result<()> {
    let family = config.family;
    let refuse = |field: &str, problem: &str| {
        let problem = format!("{problem}; export it as a Hugging Face folder");
        Err(Error::invalid(field, problem))
    };
    if config.activation != family.defaults.activation {
        return refuse(
            "hidden_act",
            "GGUF files cannot say another than the family's",
        );
    }
    if family.gguf_interleaved && config.rotary_dim != config.head_dim {
        let problem = "llama.cpp turns whole heads of this family";
        return refuse("partial_rotary_factor", problem);
    }
    let window = config.layers.iter().find_map(|layer| layer.window);
    let expected = |layer: usize| match family.windows {
        Windows::Pattern if !(layer + 1).is_multiple_of(6) => (Some(1), window),
        Windows::Pattern => (Some(0), None),
        Windows::WithoutRope => ((!(layer + 1).is_multiple_of(4)).then_some(0), None),
        Windows::Every if family.name == "phi3" => (Some(0), window),
        _ => (Some(0), None),
    };
    for (index, layer) in config.layers.iter().enumerate() {
        if (layer.rope, layer.window) != expected(index) {
            let problem = format!(
                "layer {index} sees or rotates otherwise than llama.cpp's {}",
                architecture(family)
            );
            return refuse("layer_types", &problem);
        }
    }
    if family.windows == Windows::Pattern && config.ropes[1] != Rope::plain(10_000.0) {
        let problem = "llama.cpp takes 10000 for granted";
        return refuse("rope_local_base_freq", problem);
    }
    let divisor = match family.scaled_embedding && config.layers.len() == 62 {
        true => config.width / config.heads,
        false => config.head_dim,
    };
    if (config.query_scale - (divisor as f32).sqrt().recip()).abs() > 1e-6 {
        let problem = "llama.cpp takes another for granted";
        return refuse("query_pre_attn_scalar", problem);
    }
    match config.ropes[0].scaling {
        Scaling::Yarn {
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            ..
        } => Ok(()),
        Scaling::Yarn { .. } => refuse("rope_scaling", "llama.cpp has other bounds for YaRN"),
        Scaling::Llama3 { .. } | Scaling::Factors(_) if architecture(family) != "llama" => {
            refuse("rope_scaling", "llama.cpp stretches only llamas so")
        }
        _ => Ok(()),
    }
}

/// What Llama 3's frequencies are divided by.
fn frequency_factors(config: &Config) -> Option<Vec<f32>> {
    let rope = &config.ropes[0];
    if !matches!(rope.scaling, Scaling::Llama3 { .. } | Scaling::Factors(_)) {
        return None;
    }
    let dim = config.rotary_dim;
    let plain = Rope::plain(rope.theta).rotary(dim).frequencies;
    let scaled = rope.rotary(dim).frequencies;
    Some(plain.iter().zip(&scaled).map(|(a, b)| a / b).collect())
}

fn vocabulary(opened: &Opened) -> Result<Values> {
    let config = &opened.weights.config;
    let tokens = config.vocab;
    let mut values = match &opened.files {
        Files::BuiltIn => to_gguf::of_text(builtin::TOKENIZER, builtin::TOKENIZER_CONFIG, tokens)?,
        Files::Folder(folder) => to_gguf::of_folder(folder, tokens)?,
        // As it was.
        Files::Gguf(path) => return Ok(Front::open(path)?.vocabulary()),
    };
    // What ends a text may be what the tokenizer says, and what the model's makers add.
    let find = |values: &Values, name: &str| {
        let found = values.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    };
    let mut known = find(&values, "tokenizer.ggml.eos_token_id");
    let mut names = ["eos", "eot", "eom"].into_iter();
    if known.is_some() {
        names.next();
    }
    for id in &config.eos {
        let id = Value::Uint(u64::from(*id));
        if known.as_ref() == Some(&id) {
            continue;
        }
        let Some(name) = names.next() else { break };
        known = known.or(Some(id.clone()));
        values.push((format!("tokenizer.ggml.{name}_token_id"), id));
    }
    Ok(values)
}

/// The front of a GGUF file a model came from.
pub(super) struct Front(Gguf);

impl Front {
    pub(super) fn open(path: &Path) -> Result<Self> {
        Gguf::open(path).map(Self)
    }

    /// All that it says of tokens.
    fn vocabulary(&self) -> Values {
        let all = self.0.values();
        all.filter(|(name, _)| name.starts_with("tokenizer."))
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect()
    }

    /// `tokenizer.json` and `tokenizer_config.json`.
    pub(super) fn tokenizer_files(&self) -> Result<(serde_json::Value, serde_json::Value)> {
        to_gguf::files_of(&self.0)
    }

    /// The token of a role: `bos`, `eos`, `pad`.
    pub(super) fn token(&self, role: &str) -> Option<u64> {
        let role = if role == "pad" { "padding" } else { role };
        self.0.whole(&format!("tokenizer.ggml.{role}_token_id"))
    }
}
