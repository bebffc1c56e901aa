//! `tinker proxy`: an endpoint for OpenAI's and Anthropic's clients, in front of any Tinker server.

use std::collections::HashMap;
use std::io::Write;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use clap::Args;
use tinker::client::ListOptions;
use tinker::local::{Upstream, UpstreamModel};
use tinker::types::{CheckpointKind, SampleRequest, TinkerPath};
use tinker::{Error, Result, ServiceClient};

use super::sampler::open_tokenizer;
use super::serve::{Signals, hindered, write_port};
use crate::context::Context;

/// Checkpoints that are listed as models, at most; any can be asked for by its path.
const LISTED: u32 = 1_000;

/// Serve any checkpoint of any Tinker server to programs that speak OpenAI's language.
#[derive(Debug, Args)]
pub(crate) struct Proxy {
    /// Port to listen on; 0 takes any that is free.
    #[arg(long, default_value_t = 8001)]
    port: u16,
    /// Address to listen on; one that other machines can reach demands a key.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Write the port to this file once the endpoint is ready.
    #[arg(long, value_name = "FILE")]
    port_file: Option<PathBuf>,
    /// Demand the key in this file from every request.
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Answer to this host name too, beside addresses and localhost.
    #[arg(long = "allow-host", value_name = "NAME")]
    hosts: Vec<String>,
    /// Let pages of this site use the endpoint from a browser, such as https://example.org.
    #[arg(long = "cors", value_name = "ORIGIN")]
    origins: Vec<String>,
    /// A tokenizer's folder or a model's name, where the server's own cannot be had.
    #[arg(long, value_name = "PATH|MODEL")]
    tokenizer: Option<String>,
}

impl Proxy {
    /// Serves until SIGTERM or Ctrl-C.
    pub(crate) fn run(self, context: &Context) -> anyhow::Result<()> {
        let signals = Signals::listen()?;
        let service = context.open(context.config()?)?;
        let models = Models {
            service: service.clone(),
            tokenizer: self.tokenizer,
            open: Mutex::default(),
        };
        let mut builder = tinker::local::Proxy::builder(models)
            .host(self.host)
            .port(self.port);
        if let Some(file) = &self.key_file {
            let key = std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            builder = builder.api_key(key.trim());
        }
        for name in self.hosts {
            builder = builder.allow_host(name);
        }
        for origin in self.origins {
            builder = builder.cors(origin);
        }
        let proxy = builder.start().map_err(hindered)?;
        if let Some(file) = &self.port_file {
            write_port(file, proxy.port())?;
        }
        // Whoever reads a pipe waits for this line.
        let mut out = std::io::stdout();
        writeln!(out, "{}/v1", proxy.base_url())?;
        out.flush()?;
        signals.wait();
        drop(proxy);
        Ok(service.close()?)
    }
}

/// What the server behind has, and what was opened of it.
struct Models {
    service: ServiceClient,
    tokenizer: Option<String>,
    open: Mutex<HashMap<String, UpstreamModel>>,
}

impl Upstream for Models {
    fn models(&self) -> Result<Vec<String>> {
        let capabilities = self.service.capabilities()?;
        let mut names: Vec<String> = capabilities.model_names().map(str::to_owned).collect();
        let options = ListOptions::default().with_limit(LISTED);
        let page = self.service.rest().list_user_checkpoints(options)?;
        let paths = page.checkpoints.into_iter().map(|one| one.tinker_path);
        names.extend(paths.filter(|path| {
            let path = path.parse::<TinkerPath>();
            path.is_ok_and(|path| path.kind() == CheckpointKind::Sampler)
        }));
        Ok(names)
    }

    fn open(&self, model: &str) -> Result<UpstreamModel> {
        let known = self
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(model)
            .cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let opened = self.connect(model)?;
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(open.entry(model.to_owned()).or_insert(opened).clone())
    }
}

impl Models {
    fn connect(&self, model: &str) -> Result<UpstreamModel> {
        let client = self.service.create_sampling_client(model)?;
        let base = client.base_model()?;
        let tokenizer = match &self.tokenizer {
            Some(place) => open_tokenizer(place)
                .map_err(|error| Error::invalid("tokenizer", format!("{error:#}")))?,
            None => client.tokenizer()?,
        };
        let capabilities = self.service.capabilities()?;
        let served = capabilities.supported_models.iter();
        let mut same = served.filter(|one| one.model_name.as_deref() == Some(base.as_str()));
        let context = same.next().and_then(|one| one.max_context_length);
        let ask = move |asked: SampleRequest| client.sample(&asked.prompt, asked.options);
        let opened = UpstreamModel::new(base, tokenizer, ask);
        let context = context.and_then(|tokens| usize::try_from(tokens).ok());
        Ok(match context {
            Some(tokens) => opened.with_context(tokens),
            None => opened,
        })
    }
}
