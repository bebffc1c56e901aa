//! Who may ask: a key, or a token exchanged for one.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::json;

use super::table::Access;
use crate::local::http::{Refusal, Request};
use crate::local::state::sessions::LOCAL;
use crate::sync::lock;

/// A credential, which never shows.
#[derive(Clone, PartialEq, Eq)]
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

/// Somebody who may ask, and whose things are theirs alone.
#[derive(Debug, Clone)]
pub(in crate::local) struct User {
    pub(in crate::local) name: Arc<str>,
    pub(in crate::local) key: Key,
}

/// The server's rule about credentials.
pub(in crate::local) struct Auth {
    /// Nobody is asked for a key if there are none.
    users: Vec<User>,
    /// With JWTs on: how long each lives.
    jwt_lifetime: Option<Duration>,
    issued: Mutex<HashMap<String, (Instant, Arc<str>)>>,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth")
            .field("users", &self.users)
            .field("jwt_lifetime", &self.jwt_lifetime)
            .finish_non_exhaustive()
    }
}

impl Auth {
    pub(in crate::local) fn new(users: Vec<User>, jwt_lifetime: Option<Duration>) -> Self {
        Self {
            users,
            jwt_lifetime,
            issued: Mutex::default(),
        }
    }

    /// Who asks.
    pub(in crate::local) fn check(
        &self,
        access: Access,
        request: &Request,
    ) -> Result<Arc<str>, Refusal> {
        let given = request.header("x-api-key").or_else(|| {
            request
                .header("authorization")
                .and_then(|value| value.strip_prefix("Bearer "))
        });
        match access {
            Access::Open => Ok(LOCAL.into()),
            Access::Key => self.check_key(given),
            Access::Credential if self.jwt_lifetime.is_some() => self.check_jwt(given),
            Access::Credential => self.check_key(given),
        }
    }

    /// Exchanges the credential of a request that passed [`check`](Self::check) for a token.
    pub(super) fn issue(&self, user: &Arc<str>) -> Result<String, Refusal> {
        let lifetime = self
            .jwt_lifetime
            .ok_or_else(|| Refusal::missing("this server does not exchange tokens"))?;
        let issued = Timestamp::now().as_second();
        let expires = issued + i64::try_from(lifetime.as_secs()).unwrap_or(0);
        let part = |value: serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        // The signature is a random number that this process remembers: nobody else has to
        // verify it.
        let token = format!(
            "{}.{}.{}",
            part(json!({"alg": "none", "typ": "JWT"})),
            part(json!({
                "iss": "passport-local",
                "sub": format!("tml:organization_user:{user}"),
                "org_id": "local",
                "email": format!("{user}@localhost"),
                "iat": issued,
                "exp": expires,
            })),
            URL_SAFE_NO_PAD.encode(uuid::Uuid::new_v4().as_bytes()),
        );
        let now = Instant::now();
        let mut issued = lock(&self.issued);
        issued.retain(|_, (expires, _)| *expires > now);
        issued.insert(token.clone(), (now + lifetime, user.clone()));
        Ok(token)
    }

    fn check_key(&self, given: Option<&str>) -> Result<Arc<str>, Refusal> {
        if self.users.is_empty() {
            return Ok(LOCAL.into());
        }
        let given = given.ok_or_else(|| Refusal::unauthorized("an API key is required"))?;
        let known = self.users.iter().find(|user| same(&user.key.0, given));
        known
            .map(|user| user.name.clone())
            .ok_or_else(|| Refusal::unauthorized("the API key is not valid"))
    }

    fn check_jwt(&self, given: Option<&str>) -> Result<Arc<str>, Refusal> {
        let issued = lock(&self.issued);
        match given.and_then(|token| issued.get(token)) {
            Some((expires, user)) if *expires > Instant::now() => Ok(user.clone()),
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
