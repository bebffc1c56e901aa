//! `tinker serve`: the embedded service as a program of its own.

use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use tinker::local::LocalServer;

/// What was typed after `tinker serve`.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Port to listen on; 0 takes any that is free.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Address to listen on; one that other machines can reach demands a key.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Write the port to this file once the server is ready.
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
    /// Keep runs and checkpoints in this folder, across restarts; new, empty, or used before.
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
    /// Serve this model instead of the built-in one: a Hugging Face folder or a GGUF file.
    #[arg(long, value_name = "[NAME=]PATH")]
    model: Option<String>,
    /// Demand this API key; read from a file so that it does not show in process lists.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Threads for the model's arithmetic; 0 takes one per core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Set a configuration flag clients will see, as NAME=JSON.
    #[arg(long = "flag", value_name = "NAME=JSON")]
    flags: Vec<String>,
    /// Open the admin route, by which tests inject faults.
    #[arg(long)]
    admin: bool,
}

/// Serves until SIGTERM or Ctrl-C.
pub(crate) fn run(serve: &Serve) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        eprintln!("warning: this is an unoptimised build; the engine is many times slower");
    }
    let signals = Signals::listen()?;
    let mut builder = LocalServer::builder()
        .host(serve.host)
        .port(serve.port)
        .threads(serve.threads)
        .admin(serve.admin);
    if let Some(folder) = &serve.data {
        builder = builder.data(folder);
    }
    if let Some(model) = &serve.model {
        builder = builder.model(model.as_str());
    }
    if let Some(file) = &serve.key_file {
        let key = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        anyhow::ensure!(
            !key.trim().is_empty(),
            "the key file {} is empty",
            file.display()
        );
        builder = builder.api_key(key.trim());
    }
    for flag in &serve.flags {
        let (name, value) = flag
            .split_once('=')
            .with_context(|| format!("--flag takes NAME=JSON, got {flag:?}"))?;
        let value: serde_json::Value = serde_json::from_str(value)
            .with_context(|| format!("the value of --flag {name} is not JSON"))?;
        builder = builder.flag(name, value);
    }
    let server = builder.start()?;
    for problem in server.problems() {
        eprintln!("warning: {problem}");
    }
    if let Some(file) = &serve.port_file {
        write_port(file, server.port())?;
    }
    // Whoever reads a pipe waits for this line.
    let mut out = std::io::stdout();
    writeln!(out, "{}", server.base_url())?;
    out.flush()?;
    signals.wait();
    drop(server);
    Ok(())
}

/// Written whole or not at all: the file's existence says that the server is ready.
fn write_port(file: &std::path::Path, port: u16) -> anyhow::Result<()> {
    let partial = file.with_extension("partial");
    std::fs::write(&partial, format!("{port}\n"))
        .and_then(|()| std::fs::rename(&partial, file))
        .with_context(|| format!("cannot write {}", file.display()))
}

/// The signals that end the server.
struct Signals {
    #[cfg(unix)]
    wake: std::os::unix::net::UnixStream,
}

impl Signals {
    #[cfg(unix)]
    fn listen() -> anyhow::Result<Self> {
        use signal_hook::consts::{SIGINT, SIGTERM};

        let (wake, sender) = std::os::unix::net::UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(Self { wake })
    }

    #[cfg(unix)]
    fn wait(mut self) {
        // A byte arrives with the first signal; an error would mean the same.
        let _ = std::io::Read::read(&mut self.wake, &mut [0]);
    }

    /// Elsewhere the console's default handler ends the process.
    #[cfg(not(unix))]
    fn listen() -> anyhow::Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    fn wait(self) {
        loop {
            std::thread::park();
        }
    }
}
