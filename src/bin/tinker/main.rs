//! The `tinker` command line.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line prints"
)]

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "tinker", about = "Command line for Tinker")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the version.
    Version,
    /// Serve the embedded engine over HTTP.
    #[cfg(feature = "local")]
    Serve(commands::serve::Serve),
}

fn main() -> ExitCode {
    let result: anyhow::Result<()> = match Cli::parse().command {
        Command::Version => {
            println!("tinker {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        #[cfg(feature = "local")]
        Command::Serve(serve) => commands::serve::run(&serve),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
