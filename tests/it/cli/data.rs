//! `tinker data`: what the references render and read, through the command.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use tinker::local::{LocalServer, ModelSource};

use super::Desk;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/text/renderers");
const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/text/tiny");

fn unzipped(file: &str) -> String {
    let mut text = String::new();
    let file = File::open(Path::new(GOLDEN).join(file)).unwrap();
    GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}

/// One of the references' tokenizers, as a model's folder has it.
fn write_tokenizer(folder: &Path, name: &str) {
    let parts: Value = serde_json::from_str(&unzipped(&format!("{name}.json.gz"))).unwrap();
    for (file, part) in [
        ("tokenizer.json", "tokenizer"),
        ("tokenizer_config.json", "config"),
    ] {
        fs::write(folder.join(file), parts[part].to_string()).unwrap();
    }
}

/// A desk with the reference's tokenizer, and the rows of one renderer that both references made.
fn scene(renderer: &str) -> (Desk, Vec<Value>, Value) {
    let desk = Desk::bare();
    let folder = desk.path().join("tokenizer");
    fs::create_dir(&folder).unwrap();
    write_tokenizer(&folder, "Qwen3Tokenizer");
    let mut rows: Vec<Value> = unzipped("rows.jsonl.gz")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    rows.retain(|row| row["renderer"] == renderer && row["source"] == "both");
    let text = fs::read_to_string(Path::new(GOLDEN).join("conversations.json")).unwrap();
    (desk, rows, serde_json::from_str(&text).unwrap())
}

/// Runs a command on lines of JSON; the lines it gives.
fn through(desk: &Desk, args: &[&str], input: &[Value]) -> Vec<Value> {
    let lines: Vec<String> = input.iter().map(Value::to_string).collect();
    fs::write(desk.path().join("in.jsonl"), lines.join("\n")).unwrap();
    let args = [args, &["--tokenizer", "tokenizer", "in.jsonl"]].concat();
    let text = desk.run(&args).ok();
    let found: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(found.len(), input.len(), "a line for each");
    found
}

/// The plain conversations: tools are declared by the caller's own choice of a system message.
fn plain<'a>(rows: &'a [Value], all: &'a Value, kind: &str) -> Vec<(&'a Value, &'a Value)> {
    rows.iter()
        .filter(|row| row["kind"] == kind && row.get("error").is_none())
        .filter_map(|row| Some((row, all.get(row["case"].as_str()?)?)))
        .filter(|(row, case)| {
            case.get("tools").is_none_or(Value::is_null)
                && row.get("ids").or(row.get("examples")).is_some()
        })
        .collect()
}

#[test]
fn prompts_and_examples_are_those_of_the_references() {
    let (desk, rows, all) = scene("qwen3");
    let all = all.get("conversations").unwrap_or(&all);
    let prompts = plain(&rows, all, "prompt");
    assert!(prompts.len() > 10, "{}", prompts.len());
    let conversations: Vec<Value> = prompts.iter().map(|(_, case)| (*case).clone()).collect();
    let found = through(
        &desk,
        &["data", "render", "--renderer", "qwen3", "--prompt"],
        &conversations,
    );
    for ((row, _), found) in prompts.iter().zip(&found) {
        assert_eq!(found["ids"], row["ids"], "{} {found}", row["case"]);
        assert_eq!(found["text"], row["text"], "{}", row["case"]);
        assert_eq!(found["stop"], json!([151645]));
    }

    let examples = plain(&rows, all, "sft");
    assert!(examples.len() > 5, "{}", examples.len());
    let conversations: Vec<Value> = examples.iter().map(|(_, case)| (*case).clone()).collect();
    let found = through(
        &desk,
        &["data", "render", "--renderer", "qwen3"],
        &conversations,
    );
    for ((row, _), found) in examples.iter().zip(&found) {
        let prompt = rows
            .iter()
            .find(|other| other["kind"] == "prompt" && other["case"] == row["case"]);
        let prompt = prompt.unwrap()["ids"].as_array().unwrap();
        let expected = row["examples"].as_array().unwrap();
        let found = match found {
            Value::Array(several) => several.clone(),
            one => vec![one.clone()],
        };
        assert_eq!(found.len(), expected.len(), "{}", row["case"]);
        for (found, expected) in found.iter().zip(expected) {
            let shared = expected["shared"].as_u64().unwrap() as usize;
            let own = expected["ids"].as_array().unwrap();
            let ids: Vec<Value> = prompt[..shared].iter().chain(own).cloned().collect();
            assert_eq!(found["ids"], json!(ids), "{}", row["case"]);
            let runs = expected["weights"].as_array().unwrap();
            let weights: Vec<f64> = runs
                .iter()
                .flat_map(|run| {
                    std::iter::repeat_n(run[1].as_f64().unwrap(), run[0].as_u64().unwrap() as usize)
                })
                .collect();
            assert_eq!(found["weights"], json!(weights), "{}", row["case"]);
        }
    }
}

#[test]
fn answers_are_read_as_the_cookbook_reads_them() {
    let (desk, _, _) = scene("qwen3");
    let rows: Vec<Value> = unzipped("rows.jsonl.gz")
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|row| {
            row["kind"] == "parse" && row["renderer"] == "qwen3" && row["source"] == "cookbook"
        })
        .filter(|row| {
            row["result"].get("message").is_some() && row.get("follow") != Some(&json!(false))
        })
        .collect();
    assert!(rows.len() > 5, "{}", rows.len());
    let input: Vec<Value> = rows.iter().map(|row| json!({"ids": row["ids"]})).collect();
    let found = through(&desk, &["data", "parse", "--renderer", "qwen3"], &input);
    for (row, found) in rows.iter().zip(&found) {
        assert_eq!(
            found["termination"], row["result"]["termination"],
            "{}",
            row["case"]
        );
        let content = &row["result"]["message"]["content"];
        assert_eq!(&found["message"]["content"], content, "{}", row["case"]);
        assert_eq!(found["message"]["role"], "assistant");
    }
    let broken = through(
        &desk,
        &["data", "parse", "--renderer", "qwen3"],
        &[json!({"id": [1]})],
    );
    assert!(broken[0]["error"].is_string(), "{broken:?}");
}

#[test]
fn files_are_viewed_and_checked() {
    let desk = Desk::bare();
    let good = json!({"messages": [{"role": "user", "content": "the cat"},
        {"role": "assistant", "content": "sat"}]});
    let bad = json!({"messages": [{"role": "user", "content": ""}]});
    fs::write(desk.path().join("good.jsonl"), format!("{good}\n")).unwrap();
    fs::write(
        desk.path().join("bad.jsonl"),
        format!("{good}\n{bad}\nnot json\n{good}\n"),
    )
    .unwrap();
    let layout = ["--renderer", "role_colon", "--tokenizer", TINY];
    let run =
        |command: &[&str], file: &str| desk.run(&[&["data"], command, &layout, &[file]].concat());
    let view = run(&["view"], "good.jsonl").ok();
    assert!(
        view.contains("⟦") && view.contains("Tokens per epoch"),
        "{view}"
    );
    let figures = run(&["view", "-f", "json", "--max-length", "4"], "good.jsonl").json();
    assert_eq!(figures["truncated"], 1);
    assert_eq!(figures["tokens_per_epoch"], 4);
    assert_eq!(
        run(&["check"], "good.jsonl").ok(),
        "1 conversations, no problem\n"
    );
    let said = run(&["check", "-f", "json"], "bad.jsonl");
    assert_eq!(said.exit, Some(1));
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    let lines: Vec<u64> = report["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["line"].as_u64().unwrap())
        .collect();
    assert!(
        lines.contains(&2) && lines.contains(&3) && lines.contains(&4),
        "{report}"
    );
    let none = desk.run(&["data", "render", "good.jsonl"]).failed(2);
    assert!(none.contains("--renderer"), "{none}");
    let unknown = desk.run(&[
        "data",
        "render",
        "--renderer",
        "nosuch",
        "--tokenizer",
        TINY,
        "good.jsonl",
    ]);
    assert!(unknown.failed(1).contains("role_colon"));
}

/// The tokenizer of a model, where the Hugging Face tools keep it.
fn cache(desk: &Desk, model: &str, tokenizer: &str) {
    let home = desk.path().join("home/.cache/huggingface/hub");
    let home = home.join(format!("models--{}", model.replace('/', "--")));
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let folder = home.join("snapshots").join(commit);
    fs::create_dir_all(&folder).unwrap();
    fs::create_dir_all(home.join("refs")).unwrap();
    fs::write(home.join("refs/main"), commit).unwrap();
    write_tokenizer(&folder, tokenizer);
}

#[test]
fn without_a_tokenizer_each_family_finds_its_own() {
    for (renderer, model, tokenizer) in [
        ("qwen3", "Qwen/Qwen3-8B", "Qwen3Tokenizer"),
        (
            "qwen3_instruct",
            "Qwen/Qwen3-4B-Instruct-2507",
            "Qwen3Tokenizer",
        ),
        ("qwen3_5", "Qwen/Qwen3.5-4B", "Qwen35Tokenizer"),
        (
            "qwen3_8_xhigh_reasoning",
            "Qwen/Qwen3.8-27B",
            "Qwen35Tokenizer",
        ),
        (
            "nemotron3_ultra",
            "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
            "Nemotron3Tokenizer",
        ),
        (
            "deepseekv3",
            "deepseek-ai/DeepSeek-V3.1",
            "DeepSeekV31Tokenizer",
        ),
        (
            "deepseekv4_1",
            "deepseek-ai/DeepSeek-V4.1-Flash",
            "DeepSeekV41Tokenizer",
        ),
        (
            "gpt_oss_medium_reasoning",
            "openai/gpt-oss-20b",
            "HarmonyTokenizer",
        ),
        ("glm5_3_max_reasoning", "zai-org/GLM-5.3", "GlmTokenizer"),
        (
            "nemotron3",
            "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            "Nemotron3Tokenizer",
        ),
    ] {
        let (desk, rows, all) = scene(renderer);
        let all = all.get("conversations").unwrap_or(&all);
        let prompts = plain(&rows, all, "prompt");
        assert!(!prompts.is_empty(), "{renderer}");
        cache(&desk, model, tokenizer);
        let lines: Vec<String> = prompts.iter().map(|(_, case)| case.to_string()).collect();
        fs::write(desk.path().join("in.jsonl"), lines.join("\n")).unwrap();
        let args = [
            "data",
            "render",
            "--renderer",
            renderer,
            "--prompt",
            "--date",
            "2026-01-02",
            "in.jsonl",
        ];
        let text = desk.run(&args).ok();
        let mut same = 0;
        for ((row, _), line) in prompts.iter().zip(text.lines()) {
            let found: Value = serde_json::from_str(line).unwrap();
            assert_eq!(found["ids"], row["ids"], "{renderer} {}", row["case"]);
            same += 1;
        }
        assert_eq!(same, prompts.len(), "{renderer}");
    }
    // No table knows these.
    for renderer in ["role_colon", "deepseek_r1"] {
        let said = Desk::bare()
            .run(&["data", "render", "--renderer", renderer, "x"])
            .failed(2);
        assert!(
            said.contains(&format!("--tokenizer is needed with --renderer {renderer}")),
            "{said}"
        );
    }
}

/// Families that train each answer by itself make no example of it, others one without loss.
#[test]
fn a_conversation_without_an_answer_is_a_problem() {
    let (desk, _, _) = scene("qwen3");
    let asked = json!({"messages": [{"role": "user", "content": "the cat"}]});
    fs::write(desk.path().join("asked.jsonl"), format!("{asked}\n")).unwrap();
    for (command, renderer) in [
        ("check", "role_colon"),
        ("check", "qwen3"),
        ("view", "qwen3"),
    ] {
        let layout = ["--renderer", renderer, "--tokenizer", "tokenizer"];
        let more = ["--train-on", "all_assistant_messages", "asked.jsonl"];
        let said = desk.run(&[&["data", command], &layout[..], &more].concat());
        assert_eq!(said.exit, Some(1), "{command} {renderer}");
        let told = format!("{}{}", said.stdout, said.stderr);
        assert!(told.contains("nothing to learn"), "{command}: {told}");
    }
}

#[test]
fn images_and_silent_tools_are_no_problem() {
    let (desk, _, _) = scene("qwen3");
    let image = json!({"type": "image", "image": "data:image/png;base64,iVBO",
        "expected_tokens": 5});
    let calls = json!([{"function": {"name": "f", "arguments": "{}"}}]);
    let seen = json!({"messages": [{"role": "user", "content": [image]},
        {"role": "assistant", "content": "", "tool_calls": calls}, {"role": "tool", "content": ""},
        {"role": "assistant", "content": "A cat."}]});
    fs::write(desk.path().join("seen.jsonl"), format!("{seen}\n")).unwrap();
    let layout = [
        "--renderer",
        "qwen3_vl_instruct",
        "--tokenizer",
        "tokenizer",
    ];
    let run =
        |command: &str| desk.run(&[&["data", command], &layout[..], &["seen.jsonl"]].concat());
    assert_eq!(run("check").ok(), "1 conversations, no problem\n");
    let view = run("view").ok();
    let expected = "<|vision_start|>[image of 5 tokens]<|vision_end|>";
    assert!(view.contains(expected), "{view}");
    assert!(view.contains("</tool_call><|im_end|>⟧"), "{view}");
}

#[test]
fn files_are_read_as_they_come_and_blamed_by_line() {
    let desk = Desk::bare();
    let good = json!({"messages": [{"role": "user", "content": "the cat"},
        {"role": "assistant", "content": "sat"}]});
    let alone = &good["messages"];
    let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut zip, format!("{good}\n").as_bytes()).unwrap();
    let layout = ["--renderer", "role_colon", "--tokenizer", TINY];
    let check = |name: &str, bytes: &[u8]| {
        fs::write(desk.path().join(name), bytes).unwrap();
        desk.run(&[&["data", "check"], &layout[..], &[name]].concat())
    };
    for (name, bytes) in [
        ("marked.jsonl", format!("\u{feff}{good}\n").into_bytes()),
        ("packed.jsonl.gz", zip.finish().unwrap()),
        ("alone.jsonl", format!("{alone}\r\n").into_bytes()),
    ] {
        assert_eq!(check(name, &bytes).ok(), "1 conversations, no problem\n");
    }
    // A line that is no text hides none after it.
    let lines = [format!("{good}\n").as_bytes(), b"{\"\xe9\": 1}\n", b"3\n"].concat();
    let said = check("latin.jsonl", &lines);
    for (line, problem) in [
        ("2", "no UTF-8 text from byte 3 on"),
        ("3", "no conversation, which is {\"messages\": ["),
    ] {
        let mut rows = said.stdout.lines();
        let has = |row: &str| row.contains(line) && row.contains(problem);
        assert!(rows.any(has), "{}", said.stdout);
    }
    assert!(said.failed(1).contains("2 problem(s) in 3 conversations"));
    let render = [&["data", "render"], &layout[..], &["latin.jsonl"]].concat();
    let rendered = desk.run(&render).ok();
    let refused = |line: &str| line.starts_with("{\"error\":");
    let rows: Vec<bool> = rendered.lines().map(refused).collect();
    assert_eq!(rows, [false, true, true], "{rendered}");
    let train = [
        "cost",
        "latin.jsonl",
        "--renderer",
        "role_colon",
        "--tokenizer",
        TINY,
    ];
    let said = desk.run(&train).failed(1);
    assert!(said.contains("latin.jsonl, line 2"), "{said}");
    for (line, expected) in [
        ("{\"message\": []}", "messages"),
        ("[{\"content\": 1}]", "role"),
        ("3", "no conversation, which is {\"messages\": ["),
    ] {
        let said = check("odd.jsonl", line.as_bytes());
        assert!(said.stdout.contains(expected), "{line}: {}", said.stdout);
        assert!(!said.stdout.contains("untagged"), "{line}: {}", said.stdout);
    }
}

/// The built-in model is on no hub, and no server need run for it.
#[test]
fn the_built_in_models_tokenizer_is_at_hand() {
    let desk = Desk::bare();
    let model = ["--model", "tinker-local/tiny"];
    let chats = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/chats.jsonl");
    for command in [&["data", "view"][..], &["data", "check"], &["cost"]] {
        desk.run(&[command, &model, &[chats]].concat()).ok();
    }
    let said = desk.run(&["tokenize", "tinker-local/tiny", "Hi", "--format", "json"]);
    assert!(said.ok().contains("72"));
}

#[test]
fn the_tokenizer_of_a_served_model_is_asked_for() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/local/engine/builtin");
    let server = LocalServer::builder().model(ModelSource::new("org/served", folder));
    let server = server.start().unwrap();
    let desk = Desk::at(&server.base_url());
    let chats = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/chats.jsonl");
    let layout = ["--renderer", "role_colon", "--model", "org/served"];
    desk.run(&[&["data", "check"], &layout[..], &[chats]].concat())
        .ok();
    let hub = Desk::bare()
        .with("HF_HUB_OFFLINE", "0")
        .with("HF_ENDPOINT", "http://127.0.0.1:1");
    let said = hub
        .run(&["data", "check", "--model", "Qwen/Qwen3-8B", chats])
        .failed(1);
    assert!(
        said.contains("HF_ENDPOINT") && !said.contains("TINKER_BASE_URL"),
        "{said}"
    );
}
