//! What every command needs: where to write, and a client of the service.

use std::cell::RefCell;
use std::time::Duration;

use tinker::config::Config;
use tinker::types::FinishReason;
use tinker::{RestClient, ServiceClient};

use crate::failure::of_settings;
use crate::interrupt;
use crate::output::{ClosedPipe, Format, Out};

/// How long a short command bears a service that does not answer.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Context {
    pub(crate) format: Format,
    pub(crate) out: Out,
    /// Those whose sessions end with the command.
    clients: RefCell<Vec<ServiceClient>>,
}

impl Context {
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format,
            out: Out::default(),
            clients: RefCell::default(),
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// A note for people on standard error; machines that asked for JSON are spared it.
    pub(crate) fn note(&self, text: &str) {
        if !self.is_json() {
            say!("{text}");
        }
    }

    /// What the environment says; commands that take their time give the service some too.
    pub(crate) fn config(&self) -> anyhow::Result<Config> {
        let config = Config::from_env().map_err(of_settings)?;
        install_logger(config.log_level());
        Ok(config)
    }

    /// A client that gives up soon, for commands someone waits for.
    pub(crate) fn service(&self) -> anyhow::Result<ServiceClient> {
        self.connect(self.config()?.with_patience(PATIENCE))
    }

    /// A client that bears trouble as long as programs do, for commands that work for long.
    pub(crate) fn patient_service(&self) -> anyhow::Result<ServiceClient> {
        self.connect(self.config()?)
    }

    pub(crate) fn rest(&self) -> anyhow::Result<RestClient> {
        Ok(self.service()?.rest())
    }

    /// A client that Ctrl-C closes, so that whoever waits for it goes on and cleans up.
    fn connect(&self, config: Config) -> anyhow::Result<ServiceClient> {
        let service = self.open(config)?;
        let held = service.clone();
        interrupt::on(move || {
            // The session may have ended; the program ends in any case.
            let _ = held.close_as(FinishReason::Interrupted, Some("Ctrl-C"));
        });
        Ok(service)
    }

    /// A client whose session ends with the command, whoever holds it then.
    pub(crate) fn open(&self, config: Config) -> anyhow::Result<ServiceClient> {
        let service = ServiceClient::new(config).map_err(of_settings)?;
        self.clients.borrow_mut().push(service.clone());
        Ok(service)
    }

    /// Tells the service how the command ended, unless it was told already.
    pub(crate) fn close(&self, outcome: &anyhow::Result<()>) {
        let reason = match outcome {
            Err(error) if !error.is::<ClosedPipe>() => FinishReason::Errored,
            _ => FinishReason::Success,
        };
        for client in self.clients.take() {
            // The session ends with its heartbeats in any case.
            let _ = client.close_as(reason.clone(), None);
        }
    }
}

/// The library's log on standard error, where TINKER_LOG asks for it.
pub(crate) fn install_logger(level: Option<log::LevelFilter>) {
    struct Logger;

    impl log::Log for Logger {
        fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
            metadata.target().starts_with("tinker")
        }

        fn log(&self, record: &log::Record<'_>) {
            if self.enabled(record.metadata()) {
                say!("{}: {}", record.level(), record.args());
            }
        }

        fn flush(&self) {}
    }

    if let Some(level) = level
        && log::set_logger(&Logger).is_ok()
    {
        log::set_max_level(level);
    }
}
