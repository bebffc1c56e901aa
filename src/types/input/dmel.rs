//! Audio chunks, and the header of the container they come in.

use std::fmt;
use std::sync::Arc;

use crate::types::tensor::Brief;
use crate::{Error, Result};

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

impl fmt::Debug for DmelChunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmelChunk")
            .field("dmel", &Brief(&self.dmel))
            .finish()
    }
}
