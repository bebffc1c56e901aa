//! `tinker export`.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use tinker::local::export::{Export as Exporter, Exported, WeightType};
use tinker::types::TinkerPath;

use super::checkpoint::download::{downloadable, fetch};
use super::checkpoint::push::Scratch;
use crate::context::Context;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Table;
use crate::terminal;
use crate::units::{size, yes};

/// What was typed after `tinker export`.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// tinker://run-id/weights/name, or a folder or tar archive of an adapter
    path: String,
    /// What to write: the adapter for peft, a whole model for transformers, or a GGUF file for
    /// llama.cpp and Ollama.
    #[arg(long = "as", value_name = "FORM")]
    form: Form,
    /// How weights are stored: f32, f16, bf16, or q8_0 in GGUF files [default: as the base model's
    /// are in a folder, f16 in a GGUF file]
    #[arg(long = "type", value_name = "TYPE")]
    weight_type: Option<WeightType>,
    /// The folder or file to make [default: one in the current folder, named after the adapter]
    #[arg(short, long, value_name = "PATH")]
    out: Option<PathBuf>,
    /// The base model: a Hugging Face folder, a GGUF file, or a repository of the hub [default: the
    /// one the adapter names]
    #[arg(short, long, value_name = "[NAME=]PATH|REPOSITORY")]
    model: Option<String>,
    /// Replace what is there already.
    #[arg(long)]
    force: bool,
}

/// What can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Form {
    Peft,
    Hf,
    Gguf,
}

#[derive(Serialize)]
struct Report<'a> {
    path: &'a str,
    form: Form,
    destination: String,
    #[serde(rename = "type")]
    weight_type: Option<&'static str>,
    size_bytes: u64,
    untied: bool,
}

impl Export {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let target = self.target();
        if target.symlink_metadata().is_ok() && !self.force {
            let problem = format!("{} is there already", target.display());
            let advice = "--force replaces it; --out writes to another place.";
            return Err(Failure::new(problem).advise(advice).into());
        }
        let mut scratch = None;
        let adapter = match self.path.starts_with(TinkerPath::PREFIX) {
            false => PathBuf::from(&self.path),
            true => {
                downloadable(&self.path)?;
                let folder = scratch.insert(Scratch::new()?).0.join("adapter");
                let service = context.patient_service()?;
                fetch(context, &service, &self.path, &folder, false)?.folder
            }
        };
        let done = self.write(context, adapter, &target)?;
        drop(scratch);
        self.report(context, &done)
    }

    fn write(&self, context: &Context, adapter: PathBuf, to: &Path) -> anyhow::Result<Exported> {
        let bar = match context.is_json() {
            true => indicatif::ProgressBar::hidden(),
            false => terminal::bar(0, terminal::BYTES).with_prefix("Exporting"),
        };
        let drawn = bar.clone();
        // The export looks whether it was pressed, and removes what it wrote.
        interrupt::on(|| {});
        let mut export =
            Exporter::new(adapter)
                .with_force(self.force)
                .on_progress(move |done, all| {
                    drawn.set_length(all);
                    drawn.set_position(done);
                    match interrupt::happened() {
                        true => ControlFlow::Break(()),
                        false => ControlFlow::Continue(()),
                    }
                });
        if let Some(model) = &self.model {
            export = export.with_model(model.as_str());
        }
        if let Some(weight_type) = self.weight_type {
            export = export.with_type(weight_type);
        }
        let done = match self.form {
            Form::Peft => export.to_peft(to),
            Form::Hf => export.to_hugging_face(to),
            Form::Gguf => export.to_gguf(to),
        };
        bar.finish_and_clear();
        Ok(done?)
    }

    /// Where to write, named after the adapter unless it was said.
    fn target(&self) -> PathBuf {
        if let Some(out) = &self.out {
            return out.clone();
        }
        let stem = match self.path.strip_prefix(TinkerPath::PREFIX) {
            Some(path) => path.replace(['/', ':'], "_"),
            None => stem(&self.path),
        };
        let name = match self.form {
            Form::Peft => format!("{stem}-peft"),
            Form::Hf => format!("{stem}-hf"),
            Form::Gguf => {
                let weight_type = self.weight_type.unwrap_or(WeightType::F16);
                format!("{stem}-{weight_type}.gguf")
            }
        };
        PathBuf::from(name)
    }

    fn report(&self, context: &mut Context, done: &Exported) -> anyhow::Result<()> {
        let destination = done.path.display().to_string();
        let weight_type = done.weight_type.map(WeightType::as_str);
        if context.is_json() {
            return context.out.json(&Report {
                path: &self.path,
                form: self.form,
                destination,
                weight_type,
                size_bytes: done.bytes,
                untied: done.untied,
            });
        }
        let mut table = Table::properties().titled(format!("Export: {}", self.path));
        table.row(["Written to", &destination]);
        table.row(["Total Size", &size(done.bytes)]);
        if let Some(weight_type) = weight_type {
            table.row(["Weights", weight_type]);
            table.row(["Head of its own", &yes(done.untied)]);
        }
        context.out.table(&table)
    }
}

/// The name of a folder or an archive without what says that it is one.
pub(crate) fn stem(path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    let ends = [".tar.gz", ".tgz", ".tar"];
    let stem = ends.iter().find_map(|end| name.strip_suffix(end));
    stem.unwrap_or(&name).to_owned()
}
