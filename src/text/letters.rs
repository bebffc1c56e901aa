//! What Python takes for letters and digits.

use std::sync::LazyLock;

use tokenizers::utils::SysRegex;

/// Whether `\w` matches it. To Rust, vowel signs and circled letters are alphabetic as well.
pub(super) fn is_word(c: char) -> bool {
    c == '_' || is_letter(c) || c.is_numeric()
}

/// Whether `str.isalpha` holds.
pub(super) fn is_letter(c: char) -> bool {
    static LETTER: LazyLock<SysRegex> = LazyLock::new(|| category(r"\p{L}"));
    c.is_ascii_alphabetic() || (c.is_alphabetic() && is_of(&LETTER, c))
}

/// Whether `\d` matches it.
pub(super) fn is_digit(c: char) -> bool {
    static DIGIT: LazyLock<SysRegex> = LazyLock::new(|| category(r"\p{Nd}"));
    c.is_ascii_digit() || (c.is_numeric() && is_of(&DIGIT, c))
}

fn category(pattern: &str) -> SysRegex {
    SysRegex::new(pattern).expect("the pattern is a category's name")
}

fn is_of(category: &SysRegex, c: char) -> bool {
    let mut bytes = [0; 4];
    category
        .find_iter(c.encode_utf8(&mut bytes))
        .next()
        .is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_no_marks() {
        let words = "aZ_é日9٣½ªⅣ²";
        assert!(words.chars().all(is_word));
        let others = "-. \u{94c}\u{301}Ⓐ·";
        assert!(!others.chars().any(is_word));
        assert!("9٣".chars().all(is_digit));
        assert!(!"½²Ⅳ一a".chars().any(is_digit));
    }
}
