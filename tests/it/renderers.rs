//! Renderers equal to the service's and the cookbook's, token by token, on their own output.
//!
//! The rows come from running both references; the tokenizers are theirs, cut down to the tokens
//! that can occur in these rows (see the README beside them).

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use serde_json::{Value, json};
use tinker::text::renderers::{ModelAttributes, recommended};
use tinker::text::{Example, Json, Message, Parsed, Renderer, Tokenizer, ToolCall, TrainOnWhat};
use tinker::types::{Chunk, ModelInput, Stop};

const FOLDER: &str = "tests/fixtures/text/renderers";

/// Rows that contradict what they are rows of.
const CONTRADICTED: &[(&str, &str, &str)] = &[
    // The service's own renderer leaves out the effort that its prompts start with here, so that
    // the example would not start with its prompt.
    ("sft_by_message", "tml_v0", "customized"),
    // Of two messages that are to be trained on, the service's renderer of this family trains
    // the last; and without a system message it leaves out the one its prompts start with.
    ("other_sft_by_message", "kimi_k2", "customized"),
    ("other_sft_by_message", "kimi_k25", "customized"),
    // Tools are declared bare here, as in the cookbook, and wrapped, as in the model's template,
    // where there is no thinking; but the declaration must not change while a model thinks.
    ("prompt", "qwen3_8_xhigh_reasoning", "tool_answer"),
    ("sft", "qwen3_8_xhigh_reasoning", "tool_answer"),
    ("modes", "qwen3_8_xhigh_reasoning", "tool_answer"),
    // The service's prompts open a block of thinking here, and nowhere else.
    ("prompt", "qwen3_vl", "results_out_of_order"),
    ("sft", "qwen3_vl", "results_out_of_order"),
    ("other_prompt", "qwen3_vl", "tools_one"),
];

/// Renderers only the service has that train the last message, however many there are.
const LAST_ONLY: &[&str] = &["kimi_k2_preserve_thinking"];

/// Checks all rows of a kind; fewer than so many would mean that the fixture is not read.
#[track_caller]
fn check(kind: &str, at_least: usize) {
    check_rows(&Golden::load(""), kind, at_least);
    if kind != "info" {
        check_rows(&Golden::load("other_"), kind, at_least.saturating_sub(15));
    }
}

#[track_caller]
fn check_rows(golden: &Golden, kind: &str, at_least: usize) {
    let rows: Vec<&Value> = golden
        .rows
        .iter()
        .filter(|row| row["kind"] == kind && golden.is_asserted(row))
        .collect();
    assert!(rows.len() >= at_least, "only {} rows of {kind}", rows.len());
    let failed = |row: &&Value| {
        let problem = golden.check(row).err()?;
        Some(format!(
            "{} {} ({}): {problem}",
            row["renderer"], row["case"], row["source"]
        ))
    };
    let failures: Vec<String> = rows.iter().filter_map(failed).collect();
    let shown = failures
        .iter()
        .take(5)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        failures.is_empty(),
        "{} of {}:\n{shown}",
        failures.len(),
        rows.len()
    );
}

#[test]
fn facts() {
    check("info", 50);
}

#[test]
fn prompts() {
    check("prompt", 693);
}

#[test]
fn examples() {
    check("sft", 450);
}

#[test]
fn examples_by_message() {
    check("sft_by_message", 14);
}

#[test]
fn every_mode() {
    check("modes", 120);
}

#[test]
fn answers() {
    check("parse", 330);
}

#[test]
fn models_have_the_renderers_the_cookbook_recommends() {
    let text = include_str!("../fixtures/text/renderers/models.json");
    let cases: Vec<Value> = serde_json::from_str(text).unwrap();
    assert!(cases.len() > 10);
    for case in cases {
        let name = case["model"].as_str().unwrap();
        let Some(expected) = case.get("expected") else {
            assert_eq!(recommended(name), [""; 0], "{name}");
            continue;
        };
        let model = ModelAttributes::of(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(json!(recommended(name)), expected["recommended"], "{name}");
        let same = [
            (json!(model.is_chat), "is_chat"),
            (json!(model.is_vl), "is_vl"),
            (json!(model.organization()), "organization"),
        ];
        for (got, key) in same {
            assert_eq!(got, expected[key], "{name}: {key}");
        }
        // Of models that are only known by their line, the cookbook repeats the name.
        if !model.size.is_empty() {
            let got = json!([model.version, model.size]);
            assert_eq!(
                got,
                json!([expected["version"], expected["size"]]),
                "{name}"
            );
        }
    }
}

/// A conversation never tokenises anew what the model said, not even where the family drops
/// thinking from history.
#[test]
fn sampled_tokens_stand_in_later_prompts_as_they_were_sampled() {
    let golden = Golden::load("");
    let mut checked = 0;
    for row in &golden.rows {
        let name = row["renderer"].as_str().unwrap();
        let whole = ["answer", "thinking", "call"].contains(&row["case"].as_str().unwrap_or(""));
        if row["kind"] != "parse" || row.get("ids").is_none() || !whole || !golden.is_asserted(row)
        {
            continue;
        }
        let ids: Vec<i32> = serde_json::from_value(row["ids"].clone()).unwrap();
        let plain = golden.renderer(name);
        let tool = json!({"name": "f", "description": "Zählt.", "parameters": {}});
        // Those that cannot declare tools are only checked without.
        for renderer in [Some(plain.clone()), plain.with_tools([tool]).ok()] {
            let Some(renderer) = renderer else {
                continue;
            };
            let prompt = |messages: &[Message]| {
                let prompt = renderer.generation_prompt(messages).unwrap();
                prompt.to_ints().unwrap()
            };
            let mut messages = vec![Message::user("Go on.")];
            let mut expected = prompt(&messages);
            expected.extend(&ids);
            messages.push(renderer.parse(&ids).unwrap().message);
            messages.push(Message::user("And then?"));
            let later = prompt(&messages);
            assert!(later.starts_with(&expected), "{name} {}", row["case"]);
            let text = renderer
                .tokenizer()
                .decode(&later[expected.len()..])
                .unwrap();
            assert!(text.contains("And then?"), "{name}: {text}");
            assert_eq!(text.matches("User:").count(), 0, "{name}: {text}");
            let plain: Vec<Message> = messages.into_iter().map(Message::without_tokens).collect();
            prompt(&plain);
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked}");
}

/// Text of a prompt.
fn prompt(name: &str, file: &str, messages: &[Message]) -> String {
    let renderer = Renderer::named(name, &tokenizer(file)).unwrap();
    let prompt = renderer.generation_prompt(messages).unwrap();
    let ids = prompt.to_ints().unwrap();
    renderer.tokenizer().decode(&ids).unwrap()
}

#[test]
fn results_of_gpt_oss_name_their_call() {
    let call = |name: &str, id: &str| ToolCall::new(name, "{}").with_id(id);
    let one = [call("f", "1")];
    let two = [call("f", "1"), call("g", "2")];
    #[track_caller]
    fn check(calls: &[ToolCall], result: Message, expected: &str) {
        let called = Message::assistant("").with_tool_calls(calls.to_vec());
        for effort in ["low", "medium", "high"] {
            let name = format!("gpt_oss_{effort}_reasoning");
            let messages = [Message::user("Hi"), called.clone(), result.clone()];
            let text = prompt(&name, "gptoss", &messages);
            let (_, result) = text.rsplit_once("<|call|>").unwrap();
            let expected = format!("<|start|>{expected}<|end|><|start|>assistant");
            assert_eq!(result, expected, "{name}");
        }
    }
    let result = || Message::tool("a \"b\" é");
    let said = "to=assistant<|channel|>commentary<|message|>\"a \\\"b\\\" é\"";
    check(&one, result(), &format!("functions.f {said}"));
    let named = result().answering("1", "functions.h");
    check(&one, named, &format!("functions.h {said}"));
    // Several calls are the cookbook's, which writes results as they are.
    let said = "to=assistant<|channel|>commentary<|message|>a \"b\" é";
    let by_id = result().with("tool_call_id", "1");
    check(&two, by_id, &format!("functions.f {said}"));
    check(&two, result(), &format!("functions.g {said}"));
    let unknown = result().with("tool_call_id", "3");
    check(&two, unknown, &format!("functions.g {said}"));
}

/// What only the service's own renderers decide: answers as texts, as the tokenizers are cut down.
#[test]
fn the_services_own_variants_are_followed_where_things_are_odd() {
    let rows = std::fs::read_to_string(format!("{FOLDER}/service_rows.jsonl")).unwrap();
    for line in rows.lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| row[key].as_str().unwrap();
        let (name, file) = (text("renderer"), text("tokenizer"));
        if let Some(messages) = row.get("conversation") {
            let messages: Vec<Message> = serde_json::from_value(messages.clone()).unwrap();
            assert_eq!(prompt(name, file, &messages), text("prompt"), "{line}");
            continue;
        }
        let renderer = Renderer::named(name, &tokenizer(file)).unwrap();
        let ids = renderer.tokenizer().encode_plain(text("answer")).unwrap();
        let parsed = renderer.parse(&ids);
        parsed_alike(&renderer, &ids, parsed, &row)
            .unwrap_or_else(|problem| panic!("{line}: {problem}"));
    }
}

#[test]
fn a_later_message_changes_no_call() {
    let call = ToolCall::new("f", "{\"a\":\"ü\"}").with_id("1");
    let mut messages = vec![
        Message::user("Hi"),
        Message::assistant("Hm.").with_tool_calls([call.clone()]),
        Message::tool("ok").answering("1", "f"),
    ];
    let before = prompt("deepseekv3", "DeepSeekV31Tokenizer", &messages);
    messages.push(Message::assistant("").with_tool_calls([call]));
    messages.push(Message::tool("ok").answering("1", "f"));
    let after = prompt("deepseekv3", "DeepSeekV31Tokenizer", &messages);
    assert!(after.starts_with(&before), "{before}\n{after}");
    // Who says nothing writes arguments as the service's own renderer does.
    assert!(
        after[before.len()..].contains(r#"{"a": "\u00fc"}"#),
        "{after}"
    );
}

#[test]
fn what_tools_are_called_does_not_open_a_block_of_thinking() {
    let renderer = Renderer::named("qwen3_vl", &tokenizer("qwen3")).unwrap();
    let result = |id: &str| Message::tool("ok").answering(id, "f");
    let calls = ["1", "2"].map(|id| ToolCall::new("f", "{}").with_id(id));
    let called = Message::assistant("").with_tool_calls(calls);
    let short = vec![Message::user("Hi")];
    let long = vec![Message::user("Hi"), called, result("1"), result("2")];
    for (description, messages) in [("Counts", &short), ("Zählt", &short), ("Counts", &long)] {
        let tool = json!({"name": "f", "description": description, "parameters": {}});
        let renderer = renderer.with_tools([tool]).unwrap();
        let ids = renderer.generation_prompt(messages).unwrap().to_ints();
        let text = renderer.tokenizer().decode(&ids.unwrap()).unwrap();
        assert!(text.ends_with("<|im_start|>assistant\n"), "{text}");
    }
}

#[test]
fn a_result_at_the_end_of_an_example_is_closed() {
    let call = ToolCall::new("f", "{}");
    let messages = [
        Message::user("Hi"),
        Message::assistant("").with_tool_calls([call]),
        Message::tool("ok"),
    ];
    for name in ["qwen3_instruct", "qwen3_preserve_thinking"] {
        let renderer = Renderer::named(name, &tokenizer("qwen3")).unwrap();
        let what = TrainOnWhat::AllAssistantMessages;
        let examples = renderer.supervised(&messages, what).unwrap();
        let ids = examples[0].input().to_ints().unwrap();
        let text = renderer.tokenizer().decode(&ids).unwrap();
        let expected = "<tool_response>\nok\n</tool_response><|im_end|>";
        assert!(text.ends_with(expected), "{name}: {text}");
    }
}

#[test]
fn a_sampled_message_that_was_cut_off_is_closed() {
    let renderer = Renderer::named("qwen3", &tokenizer("qwen3")).unwrap();
    let cut = renderer.tokenizer().encode_plain("Hello").unwrap();
    let messages = [
        Message::user("Hi"),
        Message::assistant("Hello").with_tokens(cut),
        Message::user("Bye"),
    ];
    let prompt = renderer
        .generation_prompt(&messages)
        .unwrap()
        .to_ints()
        .unwrap();
    let text = renderer.tokenizer().decode(&prompt).unwrap();
    assert_eq!(text.matches("<|im_end|>").count(), 3, "{text}");
}

#[test]
fn a_message_of_gpt_oss_is_closed_once() {
    let renderer = Renderer::named("gpt_oss_no_sysprompt", &tokenizer("gptoss")).unwrap();
    let cut = "<|channel|>analysis<|message|>Hm.<|end|>";
    let cut = renderer.tokenizer().encode_plain(cut).unwrap();
    let messages = [
        Message::user("Hi"),
        Message::assistant("").with_tokens(cut),
        Message::user("Bye"),
    ];
    let ids = renderer.generation_prompt(&messages).unwrap().to_ints();
    let text = renderer.tokenizer().decode(&ids.unwrap()).unwrap();
    assert!(text.contains("Hm.<|end|><|start|>user"), "{text}");
}

/// What a renderer makes of a text: its termination, its content, its calls.
fn answer(name: &str, file: &str, text: &str) -> String {
    let renderer = Renderer::named(name, &tokenizer(file)).unwrap();
    let ids = renderer.tokenizer().encode_plain(text).unwrap();
    let parsed = renderer.parse(&ids).unwrap();
    let message = parsed.message;
    let calls = message.tool_calls().unwrap();
    let calls = calls.iter().map(|call| {
        let id = call.id.as_deref().unwrap_or_default();
        format!(" {id} {:?} {}", call.name, call.arguments)
    });
    let content = match message.get("content") {
        Some(Json::String(said)) if said == text => "all".to_owned(),
        content => content.unwrap().to_string(),
    };
    let ended = parsed.termination.as_str();
    format!("{ended} {content}{}", calls.collect::<String>())
}

#[test]
fn answers_of_inkling_are_read_message_by_message() {
    #[track_caller]
    fn check(text: &str, expected: &str) {
        let marks = [
            ("{M}", "<|message_model|>"),
            ("{U}", "<|message_user|>"),
            ("{T}", "<|content_text|>"),
            ("{H}", "<|content_thinking|>"),
            ("{C}", "<|content_invoke_tool_json|>"),
            ("{E}", "<|end_message|>"),
            ("{X}", "<|content_model_end_sampling|>"),
        ];
        let spell = |text: String, (mark, token): &(&str, &str)| text.replace(mark, token);
        let text = marks.iter().fold(text.to_owned(), spell);
        let found = answer("tml_v0", "O200kBaseChatTokenizer", &text);
        assert_eq!(found, expected, "{text}");
    }
    let thought = r#"[{"type": "thinking", "thinking": "a"}]"#;
    let both = r#"[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]"#;
    // What was cut off goes, unless nothing came before or no content had begun.
    check("{M}{H}a{E}{M}{T}b", &format!("malformed {thought}"));
    check("{M}{H}a{E}{M}{T}", &format!("malformed {thought}"));
    check("{M}{H}a{E}{M}{T}b{X}", &format!("malformed {thought}"));
    check("{M}{H}a{E}{M}", "malformed all");
    check("{M}{T}a", "malformed all");
    check("{X}{M}{T}a{E}", "malformed all");
    // The end of the answer is text within a message, and not the end of what is read.
    check("{M}{T}a{E}{X}{M}{T}b{E}", &format!("stop_sequence {both}"));
    check(
        "{M}{T}{X}{E}{X}",
        "stop_sequence \"<|content_model_end_sampling|>\"",
    );
    // What stands between messages is nothing; a content without an author is the model's.
    check(" b{M}{T}a{E}b{E}{X}", "stop_sequence \"a\"");
    check("{T}a{E} {T}b{E}{X}", &format!("stop_sequence {both}"));
    // Turns of others, and of the model under other names, are others.
    check("{M}{T}a{E}{U}{T}b{E}{M}{T}a{E}{X}", "stop_sequence \"a\"");
    check("{M}{T}a{E}{U}{T}b{E}{X}", "malformed all");
    check("{M}b{T}b{E}{M}a{T}a{E}{X}", "stop_sequence \"a\"");
    check("{M}a{T}a{E}{M}{T}b{E}{X}", &format!("stop_sequence {both}"));
    // Calls are strict: a name that is the message's, an object, and no more.
    let called = |arguments: &str| format!("stop_sequence [] functions.f:0 \"f\" {arguments}");
    check(r#"{M}f{C}{"name":"f","args":{}}{E}{X}"#, &called("{}"));
    check(r#"{M}{C} {"args":{},"name":"f"} {E}{X}"#, &called("{}"));
    check(
        r#"{M}f{C}{"name":"f","args":{"b":-0,"a":18446744073709551616}}{E}{X}"#,
        &called(r#"{"b": -0.0, "a": 1.8446744073709552e+19}"#),
    );
    check(r#"{M}a{C}{"name":"f","args":{}}{E}{X}"#, "malformed all");
    check(r#"{M}{C}{"name":"","args":{}}{E}{X}"#, "malformed all");
    check(r#"{M}{C}{"name":"f","args":[]}{E}{X}"#, "malformed all");
    check(r#"{M}{C}["f",{}]{E}{X}"#, "malformed all");
    check(
        r#"{M}{C}{"name":"f","args":{"a":NaN}}{E}{X}"#,
        "malformed all",
    );
    check(
        r#"{M}{C}{"name":"f","args":{},"a":1}{E}{X}"#,
        "malformed all",
    );
    let whole = r#"{M}{C}{"name":"f","args":{}}{E}"#;
    check(
        &format!("{whole}{{U}}{{T}}b{{E}}{whole}{{X}}"),
        "stop_sequence [] functions.f:1 \"f\" {}",
    );
}

#[test]
fn calls_of_inkling_are_written_as_the_service_writes_them() {
    let tokenizer = tokenizer("O200kBaseChatTokenizer");
    let renderer = Renderer::named("tml_v0", &tokenizer).unwrap();
    let prompt = |arguments: &str| {
        let call = [ToolCall::new("f", arguments)];
        let called = Message::assistant("").with_tool_calls(call.to_vec());
        let prompt = renderer.generation_prompt(&[Message::user("Hi"), called])?;
        renderer.tokenizer().decode(&prompt.to_ints()?)
    };
    let text = prompt(
        r#"{"b": [1e-07, 1e-05, 1e15, 1e22, -0.0, {"d": 1, "c": "é"}], "a": 100000000000000000000}"#,
    );
    let text = text.unwrap();
    let expected = r#"{"name":"f","args":{"a":1e20,"b":[1e-7,0.00001,1000000000000000.0,1e22,-0.0,{"d":1,"c":"é"}]}}"#;
    assert!(text.contains(expected), "{text}");
    for arguments in ["[1]", "3", "null", r#"{"a": NaN}"#, r#"{"a": 1e400}"#] {
        assert!(prompt(arguments).is_err(), "{arguments}");
    }
    let tool = json!({"name": "f", "strict": true, "parameters": {"b": 1e-7, "a": 1e22}});
    let prompt = renderer.with_tools([tool]).unwrap();
    let prompt = prompt.generation_prompt(&[Message::user("Hi")]).unwrap();
    let text = tokenizer.decode(&prompt.to_ints().unwrap()).unwrap();
    let expected = r#"[{"name":"f","parameters":{"a":1e+22,"b":1e-7},"type":"function"}]"#;
    assert!(text.contains(expected), "{text}");
}

#[test]
fn inkling_says_nothing_beside_its_calls() {
    #[track_caller]
    fn check(parts: serde_json::Value, calls: &[ToolCall], expected: &str) {
        let said = Message::new("assistant", parts).with_tool_calls(calls.to_vec());
        let messages = [Message::user("Hi"), said, Message::user("Hi")];
        let text = prompt("tml_v0", "O200kBaseChatTokenizer", &messages);
        let user = "<|message_user|><|content_text|>Hi<|end_message|>";
        let expected = format!("{user}{expected}{user}");
        assert!(text.ends_with(&expected), "{text}");
    }
    let (nothing, thought) = (
        json!({"type": "text", "text": ""}),
        json!({"type": "thinking", "thinking": "a"}),
    );
    let thinks = "<|message_model|><|content_thinking|>a<|end_message|>";
    let says = "<|message_model|><|content_text|><|end_message|>";
    let calls =
        "<|message_model|>f<|content_invoke_tool_json|>{\"name\":\"f\",\"args\":{}}<|end_message|>";
    let end = "<|content_model_end_sampling|>";
    let call = [ToolCall::new("f", "{}")];
    check(
        json!([thought, nothing]),
        &call,
        &format!("{thinks}{calls}{end}"),
    );
    check(json!([nothing]), &call, &format!("{calls}{end}"));
    check(
        json!([thought, nothing]),
        &[],
        &format!("{thinks}{says}{end}"),
    );
    check(json!([]), &[], "");
}

#[test]
fn calls_of_kimi_need_an_id() {
    #[track_caller]
    fn check(id: &str, expected: &str) {
        let text = format!(
            "<|tool_calls_section_begin|><|tool_call_begin|>{id}<|tool_call_argument_begin|>{{}}\
             <|tool_call_end|><|tool_calls_section_end|><|im_end|>"
        );
        let found = answer("kimi_k25", "KimiK25Tokenizer", &text);
        assert_eq!(found, format!("stop_sequence \"\"{expected}"));
    }
    check(" functions.f:0 ", " functions.f:0 \"f\" {}");
    check(" :0", " :0 \"\" {}");
    check("f:٣", " f:٣ \"f\" {}");
    check(":0", "");
    check("f:½", "");
    check("f", "");
}

#[test]
fn calls_of_deepseek_before_v3_1_are_fenced() {
    #[track_caller]
    fn check(call: &str, expected: &str) {
        let text = format!(
            "Hi<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>\
             <｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
        );
        for (name, file) in [
            ("deepseek_v3_0", "DeepSeekV3Tokenizer"),
            ("deepseek_r1", "DeepSeekR1Tokenizer"),
        ] {
            let found = answer(name, file, &text);
            assert_eq!(found, format!("stop_sequence \"Hi\"{expected}"));
        }
    }
    check(
        "function<｜tool▁sep｜>f\n```json\n{\"x\":1e5}\n```",
        r#" functions.f:0 "f" {"x": 100000.0}"#,
    );
    check("function<｜tool▁sep｜>f\n{\"x\":1}", "");
    check("function<｜tool▁sep｜>f\n```json\n[]\n```", "");
    check("f<｜tool▁sep｜>{}", "");
}

#[test]
fn answers_of_the_services_glm_are_one_text_and_whole_calls() {
    #[track_caller]
    fn check(said: &str, expected: &str) {
        for name in ["glm5_2", "glm5_3_flash", "glm5_3_preserve_thinking"] {
            let text = format!("</think>{said}<|user|>");
            let found = answer(name, "GlmTokenizer", &text);
            assert_eq!(found, format!("stop_sequence {expected}"), "{name}");
        }
    }
    check("\n\nb \n", r#""b""#);
    check("\n", "[]");
    check("b<think>c</think>d", r#""b<think>c</think>d""#);
    let call = "<tool_call>\nf:g\n<arg_key> x </arg_key>\n<arg_value>1</arg_value>\n</tool_call>";
    let read = r#" functions.f:g:0 "f:g" {"x": 1}"#;
    check(&format!("\nb \n{call}\n"), &format!(r#""b"{read}"#));
    check(&format!("b {call} c"), &format!(r#""b  c"{read}"#));
    check(&format!("\n{call}\n"), &format!("[]{read}"));
    check(
        "<tool_call>f g</tool_call>",
        r#""<tool_call>f g</tool_call>""#,
    );
    check(
        &format!("b<tool_call>f{call}"),
        &format!(r#""b<tool_call>f"{read}"#),
    );
}

#[test]
fn values_that_are_no_json_to_the_service_are_texts() {
    #[track_caller]
    fn check(value: &str, expected: &str) {
        let call = format!(" functions.f:0 \"f\" {{\"a\": {expected}}}");
        for name in ["glm5_2", "glm5_3_flash", "glm5_3_preserve_thinking"] {
            let text = format!(
                "</think>Hi<tool_call>f<arg_key>a</arg_key><arg_value>{value}</arg_value>\
                 </tool_call><|user|>"
            );
            let found = answer(name, "GlmTokenizer", &text);
            assert_eq!(found, format!("stop_sequence \"Hi\"{call}"), "{name}");
        }
        let text = format!(
            "Hi\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" \
             string=\"false\">{value}</｜DSML｜parameter>\n</｜DSML｜invoke>\n\
             </｜DSML｜tool_calls><｜end▁of▁sentence｜>"
        );
        let found = answer("deepseekv4_disable_thinking", "DeepSeekV4Tokenizer", &text);
        assert_eq!(found, format!("stop_sequence \"Hi\"{call}"));
    }
    check(" 1e5\n", "100000.0");
    check(
        r#"{"b": [18446744073709551615]}"#,
        r#"{"b": [18446744073709551615]}"#,
    );
    check("NaN", r#""NaN""#);
    check("-Infinity", r#""-Infinity""#);
    check("[1e400]", r#""[1e400]""#);
    check("True", r#""True""#);
}

#[test]
fn only_the_first_thinking_is_trimmed() {
    #[track_caller]
    fn check(name: &str, file: &str) {
        let renderer = Renderer::named(name, &tokenizer(file)).unwrap();
        let sampled = "<think>\n a </think>b<think> c </think>d<|im_end|>";
        let sampled = renderer.tokenizer().encode_plain(sampled).unwrap();
        let parsed = renderer.parse(&sampled).unwrap().message;
        assert_eq!(
            (parsed.thinking(), parsed.text()),
            ("a c ".into(), "bd".into())
        );
    }
    check("qwen3_5", "Qwen35Tokenizer");
    check("nemotron3", "Nemotron3Tokenizer");
}

#[test]
fn a_message_that_cannot_be_joined_is_named() {
    let renderer = Renderer::named("deepseekv4_1", &tokenizer("DeepSeekV41Tokenizer")).unwrap();
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    let messages = [Message::user("Hi"), Message::new("user", parts)];
    let error = renderer.generation_prompt(&messages).unwrap_err();
    let expected = "invalid messages[1].content: must be text here, not 2 parts";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn images_are_chunks_between_their_marks() {
    let image = r#"{"type": "image", "image": "data:image/png;base64,iVBO", "expected_tokens": 5}"#;
    let line =
        format!(r#"{{"role": "user", "content": [{image}, {{"type": "text", "text": "Hi"}}]}}"#);
    let message: Message = serde_json::from_str(&line).unwrap();
    #[track_caller]
    fn check(name: &str, file: &str, message: &Message, before: &str, after: &str) {
        let renderer = Renderer::named(name, &tokenizer(file)).unwrap();
        let prompt = renderer
            .generation_prompt(std::slice::from_ref(message))
            .unwrap();
        let chunks = prompt.chunks();
        let at = chunks
            .iter()
            .position(|c| matches!(c, Chunk::Image(_)))
            .expect("an image");
        let text = |chunk: &Chunk| match chunk {
            Chunk::EncodedText(text) => renderer.tokenizer().decode(&text.tokens).unwrap(),
            _ => String::new(),
        };
        assert!(text(&chunks[at - 1]).ends_with(before), "{name}");
        assert!(text(&chunks[at + 1]).starts_with(after), "{name}");
    }
    check(
        "qwen3_vl_instruct",
        "qwen3",
        &message,
        "<|vision_start|>",
        "<|vision_end|>Hi",
    );
    check(
        "qwen3_5",
        "Qwen35Tokenizer",
        &message,
        "<|vision_start|>",
        "<|vision_end|>Hi",
    );
    check(
        "kimi_k25",
        "KimiK25Tokenizer",
        &message,
        "<|media_content|>",
        "<|media_end|>",
    );
    check(
        "nemotron3_ultra",
        "Nemotron3Tokenizer",
        &message,
        "<img>",
        "</img>Hi",
    );
    let blind = Renderer::named("qwen3", &tokenizer("qwen3")).unwrap();
    let error = blind.generation_prompt(&[message]).unwrap_err().to_string();
    assert_eq!(
        error,
        "invalid messages[0].content: this model does not see images"
    );
}

#[cfg(feature = "chat")]
mod template {
    use super::*;

    const PLAIN: &str = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n\
                         {% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}";

    fn tokenizer(template: &str) -> Tokenizer {
        let json = std::fs::read("tests/fixtures/text/tiny/tokenizer.json").unwrap();
        let config = std::fs::read_to_string("tests/fixtures/text/tiny/tokenizer_config.json");
        let mut config: Value = serde_json::from_str(&config.unwrap()).unwrap();
        config["chat_template"] = json!(template);
        Tokenizer::from_json(&json, Some(&config.to_string())).unwrap()
    }

    fn conversation() -> Vec<Message> {
        ["the cat", "sat", "the cat", "sat"]
            .iter()
            .enumerate()
            .map(|(n, text)| Message::new(["user", "assistant"][n % 2], text))
            .collect()
    }

    #[test]
    fn every_example_is_a_prompt_and_what_the_model_says() {
        let renderer = Renderer::for_model("no/one", &tokenizer(PLAIN)).unwrap();
        assert!(renderer.note().unwrap().contains("no/one"));
        let messages = conversation();
        let examples = renderer
            .supervised(&messages, TrainOnWhat::AllAssistantMessages)
            .unwrap();
        assert_eq!(examples.len(), 2);
        for (example, end) in examples.iter().zip([1, 3]) {
            let prompt = renderer.generation_prompt(&messages[..end]).unwrap();
            let prompt = prompt.to_ints().unwrap();
            let ids = example.input().to_ints().unwrap();
            assert!(ids.starts_with(&prompt));
            assert_eq!(example.loss_tokens(), ids.len() - prompt.len());
            let parsed = renderer.parse(&ids[prompt.len()..]).unwrap();
            assert_eq!(parsed.message.text(), "sat");
            assert!(parsed.termination.is_clean());
        }
        let whole = renderer.example(&messages, TrainOnWhat::AllTokens).unwrap();
        assert_eq!(whole.loss_tokens(), whole.weights().len());
        let last = renderer
            .example(&messages, TrainOnWhat::LastAssistantMessage)
            .unwrap();
        assert!(last.loss_tokens() > 0 && last.loss_tokens() < whole.loss_tokens() / 2);
    }

    #[test]
    fn what_is_trained_on_is_said_where_it_counts() {
        let renderer = Renderer::from_template(&tokenizer(PLAIN)).unwrap();
        #[track_caller]
        fn check(renderer: &Renderer, messages: &[Message], what: TrainOnWhat, problem: &str) {
            let one = renderer.example(messages, what).unwrap_err().to_string();
            let each = renderer.supervised(messages, what).unwrap_err();
            assert!(one.starts_with(problem), "{one}");
            assert_eq!(each.to_string(), one);
        }
        let mut messages = conversation();
        let (custom, all) = (TrainOnWhat::Customized, TrainOnWhat::AllAssistantMessages);
        check(
            &renderer,
            &messages,
            custom,
            "invalid messages[0].trainable: must be given",
        );
        messages[1] = Message::assistant("sat").with_trainable(true);
        check(
            &renderer,
            &messages,
            all,
            "invalid messages[1].trainable: only counts",
        );
        messages[1] = Message::assistant("sat").with("trainable", 1);
        check(
            &renderer,
            &messages,
            custom,
            "invalid messages[1].trainable: must be true or false",
        );
    }

    #[test]
    fn a_template_that_rewrites_the_past_is_refused() {
        let counting = format!("{{% for m in messages %}}the {{% endfor %}}{PLAIN}");
        let renderer = Renderer::from_template(&tokenizer(&counting)).unwrap();
        let what = TrainOnWhat::AllAssistantMessages;
        let error = renderer
            .supervised(&conversation(), what)
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("invalid messages[1]: the chat template lays out"),
            "{error}"
        );
        assert!(Renderer::from_template(&super::tokenizer("qwen3")).is_err());
    }

    #[test]
    fn generation_blocks_weigh_what_prefixes_cannot() {
        let marked = "{% for m in messages %}the {% endfor %}{% for m in messages %}<|start|>\
                      {{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}\
                      <|end|>{% endgeneration %}{% else %}{{ m.content }}<|end|>{% endif %}\n\
                      {% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}";
        let renderer = Renderer::from_template(&tokenizer(marked)).unwrap();
        let trained = |what| {
            let examples = renderer.supervised(&conversation(), what).unwrap();
            assert_eq!(examples.len(), 1);
            let ids = examples[0].input().to_ints().unwrap();
            let weights = examples[0].weights().iter();
            let said = ids.iter().zip(weights).filter(|(_, weight)| **weight > 0.0);
            let said: Vec<i32> = said.map(|(id, _)| *id).collect();
            renderer.tokenizer().decode(&said).unwrap()
        };
        let all = trained(TrainOnWhat::AllAssistantMessages);
        assert_eq!(all.matches("sat").count(), 2, "{all}");
        assert_eq!(all.matches("<|end|>").count(), 2, "{all}");
        assert_eq!(all.matches("cat").count(), 0, "{all}");
        let last = trained(TrainOnWhat::LastAssistantMessage);
        assert_eq!(last.matches("sat").count(), 1, "{last}");
        // Everything else a mode could train has no block.
        let what = TrainOnWhat::AllMessages;
        assert!(renderer.supervised(&conversation(), what).is_err());
        // What was sampled cannot be kept where the template lays the past out anew.
        let mut sampled = conversation();
        sampled[1] = Message::assistant("sat").with_tokens(vec![1]);
        let what = TrainOnWhat::AllAssistantMessages;
        assert!(renderer.supervised(&sampled, what).is_err());
    }

    #[test]
    fn sampled_turns_stay_as_they_are() {
        let renderer = Renderer::from_template(&tokenizer(PLAIN)).unwrap();
        let mut messages = conversation();
        let first = renderer
            .generation_prompt(&messages[..1])
            .unwrap()
            .to_ints()
            .unwrap();
        let sampled = renderer.tokenizer().encode_plain("the sat<|end|>").unwrap();
        messages[1] = renderer.parse(&sampled).unwrap().message;
        let later = renderer
            .generation_prompt(&messages[..3])
            .unwrap()
            .to_ints()
            .unwrap();
        assert!(later.starts_with(&[first, sampled].concat()));
        let text = renderer.tokenizer().decode(&later).unwrap();
        assert_eq!(text.matches("<|end|>").count(), 3, "{text}");
    }

    /// The template of a model, on a tokenizer with its special tokens.
    fn renderer(template: &str) -> Renderer {
        let (file, eos) = match template {
            "deepseek-ai-DeepSeek-V3.1" => ("DeepSeekV31Tokenizer", "<｜end▁of▁sentence｜>"),
            "openai-gpt-oss-120b" => ("gptoss", "<|return|>"),
            "GLM-4.6" => ("GlmTokenizer", "<|endoftext|>"),
            _ => ("qwen3", "<|im_end|>"),
        };
        let source = format!("tests/fixtures/text/golden/templates/{template}.jinja");
        let source = std::fs::read_to_string(source).unwrap_or_else(|_| template.to_owned());
        let text = unzipped(&Path::new(FOLDER).join(format!("{file}.json.gz")));
        let parts: Value = serde_json::from_str(&text).unwrap();
        let config = json!({"eos_token": eos, "chat_template": source}).to_string();
        let json = serde_json::to_vec(&parts["tokenizer"]).unwrap();
        Renderer::from_template(&Tokenizer::from_json(&json, Some(&config)).unwrap()).unwrap()
    }

    const QWEN: &str = "Qwen-Qwen3-0.6B";
    const CALL: &str = "Hm.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n\
                        </tool_call><|im_end|>";
    const NEXT: &str = "\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n";

    #[test]
    fn prompts_go_on_after_what_was_sampled() {
        #[track_caller]
        fn check(template: &str, sampled: &str, next: &str) {
            let renderer = renderer(template);
            let encode = |text: &str| renderer.tokenizer().encode_plain(text).unwrap();
            let prompt = |messages: &[Message]| {
                let prompt = renderer.generation_prompt(messages).unwrap();
                prompt.to_ints().unwrap()
            };
            let mut messages = vec![Message::user("Hi")];
            let mut expected = prompt(&messages);
            for _ in 0..2 {
                messages.push(renderer.parse(&encode(sampled)).unwrap().message);
                let examples = renderer.supervised(&messages, TrainOnWhat::LastAssistantMessage);
                expected.extend(encode(sampled));
                let example = examples.unwrap()[0].input().to_ints().unwrap();
                assert_eq!(example, expected, "{template}");
                messages.push(Message::user("And then?"));
                expected.extend(encode(next));
                let got = prompt(&messages);
                let text = renderer.tokenizer().decode(&got).unwrap();
                assert_eq!(got, expected, "{template}: {text}");
            }
        }
        check(QWEN, "Hello.<|im_end|>", NEXT);
        check(QWEN, "<think>hm</think>Hello.<|im_end|>", NEXT);
        check(QWEN, CALL, NEXT);
        check(
            "Qwen3.5-4B",
            "hm\n</think>\n\nHello.<|im_end|>",
            &format!("{NEXT}<think>\n"),
        );
        check(
            "deepseek-ai-DeepSeek-V3.1",
            "Hello.<｜end▁of▁sentence｜>",
            "<｜User｜>And then?<｜Assistant｜><think></think>",
        );
        check(
            "openai-gpt-oss-120b",
            "<|channel|>final<|message|>Hello.<|return|>",
            "<|start|>user<|message|>And then?<|end|><|start|>assistant",
        );
        check(
            "GLM-4.6",
            "\n<think></think>\nHello.<|endoftext|>",
            "<|user|>\nAnd then?<|assistant|>",
        );
        // A call in place of what was said; an end that only history has.
        let silent = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}call\
                      {% else %}{{ m.content }}{% endif %}{% if not loop.last or m.role == 'user' \
                      %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}\
                      <|im_start|>assistant\n{% endif %}";
        check(silent, "Hello.<|im_end|>", NEXT);
        check(silent, CALL, NEXT);
    }

    #[test]
    fn whole_conversations_train_with_the_templates_of_models() {
        let result = |text: &str| Message::tool(text).answering("call00000", "f");
        let call = json!({"id": "call00000", "function": {"name": "f", "arguments": {"a": 1}}});
        let called = Message::assistant("Hm.").with("tool_calls", [call.clone(), call]);
        let (user, answer) = (Message::user("Hi"), Message::assistant("Hello."));
        let short = [user.clone(), answer.clone()];
        let system = [Message::system("Be brief."), user.clone(), answer.clone()];
        let tools = [
            Message::system("Be brief."),
            user,
            called,
            result("1"),
            result("2"),
            answer,
        ];
        #[track_caller]
        fn check(template: &str, messages: &[Message], trained: &str) {
            let renderer = renderer(template);
            let what = TrainOnWhat::LastAssistantMessage;
            let example = renderer.example(messages, what).unwrap();
            let ids = example.input().to_ints().unwrap();
            let given = renderer.generation_prompt(&messages[..messages.len() - 1]);
            let given = given.unwrap().to_ints().unwrap();
            let decode = |ids: &[i32]| renderer.tokenizer().decode(ids).unwrap();
            let said = example.weights().iter().position(|weight| *weight > 0.0);
            let (before, said) = ids.split_at(said.unwrap());
            assert_eq!(decode(before), decode(&given), "{template}");
            let said = decode(&said[..example.loss_tokens()]);
            assert_eq!(said, trained, "{template}");
        }
        for messages in [&short[..], &system, &tools] {
            let said = "<think>\n\n</think>\n\nHello.<|im_end|>";
            check("Qwen3.5-4B", messages, &said[8..]);
            check("GLM-4.6", messages, "\n<think></think>\nHello.");
            // This one writes another block for a call once its results are there.
            if messages.len() < tools.len() {
                check(QWEN, messages, said);
            }
        }
        let ended = "Hello.<｜end▁of▁sentence｜>";
        check("deepseek-ai-DeepSeek-V3.1", &short, ended);
        let ended = "<|channel|>final<|message|>Hello.<|return|>";
        check("openai-gpt-oss-120b", &system, ended);
        // Modes in which messages of others count are cut at each of them.
        let renderer = renderer(QWEN);
        let what = TrainOnWhat::AllUserAndSystemMessages;
        let example = renderer.example(&system, what).unwrap();
        assert!(example.loss_tokens() > 0 && example.loss_tokens() < example.weights().len());
        // What was sampled stands in examples too.
        let sampled = renderer.tokenizer().encode_plain("He<|im_end|>").unwrap();
        let answer = Message::assistant("He").with_tokens(sampled.clone());
        let what = TrainOnWhat::AllAssistantMessages;
        let example = renderer.example(&[short[0].clone(), answer], what).unwrap();
        let ids = example.input().to_ints().unwrap();
        let weighed = ids.iter().zip(example.weights()).filter(|(_, w)| **w > 0.0);
        assert_eq!(weighed.map(|(id, _)| *id).collect::<Vec<_>>(), sampled);
    }

    #[test]
    fn what_was_parsed_is_laid_out_like_any_other_message() {
        #[track_caller]
        fn check(template: &str, sampled: &str, expected: &str) {
            let renderer = renderer(template);
            let sampled = renderer.tokenizer().encode_plain(sampled).unwrap();
            let parsed = renderer.parse(&sampled).unwrap().message.without_tokens();
            let messages = [Message::user("Hi"), parsed];
            let what = TrainOnWhat::AllAssistantMessages;
            let examples = renderer.supervised(&messages, what).unwrap();
            let ids = examples[0].input().to_ints().unwrap();
            let text = renderer.tokenizer().decode(&ids).unwrap();
            assert!(text.ends_with(expected), "{template}: {text}");
        }
        let thinking = "<think>\nhm\n</think>\n\n";
        check(
            QWEN,
            "<think>hm</think>Hello.<|im_end|>",
            &format!("{thinking}Hello.<|im_end|>"),
        );
        let call = &CALL.replacen('\n', "", 1);
        check(QWEN, call, CALL);
        // Thinking is not lost where a file says that there is none beside the content.
        let renderer = renderer(QWEN);
        let message = Message::assistant("Hello.").with_thinking("hm");
        let message = message.with("reasoning_content", Json::Null);
        let prompt = [Message::user("Hi"), message];
        let example = renderer.example(&prompt, TrainOnWhat::AllAssistantMessages);
        let ids = example.unwrap().input().to_ints().unwrap();
        let text = renderer.tokenizer().decode(&ids).unwrap();
        assert!(text.contains(thinking), "{text}");
        let xml = "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n\
                   </tool_call><|im_end|>";
        check(
            "Qwen3.5-4B",
            &format!("{thinking}{call}"),
            &format!("{thinking}Hm.\n\n{xml}"),
        );
        // A template that writes arguments as they come gets the text.
        let plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
                     {% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}\
                     <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n\
                     {% endif %}";
        check(plain, call, "Hm.{\"a\": 1}<|im_end|>");
    }

    #[test]
    fn a_sampled_turn_that_was_cut_off_is_closed() {
        let renderer = renderer(QWEN);
        let sampled = renderer.tokenizer().encode_plain("Hello the").unwrap();
        let parsed = renderer.parse(&sampled).unwrap().message;
        let messages = [Message::user("Hi"), parsed, Message::user("And then?")];
        let text = |input: &ModelInput| {
            let ids = input.to_ints().unwrap();
            renderer.tokenizer().decode(&ids).unwrap()
        };
        let prompt = text(&renderer.generation_prompt(&messages).unwrap());
        let expected = format!("assistant\nHello the<|im_end|>{NEXT}");
        assert!(prompt.ends_with(&expected), "{prompt}");
        let what = TrainOnWhat::AllAssistantMessages;
        let examples = renderer.supervised(&messages[..2], what).unwrap();
        let example = text(examples[0].input());
        assert!(
            example.ends_with("assistant\nHello the<|im_end|>"),
            "{example}"
        );
    }

    #[test]
    fn a_turn_that_cannot_be_found_is_refused() {
        let silent = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'user' %}\
                      {{ m.content }}{% else %}{{ loop.revindex }}{% endif %}<|im_end|>\n\
                      {% endfor %}";
        let renderer = renderer(silent);
        let sampled = renderer.tokenizer().encode_plain("1<|im_end|>").unwrap();
        let parsed = renderer.parse(&sampled).unwrap().message;
        let messages = [Message::user("Hi"), parsed, Message::user("And then?")];
        let error = renderer.generation_prompt(&messages).unwrap_err();
        let expected = "invalid messages[2]: the chat template lays out";
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}

struct Golden {
    /// Of the files' names.
    prefix: String,
    rows: Vec<Value>,
    /// With keys in their order, which renderers print.
    conversations: Json,
    renderers: RefCell<HashMap<String, Renderer>>,
}

impl Golden {
    fn load(prefix: &str) -> Self {
        let folder = Path::new(FOLDER);
        let rows = unzipped(&folder.join(format!("{prefix}rows.jsonl.gz")));
        let rows = rows.lines().map(|line| serde_json::from_str(line).unwrap());
        let conversations = folder.join(format!("{prefix}conversations.json"));
        let conversations = std::fs::read_to_string(conversations).unwrap();
        let conversations = Json::parse(&conversations).unwrap();
        Self {
            prefix: prefix.to_owned(),
            rows: rows.collect(),
            conversations: conversations.get("conversations").unwrap().clone(),
            renderers: RefCell::default(),
        }
    }

    /// Rows to match: those of the reference to follow, and those only one reference has.
    fn is_asserted(&self, row: &Value) -> bool {
        let text = |key: &str| row[key].as_str().unwrap_or_default();
        let (kind, name, case) = (text("kind"), text("renderer"), text("case"));
        let place = format!("{}{kind}", self.prefix);
        if CONTRADICTED.contains(&(kind, name, case))
            || CONTRADICTED.contains(&(&*place, name, case))
        {
            return false;
        }
        let same = |other: &&Value| other["renderer"] == name && other["case"] == row["case"];
        match kind {
            "prompt" | "sft" => row.get("follow").is_none_or(|follow| follow == true),
            // Not where the cookbook's layout of this conversation is not the one to follow.
            "modes" => !self.rows.iter().filter(same).any(|other| {
                other["source"] == "cookbook" && other.get("follow").is_some_and(|f| f != true)
            }),
            // Where both parse, the cookbook's results are ours too.
            "parse" | "info" => {
                let own = |r: &&Value| r["renderer"] == name && r["kind"] == "info";
                let both = self.rows.iter().filter(own).count() > 1;
                row["source"] == "cookbook" || !both
            }
            _ => true,
        }
    }

    fn check(&self, row: &Value) -> Result<(), String> {
        match row["kind"].as_str().unwrap() {
            "info" => self.info(row),
            "prompt" => self.prompt(row),
            "sft" | "sft_by_message" => self.sft(row),
            "modes" => self.modes(row),
            "parse" => self.parse(row),
            other => Err(format!("unknown kind {other}")),
        }
    }

    /// The renderer of a row, with the tokenizer the cookbook's had where there is one.
    fn renderer(&self, name: &str) -> Renderer {
        if let Some(renderer) = self.renderers.borrow().get(name) {
            return renderer.clone();
        }
        let info = |r: &&Value| r["renderer"] == name && r["kind"] == "info";
        let tokenizer = self.rows.iter().rfind(info).unwrap()["tokenizer"].as_str();
        let tokenizer = self::tokenizer(tokenizer.unwrap().split(':').nth(1).unwrap());
        let renderer = Renderer::named(name.split('@').next().unwrap(), &tokenizer).unwrap();
        let renderer = renderer.with_date("2026-01-02");
        self.renderers
            .borrow_mut()
            .insert(name.to_owned(), renderer.clone());
        renderer
    }

    /// The renderer and the messages of a case; `trainable` stays where asked for.
    fn case(&self, row: &Value, flags: bool) -> (tinker::Result<Renderer>, Vec<Message>, Json) {
        let case = self
            .conversations
            .get(row["case"].as_str().unwrap())
            .unwrap();
        let renderer = self.renderer(row["renderer"].as_str().unwrap());
        let renderer = match case.get("tools").and_then(Json::as_array) {
            Some(tools) => renderer.with_tools(tools),
            None => Ok(renderer),
        };
        let message = |message: &Json| {
            let mut fields = message.as_object().unwrap().to_vec();
            fields.retain(|(key, _)| flags || key != "trainable");
            serde_json::from_str(&Json::Object(fields).to_string()).unwrap()
        };
        let messages = case.get("messages").and_then(Json::as_array).unwrap();
        (
            renderer,
            messages.iter().map(message).collect(),
            case.clone(),
        )
    }

    fn info(&self, row: &Value) -> Result<(), String> {
        let renderer = self.renderer(row["renderer"].as_str().unwrap());
        same(
            "stop",
            &serde_json::to_value(renderer.stop()).unwrap(),
            &row["stop"],
        )?;
        if let Some(extends) = row.get("extension") {
            same("extends", &json!(renderer.extends()), extends)?;
            same(
                "disables",
                &json!(renderer.disables_thinking()),
                &row["disables_thinking"],
            )?;
        }
        Ok(())
    }

    fn prompt(&self, row: &Value) -> Result<(), String> {
        let (renderer, mut messages, case) = self.case(row, false);
        if messages.last().unwrap().role() == "assistant" {
            messages.pop();
        }
        let prefill = case
            .get("prefill")
            .and_then(Json::as_str)
            .unwrap_or_default();
        let prompt = renderer.and_then(|r| r.generation_prompt_with(&messages, prefill));
        let Some(prompt) = refused(row, prompt)? else {
            return Ok(());
        };
        let ids = prompt.to_ints().unwrap();
        let tokenizer = self
            .renderer(row["renderer"].as_str().unwrap())
            .tokenizer()
            .clone();
        same(
            "text",
            &json!(tokenizer.decode(&ids).unwrap()),
            &row["text"],
        )?;
        match row.get("ids") {
            Some(expected) => same("ids", &json!(ids), expected),
            None => Ok(()),
        }
    }

    fn sft(&self, row: &Value) -> Result<(), String> {
        let by_message = row["kind"] == "sft_by_message";
        let (renderer, messages, _) = self.case(row, by_message);
        let last_only = LAST_ONLY.contains(&row["renderer"].as_str().unwrap());
        let what = match by_message {
            true => TrainOnWhat::Customized,
            false if last_only => TrainOnWhat::LastAssistantMessage,
            false => TrainOnWhat::AllAssistantMessages,
        };
        let examples = renderer.and_then(|r| r.supervised(&messages, what));
        let Some(examples) = refused(row, examples)? else {
            return Ok(());
        };
        let expected = row["examples"].as_array().unwrap();
        same("examples", &json!(examples.len()), &json!(expected.len()))?;
        let prompt = self.prompt_ids(row);
        for (example, expected) in examples.iter().zip(expected) {
            self.example(row, example, expected, &prompt)?;
        }
        Ok(())
    }

    fn example(
        &self,
        row: &Value,
        example: &Example,
        expected: &Value,
        prompt: &[Value],
    ) -> Result<(), String> {
        let ids = example.input().to_ints().unwrap();
        if let Some(trained) = expected.get("trained") {
            let renderer = self.renderer(row["renderer"].as_str().unwrap());
            let mut text = String::new();
            let mut run = Vec::new();
            for (id, weight) in ids.iter().zip(example.weights()).chain([(&0, &0.0)]) {
                if *weight > 0.0 {
                    run.push(*id);
                } else if !run.is_empty() {
                    text += &format!("⟦{}⟧", renderer.tokenizer().decode(&run).unwrap());
                    run.clear();
                }
            }
            same("trained", &json!(text), trained)?;
            return same("n", &json!(ids.len()), &expected["n"]);
        }
        let wanted = whole(expected, prompt);
        let tokenizer = self
            .renderer(row["renderer"].as_str().unwrap())
            .tokenizer()
            .clone();
        let decode = |ids: &[i32]| json!(tokenizer.decode(ids).unwrap());
        let as_ids: Vec<i32> = wanted
            .iter()
            .map(|id| id.as_i64().unwrap() as i32)
            .collect();
        if ids != as_ids {
            same("text", &decode(&ids), &decode(&as_ids))?;
        }
        same("ids", &json!(ids), &json!(wanted))?;
        same("weights", &runs(example.weights()), &expected["weights"])
    }

    /// The ids of the prompt row that sft rows refer to.
    fn prompt_ids(&self, row: &Value) -> Vec<Value> {
        let prompt = self.rows.iter().find(|other| {
            other["kind"] == "prompt"
                && other["renderer"] == row["renderer"]
                && other["case"] == row["case"]
                && (other["source"] == row["source"] || other["source"] == "both")
        });
        let ids = prompt.and_then(|prompt| prompt["ids"].as_array());
        ids.cloned().unwrap_or_default()
    }

    fn modes(&self, row: &Value) -> Result<(), String> {
        let prompt = self.prompt_ids(row);
        let usual = row.get("ids").map(|_| whole(row, &prompt));
        for (mode, expected) in row["modes"].as_object().unwrap() {
            let what: TrainOnWhat = mode.parse().unwrap();
            let (renderer, messages, _) = self.case(row, what == TrainOnWhat::Customized);
            let example = renderer.clone().and_then(|r| r.example(&messages, what));
            if expected.get("error").is_some() {
                if example.is_ok() {
                    return Err(format!("{mode} must be refused: {expected}"));
                }
            } else {
                let example = example.map_err(|error| format!("{mode}: {error}"))?;
                let ids = json!(example.input().to_ints().unwrap());
                let wanted = match row.get("other_ids").and_then(|other| other.get(mode)) {
                    Some(other) => whole(other, &prompt),
                    None => usual.clone().unwrap(),
                };
                same(&format!("{mode} ids"), &ids, &json!(wanted))?;
                same(mode, &runs(example.weights()), expected)?;
            }
            let Some(lists) = row.get("lists") else {
                continue;
            };
            let examples = renderer.and_then(|r| r.supervised(&messages, what));
            match lists.get(mode) {
                None if examples.is_ok() => {
                    return Err(format!("the list of {mode} must be refused"));
                }
                None => {}
                Some(expected) => {
                    let examples = examples.map_err(|error| format!("list {mode}: {error}"))?;
                    let got: Vec<Value> = examples
                        .iter()
                        .map(|e| json!([e.weights().len(), runs(e.weights())]))
                        .collect();
                    same(&format!("list {mode}"), &json!(got), expected)?;
                }
            }
        }
        Ok(())
    }

    fn parse(&self, row: &Value) -> Result<(), String> {
        if row.get("unrenderable").is_some() {
            return Ok(());
        }
        let renderer = self.renderer(row["renderer"].as_str().unwrap());
        let ids: Vec<i32> = serde_json::from_value(row["ids"].clone()).unwrap();
        let parsed = renderer.parse(&ids);
        let result = &row["result"];
        if row["source"] == "tml" {
            return parsed_alike(&renderer, &ids, parsed, result);
        }
        let Some(parsed) = refused(result, parsed)? else {
            return Ok(());
        };
        let message = serde_json::to_value(&parsed.message).unwrap();
        same("message", &message, &result["message"])?;
        same(
            "termination",
            &json!(parsed.termination.as_str()),
            &result["termination"],
        )?;
        match parsed.message.tokens() == Some(&ids[..]) {
            true => Ok(()),
            false => Err("the sampled tokens are not kept".to_owned()),
        }
    }
}

/// The service's own parser gives messages, which are one of ours, or an error.
fn parsed_alike(
    renderer: &Renderer,
    ids: &[i32],
    parsed: tinker::Result<Parsed>,
    result: &Value,
) -> Result<(), String> {
    let Some(expected) = result["messages"].as_array() else {
        let whole = |p: &Parsed| {
            let silent = p.message.text().is_empty() && p.message.thinking().is_empty();
            p.termination.is_clean() && !silent && p.message.unparsed_tool_calls().is_empty()
        };
        return match parsed {
            Ok(parsed) if whole(&parsed) => Err(format!("must be refused: {parsed:?}")),
            _ => Ok(()),
        };
    };
    let parsed = parsed.map_err(|error| error.to_string())?;
    let stopped = match renderer.stop() {
        Stop::Tokens(stops) => ids.iter().any(|id| stops.contains(id)),
        _ => return Err("a stop of text".to_owned()),
    };
    // It takes the end of the tokens for the end of the answer; we say that it was cut off.
    same(
        "clean",
        &json!(parsed.termination.is_clean()),
        &json!(stopped),
    )?;
    if result["status"] == "incomplete" {
        return same(
            "clean",
            &json!(parsed.termination.is_clean()),
            &json!(false),
        );
    }
    let message = serde_json::to_value(&parsed.message).unwrap();
    let wanted = expected.iter().flat_map(|m| parts(&m["content"])).collect();
    same(
        "content",
        &Value::Array(parts(&message["content"])),
        &Value::Array(wanted),
    )?;
    let calls = |m: &Value| m["tool_calls"].as_array().cloned().unwrap_or_default();
    let wanted: Vec<Value> = expected.iter().flat_map(calls).collect();
    same("calls", &json!(calls(&message)), &json!(wanted))
}

/// A content as parts.
fn parts(content: &Value) -> Vec<Value> {
    match content {
        Value::String(text) => vec![json!({"type": "text", "text": text})],
        parts => parts.as_array().cloned().unwrap_or_default(),
    }
}

/// The whole ids: some of the prompt's, then the row's own.
fn whole(row: &Value, prompt: &[Value]) -> Vec<Value> {
    let shared = row["shared"].as_u64().unwrap() as usize;
    let own = row["ids"].as_array().unwrap().iter();
    prompt[..shared].iter().chain(own).cloned().collect()
}

fn runs(weights: &[f32]) -> Value {
    let mut runs: Vec<(usize, f32)> = Vec::new();
    for &weight in weights {
        match runs.last_mut() {
            Some((count, last)) if *last == weight => *count += 1,
            _ => runs.push((1, weight)),
        }
    }
    let runs = runs
        .iter()
        .map(|(count, weight)| json!([count, *weight as i64]));
    Value::Array(runs.collect())
}

fn refused<T>(row: &Value, got: tinker::Result<T>) -> Result<Option<T>, String> {
    match (row.get("error"), got) {
        (Some(_), Err(_)) => Ok(None),
        (Some(error), Ok(_)) => Err(format!("must be refused: {error}")),
        (None, Ok(got)) => Ok(Some(got)),
        (None, Err(error)) => Err(format!("refused: {error}")),
    }
}

fn same(what: &str, got: &Value, expected: &Value) -> Result<(), String> {
    match got == expected {
        true => Ok(()),
        false => Err(format!("{what}\n   got  {got}\n   want {expected}")),
    }
}

/// A tokenizer of the fixtures.
pub(crate) fn tokenizer(name: &str) -> Tokenizer {
    let text = unzipped(&Path::new(FOLDER).join(format!("{name}.json.gz")));
    let parts: Value = serde_json::from_str(&text).unwrap();
    let tokenizer = serde_json::to_vec(&parts["tokenizer"]).unwrap();
    Tokenizer::from_json(&tokenizer, Some(&parts["config"].to_string())).unwrap()
}

fn unzipped(path: &Path) -> String {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}
