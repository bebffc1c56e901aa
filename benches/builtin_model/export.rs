//! An adapter on its way to Python's `peft`.

use std::path::Path;

use crate::local::engine::{AdamParams, Base, LoraSpec, Loss, Trainer, builtin};
use crate::pig_latin::question;
use crate::tasks;

/// A trained adapter as `peft`'s files. The long form leaves the shipped model, the adapter and its
/// log-probabilities in `target/peft`, where `tests/fixtures/engine/check_peft.py` compares them with
/// transformers and peft.
pub(crate) fn exports_an_adapter_for_peft(long: bool) {
    let base = Base::builtin(2).unwrap();
    let mut trainer = Trainer::new(&base, LoraSpec::new(8, 1)).unwrap();
    let (prompt, answer) = question("elephant");
    let data = [tasks::datum(&prompt, &answer, 1.0)];
    for _ in 0..5 {
        trainer
            .forward_backward(&data, &Loss::CrossEntropy)
            .unwrap();
        let adam = AdamParams {
            learning_rate: 1e-3,
            ..AdamParams::default()
        };
        trainer.optim_step(&adam).unwrap();
    }
    let output = trainer.forward(&data, &Loss::CrossEntropy).unwrap();
    let files = trainer
        .adapter()
        .to_peft("target/peft", base.config())
        .unwrap();
    let config: serde_json::Value = serde_json::from_str(&files.config).unwrap();
    assert_eq!(config["r"], 8);
    if !long {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/peft");
    std::fs::create_dir_all(folder.join("adapter")).unwrap();
    let expected = serde_json::json!({
        "tokens": data[0].tokens,
        "targets": data[0].targets,
        "logprobs": output.data[0].logprobs,
    });
    for (name, bytes) in [
        ("config.json", builtin::CONFIG.as_bytes()),
        ("model.safetensors", builtin::WEIGHTS),
        ("tokenizer.json", builtin::TOKENIZER.as_bytes()),
        (
            "tokenizer_config.json",
            builtin::TOKENIZER_CONFIG.as_bytes(),
        ),
        ("adapter/adapter_config.json", files.config.as_bytes()),
        ("adapter/adapter_model.safetensors", &files.weights),
        ("expected.json", expected.to_string().as_bytes()),
    ] {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}
