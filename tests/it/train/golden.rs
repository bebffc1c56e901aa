//! Figures and examples against those of the Python cookbook 0.5.8, recorded in
//! `tests/fixtures/train`.

use std::collections::BTreeMap;

use serde_json::Value;
use tinker::LoraConfig;
use tinker::text::data::{
    Trajectory, TrajectoryGroup, Transition, discounted_future_sum, permutation,
};
use tinker::train::rl::{env_metrics, matchups};
use tinker::train::{
    BitsPerByte, Decay, DpoScores, Row, Schedule, Span, Timing, full_learning_rate_for,
    learning_rate_for, lora_parameters, mean_nll, split,
};
use tinker::types::ModelInput;

fn cases(section: &str) -> Vec<Value> {
    let text = include_str!("../../fixtures/train/metrics.json");
    let all: Value = serde_json::from_str(text).unwrap();
    all[section].as_array().unwrap().clone()
}

/// Equal, or different only in the last places of a float of 32 bits.
fn close(found: f64, expected: f64) -> bool {
    found == expected
        || found.is_nan() && expected.is_nan()
        || (found - expected).abs() <= 1e-6 * expected.abs().max(1e-2)
}

fn number(value: &Value) -> f64 {
    match value {
        Value::String(text) if text == "NaN" => f64::NAN,
        value => value.as_f64().unwrap(),
    }
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(number).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    numbers(value).into_iter().map(|x| x as f32).collect()
}

fn ints(value: &Value) -> Vec<i32> {
    numbers(value).into_iter().map(|x| x as i32).collect()
}

#[track_caller]
fn check(case: &Value, found: tinker::Result<f64>) {
    match (found, case.get("expected")) {
        (Ok(found), Some(expected)) => {
            assert!(close(found, number(expected)), "{found} for {case}");
        }
        (Err(_), None) => {}
        (found, _) => panic!("{found:?} for {case}"),
    }
}

#[track_caller]
fn check_row(row: &Row, expected: &Value, case: &Value) {
    let expected = expected.as_object().unwrap();
    let found: BTreeMap<&str, f64> = row
        .iter()
        .map(|(name, value)| (name, value.as_f64().unwrap()))
        .collect();
    assert_eq!(
        found.keys().copied().collect::<Vec<_>>(),
        expected.keys().map(String::as_str).collect::<Vec<_>>(),
        "{case}"
    );
    for (name, value) in expected {
        assert!(
            close(found[name.as_str()], number(value)),
            "{name}: {row:?} for {case}"
        );
    }
}

#[test]
fn mean_nll_of_sequences() {
    for case in cases("mean_nll") {
        let lists = |name: &str| -> Vec<Vec<f32>> {
            case[name].as_array().unwrap().iter().map(floats).collect()
        };
        let (logprobs, weights) = (lists("logprobs"), lists("weights"));
        let pairs = logprobs.iter().zip(&weights);
        check(
            &case,
            Ok(mean_nll(pairs.map(|(l, w)| (l.as_slice(), w.as_slice())))),
        );
    }
}

/// The tokenizers are not here, but each case has the text and the tokens: a run's text is what
/// its tokens add to the text, which the cases' own runs (all at the end, up to special tokens)
/// show by their lengths.
#[test]
fn bits_per_byte_of_sequences() {
    let texts: BTreeMap<Vec<i32>, &str> = [
        (vec![289, 9416, 507, 0, 90316], " wörld! 😀"),
        (vec![16533, 2001, 5509, 13], "Answer — ok."),
        (vec![110085], "好的"),
    ]
    .into();
    for case in cases("bits_per_byte") {
        let special = ints(&case["special_ids"]);
        let mut bits = BitsPerByte::default();
        for index in 0..case["target_tokens"].as_array().unwrap().len() {
            let targets = ints(&case["target_tokens"][index]);
            let (logprobs, weights) = (
                floats(&case["logprobs"][index]),
                floats(&case["weights"][index]),
            );
            let decode = |run: &[i32]| Ok(texts[run].to_owned());
            bits.add(
                &logprobs,
                &weights,
                &targets,
                |t| special.contains(&t),
                decode,
            )
            .unwrap();
        }
        check(&case, Ok(bits.value()));
    }
}

#[test]
fn dpo_scores() {
    for case in cases("dpo") {
        let lists = ["chosen", "chosen_ref", "rejected", "rejected_ref"];
        let [chosen, chosen_ref, rejected, rejected_ref] = lists.map(|name| numbers(&case[name]));
        let ratios: Vec<(f64, f64)> = (0..chosen.len())
            .map(|i| (chosen[i] - chosen_ref[i], rejected[i] - rejected_ref[i]))
            .collect();
        let scores = DpoScores::of(&ratios, number(&case["beta"]));
        let row = Row::new()
            .with("dpo_loss", scores.loss)
            .with("accuracy", scores.accuracy)
            .with("margin", scores.margin)
            .with("chosen_reward", scores.chosen_reward)
            .with("rejected_reward", scores.rejected_reward);
        check_row(&row, &case["expected"], &case);
    }
}

#[test]
fn learning_rates_and_adapter_sizes() {
    for case in cases("get_lr") {
        let model = case["model"].as_str().unwrap();
        let rate = match case["is_lora"].as_bool().unwrap() {
            true => learning_rate_for(model),
            false => full_learning_rate_for(model),
        };
        check(&case, rate);
    }
    for case in cases("lora_params") {
        let flag = |name: &str| case[name].as_bool().unwrap();
        let lora = LoraConfig::rank(case["rank"].as_u64().unwrap() as u32)
            .with_train_mlp(flag("mlp"))
            .with_train_attn(flag("attn"))
            .with_train_unembed(flag("unembed"));
        let count = lora_parameters(case["model"].as_str().unwrap(), &lora);
        check(&case, count.map(|count| count as f64));
    }
}

#[test]
fn schedules() {
    for case in cases("lr_schedule") {
        let decay = case["schedule"].as_str().unwrap().parse::<Decay>();
        let at = |name: &str| case[name].as_u64().unwrap() as usize;
        let rate =
            decay.and_then(|decay| Schedule::from(decay).multiplier(at("step"), at("total")));
        check(&case, rate);
    }
}

#[test]
fn figures_of_rollouts() {
    for case in cases("env_metrics") {
        let groups: Vec<TrajectoryGroup> = case["groups"]
            .as_array()
            .unwrap()
            .iter()
            .map(measured_group)
            .collect();
        let tags = case["tags"].as_array().unwrap().iter().map(|tags| {
            let tags = tags.as_array().unwrap().iter();
            tags.map(|tag| tag.as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        });
        let groups: Vec<_> = groups.iter().zip(tags).collect();
        check_row(&env_metrics(&groups), &case["expected"], &case);
    }
}

/// A group of which only lengths, rewards and figures are known.
fn measured_group(group: &Value) -> TrajectoryGroup {
    let turn = |turn: &Value| {
        let length = |name: &str| turn[name].as_u64().unwrap() as usize;
        let prompt = ModelInput::from_ints(vec![1; length("ob_len")]);
        let (said, count) = (vec![2; length("ac_len")], length("ac_len"));
        let turned = Transition::new(prompt, said, vec![0.0; count]);
        let mut turned = turned.with_reward(number(&turn["reward"]));
        turned.metrics = figures(turn.get("metrics"));
        turned
    };
    let episodes = group["trajectories"].as_array().unwrap().iter();
    let turns = episodes.map(|turns| {
        turns
            .as_array()
            .unwrap()
            .iter()
            .map(turn)
            .collect::<Vec<_>>()
    });
    let mut found = TrajectoryGroup::new(turns.map(Trajectory::new).collect::<Vec<_>>());
    found.final_rewards = numbers(&group["final_rewards"]);
    if let Some(metrics) = group.get("metrics").and_then(Value::as_array) {
        found.metrics = metrics
            .iter()
            .map(|metrics| figures(Some(metrics)))
            .collect();
    }
    found
}

fn figures(value: Option<&Value>) -> BTreeMap<String, f64> {
    let entries = value.and_then(Value::as_object).into_iter().flatten();
    entries
        .map(|(name, value)| (name.clone(), number(value)))
        .collect()
}

#[test]
fn sums_parts_pairs_and_orders() {
    for case in cases("discounted_sum") {
        let gamma = number(&case["gamma"]) as f32;
        check_floats(
            &discounted_future_sum(&floats(&case["x"]), gamma),
            &case["expected"],
        );
    }
    let at = |case: &Value, name: &str| case[name].as_u64().unwrap() as usize;
    let list =
        |case: &Value| -> Vec<usize> { serde_json::from_value(case["expected"].clone()).unwrap() };
    for case in cases("substeps") {
        let sizes: Vec<usize> = split(at(&case, "n"), at(&case, "parts"))
            .iter()
            .map(|r| r.len())
            .collect();
        assert_eq!(sizes, list(&case), "{case}");
    }
    for case in cases("pairs") {
        let both = case["pattern"] == "all_pairs_both_ways";
        let expected: Vec<(usize, usize)> =
            serde_json::from_value(case["expected"].clone()).unwrap();
        assert_eq!(
            matchups(at(&case, "n"), at(&case, "chunk"), both),
            expected,
            "{case}"
        );
    }
    for case in cases("shuffle") {
        assert_eq!(
            permutation(at(&case, "n"), at(&case, "seed") as u64),
            list(&case),
            "{case}"
        );
    }
}

#[test]
fn timings() {
    for case in cases("timing") {
        let span = |span: &Value| {
            let time = |index: usize| std::time::Duration::from_secs_f64(number(&span[index]));
            let name = span[0].as_str().unwrap().to_owned();
            Span {
                name,
                start: time(1),
                end: time(2),
            }
        };
        let timing = Timing::of(case["spans"].as_array().unwrap().iter().map(span).collect());
        let mut metrics = timing.metrics();
        if let Some(total) = case.get("total") {
            metrics.set("time/total", number(total));
        }
        check_row(&metrics, &case["expected"]["metrics"], &case);
        let line: Value = serde_json::from_str(&timing.line(3).to_line()).unwrap();
        assert_eq!(line, case["expected"]["line"], "{case}");
    }
}

#[track_caller]
fn check_floats(found: &[f32], expected: &Value) {
    let expected = numbers(expected);
    assert_eq!(found.len(), expected.len());
    let same = found
        .iter()
        .zip(&expected)
        .all(|(a, b)| close(f64::from(*a), *b));
    assert!(same, "{found:?} for {expected:?}");
}
