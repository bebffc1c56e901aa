//! What the Python SDK can be asked for can be asked for here: options that change what is sent.

use serde_json::{Value, json};
use tinker::client::{Load, LogprobsRequest, Resume};
use tinker::local::LocalServer;
use tinker::loss::{input, logprobs};
use tinker::types::OptimizerConfig;
use tinker::{Datum, LossFn, ModelInput, SamplingParams, ServiceClient};

use crate::support::fake::{Fake, route, train};
use crate::support::scripted::Reply;
use crate::support::{local, logs};

const PATH: &str = "tinker://R1/weights/x";

fn prompt() -> ModelInput {
    ModelInput::from_ints(vec![1, 2, 3])
}

/// Answers what a resuming client asks before it creates its model.
fn weights_info(fake: &Fake) {
    let info = json!({"base_model": "m", "is_lora": true, "lora_rank": 4,
        "optimizer_config": {"type": "adamw"}});
    fake.server
        .always("POST", &route("weights_info"), Reply::json(&info));
}

#[test]
fn a_model_from_saved_weights_may_have_another_optimiser() {
    let dimuon = json!({"type": "dimuon", "version": 1});
    let resume = || Resume::from_checkpoint(PATH).with_optimizer(OptimizerConfig::Dimuon);

    let fake = Fake::start();
    weights_info(&fake);
    let service = fake.service();
    service.create_training_client_from_state(resume()).unwrap();
    assert_eq!(fake.bodies("create_model")[0]["optimizer_config"], dimuon);
    assert_eq!(fake.bodies("load_weights")[0]["optimizer"], false);
    let refused = service.create_training_client_from_state_with_optimizer(resume());
    assert!(refused.unwrap_err().to_string().contains("optimizer"));

    let fake = Fake::with_flags(json!({"create_model_via_load_weights": true}));
    let service = fake.service();
    service.create_training_client_from_state(resume()).unwrap();
    assert_eq!(fake.bodies("load_weights")[0]["optimizer_config"], dimuon);
    assert_eq!(fake.bodies("create_model").len(), 0);
}

#[test]
#[allow(
    deprecated,
    reason = "servers that take a load at any time still have users"
)]
fn a_load_can_carry_a_token() {
    let fake = Fake::start();
    let training = fake.training();
    let load = Load::from_checkpoint(PATH).with_weights_access_token("tml-theirs");
    assert!(!format!("{load:?}").contains("tml-theirs"));
    training.load_state(load).unwrap().join().unwrap();
    training
        .load_state_with_optimizer(PATH)
        .unwrap()
        .join()
        .unwrap();
    let sent = fake.bodies("load_weights");
    assert_eq!(sent[0]["weights_access_token"], "tml-theirs");
    assert_eq!(
        (&sent[1]["weights_access_token"], &sent[1]["optimizer"]),
        (&Value::Null, &json!(true))
    );
}

#[test]
fn stability_information_is_asked_for_by_the_client_that_wants_it() {
    let fake = Fake::start();
    let plain = fake.sampler();
    let recording = plain.clone().with_stability_info();
    for sampler in [&plain, &recording] {
        sampler
            .sample(&prompt(), SamplingParams::max_tokens(2))
            .unwrap();
    }
    let asked: Vec<Value> = fake
        .bodies("asample")
        .iter()
        .map(|body| body["record_stability_info"].clone())
        .collect();
    assert_eq!(asked, [json!(false), json!(true)]);
}

#[test]
fn the_last_tokens_of_a_prompt_can_be_scored_alone() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let sampler = service
        .create_sampling_client(local::base_model(&service))
        .unwrap();
    let all = sampler.compute_logprobs(prompt()).unwrap();
    let last = sampler
        .compute_logprobs(LogprobsRequest::last(prompt(), 1))
        .unwrap();
    assert_eq!(
        last.iter().collect::<Vec<_>>(),
        [None, None, all.iter().last().unwrap()]
    );
    for count in [0, 3] {
        let refused = sampler.compute_logprobs(LogprobsRequest::last(prompt(), count));
        assert!(refused.unwrap_err().to_string().contains("from 1 to 2"));
    }
}

#[test]
fn a_sampler_that_is_there_is_joined_under_numbers_of_its_own() {
    let fake = Fake::start();
    let maker = fake.sampler();
    let joined = fake
        .service()
        .create_sampling_client(maker.sampling_session_id())
        .unwrap();
    assert_eq!(joined.sampling_session_id(), maker.sampling_session_id());
    for sampler in [&maker, &joined] {
        sampler
            .sample(&prompt(), SamplingParams::max_tokens(2))
            .unwrap();
    }
    assert_eq!(fake.bodies("create_sampling_session").len(), 1);
    let numbers: Vec<u64> = fake
        .bodies("asample")
        .iter()
        .map(|body| body["seq_id"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers[0], 0);
    assert!(numbers[1] >= 1_000_000_000, "{numbers:?}");
}

#[test]
fn a_checkpoint_can_be_deleted_by_its_run_and_id() {
    let fake = Fake::start();
    let path = route("training_runs/R1/checkpoints/weights/0001");
    fake.server
        .always("DELETE", &path, Reply::json(&json!(null)));
    let rest = fake.service().rest();
    rest.delete_checkpoint_by_id("R1", "weights/0001").unwrap();
    rest.delete_checkpoint("tinker://R1/weights/0001").unwrap();
    let requests = fake.server.requests_to(&path);
    let methods: Vec<_> = requests
        .iter()
        .map(|request| request.header("x-sdk-method").unwrap())
        .collect();
    assert_eq!(
        methods,
        ["delete_checkpoint", "delete_checkpoint_from_tinker_path"]
    );
    assert!(rest.delete_checkpoint_by_id("R1", "..").is_err());
}

#[test]
fn whether_the_service_can_be_used_is_asked_once() {
    let fake = Fake::start();
    let broke = Reply::json(&json!({"detail": "no billing"})).with_status(402);
    fake.server
        .always("GET", &route("get_server_capabilities"), broke);
    let error = fake.service().check_accessible().unwrap_err();
    assert_eq!(error.status(), Some(402));
    assert_eq!(
        fake.server
            .requests_to(&route("get_server_capabilities"))
            .len(),
        1
    );
    assert!(fake.clock.pauses().is_empty());
}

#[test]
fn a_loss_is_made_once_and_belongs_to_its_session() {
    let data = [Datum::supervised(&[104, 101], &[108, 108])];
    let run = |server_side: bool| {
        let server = LocalServer::builder()
            .flag("custom_loss_server_side", server_side)
            .record(true)
            .start()
            .unwrap();
        let service = local::service(&server);
        let loss = service
            .create_custom_loss(-(logprobs() * input("weights")).sum(), &data)
            .unwrap();
        assert_eq!(loss.loss_id().is_some(), server_side);
        assert_eq!(*loss.session_id(), service.session_id().unwrap());
        let training = local::train(&service);
        let custom = training
            .forward_backward_custom(&data, &loss)
            .unwrap()
            .join()
            .unwrap();
        let own = training
            .forward(&data, LossFn::CrossEntropy)
            .unwrap()
            .join()
            .unwrap();
        assert!((custom.loss().unwrap() - own.loss().unwrap()).abs() < 1e-4);

        let bare = [Datum::new(prompt()).with_target_tokens(vec![1, 2, 3])];
        let refused = training.forward_backward_custom(&bare, &loss).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("data[0].loss_fn_inputs.weights"),
            "{refused}"
        );
        let other = local::train(&local::service(&server));
        let refused = other.forward_backward_custom(&data, &loss).unwrap_err();
        assert!(
            refused.to_string().contains("was made in session"),
            "{refused}"
        );
        let uploads = server.requests();
        let uploads = uploads
            .iter()
            .filter(|one| one.endpoint() == "create_custom_loss");
        assert_eq!(uploads.count(), usize::from(server_side));
    };
    run(true);
    run(false);
}

#[test]
fn a_misspelt_loss_input_is_named_once() {
    logs::capture();
    let fake = Fake::start();
    let training = train(&fake.service());
    let datum = Datum::supervised(&[1], &[2]).with("wieghts", vec![1.0f32]);
    for _ in 0..2 {
        training
            .forward_backward(std::slice::from_ref(&datum), LossFn::CrossEntropy)
            .unwrap()
            .join()
            .unwrap();
    }
    let lines = logs::with("wieghts");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("cross_entropy, which reads target_tokens, weights"),
        "{lines:?}"
    );
}

#[test]
fn what_is_saved_in_a_folder_is_there_for_the_next_client() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("kept");
    let service = ServiceClient::local_in(&folder).unwrap();
    let saved = local::train(&service)
        .save_state("a")
        .unwrap()
        .join()
        .unwrap();
    service.close().unwrap();
    drop(service);
    let again = ServiceClient::local_in(&folder).unwrap();
    let resumed = again
        .create_training_client_from_state(&saved.path)
        .unwrap();
    assert!(resumed.info().is_ok());
}
