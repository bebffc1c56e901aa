//! Model inputs: sequences of text, image and audio chunks.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::{Deserializer, Error as _};
use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};

use super::tensor::Brief;
use crate::{Error, Result};

/// Token ids, shared between clones.
///
/// Takes a `Vec<i32>` without copying. Ids of other integer types convert with `try_from`,
/// which refuses what does not fit 32 signed bits; a `Vec<u32>`, as tokenizers produce, is
/// taken over without copying too.
///
/// ```
/// use tinker::types::Tokens;
///
/// let tokens = Tokens::from(vec![1, 2, 3]);
/// assert_eq!(tokens.len(), 3);
/// assert_eq!(Tokens::try_from(vec![1u32, 2, 3])?, tokens);
/// assert!(Tokens::try_from(vec![1i64 << 31]).is_err());
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tokens(Arc<Vec<i32>>);

impl Tokens {
    /// The ids.
    pub fn as_slice(&self) -> &[i32] {
        &self.0
    }

    /// The ids as a vector; copies only if other clones exist.
    pub fn into_vec(self) -> Vec<i32> {
        Arc::unwrap_or_clone(self.0)
    }
}

impl Deref for Tokens {
    type Target = [i32];

    fn deref(&self) -> &[i32] {
        &self.0
    }
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Brief(&self.0).fmt(f)
    }
}

impl From<Vec<i32>> for Tokens {
    fn from(tokens: Vec<i32>) -> Self {
        Self(Arc::new(tokens))
    }
}

impl From<Arc<Vec<i32>>> for Tokens {
    fn from(tokens: Arc<Vec<i32>>) -> Self {
        Self(tokens)
    }
}

impl From<&[i32]> for Tokens {
    fn from(tokens: &[i32]) -> Self {
        tokens.to_vec().into()
    }
}

impl From<&Tokens> for Tokens {
    fn from(tokens: &Tokens) -> Self {
        tokens.clone()
    }
}

impl<const N: usize> From<[i32; N]> for Tokens {
    fn from(tokens: [i32; N]) -> Self {
        tokens.to_vec().into()
    }
}

impl FromIterator<i32> for Tokens {
    fn from_iter<I: IntoIterator<Item = i32>>(tokens: I) -> Self {
        tokens.into_iter().collect::<Vec<_>>().into()
    }
}

impl TryFrom<Vec<u32>> for Tokens {
    type Error = Error;

    fn try_from(tokens: Vec<u32>) -> Result<Self> {
        match tokens
            .iter()
            .position(|&token| i32::try_from(token).is_err())
        {
            Some(index) => Err(token_error(index, i64::from(tokens[index]))),
            None => Ok(bytemuck::cast_vec::<u32, i32>(tokens).into()),
        }
    }
}

impl TryFrom<&[u32]> for Tokens {
    type Error = Error;

    fn try_from(tokens: &[u32]) -> Result<Self> {
        tokens.to_vec().try_into()
    }
}

impl TryFrom<&[i64]> for Tokens {
    type Error = Error;

    fn try_from(tokens: &[i64]) -> Result<Self> {
        let narrow = |(index, &token)| i32::try_from(token).map_err(|_| token_error(index, token));
        tokens.iter().enumerate().map(narrow).collect()
    }
}

impl TryFrom<Vec<i64>> for Tokens {
    type Error = Error;

    fn try_from(tokens: Vec<i64>) -> Result<Self> {
        tokens.as_slice().try_into()
    }
}

fn token_error(index: usize, token: i64) -> Error {
    Error::invalid(
        format!("tokens[{index}]"),
        format!("{token} does not fit 32 signed bits"),
    )
}

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

/// Audio tokens, as the bytes of a serialised tensor container.
#[derive(Clone, PartialEq, Eq)]
pub struct DmelChunk {
    /// The container's bytes.
    pub dmel: Arc<Vec<u8>>,
}

impl DmelChunk {
    /// How many tokens the chunk takes: the first dimension in the container's header.
    ///
    /// # Errors
    ///
    /// If the header is not that of a tensor with at least one dimension.
    pub fn length(&self) -> Result<usize> {
        let shape = self.shape()?;
        let first = shape
            .first()
            .ok_or_else(|| Error::invalid("dmel", "the tensor has no dimension"))?;
        usize::try_from(*first).map_err(|_| Error::invalid("dmel", "the tensor is too long"))
    }

    /// The shape in the container's header.
    ///
    /// # Errors
    ///
    /// If the header is truncated or malformed.
    pub fn shape(&self) -> Result<Vec<u64>> {
        container_shape(&self.dmel)
            .map_err(|problem| Error::invalid("dmel", format!("not a tensor container: {problem}")))
    }
}

/// Header: an optional byte 254 (constant tensor), the dtype 0–7, varints for the number of
/// dimensions and for each of them.
fn container_shape(bytes: &[u8]) -> Result<Vec<u64>, &'static str> {
    const CONSTANT: u8 = 254;
    const LAST_DTYPE: u8 = 7;
    let mut rest = bytes.strip_prefix(&[CONSTANT]).unwrap_or(bytes);
    let (&dtype, tail) = rest.split_first().ok_or("empty")?;
    if dtype > LAST_DTYPE {
        return Err("unknown dtype");
    }
    rest = tail;
    let dims = read_varint(&mut rest)?;
    // Each dimension takes at least a byte, so a count beyond the bytes left ends in an error
    // rather than in an allocation.
    (0..dims).map(|_| read_varint(&mut rest)).collect()
}

fn read_varint(bytes: &mut &[u8]) -> Result<u64, &'static str> {
    let mut value = 0u64;
    for shift in (0..=63).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or("truncated header")?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if (part << shift) >> shift != part {
            return Err("a number is too long");
        }
        value |= part << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number is too long")
}

/// One piece of a [`ModelInput`].
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
    fn byte_estimate(&self, per_token: usize) -> usize {
        match self {
            Self::EncodedText(text) => text.tokens.len() * per_token,
            Self::Image(image) => image.data.len(),
            Self::ImageAssetPointer(image) => image.location.chars().count(),
            Self::Dmel(dmel) => dmel.dmel.len(),
        }
    }
}

/// What a model reads: chunks of tokens, images and audio, in order.
///
/// ```
/// use tinker::ModelInput;
///
/// let prompt = ModelInput::from_ints(vec![1, 2, 3]).append_ints([4]);
/// assert_eq!(prompt.length()?, 4);
/// assert_eq!(prompt.to_ints()?, [1, 2, 3, 4]);
/// # Ok::<(), tinker::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelInput {
    chunks: Vec<Chunk>,
}

impl ModelInput {
    /// An input without chunks, to append to.
    pub fn empty() -> Self {
        Self::default()
    }

    /// An input of these token ids; a `Vec<i32>` is not copied.
    #[doc(alias = "from_tokens")]
    pub fn from_ints(tokens: impl Into<Tokens>) -> Self {
        Self {
            chunks: vec![Chunk::tokens(tokens)],
        }
    }

    /// An input of token ids of another integer type, checked to fit.
    ///
    /// # Errors
    ///
    /// If an id does not fit 32 signed bits.
    ///
    /// ```
    /// let ids: Vec<u32> = vec![15496, 995];
    /// let prompt = tinker::ModelInput::try_from_ints(ids)?;
    /// assert_eq!(prompt.length()?, 2);
    /// # Ok::<(), tinker::Error>(())
    /// ```
    pub fn try_from_ints(tokens: impl TryInto<Tokens, Error = Error>) -> Result<Self> {
        Ok(Self::from_ints(tokens.try_into()?))
    }

    /// An input of these chunks.
    pub fn from_chunks(chunks: impl Into<Vec<Chunk>>) -> Self {
        Self {
            chunks: chunks.into(),
        }
    }

    /// The input with a chunk added at its end.
    #[must_use]
    pub fn append(mut self, chunk: Chunk) -> Self {
        self.chunks.push(chunk);
        self
    }

    /// The input with a chunk of token ids added at its end.
    #[doc(alias = "append_int")]
    #[must_use]
    pub fn append_ints(self, tokens: impl Into<Tokens>) -> Self {
        self.append(Chunk::tokens(tokens))
    }

    /// The chunks.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// How many tokens the input takes in the model's context.
    ///
    /// # Errors
    ///
    /// If it holds an image without expected tokens, or a malformed audio chunk.
    pub fn length(&self) -> Result<usize> {
        self.chunks
            .iter()
            .enumerate()
            .try_fold(0usize, |sum, (index, chunk)| {
                let length = chunk
                    .length()
                    .map_err(|error| error.within(&format!("chunks[{index}]")))?;
                Ok(sum.saturating_add(length))
            })
    }

    /// All token ids in one vector.
    ///
    /// # Errors
    ///
    /// If a chunk is not text.
    pub fn to_ints(&self) -> Result<Vec<i32>> {
        let mut tokens = Vec::new();
        for (index, chunk) in self.chunks.iter().enumerate() {
            let Chunk::EncodedText(text) = chunk else {
                return Err(Error::invalid(
                    format!("chunks[{index}]"),
                    "is not text; only an input of text chunks is a list of tokens",
                ));
            };
            tokens.extend_from_slice(&text.tokens);
        }
        Ok(tokens)
    }

    /// Estimated bytes of the input in a training request: four per token, images and audio as
    /// they are.
    pub fn byte_estimate(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.byte_estimate(4)).sum()
    }

    /// Estimated bytes of the input in a sampling request, where tokens are written as text:
    /// ten per token.
    pub fn sampling_byte_estimate(&self) -> usize {
        self.chunks
            .iter()
            .map(|chunk| chunk.byte_estimate(10))
            .sum()
    }
}

impl From<Vec<i32>> for ModelInput {
    fn from(tokens: Vec<i32>) -> Self {
        Self::from_ints(tokens)
    }
}

impl From<Tokens> for ModelInput {
    fn from(tokens: Tokens) -> Self {
        Self::from_ints(tokens)
    }
}

impl From<&ModelInput> for ModelInput {
    fn from(input: &ModelInput) -> Self {
        input.clone()
    }
}

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

impl fmt::Debug for ImageChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageChunk")
            .field("data", &Brief(&self.data))
            .field("format", &self.format)
            .field("expected_tokens", &self.expected_tokens)
            .finish()
    }
}

impl fmt::Debug for DmelChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmelChunk")
            .field("dmel", &Brief(&self.dmel))
            .finish()
    }
}
