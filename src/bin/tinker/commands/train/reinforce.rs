//! `tinker train rl` and `tinker train distill`.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::{Value, json};
use tinker::text::data::KlPenalty;
use tinker::text::{Json, Message};
use tinker::train::rl::{Answer, EnvBatches, EnvDataset, EnvGroup, Grade, Problem, Rl};
use tinker::train::{Report, SavePolicy};

use super::{Desk, missing};
use crate::commands::data::Lines;

/// A line of the data.
#[derive(Debug, Clone, Deserialize)]
struct Question {
    #[serde(default)]
    prompt: Option<String>,
    #[serde(default)]
    messages: Option<Vec<Message>>,
    #[serde(default)]
    answer: Option<String>,
}

pub(super) fn train(desk: &mut Desk) -> anyhow::Result<Report> {
    let grader = Grader::parse(desk.settings.grader.as_deref().unwrap_or("exact"))?;
    let groups = groups(desk, |question, prompt, problem_of| {
        let answer = question.answer.clone();
        if answer.is_none() && !matches!(grader, Grader::Command(_)) {
            bail!("needs an `answer` to grade by");
        }
        let (grader, asked) = (grader.clone(), question.prompt.clone());
        Ok(Problem::new(problem_of, prompt, move |said| {
            grader.grade(asked.as_deref(), answer.as_deref(), said)
        }))
    })?;
    let mut rl = configured(desk, 1e-5);
    if let Some(coefficient) = desk.settings.kl.filter(|kl| *kl > 0.0) {
        let penalty = KlPenalty {
            coefficient,
            discount: 0.0,
        };
        rl = match desk.settings.load_checkpoint {
            Some(_) => rl.with_kl_penalty_to_start(penalty),
            None => rl.with_kl_penalty(penalty, desk.model.as_str()),
        };
    }
    run(desk, rl, groups)
}

pub(super) fn distill(desk: &mut Desk) -> anyhow::Result<Report> {
    let teacher = desk
        .settings
        .teacher
        .clone()
        .ok_or_else(|| missing("distill", "--teacher"))?;
    let groups = groups(desk, |_, prompt, tokenizer| {
        Ok(Problem::without_reward(tokenizer, prompt))
    })?;
    let penalty = KlPenalty {
        coefficient: desk.settings.kl.unwrap_or(1.0),
        discount: 0.0,
    };
    let rl = configured(desk, 1e-4).with_teacher(penalty, teacher.as_str());
    run(desk, rl, groups)
}

/// The learning rate is the cookbook's for the kind, unless one is given.
fn configured(desk: &Desk, rate: f64) -> Rl {
    let settings = &desk.settings;
    let mut rl = Rl::new(desk.model(), settings.max_tokens.unwrap_or(256))
        .with_learning_rate(settings.learning_rate.unwrap_or(rate))
        .with_save(SavePolicy::every(settings.save_every.unwrap_or(20)))
        .with_eval_every(settings.eval_every.unwrap_or(10));
    if let Some(steps) = settings.max_steps {
        rl = rl.with_max_steps(steps);
    }
    rl
}

fn run(desk: &mut Desk, mut rl: Rl, groups: Vec<Arc<dyn EnvGroup>>) -> anyhow::Result<Report> {
    let (groups, test) = desk.split(groups)?;
    if !test.is_empty() {
        let size = test.len();
        rl = rl.with_test(EnvBatches::new(test, size));
    }
    let size = desk.settings.batch_size.unwrap_or(32.min(groups.len()));
    let data = Epochs {
        groups,
        epochs: desk.settings.epochs.unwrap_or(1),
        size: size.max(1),
    };
    let (service, run) = desk.begin()?;
    Ok(rl.train(service, run, &data)?)
}

/// Groups as often as wished, one time after the other; a last batch that is not full is left out.
struct Epochs {
    groups: Vec<Arc<dyn EnvGroup>>,
    epochs: usize,
    size: usize,
}

impl EnvDataset for Epochs {
    fn batches(&self) -> usize {
        self.groups.len().saturating_mul(self.epochs) / self.size
    }

    fn batch(&self, index: usize) -> anyhow::Result<Vec<Arc<dyn EnvGroup>>> {
        let places = index * self.size..(index + 1) * self.size;
        let group = |place: usize| self.groups[place % self.groups.len()].clone();
        Ok(places.map(group).collect())
    }
}

type Make<'a> =
    dyn Fn(&Question, tinker::ModelInput, &tinker::Tokenizer) -> anyhow::Result<Problem> + 'a;

/// The data's questions, each a group of answers.
fn groups(
    desk: &Desk,
    make: impl Fn(&Question, tinker::ModelInput, &tinker::Tokenizer) -> anyhow::Result<Problem>,
) -> anyhow::Result<Vec<Arc<dyn EnvGroup>>> {
    let make: &Make<'_> = &make;
    let file = desk.data()?;
    let mut groups = Vec::new();
    for line in Lines::open(file)? {
        let line = line?;
        let number = line.number;
        let place = || format!("{}, line {number}", file.display());
        let line = line.text().with_context(place)?;
        let question = Json::parse(&line).and_then(Json::convert::<Question>);
        let question = question.map_err(anyhow::Error::msg).with_context(place)?;
        let messages = match (&question.messages, &question.prompt) {
            (Some(messages), _) => messages.clone(),
            (None, Some(prompt)) => vec![Message::user(prompt)],
            (None, None) => bail!("{}: needs `prompt` or `messages`", place()),
        };
        let prompt = desk
            .renderer
            .generation_prompt(&messages)
            .with_context(place)?;
        let problem = make(&question, prompt, &desk.tokenizer).with_context(place)?;
        let problem = problem
            .with_group_size(desk.settings.group_size.unwrap_or(4))
            .with_stop(desk.renderer.stop());
        groups.push(problem.into_group());
    }
    Ok(groups)
}

/// What makes an answer right.
#[derive(Debug, Clone, PartialEq)]
enum Grader {
    Exact,
    Contains,
    Number,
    Command(String),
}

impl Grader {
    fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(match text.split_once('=') {
            None if text == "exact" => Self::Exact,
            None if text == "contains" => Self::Contains,
            None if text == "number" => Self::Number,
            Some(("command", program)) => Self::Command(program.to_owned()),
            _ => bail!(
                "no such grader: {text}; there are exact, contains, number and command=PROGRAM"
            ),
        })
    }

    fn grade(
        &self,
        prompt: Option<&str>,
        answer: Option<&str>,
        said: &Answer,
    ) -> anyhow::Result<Grade> {
        if let Self::Command(program) = self {
            let input = json!({"prompt": prompt, "answer": answer, "response": said.text});
            return Ok(Grade::reward(ask(program, &input)?));
        }
        let right = self.is_right(answer.unwrap_or_default(), &said.text);
        Ok(Grade::answer(right, said.ended))
    }

    fn is_right(&self, answer: &str, said: &str) -> bool {
        let (answer, said) = (answer.trim(), said.trim());
        match self {
            Self::Exact => said == answer,
            Self::Contains => said.contains(answer),
            Self::Number => {
                last_number(said).is_some_and(|found| Some(found) == last_number(answer))
            }
            Self::Command(_) => false,
        }
    }
}

/// The last number in a text; commas within it do not count.
fn last_number(text: &str) -> Option<f64> {
    let is_part = |letter: char| letter.is_ascii_digit() || matches!(letter, '.' | ',' | '-');
    let mut words = text.split(|letter| !is_part(letter));
    words
        .rfind(|word| word.chars().any(|letter| letter.is_ascii_digit()))
        .and_then(|word| {
            let plain = word.replace(',', "");
            plain.trim_end_matches(['.', '-']).parse().ok()
        })
}

/// Has a program grade an answer: JSON in, a number out.
fn ask(program: &str, input: &Value) -> anyhow::Result<f64> {
    let mut child = Command::new("sh")
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run the grader {program:?}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A grader that does not read is judged by what it prints.
        let _ = stdin.write_all(input.to_string().as_bytes());
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("the grader {program:?} ended with {}", output.status);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let text = text.trim();
    text.parse()
        .with_context(|| format!("the grader {program:?} printed no number: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graders_judge() {
        for (grader, answer, said, right) in [
            ("exact", "12", " 12\n", true),
            ("exact", "12", "It is 12", false),
            ("contains", "12", "It is 12.", true),
            ("number", "1,234", "so 7 + … = 1234.", true),
            ("number", "12", "no idea", false),
            ("number", "-3.5", "x = -3.5", true),
        ] {
            let found = Grader::parse(grader).unwrap().is_right(answer, said);
            assert_eq!(found, right, "{grader} {answer} {said}");
        }
        assert!(Grader::parse("magic").is_err());
        assert_eq!(ask("echo 0.5", &json!({})).unwrap(), 0.5);
        assert!(ask("exit 3", &json!({})).is_err());
        assert!(ask("echo well", &json!({})).is_err());
    }
}
