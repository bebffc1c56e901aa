//! What the server tells clients about itself: `client/config` and `client/dynamic_config`.

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// The values of every configuration flag.
#[derive(Debug, Clone)]
pub(in crate::local) struct Flags {
    client: Map<String, Value>,
    dynamic: Map<String, Value>,
}

impl Default for Flags {
    fn default() -> Self {
        let object = |value: Value| match value {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        Self {
            client: object(json!({
                "pjwt_auth_enabled": false,
                "credential_default_source": "api_key",
                "sample_dispatch_bytes_semaphore_size": 10_485_760,
                "inflight_response_bytes_semaphore_size": 52_428_800,
                "parallel_fwdbwd_chunks": true,
                "proto_compress_fwdbwd": false,
                "fwdbwd_max_chunk_len": 1024,
                "fwdbwd_max_chunk_bytes_count": 5_000_000,
                "fwdbwd_dispatch_bytes_semaphore_size": 50_000_000,
                "billing_exception_max_pause_duration_sec": 3600,
                "sample_no_retries": false,
                "sample_enable_stuck_detection": true,
                "sample_max_concurrent_requests": 2000,
                "use_pyqwest_transport": true,
                "create_model_via_load_weights": false,
                "sample_use_retrieve_futures": false,
                "custom_loss_server_side": false,
                "sample_join_sampling_session": false,
                // Read by clients of the JSON era only.
                "proto_write_fwdbwd": false,
                "fwd_via_fwdbwd": false,
            })),
            dynamic: object(json!({
                "refresh_interval_sec": 300,
                "sample_cancel_enabled": false,
                "sample_cancel_max_batch_size": 64,
            })),
        }
    }
}

impl Flags {
    /// Sets a flag of either configuration; its name and the kind of its value must be known.
    pub(in crate::local) fn set(&mut self, name: &str, value: Value) -> Result<()> {
        let slot = self
            .client
            .get_mut(name)
            .or_else(|| self.dynamic.get_mut(name))
            .ok_or_else(|| Error::invalid(name, "is not a configuration flag"))?;
        if std::mem::discriminant(slot) != std::mem::discriminant(&value) {
            return Err(Error::invalid(
                name,
                format!("takes a value like {slot}, got {value}"),
            ));
        }
        *slot = value;
        Ok(())
    }

    pub(in crate::local) fn jwt_enabled(&self) -> bool {
        self.client.get("pjwt_auth_enabled") == Some(&Value::Bool(true))
    }

    pub(in crate::local) fn client(&self) -> &Map<String, Value> {
        &self.client
    }

    pub(in crate::local) fn dynamic(&self) -> &Map<String, Value> {
        &self.dynamic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_known_flags_only() {
        let mut flags = Flags::default();
        flags.set("pjwt_auth_enabled", true.into()).unwrap();
        flags.set("sample_cancel_enabled", true.into()).unwrap();
        assert!(flags.jwt_enabled());
        assert_eq!(flags.dynamic()["sample_cancel_enabled"], json!(true));
        assert!(flags.set("no_such_flag", true.into()).is_err());
        assert!(flags.set("fwdbwd_max_chunk_len", true.into()).is_err());
    }
}
