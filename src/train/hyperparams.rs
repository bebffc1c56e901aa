//! What is known about the served models: a learning rate to start from, the size of an adapter.

use crate::types::LoraConfig;
use crate::{Error, Result};

/// A learning rate to start from, for training an adapter of a model.
///
/// It is known for the Llama and Qwen families, where it follows from the model's width. A
/// suffix of the name (`:peft:262144`) does not matter.
///
/// ```
/// let rate = tinker::train::learning_rate_for("Qwen/Qwen3-8B")?;
/// assert!((rate - 4.73e-4).abs() < 1e-6);
/// # Ok::<(), tinker::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Invalid`] for other models; about 5e-4 is a good first try for those.
#[doc(alias = "get_lr")]
pub fn learning_rate_for(model: &str) -> Result<f64> {
    Ok(full_learning_rate_for(model)? * 10.0)
}

/// A learning rate to start from, for training all of a model's weights: a tenth of
/// [`learning_rate_for`].
///
/// # Errors
///
/// As there.
pub fn full_learning_rate_for(model: &str) -> Result<f64> {
    let lower = base_name(model).to_lowercase();
    let exponent = match () {
        () if lower.contains("llama") => 0.781,
        () if lower.contains("qwen") => 0.0775,
        () => {
            let problem = format!(
                "no learning rate is calibrated for {model:?}; choose one yourself, about 5e-4"
            );
            return Err(Error::invalid("model", problem));
        }
    };
    Ok(5e-5 * (2000.0 / f64::from(known(model)?.hidden)).powf(exponent))
}

/// How many parameters an adapter of a model has.
///
/// ```
/// use tinker::{LoraConfig, train::lora_parameters};
///
/// assert_eq!(lora_parameters("Qwen/Qwen3-8B", &LoraConfig::rank(32))?, 92_286_976);
/// # Ok::<(), tinker::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Invalid`] for a model that is not in the table, and for an adapter of nothing.
#[doc(alias = "get_lora_param_count")]
pub fn lora_parameters(model: &str, lora: &LoraConfig) -> Result<u64> {
    lora.validate()?;
    let [mlp, attn, unembed] = known(model)?.per_rank;
    let trained = [
        (lora.train_mlp, mlp),
        (lora.train_attn, attn),
        (lora.train_unembed, unembed),
    ];
    let per_rank: u64 = trained
        .iter()
        .filter(|part| part.0)
        .map(|part| part.1)
        .sum();
    Ok(per_rank * u64::from(lora.rank))
}

/// A model's name without what follows its first colon.
fn base_name(model: &str) -> &str {
    model.split_once(':').map_or(model, |(name, _)| name)
}

fn known(model: &str) -> Result<&'static Model> {
    let name = base_name(model);
    let found = MODELS.iter().find(|model| model.name == name);
    found.ok_or_else(|| Error::invalid("model", format!("nothing is known about {model:?}")))
}

struct Model {
    name: &'static str,
    hidden: u32,
    /// Parameters of an adapter of rank 1 on the MLP, attention and unembedding layers. Experts
    /// share the factor on the hidden side.
    per_rank: [u64; 3],
}

const fn row(name: &'static str, hidden: u32, per_rank: [u64; 3]) -> Model {
    Model {
        name,
        hidden,
        per_rank,
    }
}

#[rustfmt::skip]
const MODELS: &[Model] = &[
    row("Qwen/Qwen3-235B-A22B-Instruct-2507", 4_096, [56_598_528, 3_176_448, 156_032]),
    row("Qwen/Qwen3-30B-A3B", 2_048, [14_450_688, 835_584, 153_984]),
    row("Qwen/Qwen3-30B-A3B-Base", 2_048, [14_450_688, 835_584, 153_984]),
    row("Qwen/Qwen3-30B-A3B-Instruct-2507", 2_048, [14_450_688, 835_584, 153_984]),
    row("Qwen/Qwen3-32B", 5_120, [5_898_240, 2_490_368, 157_056]),
    row("Qwen/Qwen3-4B-Instruct-2507", 2_560, [1_327_104, 737_280, 154_496]),
    row("Qwen/Qwen3-8B", 4_096, [1_769_472, 958_464, 156_032]),
    row("Qwen/Qwen3-8B-Base", 4_096, [1_769_472, 958_464, 156_032]),
    row("Qwen/Qwen3-VL-235B-A22B-Instruct", 4_096, [56_598_528, 3_176_448, 156_032]),
    row("Qwen/Qwen3-VL-30B-A3B-Instruct", 2_048, [14_450_688, 835_584, 153_984]),
    row("Qwen/Qwen3.5-27B", 5_120, [4_325_376, 2_965_504, 253_440]),
    row("Qwen/Qwen3.5-35B-A3B", 2_048, [16_281_600, 1_013_760, 250_368]),
    row("Qwen/Qwen3.5-35B-A3B-Base", 2_048, [16_281_600, 1_013_760, 250_368]),
    row("Qwen/Qwen3.5-397B-A17B", 4_096, [96_030_720, 2_841_600, 252_416]),
    row("Qwen/Qwen3.5-4B", 2_560, [1_130_496, 897_024, 250_880]),
    row("Qwen/Qwen3.5-9B", 4_096, [1_572_864, 1_130_496, 252_416]),
    row("Qwen/Qwen3.5-9B-Base", 4_096, [1_572_864, 1_130_496, 252_416]),
    row("Qwen/Qwen3.6-27B", 5_120, [4_325_376, 2_965_504, 253_440]),
    row("Qwen/Qwen3.6-35B-A3B", 2_048, [16_281_600, 1_013_760, 250_368]),
    row("Qwen/Qwen3.8-27B", 5_120, [4_325_376, 2_965_504, 253_440]),
    row("deepseek-ai/DeepSeek-V3.1", 7_168, [94_307_328, 2_440_000, 136_448]),
    row("deepseek-ai/DeepSeek-V3.1-Base", 7_168, [94_307_328, 2_440_000, 136_448]),
    row("deepseek-ai/DeepSeek-V4.1-Flash", 5_120, [107_673_600, 1_013_760, 134_400]),
    row("deepseek-ai/DeepSeek-V4.1-Flash-1017", 5_120, [107_673_600, 1_013_760, 134_400]),
    row("meta-llama/Llama-3.1-70B", 8_192, [8_847_360, 4_096_000, 136_448]),
    row("meta-llama/Llama-3.1-8B", 4_096, [1_769_472, 851_968, 132_352]),
    row("meta-llama/Llama-3.1-8B-Instruct", 4_096, [1_769_472, 851_968, 132_352]),
    row("meta-llama/Llama-3.2-1B", 2_048, [491_520, 212_992, 130_304]),
    row("meta-llama/Llama-3.2-3B", 3_072, [946_176, 573_440, 131_328]),
    row("meta-llama/Llama-3.3-70B-Instruct", 8_192, [8_847_360, 4_096_000, 136_448]),
    row("moonshotai/Kimi-K2-Thinking", 7_168, [144_583_680, 1_940_288, 171_008]),
    row("moonshotai/Kimi-K2.5", 7_168, [144_583_680, 1_940_288, 171_008]),
    row("moonshotai/Kimi-K2.6", 7_168, [144_583_680, 1_940_288, 171_008]),
    row("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 2_688, [11_346_176, 584_832, 133_760]),
    row("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", 4_096, [111_349_760, 1_675_264, 135_168]),
    row("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 8_192, [254_529_536, 4_134_912, 139_264]),
    row("nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16", 2_688, [11_346_176, 584_832, 133_760]),
    row("nvidia/NVIDIA-Nemotron-3.5-Super-VL-120B-A12B-BF16", 4_096, [111_349_760, 1_675_264, 135_168]),
    row("openai/gpt-oss-120b", 2_880, [40_124_160, 746_496, 203_968]),
    row("openai/gpt-oss-20b", 2_880, [6_842_880, 497_664, 203_968]),
    row("thinkingmachines/Inkling", 6_144, [154_705_920, 3_424_256, 207_168]),
    row("thinkingmachines/Inkling-Small", 4_096, [64_503_808, 1_311_744, 205_120]),
    row("zai-org/GLM-5.3", 6_144, [121_356_288, 2_920_320, 161_024]),
    row("zai-org/GLM-5.3-Flash", 4_096, [75_755_520, 2_009_088, 158_976]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_stands_once_and_in_order() {
        assert!(MODELS.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn unembedding_adapters_are_as_wide_as_the_model_and_its_vocabulary() {
        for model in MODELS {
            let vocabulary = model.per_rank[2] - u64::from(model.hidden);
            assert!((120_000..300_000).contains(&vocabulary), "{}", model.name);
        }
    }
}
