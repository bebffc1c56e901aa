//! `tinker checkpoint push-hf`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use serde_json::Value;
use tinker::Error;
use tinker::text::{Hub, HubCommit, Repo, UploadOptions};
use tinker::types::{TinkerPath, WeightsInfo};

use super::download::{downloadable, fetch};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::Table;
use crate::terminal;
use crate::units::yes;

/// Upload a checkpoint to the Hugging Face hub as a PEFT adapter.
#[derive(Debug, Args)]
pub(crate) struct PushHf {
    /// tinker://run-id/weights/name or tinker://run-id/external_weights/name
    checkpoint_path: String,
    /// The repository, as owner/name [default: one of yours, named after model and run]
    #[arg(short, long, value_name = "REPO_ID")]
    repo: Option<String>,
    /// Make the repository public; without it a new one is private.
    #[arg(long)]
    public: bool,
    /// The branch to upload to; made where there is none.
    #[arg(long)]
    revision: Option<String>,
    /// The commit's message.
    #[arg(long, value_name = "TEXT")]
    commit_message: Option<String>,
    /// Open a pull request instead of committing to the branch.
    #[arg(long)]
    create_pr: bool,
    /// Only files that match; may be repeated.
    #[arg(long, value_name = "PATTERN")]
    allow_pattern: Vec<String>,
    /// No files that match; may be repeated.
    #[arg(long, value_name = "PATTERN")]
    ignore_pattern: Vec<String>,
    /// Do not write a model card where there is none.
    #[arg(long)]
    no_model_card: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    checkpoint_path: &'a str,
    repo_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<&'a str>,
    public: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pull_request: Option<&'a str>,
}

impl PushHf {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let path = self.checkpoint_path.as_str();
        let parsed = downloadable(path)?;
        if self.create_pr && self.revision.as_deref().is_some_and(|name| name != "main") {
            let failure = Failure::usage("--create-pr and --revision contradict each other");
            return Err(failure
                .advise("A pull request is made against the main branch.")
                .into());
        }
        let hub = Hub::from_env()?;
        hub.whoami().map_err(not_logged_in)?;

        let scratch = Scratch::new()?;
        let folder = scratch.0.join("adapter");
        let service = context.patient_service()?;
        let info = service.rest().weights_info(path).ok();
        fetch(context, &service, path, &folder, false)?;
        check_adapter(&folder)?;
        let base = info.as_ref().map(|info| info.base_model.as_str());
        name_base(&folder, base.unwrap_or("unknown"))?;

        let (repo_id, revision) = self.target(&parsed, base);
        let mut repo = hub.create_model(&repo_id, !self.public)?;
        if let Some(revision) = &revision {
            repo = repo.with_revision(revision);
            if revision != "main" {
                repo.create_branch()?;
            }
        }
        let card = folder.join("README.md");
        if !self.no_model_card && !card.exists() {
            let text = model_card(path, repo.name(), base.unwrap_or("unknown"), info.as_ref());
            fs::write(&card, text).with_context(|| format!("cannot write {}", card.display()))?;
        }
        check_same(&repo, path)?;
        let done = self.upload(context, &repo, &folder)?;
        self.report(context, &repo, revision.as_deref(), &done)
    }

    /// The repository and the branch, as given or named after what is uploaded.
    fn target(&self, path: &TinkerPath, base: Option<&str>) -> (String, Option<String>) {
        match &self.repo {
            Some(repo) => (repo.clone(), self.revision.clone()),
            None => {
                let base = base.map_or("adapter", |base| base.rsplit('/').next().unwrap_or(base));
                let name = plain(&format!("tinker-{base}-{}", path.run_id()));
                let derived = || plain(&path.checkpoint_id().replace('/', "-"));
                let revision = self.revision.clone();
                (name, revision.or_else(|| (!self.create_pr).then(derived)))
            }
        }
    }

    fn upload(&self, context: &Context, repo: &Repo, folder: &Path) -> anyhow::Result<HubCommit> {
        let mut ignore = self.ignore_pattern.clone();
        if self.allow_pattern.is_empty() {
            // The service's own mark, of no use to others.
            ignore.push("checkpoint_complete".to_owned());
        }
        let mut options = UploadOptions::default()
            .with_create_pr(self.create_pr)
            .with_allow_patterns(&self.allow_pattern)
            .with_ignore_patterns(ignore);
        if let Some(message) = &self.commit_message {
            options = options.with_message(message);
        }
        let bar = match context.is_json() {
            true => indicatif::ProgressBar::hidden(),
            false => terminal::bar(0, terminal::BYTES).with_prefix("Uploading"),
        };
        let drawn = bar.clone();
        let watched = repo.clone().with_progress(move |progress| {
            drawn.set_length(progress.total.unwrap_or_default());
            drawn.set_position(progress.received);
            drawn.set_message(progress.file.clone());
        });
        let done = watched.upload_folder(folder, options);
        bar.finish_and_clear();
        done.context("the upload failed")
    }

    fn report(
        &self,
        context: &mut Context,
        repo: &Repo,
        revision: Option<&str>,
        done: &HubCommit,
    ) -> anyhow::Result<()> {
        let path = self.checkpoint_path.as_str();
        if done.paths.is_empty() {
            context.note("Nothing had changed: the repository has all of it already.");
        }
        let pull_request = done.pull_request.as_deref();
        if context.is_json() {
            return context.out.json(&Report {
                checkpoint_path: path,
                repo_id: repo.name(),
                revision,
                public: self.public,
                pull_request,
            });
        }
        let mut table = Table::properties().titled(format!("Checkpoint Hub Upload: {path}"));
        table.row(["Checkpoint Path", path]);
        table.row(["Repo ID", repo.name()]);
        if let Some(revision) = revision {
            table.row(["Revision", revision]);
        }
        table.row(["Public", &yes(self.public)]);
        if let Some(page) = pull_request {
            table.row(["Pull Request", page]);
        }
        context.out.table(&table)
    }
}

fn not_logged_in(error: Error) -> anyhow::Error {
    match error {
        Error::Credentials(_) => Failure::new("not logged in to the Hugging Face hub")
            .advise("Run 'hf auth login', or set HF_TOKEN to a token with write access.")
            .into(),
        other => other.into(),
    }
}

/// A folder of this process' own, gone with it.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let name = format!("tinker-{:016x}", fastrand::u64(..));
        let folder = std::env::temp_dir().join(name);
        let mut builder = fs::DirBuilder::new();
        builder.recursive(false);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder
            .create(&folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left in the folder for temporary files harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn check_adapter(folder: &Path) -> anyhow::Result<()> {
    let has = |name: &str| folder.join(name).is_file();
    let weights = has("adapter_model.safetensors") || has("adapter_model.bin");
    match has("adapter_config.json") && weights {
        true => Ok(()),
        false => Err(Failure::new("the checkpoint holds no PEFT adapter")
            .advise(
                "adapter_config.json and adapter_model.safetensors (or .bin) are needed; encrypted \
                 weights (.age) cannot be uploaded.",
            )
            .into()),
    }
}

/// Says in the adapter's configuration what it was trained from, if it does not.
fn name_base(folder: &Path, base: &str) -> anyhow::Result<()> {
    let place = folder.join("adapter_config.json");
    let text = fs::read_to_string(&place)?;
    let Ok(Value::Object(mut config)) = serde_json::from_str::<Value>(&text) else {
        return Ok(());
    };
    if config
        .get("base_model_name_or_path")
        .is_some_and(Value::is_string)
    {
        return Ok(());
    }
    config.insert("base_model_name_or_path".to_owned(), base.into());
    let text = serde_json::to_string_pretty(&config)?;
    Ok(fs::write(&place, format!("{text}\n"))?)
}

/// Letters, digits and `-_.` only, as names on the hub are.
fn plain(name: &str) -> String {
    let keep = |c: char| {
        if c.is_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '-'
        }
    };
    let mut name: String = name.chars().map(keep).collect();
    while name.contains("--") {
        name = name.replace("--", "-");
    }
    name.trim_matches(['-', '_', '.']).to_owned()
}

/// Refuses a repository whose card names another checkpoint.
fn check_same(repo: &Repo, path: &str) -> anyhow::Result<()> {
    let Ok(files) = repo.files() else {
        return Ok(());
    };
    let pinned = repo.clone().with_revision(&files.commit);
    let Some(card) = pinned.try_file("README.md").ok().flatten() else {
        return Ok(());
    };
    let bytes = fs::read(card).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let found = text.find(TinkerPath::PREFIX).map(|at| {
        let rest = &text[at..];
        let end = rest.find(|c: char| c.is_whitespace() || c == '`');
        &rest[..end.unwrap_or(rest.len())]
    });
    match found {
        Some(other) if other != path => {
            let message = format!("{} holds another checkpoint, {other}", repo.name());
            Err(Failure::new(message)
                .advise("Choose another repository with --repo, or another --revision.")
                .into())
        }
        _ => Ok(()),
    }
}

/// What the repository says about itself.
fn model_card(path: &str, repo: &str, base: &str, info: Option<&WeightsInfo>) -> String {
    let mut tags = String::from("- tinker\n- peft\n- lora\n");
    if base != "unknown" {
        tags.push_str(&format!("- base_model:adapter:{base}\n"));
    }
    let mut details = format!("- Base model: {base}\n");
    if let Some(rank) = info.and_then(|info| info.lora_rank) {
        details.push_str(&format!("- LoRA rank: {rank}\n"));
    }
    let trained = info.map_or([("", None); 3], |info| {
        [
            ("attn", info.train_attn),
            ("mlp", info.train_mlp),
            ("unembed", info.train_unembed),
        ]
    });
    if trained.iter().any(|(_, known)| known.is_some()) {
        let word = |known: Option<bool>| match known {
            Some(true) => "yes",
            Some(false) => "no",
            None => "unknown",
        };
        let parts = trained.map(|(name, known)| format!("{name}: {}", word(known)));
        details.push_str(&format!("- Trained modules: {}\n", parts.join(", ")));
    }
    format!(
        "---\nbase_model: {base}\nlibrary_name: peft\ntags:\n{tags}tinker_path: {path}\n---\n\n\
         # A LoRA adapter trained with Tinker\n\n\
         Made from the checkpoint\n\n```\n{path}\n```\n\n\
         ## Use\n\n```python\nfrom peft import PeftModel\n\
         from transformers import AutoModelForCausalLM\n\n\
         base = AutoModelForCausalLM.from_pretrained(\"{base}\")\n\
         model = PeftModel.from_pretrained(base, \"{repo}\")\n```\n\n\
         ## Details\n\n{details}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for (name, expected) in [
            ("tinker-Qwen3-8B-a:train:0", "tinker-Qwen3-8B-a-train-0"),
            ("weights/0001", "weights-0001"),
            ("--a  b..", "a-b"),
        ] {
            assert_eq!(plain(name), expected);
        }
    }
}
