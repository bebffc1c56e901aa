//! Percent-encoded paths and queries.

/// Undoes `%3A` and its like; what does not decode is taken as it stands.
pub(in crate::local) fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%')
            .then(|| text.get(at + 1..at + 3))
            .flatten()
            // Numbers may have a sign, escapes may not.
            .filter(|hex| !hex.starts_with('+'))
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match escaped {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The value of a query parameter, form-decoded.
pub(in crate::local) fn query<'q>(query: &'q str, name: &str) -> Option<String> {
    query
        .split('&')
        .filter_map(|pair: &'q str| pair.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| percent_decode(&value.replace('+', " ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_queries() {
        let text = "limit=5&starting_on=2026-01-01T00%3A00%3A00Z&name=a+b";
        assert_eq!(query(text, "limit").as_deref(), Some("5"));
        assert_eq!(
            query(text, "starting_on").as_deref(),
            Some("2026-01-01T00:00:00Z")
        );
        assert_eq!(query(text, "name").as_deref(), Some("a b"));
        assert_eq!(query(text, "absent"), None);
    }

    #[test]
    fn what_is_no_escape_stays() {
        for text in ["%+a", "%", "%4", "%zz", "%é", "a%2"] {
            assert_eq!(percent_decode(text), text);
        }
        assert_eq!(percent_decode("%25%c3%A9"), "%é");
    }
}
