//! `tinker completions` and `tinker man`: what shells and `man` want to know about this command.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::context::Context;

/// Print completions for a shell: tinker completions bash > ~/.local/share/bash-completion/completions/tinker
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Which shell.
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self, context: &mut Context, mut command: Command) -> anyhow::Result<()> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut command, "tinker", &mut text);
        context.out.text(&String::from_utf8(text)?)
    }
}

/// Print the manual page, or write one for each command into a folder.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Where to write tinker.1, tinker-run.1 and the rest.
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl Man {
    pub(crate) fn run(self, context: &mut Context, command: Command) -> anyhow::Result<()> {
        let Some(folder) = self.folder else {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            return context.out.text(&String::from_utf8(page)?);
        };
        let cannot = || format!("cannot write to {}", folder.display());
        fs::create_dir_all(&folder).with_context(cannot)?;
        clap_mangen::generate_to(command, &folder).with_context(cannot)
    }
}
