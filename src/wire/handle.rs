//! Sampler handles: a string that another process can make a sampling client from.

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::{Deserialize, Serialize};

use super::request::to_json;
use crate::error::{Error, Result};
use crate::types::{ClientConfig, DynamicConfig};

/// Written with padding; read with or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What a handle says: which sampler, where, and the configuration its service gave. It carries
/// no credentials; whoever uses it brings their own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SamplerHandle {
    pub(crate) session_id: String,
    pub(crate) sampling_session_id: String,
    pub(crate) holder: Holder,
    #[serde(default)]
    pub(crate) record_stability_info: bool,
}

/// The connection a handle was made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Holder {
    pub(crate) base_url: String,
    #[serde(default)]
    pub(crate) default_headers_overrides: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) client_config: ClientConfig,
    #[serde(default)]
    pub(crate) client_dynamic_config: DynamicConfig,
    /// Always null; the Python SDK insists on the key.
    #[serde(default, skip_deserializing)]
    api_key: (),
}

impl Holder {
    pub(crate) fn new(base_url: impl Into<String>) -> Self {
        Self {
            base_url: base_url.into(),
            default_headers_overrides: BTreeMap::new(),
            client_config: ClientConfig::default(),
            client_dynamic_config: DynamicConfig::default(),
            api_key: (),
        }
    }
}

impl SamplerHandle {
    /// The handle as text: base64 of compact JSON, safe in URLs.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a configuration JSON cannot hold.
    pub(crate) fn encode(&self) -> Result<String> {
        Ok(BASE64.encode(to_json(self)?))
    }

    /// Reads a handle, of this SDK or the Python one.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it is not one.
    pub(crate) fn decode(text: &str) -> Result<Self> {
        let refuse = |problem: String| Error::invalid("sampler_handle", problem);
        let bytes = BASE64
            .decode(text.trim())
            .map_err(|error| refuse(format!("is not base64: {error}")))?;
        serde_json::from_slice(&bytes).map_err(|error| refuse(format!("cannot be read: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips() {
        for length in 0..3 {
            let handle = SamplerHandle {
                session_id: "s".repeat(length),
                sampling_session_id: "S1:sample:0".into(),
                holder: Holder::new("http://host/é"),
                record_stability_info: true,
            };
            let text = handle.encode().unwrap();
            assert_eq!(text.len() % 4, 0, "padded");
            assert_eq!(SamplerHandle::decode(&text).unwrap(), handle);
            assert_eq!(
                SamplerHandle::decode(text.trim_end_matches('=')).unwrap(),
                handle
            );
        }
    }

    #[test]
    fn refuses_other_text() {
        for text in ["", "!", "e30=", "bm90IGpzb24="] {
            let error = SamplerHandle::decode(text).unwrap_err();
            assert!(
                error.to_string().starts_with("invalid sampler_handle"),
                "{error}"
            );
        }
    }
}
