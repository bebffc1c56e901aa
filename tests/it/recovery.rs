//! A server that is restarted, as a training program meets it.

use std::time::Duration;

use tinker::config::Config;
use tinker::error::Remedy;
use tinker::local::LocalServer;
use tinker::{AdamParams, Datum, Error, LoraConfig, LossFn, ServiceClient, TrainingClient};

fn port(server: &LocalServer) -> u16 {
    let url = server.base_url();
    url.rsplit_once(':').unwrap().1.parse().unwrap()
}

fn step(training: &TrainingClient) -> tinker::Result<()> {
    let data = [Datum::supervised(&[72, 101], &[108, 108])];
    training
        .train_step(&data, LossFn::CrossEntropy, AdamParams::default())?
        .join()
        .map(drop)
}

#[test]
fn a_run_goes_on_after_its_server_came_back_empty_handed() {
    let folder = tempfile::tempdir().unwrap();
    let builder = || {
        let builder = LocalServer::builder().data(folder.path());
        builder.save_every(Duration::ZERO)
    };
    let server = builder().start().unwrap();
    let port = port(&server);
    let config = Config::default()
        .with_base_url(server.base_url())
        .with_api_key("tml-local");
    let service = ServiceClient::new(config).unwrap();
    let model = "tinker-local/tiny";
    let training = service
        .create_lora_training_client(model, LoraConfig::rank(4))
        .unwrap();
    step(&training).unwrap();
    training.save_state("a").unwrap().join().unwrap();
    step(&training).unwrap();
    let old = service.session_id().unwrap();
    drop(server);
    let server = builder().port(port).start().unwrap();

    // Many at once: every one of them ends, and says what to do.
    let steps: Vec<_> = (0..50)
        .filter_map(|_| training.optim_step(AdamParams::default()).ok())
        .collect();
    assert!(!steps.is_empty());
    for step in steps {
        let error = step.join().unwrap_err();
        assert_eq!(error.remedy(), Remedy::RestoreFromCheckpoint, "{error}");
    }
    let error = training.optim_step(AdamParams::default()).unwrap_err();
    let broken = matches!(error, Error::Broken(_) | Error::Lost(_));
    assert!(broken, "{error}");

    let recovery = service.recover(training.model_id()).unwrap();
    assert_eq!(recovery.left_session, Some(old.clone()));
    assert_ne!(service.session_id().unwrap(), old);
    assert!(!recovery.lost.is_zero(), "a step followed the checkpoint");
    step(&recovery.training).unwrap();
    // The service client is as good as new.
    service.create_sampling_client(model).unwrap();
    // The old one stays as it was.
    assert!(training.optim_step(AdamParams::default()).is_err());
    drop((training, recovery, service, server));
}

/// Steps are under way when the server stops; the next one goes on with them.
#[test]
fn a_restart_in_the_middle_of_training_changes_nothing() {
    let data = [Datum::supervised(&[72, 101], &[108, 108])];
    let model = "tinker-local/tiny";
    let steps = |training: &TrainingClient, count: usize| -> Vec<_> {
        let step = |_| training.train_step(&data, LossFn::CrossEntropy, AdamParams::default());
        (0..count).map(|number| step(number).unwrap()).collect()
    };
    let expected: Vec<f64> = {
        let service = ServiceClient::local().unwrap();
        let lora = LoraConfig::rank(4).with_seed(7);
        let training = service.create_lora_training_client(model, lora).unwrap();
        let steps = steps(&training, 12);
        let losses = steps.into_iter().map(|step| step.join().unwrap().0.loss());
        losses.map(Option::unwrap).collect()
    };

    let folder = tempfile::tempdir().unwrap();
    let builder = || LocalServer::builder().data(folder.path());
    let server = builder().start().unwrap();
    let port = port(&server);
    let config = Config::default()
        .with_base_url(server.base_url())
        .with_api_key("tml-local");
    let service = ServiceClient::new(config).unwrap();
    let lora = LoraConfig::rank(4).with_seed(7);
    let training = service.create_lora_training_client(model, lora).unwrap();
    let mut under_way = steps(&training, 6);
    drop(server);
    under_way.extend(steps(&training, 2));
    let server = builder().port(port).start().unwrap();
    under_way.extend(steps(&training, 4));
    let losses = under_way
        .into_iter()
        .map(|step| step.join().unwrap().0.loss());
    assert_eq!(losses.map(Option::unwrap).collect::<Vec<f64>>(), expected);
    drop((training, service, server));
}

/// The server answers before it has read a body that is too large, and closes.
#[test]
fn a_body_that_is_too_large_is_refused_and_the_queue_goes_on() {
    let server = LocalServer::builder()
        .max_request_bytes(20_000)
        .start()
        .unwrap();
    let config = Config::default()
        .with_base_url(server.base_url())
        .with_api_key("tml-local");
    let service = ServiceClient::new(config).unwrap();
    let training = service
        .create_lora_training_client("tinker-local/tiny", LoraConfig::rank(4))
        .unwrap();
    step(&training).unwrap();
    let large = [Datum::supervised(&vec![72; 2_000_000], &[108])];
    let pass = training.forward_backward(&large, LossFn::CrossEntropy);
    let error = pass.unwrap().join().unwrap_err();
    assert_eq!(error.status(), Some(413), "{error}");
    assert_eq!(error.remedy(), Remedy::FixInput, "{error}");
    step(&training).unwrap();
}
