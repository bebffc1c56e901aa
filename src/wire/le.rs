//! Arrays of numbers as little-endian bytes, copied once in either direction.

use bytemuck::Pod;

use crate::error::{Context, Error, Result};

/// A number with a fixed little-endian form.
pub(crate) trait Number: Pod {
    const NAME: &'static str;
    fn from_le(bytes: &[u8]) -> Self;
    fn push_le(self, out: &mut Vec<u8>);
}

macro_rules! number {
    ($($kind:ty => $name:literal),*) => {$(
        impl Number for $kind {
            const NAME: &'static str = $name;

            fn from_le(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("the caller cuts whole elements"))
            }

            fn push_le(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

number!(f32 => "float32", i32 => "int32", i64 => "int64", u16 => "bfloat16");

/// Appends `values`; on the usual machines this is one copy.
pub(crate) fn extend<T: Number>(out: &mut Vec<u8>, values: &[T]) {
    if cfg!(target_endian = "little") {
        out.extend_from_slice(bytemuck::cast_slice(values));
    } else {
        for value in values {
            value.push_le(out);
        }
    }
}

/// Reads a whole array into an aligned vector of its own.
pub(crate) fn read<T: Number>(what: &str, bytes: &[u8]) -> Result<Vec<T>> {
    let elements = whole::<T>(what, bytes)?;
    if cfg!(target_endian = "little") {
        Ok(bytemuck::pod_collect_to_vec(bytes))
    } else {
        Ok(elements.collect())
    }
}

/// Reads a whole array, converting each element on the way.
pub(crate) fn read_as<T: Number, U>(
    what: &str,
    bytes: &[u8],
    convert: impl Fn(T) -> U,
) -> Result<Vec<U>> {
    Ok(whole::<T>(what, bytes)?.map(convert).collect())
}

/// Goes through an array without copying it.
pub(crate) fn whole<'a, T: Number>(
    what: &str,
    bytes: &'a [u8],
) -> Result<impl ExactSizeIterator<Item = T> + use<'a, T>> {
    if !bytes.len().is_multiple_of(size_of::<T>()) {
        return Err(Error::Reply(Context::new(format!(
            "{what}: {} bytes are not a whole number of {} values",
            bytes.len(),
            T::NAME
        ))));
    }
    Ok(bytes.chunks_exact(size_of::<T>()).map(T::from_le))
}

/// A bfloat16's bits are the upper half of a float32's.
pub(crate) fn widen_bfloat16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_wrote_at_any_alignment() {
        let values = [0.0f32, -0.0, f32::INFINITY, f32::MIN_POSITIVE, 1.5];
        for lead in 0..4 {
            let mut bytes = vec![7u8; lead];
            extend(&mut bytes, &values);
            assert_eq!(read::<f32>("x", &bytes[lead..]).unwrap(), values);
        }
    }

    #[test]
    fn refuses_part_of_an_element() {
        let error = read::<i64>("offsets", &[0; 12]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unexpected answer: offsets: 12 bytes are not a whole number of int64 values"
        );
    }

    #[test]
    fn widens_bfloat16() {
        assert_eq!(widen_bfloat16(0x3f80), 1.0);
        assert_eq!(widen_bfloat16(0xc020), -2.5);
        assert!(widen_bfloat16(0x7fc0).is_nan());
    }
}
