//! Finding a secret in a text, however it is written there.

/// Replaces a secret wherever it stands: as it is, or within a JSON string or a URL.
pub(super) fn hide(text: &str, secret: &str) -> String {
    if !text.contains(['%', '\\']) {
        return text.replace(secret, "***");
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let found = match rest.starts_with(secret) {
            true => Some(secret.len()),
            false => written(rest.as_bytes(), secret.as_bytes()),
        };
        // Escapes are ASCII, so that what they end is a whole letter.
        match found.filter(|length| *length > 0 && rest.is_char_boundary(*length)) {
            Some(length) => {
                shown.push_str("***");
                rest = &rest[length..];
            }
            None => {
                shown.push(letter);
                rest = &rest[letter.len_utf8()..];
            }
        }
    }
    shown
}

/// How much of a text's beginning a secret takes, each of its bytes escaped or not.
fn written(text: &[u8], secret: &[u8]) -> Option<usize> {
    secret
        .iter()
        .try_fold(0, |at, byte| Some(at + one(&text[at..], *byte)?))
}

/// How much of a text's beginning a byte takes.
fn one(text: &[u8], byte: u8) -> Option<usize> {
    let is_hex = |digits: [u8; 2]| {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let value = digit(digits[0]).zip(digit(digits[1]));
        value.is_some_and(|(high, low)| high * 16 + low == u32::from(byte))
    };
    match *text {
        [b'%', high, low, ..] if is_hex([high, low]) => Some(3),
        [b'\\', b'u', b'0', b'0', high, low, ..] if is_hex([high, low]) => Some(6),
        [b'\\', escaped @ (b'"' | b'\\' | b'/'), ..] if escaped == byte => Some(2),
        [first, ..] if first == byte => Some(1),
        _ => None,
    }
}
