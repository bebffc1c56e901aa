//! Many at once: fifty models, a thousand samples.

use serde_json::json;
use tinker::local::LocalServer;

use super::Caller;

#[test]
fn fifty_models_train_at_once_and_each_as_if_alone() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let texts = ["one two three"];
    let expected: Vec<f64> = {
        let alone = caller.model(1000);
        let mut seq_id = 1;
        (0..3).map(|_| alone.train(&mut seq_id, &texts)).collect()
    };
    std::thread::scope(|scope| {
        for number in 0..50 {
            let (caller, expected) = (&caller, &expected);
            scope.spawn(move || {
                let model = caller.model(number);
                let mut seq_id = 1;
                let losses: Vec<f64> = (0..3).map(|_| model.train(&mut seq_id, &texts)).collect();
                assert_eq!(&losses, expected, "model {number}");
            });
        }
    });
}

#[test]
fn a_thousand_samples_at_once_are_all_drawn() {
    let server = LocalServer::start().unwrap();
    let caller = Caller::new(&server);
    let body = json!({"session_id": caller.session, "sampling_session_seq_id": 0,
        "base_model": caller.base_model()});
    let sampler = caller.ok("create_sampling_session", body)["sampling_session_id"].clone();
    let submit = |number: u64| {
        let body = json!({"sampling_session_id": sampler, "seq_id": number,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [number % 256, 65]}]},
            "sampling_params": {"max_tokens": 4, "seed": number % 10, "stop": []}});
        caller.ok("asample", body)
    };
    let accepted: Vec<_> = (0..1000).map(submit).collect();
    std::thread::scope(|scope| {
        for part in accepted.chunks(100) {
            let caller = &caller;
            scope.spawn(move || {
                for one in part {
                    let result = caller.wait(one);
                    let tokens = result["sequences"][0]["tokens"].as_array().unwrap();
                    assert_eq!(tokens.len(), 4);
                }
            });
        }
    });
    // The same prompt with the same seed, whatever ran beside it.
    let again = caller.wait(&submit(5000 - 5000 % 2560));
    assert_eq!(again["sequences"], caller.wait(&submit(0))["sequences"]);
}
