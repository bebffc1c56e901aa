//! The clients on the embedded server: the paved path, end to end.

use tinker::{AdamParams, Datum, LoraConfig, LossFn, ModelInput, SamplingParams, ServiceClient};

use crate::support::local::base_model;

fn datum() -> Datum {
    Datum::new(ModelInput::from_ints(b"hello worl".map(i32::from).to_vec()))
        .with_target_tokens(b"ello world".map(i64::from).to_vec())
        .with_weights(vec![1.0f32; 10])
}

#[test]
fn trains_saves_resumes_and_samples() {
    let service = ServiceClient::local().unwrap();
    let model = base_model(&service);
    let training = service
        .create_lora_training_client(&model, LoraConfig::rank(4).with_seed(7))
        .unwrap();
    let adam = AdamParams::learning_rate(1e-2);
    let step = |training: &tinker::TrainingClient| {
        let step = training.train_step(&[datum()], LossFn::CrossEntropy, adam);
        step.unwrap().join().unwrap().0.loss().unwrap()
    };
    let losses: Vec<f64> = (0..5).map(|_| step(&training)).collect();
    assert!(losses[4] < losses[0], "{losses:?}");

    let saved = training.save_state("half").unwrap();
    let path = saved.join().unwrap().path;
    let straight: Vec<f64> = (0..3).map(|_| step(&training)).collect();
    let resumed = service
        .create_training_client_from_state_with_optimizer(&path)
        .unwrap();
    let again: Vec<f64> = (0..3).map(|_| step(&resumed)).collect();
    assert_eq!(straight, again);

    let sampler = training.save_weights_and_get_sampling_client().unwrap();
    let prompt = ModelInput::from_ints(vec![104, 101]);
    let params = SamplingParams::max_tokens(6)
        .with_seed(1)
        .with_temperature(0.5);
    let answer = sampler.sample(&prompt, &params).unwrap();
    assert!(!answer.sequences[0].tokens.is_empty());
    assert_eq!(sampler.compute_logprobs(&prompt).unwrap().len(), 2);
    assert_eq!(sampler.base_model().unwrap(), model);
}
