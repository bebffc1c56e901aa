//! What tells one family of decoders from another: a description each, and one code path for all.
//!
//! To add a family, add its description to [`FAMILIES`] and a fixture of it; where it does
//! something no other does, add the field that says so.

/// One family of decoders.
#[derive(Debug, PartialEq)]
pub(crate) struct Family {
    /// `model_type` in a folder's `config.json`.
    pub(crate) name: &'static str,
    /// `general.architecture` in a GGUF file.
    pub(crate) gguf: &'static str,
    /// A norm on every query and key head.
    pub(crate) head_norms: bool,
    /// Norms after attention and after the MLP as well as before them.
    pub(crate) after_norms: bool,
    /// Norm weights are stored as their distance from 1.
    pub(crate) norms_from_one: bool,
    /// Embeddings are multiplied by the root of the width.
    pub(crate) scaled_embedding: bool,
    /// Queries, keys and values carry a bias whatever the configuration says.
    pub(crate) qkv_bias: bool,
    /// Queries, keys and values share one stored matrix, gate and up another.
    pub(crate) fused: bool,
    /// GGUF files hold the rows of queries and keys in interleaved order.
    pub(crate) gguf_interleaved: bool,
    pub(crate) windows: Windows,
    /// What an absent setting of `config.json` means.
    pub(crate) defaults: Defaults,
}

/// Which layers see only the last `sliding_window` positions, unless `layer_types` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Windows {
    /// None, whatever else is written.
    Never,
    /// All, if there is a window at all.
    Every,
    /// Those from `max_window_layers` on, if `use_sliding_window` is set.
    FromLayer,
    /// All but every sixth, or as `sliding_window_pattern` says.
    Pattern,
    /// Those without rotary positions, if `use_sliding_window` is set.
    WithoutRope,
}

/// The values transformers assumes for absent settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Defaults {
    pub(crate) tied_head: bool,
    pub(crate) rope_theta: f64,
    pub(crate) sliding_window: Option<usize>,
    pub(crate) max_positions: usize,
    pub(crate) activation: Activation,
    pub(crate) norm_eps: f32,
}

/// What the MLP's gate goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu,
    /// The approximation of GELU by a hyperbolic tangent.
    GeluTanh,
}

/// Every family this engine runs.
pub(crate) static FAMILIES: [Family; 7] = [
    LLAMA,
    Family {
        name: "qwen3",
        gguf: "qwen3",
        head_norms: true,
        gguf_interleaved: false,
        windows: Windows::FromLayer,
        defaults: Defaults {
            max_positions: 32_768,
            sliding_window: Some(4096),
            ..LLAMA.defaults
        },
        ..LLAMA
    },
    Family {
        name: "qwen2",
        gguf: "qwen2",
        qkv_bias: true,
        gguf_interleaved: false,
        windows: Windows::FromLayer,
        defaults: Defaults {
            max_positions: 32_768,
            sliding_window: Some(4096),
            ..LLAMA.defaults
        },
        ..LLAMA
    },
    Family {
        name: "mistral",
        // GGUF files call Mistral's models llama.
        gguf: "",
        windows: Windows::Every,
        defaults: Defaults {
            max_positions: 131_072,
            sliding_window: Some(4096),
            ..LLAMA.defaults
        },
        ..LLAMA
    },
    Family {
        name: "gemma3_text",
        gguf: "gemma3",
        head_norms: true,
        after_norms: true,
        norms_from_one: true,
        scaled_embedding: true,
        gguf_interleaved: false,
        windows: Windows::Pattern,
        defaults: Defaults {
            tied_head: true,
            rope_theta: 1e6,
            sliding_window: Some(4096),
            max_positions: 131_072,
            activation: Activation::GeluTanh,
            norm_eps: 1e-6,
        },
        ..LLAMA
    },
    Family {
        name: "smollm3",
        gguf: "smollm3",
        windows: Windows::WithoutRope,
        defaults: Defaults {
            tied_head: true,
            rope_theta: 2e6,
            max_positions: 32_768,
            ..LLAMA.defaults
        },
        ..LLAMA
    },
    Family {
        name: "phi3",
        gguf: "phi3",
        fused: true,
        gguf_interleaved: false,
        windows: Windows::Every,
        defaults: Defaults {
            max_positions: 4096,
            norm_eps: 1e-5,
            ..LLAMA.defaults
        },
        ..LLAMA
    },
];

/// Llama 2 and 3 and their relatives: what the other descriptions start from.
const LLAMA: Family = Family {
    name: "llama",
    gguf: "llama",
    head_norms: false,
    after_norms: false,
    norms_from_one: false,
    scaled_embedding: false,
    qkv_bias: false,
    fused: false,
    gguf_interleaved: true,
    windows: Windows::Never,
    defaults: Defaults {
        tied_head: false,
        rope_theta: 10_000.0,
        sliding_window: None,
        max_positions: 2048,
        activation: Activation::Silu,
        norm_eps: 1e-6,
    },
};

impl Family {
    /// The family `config.json` names.
    pub(crate) fn named(model_type: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.name == model_type)
    }

    /// The names of all families, for messages.
    pub(crate) fn names() -> String {
        let names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        names.join(", ")
    }
}

impl Activation {
    /// The activation a configuration names.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "silu" | "swish" => Some(Self::Silu),
            "gelu_pytorch_tanh" | "gelu_new" => Some(Self::GeluTanh),
            _ => None,
        }
    }
}
