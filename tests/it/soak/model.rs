//! The rules of the protocol, checked against what a server saw.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::front::{Fate, Seen};

/// Every way in which the record breaks the rules; none should.
pub(super) fn violations(record: &[Seen]) -> Vec<String> {
    let mut found = Vec::new();
    let mut models: BTreeMap<&str, Vec<&Seen>> = BTreeMap::new();
    // Samples have no order.
    for seen in record.iter().filter(|seen| seen.endpoint != "asample") {
        models.entry(&seen.model).or_default().push(seen);
    }
    for (model, requests) in models {
        let mut newest = 0;
        let mut first: BTreeMap<u64, &Seen> = BTreeMap::new();
        // Numbers whose request was turned down, each time it was sent.
        let mut free: BTreeMap<u64, bool> = BTreeMap::new();
        let mut ids: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
        for seen in requests {
            let at = format!("{model} {} {}", seen.seq, seen.endpoint);
            match first.get(&seen.seq) {
                None => {
                    // A model made from a checkpoint has spent its first number on loading it.
                    let is_loaded = newest == 0 && seen.seq == 2;
                    if seen.seq != newest + 1 && !is_loaded {
                        found.push(format!("{at}: came after number {newest}"));
                    }
                    newest = newest.max(seen.seq);
                    first.insert(seen.seq, seen);
                }
                Some(known) if known.endpoint == seen.endpoint && known.body == seen.body => {}
                // What was never taken leaves its number to the next.
                Some(_) if free[&seen.seq] => {
                    first.insert(seen.seq, seen);
                }
                Some(known) => {
                    found.push(format!("{at}: the number was {}'s", known.endpoint));
                }
            }
            let refused = matches!(seen.fate, Fate::Refused(400..500));
            *free.entry(seen.seq).or_insert(true) &= refused;
            if let Fate::Accepted(id) = &seen.fate {
                ids.entry(seen.seq).or_default().insert(id);
            }
        }
        for (seq, ids) in ids {
            if ids.len() > 1 {
                found.push(format!("{model} {seq}: accepted as {ids:?}"));
            }
        }
    }
    found
}

/// Whether what an error says of its request's effect is so, by what the server was told and the
/// checkpoints it has.
pub(super) fn is_true(record: &[Seen], there: &BTreeSet<String>, error: &Value) -> bool {
    let text = |name: &str| error[name].as_str().unwrap();
    let mark: Vec<u8> = serde_json::from_value(error["mark"].clone()).unwrap();
    let fates: Vec<&Fate> = record
        .iter()
        .filter(|seen| seen.model == text("model") && seen.endpoint == text("endpoint"))
        .filter(|seen| seen.body.windows(mark.len()).any(|part| part == mark))
        .map(|seen| &seen.fate)
        .collect();
    let accepted = fates.iter().any(|fate| matches!(fate, Fate::Accepted(_)));
    // What was accepted may still have failed as a whole: on a full disk nothing is saved.
    let saved = || {
        let (model, name) = (text("model"), String::from_utf8_lossy(&mark));
        text("endpoint") != "save_weights"
            || there.contains(&format!("tinker://{model}/weights/{name}"))
    };
    match text("effect") {
        "None" => !accepted || !saved(),
        "Accepted" => accepted || fates.contains(&&Fate::Unanswered),
        _ => true,
    }
}

#[test]
fn rules_that_are_broken_are_noticed() {
    let seen = |seq, body: &[u8], fate| Seen {
        endpoint: "optim_step".into(),
        model: "m".into(),
        seq,
        body: body.into(),
        fate,
    };
    let accepted = |id: &str| Fate::Accepted(id.into());
    let calm = [seen(1, b"a", accepted("1")), seen(2, b"b", accepted("2"))];
    assert_eq!(violations(&calm), [""; 0]);
    let repeated = [
        seen(1, b"a", Fate::Unanswered),
        seen(1, b"a", accepted("1")),
        seen(1, b"a", accepted("1")),
    ];
    assert_eq!(violations(&repeated), [""; 0]);
    let given_back = [
        seen(1, b"a", Fate::Refused(404)),
        seen(1, b"b", accepted("1")),
        seen(1, b"b", Fate::Unanswered),
    ];
    assert_eq!(violations(&given_back), [""; 0]);
    for broken in [
        [
            seen(1, b"a", Fate::Refused(503)),
            seen(1, b"b", accepted("2")),
        ],
        [seen(1, b"a", accepted("1")), seen(3, b"b", accepted("2"))],
        [seen(2, b"a", accepted("1")), seen(1, b"b", accepted("2"))],
        [seen(1, b"a", Fate::Withheld), seen(1, b"b", accepted("2"))],
        [seen(1, b"a", accepted("1")), seen(1, b"a", accepted("2"))],
    ] {
        assert!(!violations(&broken).is_empty(), "{broken:?}");
    }
    let error = |effect: &str| {
        serde_json::json!({"model": "m", "endpoint": "optim_step",
        "mark": b"b", "effect": effect})
    };
    let none = BTreeSet::new();
    let is_true = |record: &[Seen], error: &Value| self::is_true(record, &none, error);
    assert!(is_true(&calm, &error("Accepted")) && !is_true(&calm, &error("None")));
    assert!(is_true(&repeated, &error("None")) && !is_true(&repeated, &error("Accepted")));
}

#[test]
fn a_save_without_effect_leaves_no_checkpoint() {
    let record = [Seen {
        endpoint: "save_weights".into(),
        model: "m".into(),
        seq: 1,
        body: b"name".into(),
        fate: Fate::Accepted("1".into()),
    }];
    let error = serde_json::json!({"model": "m", "endpoint": "save_weights",
        "mark": b"name", "effect": "None"});
    let there = BTreeSet::from(["tinker://m/weights/name".to_owned()]);
    assert!(is_true(&record, &BTreeSet::new(), &error));
    assert!(!is_true(&record, &there, &error));
}
