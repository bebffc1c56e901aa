//! API keys: each may ask about itself, and end itself.

use std::time::SystemTime;

use super::RestClient;
use crate::config::Secret;
use crate::error::Result;
use crate::transport::retry::error_from_response;
use crate::transport::{Auth, Request, Response};
use crate::types::ApiKeyInfo;
use crate::wire::reply::decode_json;
use crate::wire::route::{self, Route};

/// API keys. These calls send the key they are given, not the client's own credential, and are
/// made once.
impl RestClient {
    /// What the service knows about an API key: its name, and whose it is.
    ///
    /// ```
    /// # fn main() -> tinker::Result<()> {
    /// # let rest = tinker::ServiceClient::local()?.rest();
    /// let info = rest.api_key_info("tml-local")?;
    /// println!("{} {:?}", info.name, info.details);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Status`](crate::Error::Status) with 401 if the service does not know the key.
    #[doc(alias = "get_self_api_key")]
    pub fn api_key_info(&self, key: impl Into<Secret>) -> Result<ApiKeyInfo> {
        let response = self.as_key(&route::GET_API_KEY, &key.into())?;
        decode_json(&response.body).map_err(|error| error.for_request(&route::GET_API_KEY.label()))
    }

    /// Deletes an API key, everywhere and for good.
    ///
    /// # Errors
    ///
    /// [`Error::Status`](crate::Error::Status) with 401 if the service does not know the key.
    #[doc(alias = "delete_self_api_key")]
    pub fn delete_api_key(&self, key: impl Into<Secret>) -> Result<()> {
        self.as_key(&route::DELETE_API_KEY, &key.into()).map(drop)
    }

    fn as_key(&self, route: &Route, key: &Secret) -> Result<Response> {
        let mut request = Request::to(route, route.fixed_path());
        request.auth = Auth::Key(key);
        match self.service.transport().exchange(&request) {
            Ok(response) if response.is_success() => Ok(response),
            Ok(response) => {
                let now = SystemTime::now();
                Err(error_from_response(&response, &request.label, now))
            }
            Err(fault) => Err(fault.to_error(&request.label)),
        }
    }
}
