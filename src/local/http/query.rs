//! Percent-encoded paths and queries.

use crate::types::percent::percent_decode;

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
