//! A headless Chromium, driven over WebDriver. What a test waits for, it waits for in the page.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::http;

/// How long one look at the page waits for what a test waits for, and how many there are. Only a
/// failing test takes them all.
const LOOK_MILLIS: u64 = 30_000;
const LOOKS: usize = 10;

#[allow(clippy::print_stderr, reason = "whoever runs the tests should know")]
fn skip() {
    eprintln!("skipped: no chromium with chromedriver on this machine");
}

pub(crate) struct Browser {
    driver: Child,
    url: String,
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// A new browser, or `None` with a message where there is none. In CI there must be one.
    pub(crate) fn open() -> Option<Self> {
        let installed = |name: &str| {
            let asked = Command::new(name).arg("--version").output();
            asked.is_ok_and(|output| output.status.success())
        };
        if !installed("chromedriver") || !installed("chromium") {
            assert!(
                std::env::var_os("CI").is_none(),
                "chromium and chromedriver must be installed where CI is set"
            );
            skip();
            return None;
        }
        Some(Self::start())
    }

    fn start() -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.find_map(|line| {
            let line = line.unwrap();
            let port = line.split("successfully on port ").nth(1)?;
            Some(port.trim_end_matches('.').to_owned())
        });
        let url = format!("http://127.0.0.1:{}", port.expect("chromedriver starts"));
        // Whatever else it says must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let profile = tempfile::tempdir().unwrap();
        let user_data = format!("--user-data-dir={}", profile.path().display());
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            &user_data,
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"script": 2 * LOOK_MILLIS, "pageLoad": 2 * LOOK_MILLIS},
        }}});
        let mut browser = Self {
            driver,
            url,
            session: String::new(),
            _profile: profile,
        };
        let session = browser.command("POST", "/session", Some(&wanted));
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        browser.size(1280, 860);
        browser
    }

    #[track_caller]
    fn command(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let body = body.map(Value::to_string).unwrap_or_default();
        let reply = http::request(&self.url, method, path, &[], body.as_bytes()).unwrap();
        let mut value = reply.json();
        assert_eq!(reply.status, 200, "{method} {path}: {value}");
        value["value"].take()
    }

    #[track_caller]
    fn post(&self, path: &str, body: Value) -> Value {
        self.command("POST", &format!("{}{path}", self.session), Some(&body))
    }

    pub(crate) fn go(&self, url: &str) {
        self.post("/url", json!({ "url": url }));
    }

    /// The value of an expression in the page.
    #[track_caller]
    pub(crate) fn value(&self, expression: &str) -> Value {
        let script = format!("return ({expression});");
        self.post("/execute/sync", json!({"script": script, "args": []}))
    }

    /// Waits in the page until an expression is true.
    #[track_caller]
    pub(crate) fn wait(&self, expression: &str) {
        let script = format!(
            "const done = arguments[0], end = Date.now() + {LOOK_MILLIS};\
             (function look() {{\
               let met = false; try {{ met = Boolean({expression}); }} catch (error) {{}}\
               if (met) done(''); else if (Date.now() > end) done(location.hash + ' ' + document.body.innerText);\
               else setTimeout(look, 30);\
             }})();"
        );
        let mut seen = Value::Null;
        for _ in 0..LOOKS {
            seen = self.post("/execute/async", json!({"script": script, "args": []}));
            if seen == "" {
                return;
            }
        }
        panic!("waited in vain for {expression}; the page: {seen}");
    }

    /// Types into whatever has the focus, as a keyboard does. `\u{E007}` is Enter.
    pub(crate) fn keys(&self, text: &str) {
        let presses = text.chars().flat_map(|key| {
            let value = key.to_string();
            [
                json!({"type": "keyDown", "value": value}),
                json!({"type": "keyUp", "value": value}),
            ]
        });
        let presses: Vec<Value> = presses.collect();
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": presses});
        self.post("/actions", json!({"actions": [keyboard]}));
    }

    /// Draws the mouse across an element, between two parts of its width, with the button held.
    pub(crate) fn drag(&self, selector: &str, from: f64, to: f64) {
        let place = format!(
            "(() => {{ const one = document.querySelector({selector:?}); one.scrollIntoView({{block: 'center'}});\
             const box = one.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; }})()"
        );
        let place = self.value(&place);
        let number = |index: usize| place[index].as_f64().unwrap();
        let move_to = |part: f64| {
            let x = (number(0) + part * number(2)).round();
            let y = (number(1) + number(3) / 2.0).round();
            json!({"type": "pointerMove", "duration": 50, "x": x, "y": y})
        };
        let actions = json!([
            move_to(from),
            {"type": "pointerDown", "button": 0},
            move_to(to),
            {"type": "pointerUp", "button": 0},
        ]);
        let mouse = json!({"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
            "actions": actions});
        self.post("/actions", json!({"actions": [mouse]}));
    }

    /// Clicks the first element that fits, once there is one.
    #[track_caller]
    pub(crate) fn click(&self, selector: &str) {
        self.wait(&format!("document.querySelector({selector:?})"));
        self.value(&format!("document.querySelector({selector:?}).click()"));
    }

    fn devtools(&self, command: &str, params: Value) {
        self.post(
            "/goog/cdp/execute",
            json!({"cmd": command, "params": params}),
        );
    }

    pub(crate) fn size(&self, width: u32, height: u32) {
        let params = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.devtools("Emulation.setDeviceMetricsOverride", params);
    }

    /// `light` or `dark`.
    pub(crate) fn scheme(&self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
    }

    /// Fails if the page or the browser complained since the last look; what was meant to fail is
    /// named.
    #[track_caller]
    pub(crate) fn assert_quiet(&self, expected: &str) {
        let entries = self.post("/se/log", json!({"type": "browser"}));
        let loud: Vec<&Value> = entries
            .as_array()
            .unwrap()
            .iter()
            .filter(|entry| entry["level"] == "SEVERE" || entry["level"] == "WARNING")
            .filter(|entry| {
                let message = entry["message"].as_str().unwrap_or_default();
                expected.is_empty() || !message.contains(expected)
            })
            .collect();
        assert!(loud.is_empty(), "{loud:#?}");
    }

    /// Keeps a picture where `TINKER_TEST_SHOTS` names a folder for them.
    pub(crate) fn shoot(&self, name: &str) {
        if let Some(folder) = std::env::var_os("TINKER_TEST_SHOTS") {
            let picture = self.command("GET", &format!("{}/screenshot", self.session), None);
            let picture = picture.as_str().unwrap();
            let bytes = base64::engine::general_purpose::STANDARD.decode(picture);
            let file = std::path::Path::new(&folder).join(format!("{name}.png"));
            std::fs::write(file, bytes.unwrap()).unwrap();
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser; the driver may have died with it.
        let _ = http::request(&self.url, "DELETE", &self.session, &[], b"");
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
