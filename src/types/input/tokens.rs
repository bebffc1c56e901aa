//! Token ids.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::types::tensor::Brief;
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
