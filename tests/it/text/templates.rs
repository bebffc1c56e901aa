//! Chat templates against what transformers makes of the same ones.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::{Value, json};
use tinker::text::{ChatOptions, Json, Message, Tokenizer};

use crate::support::{packages, python};

/// Every recorded date.
fn clock() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_323_045)
}

/// A tokenizer that brings no variables along.
fn bare() -> Tokenizer {
    let json = std::fs::read("tests/fixtures/text/tiny/tokenizer.json").unwrap();
    Tokenizer::from_json(&json, None).unwrap()
}

fn golden(name: &str) -> String {
    std::fs::read_to_string(format!("tests/fixtures/text/golden/{name}")).unwrap()
}

/// Small pieces and what they print; without a text they are refused.
#[derive(Deserialize)]
struct Pieces {
    variables: BTreeMap<String, Json>,
    cases: Vec<Piece>,
}

#[derive(Deserialize)]
struct Piece {
    template: String,
    text: Option<String>,
}

fn check_pieces(pieces: &Pieces) {
    let tokenizer = bare();
    let mut options = ChatOptions::transcript().with_now(clock());
    for (name, value) in &pieces.variables {
        options = options.with_variable(name, value);
    }
    let wrong = pieces.cases.iter().filter_map(|case| {
        let options = options.clone().with_template(&case.template);
        let rendered = tokenizer.render_chat(&[], &options);
        let problem = format!("{}: {rendered:?}, not {:?}", case.template, case.text);
        (rendered.ok() != case.text).then_some(problem)
    });
    let wrong: Vec<String> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn expressions_print_what_jinja_prints() {
    check_pieces(&serde_json::from_str(&golden("expressions.json")).unwrap());
}

#[test]
fn more_expressions_print_what_jinja_prints() {
    let text = include_str!("../../fixtures/text/pieces.json");
    check_pieces(&serde_json::from_str(text).unwrap());
}

#[derive(Deserialize)]
struct Cases {
    variables: BTreeMap<String, Json>,
    cases: BTreeMap<String, Case>,
}

#[derive(Deserialize)]
struct Case {
    messages: Vec<Message>,
    tools: Option<Json>,
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(default)]
    variables: BTreeMap<String, Json>,
}

#[derive(Deserialize)]
struct Index {
    templates: Vec<Known>,
}

#[derive(Deserialize)]
struct Known {
    template: String,
    sha256: String,
    text: Option<String>,
}

#[derive(Deserialize)]
struct Row {
    template: String,
    case: String,
    tokenizer: Option<String>,
    text: Option<String>,
    generation: Option<Vec<(usize, usize)>>,
    ids: Option<Vec<i32>>,
    assistant_mask: Option<Vec<u8>>,
}

/// A template's text: ours and free ones from here, others from the packages that publish them.
fn source(known: &Known) -> Option<String> {
    let name = &known.template;
    let text = match (&known.text, name.strip_prefix("npm-")) {
        (Some(file), _) => golden(file),
        (None, Some(package)) => {
            let config = packages::npm_tokenizer(package)?.join("tokenizer_config.json");
            let config: Value = serde_json::from_slice(&std::fs::read(config).unwrap()).unwrap();
            config["chat_template"].as_str().unwrap().to_owned()
        }
        (None, None) => {
            std::fs::read_to_string(packages::llama_cpp_templates()?.join(name)).unwrap()
        }
    };
    assert_eq!(packages::sha256(text.as_bytes()), known.sha256, "{name}");
    Some(text)
}

fn options(case: &Case, shared: &BTreeMap<String, Json>, template: &str) -> ChatOptions {
    let mut options = match (case.continue_final_message, case.add_generation_prompt) {
        (true, _) => ChatOptions::continuation(),
        (false, Some(false)) => ChatOptions::transcript(),
        (false, _) => ChatOptions::prompt(),
    };
    options = options.with_template(template).with_now(clock());
    for (name, value) in shared.iter().chain(&case.variables) {
        options = options.with_variable(name, value);
    }
    match &case.tools {
        Some(tools) => options.with_tools(&tools.to_string()).unwrap(),
        None => options,
    }
}

#[test]
fn real_templates_lay_out_conversations_as_transformers_does() {
    let cases: Cases = serde_json::from_str(&golden("template_cases.json")).unwrap();
    let index: Index = serde_json::from_str(&golden("templates.json")).unwrap();
    let sources: BTreeMap<&str, Option<String>> = index
        .templates
        .iter()
        .map(|known| (known.template.as_str(), source(known)))
        .collect();
    let tokenizer = bare();
    for line in golden("templates.jsonl").lines() {
        let row: Row = serde_json::from_str(line).unwrap();
        let (Some(source), None) = (&sources[row.template.as_str()], &row.tokenizer) else {
            continue;
        };
        let case = &cases.cases[&row.case];
        let options = options(case, &cases.variables, source);
        let rendered = tokenizer.render_chat_with_spans(&case.messages, &options);
        let name = format!("{} {}", row.template, row.case);
        let Some(expected) = row.text else {
            assert!(rendered.is_err(), "{name}: {rendered:?}");
            continue;
        };
        let (text, spans) = rendered.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(text, expected, "{name}");
        if let Some(recorded) = row.generation {
            let place = |byte: usize| text[..byte].chars().count();
            let spans: Vec<_> = spans
                .iter()
                .map(|span| (place(span.start), place(span.end)))
                .collect();
            assert_eq!(spans, recorded, "{name}");
        }
    }
}

#[test]
fn what_the_assistant_says_is_marked() {
    let Some(folder) = packages::npm_tokenizer("qwen3") else {
        return;
    };
    let tokenizer = Tokenizer::open(folder).unwrap();
    let cases: Cases = serde_json::from_str(&golden("template_cases.json")).unwrap();
    let template = golden("templates/own-generation.jinja");
    let mut rows = 0;
    for line in golden("templates.jsonl").lines() {
        let row: Row = serde_json::from_str(line).unwrap();
        if row.tokenizer.is_none() {
            continue;
        }
        rows += 1;
        let case = &cases.cases[&row.case];
        let options = options(case, &BTreeMap::new(), &template);
        let marked = tokenizer.encode_chat_with_mask(&case.messages, &options);
        match (row.ids, row.assistant_mask) {
            (Some(ids), Some(mask)) => {
                let mask = mask.into_iter().map(|bit| bit == 1).collect();
                assert_eq!(marked.unwrap(), (ids, mask), "{}", row.case);
            }
            _ => assert!(marked.is_err(), "{}", row.case),
        }
    }
    assert!(rows > 5);
}

/// The spans without a tokenizer of others, on words that are tokens of our own.
#[test]
fn marks_follow_the_template() {
    let template = "{% for m in messages %}{% if m.role == 'assistant' %}a {% generation %}{{ m.content }}{% endgeneration %} z\
                    {% else %}{{ m.content }} {% endif %}{% endfor %}";
    let messages = [
        Message::user("the cat"),
        Message::assistant("sat"),
        Message::assistant("on"),
    ];
    let options = ChatOptions::transcript().with_template(template);
    let tokenizer = super::tiny();
    let (tokens, mask) = tokenizer
        .encode_chat_with_mask(&messages, &options)
        .unwrap();
    let marked: Vec<i32> = tokens
        .iter()
        .zip(&mask)
        .filter(|(_, bit)| **bit)
        .map(|(id, _)| *id)
        .collect();
    let said = tokenizer.decode(&marked).unwrap();
    assert_eq!(said.replace(' ', ""), "saton");
}

/// transformers itself, on the same pieces and on the free templates.
#[test]
fn transformers_agrees_today() {
    let packages = ["transformers==5.5.4", "jinja2==3.1.6"];
    let Some(python) = python::environment("transformers-5.5.4", &packages) else {
        return;
    };
    let pieces: Pieces =
        serde_json::from_str(include_str!("../../fixtures/text/pieces.json")).unwrap();
    let messages = json!([
        {"role": "system", "content": "Answer in one word.\n"},
        {"role": "user", "content": "  Wie heißt \"du\"? 😀"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSo."},
        {"role": "user", "content": "Again"},
    ]);
    let index: Index = serde_json::from_str(&golden("templates.json")).unwrap();
    let free = index
        .templates
        .iter()
        .filter_map(|known| known.text.as_ref());
    let mut jobs: Vec<Value> = pieces
        .cases
        .iter()
        .map(|piece| json!({"template": piece.template, "variables": pieces.variables}))
        .collect();
    jobs.extend(free.map(|file| {
        let variables = json!({"messages": messages, "tools": null, "documents": null, "add_generation_prompt": true, "bos_token": "<s>", "eos_token": "</s>"});
        json!({"template": golden(file), "variables": variables})
    }));
    let tokenizer = bare();
    for (job, theirs) in jobs.iter().zip(rendered_by_transformers(&python, &jobs)) {
        let mut options = ChatOptions::transcript().with_now(clock());
        options = options.with_template(job["template"].as_str().unwrap());
        let variables: BTreeMap<String, Json> =
            serde_json::from_value(job["variables"].clone()).unwrap();
        for (name, value) in &variables {
            options = options.with_variable(name, value);
        }
        let ours = tokenizer.render_chat(&[], &options);
        assert_eq!(
            ours.as_ref().ok(),
            theirs.as_ref(),
            "{}: {ours:?}",
            job["template"]
        );
    }
}

const RENDER: &str = r#"
import datetime, json, sys
import transformers.utils.chat_template_utils as utils
class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2026, 1, 2, 3, 4, 5)
utils.datetime = Fixed
def render(job):
    try:
        return utils._compile_jinja_template(job["template"]).render(**job["variables"])
    except Exception:
        return None
sys.stdout.write(json.dumps([render(job) for job in json.load(sys.stdin)]))
"#;

fn rendered_by_transformers(python: &PathBuf, jobs: &[Value]) -> Vec<Option<String>> {
    let mut child = Command::new(python)
        .args(["-c", RENDER])
        .env("TRANSFORMERS_VERBOSITY", "error")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all(serde_json::to_string(jobs).unwrap().as_bytes())
        .unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    serde_json::from_slice(&output.stdout).unwrap()
}
