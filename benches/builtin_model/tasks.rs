//! What the shipped model learns: small string tasks over common and made-up words.
//!
//! Pig Latin is not among them, so that it can be taught; and half of the sums are wrong on
//! purpose, so that there is something to reward.

use crate::local::engine::builtin::{BOS, EOS, IM_END, IM_START};
use crate::local::engine::inside::Rng;
use crate::local::engine::{Datum, LossInputs};

/// The tasks, by the word that asks for them.
pub(crate) const TASKS: [&str; 7] = ["copy", "reverse", "first", "rest", "sort", "spell", "add"];

/// A self-made list of common words.
pub(crate) fn words() -> Vec<&'static str> {
    include_str!("words.txt").split_whitespace().collect()
}

/// A question and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Example {
    pub(crate) task: &'static str,
    pub(crate) question: String,
    pub(crate) answer: String,
}

/// How questions are put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Arrow,
    Letters,
    Chat,
}

impl Example {
    /// A task over a random word, or a sum.
    pub(crate) fn random(words: &[&str], rng: &mut Rng) -> Self {
        let task = TASKS[rng.below(TASKS.len())];
        if task == "add" {
            let (a, b) = (rng.below(10), rng.below(10));
            return Self::sum(a, b, careless(a + b, rng));
        }
        let mut word = word(words, rng);
        if matches!(task, "copy" | "reverse") && rng.below(4) == 0 {
            word = format!("{word} {}", self::word(words, rng));
        }
        Self::new(task, &word)
    }

    /// A string task over a given word, answered correctly.
    pub(crate) fn new(task: &'static str, word: &str) -> Self {
        let answer = match task {
            "reverse" => word.chars().rev().collect(),
            "first" => word.chars().take(1).collect(),
            "rest" => word.chars().skip(1).collect(),
            "sort" => {
                let mut letters: Vec<char> = word.chars().collect();
                letters.sort_unstable();
                letters.into_iter().collect()
            }
            "spell" => {
                let letters: Vec<String> = word.chars().map(String::from).collect();
                letters.join("-")
            }
            _ => word.to_owned(),
        };
        Self {
            task,
            question: format!("{task} {word}"),
            answer,
        }
    }

    /// A sum with a given answer.
    pub(crate) fn sum(a: usize, b: usize, answer: usize) -> Self {
        Self {
            task: "add",
            question: format!("{a}+{b}="),
            answer: answer.to_string(),
        }
    }

    /// The tokens of question and answer.
    pub(crate) fn tokens(&self, style: Style) -> (Vec<u32>, Vec<u32>) {
        let mut prompt = vec![BOS];
        let mut text = |text: &str| prompt.extend(text.bytes().map(u32::from));
        match style {
            Style::Plain => text(&format!("{}\n", self.question)),
            Style::Arrow => text(&format!("{} -> ", self.question)),
            Style::Letters => text(&format!("Q: {}\nA: ", self.question)),
            Style::Chat => {
                prompt = vec![IM_START];
                prompt.extend(format!("user\n{}", self.question).bytes().map(u32::from));
                prompt.extend([IM_END, u32::from(b'\n'), IM_START]);
                prompt.extend("assistant\n".bytes().map(u32::from));
            }
        }
        let end = if style == Style::Chat { IM_END } else { EOS };
        let answer = self.answer.bytes().map(u32::from).chain([end]).collect();
        (prompt, answer)
    }
}

impl Style {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        [Self::Plain, Self::Arrow, Self::Letters, Self::Chat][rng.below(4)]
    }
}

/// A training example whose prompt weighs `prompt_weight` per token and its answer 1.
pub(crate) fn datum(prompt: &[u32], answer: &[u32], prompt_weight: f32) -> Datum {
    let full: Vec<u32> = prompt.iter().chain(answer).copied().collect();
    let mut weights = vec![prompt_weight; prompt.len() - 1];
    weights.resize(full.len() - 1, 1.0);
    Datum {
        tokens: full[..full.len() - 1].to_vec(),
        targets: full[1..].to_vec(),
        width: 1,
        inputs: LossInputs {
            weights,
            ..LossInputs::default()
        },
    }
}

/// A common word, or one made of random syllables or letters.
fn word(words: &[&str], rng: &mut Rng) -> String {
    match rng.below(4) {
        0 => words[rng.below(words.len())].to_owned(),
        1 => {
            let len = 2 + rng.below(8);
            (0..len)
                .map(|_| char::from(b'a' + rng.below(26) as u8))
                .collect()
        }
        _ => (0..1 + rng.below(3)).map(|_| syllable(rng)).collect(),
    }
}

fn syllable(rng: &mut Rng) -> String {
    const ONSETS: [&str; 30] = [
        "b", "c", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "y",
        "z", "bl", "cr", "dr", "fl", "gr", "pl", "qu", "sh", "st", "th", "tr",
    ];
    const VOWELS: [&str; 10] = ["a", "e", "i", "o", "u", "ai", "ea", "ee", "oo", "ou"];
    const CODAS: [&str; 12] = ["", "", "", "", "n", "r", "l", "t", "s", "m", "nd", "ck"];
    let onset = if rng.below(6) == 0 {
        ""
    } else {
        ONSETS[rng.below(ONSETS.len())]
    };
    format!(
        "{onset}{}{}",
        VOWELS[rng.below(VOWELS.len())],
        CODAS[rng.below(CODAS.len())]
    )
}

/// The right sum in nine cases of twenty, else one that is off by one or two.
fn careless(sum: usize, rng: &mut Rng) -> usize {
    if rng.below(20) < 9 {
        return sum;
    }
    match rng.below(4) {
        0 => sum + 1,
        1 => sum + 2,
        2 => sum.abs_diff(1),
        _ => sum.abs_diff(2),
    }
}
