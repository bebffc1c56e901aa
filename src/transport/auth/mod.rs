//! Credentials: where they come from, the token exchanged for them, and who they say we are.

mod command;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::Value;

use crate::config::{Config, Secret};
use crate::error::{Context, Error, Meaning, Result};
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait_while};

/// How long a credential command may run.
pub(crate) const COMMAND_DEADLINE: Duration = Duration::from_secs(30);

/// Where the raw credential comes from.
#[derive(Debug, Clone)]
pub(crate) enum Credential {
    /// A key, or a JWT given as one.
    Key(Secret),
    /// A shell command, run anew for every token.
    Command(Secret),
}

/// Whether the service insists on the credential command
/// (`credential_default_source == "credential_cmd"`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandPolicy {
    Optional,
    Required,
}

impl Credential {
    /// Finds the credential: the key (argument, then environment), the command, the stored
    /// default. A JWT given as the key satisfies even a service that requires the command.
    ///
    /// # Errors
    ///
    /// [`Error::Credentials`] when there is none, or one that the service cannot know.
    pub(crate) fn resolve(config: &Config, policy: CommandPolicy) -> Result<Self> {
        let key = config.api_key.as_ref();
        let command = config.credential_command.as_ref();
        if let Some(key) = key.filter(|key| is_jwt(key)) {
            return Ok(Self::Key(key.clone()));
        }
        if policy == CommandPolicy::Required {
            return command.cloned().map(Self::Command).ok_or_else(|| {
                problem(
                    "the organization requires dynamic credentials: set TINKER_CREDENTIAL_CMD \
                     to a command that prints one",
                )
            });
        }
        match (key, command) {
            (Some(key), None) => checked(config, key).map(Self::Key),
            (Some(key), Some(command)) => {
                Ok(checked(config, key).map_or_else(|_| Self::Command(command.clone()), Self::Key))
            }
            (None, Some(command)) => Ok(Self::Command(command.clone())),
            (None, None) => stored(config).map(Self::Key),
        }
    }

    /// The key for a service that does not exchange tokens, which accepts nothing else: a
    /// command cannot stand in for it, and hides a stored key.
    ///
    /// # Errors
    ///
    /// As for [`resolve`](Self::resolve).
    pub(crate) fn resolve_key(config: &Config) -> Result<Secret> {
        match (&config.api_key, &config.credential_command) {
            (Some(key), _) => checked(config, key),
            (None, Some(_)) => Err(problem(
                "this service takes no dynamic credentials, so TINKER_CREDENTIAL_CMD cannot be \
                 used with it: set TINKER_API_KEY",
            )),
            (None, None) => stored(config),
        }
    }

    /// The raw credential now; runs the command if there is one, for at most 30 s and `limit`, or
    /// until the client is `closed`.
    ///
    /// # Errors
    ///
    /// [`Error::Credentials`] when the command fails, prints nothing or takes too long.
    pub(crate) fn secret(&self, limit: Duration, closed: &dyn Fn() -> bool) -> Result<Secret> {
        match self {
            Self::Key(key) => Ok(key.clone()),
            Self::Command(command) => command::run(command, limit.min(COMMAND_DEADLINE), closed),
        }
    }
}

pub(crate) fn is_jwt(key: &Secret) -> bool {
    key.expose().starts_with("eyJ")
}

/// The hosted service knows only two kinds of key; other hosts have their own rules.
fn checked(config: &Config, key: &Secret) -> Result<Secret> {
    let known = key.expose().starts_with("tml-") || is_jwt(key);
    if known || !config.is_default_host() {
        return Ok(key.clone());
    }
    Err(problem(
        "the API key must begin with `tml-`: copy it again from the console \
         (other servers accept any key; set their base URL)",
    ))
}

fn stored(config: &Config) -> Result<Secret> {
    let keys = match config.credential_store() {
        Some(store) => store.load()?,
        None => Default::default(),
    };
    match keys.default_key() {
        Some(stored) => checked(config, stored.key()),
        None => Err(problem(
            "no API key: set TINKER_API_KEY, or pass one with `with_api_key`",
        )),
    }
}

fn problem(message: &str) -> Error {
    Error::Credentials(Context::new(message))
}

/// What a JWT says, taken on trust: it came from the service over TLS, and the service checks it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Claims {
    /// Seconds since 1970.
    pub(crate) expires: Option<f64>,
    /// Likewise.
    issued: Option<f64>,
    pub(crate) issuer: Option<String>,
    pub(crate) user_urn: Option<String>,
    /// `tml:organization:<id>`.
    pub(crate) org_urn: Option<String>,
    pub(crate) email: Option<String>,
}

impl Claims {
    /// Reads the middle part of a token.
    ///
    /// # Errors
    ///
    /// [`Error::Credentials`] when the text is not a JWT.
    pub(crate) fn parse(token: &Secret) -> Result<Self> {
        let claims = decode(token.expose())
            .ok_or_else(|| problem("the credential is not a JWT whose claims can be read"))?;
        let text = |name: &str| {
            let text = claims.get(name)?.as_str()?;
            (!text.is_empty()).then(|| text.to_owned())
        };
        let number = |value: &Value| value.as_f64().or_else(|| value.as_str()?.parse().ok());
        let time = |name: &str| claims.get(name).and_then(number).filter(|t| t.is_finite());
        Ok(Self {
            expires: time("exp"),
            issued: time("iat"),
            issuer: text("iss"),
            user_urn: text("sub"),
            org_urn: text("org_id").map(|id| format!("tml:organization:{id}")),
            email: text("email"),
        })
    }

    /// Whether a raw credential with these claims may say who its owner is.
    pub(crate) fn is_passport(&self) -> bool {
        self.issuer
            .as_deref()
            .is_some_and(|issuer| issuer.starts_with("passport-"))
    }
}

fn decode(token: &str) -> Option<Value> {
    let payload = token.split('.').nth(1)?.trim_end_matches('=');
    let bytes = URL_SAFE_NO_PAD.decode(payload).ok()?;
    let claims: Value = serde_json::from_slice(&bytes).ok()?;
    claims.is_object().then_some(claims)
}

/// Adds to a refusal that the token it was sent with has expired, by this machine's clock.
pub(crate) fn explain(mut error: Error, key: &Secret, now: SystemTime) -> Error {
    let refused = error.meaning() == Some(Meaning::Forbidden) && is_jwt(key);
    let expires = Claims::parse(key).ok().and_then(|claims| claims.expires);
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    if let (true, Some(expires)) = (refused, expires)
        && let Some(context) = error.context_mut()
        && expires <= now.as_secs_f64()
    {
        let age = now.as_secs_f64() - expires;
        context.message = format!(
            "{}; the token has expired {age:.0} s ago, get a new one",
            context.message
        );
    }
    error
}

/// A moment by two clocks: the one that services agree on and that somebody may set, and the one
/// that nobody sets but that may stand still while the machine sleeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) wall: SystemTime,
    pub(crate) steady: Instant,
}

impl Moment {
    /// How long it is since an earlier one, by the clock that says more.
    fn since(self, earlier: Self) -> Duration {
        let wall = self.wall.duration_since(earlier.wall).unwrap_or_default();
        let steady = self.steady.saturating_duration_since(earlier.steady);
        wall.max(steady)
    }
}

/// The token that stands in for the credential, fetched once for all who need it.
///
/// A token is used until 60 s before it expires and renewed in the background 300 s before. One
/// that lives shorter than twice those margins is used for half its life instead, so a service
/// that issues short-lived tokens is not asked for one per request.
///
/// There is one exchange at a time. Whoever comes meanwhile goes on with a token that has not
/// expired yet, or else waits for the outcome and shares it, a failure too.
#[derive(Debug, Default)]
pub(crate) struct TokenCache {
    state: Mutex<Exchanges>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Exchanges {
    token: Option<Token>,
    running: bool,
    /// How many exchanges have ended.
    count: u64,
    /// Why the last one failed, and when.
    failure: Option<(Error, Moment)>,
}

#[derive(Debug, Clone)]
struct Token {
    secret: Secret,
    fetched: Moment,
    /// Unknown if the token does not say.
    expires: Option<SystemTime>,
    /// How long it lasts from when it was fetched. Unknown too if it was over by then: the service
    /// has just issued it, so the clock here is wrong.
    life: Option<Duration>,
}

impl TokenCache {
    /// Renewing in the background is never more frequent than this.
    const MIN_REFRESH: Duration = Duration::from_secs(5);
    /// The wait after a failure, and for a token that does not say when it expires.
    const RETRY: Duration = Duration::from_secs(60);
    /// How long an exchange may take.
    pub(crate) const LIMIT: Duration = COMMAND_DEADLINE;
    /// The same while there is a token to go on with, and how long a failure then stands.
    const BRIEF: Duration = Duration::from_secs(6);

    /// The token to send now, within `limit`; has one fetched, in the time it is told, if there is
    /// none or it is about to expire.
    ///
    /// # Errors
    ///
    /// What `fetch` returned, if there is no older token to go on with; [`Error::Timeout`] if
    /// another caller's exchange did not end in time.
    pub(crate) fn token(
        &self,
        now: Moment,
        limit: Duration,
        fetch: impl FnOnce(Duration) -> Result<Secret>,
    ) -> Result<Secret> {
        let mut state = lock(&self.state);
        if let Some(secret) = state.fresh(now) {
            return Ok(secret);
        }
        let unexpired = state.unexpired(now);
        let failed = state.has_failed_since(now, Self::BRIEF);
        // Whoever is short of time, a close, does not renew what still works.
        let hurried = limit < Self::BRIEF;
        match unexpired {
            Some(secret) if state.running || failed || hurried => return Ok(secret),
            _ if state.running => return self.wait(state, limit),
            _ => {}
        }
        state.running = true;
        drop(state);
        let most = match unexpired {
            Some(_) => Self::BRIEF,
            None => Self::LIMIT,
        };
        match self.exchange(now, || fetch(limit.min(most))) {
            Ok(secret) => Ok(secret),
            Err(error) => {
                let Some(old) = lock(&self.state).token.clone() else {
                    return Err(error);
                };
                log::warn!("the token could not be renewed, going on with the old one: {error}");
                Ok(old.secret)
            }
        }
    }

    /// Renews the token if that is due and says how long to wait before the next call; for the
    /// runtime's refresh thread.
    pub(crate) fn refresh(
        &self,
        now: Moment,
        fetch: impl FnOnce(Duration) -> Result<Secret>,
    ) -> Duration {
        let mut state = lock(&self.state);
        let wait = state.next_refresh(now);
        if wait > Duration::ZERO {
            return wait;
        }
        if state.running {
            return Self::MIN_REFRESH;
        }
        state.running = true;
        drop(state);
        match self.exchange(now, || fetch(Self::LIMIT)) {
            Ok(_) => self.next_refresh(now).max(Self::MIN_REFRESH),
            Err(error) => {
                log::debug!("the token could not be renewed in the background: {error}");
                Self::RETRY
            }
        }
    }

    /// How long until the token should be renewed in the background; zero if it is due.
    pub(crate) fn next_refresh(&self, now: Moment) -> Duration {
        lock(&self.state).next_refresh(now)
    }

    /// When the current token expires, if it says.
    pub(crate) fn expires(&self) -> Option<SystemTime> {
        lock(&self.state).token.as_ref()?.expires
    }

    /// What the current token says about its owner.
    ///
    /// # Errors
    ///
    /// [`Error::Credentials`] when there is no token yet or it is not a JWT.
    pub(crate) fn claims(&self) -> Result<Claims> {
        let current = lock(&self.state).token.clone();
        let token = current.ok_or_else(|| problem("no token has been exchanged yet"))?;
        Claims::parse(&token.secret)
    }

    /// Waits for the exchange under way.
    fn wait(&self, state: MutexGuard<'_, Exchanges>, limit: Duration) -> Result<Secret> {
        let count = state.count;
        let state = wait_while(&self.ended, state, Some(limit), |state| {
            state.running && state.count == count
        });
        match (&state.failure, &state.token) {
            _ if state.count == count => Err(Error::Timeout(Context::new(
                "the exchange of credentials for a token takes too long",
            ))),
            (_, Some(token)) => Ok(token.secret.clone()),
            (Some((failure, _)), None) => Err(failure.clone()),
            (None, None) => Err(problem("the exchange of credentials was given up")),
        }
    }

    /// Carries out the exchange this caller has begun, and tells the others.
    fn exchange(&self, now: Moment, fetch: impl FnOnce() -> Result<Secret>) -> Result<Secret> {
        /// Ends the exchange even if it panics.
        struct End<'a>(&'a TokenCache);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                let mut state = lock(&self.0.state);
                state.running = false;
                state.count += 1;
                drop(state);
                self.0.ended.notify_all();
            }
        }
        let _end = End(self);
        let outcome = fetch();
        let mut state = lock(&self.state);
        match &outcome {
            Ok(secret) => {
                state.token = Some(Token::new(secret.clone(), now));
                state.failure = None;
            }
            Err(error) => state.failure = Some((error.clone(), now)),
        }
        outcome
    }
}

impl Exchanges {
    fn fresh(&self, now: Moment) -> Option<Secret> {
        let token = self.token.as_ref()?;
        let age = now.since(token.fetched);
        let usable = match token.life {
            Some(life) => age + margin(life, Duration::from_secs(60)) < life,
            None => age < TokenCache::RETRY,
        };
        usable.then(|| token.secret.clone())
    }

    fn unexpired(&self, now: Moment) -> Option<Secret> {
        let token = self.token.as_ref()?;
        let usable = token
            .life
            .is_none_or(|life| now.since(token.fetched) < life);
        usable.then(|| token.secret.clone())
    }

    fn has_failed_since(&self, now: Moment, limit: Duration) -> bool {
        let failed = self.failure.as_ref().map(|(_, when)| *when);
        failed.is_some_and(|when| now.since(when) < limit)
    }

    fn next_refresh(&self, now: Moment) -> Duration {
        let Some(token) = self.token.as_ref() else {
            return TokenCache::RETRY;
        };
        let due = match token.life {
            Some(life) => {
                (life - margin(life, Duration::from_secs(300))).max(TokenCache::MIN_REFRESH)
            }
            None => TokenCache::RETRY,
        };
        due.saturating_sub(now.since(token.fetched))
    }
}

impl Token {
    fn new(secret: Secret, fetched: Moment) -> Self {
        let claims = Claims::parse(&secret).unwrap_or_default();
        let time = |seconds: Option<f64>| {
            let since = Duration::try_from_secs_f64(seconds?).ok()?;
            UNIX_EPOCH.checked_add(since)
        };
        let (expires, issued) = (time(claims.expires), time(claims.issued));
        let until = |from: SystemTime| expires?.duration_since(from).ok();
        // A clock that is behind makes a token seem to last longer than it says itself.
        let most = issued.and_then(until).unwrap_or(Duration::MAX);
        let life = until(fetched.wall).filter(|life| !life.is_zero());
        Self {
            secret,
            fetched,
            expires,
            life: life.map(|life| life.min(most)),
        }
    }
}

/// How long before its end a token counts as old: `usual`, or half its life if that is less.
fn margin(life: Duration, usual: Duration) -> Duration {
    usual.min(life / 2)
}

#[cfg(test)]
mod tests;
