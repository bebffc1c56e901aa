//! Models as folders that `transformers` reads.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::gguf::Front;
use super::output::{Failure, Output};
use super::{Export, Exported, Opened, WeightType};
use crate::error::{Context, Error, Result};
use crate::local::engine::{
    Activation, Config, Dtype, Layout, MergedTensor, Rope, Scaling, Windows, builtin,
};
use crate::local::source::Files;

/// Files that go with a model, by how their names begin: tokenizer, templates, how to sample.
const COMPANIONS: [&str; 8] = [
    "generation_config.json",
    "tokenizer",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template",
    "tiktoken.model",
];

pub(super) fn write(export: &Export, opened: &Opened, folder: &Path) -> Result<Exported> {
    let weight_type = match (export.weight_type, opened.stored) {
        (Some(WeightType::Q8_0), _) => {
            let problem = "q8_0 is for GGUF files; folders have f32, f16 or bf16";
            return Err(Error::invalid("weight type", problem));
        }
        (Some(given), _) => given,
        (None, Dtype::F32) => WeightType::F32,
        (None, Dtype::Bf16) => WeightType::Bf16,
        (None, _) => WeightType::F16,
    };
    let companions = companions(&opened.files)?;
    let config = config(opened, weight_type)?;
    let output = Output::folder(folder, export.force, &opened.sources(export))?;
    for (name, bytes) in &companions {
        output.write(name, bytes)?;
    }
    output.write("config.json", format!("{config:#}\n").as_bytes())?;
    let weights = &opened.weights;
    let tensors = weights.merged(Some(&opened.adapter), Layout::HuggingFace);
    let bytes = write_weights(export, &output, &tensors, weight_type)?;
    Ok(Exported {
        path: output.publish()?,
        bytes,
        weight_type: Some(weight_type),
        untied: opened.unties(),
    })
}

/// One file of weights, or several and their index.
fn write_weights(
    export: &Export,
    output: &Output,
    tensors: &[MergedTensor<'_>],
    weight_type: WeightType,
) -> Result<u64> {
    let bytes = |tensor: &MergedTensor<'_>| weight_type.bytes(tensor.len()) as u64;
    let total: u64 = tensors.iter().map(bytes).sum();
    let mut shards: Vec<Vec<&MergedTensor<'_>>> = vec![Vec::new()];
    let mut taken = 0;
    for tensor in tensors {
        if taken + bytes(tensor) > export.shard && taken > 0 {
            shards.push(Vec::new());
            taken = 0;
        }
        taken += bytes(tensor);
        if let Some(shard) = shards.last_mut() {
            shard.push(tensor);
        }
    }
    let mut places = Map::new();
    let mut done = 0;
    for (index, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        for tensor in shard {
            places.insert(tensor.name.clone(), name.as_str().into());
        }
        output.stream(&name, |file| {
            file.write_all(&header(shard, weight_type))?;
            let mut buffer = Vec::new();
            for tensor in shard {
                tensor.each(|numbers| {
                    buffer.clear();
                    weight_type.spell(numbers, &mut buffer).map_err(|problem| {
                        Failure::Weights(Error::invalid(&tensor.name, problem))
                    })?;
                    done += buffer.len() as u64;
                    export.hear(done, total)?;
                    file.write_all(&buffer).map_err(Failure::from)
                })?;
            }
            Ok(())
        })?;
    }
    if shards.len() > 1 {
        let index = json!({"metadata": {"total_size": total}, "weight_map": places});
        let index = format!("{index:#}\n");
        output.write("model.safetensors.index.json", index.as_bytes())?;
    }
    Ok(total)
}

/// What a safetensors file begins with.
fn header(tensors: &[&MergedTensor<'_>], weight_type: WeightType) -> Vec<u8> {
    let dtype = match weight_type {
        WeightType::F32 => "F32",
        WeightType::Bf16 => "BF16",
        WeightType::F16 | WeightType::Q8_0 => "F16",
    };
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut start = 0;
    for tensor in tensors {
        let end = start + weight_type.bytes(tensor.len());
        let entry = json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": [start, end]});
        entries.insert(tensor.name.clone(), entry);
        start = end;
    }
    let mut text = Value::Object(entries).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    header
}

/// The files that go with a base model.
fn companions(files: &Files) -> Result<Vec<(String, Vec<u8>)>> {
    let of = |name: &str, text: &str| (name.to_owned(), text.as_bytes().to_vec());
    match files {
        Files::BuiltIn => Ok(vec![
            of("tokenizer.json", builtin::TOKENIZER),
            of("tokenizer_config.json", builtin::TOKENIZER_CONFIG),
        ]),
        Files::Gguf(path) => {
            let (tokenizer, config) = Front::open(path)?.tokenizer_files()?;
            let config = format!("{config:#}\n");
            Ok(vec![
                of("tokenizer.json", &tokenizer.to_string()),
                of("tokenizer_config.json", &config),
            ])
        }
        Files::Folder(folder) => {
            let cannot = |error| {
                let message = format!("cannot read {}", folder.display());
                Error::Io(Context::caused(message, error))
            };
            let mut found = Vec::new();
            for entry in fs::read_dir(folder).map_err(cannot)? {
                let entry = entry.map_err(cannot)?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let wanted = COMPANIONS.iter().any(|start| name.starts_with(start));
                // The cache of the hub has links.
                if wanted && entry.path().is_file() {
                    found.push((name, fs::read(entry.path()).map_err(cannot)?));
                }
            }
            found.sort();
            Ok(found)
        }
    }
}

/// The merged model's `config.json`: the base's, but for what merging changes.
fn config(opened: &Opened, weight_type: WeightType) -> Result<Value> {
    let parse = |bytes: &[u8]| -> Result<Value> {
        let cannot = |error| Error::Config(Context::caused("cannot read config.json", error));
        serde_json::from_slice(bytes).map_err(cannot)
    };
    let mut config = match &opened.files {
        Files::BuiltIn => parse(builtin::CONFIG.as_bytes())?,
        Files::Folder(folder) => {
            let path = folder.join("config.json");
            let cannot = |error| {
                let message = format!("cannot read {}", path.display());
                Error::Io(Context::caused(message, error))
            };
            parse(&fs::read(&path).map_err(cannot)?)?
        }
        Files::Gguf(path) => described(&opened.weights.config, &Front::open(path)?)?,
    };
    let dtype = match weight_type {
        WeightType::F32 => "float32",
        WeightType::Bf16 => "bfloat16",
        WeightType::F16 | WeightType::Q8_0 => "float16",
    };
    // Older versions know only the second name.
    let key = match config.get("torch_dtype") {
        Some(_) => "torch_dtype",
        None => "dtype",
    };
    config[key] = dtype.into();
    if opened.unties() {
        config["tie_word_embeddings"] = false.into();
    }
    Ok(config)
}

/// A `config.json` for a model that came without one, checked by reading it back.
fn described(config: &Config, front: &Front) -> Result<Value> {
    let family = config.family;
    let class = match family.name {
        "gemma3_text" => "Gemma3",
        "llama" => "Llama",
        "mistral" => "Mistral",
        "phi3" => "Phi3",
        "qwen2" => "Qwen2",
        "qwen3" => "Qwen3",
        "smollm3" => "SmolLM3",
        other => {
            let problem = format!("there is no config.json for a {other} model from GGUF");
            return Err(Error::invalid("general.architecture", problem));
        }
    };
    let activation = match config.activation {
        Activation::Silu => "silu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
    };
    let layer_types = config.layers.iter().map(|layer| match layer.window {
        Some(_) => "sliding_attention",
        None => "full_attention",
    });
    let window = config.layers.iter().find_map(|layer| layer.window);
    let rope = &config.ropes[0];
    let mut json = json!({
        "architectures": [format!("{class}ForCausalLM")],
        "attention_bias": config.bias.output,
        "head_dim": config.head_dim,
        "hidden_size": config.width,
        "intermediate_size": config.mlp,
        "max_position_embeddings": config.max_positions,
        "mlp_bias": config.bias.mlp,
        "model_type": family.name,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers.len(),
        "num_key_value_heads": config.kv_heads,
        "rms_norm_eps": short(config.norm_eps),
        "rope_theta": rope.theta,
        "rope_scaling": scaling(rope, config.rotary_dim)?,
        "sliding_window": window,
        "tie_word_embeddings": config.tied_head,
        "vocab_size": config.vocab,
    });
    for role in ["bos", "eos", "pad"] {
        json[format!("{role}_token_id")] = front.token(role).into();
    }
    if !config.eos.is_empty() {
        json["eos_token_id"] = json!(config.eos);
    }
    if config.rotary_dim != config.head_dim {
        let part = config.rotary_dim as f64 / config.head_dim as f64;
        json["partial_rotary_factor"] = part.into();
    }
    let key = match family.scaled_embedding {
        true => "hidden_activation",
        false => "hidden_act",
    };
    json[key] = activation.into();
    match family.windows {
        Windows::Pattern => {
            json["layer_types"] = layer_types.collect();
            json["rope_local_base_freq"] = config.ropes[1].theta.into();
            let scalar = f64::from(config.query_scale).powi(-2).round();
            json["query_pre_attn_scalar"] = scalar.into();
        }
        Windows::WithoutRope => {
            let rotates = |layer: usize| u8::from(config.layers[layer].rope.is_some());
            json["no_rope_layers"] = (0..config.layers.len()).map(rotates).collect();
        }
        Windows::FromLayer => json["use_sliding_window"] = false.into(),
        Windows::Every | Windows::Never => {}
    }
    let read = Config::parse(json.to_string().as_bytes())?;
    match is_same(&read, config) {
        true => Ok(json),
        false => {
            let problem = "no config.json says what this GGUF file says: export it as GGUF";
            Err(Error::invalid(family.name, problem))
        }
    }
}

fn scaling(rope: &Rope, dim: usize) -> Result<Value> {
    Ok(match &rope.scaling {
        Scaling::None => Value::Null,
        Scaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        Scaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            original_positions,
            truncate,
            attention,
        } => json!({
            "rope_type": "yarn",
            "factor": factor,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            "original_max_position_embeddings": original_positions,
            "truncate": truncate,
            "attention_factor": attention,
        }),
        Scaling::Llama3 { .. } => llama3(&rope.scaling),
        Scaling::Factors(factors) => {
            // GGUF files keep only what comes out of Llama 3's formula; its makers used one set of
            // settings but for the factor.
            let most = factors.iter().copied().fold(1.0, f32::max);
            let guess = Rope {
                theta: rope.theta,
                scaling: Scaling::Llama3 {
                    factor: f64::from(most).round(),
                    low_frequency: 1.0,
                    high_frequency: 4.0,
                    original_positions: 8192.0,
                },
            };
            match is_close(
                &guess.rotary(dim).frequencies,
                &rope.rotary(dim).frequencies,
            ) {
                true => llama3(&guess.scaling),
                false => {
                    let problem = "no config.json says how these positions are stretched";
                    return Err(Error::invalid("rope_freqs.weight", problem));
                }
            }
        }
    })
}

fn llama3(scaling: &Scaling) -> Value {
    match scaling {
        Scaling::Llama3 {
            factor,
            low_frequency,
            high_frequency,
            original_positions,
        } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_frequency,
            "high_freq_factor": high_frequency,
            "original_max_position_embeddings": *original_positions as u64,
        }),
        _ => Value::Null,
    }
}

/// Whether two descriptions are of the same model, but for how positions are written and what ends
/// a text.
fn is_same(a: &Config, b: &Config) -> bool {
    let neutral = |config: &Config| Config {
        ropes: Vec::new(),
        eos: Vec::new(),
        usual: b.usual,
        ..config.clone()
    };
    let ropes = a.rotaries().into_iter().zip(b.rotaries());
    let mut ropes = ropes.map(|(a, b)| {
        (a.factor - b.factor).abs() < 1e-6 && is_close(&a.frequencies, &b.frequencies)
    });
    neutral(a) == neutral(b) && a.ropes.len() == b.ropes.len() && ropes.all(|same| same)
}

fn is_close(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs())
}

/// The shortest number that reads as the same `f32`.
fn short(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}
