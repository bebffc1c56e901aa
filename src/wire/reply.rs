//! What the service answers to JSON requests, read leniently.
//!
//! Unknown keys are ignored, missing optional ones take their default, and a number may be spelt as
//! text; a wrong type, a missing required field or a wrong constant `type` is an error. The embedded server writes the same
//! structs.

use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::lenient::Lenient;
use crate::error::{Context, Error, ErrorCategory, Result};

/// Reads a JSON answer, whatever its content type says.
///
/// # Errors
///
/// [`Error::Reply`] if it is not JSON or does not have the expected shape.
pub(crate) fn decode_json<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).or_else(|error| {
        // What is wrong is said of the answer as it is.
        let again = || T::deserialize(Lenient(serde_json::from_slice(body).ok()?)).ok();
        match error.is_data() {
            true => again().ok_or_else(|| malformed(error)),
            false => Err(malformed(error)),
        }
    })
}

fn malformed(error: serde_json::Error) -> Error {
    let message = match error.classify() {
        serde_json::error::Category::Data => "the answer does not have the expected shape",
        _ => "the answer is not JSON",
    };
    Error::Reply(Context::caused(message, error))
}

/// Constant `type` tags: written always, checked when present.
macro_rules! tags {
    ($($name:ident = $text:literal;)*) => {
        pub(crate) mod tag {
            use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

            $(
                #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
                pub(crate) struct $name;

                impl Serialize for $name {
                    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                        to.serialize_str($text)
                    }
                }

                impl<'de> Deserialize<'de> for $name {
                    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                        match std::borrow::Cow::<'de, str>::deserialize(from)?.as_ref() {
                            $text => Ok(Self),
                            other => Err(D::Error::custom(format_args!(
                                "type is {other:?}, expected {:?}", $text
                            ))),
                        }
                    }
                }
            )*
        }
    };
}

tags! {
    CreateSession = "create_session";
    SessionHeartbeat = "session_heartbeat";
    CreateModel = "create_model";
    CreateSamplingSession = "create_sampling_session";
    JoinSamplingSession = "join_sampling_session";
    CreateCustomLoss = "create_custom_loss";
}

/// A submission was accepted; its result is fetched by `request_id`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FutureReply {
    pub(crate) request_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model_id: Option<String>,
    /// One id per sample; servers of the JSON era and SkyRL send none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sample_sequence_ids: Option<Vec<String>>,
}

/// The answer to `auth/token`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuthTokenReply {
    pub(crate) jwt: String,
}

impl std::fmt::Debug for AuthTokenReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AuthTokenReply").finish_non_exhaustive()
    }
}

/// The answer to `create_session`; each message is logged at its level.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CreateSessionReply {
    #[serde(default, rename = "type")]
    pub(crate) tag: tag::CreateSession,
    pub(crate) session_id: String,
    #[serde(default)]
    pub(crate) info_message: Option<String>,
    #[serde(default)]
    pub(crate) warning_message: Option<String>,
    #[serde(default)]
    pub(crate) error_message: Option<String>,
}

/// The answer to `session_heartbeat`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionHeartbeatReply {
    #[serde(default, rename = "type")]
    pub(crate) tag: tag::SessionHeartbeat,
}

/// The result of `create_model`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CreateModelReply {
    pub(crate) model_id: String,
    #[serde(default, rename = "type")]
    pub(crate) tag: tag::CreateModel,
}

/// The result of `unload_model`, which only servers of the JSON era have.
#[cfg(feature = "local")]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UnloadModelReply {
    pub(crate) model_id: String,
}

/// A result with the constant `type` that clients of the JSON era look for.
#[cfg(feature = "local")]
#[derive(Debug, Serialize)]
pub(crate) struct Tagged<T> {
    #[serde(flatten)]
    pub(crate) value: T,
    #[serde(rename = "type")]
    pub(crate) tag: &'static str,
}

/// The result of `create_custom_loss`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CreateCustomLossReply {
    pub(crate) loss_id: String,
    #[serde(default, rename = "type")]
    pub(crate) tag: tag::CreateCustomLoss,
}

/// The answer to `create_sampling_session`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CreateSamplingSessionReply {
    pub(crate) sampling_session_id: String,
    #[serde(default, rename = "type")]
    pub(crate) tag: tag::CreateSamplingSession,
}

/// The answer to `join_sampling_session`: which clone of the sampler this client is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JoinSamplingSessionReply {
    pub(crate) client_counter: u64,
    #[serde(default, rename = "type")]
    pub(crate) tag: tag::JoinSamplingSession,
}

/// The answer to `copy_weights`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CopyWeightsReply {
    pub(crate) tinker_path: String,
}

/// The answer to `telemetry`; anything but `accepted` means the batch must be sent again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TelemetryReply {
    pub(crate) status: String,
}

impl TelemetryReply {
    pub(crate) fn is_accepted(&self) -> bool {
        self.status == "accepted"
    }
}

/// The answer to `retrieve_futures`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CompletionsReply {
    pub(crate) completions: Vec<Completion>,
    /// What the next poll sends as `prev_cursor`.
    pub(crate) cursor: u64,
}

/// One request that ended, well or badly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum Completion {
    Finished {
        request_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        response_payload_uncompressed_size: Option<u64>,
    },
    Failed {
        request_id: String,
    },
    /// In a way this version does not know: asking for the result will tell.
    #[serde(untagged)]
    Other {
        request_id: String,
    },
}

impl Completion {
    pub(crate) fn request_id(&self) -> &str {
        match self {
            Self::Finished { request_id, .. }
            | Self::Failed { request_id }
            | Self::Other { request_id } => request_id,
        }
    }

    /// How large the result is, if the server said.
    pub(crate) fn payload_size(&self) -> Option<u64> {
        match self {
            Self::Finished {
                response_payload_uncompressed_size: size,
                ..
            } => *size,
            Self::Failed { .. } | Self::Other { .. } => None,
        }
    }
}

/// What a successful `retrieve_future` brought.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum RetrieveReply {
    /// Not finished: ask again at once.
    Pending {
        queue_state: Option<String>,
        reason: Option<String>,
    },
    /// Finished, but too large to send unasked: reserve `size` bytes, then ask for all of it.
    MetadataOnly { size: u64 },
    /// Ran and failed; final.
    Failed {
        message: String,
        category: ErrorCategory,
    },
    /// The result itself, as it came.
    Payload(Vec<u8>),
}

impl RetrieveReply {
    /// Tells the outcomes apart without decoding the result.
    ///
    /// # Errors
    ///
    /// [`Error::Reply`] if the body is neither protobuf nor a JSON object.
    pub(crate) fn classify(content_type: Option<&str>, body: Vec<u8>) -> Result<Self> {
        if is_protobuf(content_type) {
            return Ok(Self::Payload(body));
        }
        let head: Head = decode_json(&body)?;
        Ok(if is_text(&head.kind, "try_again") {
            head.into_pending()
        } else if is_text(&head.status, "complete_metadata") {
            let size = head.response_payload_size.and_then(|size| size.as_u64());
            Self::MetadataOnly {
                size: size.unwrap_or(0),
            }
        } else if let Some(error) = head.error {
            let category = head.category.as_ref().and_then(Value::as_str);
            Self::Failed {
                message: match error {
                    Value::String(text) => text,
                    other => other.to_string(),
                },
                category: category.map_or(ErrorCategory::Unknown, ErrorCategory::parse),
            }
        } else {
            Self::Payload(body)
        })
    }

    /// What the body of a 408 says about the queue; `None` if it is not a JSON object.
    pub(crate) fn pending_note(body: &[u8]) -> Option<Self> {
        let head: Head = serde_json::from_slice(body).ok()?;
        Some(head.into_pending())
    }
}

fn is_text(value: &Option<Value>, text: &str) -> bool {
    value.as_ref().and_then(Value::as_str) == Some(text)
}

/// The media type of protobuf messages.
pub(crate) const PROTOBUF: &str = "application/x-protobuf";

/// What a result that has a protobuf form may come as: servers of the JSON era know only the second.
pub(crate) const RESULT_TYPES: &str = "application/x-protobuf, application/json";

/// Whether a `Content-Type` announces protobuf.
pub(crate) fn is_protobuf(content_type: Option<&str>) -> bool {
    content_type.is_some_and(|kind| kind.contains(PROTOBUF))
}

/// The few top-level keys that tell outcomes apart; everything else is skipped, not built.
#[derive(Default)]
struct Head {
    kind: Option<Value>,
    status: Option<Value>,
    response_payload_size: Option<Value>,
    error: Option<Value>,
    category: Option<Value>,
    queue_state: Option<Value>,
    queue_state_reason: Option<Value>,
}

impl Head {
    fn into_pending(self) -> RetrieveReply {
        let text = |value: Option<Value>| match value {
            Some(Value::String(text)) if !text.is_empty() => Some(text),
            _ => None,
        };
        RetrieveReply::Pending {
            queue_state: text(self.queue_state),
            reason: text(self.queue_state_reason),
        }
    }
}

impl<'de> Deserialize<'de> for Head {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct HeadVisitor;

        impl<'de> Visitor<'de> for HeadVisitor {
            type Value = Head;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Head, A::Error> {
                let mut head = Head::default();
                while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                    let slot = match key.as_ref() {
                        "type" => &mut head.kind,
                        "status" => &mut head.status,
                        "response_payload_size" => &mut head.response_payload_size,
                        "error" => &mut head.error,
                        "category" => &mut head.category,
                        "queue_state" => &mut head.queue_state,
                        "queue_state_reason" => &mut head.queue_state_reason,
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *slot = Some(map.next_value()?);
                }
                Ok(head)
            }
        }

        from.deserialize_map(HeadVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expected: RetrieveReply) {
        let reply = RetrieveReply::classify(Some("application/json"), body.into()).unwrap();
        assert_eq!(reply, expected, "{body}");
    }

    fn pending(queue_state: Option<&str>, reason: Option<&str>) -> RetrieveReply {
        RetrieveReply::Pending {
            queue_state: queue_state.map(str::to_owned),
            reason: reason.map(str::to_owned),
        }
    }

    fn failed(message: &str, category: ErrorCategory) -> RetrieveReply {
        RetrieveReply::Failed {
            message: message.into(),
            category,
        }
    }

    #[test]
    fn classifies_json_answers() {
        check(
            r#"{"type":"try_again","request_id":"r","queue_state":"active"}"#,
            pending(Some("active"), None),
        );
        check(
            r#"{"type":"try_again","queue_state":null,"queue_state_reason":"busy"}"#,
            pending(None, Some("busy")),
        );
        check(
            r#"{"status":"complete_metadata","response_payload_size":7}"#,
            RetrieveReply::MetadataOnly { size: 7 },
        );
        check(
            r#"{"status":"complete_metadata"}"#,
            RetrieveReply::MetadataOnly { size: 0 },
        );
        check(
            r#"{"error":"bad","category":"USER"}"#,
            failed("bad", ErrorCategory::User),
        );
        check(
            r#"{"error":{"a":1},"category":3}"#,
            failed(r#"{"a":1}"#, ErrorCategory::Unknown),
        );
        check(r#"{"error":null}"#, failed("null", ErrorCategory::Unknown));
        let payload = r#"{"type":"sample","sequences":[],"status":1}"#;
        check(payload, RetrieveReply::Payload(payload.into()));
    }

    #[test]
    fn protobuf_passes_through() {
        let reply = RetrieveReply::classify(Some("application/x-protobuf"), vec![1, 2]).unwrap();
        assert_eq!(reply, RetrieveReply::Payload(vec![1, 2]));
    }

    #[test]
    fn other_shapes_are_refused() {
        for body in ["", "[]", "3", "{", "<html>"] {
            let error = RetrieveReply::classify(None, body.into()).unwrap_err();
            assert!(matches!(error, Error::Reply(_)), "{body}: {error}");
        }
    }

    #[test]
    fn timeouts_may_carry_a_queue_state() {
        assert_eq!(
            RetrieveReply::pending_note(br#"{"queue_state":"paused_capacity","detail":"x"}"#),
            Some(pending(Some("paused_capacity"), None))
        );
        assert_eq!(RetrieveReply::pending_note(b"gateway timeout"), None);
    }
}
