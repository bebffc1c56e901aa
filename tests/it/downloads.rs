//! Downloads of checkpoints: taken up where they broke, renewed, checked, whole or not there.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tinker::client::{DownloadOptions, DownloadProgress};
use tinker::types::FinishReason;
use tinker::{Error, ServiceClient};

use crate::support::fake::Fake;
use crate::support::local;
use crate::support::scripted::{Gate, Recorded, Reply, Server};

const EXTERNAL: &str = "tinker://R1/external_weights/a";
const LINKS: &str = "training_runs/R1/checkpoints/external_weights/a/external_weights_urls";

/// Offers files at the scripted server, by links that work until `expires`.
fn offer(server: &Server, names: &[&str], expires: &str) {
    let url = server.url();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let expires = expires.to_owned();
    let signed = Mutex::new(0);
    server.on("GET", LINKS, move |_| {
        let mut signed = signed.lock().unwrap();
        *signed += 1;
        let link = |name: &String| (name.clone(), format!("{url}/dl/{name}?signed={signed}"));
        let urls: BTreeMap<String, String> = names.iter().map(link).collect();
        Reply::json(&json!({"urls": urls, "expires": expires}))
    });
}

const LATER: &str = "2099-01-01T00:00:00Z";

/// A server of one content that honours ranges, as object stores do.
fn store(content: &[u8], mark: &'static str) -> impl Fn(&Recorded) -> Reply + use<> {
    let content = content.to_vec();
    move |request| {
        let whole = Reply::bytes("application/octet-stream", content.clone());
        let whole = whole.with_header("etag", mark);
        let same = request.header("if-range").is_none_or(|given| given == mark);
        let from = request
            .header("range")
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'))
            .and_then(|from| from.parse::<usize>().ok());
        let length = content.len();
        match from {
            Some(from) if same && from < length => {
                Reply::bytes("application/octet-stream", &content[from..])
                    .with_status(206)
                    .with_header("etag", mark)
                    .with_header(
                        "content-range",
                        &format!("bytes {from}-{}/{length}", length - 1),
                    )
            }
            Some(_) if same => {
                Reply::status(416).with_header("content-range", &format!("bytes */{length}"))
            }
            _ => whole,
        }
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 % 251) as u8).collect()
}

fn ranges(server: &Server, file: &str) -> Vec<Option<String>> {
    let requests = server.requests_to(&format!("/dl/{file}"));
    let range = |request: &Recorded| request.header("range").map(str::to_owned);
    requests.iter().map(range).collect()
}

fn entries(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_rest_of_other_content_is_never_appended() {
    let fake = Fake::start();
    offer(&fake.server, &["a.bin"], LATER);
    let (old, new) = (content(50_000), vec![9u8; 60_000]);
    let cut = Reply::bytes("application/octet-stream", old)
        .with_header("etag", "\"old\"")
        .cut_before_end(10_000);
    fake.server.reply("GET", "/dl/a.bin", cut);
    fake.server.on("GET", "/dl/a.bin", store(&new, "\"new\""));
    let folder = tempfile::tempdir().unwrap();
    let rest = fake.service().rest();
    let files = rest
        .download_external_weights(EXTERNAL, folder.path())
        .unwrap();
    assert!(fs::read(&files[0]).unwrap() == new);
    let asked = fake.server.requests_to("/dl/a.bin");
    assert_eq!(asked[1].header("if-range"), Some("\"old\""));
    assert_eq!(asked[1].header("range"), Some("bytes=40000-"));
}

/// 200 to a range request, a break, then 206: the case that used to corrupt.
#[test]
fn a_whole_that_breaks_after_a_range_request_is_taken_up_right() {
    let fake = Fake::start();
    offer(&fake.server, &["a.bin"], LATER);
    let body = content(50_000);
    let whole = Reply::bytes("application/octet-stream", body.clone());
    fake.server
        .reply("GET", "/dl/a.bin", whole.clone().cut_before_end(20_000));
    fake.server
        .reply("GET", "/dl/a.bin", whole.cut_before_end(10_000));
    fake.server.on("GET", "/dl/a.bin", store(&body, "\"a\""));
    let folder = tempfile::tempdir().unwrap();
    let rest = fake.service().rest();
    let files = rest
        .download_external_weights(EXTERNAL, folder.path())
        .unwrap();
    assert!(fs::read(&files[0]).unwrap() == body);
    let asked = [None, Some("bytes=30000-"), Some("bytes=40000-")];
    assert_eq!(
        ranges(&fake.server, "a.bin"),
        asked.map(|text| text.map(str::to_owned))
    );
}

/// A server may send less than the rest that was asked for, and say only then how much there is.
#[test]
fn a_part_of_the_rest_is_not_the_whole() {
    const MOST: usize = 3_000;
    let fake = Fake::start();
    offer(&fake.server, &["a.bin"], LATER);
    let body = content(50_000);
    let cut = Reply::bytes("application/octet-stream", &body[..20_000])
        .with_header("etag", "\"a\"")
        .chunked(10_000)
        .cut_before_end(5);
    fake.server.reply("GET", "/dl/a.bin", cut);
    let whole = body.clone();
    fake.server.on("GET", "/dl/a.bin", move |request| {
        let range = request.header("range").unwrap_or_default();
        let from = range
            .trim_start_matches("bytes=")
            .trim_end_matches('-')
            .parse()
            .unwrap_or(0);
        let (to, length) = (whole.len().min(from + MOST), whole.len());
        Reply::bytes("application/octet-stream", &whole[from..to])
            .with_status(206)
            .with_header("etag", "\"a\"")
            .with_header(
                "content-range",
                &format!("bytes {from}-{}/{length}", to - 1),
            )
    });
    let folder = tempfile::tempdir().unwrap();
    let rest = fake.service().rest();
    let files = rest
        .download_external_weights(EXTERNAL, folder.path())
        .unwrap();
    assert!(fs::read(&files[0]).unwrap() == body);
    let asked = ranges(&fake.server, "a.bin");
    assert_eq!(asked.len(), 11);
    assert_eq!(asked[1].as_deref(), Some("bytes=20000-"));
}

#[test]
fn a_wrong_digest_leaves_no_file() {
    let fake = Fake::start();
    offer(&fake.server, &["a.bin"], LATER);
    let body = content(5_000);
    let sum = STANDARD.encode([1u8; 32]);
    let reply = Reply::bytes("application/octet-stream", body)
        .with_header("repr-digest", &format!("sha-256=:{sum}:"));
    fake.server.always("GET", "/dl/a.bin", reply);
    let home = tempfile::tempdir().unwrap();
    let rest = fake.service().rest();
    let folder = home.path().join("got");
    let options = DownloadOptions::default();
    let error = rest
        .download_checkpoint(EXTERNAL, &folder, options)
        .unwrap_err();
    assert!(error.to_string().contains("SHA-256"), "{error}");
    assert_eq!(entries(home.path()), Vec::<String>::new());
}

#[test]
fn links_are_renewed_before_they_run_out_and_when_refused() {
    let fake = Fake::start();
    // These run out at once, so each file gets its own.
    offer(&fake.server, &["a", "b"], "2020-01-01T00:00:00Z");
    for file in ["/dl/a", "/dl/b"] {
        fake.server
            .always("GET", file, Reply::bytes("text/plain", "x"));
    }
    let home = tempfile::tempdir().unwrap();
    let rest = fake.service().rest();
    let one = DownloadOptions::default().with_parallel(1);
    rest.download_checkpoint(EXTERNAL, home.path().join("1"), one.clone())
        .unwrap();
    assert_eq!(fake.server.requests_to(LINKS).len(), 3);
    let queries = |file| fake.server.requests_to(file).last().unwrap().query.clone();
    assert_eq!(
        (queries("/dl/a"), queries("/dl/b")),
        ("signed=2".into(), "signed=3".into())
    );

    offer(&fake.server, &["a"], LATER);
    fake.server.reply("GET", "/dl/a", Reply::status(403));
    rest.download_checkpoint(EXTERNAL, home.path().join("2"), one)
        .unwrap();
    assert_eq!(queries("/dl/a"), "signed=2");
}

#[test]
fn a_download_goes_on_in_another_process() {
    let fake = Fake::start();
    offer(&fake.server, &["deep/a.bin", "b.bin"], LATER);
    let (a, b) = (content(50_000), content(300));
    // Every attempt at the first file breaks, until the client gives up.
    let broken = Reply::bytes("application/octet-stream", a.clone())
        .with_header("etag", "\"a\"")
        .cut_before_end(20_000);
    fake.server.reply("GET", "/dl/deep/a.bin", broken);
    fake.server
        .always("GET", "/dl/deep/a.bin", Reply::status(400));
    fake.server.on("GET", "/dl/b.bin", store(&b, "\"b\""));
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("got");
    let download = || {
        let rest = fake.service().rest();
        rest.download_checkpoint(
            EXTERNAL,
            &folder,
            DownloadOptions::default().with_parallel(1),
        )
    };
    assert_eq!(download().unwrap_err().status(), Some(400));
    assert_eq!(entries(home.path()), [".got.partial"]);

    fake.server.on("GET", "/dl/deep/a.bin", store(&a, "\"a\""));
    let got = download().unwrap();
    assert_eq!(got.bytes, 50_300);
    assert_eq!(entries(home.path()), ["got"]);
    assert_eq!(entries(&folder), ["b.bin", "deep"]);
    assert_eq!(entries(&folder.join("deep")), ["a.bin"]);
    assert!(fs::read(folder.join("deep/a.bin")).unwrap() == a);
    let last = fake.server.requests_to("/dl/deep/a.bin").pop().unwrap();
    assert_eq!(last.header("range"), Some("bytes=30000-"));
    // What was whole was only asked about.
    let asked = ranges(&fake.server, "b.bin");
    assert_eq!(
        asked.last().unwrap().as_deref(),
        Some("bytes=300-"),
        "{asked:?}"
    );
}

#[test]
fn a_folder_is_replaced_only_by_force_and_only_by_a_whole_one() {
    let fake = Fake::start();
    offer(&fake.server, &["a"], LATER);
    fake.server.reply("GET", "/dl/a", Reply::status(400));
    fake.server
        .always("GET", "/dl/a", Reply::bytes("text/plain", "new"));
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("got");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a"), "old").unwrap();
    let rest = fake.service().rest();
    let download = |force| {
        let options = DownloadOptions::default().with_force(force);
        rest.download_checkpoint(EXTERNAL, &folder, options)
    };
    assert!(matches!(download(false), Err(Error::Invalid(_))));
    assert_eq!(download(true).unwrap_err().status(), Some(400));
    assert_eq!(fs::read(folder.join("a")).unwrap(), b"old");
    download(true).unwrap();
    assert_eq!(fs::read(folder.join("a")).unwrap(), b"new");
    assert_eq!(entries(home.path()), ["got"]);
}

#[test]
fn a_client_closed_meanwhile_leaves_whole_files_only() {
    let fake = Fake::start();
    offer(&fake.server, &["a", "b"], LATER);
    let gate = Gate::new();
    let reply = Reply::bytes("application/octet-stream", content(200_000));
    let half = reply.wire_len() / 2;
    fake.server
        .always("GET", "/dl/a", reply.stall_at(half, &gate));
    fake.server
        .always("GET", "/dl/b", Reply::bytes("text/plain", "whole"));
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("got");
    let service = fake.service();
    let (sender, begun) = crossbeam_channel::unbounded();
    let options = DownloadOptions::default()
        .on_progress(move |progress: DownloadProgress| sender.send(progress).unwrap());
    let outcome = std::thread::scope(|scope| {
        let rest = service.rest();
        let folder = &folder;
        let download = scope.spawn(move || rest.download_checkpoint(EXTERNAL, folder, options));
        // The second file is whole, the first half there.
        while begun.recv().unwrap().files < 1 {}
        gate.wait_for(1);
        service.close_as(FinishReason::Interrupted, None).unwrap();
        download.join().unwrap()
    });
    gate.open();
    assert!(matches!(outcome, Err(Error::Closed(_))), "{outcome:?}");
    assert_eq!(entries(home.path()), [".got.partial"]);
    assert_eq!(
        entries(&home.path().join(".got.partial")),
        [".b.part-of", ".of-checkpoint", "b"]
    );
}

#[test]
fn a_hook_that_panics_costs_nothing_but_itself() {
    let fake = Fake::start();
    offer(&fake.server, &["a", "b", "c"], LATER);
    for name in ["a", "b", "c"] {
        let reply = Reply::bytes("text/plain", "xyz");
        fake.server.always("GET", &format!("/dl/{name}"), reply);
    }
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("got");
    let options = DownloadOptions::default().on_progress(|_| panic!("on purpose"));
    let rest = fake.service().rest();
    let got = rest.download_checkpoint(EXTERNAL, &folder, options);
    assert_eq!(got.unwrap().bytes, 9);
    assert_eq!(entries(&folder), ["a", "b", "c"]);
}

#[test]
fn several_files_are_fetched_at_once() {
    let fake = Fake::start();
    let names = ["a", "b", "c"];
    offer(&fake.server, &names, LATER);
    let gate = Gate::new();
    for name in names {
        let reply = Reply::bytes("text/plain", "xyz").after(&gate);
        fake.server.always("GET", &format!("/dl/{name}"), reply);
    }
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("got");
    let last = Arc::new(Mutex::new(DownloadProgress::default()));
    let seen = last.clone();
    let options = DownloadOptions::default()
        .with_parallel(3)
        .on_progress(move |progress| {
            let mut last = seen.lock().unwrap();
            if progress.files >= last.files {
                *last = progress;
            }
        });
    std::thread::scope(|scope| {
        let rest = fake.service().rest();
        let folder = &folder;
        let download = scope.spawn(move || rest.download_checkpoint(EXTERNAL, folder, options));
        gate.wait_for(3);
        gate.open();
        assert_eq!(download.join().unwrap().unwrap().bytes, 9);
    });
    let last = *last.lock().unwrap();
    assert_eq!(
        (last.files, last.all_files, last.bytes, last.all_bytes),
        (3, 3, 9, 9)
    );
}

#[test]
fn a_training_checkpoint_is_exported_fetched_and_the_export_deleted() {
    let server = tinker::local::LocalServer::builder().start().unwrap();
    let service: ServiceClient = local::service(&server);
    let training = local::train(&service);
    let saved = training.save_state("final").unwrap();
    let path = saved.join().unwrap().path;
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("adapter");
    let rest = service.rest();
    let got = rest
        .download_checkpoint(&path, &folder, DownloadOptions::default())
        .unwrap();
    assert_eq!(
        entries(&folder),
        ["adapter_config.json", "adapter_model.safetensors"]
    );
    assert_eq!(got.files.len(), 2);
    let kinds: Vec<String> = rest
        .user_checkpoints(tinker::client::ListOptions::default())
        .map(|one| one.unwrap().checkpoint_type.to_string())
        .collect();
    assert_eq!(kinds, ["training"], "the export is gone");
    let sampler = path.replace("/weights/", "/sampler_weights/");
    let refused = rest.download_checkpoint(&sampler, home.path().join("x"), Default::default());
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("cannot be downloaded")
    );
}

/// Serves a file that breaks off, and then nothing of it.
fn break_off(server: &Server, body: Vec<u8>) {
    let cut = Reply::bytes("application/octet-stream", body).cut_before_end(20_000);
    server.reply("GET", "/dl/a.bin", cut);
    server.reply("GET", "/dl/a.bin", Reply::status(400));
}

/// Adapters of one rank have files of one length, and not every store marks its contents.
#[test]
fn what_another_checkpoint_left_is_not_taken_up() {
    let fake = Fake::start();
    offer(&fake.server, &["a.bin", "only-in-a"], LATER);
    let (a, b) = (vec![1u8; 50_000], vec![2u8; 50_000]);
    break_off(&fake.server, a);
    fake.server
        .always("GET", "/dl/only-in-a", Reply::bytes("text/plain", "a"));
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("got");
    let download = |path: &str| {
        let rest = fake.service().rest();
        rest.download_checkpoint(path, &folder, DownloadOptions::default())
    };
    assert_eq!(download(EXTERNAL).unwrap_err().status(), Some(400));

    fake.server.on("GET", "/dl/a.bin", store(&b, "\"b\""));
    let urls = json!({"a.bin": format!("{}/dl/a.bin", fake.server.url())});
    fake.server.always(
        "GET",
        &LINKS.replace("external_weights/a/", "external_weights/b/"),
        Reply::json(&json!({"urls": urls, "expires": LATER})),
    );
    let got = download("tinker://R1/external_weights/b").unwrap();
    assert!(fs::read(folder.join("a.bin")).unwrap() == b);
    assert_eq!(
        (got.bytes, entries(&folder)),
        (50_000, vec!["a.bin".into()])
    );
}

/// The same checkpoint is the same content even where the store does not mark it; what else lies
/// in the stage, as from a server that renamed its files, is not part of it.
#[test]
fn only_what_the_checkpoint_lists_is_published() {
    let fake = Fake::start();
    offer(&fake.server, &["a.bin", "old/b"], LATER);
    let body = content(50_000);
    break_off(&fake.server, body.clone());
    fake.server
        .always("GET", "/dl/old/b", Reply::bytes("text/plain", "b"));
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("got");
    let download = || {
        let rest = fake.service().rest();
        rest.download_checkpoint(EXTERNAL, &folder, DownloadOptions::default())
    };
    assert_eq!(download().unwrap_err().status(), Some(400));
    fs::create_dir_all(home.path().join(".got.partial/old")).unwrap();
    fs::write(home.path().join(".got.partial/old/stray"), "x").unwrap();

    fake.server.on("GET", "/dl/a.bin", store(&body, "\"a\""));
    offer(&fake.server, &["a.bin"], LATER);
    download().unwrap();
    assert_eq!(entries(&folder), ["a.bin"]);
    assert!(fs::read(folder.join("a.bin")).unwrap() == body);
    let asked = ranges(&fake.server, "a.bin");
    assert_eq!(asked.last().unwrap().as_deref(), Some("bytes=30000-"));
}
