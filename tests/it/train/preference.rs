//! A judge that is trained on comparisons, and what its word is worth.

use tinker::LoraConfig;
use tinker::local::LocalServer;
use tinker::text::data::{Answers, Comparison, Judgement, Preferred, RenderOptions};
use tinker::text::{Message, Renderer};
use tinker::train::rl::{PreferenceModel, matchups, tournament};
use tinker::train::{Batches, Existing, Model, Run, Supervised};

use crate::support::local;

/// `yes` is better than `no`, and stands first.
fn comparison(question: &str) -> Comparison {
    Comparison {
        comparison: Answers {
            prompt_conversation: vec![Message::user(question)],
            completion_a: vec![Message::assistant("yes")],
            completion_b: vec![Message::assistant("no")],
        },
        label: Preferred::A,
    }
}

#[track_caller]
fn check(judge: &PreferenceModel, renderer: &Renderer, row: &Comparison) {
    let expected = match row.label {
        Preferred::A => -1.0,
        _ => 1.0,
    };
    let prompt = row.preference_prompt(renderer).unwrap();
    assert_eq!(judge.compare(&prompt).unwrap(), expected, "{row:?}");
}

/// In every row of the data the better answer stands first; the judge finds it in either place,
/// of questions it has not seen, and its word is a reward.
#[test]
fn a_judge_finds_the_better_answer_wherever_it_stands() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let name = local::base_model(&service);
    let sampler = service.create_sampling_client(name.as_str()).unwrap();
    let renderer = sampler.renderer().unwrap();
    let words = include_str!("../../../examples/words.txt").split_whitespace();
    let rows: Vec<Comparison> = words.map(|word| comparison(&format!("{word}?"))).collect();
    let (train, held_out) = rows.split_at(32);
    let train: Vec<Judgement> = train.iter().cloned().map(Judgement).collect();
    let data = renderer.datums(train, RenderOptions::default()).unwrap();
    assert_eq!(data.len(), 64, "both orders");

    let folder = tempfile::tempdir().unwrap();
    let mut run = Run::open(folder.path().join("judge"), Existing::Raise).unwrap();
    // At first it learns to say one of the two words, and only after that which one.
    let report = Supervised::new(Model::new(name).with_lora(LoraConfig::rank(8).with_seed(3)))
        .with_learning_rate(4e-3)
        .with_epochs(9)
        .train(&service, &mut run, &Batches::new(data, 8).unwrap())
        .unwrap();
    let saved = report.checkpoint.unwrap().sampler_path.unwrap();
    let judge = service.create_sampling_client(saved.as_str()).unwrap();
    let judge = PreferenceModel::new(judge).unwrap();
    for row in &held_out[..8] {
        check(&judge, &renderer, row);
        check(&judge, &renderer, &row.swapped());
    }

    let grades = tournament(2, &matchups(2, 2, true), |first, _| {
        let row = match first {
            0 => held_out[0].clone(),
            _ => held_out[0].swapped(),
        };
        Ok(judge.compare(&row.preference_prompt(&renderer)?)?)
    });
    let rewards: Vec<f64> = grades.unwrap().iter().map(|grade| grade.reward).collect();
    assert_eq!(rewards, [1.0, -1.0]);
}
