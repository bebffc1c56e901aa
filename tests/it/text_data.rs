//! Datums equal to those of the Tinker cookbook, on its own cases.

use std::collections::BTreeMap;

use serde_json::Value;
use tinker::text::data::{
    Comparison, Conversation, Datums, Judgement, KlEstimate, KlPenalty, Pair, Reader,
    RenderOptions, Row, Said, Text, Trajectory, TrajectoryGroup, Transition, trajectory_datums,
    without_constant_groups, without_mask,
};
use tinker::text::{DatumOptions, Example, Json, Message, Reduction, Renderer, TrainOnWhat};
use tinker::types::{Chunk, ImageFormat};
use tinker::{Datum, ModelInput};

fn cases(kinds: &[&str]) -> Vec<Value> {
    let text = include_str!("../fixtures/text/datum.jsonl");
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let wanted = |row: &Value| kinds.contains(&row["kind"].as_str().unwrap());
    let rows: Vec<Value> = rows.filter(wanted).collect();
    assert!(!rows.is_empty());
    rows
}

#[test]
fn chunks_become_datums_as_in_the_cookbook() {
    for case in cases(&["chunks"]) {
        let example = Example::new(input(&case["chunks"]), floats(&case["weights"])).unwrap();
        same(
            &case,
            example.to_datum(&options(&case)).map(|datum| vec![datum]),
        );
    }
}

#[test]
fn trajectories_become_datums_as_in_the_cookbook() {
    for case in cases(&["trajectory"]) {
        let advantage = case["advantage"].as_f64().unwrap() as f32;
        same(&case, trajectory(&case["transitions"]).to_datums(advantage));
    }
}

#[test]
fn groups_get_advantages_and_penalties_as_in_the_cookbook() {
    for case in cases(&["groups"]) {
        let name = case["name"].as_str().unwrap();
        let expected = &case["expected"];
        let groups: Vec<TrajectoryGroup> = list(&case["groups"]).iter().map(group).collect();
        let rewards: Vec<_> = groups.iter().map(TrajectoryGroup::total_rewards).collect();
        assert_eq!(
            serde_json::json!(rewards),
            expected["total_rewards"],
            "{name}"
        );
        let kept = without_constant_groups(groups.clone()).len();
        assert_eq!(
            kept,
            list(&expected["kept_without_constant"]).len(),
            "{name}"
        );

        let data = trajectory_datums(&groups).unwrap();
        let of: Vec<[usize; 2]> = data.iter().map(|d| [d.group, d.trajectory]).collect();
        assert_eq!(serde_json::json!(of), expected["of"], "{name}");
        let mut data: Vec<Datum> = data.into_iter().map(|d| d.datum).collect();
        for (datum, expected) in data.iter().zip(list(&expected["data"])) {
            same_datum(name, datum, expected);
        }
        estimates(&case, &data);

        let Some(coefficient) = case["kl_penalty_coef"].as_f64() else {
            continue;
        };
        let penalty = KlPenalty {
            coefficient: coefficient as f32,
            discount: case["kl_discount_factor"].as_f64().unwrap() as f32,
        };
        let rows = |key: &str| -> Vec<Vec<f32>> { list(&case[key]).iter().map(floats).collect() };
        let metrics = match case.get("teacher_logprobs") {
            Some(_) => {
                let datasets = list(&case["dataset_indices"]);
                let datasets: Vec<usize> = datasets
                    .iter()
                    .map(|n| n.as_u64().unwrap() as usize)
                    .collect();
                penalty.distill(&mut data, &rows("teacher_logprobs"), &datasets)
            }
            None => penalty
                .apply(&mut data, &rows("base_logprobs"))
                .map(|kl| BTreeMap::from([("kl_policy_base".to_owned(), f64::from(kl))])),
        };
        close(
            name,
            &serde_json::json!(metrics.unwrap()),
            &expected["kl_metrics"],
        );
        for (datum, expected) in data.into_iter().zip(list(&expected["advantages_after_kl"])) {
            let advantages = datum.input("advantages").unwrap().as_f32().unwrap();
            close(name, &serde_json::json!(advantages), expected);
            assert!(without_mask(datum).input("mask").is_none());
        }
    }
}

#[test]
fn conversations_become_datums_as_in_the_cookbook() {
    for case in cases(&["conversation"]) {
        let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
        let what: TrainOnWhat = case["train_on_what"].as_str().unwrap().parse().unwrap();
        let example = renderer(&case).example(&messages, what);
        let datum = example.and_then(|example| example.to_datum(&options(&case)));
        same(&case, datum.map(|datum| vec![datum]));
    }
}

#[test]
fn comparisons_become_datums_as_in_the_cookbook() {
    for case in cases(&["dpo", "preference"]) {
        let renderer = renderer(&case);
        let options = options(&case).with_reduction(Reduction::None);
        let mut data = Vec::new();
        for row in list(&case["comparisons"]) {
            let row = Comparison::read(&row.to_string()).unwrap();
            let examples = match case["kind"] == "dpo" {
                true => row.examples(&renderer, TrainOnWhat::default()).unwrap(),
                false => Judgement(row)
                    .examples(&renderer, TrainOnWhat::default())
                    .unwrap(),
            };
            data.extend(
                examples
                    .iter()
                    .map(|example| example.to_datum(&options).unwrap()),
            );
        }
        same(&case, Ok(data));
    }
}

fn renderer(case: &Value) -> Renderer {
    let tokenizer = case["tokenizer"]
        .as_str()
        .unwrap()
        .split(':')
        .nth(1)
        .unwrap();
    let tokenizer = super::renderers::tokenizer(tokenizer);
    Renderer::named(case["renderer"].as_str().unwrap(), &tokenizer).unwrap()
}

fn qwen3() -> Renderer {
    Renderer::named("qwen3_instruct", &super::renderers::tokenizer("qwen3")).unwrap()
}

#[track_caller]
fn refused<T: Row>(lines: &str, expected: &str) {
    let lines = lines.to_owned();
    let rows = Reader::<T>::new("f.jsonl", std::io::Cursor::new(lines.clone()));
    let mut datums = rows.datums(&qwen3(), RenderOptions::default());
    let error = datums.find_map(Result::err).expect("a refusal");
    assert_eq!(error.to_string(), expected);
    let rows = Reader::<T>::new("f.jsonl", std::io::Cursor::new(lines)).skipping();
    let mut datums = rows.datums(&qwen3(), RenderOptions::default());
    assert!(datums.by_ref().all(|datum| datum.is_ok()));
    assert_eq!(datums.skipped().count, 1);
    assert_eq!(datums.skipped().first, [expected]);
}

#[test]
fn bad_rows_are_refused_or_counted_with_file_and_line() {
    let good = r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}"#;
    let check = |bad: &str, problem: &str| {
        let lines = format!("{good}\n\n{bad}\n{good}\n");
        refused::<Conversation>(&lines, &format!("invalid f.jsonl:3.{problem}"));
    };
    check(
        "{",
        "row: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    );
    check(r#"{"text": "x"}"#, "row: missing field `messages`");
    check(r#"{"messages": []}"#, "messages: is empty");
    check(
        r#"{"messages": [{"role": "alien", "content": "x"}]}"#,
        "messages[0].role: \"alien\" is none of system, user, assistant, tool, developer",
    );
    check(
        r#"{"messages": [{"role": "user", "content": ""}]}"#,
        "messages[0].content: is empty",
    );
    check(
        r#"{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "",
            "tool_calls": [{"function": {"name": "f", "arguments": "{a}"}}]}]}"#
            .replace('\n', " ")
            .as_str(),
        "messages[1].tool_calls: arguments of f are no JSON: Expecting property name enclosed in \
         double quotes: line 1 column 2 (char 1)",
    );
    refused::<Text>(
        "{\"text\": \"Hi\"}\n{\"text\": \"\"}",
        "invalid f.jsonl:2.text: is empty",
    );
    refused::<Pair>(
        r#"{"prompt": "Hi", "completion": [{"role": "assistant", "content": "Hello!"}]}"#,
        "invalid f.jsonl:1.completion: must be text where the prompt is, and messages where it is \
         messages",
    );
}

/// What Python's `json.loads` and data files of Python's libraries have, and strict JSON has not.
#[test]
fn rows_are_read_as_python_reads_them() {
    #[track_caller]
    fn check(fields: &str) -> Conversation {
        let messages =
            r#"[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]"#;
        let line = format!(r#"{{"messages": {messages}, {fields}}}"#);
        let mut rows = Reader::<Conversation>::new("f.jsonl", std::io::Cursor::new(line));
        let row = rows.next().unwrap().unwrap();
        assert_eq!(row.messages.len(), 2);
        row
    }
    check(r#""score": NaN, "other": [-Infinity, 1e400]"#);
    check(r#""note": "cut \ud83d""#);
    assert_eq!(check(r#""tools": null"#).tools, Vec::<Json>::new());
    let numbers = "18446744073709551615, -170141183460469231731687303715884105728";
    let row = check(&format!(
        r#""tools": [{{"name": "f", "enum": [{numbers}]}}]"#
    ));
    assert!(
        row.tools[0].to_string().contains(numbers),
        "{:?}",
        row.tools
    );
    let said = |role| format!(r#"[{{"role": "{role}", "content": "Hi", "ids": [{numbers}]}}]"#);
    let line = format!(
        r#"{{"prompt": {}, "completion": {}}}"#,
        said("user"),
        said("assistant")
    );
    let Said::Messages(messages) = Pair::read(&line).unwrap().completion else {
        panic!("messages were given")
    };
    let ids = messages[0].get("ids").unwrap().to_string();
    assert_eq!(ids, format!("[{numbers}]"));
}

#[test]
fn bytes_that_are_no_text_spoil_one_line_only() {
    let good = r#"{"text": "Hi"}"#;
    let mut lines = format!("{good}\n{{\"text\": \"").into_bytes();
    lines.extend(b"\xff\"}\n");
    lines.extend(good.as_bytes());
    let open = |lines: &[u8]| Reader::<Text>::new("f.jsonl", std::io::Cursor::new(lines.to_vec()));
    let mut rows = open(&lines).skipping();
    assert_eq!(rows.by_ref().map(Result::unwrap).count(), 2);
    let problem = "invalid f.jsonl:2: is no UTF-8 text from byte 11 on";
    assert_eq!(rows.skipped().first, [problem]);
    let error = open(&lines).nth(1).unwrap().unwrap_err();
    assert_eq!(error.to_string(), problem);
    // Some editors put a mark at the start of a file.
    let marked = format!("\u{feff}{good}\r\n\r\n{good}");
    assert_eq!(open(marked.as_bytes()).map(Result::unwrap).count(), 2);
}

#[test]
fn sequences_that_are_too_long_are_cut_or_refused() {
    let line = r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}]}"#;
    let datums = |options: RenderOptions| -> Datums<Conversation> {
        Reader::new("f.jsonl", line.as_bytes()).datums(&qwen3(), options)
    };
    let mut cut = datums(RenderOptions::default().with_max_length(11));
    let datum = cut.next().unwrap().unwrap();
    assert_eq!(datum.model_input().length().unwrap(), 10);
    assert_eq!(
        (cut.statistics().truncated, cut.statistics().tokens),
        (1, 12)
    );
    let mut refused = datums(
        RenderOptions::default()
            .with_max_length(11)
            .refusing_too_long(),
    );
    let error = refused.next().unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid f.jsonl:1.row: 12 tokens, more than 11"
    );
}

#[test]
fn packed_files_are_read_in_windows_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pairs.jsonl.gz");
    let file = std::fs::File::create(&path).unwrap();
    let mut packed = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    for n in 0..50 {
        let line = serde_json::json!({"prompt": "Hi", "completion": format!(" {}", n / 2)});
        std::io::Write::write_all(&mut packed, format!("{line}\n").as_bytes()).unwrap();
    }
    packed.finish().unwrap();
    let options = RenderOptions::default()
        .with_window(7)
        .counting_duplicates();
    let mut datums = Reader::<Pair>::open(&path)
        .unwrap()
        .datums(&qwen3(), options);
    let all: Vec<Datum> = datums.by_ref().map(Result::unwrap).collect();
    assert_eq!(all.len(), 50);
    assert_eq!(all[0], all[1]);
    assert_ne!(all[1], all[2]);
    let seen = datums.statistics();
    assert_eq!((seen.rows, seen.examples, seen.duplicates), (50, 50, 25));
    assert!(seen.loss_tokens > 0 && seen.without_loss == 0);

    let cut = folder.path().join("cut.gz");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let rows = Reader::<Pair>::open(&cut).unwrap().skipping();
    let error = rows
        .filter_map(Result::err)
        .next()
        .expect("a file that ends too early");
    assert!(matches!(error, tinker::Error::Io(_)), "{error}");
    assert!(matches!(
        Reader::<Pair>::open("no/such/file"),
        Err(tinker::Error::Io(_))
    ));
}

fn estimates(case: &Value, data: &[Datum]) {
    let rows = |key: &str| -> Option<Vec<Vec<f32>>> {
        Some(case.get(key)?.as_array()?.iter().map(floats).collect())
    };
    if let Some(training) = rows("training_logprobs") {
        let kl = KlEstimate::of_training(data, &training).unwrap();
        let got = serde_json::json!({
            "optim/kl_sample_train_v1": kl.v1,
            "optim/kl_sample_train_v2": kl.v2,
            "optim/entropy": kl.entropy,
        });
        close(
            "kl_sample_train",
            &got,
            &case["expected"]["kl_sample_train"],
        );
    }
    if let Some(full) = rows("post_logprobs") {
        let kl = KlEstimate::of_sampler(data, &full).unwrap();
        let got = serde_json::json!({"kl_pre_post_v1": kl.v1, "kl_pre_post_v2": kl.v2});
        close("post_kl", &got, &case["expected"]["post_kl"]);
    }
}

fn options(case: &Value) -> DatumOptions {
    let options = DatumOptions::default();
    let options = match case["max_length"].as_u64() {
        Some(length) => options.with_max_length(length as usize),
        None => options,
    };
    match case["reduction"].as_str() {
        Some("none") => options.with_reduction(Reduction::None),
        _ => options,
    }
}

fn group(value: &Value) -> TrajectoryGroup {
    let trajectories: Vec<Trajectory> = list(&value["trajectories"])
        .iter()
        .map(trajectory)
        .collect();
    let mut group = TrajectoryGroup::new(trajectories);
    group.final_rewards = list(&value["final_rewards"])
        .iter()
        .map(|reward| reward.as_f64().unwrap())
        .collect();
    group
}

fn trajectory(turns: &Value) -> Trajectory {
    let turn = |turn: &Value| {
        let action: Vec<i32> = serde_json::from_value(turn["ac"].clone()).unwrap();
        let mut transition = Transition::new(input(&turn["ob"]), action, floats(&turn["logprobs"]))
            .with_reward(turn["reward"].as_f64().unwrap_or(0.0));
        if let Some(metrics) = turn.get("metrics") {
            transition.metrics = serde_json::from_value(metrics.clone()).unwrap();
        }
        transition
    };
    Trajectory::new(list(turns).iter().map(turn).collect::<Vec<_>>())
}

/// A list of tokens, or of chunks.
fn input(value: &Value) -> ModelInput {
    if let Ok(tokens) = serde_json::from_value::<Vec<i32>>(value.clone()) {
        return match tokens.is_empty() {
            true => ModelInput::empty(),
            false => ModelInput::from_ints(tokens),
        };
    }
    let chunk = |chunk: &Value| match chunk["image"].as_u64() {
        Some(tokens) => {
            Chunk::image(vec![120], ImageFormat::Png).with_expected_tokens(tokens as u32)
        }
        None => Chunk::tokens(serde_json::from_value::<Vec<i32>>(chunk["tokens"].clone()).unwrap()),
    };
    ModelInput::from_chunks(list(value).iter().map(chunk).collect::<Vec<_>>())
}

pub(crate) fn floats(value: &Value) -> Vec<f32> {
    let float = |v: &Value| v.as_f64().unwrap_or(f64::NAN) as f32;
    list(value).iter().map(float).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

#[track_caller]
fn same(case: &Value, got: tinker::Result<Vec<Datum>>) {
    let name = case["name"].as_str().unwrap();
    let Some(expected) = case.get("expected") else {
        assert!(got.is_err(), "{name} must be refused: {got:?}");
        return;
    };
    let got = got.unwrap_or_else(|error| panic!("{name}: {error}"));
    let one = [expected.clone()];
    let expected = expected.as_array().map_or(&one[..], Vec::as_slice);
    assert_eq!(got.len(), expected.len(), "{name}");
    for (datum, expected) in got.iter().zip(expected) {
        same_datum(name, datum, expected);
    }
}

#[track_caller]
fn same_datum(name: &str, datum: &Datum, expected: &Value) {
    if let Some(lengths) = expected.get("chunks") {
        let chunks = datum.model_input().chunks();
        let got: Vec<usize> = chunks.iter().map(|chunk| chunk.length().unwrap()).collect();
        assert_eq!(&serde_json::json!(got), lengths, "{name}: chunks");
        let ints = datum.model_input().to_ints().unwrap();
        assert_eq!(serde_json::json!(ints), expected["input"], "{name}: input");
    } else {
        assert_eq!(
            datum.model_input(),
            &input(&expected["input"]),
            "{name}: input"
        );
    }
    for (key, tensor) in datum.loss_fn_inputs() {
        let wanted = &expected[key.as_str()];
        match tensor.as_i64() {
            Some(ints) => assert_eq!(&serde_json::json!(ints), wanted, "{name}: {key}"),
            None => close(name, &serde_json::json!(tensor.as_f32().unwrap()), wanted),
        }
        // With nothing sampled the reference's list of advantages holds integers; ours stays
        // what the service expects.
        if name != "empty_action" {
            assert_eq!(
                tensor.dtype().as_str(),
                expected["dtypes"][key],
                "{name}: {key}"
            );
        }
    }
}

/// Equal up to what sums of 32-bit floats leave open.
#[track_caller]
pub(crate) fn close(name: &str, got: &Value, expected: &Value) {
    match (got, expected) {
        (Value::Array(got), Value::Array(expected)) => {
            assert_eq!(
                got.len(),
                expected.len(),
                "{name}: {got:?} for {expected:?}"
            );
            got.iter()
                .zip(expected)
                .for_each(|(a, b)| close(name, a, b));
        }
        (Value::Object(got), Value::Object(expected)) => {
            assert!(
                got.keys().eq(expected.keys()),
                "{name}: {got:?} for {expected:?}"
            );
            got.iter()
                .for_each(|(key, value)| close(name, value, &expected[key]));
        }
        _ => {
            let (a, b) = (got.as_f64().unwrap(), expected.as_f64().unwrap());
            let near = (a - b).abs() <= 1e-6 * a.abs().max(b.abs()).max(0.01);
            assert!(near, "{name}: {a} for {b}");
        }
    }
}

/// A sum of so many small numbers in single precision would be off by some percent.
#[test]
fn figures_of_millions_of_tokens_are_those_of_each() {
    let count = 1 << 22;
    let numbers = |value: f32| vec![value; count];
    let mut data = [Datum::new(ModelInput::from_ints(vec![1; count]))
        .with_target_tokens(vec![1; count])
        .with_logprobs(numbers(-0.3))
        .with_advantages(numbers(0.0))
        .with("mask", numbers(1.0))];
    let kl = KlEstimate::of_training(&data, &[numbers(-0.31)]).unwrap();
    let near = |found: f64, expected: f64| {
        assert!((found / expected - 1.0).abs() < 1e-5, "{found} {expected}");
    };
    near(kl.v1, 0.01);
    near(kl.v2, 0.00005);
    near(kl.entropy, 0.3);
    let penalty = KlPenalty {
        coefficient: 1.0,
        discount: 0.0,
    };
    let whole = vec![-0.31; count + 1];
    let whole = [whole];
    near(penalty.apply(&mut data, &whole).unwrap().into(), 0.01);
    let judged = penalty.distill(&mut data, &whole, &[0]).unwrap();
    near(judged["teacher_kl"], 0.01);
    near(judged["teacher_kl/dataset_0"], 0.01);
}
