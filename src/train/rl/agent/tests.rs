//! Episodes as the cookbook plays them, and what only ours do.

use std::fs;
use std::io::Read as _;

use anyhow::anyhow;
use flate2::read::GzDecoder;
use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::text::Tokenizer;
use crate::train::rl::Observation;
use crate::types::{SampledSequence, StopReason};

#[derive(Deserialize)]
struct Sum {
    a: i64,
    b: i64,
}

#[derive(Deserialize)]
struct Nothing {}

fn add() -> Tool {
    Tool::new("add", "Adds.", json!({"type": "object"}), |sum: Sum| {
        Ok((sum.a + sum.b).to_string())
    })
}

fn tools() -> [Tool; 3] {
    let none = json!({"type": "object"});
    let fail = Tool::new("fail", "Fails.", none.clone(), |arguments: Value| {
        let why = arguments["why"].as_str().unwrap_or_default().to_owned();
        Err::<String, _>(anyhow!(why))
    });
    let finish = Tool::new("finish", "Ends.", none, |_: Nothing| {
        Ok(ToolOutput::from("done").ending())
    });
    [add(), fail, finish]
}

fn renderer(name: &str) -> Renderer {
    let file = fs::File::open("tests/fixtures/text/renderers/qwen3.json.gz").unwrap();
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).unwrap();
    let parts: Value = serde_json::from_str(&text).unwrap();
    let json = serde_json::to_vec(&parts["tokenizer"]).unwrap();
    let tokenizer = Tokenizer::from_json(&json, Some(&parts["config"].to_string()));
    Renderer::named(name, &tokenizer.unwrap()).unwrap()
}

/// What a conversation is worth: as much as it has messages.
fn count(conversation: &[Message]) -> anyhow::Result<Grade> {
    Ok(Grade::reward(conversation.len() as f64).with_metric("graded", 1.0))
}

fn agent() -> Agent {
    let task = [Message::user("Go.")];
    Agent::new(&renderer("qwen3_instruct"), task, tools(), count).unwrap()
}

/// A step once its reward is there: that and its metrics.
fn judged<Next>(step: &mut Step<Next>) -> (f64, Value) {
    let mut metrics = step.metrics.clone();
    let reward = match step.grading.take() {
        None => step.reward,
        Some(grading) => {
            let grade = grading().unwrap();
            metrics.extend(grade.metrics);
            step.reward + grade.reward
        }
    };
    (reward, json!(metrics))
}

/// An agent under the settings of a case.
fn set(case: &Value) -> Agent {
    let mut agent = agent();
    if let Some(turns) = case["max_turns"].as_u64() {
        agent = agent.with_max_turns(turns as usize);
    }
    if let Some(calls) = case["max_tool_calls"].as_u64() {
        agent = agent.with_max_tool_calls(calls as usize);
    }
    let Some(policy) = case["policy"].as_object() else {
        return agent;
    };
    let number = |name: &str| policy.get(name).and_then(Value::as_f64).unwrap_or(0.0);
    agent.with_parse_errors(ParseErrors {
        reward: number("terminal_reward"),
        retries: number("max_consecutive") as usize,
        reply: policy["retry_message_template"]
            .as_str()
            .unwrap()
            .to_owned(),
        penalty: number("penalty_per_error"),
        masked: policy.contains_key("mask_error_turns"),
    })
}

fn message(said: &Value) -> Message {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let call = |call: &Value| {
        let made = ToolCall::new(text(&call["name"]), text(&call["arguments"]));
        made.with_id(text(&call["id"]))
    };
    let mut message = Message::assistant(&text(&said["text"]));
    if let Some(calls) = said["calls"].as_array() {
        message = message.with_tool_calls(calls.iter().map(call));
    }
    match said.get("unparsed") {
        Some(unread) => message.with("unparsed_tool_calls", unread),
        None => message,
    }
}

/// What was said to the cookbook's environment leads to what it led to there.
#[test]
fn episodes_go_as_the_cookbooks_do() {
    let cases = fs::read_to_string("tests/fixtures/train/agents.jsonl").unwrap();
    for case in cases.lines() {
        let case: Value = serde_json::from_str(case).unwrap();
        let name = case["name"].as_str().unwrap();
        let mut episode = Episode::new(&set(&case));
        episode.start().unwrap();
        let steps = case["steps"].as_array().unwrap();
        for (said, expected) in case["said"].as_array().unwrap().iter().zip(steps) {
            let mut step = episode.step(&message(said)).unwrap();
            let (reward, metrics) = judged(&mut step);
            assert_eq!(reward, expected["reward"].as_f64().unwrap(), "{name}");
            assert_eq!(metrics, expected["metrics"], "{name}");
            for (log, text) in expected["logs"].as_object().unwrap() {
                let found = step.logs.get(log).map(String::as_str);
                assert_eq!(found, text.as_str(), "{name}");
            }
            match step.next {
                None => assert_eq!(expected["done"], true, "{name}"),
                Some(messages) => assert_eq!(json!(messages), expected["new"], "{name}"),
            }
        }
    }
}

/// Plays what a model says; gives the prompts it read and the last step.
fn play(agent: &Agent, said: &[(&str, StopReason)]) -> (Vec<Observation>, Step) {
    let mut env = agent.envs().unwrap().swap_remove(0);
    let mut prompts = vec![env.start().unwrap()];
    let mut last = None;
    for (text, stop) in said {
        let tokens = agent.renderer.tokenizer().encode(text).unwrap();
        let step = env.step(&SampledSequence::new(*stop, tokens));
        let step = step.unwrap();
        prompts.extend(step.next.clone());
        last = Some(step);
    }
    (prompts, last.unwrap())
}

const CALL: &str = r#"<tool_call>
{"name": "add", "arguments": {"a": 1, "b": 2}}
</tool_call><|im_end|>"#;

#[test]
fn the_model_reads_its_own_tokens_and_what_tools_gave() {
    let agent = agent();
    let said = [(CALL, StopReason::Stop), ("3<|im_end|>", StopReason::Stop)];
    let (prompts, mut step) = play(&agent, &said);
    assert_eq!(prompts.len(), 2);
    assert_eq!(prompts[0].stop, Some(agent.renderer.stop()));
    let [first, second] = [0, 1].map(|at: usize| prompts[at].prompt.to_ints().unwrap());
    let tokenizer = agent.renderer.tokenizer();
    let sampled = tokenizer.encode(CALL).unwrap();
    assert_eq!(second[..first.len()], first);
    assert_eq!(second[first.len()..][..sampled.len()], sampled);
    let shown = tokenizer.decode(&second).unwrap();
    assert!(
        shown.contains("<tool_response>\n3\n</tool_response>"),
        "{shown}"
    );
    assert!(shown.contains(r#""name": "add""#), "declared: {shown}");
    let (reward, metrics) = judged(&mut step);
    assert_eq!((reward, &metrics["stop/completed"]), (4.0, &json!(1.0)));
}

#[test]
fn answers_without_an_end_end_the_episode() {
    #[track_caller]
    fn check(agent: Agent, stop: StopReason, reward: f64, metrics: &[&str]) {
        let (_, mut step) = play(&agent, &[("no end", stop)]);
        let (found, all) = judged(&mut step);
        assert_eq!(found, reward);
        let names: Vec<&String> = all.as_object().unwrap().keys().collect();
        assert_eq!(names, metrics);
    }
    let cut = ["max_tokens_reached", "stop/max_tokens"];
    check(agent(), StopReason::Length, -0.1, &cut);
    let unread = ["parse_error", "stop/parse_error"];
    check(agent(), StopReason::Stop, -0.1, &unread);
    let masked = ParseErrors::default().with_retries(9).masked();
    let masked = agent().with_parse_errors(masked);
    let unread = ["parse_error", "parse_error_masked", "stop/parse_error"];
    check(masked, StopReason::Stop, -1.0, &unread);
}

#[test]
fn answers_that_were_cut_off_can_go_on() {
    let agent = agent().going_on_when_cut_off();
    let said = [
        ("so far", StopReason::Length),
        ("3<|im_end|>", StopReason::Stop),
    ];
    let (prompts, mut step) = play(&agent, &said);
    let [first, second] = [0, 1].map(|at: usize| prompts[at].prompt.to_ints().unwrap());
    let cut = agent.renderer.tokenizer().encode("so far").unwrap();
    assert_eq!(second[..first.len()], first);
    assert_eq!(second[first.len()..][..cut.len()], cut);
    let (reward, _) = judged(&mut step);
    assert_eq!(reward, 2.0, "the episode is not shown what was cut off");
}

#[test]
fn what_is_called_wrongly_is_told() {
    #[track_caller]
    fn check(name: &str, arguments: &str, expected: &str) {
        let told = agent().call(&ToolCall::new(name, arguments)).content;
        assert!(told.as_str().unwrap().starts_with(expected), "{told}");
    }
    check("add", r#"{"a": 1, "b": 2}"#, "3");
    check("add", "{", r#"{"error": "Failed to parse tool arguments: "#);
    check(
        "add",
        r#"{"a": 1}"#,
        r#"{"error": "Parameter validation failed: "#,
    );
    check(
        "añadir",
        "{}",
        r#"{"error": "Tool 'a\u00f1adir' not found"}"#,
    );
}

#[test]
fn calls_side_by_side_give_their_results_in_order() {
    let meet = Arc::new(std::sync::Barrier::new(2));
    let met = move |arguments: Value| {
        assert!(arguments != "panic", "as it was asked to");
        meet.wait();
        Ok(arguments.to_string())
    };
    let tool = Tool::new("meet", "Waits for the other.", json!({}), met);
    let task = [Message::user("Go.")];
    let agent = Agent::new(&renderer("qwen3_instruct"), task, [tool], count).unwrap();
    let agent = agent.with_calls_side_by_side();
    let calls = ["1", r#""panic""#, "2"].map(|arguments| ToolCall::new("meet", arguments));
    let told = agent.call_all(&calls).unwrap();
    let told: Vec<&str> = told.iter().filter_map(|one| one.content.as_str()).collect();
    let panicked = r#"{"error": "Tool execution failed: it panicked"}"#;
    assert_eq!(told, ["1", panicked, "2"]);
    // More than there are threads at a time, which is even, as whoever waits for another wants it.
    let calls: Vec<ToolCall> = (0..2 * AT_ONCE + 2)
        .map(|number| ToolCall::new("meet", number.to_string()))
        .collect();
    let told = agent.call_all(&calls).unwrap();
    let expected = calls.iter().map(|call| call.arguments.as_str());
    assert!(told.iter().map(|one| &one.content).eq(expected));
}

#[test]
fn tools_that_cannot_be_told_apart_or_declared_are_refused() {
    #[track_caller]
    fn check(name: &str, tools: Vec<Tool>, expected: &str) {
        let task = [Message::user("Go.")];
        let error = Agent::new(&renderer(name), task, tools, count).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    check("qwen3", vec![add(), add()], r#"two are named "add""#);
    check("role_colon", vec![add()], "tools");
}
