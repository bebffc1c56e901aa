//! Request bodies as one zstd frame.

use std::io::Read;

use crate::error::{Context, Error, Result};

/// The `Content-Encoding` of a compressed body.
pub(crate) const ENCODING: &str = "zstd";

/// The window that compressors use for input of unknown size at ordinary levels: 8 MB.
const MIN_WINDOW_LOG: u32 = 23;

/// The largest window decoders accept unasked: 128 MB.
const MAX_WINDOW_LOG: u32 = 27;

/// Compresses a whole body at the default level, replacing what `out` held.
pub(crate) fn compress(body: &[u8], out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    out.reserve(zstd::zstd_safe::compress_bound(body.len()));
    zstd::bulk::Compressor::new(zstd::DEFAULT_COMPRESSION_LEVEL)
        .and_then(|mut compressor| compressor.compress_to_buffer(body, out))
        .map_err(|error| Error::Internal(Context::caused("cannot compress the request", error)))?;
    Ok(())
}

/// Decompresses a whole body, of at most `limit` bytes.
///
/// The frame's own claim about its size is not believed: memory grows with what really comes out.
///
/// # Errors
///
/// [`Error::Invalid`] for a damaged frame or one that holds more than `limit` bytes.
pub(crate) fn decompress(body: &[u8], limit: usize) -> Result<Vec<u8>> {
    let damaged = |error: std::io::Error| Error::invalid("body", format!("is not zstd: {error}"));
    let mut decoder = zstd::stream::read::Decoder::with_buffer(body).map_err(damaged)?;
    // A frame may ask for a window of any size, which is allocated before anything is read.
    let window = limit.next_power_of_two().trailing_zeros();
    decoder
        .window_log_max(window.clamp(MIN_WINDOW_LOG, MAX_WINDOW_LOG))
        .map_err(damaged)?;
    let mut out = Vec::new();
    decoder
        .take(limit as u64 + 1)
        .read_to_end(&mut out)
        .map_err(damaged)?;
    if out.len() > limit {
        return Err(Error::invalid(
            "body",
            format!("decompresses to more than {limit} bytes"),
        ));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_recycles_the_buffer() {
        let mut frame = vec![9; 5];
        for body in [&b""[..], b"abc", &[7; 100_000]] {
            compress(body, &mut frame).unwrap();
            assert_eq!(decompress(&frame, body.len()).unwrap(), body);
        }
    }

    #[test]
    fn stops_at_the_limit() {
        let mut frame = Vec::new();
        compress(&vec![0; 1 << 20], &mut frame).unwrap();
        let error = decompress(&frame, 1000).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid body: decompresses to more than 1000 bytes"
        );
    }

    #[test]
    fn refuses_truncated_and_foreign_bytes() {
        let mut frame = Vec::new();
        compress(b"some body of a request", &mut frame).unwrap();
        for end in 0..frame.len() {
            // An empty input is zero frames, which is a valid empty stream.
            let result = decompress(&frame[..end], 1000);
            assert!(result.is_err() || end == 0, "{end}");
        }
        assert!(decompress(b"plain text", 1000).is_err());
    }
}
