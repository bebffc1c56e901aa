//! `tinker serve`: the embedded service as a program of its own.

use std::error::Error as StdError;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use tinker::Error;
use tinker::config::Config;
use tinker::local::{Builder, LocalServer};

use super::export::stem;
use super::runs::default_root;
use crate::context::install_logger;
use crate::failure::{Failure, of_settings};

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
    /// Show the runs in this folder, and one level below it, on the page; may be repeated [default:
    /// that of 'tinker runs', unless --key-file lets several people in].
    #[arg(long, value_name = "FOLDER")]
    runs: Vec<PathBuf>,
    /// Serve this model instead of the built-in one: a Hugging Face folder, a GGUF file, or a
    /// repository of the hub. May be repeated; each is loaded when it is used.
    #[arg(long = "model", value_name = "[NAME=]PATH|REPOSITORY")]
    models: Vec<String>,
    /// Serve this adapter too, as tinker://adapter-NAME:train:0/sampler_weights/NAME (and /weights/NAME
    /// to train on from): a folder or tar archive of peft, the hosted service or 'tinker export'. May be
    /// repeated.
    #[arg(long = "adapter", value_name = "[NAME=]PATH")]
    adapters: Vec<String>,
    /// Demand a key of this file: one per line, with a name before it where several users share
    /// the server and each has runs and checkpoints of their own.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Encrypt connections with this certificate (PEM, with those that signed it).
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Answer to this host name too, beside addresses and localhost.
    #[arg(long = "allow-host", value_name = "NAME")]
    hosts: Vec<String>,
    /// Let pages of this site use the server from a browser, such as https://example.org.
    #[arg(long = "cors", value_name = "ORIGIN")]
    origins: Vec<String>,
    /// What to log on standard error [default: what TINKER_LOG says, else warn]
    #[arg(long, value_name = "LEVEL", value_parser = PossibleValuesParser::new(LEVELS)
        .map(|level| level.parse::<log::LevelFilter>().expect("each is a level")))]
    log: Option<log::LevelFilter>,
    /// Log every request.
    #[arg(long)]
    request_log: bool,
    /// Memory for models in training and their batches, in MiB [default: three quarters of the machine's].
    #[arg(long, value_name = "MIB")]
    max_memory: Option<usize>,
    /// Memory for adapters of sampling clients, in MiB; unused ones beyond it go to disk [default:
    /// an eighth of the above].
    #[arg(long, value_name = "MIB")]
    adapter_memory: Option<usize>,
    /// Save the state of models in training this often, in seconds, and when the server stops: with
    /// --data the next server goes on with them; 0 keeps nothing.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    save_every: u64,
    /// Serve this many connections at once; more are turned away with a 503.
    #[arg(long, value_name = "COUNT", default_value_t = 4096)]
    max_connections: usize,
    /// Forget ended sessions, and runs without checkpoints, after this many days.
    #[arg(long, value_name = "DAYS", default_value_t = 90)]
    keep_days: u64,
    /// How many of them to remember at most, the latest.
    #[arg(long, value_name = "COUNT", default_value_t = 10_000)]
    keep_count: usize,
    /// Log-probabilities of sampled tokens: the model's own (raw), or those that the temperature
    /// makes of them (tempered).
    #[arg(long, value_name = "KIND", default_value = "raw")]
    logprobs: Logprobs,
    /// Draw samples from the weights rounded to Q8_0: faster, and not quite what training scores.
    #[arg(long)]
    quantized_sampling: bool,
    /// Threads for the model's arithmetic, at most 1024; 0 takes one per core.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Set a configuration flag clients will see, as NAME=JSON.
    #[arg(long = "flag", value_name = "NAME=JSON")]
    flags: Vec<String>,
    /// Open the admin route, by which tests inject faults.
    #[arg(long)]
    admin: bool,
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Which log-probabilities sampled tokens get.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Logprobs {
    Raw,
    Tempered,
}

/// Serves until SIGTERM or Ctrl-C.
pub(crate) fn run(serve: &Serve) -> anyhow::Result<()> {
    install_logger(Some(log_level(serve)?));
    let signals = Signals::listen()?;
    raise_descriptors();
    let server = options(serve)?.start().map_err(hindered)?;
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

/// What keeps a server from starting, with what to do about it.
pub(super) fn hindered(error: Error) -> anyhow::Error {
    let cause = error.source().and_then(<dyn StdError>::downcast_ref);
    let advice = match &error {
        _ if cause.map(io::Error::kind) == Some(io::ErrorKind::AddrInUse) => {
            "Another program listens there: choose another port with --port; 0 takes any that is free."
        }
        Error::Invalid(problem) if problem.field() == "host" => "Give it one with --key-file FILE.",
        _ => return error.into(),
    };
    Failure::because(error).advise(advice).into()
}

/// Takes as many open files as the system allows: each connection is one, and the usual limit is
/// for programs that have few.
#[cfg(unix)]
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where that is refused, the server does with what there is.
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        log::debug!("the limit on open files stays: {error}");
    }
}

#[cfg(not(unix))]
fn raise_descriptors() {}

fn log_level(serve: &Serve) -> anyhow::Result<log::LevelFilter> {
    let level = match serve.log {
        Some(level) => level,
        None => Config::from_env()
            .map_err(of_settings)?
            .log_level()
            .unwrap_or(log::LevelFilter::Warn),
    };
    Ok(match serve.request_log {
        true => level.max(log::LevelFilter::Info),
        false => level,
    })
}

fn days(count: u64) -> Duration {
    Duration::from_secs(count.saturating_mul(24 * 3600))
}

/// What was typed as the server's options.
fn options(serve: &Serve) -> anyhow::Result<Builder> {
    let mut builder = LocalServer::builder()
        .host(serve.host)
        .port(serve.port)
        .threads(serve.threads)
        .max_connections(serve.max_connections)
        .save_every(Duration::from_secs(serve.save_every))
        .keep_records(days(serve.keep_days), serve.keep_count)
        .tempered_logprobs(matches!(serve.logprobs, Logprobs::Tempered))
        .quantized_sampling(serve.quantized_sampling)
        .admin(serve.admin)
        .request_log(serve.request_log);
    if let Some(folder) = &serve.data {
        builder = builder.data(folder);
    }
    let mut runs = serve.runs.clone();
    if runs.is_empty() && serve.key_file.is_none() {
        runs.push(default_root());
    }
    for folder in runs {
        builder = builder.runs(folder);
    }
    for model in &serve.models {
        builder = builder.model(model.as_str());
    }
    for adapter in &serve.adapters {
        let (name, path) = named_adapter(adapter);
        builder = builder.adapter(name, path);
    }
    if let Some(file) = &serve.key_file {
        for (name, key) in keys(file)? {
            builder = builder.user(name, key);
        }
    }
    if let (Some(certificate), Some(key)) = (&serve.tls_cert, &serve.tls_key) {
        builder = builder.tls(certificate, key);
    }
    if let Some(mebibytes) = serve.max_memory {
        builder = builder.max_memory(mebibytes.saturating_mul(1 << 20));
    }
    if let Some(mebibytes) = serve.adapter_memory {
        builder = builder.adapter_memory(mebibytes.saturating_mul(1 << 20));
    }
    for name in &serve.hosts {
        builder = builder.allow_host(name);
    }
    for origin in &serve.origins {
        builder = builder.cors(origin);
    }
    for flag in &serve.flags {
        let (name, value) = flag
            .split_once('=')
            .with_context(|| format!("--flag takes NAME=JSON, got {flag:?}"))?;
        let value: serde_json::Value = serde_json::from_str(value)
            .with_context(|| format!("the value of --flag {name} is not JSON"))?;
        builder = builder.flag(name, value);
    }
    Ok(builder)
}

/// An adapter's name and place; without a name it is called after its folder or archive.
fn named_adapter(text: &str) -> (String, PathBuf) {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !Path::new(text).exists() => {
            (name.to_owned(), path.into())
        }
        _ => (stem(text), text.into()),
    }
}

/// The names and keys of a key file; a key without a name belongs to `local`.
fn keys(file: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Vec<_> = lines
        .map(|line| match line.split_once(char::is_whitespace) {
            Some((name, key)) => (name.to_owned(), key.trim().to_owned()),
            None => ("local".to_owned(), line.to_owned()),
        })
        .collect();
    anyhow::ensure!(!keys.is_empty(), "the key file {} is empty", file.display());
    Ok(keys)
}

/// Written whole or not at all: the file's existence says that the server is ready.
pub(super) fn write_port(file: &Path, port: u16) -> anyhow::Result<()> {
    let mut partial = file.as_os_str().to_owned();
    partial.push(format!(".{}.partial", std::process::id()));
    std::fs::write(&partial, format!("{port}\n"))
        .and_then(|()| std::fs::rename(&partial, file))
        .with_context(|| format!("cannot write {}", file.display()))
}

/// The signals that end the server.
pub(super) struct Signals {
    #[cfg(unix)]
    wake: std::os::unix::net::UnixStream,
}

impl Signals {
    #[cfg(unix)]
    pub(super) fn listen() -> anyhow::Result<Self> {
        use signal_hook::consts::{SIGINT, SIGTERM};

        let (wake, sender) = std::os::unix::net::UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        Ok(Self { wake })
    }

    #[cfg(unix)]
    pub(super) fn wait(mut self) {
        // A byte arrives with the first signal; an error would mean the same.
        let _ = std::io::Read::read(&mut self.wake, &mut [0]);
    }

    /// Elsewhere the console's default handler ends the process.
    #[cfg(not(unix))]
    pub(super) fn listen() -> anyhow::Result<Self> {
        Ok(Self {})
    }

    #[cfg(not(unix))]
    pub(super) fn wait(self) {
        loop {
            std::thread::park();
        }
    }
}
