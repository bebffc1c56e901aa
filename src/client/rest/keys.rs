//! API keys: each may ask about itself, and end itself.

use super::RestClient;
use crate::config::Secret;
use crate::error::Result;
use crate::types::ApiKeyInfo;
use crate::wire::reply::decode_json;
use crate::wire::route;

/// API keys. These calls send the key they are given, not the client's own credential, and are
/// made once.
impl RestClient {
    /// What the service knows about an API key: its name, and whose it is.
    ///
    /// ```
    /// # fn main() -> tinker::Result<()> {
    /// # let server = tinker::local::LocalServer::builder().api_key("tml-mine").start()?;
    /// # let config = tinker::config::Config::default().with_base_url(server.base_url());
    /// # let rest = tinker::ServiceClient::new(config.with_api_key("tml-mine"))?.rest();
    /// let info = rest.api_key_info("tml-mine")?;
    /// println!("{} {:?}", info.name, info.details);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Status`](crate::Error::Status) with 401 if the service does not know the key.
    #[doc(alias = "get_self_api_key")]
    pub fn api_key_info(&self, key: impl Into<Secret>) -> Result<ApiKeyInfo> {
        let route = &route::GET_API_KEY;
        let response = self.service.host().call_as(&key.into(), route)?;
        decode_json(&response.body).map_err(|error| error.for_request(&route.label()))
    }

    /// Deletes an API key, everywhere and for good.
    ///
    /// # Errors
    ///
    /// [`Error::Status`](crate::Error::Status) with 401 if the service does not know the key.
    #[doc(alias = "delete_self_api_key")]
    pub fn delete_api_key(&self, key: impl Into<Secret>) -> Result<()> {
        let host = self.service.host();
        host.call_as(&key.into(), &route::DELETE_API_KEY).map(drop)
    }
}
