//! Who may ask: a key, or a token exchanged for one.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::json;

use super::table::Access;
use crate::local::http::{Refusal, Request};
use crate::sync::lock;

/// A credential, which never shows.
#[derive(Clone)]
pub(in crate::local) struct Key(String);

impl Key {
    pub(in crate::local) fn new(key: String) -> Self {
        Self(key)
    }

    /// Whether there is nothing to know.
    pub(in crate::local) fn is_empty(&self) -> bool {
        self.0.trim().is_empty()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The server's rule about credentials.
pub(in crate::local) struct Auth {
    key: Option<Key>,
    /// With JWTs on: how long each lives.
    jwt_lifetime: Option<Duration>,
    issued: Mutex<HashMap<String, Instant>>,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth")
            .field("key", &self.key)
            .field("jwt_lifetime", &self.jwt_lifetime)
            .finish_non_exhaustive()
    }
}

impl Auth {
    pub(in crate::local) fn new(key: Option<Key>, jwt_lifetime: Option<Duration>) -> Self {
        Self {
            key,
            jwt_lifetime,
            issued: Mutex::default(),
        }
    }

    pub(super) fn check(&self, access: Access, request: &Request) -> Result<(), Refusal> {
        let given = request.header("x-api-key").or_else(|| {
            request
                .header("authorization")
                .and_then(|value| value.strip_prefix("Bearer "))
        });
        match access {
            Access::Open => Ok(()),
            Access::Key => self.check_key(given),
            Access::Credential if self.jwt_lifetime.is_some() => self.check_jwt(given),
            Access::Credential => self.check_key(given),
        }
    }

    /// Exchanges the credential of a request that passed [`check`](Self::check) for a token.
    pub(super) fn issue(&self) -> Result<String, Refusal> {
        let lifetime = self
            .jwt_lifetime
            .ok_or_else(|| Refusal::missing("this server does not exchange tokens"))?;
        let expires = Timestamp::now().as_second() + i64::try_from(lifetime.as_secs()).unwrap_or(0);
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        // The signature is a random number that this process remembers: nobody else has to
        // verify it.
        let token = format!(
            "{}.{}.{}",
            part(json!({"alg": "none", "typ": "JWT"})),
            part(json!({
                "iss": "passport-local",
                "sub": "tml:organization_user:local",
                "org_id": "local",
                "email": "local@localhost",
                "exp": expires,
            })),
            URL_SAFE_NO_PAD.encode(uuid::Uuid::new_v4().as_bytes()),
        );
        let now = Instant::now();
        let mut issued = lock(&self.issued);
        issued.retain(|_, expires| *expires > now);
        issued.insert(token.clone(), now + lifetime);
        Ok(token)
    }

    fn check_key(&self, given: Option<&str>) -> Result<(), Refusal> {
        match (&self.key, given) {
            (None, _) => Ok(()),
            (Some(Key(key)), Some(given)) if same(key, given) => Ok(()),
            (Some(_), Some(_)) => Err(Refusal::unauthorized("the API key is not valid")),
            (Some(_), None) => Err(Refusal::unauthorized("an API key is required")),
        }
    }

    fn check_jwt(&self, given: Option<&str>) -> Result<(), Refusal> {
        let issued = lock(&self.issued);
        match given.and_then(|token| issued.get(token)) {
            Some(expires) if *expires > Instant::now() => Ok(()),
            Some(_) => Err(Refusal::unauthorized("the token has expired")),
            None => Err(Refusal::unauthorized("a token from auth/token is required")),
        }
    }
}

/// Compares in a time that does not depend on where the two differ.
fn same(key: &str, given: &str) -> bool {
    let differences = key
        .bytes()
        .zip(given.bytes())
        .fold(0, |sum, (a, b)| sum | (a ^ b));
    key.len() == given.len() && differences == 0
}
