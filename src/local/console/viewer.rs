//! The console over run folders alone: no model, no key, this machine only.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use hyper::Method;
use tokio::sync::watch;

use super::{Console, asset, page, stream};
use crate::error::Result;
use crate::local::http::{
    App, Dropped, Exchange, Front, Guard, HttpThread, Limits, Refusal, Reply, Request, listen,
    runtime,
};
use crate::text::Tokenizer;

/// How a [`ConsoleServer`] is started.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct ConsoleOptions {
    /// The port to listen on; 0 takes any that is free. Default: 0.
    pub port: u16,
    /// The model whose layout and tokenizer data files are shown in. Default: the built-in one.
    pub model: Option<(String, Tokenizer)>,
}

impl ConsoleOptions {
    /// Sets the port to listen on. Default: any that is free.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Shows data files as this model reads them. Default: as the built-in one does.
    #[must_use]
    pub fn with_model(mut self, name: impl Into<String>, tokenizer: Tokenizer) -> Self {
        self.model = Some((name.into(), tokenizer));
        self
    }
}

/// A page over run folders, ours and the Python cookbook's: no model is loaded and nothing is
/// changed. It listens on the loopback address only. Dropping it stops it.
///
/// The same page is served by a [`LocalServer`](super::super::LocalServer) at `/`, with
/// checkpoints and chats besides.
///
/// ```
/// use tinker::local::{ConsoleOptions, ConsoleServer};
///
/// let console = ConsoleServer::start(["runs"], ConsoleOptions::default())?;
/// println!("look at {}", console.base_url());
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug)]
pub struct ConsoleServer {
    address: SocketAddr,
    _http: HttpThread,
}

impl ConsoleServer {
    /// Shows the runs in these folders and one level below them. Folders that are not there yet
    /// are looked for again.
    ///
    /// # Errors
    ///
    /// [`Error::Config`](crate::Error::Config) if the port is taken,
    /// [`Error::Internal`](crate::Error::Internal) if no thread can be started.
    pub fn start(
        folders: impl IntoIterator<Item = impl Into<PathBuf>>,
        options: ConsoleOptions,
    ) -> Result<Self> {
        let folders: Vec<PathBuf> = folders.into_iter().map(Into::into).collect();
        let console = match options.model {
            Some((name, tokenizer)) => Console::new(folders, name, tokenizer),
            None => Console::plain(folders)?,
        };
        let viewer = Arc::new(Viewer {
            console: Arc::new(console),
            stopped: watch::channel(false).0,
        });
        let listener = listen(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), options.port))?;
        let front = Front {
            limits: Limits::default(),
            guard: Guard::default(),
            tls: None,
            recorder: None,
        };
        let http = HttpThread::start(listener, runtime()?, viewer, front)?;
        Ok(Self {
            address: http.address,
            _http: http,
        })
    }

    /// Where the page is, such as `http://127.0.0.1:49152`.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.address)
    }
}

struct Viewer {
    console: Arc<Console>,
    stopped: watch::Sender<bool>,
}

impl App for Viewer {
    type Ticket = ();

    /// Anybody of this machine may ask: the address is the loopback's.
    fn admit(&self, _: &Request) -> Result<(), Refusal> {
        Ok(())
    }

    async fn answer(self: Arc<Self>, (): (), request: Request) -> Result<Reply, Dropped> {
        Ok(self.reply(request).await.unwrap_or_else(Reply::from))
    }

    fn done(&self, exchange: &Exchange<'_>) {
        let (method, path, status) = (exchange.method, exchange.path, exchange.status.as_u16());
        log::debug!("console: {method} {path} {status}");
    }

    fn stop(&self) {
        self.stopped.send_replace(true);
    }
}

impl Viewer {
    async fn reply(self: Arc<Self>, request: Request) -> Result<Reply, Refusal> {
        let Some(rest) = request.path.strip_prefix("/console/") else {
            return match request.path.as_str() {
                "/" => Ok(page()),
                path => Err(Refusal::missing(format!("no such path: {path}"))),
            };
        };
        let endpoint = rest.to_owned();
        match (&request.method, endpoint.as_str()) {
            (&Method::GET, "hello") => Ok(Reply::json(&self.console.hello(Vec::new(), "local"))),
            (&Method::GET, "events") => {
                let mut stopped = self.stopped.subscribe();
                let stopping = async move {
                    // An end of the sender is an end too.
                    let _ = stopped.wait_for(|stopped| *stopped).await;
                };
                Ok(stream(self.console.watch(), stopping))
            }
            (&Method::GET | &Method::POST, _) => match endpoint.strip_prefix("assets/") {
                Some(name) => asset(name),
                None => {
                    let answer = move || self.console.answer(&endpoint, &request);
                    tokio::task::spawn_blocking(answer)
                        .await
                        .unwrap_or_else(|_| Err(Refusal::internal("the handler failed")))
                }
            },
            (method, _) => Err(Refusal::missing(format!("{rest} does not take {method}"))),
        }
    }
}
