//! What goes wrong is said in one line, with what to do next, and ends with the right code.

use tinker::local::LocalServer;

use super::Desk;
use crate::support::scripted::{Reply, Server};

/// Runs a command that must fail with this code and say both of these in two lines.
#[track_caller]
fn check(desk: &Desk, args: &[&str], exit: i32, problem: &str, advice: &str) {
    let said = desk.run(args);
    assert_eq!(said.stdout, "", "{said:?}");
    let text = said.failed(exit);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() <= 2, "{text}");
    assert!(
        lines[0].starts_with("Error: ") && lines[0].contains(problem),
        "{text}"
    );
    assert!(lines[1].contains(advice), "{text}");
}

#[test]
fn what_the_server_refuses_is_explained() {
    let server = LocalServer::builder().api_key("tml-right").start().unwrap();
    let right = Desk::at(&server.base_url()).with("TINKER_API_KEY", "tml-right");
    check(
        &right,
        &["run", "info", "nope"],
        1,
        "404",
        "tinker run list",
    );
    check(
        &right,
        &["-f", "json", "session", "export-trace", "nope"],
        1,
        "404",
        "before ':train'",
    );
    let wrong = Desk::at(&server.base_url()).with("TINKER_API_KEY", "tml-wrong");
    check(&wrong, &["run", "list"], 1, "401", "check TINKER_API_KEY");
    let none = Desk::bare().with("TINKER_BASE_URL", &server.base_url());
    check(
        &none,
        &["run", "list"],
        1,
        "credentials",
        "tinker auth login",
    );
}

#[test]
fn a_host_that_does_not_answer_is_named() {
    // Bound and closed again: nobody listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap();
    drop(port);
    let desk = Desk::at(&format!("http://{address}"));
    check(
        &desk,
        &["run", "list"],
        1,
        "no usable answer",
        "TINKER_BASE_URL",
    );
}

#[test]
fn a_server_that_answers_with_a_page_is_told_from_tinker() {
    let server = Server::start();
    let page = format!("<html>\n<body>{}</body>\n</html>", "welcome ".repeat(2_000));
    server.otherwise(move |_| Reply::bytes("text/html", page.clone()));
    let desk = Desk::at(&server.url());
    check(&desk, &["run", "list"], 1, "", "a Tinker server");
    let lost = "<html>\n<head><title>404 Not\nFound</title></head>\n<body>nginx</body>\n</html>";
    server.otherwise(move |_| Reply::bytes("text/html", lost).with_status(404));
    let problem = "a web page, \"404 Not Found\" (status 404";
    check(&desk, &["run", "list"], 1, problem, "a Tinker server");
    let doctor = desk.run(&["doctor"]);
    assert!(
        doctor.stdout.contains("a web page, \"404 Not Found\""),
        "{doctor:?}"
    );
    server.otherwise(|_| Reply::bytes("text/html", "<h1>\u{1b}[2Jnot here</h1>").with_status(404));
    let said = desk.run(&["run", "list"]).failed(1);
    assert!(
        !said.contains('\u{1b}'),
        "a server's text is no command to the terminal: {said:?}"
    );
}

/// What is no setting of the client is nothing that the doctor looks at.
#[test]
fn what_a_server_cannot_use_is_explained() {
    let desk = Desk::bare();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let port = port.as_str();
    std::fs::create_dir(desk.path().join("other")).unwrap();
    std::fs::write(desk.path().join("other/config.json"), "{}").unwrap();
    for (args, problem, advice) in [
        (&["serve", "--port", port][..], "already in use", "--port"),
        (&["console", "--port", port], "already in use", "--port"),
        (
            &["serve", "--port", "0", "--host", "0.0.0.0"],
            "demands an API key",
            "--key-file",
        ),
        (
            &["serve", "--port", "0", "--model", "other"],
            "other/config.json",
            "",
        ),
        (
            &["serve", "--port", "0", "--adapter", "other"],
            "there is no adapter_config.json",
            "",
        ),
        (
            &["serve", "--port", "0", "--data", "other"],
            "is not a data folder",
            "",
        ),
        (
            &["runs", "show", "nosuch"],
            "nosuch holds no run",
            "tinker runs ls",
        ),
        (
            &["runs", "ls", "nosuch"],
            "there is no folder nosuch",
            "tinker runs ls",
        ),
        (&["tokenize", "./nosuch", "x"], "there is no ./nosuch", ""),
    ] {
        let said = desk.run(args).failed(1);
        let mut lines = said.lines().skip_while(|line| line.starts_with("WARN: "));
        let first = lines.next().unwrap_or_default();
        assert!(
            first.starts_with("Error: ") && first.contains(problem),
            "{said}"
        );
        let second = lines.next().unwrap_or_default();
        assert!(
            second.contains(advice) && !said.contains("doctor"),
            "{said}"
        );
        assert_eq!(lines.next(), None, "{said}");
    }
}

/// Names of files are bytes, and not every one of them is text.
#[cfg(target_os = "linux")]
#[test]
fn words_that_are_no_text_are_words() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let server = LocalServer::builder().start().unwrap();
    let desk = Desk::at(&server.base_url());
    let file = OsStr::from_bytes(b"caf\xe9.jsonl");
    let chats = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/chats.jsonl");
    std::fs::copy(chats, desk.path().join(file)).unwrap();
    let word = |text: &'static str| OsStr::new(text);
    let wrong = desk.run(&[word("data"), word("check"), word("--nosuch"), file]);
    assert!(wrong.failed(2).contains("Usage: tinker data check"));
    let train = ["train", "sft", "--max-steps", "1", "-o", "run", "-m"].map(OsStr::new);
    let model = [
        "tinker-local/tiny",
        "--renderer",
        "role_colon",
        "--learning-rate",
        "1e-3",
    ]
    .map(OsStr::new);
    desk.run(&[&train[..], &model[..], &[file]].concat()).ok();
    let log = std::fs::read_to_string(desk.path().join("run/logs.log")).unwrap();
    assert!(log.contains("caf\u{fffd}.jsonl"), "{log}");
}

#[test]
fn wrong_words_are_usage_errors() {
    let desk = Desk::bare();
    for (args, command, problem) in [
        (
            &["nosuch"][..],
            "tinker",
            "unrecognized subcommand 'nosuch'",
        ),
        (
            &["run", "list", "--limit", "many"],
            "tinker run list",
            "invalid value 'many'",
        ),
        (
            &["run", "list", "--limit", "-5"],
            "tinker run list",
            "invalid value '-5' for '--limit",
        ),
        (
            &["checkpoint", "info"],
            "tinker checkpoint info",
            "<CHECKPOINT_PATH>",
        ),
        (
            &["checkpoint", "push-hf"],
            "tinker checkpoint push-hf",
            "<CHECKPOINT_PATH>",
        ),
        (
            &["checkpoint", "set-ttl", "--ttl", "1h"],
            "tinker checkpoint set-ttl",
            "invalid value '1h'",
        ),
        (
            &["-f", "yaml", "version"],
            "tinker version",
            "possible values: table, json",
        ),
        (&["tokenize", "-m"], "tinker tokenize", "'-m' found; tip: "),
        (
            &["serve", "--log", "loud"],
            "tinker serve",
            "[possible values: off, error, warn, info, debug, trace]",
        ),
    ] {
        let text = desk.run(args).failed(2);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(
            lines[0].starts_with(&format!("Usage: {command} ")),
            "{text}"
        );
        let help = format!("Try '{command} --help' for help.");
        assert_eq!(lines[1], help, "{text}");
        assert!(
            lines[3].starts_with("Error: ") && lines[3].contains(problem),
            "{text}"
        );
        assert!(!lines[3].contains("For more information"), "{text}");
    }
    let said = desk.run(&["run", "list", "--columns", "id,zzz"]).failed(2);
    assert!(
        said.contains("unknown column zzz; there are id, model"),
        "{said}"
    );
}

/// Runs the command as the arguments of a shell's script; `None` if what it needs is not installed.
#[allow(clippy::print_stderr, reason = "says why a test was skipped")]
#[cfg(target_os = "linux")]
fn wrapped(desk: &Desk, script: &str, args: &[&str]) -> Option<super::Said> {
    let output = desk.shell(script, args).output().expect("there is a shell");
    if output.status.code() == Some(127) {
        eprintln!(
            "skipped: {script}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        return None;
    }
    Some(output.into())
}

#[test]
#[cfg(target_os = "linux")]
#[allow(clippy::print_stderr, reason = "says why a part was skipped")]
fn files_that_cannot_be_written_are_named() {
    use std::{fs, os::unix::fs::PermissionsExt};

    use serde_json::json;

    let server = Server::start();
    let url = server.url();
    server.always("POST", "client/config", Reply::json(&json!({})));
    let links =
        json!({"urls": {"a.bin": format!("{url}/dl/a")}, "expires": "2099-01-01T00:00:00Z"});
    let route = "training_runs/R/checkpoints/external_weights/a/external_weights_urls";
    server.always("GET", route, Reply::json(&links));
    server.always(
        "GET",
        "/dl/a",
        Reply::bytes("application/octet-stream", vec![0; 100_000]),
    );
    let desk = Desk::at(&url);
    let locked = desk.path().join("locked");
    fs::create_dir(&locked).unwrap();
    let path = "tinker://R/external_weights/a";
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o500)).unwrap();
    let args = ["checkpoint", "download", path, "-o", "locked"];
    // The superuser may write anywhere, until that right is taken away.
    let root = fs::write(locked.join("probe"), "").is_ok();
    let said = match root {
        false => Some(desk.run(&args)),
        true => wrapped(&desk, "exec setpriv --bounding-set=-all \"$@\"", &args),
    };
    if let Some(said) = said {
        let text = said.failed(1);
        assert!(
            text.contains("locked") && text.contains("ermission denied"),
            "{text}"
        );
    }
    let _ = fs::remove_file(locked.join("probe"));
    // No file may have more than 32 KiB: the limit is met in the middle of the download.
    let said = wrapped(
        &desk,
        "trap '' XFSZ; ulimit -f 64; exec \"$@\"",
        &[&args[..4], &["small"]].concat(),
    );
    let text = said.unwrap().failed(1);
    assert!(
        text.contains("a.bin") && text.contains("too large"),
        "{text}"
    );
    // A file system of 64 KiB, where one may be made.
    fs::create_dir(desk.path().join("full")).unwrap();
    let mount = "mount -t tmpfs -o size=64k none full 2>/dev/null || exit 77; exec \"$@\"";
    let mount = format!("exec unshare -rm sh -c '{mount}' sh \"$@\"");
    let said = wrapped(&desk, &mount, &[&args[..4], &["full"]].concat());
    match said.filter(|said| said.stderr.contains("Error: ")) {
        Some(said) => {
            let text = said.failed(1);
            assert!(
                text.contains("a.bin") && text.contains("No space left"),
                "{text}"
            );
        }
        None => eprintln!("skipped: no small file system can be mounted here"),
    }
    // What is there so far is hidden, and the next attempt goes on with it.
    let names = || {
        let left = fs::read_dir(desk.path().join("small")).unwrap();
        let names = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    assert!(
        names().iter().all(|name| name.starts_with('.')),
        "{:?}",
        names()
    );
    desk.run(&[&args[..4], &["small"]].concat()).ok();
    assert_eq!(names(), ["R_external_weights_a"]);
    let whole = desk.path().join("small/R_external_weights_a/a.bin");
    assert_eq!(fs::metadata(whole).unwrap().len(), 100_000);
    // A full disk, as far as this process is concerned.
    for command in ["version", "--version", "--help"] {
        let mut full = fs::OpenOptions::new();
        let out = full.write(true).open("/dev/full").unwrap();
        let status = desk.command(&[command]).stdout(out).output().unwrap();
        let text = String::from_utf8(status.stderr).unwrap();
        assert_eq!(status.status.code(), Some(1), "{text}");
        assert!(
            text.contains("cannot write the output") && text.contains("No space left"),
            "{text}"
        );
    }
    let hostile =
        json!({"urls": {"../evil": format!("{url}/dl/a")}, "expires": "2099-01-01T00:00:00Z"});
    server.always("GET", route, Reply::json(&hostile));
    let text = desk.run(&["checkpoint", "download", path]).failed(1);
    assert!(text.contains("\"../evil\""), "{text}");
}
