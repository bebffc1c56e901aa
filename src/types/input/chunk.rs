//! The pieces of a model input.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{DmelChunk, Tokens};
use crate::types::tensor::Brief;
use crate::{Error, Result};

/// The format of an image. The service knows these two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageFormat {
    /// Portable Network Graphics.
    Png,
    /// JPEG.
    Jpeg,
}

impl ImageFormat {
    /// The service's spelling: `png` or `jpeg`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg => "jpeg",
        }
    }
}

/// A run of token ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedTextChunk {
    /// The ids.
    pub tokens: Tokens,
}

/// An image, sent with the request.
#[derive(Clone, PartialEq, Eq)]
pub struct ImageChunk {
    /// The image file's bytes.
    pub data: Arc<Vec<u8>>,
    /// Its format.
    pub format: ImageFormat,
    /// How many tokens the image is expected to take. Advisory: the service computes it, and
    /// fails the request early if the two differ. Default: not given.
    pub expected_tokens: Option<u32>,
}

/// An image the service fetches itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageAssetPointerChunk {
    /// The path or URL of the image.
    pub location: String,
    /// Its format.
    pub format: ImageFormat,
    /// As in [`ImageChunk::expected_tokens`].
    pub expected_tokens: Option<u32>,
}

/// One piece of a [`ModelInput`](super::ModelInput).
#[doc(alias = "ModelInputChunk")]
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    /// Token ids.
    EncodedText(EncodedTextChunk),
    /// An image sent along.
    Image(ImageChunk),
    /// An image the service fetches. Only for sampling: training requests cannot carry it.
    ImageAssetPointer(ImageAssetPointerChunk),
    /// Audio tokens.
    Dmel(DmelChunk),
}

impl Chunk {
    /// Token ids.
    pub fn tokens(tokens: impl Into<Tokens>) -> Self {
        Self::EncodedText(EncodedTextChunk {
            tokens: tokens.into(),
        })
    }

    /// An image's bytes.
    ///
    /// ```
    /// use tinker::types::{Chunk, ImageFormat};
    /// let image = Chunk::image(vec![0x89, b'P', b'N', b'G'], ImageFormat::Png)
    ///     .with_expected_tokens(64);
    /// assert_eq!(image.length()?, 64);
    /// # Ok::<(), tinker::Error>(())
    /// ```
    pub fn image(data: impl Into<Arc<Vec<u8>>>, format: ImageFormat) -> Self {
        Self::Image(ImageChunk {
            data: data.into(),
            format,
            expected_tokens: None,
        })
    }

    /// An image at a path or URL that the service fetches.
    pub fn image_asset(location: impl Into<String>, format: ImageFormat) -> Self {
        Self::ImageAssetPointer(ImageAssetPointerChunk {
            location: location.into(),
            format,
            expected_tokens: None,
        })
    }

    /// Audio tokens in a tensor container.
    ///
    /// # Errors
    ///
    /// If the bytes do not start with a container's header.
    ///
    /// ```
    /// let chunk = tinker::types::Chunk::dmel(vec![3, 2, 5, 8])?; // a tensor of 5 × 8
    /// assert_eq!(chunk.length()?, 5);
    /// # Ok::<(), tinker::Error>(())
    /// ```
    pub fn dmel(container: impl Into<Arc<Vec<u8>>>) -> Result<Self> {
        let chunk = DmelChunk {
            dmel: container.into(),
        };
        chunk.length()?;
        Ok(Self::Dmel(chunk))
    }

    /// Says how many tokens an image takes; other chunks know and stay as they are.
    #[must_use]
    pub fn with_expected_tokens(mut self, tokens: u32) -> Self {
        match &mut self {
            Self::Image(image) => image.expected_tokens = Some(tokens),
            Self::ImageAssetPointer(image) => image.expected_tokens = Some(tokens),
            Self::EncodedText(_) | Self::Dmel(_) => {}
        }
        self
    }

    /// How many tokens the chunk takes in the model's context.
    ///
    /// # Errors
    ///
    /// For an image without expected tokens, or a malformed audio chunk.
    pub fn length(&self) -> Result<usize> {
        let expected = |tokens: Option<u32>| match tokens {
            Some(tokens) => Ok(tokens as usize),
            None => Err(Error::invalid(
                "expected_tokens",
                "must be given for an image, to know the length of the input",
            )),
        };
        match self {
            Self::EncodedText(text) => Ok(text.tokens.len()),
            Self::Image(image) => expected(image.expected_tokens),
            Self::ImageAssetPointer(image) => expected(image.expected_tokens),
            Self::Dmel(dmel) => dmel.length(),
        }
    }

    /// Estimated bytes in a request that takes so many bytes per token.
    pub(super) fn byte_estimate(&self, per_token: usize) -> usize {
        match self {
            Self::EncodedText(text) => text.tokens.len() * per_token,
            Self::Image(image) => image.data.len(),
            Self::ImageAssetPointer(image) => image.location.chars().count(),
            Self::Dmel(dmel) => dmel.dmel.len(),
        }
    }
}

impl fmt::Debug for ImageChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageChunk")
            .field("data", &Brief(&self.data))
            .field("format", &self.format)
            .field("expected_tokens", &self.expected_tokens)
            .finish()
    }
}
