//! What the server tells clients about itself: `client/config` and `client/dynamic_config`.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::types::{ClientConfig, DynamicConfig};

/// The values of every configuration flag.
#[derive(Debug, Clone)]
pub(in crate::local) struct Flags {
    client: Map<String, Value>,
    dynamic: Map<String, Value>,
}

impl Default for Flags {
    fn default() -> Self {
        let mut client = object(&ClientConfig::default());
        // Read by clients of the JSON era only.
        for name in ["proto_write_fwdbwd", "fwd_via_fwdbwd"] {
            client.insert(name.to_owned(), Value::Bool(false));
        }
        Self {
            client,
            dynamic: object(&DynamicConfig::default()),
        }
    }
}

fn object(flags: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(flags) {
        Ok(Value::Object(map)) => map,
        _ => unreachable!("flags are structs of plain values"),
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
        let usual = std::mem::replace(slot, value.clone());
        let is_alike = std::mem::discriminant(&usual) == std::mem::discriminant(&value);
        if !is_alike || !self.can_be_read() {
            return Err(Error::invalid(
                name,
                format!("takes a value like {usual}, got {value}"),
            ));
        }
        Ok(())
    }

    /// Whether clients could read them: a number below 0, or a part of one, they could not.
    fn can_be_read(&self) -> bool {
        ClientConfig::deserialize(&self.client).is_ok()
            && DynamicConfig::deserialize(&self.dynamic).is_ok()
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
    use serde_json::json;

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
        assert!(flags.set("fwdbwd_max_chunk_len", (-1).into()).is_err());
    }
}
