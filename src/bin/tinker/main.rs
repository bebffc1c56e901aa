//! The `tinker` command line.

#![allow(clippy::print_stdout, reason = "a command line prints")]

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
}

fn main() {
    match Cli::parse().command {
        Command::Version => println!("tinker {}", env!("CARGO_PKG_VERSION")),
    }
}
