//! Chunks as JSON, tagged by `type`, with bytes in base64.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::{Deserializer, Error as _};
use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};

use super::{Chunk, DmelChunk, ImageAssetPointerChunk, ImageChunk, ImageFormat, Tokens};

impl Serialize for Chunk {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let expected_tokens = match self {
            Self::Image(image) => image.expected_tokens,
            Self::ImageAssetPointer(image) => image.expected_tokens,
            Self::EncodedText(_) | Self::Dmel(_) => None,
        };
        let (tag, fields) = match self {
            Self::EncodedText(_) => ("encoded_text", 2),
            Self::Image(_) => ("image", 3),
            Self::ImageAssetPointer(_) => ("image_asset_pointer", 3),
            Self::Dmel(_) => ("dmel", 2),
        };
        let fields = fields + usize::from(expected_tokens.is_some());
        let mut out = serializer.serialize_struct("Chunk", fields)?;
        match self {
            Self::EncodedText(text) => out.serialize_field("tokens", &text.tokens)?,
            Self::Image(image) => {
                out.serialize_field("data", &BASE64.encode(&*image.data))?;
                out.serialize_field("format", &image.format)?;
            }
            Self::ImageAssetPointer(image) => {
                out.serialize_field("format", &image.format)?;
                out.serialize_field("location", &image.location)?;
            }
            Self::Dmel(dmel) => out.serialize_field("dmel", &BASE64.encode(&*dmel.dmel))?,
        }
        if let Some(tokens) = expected_tokens {
            out.serialize_field("expected_tokens", &tokens)?;
        }
        out.serialize_field("type", tag)?;
        out.end()
    }
}

impl<'de> Deserialize<'de> for Chunk {
    // One struct with every field instead of a derived tagged enum, which would first build a
    // tree of the whole chunk to look for the tag.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Raw {
            r#type: String,
            tokens: Option<Tokens>,
            data: Option<String>,
            dmel: Option<String>,
            format: Option<ImageFormat>,
            location: Option<String>,
            expected_tokens: Option<u32>,
        }
        fn need<T, E: serde::de::Error>(field: &'static str, value: Option<T>) -> Result<T, E> {
            value.ok_or_else(|| E::missing_field(field))
        }
        fn bytes<E: serde::de::Error>(text: String) -> Result<Arc<Vec<u8>>, E> {
            let bytes = BASE64.decode(text).map_err(E::custom)?;
            Ok(Arc::new(bytes))
        }
        let raw = Raw::deserialize(deserializer)?;
        match raw.r#type.as_str() {
            "encoded_text" => Ok(Self::tokens(need("tokens", raw.tokens)?)),
            "image" => Ok(Self::Image(ImageChunk {
                data: bytes(need("data", raw.data)?)?,
                format: need("format", raw.format)?,
                expected_tokens: raw.expected_tokens,
            })),
            "image_asset_pointer" => Ok(Self::ImageAssetPointer(ImageAssetPointerChunk {
                location: need("location", raw.location)?,
                format: need("format", raw.format)?,
                expected_tokens: raw.expected_tokens,
            })),
            "dmel" => Ok(Self::Dmel(DmelChunk {
                dmel: bytes(need("dmel", raw.dmel)?)?,
            })),
            other => Err(D::Error::unknown_variant(
                other,
                &["encoded_text", "image", "image_asset_pointer", "dmel"],
            )),
        }
    }
}
