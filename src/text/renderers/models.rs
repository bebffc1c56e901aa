//! What is known about models by name.

/// Facts about a model that help to choose how to train it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelAttributes {
    /// The model's name, as in `Qwen/Qwen3-8B`.
    pub name: &'static str,
    /// Its version, as in `3.1`.
    pub version: &'static str,
    /// Its size, as in `30B-A3B`.
    pub size: &'static str,
    /// Whether it was trained to chat; others continue text.
    pub is_chat: bool,
    /// Whether it sees images.
    pub is_vl: bool,
    /// Renderers designed for it, best first.
    pub recommended_renderers: &'static [&'static str],
}

impl ModelAttributes {
    /// What is known about a model. What follows a `:` in its name, a variant, does not matter.
    ///
    /// ```
    /// use tinker::text::renderers::ModelAttributes;
    ///
    /// let model = ModelAttributes::of("Qwen/Qwen3-30B-A3B:peft:32768").unwrap();
    /// assert_eq!((model.organization(), model.size), ("Qwen", "30B-A3B"));
    /// assert!(ModelAttributes::of("someone/else").is_none());
    /// ```
    pub fn of(model_name: &str) -> Option<Self> {
        let name = model_name.split(':').next().unwrap_or_default();
        if let Some(model) = TABLE.iter().find(|model| model.name == name) {
            return Some(*model);
        }
        // Further models of this line read the same format.
        name.starts_with("thinkingmachines/Inkling")
            .then_some(Self {
                name: "thinkingmachines/Inkling",
                version: "",
                size: "",
                is_chat: true,
                is_vl: true,
                recommended_renderers: TML_V0,
            })
    }

    /// A model that a renderer is made for, whose tokenizer it works with; none for `role_colon`,
    /// which works with any, and for renderers of models that are not in the table.
    ///
    /// ```
    /// use tinker::text::renderers::ModelAttributes;
    ///
    /// let model = ModelAttributes::for_renderer("gpt_oss_high_reasoning").unwrap();
    /// assert_eq!(model.name, "openai/gpt-oss-20b");
    /// ```
    pub fn for_renderer(renderer: &str) -> Option<Self> {
        let of = |same: &dyn Fn(&str) -> bool| {
            let chats = TABLE.iter().filter(|model| model.is_chat);
            chats
                .copied()
                .find(|model| model.recommended_renderers.iter().any(|name| same(name)))
        };
        let kind = without_mode(renderer);
        of(&|name| name == renderer).or_else(|| of(&|name| without_mode(name) == kind))
    }

    /// Who made it, as in `Qwen`.
    pub fn organization(&self) -> &'static str {
        self.name.split('/').next().unwrap_or_default()
    }
}

/// A renderer's name without what it says about thinking, which is no matter of tokens.
fn without_mode(renderer: &str) -> &str {
    let modes = [
        "_disable_thinking",
        "_preserve_thinking",
        "_low_thinking",
        "_medium_thinking",
        "_thinking",
        "_low_reasoning",
        "_medium_reasoning",
        "_xhigh_reasoning",
        "_high_reasoning",
        "_max_reasoning",
        "_no_sysprompt",
        "_instruct",
        "_flash",
    ];
    let mut found = modes.iter().filter_map(|mode| renderer.strip_suffix(mode));
    found.next().unwrap_or(renderer)
}

const LLAMA3: &[&str] = &["llama3"];
const ROLE_COLON: &[&str] = &["role_colon"];
const QWEN3_VL_INSTRUCT: &[&str] = &["qwen3_vl_instruct"];
const QWEN3: &[&str] = &["qwen3", "qwen3_disable_thinking"];
const QWEN3_INSTRUCT: &[&str] = &["qwen3_instruct"];
const QWEN3_5: &[&str] = &[
    "qwen3_5",
    "qwen3_5_disable_thinking",
    "qwen3_5_preserve_thinking",
];
const QWEN3_8: &[&str] = &[
    "qwen3_8_xhigh_reasoning",
    "qwen3_8_disable_thinking",
    "qwen3_8_medium_reasoning",
    "qwen3_8_low_reasoning",
];
const DEEPSEEKV3: &[&str] = &["deepseekv3", "deepseekv3_thinking"];
const DEEPSEEKV4_1: &[&str] = &[
    "deepseekv4_1",
    "deepseekv4_1_low_reasoning",
    "deepseekv4_1_max_reasoning",
    "deepseekv4_1_disable_thinking",
    "deepseekv4_1_preserve_thinking",
];
const GPT_OSS: &[&str] = &["gpt_oss_no_sysprompt", "gpt_oss_medium_reasoning"];
const KIMI_K2: &[&str] = &["kimi_k2"];
const KIMI_K25: &[&str] = &["kimi_k25", "kimi_k25_disable_thinking"];
const KIMI_K26: &[&str] = &[
    "kimi_k26",
    "kimi_k26_disable_thinking",
    "kimi_k26_preserve_thinking",
];
const GLM5_3: &[&str] = &[
    "glm5_3_max_reasoning",
    "glm5_3_low_reasoning",
    "glm5_3_high_reasoning",
];
const NEMOTRON3: &[&str] = &[
    "nemotron3",
    "nemotron3_disable_thinking",
    "nemotron3_preserve_thinking",
];
const NEMOTRON3_SUPER: &[&str] = &[
    "nemotron3",
    "nemotron3_disable_thinking",
    "nemotron3_preserve_thinking",
    "nemotron3_low_thinking",
];
const NEMOTRON3_ULTRA: &[&str] = &[
    "nemotron3_ultra",
    "nemotron3_ultra_disable_thinking",
    "nemotron3_ultra_medium_thinking",
    "nemotron3_ultra_preserve_thinking",
];
const NEMOTRON3_LIGHTNING: &[&str] = &[
    "nemotron3_ultra",
    "nemotron3_ultra_disable_thinking",
    "nemotron3_ultra_preserve_thinking",
];
const TML_V0: &[&str] = &["tml_v0"];

const fn model(
    name: &'static str,
    version: &'static str,
    size: &'static str,
    recommended_renderers: &'static [&'static str],
) -> ModelAttributes {
    ModelAttributes {
        name,
        version,
        size,
        is_chat: true,
        is_vl: false,
        recommended_renderers,
    }
}

/// A model that continues text.
const fn base(name: &'static str, version: &'static str, size: &'static str) -> ModelAttributes {
    ModelAttributes {
        is_chat: false,
        ..model(name, version, size, ROLE_COLON)
    }
}

/// A model that sees.
const fn seeing(model: ModelAttributes) -> ModelAttributes {
    ModelAttributes {
        is_vl: true,
        ..model
    }
}

pub(super) const TABLE: &[ModelAttributes] = &[
    model("meta-llama/Llama-3.1-8B-Instruct", "3.1", "8B", LLAMA3),
    base("meta-llama/Llama-3.2-1B", "3.2", "1B"),
    base("meta-llama/Llama-3.2-3B", "3.2", "3B"),
    base("meta-llama/Llama-3.1-8B", "3.1", "8B"),
    base("meta-llama/Llama-3.1-70B", "3.1", "70B"),
    model("meta-llama/Llama-3.3-70B-Instruct", "3.3", "70B", LLAMA3),
    seeing(model(
        "Qwen/Qwen3-VL-30B-A3B-Instruct",
        "3",
        "30B-A3B",
        QWEN3_VL_INSTRUCT,
    )),
    seeing(model(
        "Qwen/Qwen3-VL-235B-A22B-Instruct",
        "3",
        "235B-A22B",
        QWEN3_VL_INSTRUCT,
    )),
    base("Qwen/Qwen3-8B-Base", "3", "8B"),
    base("Qwen/Qwen3-30B-A3B-Base", "3", "30B-A3B"),
    model("Qwen/Qwen3-8B", "3", "8B", QWEN3),
    model("Qwen/Qwen3-32B", "3", "32B", QWEN3),
    model("Qwen/Qwen3-30B-A3B", "3", "30B-A3B", QWEN3),
    model("Qwen/Qwen3-4B-Instruct-2507", "3", "4B", QWEN3_INSTRUCT),
    model(
        "Qwen/Qwen3-30B-A3B-Instruct-2507",
        "3",
        "30B-A3B",
        QWEN3_INSTRUCT,
    ),
    model(
        "Qwen/Qwen3-235B-A22B-Instruct-2507",
        "3",
        "235B-A22B",
        QWEN3_INSTRUCT,
    ),
    seeing(model("Qwen/Qwen3.5-4B", "3.5", "4B", QWEN3_5)),
    seeing(model("Qwen/Qwen3.5-9B", "3.5", "9B", QWEN3_5)),
    seeing(base("Qwen/Qwen3.5-9B-Base", "3.5", "9B")),
    seeing(model("Qwen/Qwen3.5-27B", "3.5", "27B", QWEN3_5)),
    seeing(model("Qwen/Qwen3.5-35B-A3B", "3.5", "35B-A3B", QWEN3_5)),
    seeing(base("Qwen/Qwen3.5-35B-A3B-Base", "3.5", "35B-A3B")),
    seeing(model("Qwen/Qwen3.5-397B-A17B", "3.5", "397B-A17B", QWEN3_5)),
    seeing(model("Qwen/Qwen3.6-27B", "3.6", "27B", QWEN3_5)),
    seeing(model("Qwen/Qwen3.6-35B-A3B", "3.6", "35B-A3B", QWEN3_5)),
    seeing(model("Qwen/Qwen3.8-27B", "3.8", "27B", QWEN3_8)),
    model("deepseek-ai/DeepSeek-V3.1", "3", "671B-A37B", DEEPSEEKV3),
    base("deepseek-ai/DeepSeek-V3.1-Base", "3", "671B-A37B"),
    model(
        "deepseek-ai/DeepSeek-V4.1-Flash",
        "4.1",
        "552B-A16B",
        DEEPSEEKV4_1,
    ),
    model(
        "deepseek-ai/DeepSeek-V4.1-Flash-1017",
        "4.1",
        "552B-A16B",
        DEEPSEEKV4_1,
    ),
    model("openai/gpt-oss-20b", "1", "21B-A3.6B", GPT_OSS),
    model("openai/gpt-oss-120b", "1", "117B-A5.1B", GPT_OSS),
    model("moonshotai/Kimi-K2-Thinking", "K2", "1T-A32B", KIMI_K2),
    seeing(model("moonshotai/Kimi-K2.5", "K2.5", "1T-A32B", KIMI_K25)),
    seeing(model("moonshotai/Kimi-K2.6", "K2.6", "1T-A32B", KIMI_K26)),
    model("zai-org/GLM-5.3", "5.3", "744B-A40B", GLM5_3),
    model("zai-org/GLM-5.3-Flash", "5.3", "320B-A18B", GLM5_3),
    model(
        "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "3",
        "30B-A3B",
        NEMOTRON3,
    ),
    model(
        "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16",
        "3",
        "120B-A12B",
        NEMOTRON3_SUPER,
    ),
    model(
        "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
        "3",
        "550B-A55B",
        NEMOTRON3_ULTRA,
    ),
    model(
        "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-BF16",
        "3.5",
        "30B-A3B",
        NEMOTRON3_LIGHTNING,
    ),
    seeing(model(
        "nvidia/NVIDIA-Nemotron-3.5-Super-VL-120B-A12B-BF16",
        "3.5",
        "120B-A12B",
        NEMOTRON3_ULTRA,
    )),
    seeing(model("thinkingmachines/Inkling", "1", "975B-A41B", TML_V0)),
    seeing(model(
        "thinkingmachines/Inkling-Small",
        "1",
        "276B-A12B",
        TML_V0,
    )),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renderers_lead_to_models_of_their_own_tokenizer() {
        #[track_caller]
        fn check(renderer: &str, expected: Option<&str>) {
            let found = ModelAttributes::for_renderer(renderer).map(|model| model.name);
            assert_eq!(found, expected, "{renderer}");
        }
        check("llama3", Some("meta-llama/Llama-3.1-8B-Instruct"));
        check("qwen3", Some("Qwen/Qwen3-8B"));
        check("qwen3_preserve_thinking", Some("Qwen/Qwen3-8B"));
        check("qwen3_instruct", Some("Qwen/Qwen3-4B-Instruct-2507"));
        check("qwen3_vl", Some("Qwen/Qwen3-VL-30B-A3B-Instruct"));
        check("qwen3_5_disable_thinking", Some("Qwen/Qwen3.5-4B"));
        check("qwen3_8_low_reasoning", Some("Qwen/Qwen3.8-27B"));
        check(
            "deepseekv3_disable_thinking",
            Some("deepseek-ai/DeepSeek-V3.1"),
        );
        check(
            "deepseekv4_1_max_reasoning",
            Some("deepseek-ai/DeepSeek-V4.1-Flash"),
        );
        check("gpt_oss_high_reasoning", Some("openai/gpt-oss-20b"));
        check(
            "kimi_k2_preserve_thinking",
            Some("moonshotai/Kimi-K2-Thinking"),
        );
        check("kimi_k25", Some("moonshotai/Kimi-K2.5"));
        check("kimi_k26_preserve_thinking", Some("moonshotai/Kimi-K2.6"));
        check("glm5_3_flash", Some("zai-org/GLM-5.3"));
        check(
            "nemotron3_low_thinking",
            Some("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"),
        );
        check(
            "nemotron3_ultra",
            Some("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"),
        );
        check("tml_v0", Some("thinkingmachines/Inkling"));
        // Any tokenizer will do, or that of a model nobody serves.
        check("role_colon", None);
        check("deepseekv4", None);
        check("deepseek_r1", None);
        check("glm5_2", None);
        check("nonsense", None);
    }
}
