//! Percent-encoding, which paths, queries and file names share.

/// Appends a text, with every byte that is not `plain` as `%XX`.
pub(crate) fn percent_encode(out: &mut String, text: &str, plain: impl Fn(u8) -> bool) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if plain(byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(HEX[usize::from(byte >> 4)]));
            out.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
}

/// Letters, digits and `-._~`, which never need encoding.
pub(crate) fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}
