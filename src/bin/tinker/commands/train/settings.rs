//! What can be set: by flags, or in a TOML file of the same names.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use tinker::text::TrainOnWhat;

use crate::failure::Failure;

/// What can be set. A flag goes before the file.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields, default)]
pub(crate) struct Settings {
    /// Lines of JSON.
    #[arg(value_name = "FILE.jsonl")]
    #[serde(serialize_with = "as_text")]
    pub(super) data: Option<PathBuf>,
    /// Settings as TOML, by the names of these options: `learning_rate = 1e-4`.
    #[arg(long, value_name = "FILE.toml")]
    #[serde(skip)]
    pub(super) config: Option<PathBuf>,
    /// The base model.
    #[arg(short, long)]
    pub(super) model: Option<String>,
    /// The run's folder: metrics, checkpoints, plots.
    #[arg(short = 'o', long, value_name = "FOLDER")]
    #[serde(serialize_with = "as_text")]
    pub(super) log_path: Option<PathBuf>,
    /// Go on with the run in that folder, from its last checkpoint.
    #[arg(long)]
    #[serde(skip)]
    pub(super) resume: bool,
    /// Delete the run in that folder and begin anew.
    #[arg(long)]
    #[serde(skip)]
    pub(super) overwrite: bool,
    /// The highest learning rate [default: sft: what is recommended for the model; dpo, rl: 1e-5;
    /// distill: 1e-4]
    #[arg(long, value_name = "RATE")]
    pub(super) learning_rate: Option<f64>,
    /// The adapter's rank [default: 32]
    #[arg(long, value_name = "N")]
    pub(super) rank: Option<u32>,
    /// Times through the data [default: 1]
    #[arg(long, value_name = "N")]
    pub(super) epochs: Option<usize>,
    /// Examples, pairs or problems in a step [default: 32]
    #[arg(long, value_name = "N")]
    pub(super) batch_size: Option<usize>,
    /// Steps at most.
    #[arg(long, value_name = "N")]
    pub(super) max_steps: Option<usize>,
    /// sft, dpo: longer examples are cut [default: not]
    #[arg(long, value_name = "TOKENS")]
    pub(super) max_length: Option<usize>,
    /// Steps between checkpoints [default: 20]
    #[arg(long, value_name = "STEPS")]
    pub(super) save_every: Option<usize>,
    /// Steps between evaluations [default: 10]
    #[arg(long, value_name = "STEPS")]
    pub(super) eval_every: Option<usize>,
    /// How many lines to keep for evaluation [default: none]
    #[arg(long, value_name = "N")]
    pub(super) test_size: Option<usize>,
    /// The renderer [default: the model's]
    #[arg(long, value_name = "NAME")]
    pub(super) renderer: Option<String>,
    /// The tokenizer's folder or its model's name, if not the model's own.
    #[arg(long, value_name = "PATH|MODEL")]
    pub(super) tokenizer: Option<String>,
    /// sft, dpo: what to train on [default: sft: all_assistant_messages; dpo: last_assistant_message]
    #[arg(long, value_name = "MODE")]
    pub(super) train_on: Option<TrainOnWhat>,
    /// Begin with these weights: tinker://run-id/weights/name
    #[arg(long, value_name = "PATH")]
    pub(super) load_checkpoint: Option<String>,
    /// Makes the same adapter again.
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<i64>,
    /// dpo: how strongly to prefer [default: 0.1]
    #[arg(long, value_name = "BETA")]
    pub(super) beta: Option<f64>,
    /// rl, distill: answers to each prompt [default: 4]
    #[arg(long, value_name = "N")]
    pub(super) group_size: Option<usize>,
    /// rl, distill: tokens of an answer at most [default: 256]
    #[arg(long, value_name = "N")]
    pub(super) max_tokens: Option<u32>,
    /// rl: what makes an answer right: exact, contains, number (the last one said), or
    /// command=PROGRAM, which reads {"prompt", "answer", "response"} and prints a reward
    #[arg(long, value_name = "GRADER")]
    pub(super) grader: Option<String>,
    /// distill: the teacher, a model's name or tinker://run-id/sampler_weights/name
    #[arg(long, value_name = "MODEL")]
    pub(super) teacher: Option<String>,
    /// rl: how much to hold to the model as it was; distill: how much to follow the teacher [default: 0, 1]
    #[arg(long, value_name = "COEFFICIENT")]
    pub(super) kl: Option<f32>,
}

impl Settings {
    /// Refuses what this kind of training would not heed or could make no sense of.
    pub(super) fn check(&self, kind: &str) -> anyhow::Result<()> {
        for (name, value) in fields(self)? {
            let option = name.replace('_', "-");
            let problem = match value.as_f64() {
                _ if !has_use(kind, &name) => {
                    format!("tinker train {kind} has no use for --{option}")
                }
                Some(0.0) if is_count(&name) => format!("--{option} must be at least 1, got 0"),
                Some(number) if number < 0.0 && name == "kl" => {
                    format!("--{option} must not be below 0, got {number}")
                }
                _ => continue,
            };
            return Err(Failure::usage(problem)
                .advise(format!("'tinker train {kind} --help' shows what there is."))
                .into());
        }
        Ok(())
    }

    /// Refuses numbers that are none, which would pass for not being set.
    fn check_numbers(&self) -> anyhow::Result<()> {
        let numbers = [
            ("learning-rate", self.learning_rate),
            ("beta", self.beta),
            ("kl", self.kl.map(f64::from)),
        ];
        for (option, number) in numbers {
            if let Some(number) = number.filter(|number| !number.is_finite()) {
                let problem = format!("--{option} must be finite, got {number}");
                return Err(Failure::usage(problem).into());
            }
        }
        Ok(())
    }

    /// The file's settings with the flags before them.
    pub(super) fn with_file(self) -> anyhow::Result<Self> {
        self.check_numbers()?;
        let Some(file) = &self.config else {
            return Ok(self);
        };
        let name = file.display();
        let text = fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
        let read: Settings = toml::from_str(&text).with_context(|| format!("in {name}"))?;
        read.check_numbers()?;
        let mut all = fields(&read)?;
        all.extend(fields(&self)?);
        let merged: Settings = serde_json::from_value(Value::Object(all))?;
        Ok(Self {
            data: self.data.or(merged.data),
            log_path: self.log_path.or(merged.log_path),
            config: self.config,
            resume: self.resume,
            overwrite: self.overwrite,
            ..merged
        })
    }
}

/// A path as text, though it may be none: the path itself counts.
fn as_text<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_ref()
        .map(|path| path.to_string_lossy())
        .serialize(serializer)
}

/// Whether a kind of training has a use for a setting.
fn has_use(kind: &str, setting: &str) -> bool {
    match setting {
        "max_length" | "train_on" => matches!(kind, "sft" | "dpo"),
        "beta" => kind == "dpo",
        "group_size" | "max_tokens" | "kl" => matches!(kind, "rl" | "distill"),
        "grader" => kind == "rl",
        "teacher" => kind == "distill",
        _ => true,
    }
}

/// Whether a setting counts things of which there must be some.
fn is_count(setting: &str) -> bool {
    matches!(
        setting,
        "rank" | "epochs" | "batch_size" | "max_steps" | "max_length" | "group_size" | "max_tokens"
    )
}

/// What is set.
fn fields(settings: &Settings) -> anyhow::Result<Map<String, Value>> {
    let Value::Object(mut all) = serde_json::to_value(settings)? else {
        anyhow::bail!("settings are an object");
    };
    all.retain(|_, value| !value.is_null());
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_before_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.toml");
        fs::write(
            &file,
            "model = \"a\"\nepochs = 3\ntrain_on = \"all_tokens\"\n",
        )
        .unwrap();
        let flags = Settings {
            config: Some(file.clone()),
            epochs: Some(5),
            resume: true,
            ..Settings::default()
        };
        let merged = flags.clone().with_file().unwrap();
        assert_eq!(
            (merged.model.as_deref(), merged.epochs),
            (Some("a"), Some(5))
        );
        assert_eq!(merged.train_on, Some(TrainOnWhat::AllTokens));
        assert!(merged.resume);
        let no_number = Settings {
            learning_rate: Some(f64::NAN),
            ..flags.clone()
        };
        assert!(no_number.with_file().is_err());
        fs::write(&file, "kl = nan\n").unwrap();
        assert!(flags.clone().with_file().is_err());
        fs::write(&file, "epoch = 3\n").unwrap();
        let error = format!("{:#}", flags.with_file().unwrap_err());
        assert!(error.contains("epoch"), "{error}");
    }
}
