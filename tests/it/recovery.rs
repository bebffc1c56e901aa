//! A server that is killed and comes back empty-handed, as a training program meets it.

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
fn a_run_goes_on_after_its_server_was_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let builder = || LocalServer::builder().data(folder.path());
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
