//! The way to one service: its connections, its credentials, and how it wants to be spoken to.

use std::collections::HashSet;
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime};

use super::metrics::Metrics;
use super::retry::Effort;
use crate::config::{Config, EventObserver, Secret};
use crate::error::{Context, Error, Result};
use crate::runtime::clock::Clock;
use crate::runtime::deadline::Deadline;
use crate::runtime::stop::Stop;
use crate::sync::lock;
use crate::transport::auth::{
    COMMAND_DEADLINE, Claims, CommandPolicy, Credential, Moment, TokenCache, is_jwt,
};
use crate::transport::retry::{BillingWindow, error_from_response};
use crate::transport::{Auth, Body, Head, PROTOCOL_VERSION, Request, Response, Transport};
use crate::types::{ClientConfig, Timestamp};
use crate::wire::reply::AuthTokenReply;
use crate::wire::request::{AuthTokenRequest, ClientConfigRequest, to_json};
use crate::wire::route;

/// The way to one service: connections, credentials, patience.
pub(crate) struct Link {
    pub(super) transport: Transport,
    pub(super) clock: Clock,
    pub(super) stop: Stop,
    auth: Credentials,
    pub(super) billing: Mutex<BillingWindow>,
    /// How long a call that keeps failing is repeated.
    pub(super) patience: Duration,
    /// The same while the service has never answered.
    pub(super) startup_patience: Duration,
    /// Whether the user has been told that nobody answers.
    pub(super) unreachable: AtomicBool,
    pub(super) metrics: Metrics,
    pub(super) observer: Option<EventObserver>,
    /// How long a 402 is borne, if the user has said so.
    billing_pause: Option<Duration>,
    /// What the service has said about this version so far.
    pub(super) notes: Mutex<HashSet<String>>,
}

enum Credentials {
    Key(Secret),
    /// The service hands out short-lived tokens for the credential.
    Tokens(Credential, TokenCache),
}

impl Link {
    /// Finds the credential and asks the service how it wants to be spoken to. A server that has
    /// no `client/config` gets the defaults.
    pub(crate) fn open(
        config: &Config,
        transport: Transport,
        clock: Clock,
        stop: Stop,
    ) -> Result<(Self, ClientConfig)> {
        let credential = Credential::resolve(config, CommandPolicy::Optional)?;
        let key = Credentials::Key(credential.secret(COMMAND_DEADLINE, &|| stop.is_set())?);
        let mut link = Self::new(config, transport, clock, stop, key);
        let client_config: ClientConfig = link
            .optional(&route::CLIENT_CONFIG, &config_body()?)?
            .unwrap_or_default();
        link.set_billing_pause(&client_config);
        link.auth = if client_config.pjwt_auth_enabled {
            let policy = match client_config.credential_default_source.as_str() {
                "credential_cmd" => CommandPolicy::Required,
                _ => CommandPolicy::Optional,
            };
            Credentials::Tokens(Credential::resolve(config, policy)?, TokenCache::default())
        } else {
            Credentials::Key(Credential::resolve_key(config)?)
        };
        Ok((link, client_config))
    }

    /// The same for a client that was handed the service's answer along with its session.
    pub(crate) fn with_config(
        config: &Config,
        client_config: &ClientConfig,
        clock: Clock,
        stop: Stop,
    ) -> Result<Self> {
        let auth = if client_config.pjwt_auth_enabled {
            let credential = Credential::resolve(config, CommandPolicy::Optional)?;
            Credentials::Tokens(credential, TokenCache::default())
        } else {
            Credentials::Key(Credential::resolve_key(config)?)
        };
        let link = Self::new(config, Transport::new(config)?, clock, stop, auth);
        link.set_billing_pause(client_config);
        Ok(link)
    }

    fn new(
        config: &Config,
        transport: Transport,
        clock: Clock,
        stop: Stop,
        auth: Credentials,
    ) -> Self {
        Self {
            transport,
            clock,
            stop,
            auth,
            billing: Mutex::new(BillingWindow::new(Duration::ZERO)),
            patience: config.patience,
            startup_patience: config.startup_patience,
            unreachable: AtomicBool::new(false),
            metrics: Metrics::default(),
            observer: config.event_observer.clone(),
            billing_pause: config.billing_pause,
            notes: Mutex::default(),
        }
    }

    fn set_billing_pause(&self, config: &ClientConfig) {
        let asked = Duration::from_secs(config.billing_exception_max_pause_duration_sec);
        let limit = self.billing_pause.unwrap_or(asked);
        *lock(&self.billing) = BillingWindow::new(limit);
    }

    /// Whether a 402 is an error at once.
    pub(super) fn never_waits_for_payment(&self) -> bool {
        self.billing_pause == Some(Duration::ZERO)
    }

    /// When the token expires, where there is one.
    pub(super) fn token_expiry(&self) -> Option<Timestamp> {
        match &self.auth {
            Credentials::Key(_) => None,
            Credentials::Tokens(_, cache) => Timestamp::try_from(cache.expires()?).ok(),
        }
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Has a secret that a request is about to carry hidden wherever the service echoes it.
    pub(crate) fn hide(&self, secret: Option<&Secret>) {
        if let Some(secret) = secret {
            self.transport.remember(secret);
        }
    }

    /// What tells this client's traffic from another's on the same service.
    pub(crate) fn identity(&self) -> String {
        match &self.auth {
            Credentials::Key(key) => key.expose().to_owned(),
            Credentials::Tokens(Credential::Key(key) | Credential::Command(key), _) => {
                key.expose().to_owned()
            }
        }
    }

    /// Who the credential says we are.
    pub(crate) fn claims(&self) -> Result<Claims> {
        match &self.auth {
            Credentials::Tokens(_, cache) => {
                self.key()?;
                cache.claims()
            }
            Credentials::Key(key) if is_jwt(key) => {
                Claims::parse(key).and_then(|claims| match claims.is_passport() {
                    true => Ok(claims),
                    false => Err(no_identity()),
                })
            }
            Credentials::Key(_) => Err(no_identity()),
        }
    }

    /// Renews the token if that is due; how long until it is due again. `None` without tokens.
    pub(crate) fn refresh_token(&self) -> Option<Duration> {
        match &self.auth {
            Credentials::Key(_) => None,
            Credentials::Tokens(credential, cache) => {
                let fetch = |limit| self.fetch_token(credential, limit);
                Some(cache.refresh(self.now(), fetch))
            }
        }
    }

    fn now(&self) -> Moment {
        Moment {
            wall: SystemTime::now(),
            steady: self.clock.now(),
        }
    }

    /// The key to send now.
    pub(crate) fn key(&self) -> Result<Secret> {
        self.key_within(TokenCache::LIMIT)
    }

    /// The same, found within `limit`.
    pub(super) fn key_within(&self, limit: Duration) -> Result<Secret> {
        match &self.auth {
            Credentials::Key(key) => Ok(key.clone()),
            Credentials::Tokens(credential, cache) => {
                let left = Deadline::left().unwrap_or(TokenCache::LIMIT);
                let limit = limit.min(left).min(TokenCache::LIMIT);
                let fetch = |limit| self.fetch_token(credential, limit);
                cache.token(self.now(), limit, fetch)
            }
        }
    }

    /// Sends a request once and hands out a success's body as it arrives.
    pub(crate) fn stream(&self, request: Request<'_>) -> Result<(Head, Box<dyn Read + Send>)> {
        let key = self.key()?;
        let mut request = request;
        request.auth = Auth::Key(&key);
        let outcome = self.transport.stream(&request);
        let (head, mut body) = outcome.map_err(|fault| fault.to_error(&request.label))?;
        if head.is_success() {
            return Ok((head, Box::new(body)));
        }
        let mut text = Vec::new();
        // What an error says is worth no second error.
        let _ = body.by_ref().take(64 << 10).read_to_end(&mut text);
        let body = self.transport.redact_body(&text);
        let response = Response { head, body };
        Err(error_from_response(
            &response,
            &request.label,
            SystemTime::now(),
        ))
    }

    fn fetch_token(&self, credential: &Credential, limit: Duration) -> Result<Secret> {
        let raw = credential.secret(limit, &|| self.stop.is_set())?;
        let body = to_json(&AuthTokenRequest {})?;
        let request = Request::to(&route::AUTH_TOKEN, route::AUTH_TOKEN.fixed_path())
            .with_body(Body::Json(&body));
        let effort = Effort::from(&route::AUTH_TOKEN).until(self.deadline(limit));
        let reply: AuthTokenReply = self.call_as(request, effort, &raw)?;
        Ok(Secret::from(reply.jwt))
    }
}

/// What the configuration endpoints want to know.
pub(crate) fn config_body() -> Result<Vec<u8>> {
    to_json(&ClientConfigRequest {
        sdk_version: PROTOCOL_VERSION.into(),
    })
}

fn no_identity() -> Error {
    Error::Credentials(Context::new(
        "an API key does not say whose it is; identity is known only where the service exchanges \
         tokens",
    ))
}
