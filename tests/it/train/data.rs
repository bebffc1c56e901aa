//! Conversations from files, and files from a teacher.

use tinker::local::LocalServer;
use tinker::train::{Conversations, distill_prompt};
use tinker::{Datum, ModelInput};

use crate::support::local;

#[test]
fn what_a_teacher_says_becomes_conversations() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let name = local::base_model(&service);
    let teacher = service.create_sampling_client(name.as_str()).unwrap();
    let tokenizer = teacher.tokenizer().unwrap();
    let item = |text: &str| {
        let prompt = tokenizer
            .encode(&format!("English: {text}\nPig Latin:"))
            .unwrap();
        (text.to_owned(), ModelInput::from_ints(prompt))
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("taught.jsonl");
    let words = ["hello", "steam", "over"];
    let calls = std::cell::Cell::new(0);
    let all_but_one = |_said: &str| {
        calls.set(calls.get() + 1);
        (calls.get() != 2).then(|| "answer".to_owned())
    };
    let items = words.map(item).to_vec();
    let written = distill_prompt(&teacher, &tokenizer, items, all_but_one, &file).unwrap();
    assert_eq!(written, 2);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("hello") && text.contains("over") && !text.contains("steam"),
        "{text}"
    );
    let data = Conversations::read(&file)
        .unwrap()
        .datums(&teacher.renderer().unwrap(), None)
        .unwrap();
    assert_eq!(data.len(), 2);
    // Each example weighs one, and what is trained on is the answer and its end.
    let trained = |datum: &Datum| {
        let weights = datum.input("weights").unwrap().as_f32().unwrap().to_vec();
        let targets = datum
            .input("target_tokens")
            .unwrap()
            .as_i64()
            .unwrap()
            .to_vec();
        assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        let both = targets
            .iter()
            .zip(&weights)
            .filter(|(_, weight)| **weight > 0.0);
        let tokens: Vec<i32> = both.map(|(token, _)| *token as i32).collect();
        tokenizer.decode(&tokens).unwrap()
    };
    assert_eq!(trained(&data[0]), "answer<|im_end|>");
}

#[test]
fn a_bad_line_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chats.jsonl");
    let good = r#"{"messages": [{"role": "user", "content": "hi"}]}"#;
    std::fs::write(&file, format!("{good}\n\n{{\"text\": \"no\"}}\n")).unwrap();
    let error = Conversations::read(&file).unwrap_err().to_string();
    assert!(error.contains("chats.jsonl:3"), "{error}");
    assert!(Conversations::read(folder.path().join("none")).is_err());
}

#[test]
fn the_test_split_is_that_of_the_cookbook() {
    let message = |n: usize| vec![tinker::text::Message::user(&n.to_string())];
    let all = Conversations::from((0..10).map(message).collect::<Vec<_>>());
    let (train, test) = all.clone().split(10);
    assert_eq!((train.len(), test.len()), (10, 0), "some must be left");
    let (train, test) = all.split(3);
    assert_eq!((train.len(), test.len()), (7, 3));
    assert!(
        format!("{test:?}").contains('4'),
        "numpy's order of ten begins with 4, 6, 2"
    );
}
