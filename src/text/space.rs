//! What Python takes for white space.

/// Whether it is: four characters more than Unicode's.
pub(super) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

/// Python's methods without arguments, which `\s*` of its regular expressions agrees with.
pub(super) trait Strip {
    fn strip(&self) -> &str;
    fn lstrip(&self) -> &str;
    fn rstrip(&self) -> &str;
}

impl Strip for str {
    fn strip(&self) -> &str {
        self.trim_matches(is_space)
    }

    fn lstrip(&self) -> &str {
        self.trim_start_matches(is_space)
    }

    fn rstrip(&self) -> &str {
        self.trim_end_matches(is_space)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_of_information_are_space() {
        let text = "\u{1f}\u{a0} a\u{200b}\u{85}\u{1c}\n";
        assert_eq!(text.strip(), "a\u{200b}");
        assert_eq!(text.lstrip(), "a\u{200b}\u{85}\u{1c}\n");
        assert_eq!(text.rstrip(), "\u{1f}\u{a0} a\u{200b}");
    }
}
