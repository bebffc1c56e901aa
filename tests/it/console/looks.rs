//! The console in a real browser: what people see, by mouse, keyboard and phone.

use std::fs;
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use serde_json::{Value, json};
use tinker::local::{LocalServer, ModelSource};
use tinker::train::{Batches, Conversations, Existing, Logger, Row, Run, RunFolder, Supervised};
use tinker::{ServiceClient, config::Config};

use super::browser::Browser;
use super::get;

const MODEL: &str = "tinker-local/tiny";
const ENTER: &str = "\u{E007}";
const CHATS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/chats.jsonl");

/// Halts training after each step until it is let go.
struct Gate {
    reached: Sender<usize>,
    go_on: Receiver<()>,
}

impl Logger for Gate {
    fn metrics(&mut self, step: usize, _: &Row) {
        // The other end may be gone: then there is nobody to wait for.
        let _ = self.reached.send(step);
        let _ = self.go_on.recv();
    }
}

fn train(url: &str, folder: &std::path::Path, gate: Gate) {
    let config = Config::default()
        .with_base_url(url)
        .with_api_key("tml-test")
        .with_telemetry(false);
    let service = ServiceClient::new(config).unwrap();
    let renderer = service
        .create_sampling_client(MODEL)
        .unwrap()
        .renderer()
        .unwrap();
    let data = Conversations::read(CHATS)
        .unwrap()
        .datums(&renderer, None)
        .unwrap();
    let mut run = Run::open(folder, Existing::Raise)
        .unwrap()
        .with_logger(gate);
    let report = Supervised::new(MODEL)
        .with_learning_rate(4e-3)
        .with_max_steps(5)
        .train(&service, &mut run, &Batches::new(data, 8).unwrap())
        .unwrap();
    report.close(&service).unwrap();
}

#[test]
fn a_run_is_drawn_while_it_trains_and_its_checkpoint_talks() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let root = tempfile::tempdir().unwrap();
    let server = LocalServer::builder().runs(root.path()).start().unwrap();
    let url = server.base_url();
    browser.go(&url);
    browser.wait("document.querySelector('.empty h2').textContent === 'No runs yet'");
    browser.wait("document.querySelector('#live').textContent === 'live'");

    let (reached, steps) = bounded(1);
    let (release, go_on) = bounded(16);
    let training = thread::spawn({
        let (url, folder) = (url.clone(), root.path().join("chats"));
        move || train(&url, &folder, Gate { reached, go_on })
    });
    let next = || {
        steps.recv().unwrap();
        release.send(()).unwrap();
    };
    next();
    steps.recv().unwrap();
    // Two steps are written and training waits: the table shows a run under way.
    browser.wait("document.querySelector('td.name a')?.textContent === 'chats'");
    browser.wait("document.querySelector('.badge.running')");
    browser.shoot("runs");

    // By keyboard alone: to the row, into the run.
    browser.keys("j");
    browser.wait("document.activeElement.textContent === 'chats'");
    browser.keys(ENTER);
    let points = "document.querySelector('.chart path.curve')?.getAttribute('d').split('L').length";
    browser.wait(&format!("{points} === 2"));
    assert_eq!(
        browser.value("document.querySelector('h1').textContent"),
        "chats"
    );
    // The curve grows with the run, on the same page.
    browser.value("window.kept = document.querySelector('.chart')");
    release.send(()).unwrap();
    steps.recv().unwrap();
    browser.wait(&format!("{points} === 3"));
    assert_eq!(
        browser.value("window.kept === document.querySelector('.chart')"),
        true
    );
    for _ in 0..3 {
        release.send(()).unwrap();
    }
    while steps.recv().is_ok() {}
    training.join().unwrap();
    browser.wait("document.querySelector('.badge.completed')");
    pointing_at_curves(&browser);
    parts_of_a_run(&browser);
    managing_checkpoints(&browser, &url);
    talking(&browser);
    other_views(&browser);
    browser.assert_quiet("");
    hurrying(&browser);
    on_a_phone_and_in_the_dark(&browser);
    browser.assert_quiet("");
}

fn pointing_at_curves(browser: &Browser) {
    browser.value("document.querySelector('.chart .plot').focus()");
    browser.keys("\u{E014}\u{E014}");
    browser.wait("document.querySelector('.readout').textContent.startsWith('step 1')");
    let range = "document.querySelector('.chart svg').getAttribute('data-x')";
    let all = browser.value(range);
    let shows_all = format!("{range} === {all} && document.querySelector('.chart button').hidden");
    browser.keys("+");
    browser.wait("document.querySelector('.chart button').hidden === false");
    browser.keys("\u{E00C}");
    browser.wait(&shows_all);
    // By mouse: what is drawn across is looked at closely.
    browser.drag(".chart .plot", 0.3, 0.7);
    browser.wait(&format!(
        "{range} !== {all} && !document.querySelector('.chart button').hidden"
    ));
    let part: Vec<f64> = numbers(&browser.value(range));
    let whole: Vec<f64> = numbers(&all);
    assert!(
        part[0] > whole[0] && part[1] < whole[1],
        "{part:?} of {whole:?}"
    );
    browser.click(".chart button");
    browser.wait(&shows_all);
    browser.click("label.line input[type=checkbox]");
    browser.wait("document.querySelector('.tinker-plot[data-log]')");
    browser.shoot("run");
}

fn numbers(text: &Value) -> Vec<f64> {
    let parts = text.as_str().unwrap().split(' ');
    parts.map(|part| part.parse().unwrap()).collect()
}

/// The buttons beside each checkpoint.
fn managing_checkpoints(browser: &Browser, url: &str) {
    let button = |name: &str| {
        format!(
            "[...document.querySelectorAll('tr button')].find((one) => one.textContent === '{name}')"
        )
    };
    let press = |name: &str| {
        browser.wait(&button(name));
        browser.value(&format!("{}.click()", button(name)));
    };
    browser.value("document.activeElement.blur()");
    browser.keys("2");
    browser.wait("document.querySelectorAll('td input[type=checkbox]').length === 2");

    // The path goes to the clipboard, or is shown where a page may not write there.
    let path = "document.querySelector('tbody tr').dataset.key";
    browser.value("navigator.clipboard.writeText = async (text) => { window.copied = text; }");
    press("Copy path");
    browser.wait(&format!("window.copied === {path}"));
    browser.wait("document.querySelector('#toast').textContent === 'Copied'");
    browser.value("navigator.clipboard.writeText = () => Promise.reject(new Error('not here'))");
    press("Copy path");
    browser.wait(&format!(
        "document.querySelector('dialog[open] input').value === {path}"
    ));
    browser.keys(ENTER);
    browser.wait("!document.querySelector('dialog[open]')");

    // That a question was closed is told with the next picture; another may be open by then.
    press("Copy path");
    browser.wait("document.querySelector('dialog[open] input')");
    browser.value(&format!(
        "(() => {{ document.querySelector('dialog').close(); {}.click(); }})()",
        button("Lifetime")
    ));
    browser
        .value("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))");
    browser.value("document.querySelector('dialog[open] select').value = '604800'");
    browser.click("dialog[open] button.main");
    browser.wait("document.querySelectorAll('tbody tr')[0].cells[4].textContent === 'in 7 d'");

    // A lifetime is set, and taken back.
    let expires = "document.querySelectorAll('tbody tr')[0].cells[4].textContent";
    for (seconds, met) in [("3600", "=== 'in 60 min'"), ("", "=== 'never'")] {
        press("Lifetime");
        browser.wait("document.querySelector('dialog[open] select')");
        browser.value(&format!(
            "document.querySelector('dialog[open] select').value = '{seconds}'"
        ));
        browser.click("dialog[open] button.main");
        browser.wait(&format!("{expires} {met}"));
    }

    // An export is a link to an archive that peft reads.
    browser.value(
        "HTMLAnchorElement.prototype.click = function () { window.taken = [this.getAttribute('href'), this.download]; }",
    );
    press("Export");
    browser.wait("window.taken");
    browser.value("delete HTMLAnchorElement.prototype.click");
    let taken = browser.value("window.taken");
    assert_eq!(taken[1], "checkpoint.tar");
    let archive = get(url, taken[0].as_str().unwrap());
    let holds = |name: &[u8]| archive.body.windows(name.len()).any(|part| part == name);
    assert_eq!(archive.status, 200);
    assert!(holds(b"adapter_config.json") && holds(b"adapter_model.safetensors"));

    // Two that are picked are compared.
    let compare =
        "[...document.querySelectorAll('a.button')].find((one) => one.textContent === 'Compare')";
    assert_eq!(browser.value(&format!("{compare}.hidden")), true);
    let paths = "[...document.querySelectorAll('tbody tr')].map((row) => row.dataset.key)";
    let paths = browser.value(paths);
    for row in [0, 1] {
        browser.value(&format!(
            "document.querySelectorAll('td input')[{row}].click()"
        ));
    }
    browser.wait(&format!("!{compare}.hidden"));
    browser.value(&format!("{compare}.click()"));
    let chosen = "[...document.querySelectorAll('.side select')].map((one) => one.value).join(' ')";
    let both = [&paths[0], &paths[1]].map(|path| path.as_str().unwrap());
    browser.wait(&format!("{chosen} === {:?}", both.join(" ")));
}

/// Answers that come in another order than the questions.
fn late_answers(browser: &Browser) {
    let hold = "void (() => { window.plain = window.fetch; window.fetch = (url, how) => String(url).includes('step=0')\
        ? new Promise((go) => { window.free = () => go(window.plain(url, how).then((reply) => {\
            const read = reply.json.bind(reply); reply.json = () => window.told = read(); return reply; })); })\
        : window.plain(url, how); })()";
    browser.value(hold);
    let slide = |to: usize| {
        browser.value(&format!(
            "(() => {{ const step = document.querySelector('[aria-label=Step]'); step.value = {to};\
             step.dispatchEvent(new Event('input')); }})()"
        ));
    };
    slide(0);
    browser.wait("window.free");
    slide(2);
    let shown = "document.querySelector('label.line + .quiet').textContent";
    browser.wait(&format!("{shown}.startsWith('step 2,')"));
    browser.value("window.free()");
    browser.wait("window.told");
    browser.value("window.told.then(() => new Promise((drawn) => requestAnimationFrame(drawn)))");
    let shown = browser.value(shown);
    assert!(shown.as_str().unwrap().starts_with("step 2,"), "{shown}");
    browser.value("window.fetch = window.plain");
}

fn parts_of_a_run(browser: &Browser) {
    let open = |name: &str| browser.click(&format!(".tabs a[href$='/{name}']"));
    open("config");
    browser.wait("document.querySelector('td.value').closest('table').textContent.includes('tinker-local/tiny')");
    open("time");
    browser.wait("document.querySelector('.lane i')");
    late_answers(browser);
    open("log");
    browser.wait("document.querySelector('.log').textContent.includes('Training completed')");
    open("checkpoints");
    browser.wait("document.querySelector('.facts code').textContent.startsWith('tinker://')");
    open("rollouts");
    browser.wait("document.querySelector('.empty h2').textContent === 'No rollouts'");
}

fn talking(browser: &Browser) {
    browser.keys("2");
    browser.click("td a.button[href*=sampler_weights]");
    browser.wait("document.querySelector('.side select')?.value.includes('sampler_weights')");
    browser.keys("/");
    browser.keys(&format!("Pig Latin: back{ENTER}"));
    browser.wait("document.querySelector('.turn .who span')?.textContent.includes('tokens')");
    browser.click("label.line:nth-of-type(2) input");
    browser.click(".heat button");
    browser.wait("document.querySelectorAll('.others .meter').length >= 5");
    browser.shoot("chat");
    // Two side by side, and what was said becomes data.
    browser.click("label.line input");
    browser.wait("document.querySelectorAll('.side').length === 2");
    browser.click("button[title^='Adds this conversation']");
    browser.wait("[...document.querySelectorAll('button')].some((one) => one.offsetParent && one.textContent === 'Look at it')");
    browser.value("[...document.querySelectorAll('button')].find((one) => one.textContent === 'Look at it').click()");
    browser.wait("document.querySelector('.tokens .w')?.textContent.length > 0 && location.hash === '#/data'");
    browser.shoot("data");
}

fn other_views(browser: &Browser) {
    browser.value("document.activeElement.blur()");
    browser.keys("5");
    browser.wait("[...document.querySelectorAll('td.mono')].some((cell) => cell.textContent.includes('forward_backward'))");
    browser.shoot("server");
    browser.keys("?");
    browser.wait("document.querySelector('dialog[open] kbd')");
    browser.keys(ENTER);
    browser.wait("!document.querySelector('dialog[open]')");
    // A checkpoint is deleted only after a question.
    browser.keys("2");
    let many = "document.querySelectorAll('button[aria-label^=Delete]').length";
    browser.click("button[aria-label^=Delete]");
    let before = browser.value(many).as_u64().unwrap();
    browser.click("dialog button.danger");
    browser.wait(&format!("{many} === {}", before - 1));
}

/// A run is asked for, and one of its parts before the answer is there.
fn hurrying(browser: &Browser) {
    browser.value("[location.hash = '#/run/0%2Fchats', location.hash = '#/run/0%2Fchats/log']");
    browser.wait("document.querySelector('.log')?.textContent.includes('Training completed')");
    browser.assert_quiet("");
}

/// An iteration is listed once its first rollouts are there; others of it may come later.
#[test]
fn rollouts_of_an_iteration_may_come_one_after_the_other() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let root = tempfile::tempdir().unwrap();
    let server = LocalServer::builder().runs(root.path()).start().unwrap();
    let folder = RunFolder::open(root.path().join("rl"), Existing::Raise).unwrap();
    folder.write_config(&json!({"loss_fn": "ppo"})).unwrap();
    let played = Row::new()
        .with("group_idx", 0usize)
        .with("total_reward", 1.0);
    let played = std::slice::from_ref(&played);
    folder.write_rollouts(0, "eval_test", played).unwrap();
    browser.go(&format!("{}/#/run/0%2Frl/rollouts", server.base_url()));
    let labels = "[...document.querySelectorAll('select')].at(-1)";
    browser.wait(&format!("{labels}?.value === 'eval_test'"));
    folder.write_rollouts(0, "train", played).unwrap();
    folder.note("played").unwrap();
    browser.wait(&format!("{labels}.options.length === 2"));
    // A look that fails after a later one has been answered is no news.
    browser.value(
        "void (() => { window.plain = window.fetch; window.fetch = (url, how) => \
         window.fail || !String(url).includes('/console/run?') ? window.plain(url, how) : \
         new Promise((_, fail) => { window.fail = fail; }); })()",
    );
    folder.note("a look").unwrap();
    browser.wait("window.fail");
    folder.write_rollouts(0, "eval_more", played).unwrap();
    folder.note("a later look").unwrap();
    browser.wait(&format!("{labels}.options.length === 3"));
    browser.value("window.fail(new TypeError('too late'))");
    browser.value("new Promise((drawn) => requestAnimationFrame(drawn))");
    assert_eq!(
        browser.value("document.querySelector('.problem')"),
        Value::Null
    );
}

/// What is deleted is not compared any more.
#[test]
fn a_deleted_checkpoint_is_not_picked_any_more() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let server = LocalServer::start().unwrap();
    let service = crate::support::local::service(&server);
    let training = crate::support::local::train(&service);
    let mut paths = Vec::new();
    for name in ["a", "b", "c"] {
        let saved = training.save_weights_for_sampler(name).unwrap();
        paths.push(saved.join().unwrap().path.unwrap().to_string());
    }
    browser.go(&format!("{}/#/checkpoints", server.base_url()));
    let pick = |path: &str| {
        browser.click(&format!("input[aria-label='Compare {path}']"));
    };
    pick(&paths[0]);
    pick(&paths[1]);
    let compare =
        "[...document.querySelectorAll('a.button')].find((one) => one.textContent === 'Compare')";
    browser.wait(&format!("!{compare}.hidden"));
    browser.click(&format!("button[aria-label='Delete {}']", paths[0]));
    browser.click("dialog button.danger");
    browser.wait("document.querySelectorAll('td input').length === 2");
    browser.wait(&format!("{compare}.hidden"));
    pick(&paths[2]);
    browser.wait(&format!("!{compare}.hidden"));
    let compared = browser.value(&format!("decodeURIComponent({compare}.href)"));
    let compared = compared.as_str().unwrap();
    assert!(
        compared.ends_with(&format!("?model={}&other={}", paths[1], paths[2])),
        "{compared}"
    );
    assert_eq!(
        browser.value("document.querySelectorAll('td input:checked').length"),
        2
    );
    // Whoever deletes it.
    service.rest().delete_checkpoint(paths[2].as_str()).unwrap();
    browser.wait("document.querySelectorAll('td input').length === 1");
    browser.wait(&format!("{compare}.hidden"));
}

fn on_a_phone_and_in_the_dark(browser: &Browser) {
    let ground = "getComputedStyle(document.documentElement).backgroundColor";
    browser.size(375, 812);
    browser.scheme("light");
    let light = browser.value(ground);
    browser.scheme("dark");
    assert_ne!(browser.value(ground), light);
    for view in [
        "runs",
        "run/0%2Fchats",
        "run/0%2Fchats/config",
        "run/0%2Fchats/time",
        "run/0%2Fchats/log",
        "checkpoints",
        "chat",
        "data",
        "server",
    ] {
        browser.value(&format!("location.hash = '#/{view}'"));
        browser.wait("document.querySelector('main h1') && !document.querySelector('main').textContent.includes('undefined')");
        browser.wait("document.documentElement.scrollWidth <= innerWidth");
        // Tables stay within their cards, and what is in a cell within the cell.
        browser.wait(
            "[...document.querySelectorAll('td, .scroll')].every((one) => one.scrollWidth <= one.clientWidth + 1)",
        );
        browser.wait(
            "[...document.querySelectorAll('.tabs [aria-current]')].every((tab) => tab.getBoundingClientRect().right <= innerWidth)",
        );
        let small = "[...document.querySelectorAll('nav#nav a')].filter((link) => link.getBoundingClientRect().height < 40).length";
        assert_eq!(
            browser.value(small),
            0,
            "{view}: links too small for a finger"
        );
        let unnamed = "[...document.querySelectorAll('button, select, input, textarea')].filter((one) => \
            !one.labels?.length && !one.getAttribute('aria-label') && !one.textContent.trim()).map((one) => one.outerHTML)";
        assert_eq!(
            browser.value(unnamed),
            json!([]),
            "{view}: controls without a name"
        );
        browser.shoot(&format!("phone-{}", view.replace(['/', '%'], "-")));
    }
}

#[test]
fn every_model_of_the_server_can_be_talked_to() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let files = concat!(env!("CARGO_MANIFEST_DIR"), "/src/local/engine/builtin");
    let second = ModelSource::new("test/second", files);
    let server = LocalServer::builder().model(MODEL).model(second).start();
    let server = server.unwrap();
    browser.go(&format!("{}/#/chat", server.base_url()));
    let offered =
        "[...document.querySelector('.side select').options].map((one) => one.value).join(' ')";
    browser.wait(&format!("{offered} === '{MODEL} test/second'"));
    browser.value("document.querySelector('.side select').value = 'test/second'");
    browser.keys("/");
    browser.keys(&format!("Spell: cat{ENTER}"));
    browser.wait("document.querySelector('.turn .who span')?.textContent.includes('tokens')");
    browser.assert_quiet("");
}

#[test]
fn a_key_is_asked_for_in_a_form() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let server = LocalServer::builder().api_key("tml-right").start().unwrap();
    browser.go(&server.base_url());
    let enter = |key: &str| {
        browser.wait("document.activeElement.id === 'key'");
        browser.keys(&format!("{key}{ENTER}"));
    };
    enter("tml-wrong");
    browser.wait("document.querySelector('.problem')?.textContent.includes('not valid')");
    enter("tml-right");
    browser.wait("document.querySelector('.empty h2')?.textContent === 'No runs yet'");
    browser.wait("document.querySelector('#live').textContent === 'live'");
    let address = browser.value("location.href");
    assert_eq!(
        address.as_str().unwrap().trim_end_matches('/'),
        server.base_url()
    );
    assert_eq!(browser.value("document.cookie"), Value::from(""));
    // The refusals are the point here; nothing else may be wrong.
    browser.assert_quiet("401");
}

/// A turn that failed is sent again as it was, or replaced by what is typed instead.
#[test]
fn a_turn_that_failed_is_not_said_twice() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let server = LocalServer::start().unwrap();
    browser.go(&format!("{}/#/chat", server.base_url()));
    let model = |name: &str| {
        browser.value(&format!(
            "document.querySelector('.side select').replaceChildren(new Option('{name}', '{name}'))"
        ));
    };
    let said = || {
        browser.value("[...document.querySelectorAll('.turn.user .said')].map((one) => one.textContent).join(' | ')")
    };
    let fail = |text: &str| {
        model("tinker://none/weights/a");
        browser.keys("/");
        browser.keys(&format!("{text}{ENTER}"));
        browser.wait("document.querySelector('.turn .problem')");
        model(MODEL);
    };
    let answered = "!document.querySelector('.turn .problem') && [...document.querySelectorAll('.turn .who span')].at(-1)?.textContent.includes('tokens')";
    browser.wait("document.querySelector('.side select')?.options.length > 0");
    fail("one");
    browser.click("button.main");
    browser.wait(answered);
    assert_eq!(said(), "one");
    fail("two");
    browser.keys(&format!("three{ENTER}"));
    browser.wait(answered);
    assert_eq!(said(), "one | three");
}

/// What an empty page tells people to type works with the server that serves the page.
#[cfg(unix)]
#[test]
fn the_commands_of_empty_pages_run() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let root = tempfile::tempdir().unwrap();
    let server = LocalServer::builder().runs(root.path()).start().unwrap();
    let chats = fs::read_to_string(CHATS).unwrap();
    for page in ["runs", "server"] {
        browser.go(&format!("{}/#/{page}", server.base_url()));
        browser.wait("document.querySelector('.empty pre')?.textContent.includes('tinker train')");
        let command = browser.value("document.querySelector('.empty pre').textContent");
        let desk = crate::cli::Desk::bare();
        fs::write(
            desk.path().join("chats.jsonl"),
            chats.lines().next().unwrap(),
        )
        .unwrap();
        let script = command
            .as_str()
            .unwrap()
            .replace("tinker train", "\"$1\" train");
        let output = desk.shell(&script, &[]).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {told}");
    }
}

/// A page that could not be loaded again once is drawn again with the next news.
#[test]
fn a_failed_look_at_a_run_does_not_stay() {
    let Some(browser) = Browser::open() else {
        return;
    };
    let (root, server) = super::showing("{\"step\": 0, \"loss\": 1.0}\n");
    browser.go(&format!("{}/#/run/0%2Fa/log", server.base_url()));
    browser.wait("document.querySelector('.log')");
    let broken = "function (address) { return String(address).includes('run?') ? Promise.reject(new Error('broken')) : window.real(...arguments); }";
    browser.value(&format!(
        "(window.real = window.fetch.bind(window), window.fetch = {broken}, 1)"
    ));
    let file = root.path().join("a/metrics.jsonl");
    fs::write(
        &file,
        "{\"step\": 0, \"loss\": 1.0}\n{\"step\": 1, \"loss\": 1.0}\n",
    )
    .unwrap();
    browser.wait("document.querySelector('.problem')");
    browser.value("(window.fetch = window.real, 1)");
    fs::write(&file, "{\"step\": 0, \"loss\": 1.0}\n").unwrap();
    browser.wait("!document.querySelector('.problem') && document.querySelector('.log')");
}
