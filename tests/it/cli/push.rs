//! `tinker checkpoint push-hf` between the embedded server and a hub.

use std::fs;

use serde_json::json;
use tinker::local::LocalServer;

use super::Desk;
use crate::support::hub::HubServer;
use crate::support::local;

const TOKEN: &str = "hf_writer_secret";

struct Scene {
    server: LocalServer,
    hub: HubServer,
    desk: Desk,
    run: String,
}

impl Scene {
    fn new() -> Self {
        let server = LocalServer::builder().start().unwrap();
        let training = local::train(&local::service(&server));
        training.save_state("one").unwrap().join().unwrap();
        training.save_state("two").unwrap().join().unwrap();
        let saved = training.save_weights_for_sampler("one");
        saved.unwrap().join().unwrap();
        let hub = HubServer::start();
        hub.let_write(TOKEN, "me");
        let desk = Desk::at(&server.base_url())
            .with("HF_ENDPOINT", &hub.url())
            .with("HF_HUB_OFFLINE", "0")
            .with("HF_TOKEN", TOKEN);
        // Whatever is put aside on the way is put here.
        let aside = desk.path().join("aside");
        fs::create_dir(&aside).unwrap();
        let desk = desk.with("TMPDIR", aside.to_str().unwrap());
        Self {
            run: training.model_id().to_string(),
            server,
            hub,
            desk,
        }
    }

    fn path(&self, name: &str) -> String {
        format!("tinker://{}/weights/{name}", self.run)
    }
}

#[test]
fn a_checkpoint_is_pushed_with_its_card() {
    let scene = Scene::new();
    let path = scene.path("one");
    let said = scene.desk.run(&[
        "-f",
        "json",
        "checkpoint",
        "push-hf",
        &path,
        "-r",
        "me/lora",
    ]);
    assert!(!format!("{said:?}").contains(TOKEN));
    assert_eq!(
        said.json(),
        json!({"checkpoint_path": path, "repo_id": "me/lora", "public": false})
    );
    let repo = scene.hub.repo("me/lora").unwrap();
    assert!(repo.private);
    let (bytes, large) = repo.file("main", "adapter_model.safetensors").unwrap();
    assert!(large && !bytes.is_empty());
    let config = repo.file("main", "adapter_config.json").unwrap().0;
    let config: serde_json::Value = serde_json::from_slice(config).unwrap();
    assert!(config["base_model_name_or_path"].is_string(), "{config}");
    assert_eq!(repo.file("main", "checkpoint_complete"), None);
    let card = String::from_utf8(repo.file("main", "README.md").unwrap().0.to_vec()).unwrap();
    let base = config["base_model_name_or_path"].as_str().unwrap();
    for part in [
        format!(
            "base_model: {base}\nlibrary_name: peft\ntags:\n- tinker\n- peft\n- lora\n- base_model:adapter:{base}\n"
        ),
        format!("tinker_path: {path}\n---\n"),
        "- LoRA rank: 2\n".to_owned(),
    ] {
        assert!(card.contains(&part), "{card} lacks {part}");
    }
    let left = fs::read_dir(scene.desk.path().join("aside")).unwrap();
    assert_eq!(left.count(), 0, "nothing is left behind");

    // The same again changes nothing; another checkpoint does not overwrite it.
    let again = scene
        .desk
        .run(&["checkpoint", "push-hf", &path, "-r", "me/lora"]);
    assert!(again.stderr.contains("Nothing had changed"), "{again:?}");
    assert!(again.ok().contains("Checkpoint Hub Upload"));
    let other = scene.path("two");
    let said = scene
        .desk
        .run(&["checkpoint", "push-hf", &other, "-r", "me/lora"])
        .failed(1);
    assert!(
        said.contains(&format!("holds another checkpoint, {path}")),
        "{said}"
    );
    assert!(said.contains("--repo"), "{said}");
}

#[test]
fn names_branches_patterns_and_pull_requests_are_as_asked() {
    let scene = Scene::new();
    let path = scene.path("one");
    let push = |args: &[&str]| {
        let args = [&["-f", "json", "checkpoint", "push-hf", &path], args].concat();
        scene.desk.run(&args)
    };
    let derived = push(&["--public", "--commit-message", "from a test"]).json();
    let name = derived["repo_id"].as_str().unwrap();
    assert!(name.starts_with("me/tinker-"), "{derived}");
    assert_eq!(
        (&derived["revision"], &derived["public"]),
        (&json!("weights-one"), &json!(true))
    );
    let repo = scene.hub.repo(name).unwrap();
    assert!(!repo.private);
    assert_eq!(repo.messages, ["from a test"]);
    assert_eq!(repo.paths("main"), [".gitattributes"]);
    assert!(
        repo.file("weights-one", "adapter_model.safetensors")
            .is_some()
    );

    let pull = push(&["-r", "me/pr", "--create-pr"]).json();
    assert!(
        pull["pull_request"]
            .as_str()
            .unwrap()
            .contains("/me/pr/discussions/1"),
        "{pull}"
    );
    assert_eq!(
        scene.hub.repo("me/pr").unwrap().paths("main"),
        [".gitattributes"]
    );
    push(&[
        "-r",
        "me/some",
        "--allow-pattern",
        "*.json",
        "--allow-pattern",
        "*.md",
        "--ignore-pattern",
        "README*",
    ])
    .json();
    assert_eq!(
        scene.hub.repo("me/some").unwrap().paths("main"),
        [".gitattributes", "adapter_config.json"]
    );
    push(&["-r", "me/bare", "--no-model-card", "--revision", "main"]).json();
    assert_eq!(
        scene.hub.repo("me/bare").unwrap().file("main", "README.md"),
        None
    );
    let both = push(&["-r", "me/x", "--create-pr", "--revision", "b"]).failed(2);
    assert!(both.contains("contradict"), "{both}");
}

#[test]
fn pushing_without_a_token_or_the_wrong_weights_is_explained() {
    let scene = Scene::new();
    let path = scene.path("one");
    let nobody = Desk::at(&scene.server.base_url())
        .with("HF_ENDPOINT", &scene.hub.url())
        .with("HF_HUB_OFFLINE", "0");
    for desk in [&nobody, &nobody.again().with("HF_TOKEN", "hf_wrong_secret")] {
        let said = desk.run(&["checkpoint", "push-hf", &path]);
        assert!(!format!("{said:?}").contains("hf_wrong"), "{said:?}");
        let text = said.failed(1);
        assert!(
            text.contains("not logged in") && text.contains("hf auth login"),
            "{text}"
        );
    }
    let sampler = format!("tinker://{}/sampler_weights/one", scene.run);
    let text = scene
        .desk
        .run(&["checkpoint", "push-hf", &sampler])
        .failed(1);
    assert!(
        text.contains("sampler weights cannot be downloaded"),
        "{text}"
    );
    let text = scene
        .desk
        .run(&["checkpoint", "push-hf", &path, "-r", "other/name"])
        .failed(1);
    assert!(text.contains("may not write to other/name"), "{text}");
}
