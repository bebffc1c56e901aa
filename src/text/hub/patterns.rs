//! Which files of a folder are meant: shell patterns as the Hugging Face tools read them.

/// Never uploaded: what belongs to Git and to the tools' own bookkeeping.
const NEVER: [&str; 8] = [
    ".git",
    ".git/*",
    "*/.git",
    "**/.git/**",
    ".cache/huggingface",
    ".cache/huggingface/*",
    "*/.cache/huggingface",
    "**/.cache/huggingface/**",
];

/// Whether a path is among what is allowed (all of it, where nothing is said) and not ignored.
pub(super) fn is_meant(path: &str, allow: &[String], ignore: &[String]) -> bool {
    let ignored = NEVER.iter().any(|pattern| matches(pattern, path));
    let among = |patterns: &[String]| patterns.iter().any(|pattern| matches_all(pattern, path));
    !ignored && (allow.is_empty() || among(allow)) && !among(ignore)
}

/// A pattern that ends in a slash means everything below.
fn matches_all(pattern: &str, path: &str) -> bool {
    let pattern = pattern.replace('\\', "/");
    match pattern.ends_with('/') {
        true => matches(&format!("{pattern}*"), path),
        false => matches(&pattern, path),
    }
}

/// `*` stands for anything, slashes included, `?` for one letter, `[abc]`, `[a-z]` and `[!abc]`
/// for one of some; everything else for itself.
fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut read) = (0, 0);
    // Where the last star stands, and up to where it has been tried.
    let mut star: Option<(usize, usize)> = None;
    while read < text.len() {
        match step(&pattern[at..], text[read]) {
            Step::Star => {
                star = Some((at, read));
                at += 1;
                continue;
            }
            Step::Yes(width) => {
                at += width;
                read += 1;
                continue;
            }
            Step::No => {}
        }
        let Some((place, tried)) = star else {
            return false;
        };
        star = Some((place, tried + 1));
        (at, read) = (place + 1, tried + 1);
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

enum Step {
    Star,
    /// The letter is matched by so many letters of the pattern.
    Yes(usize),
    No,
}

fn step(pattern: &[char], letter: char) -> Step {
    let when = |yes: bool, width: usize| if yes { Step::Yes(width) } else { Step::No };
    match pattern {
        [] => Step::No,
        ['*', ..] => Step::Star,
        ['?', ..] => Step::Yes(1),
        ['[', rest @ ..] => match set(rest) {
            Some((letters, negated, width)) => when(among(letters, letter) != negated, width + 1),
            // A bracket that is never closed stands for itself.
            None => when(letter == '[', 1),
        },
        [first, ..] => when(*first == letter, 1),
    }
}

/// The letters between brackets, whether they are excluded, and how much of the pattern that was.
fn set(rest: &[char]) -> Option<(&[char], bool, usize)> {
    let negated = rest.first() == Some(&'!');
    let start = usize::from(negated);
    // A closing bracket that comes first is one of the letters.
    let end = (start + 1..rest.len()).find(|at| rest[*at] == ']')?;
    Some((&rest[start..end], negated, end + 1))
}

fn among(letters: &[char], letter: char) -> bool {
    let mut at = 0;
    while at < letters.len() {
        if let [low, '-', high, ..] = letters[at..] {
            if (low..=high).contains(&letter) {
                return true;
            }
            at += 3;
        } else {
            if letters[at] == letter {
                return true;
            }
            at += 1;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_mean_what_python_s_mean() {
        #[track_caller]
        fn check(pattern: &str, text: &str, expected: bool) {
            assert_eq!(matches_all(pattern, text), expected, "{pattern} {text}");
        }
        check("*.json", "a.json", true);
        check("*.json", "deep/er/a.json", true);
        check("*.json", "a.jsonl", false);
        check("data/*.json", "data/x/y.json", true);
        check("logs/", "logs/a/b", true);
        check("logs\\", "logs/a", true);
        check("logs/", "other/logs/a", false);
        check("a?c", "abc", true);
        check("a?c", "ac", false);
        check("[a-c]x", "bx", true);
        check("[!a-c]x", "bx", false);
        check("[]]x", "]x", true);
        check("[ab", "[ab", true);
        check("A*", "abc", false);
        check("*a*b*", "xxaxxbxx", true);
        check("*a*b*", "xxbxxaxx", false);
        check("", "", true);
        check("é*", "éa", true);
        check("[z-a]", "m", false);
    }

    #[test]
    fn what_is_ignored_wins() {
        let list = |patterns: &[&str]| {
            patterns
                .iter()
                .map(|&one| one.to_owned())
                .collect::<Vec<_>>()
        };
        assert!(is_meant("a.bin", &[], &[]));
        assert!(!is_meant(".git/config", &[], &[]));
        assert!(!is_meant("x/.git/config", &list(&["*"]), &[]));
        assert!(is_meant("a.json", &list(&["*.json"]), &[]));
        assert!(!is_meant("a.bin", &list(&["*.json"]), &[]));
        assert!(!is_meant("a.json", &list(&["*.json"]), &list(&["a*"])));
    }
}
