//! `tinker proxy`, asked as every program that speaks OpenAI asks.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tinker::local::LocalServer;

use super::Desk;
use crate::support::{http, local};

#[test]
fn a_checkpoint_is_served_until_the_proxy_is_stopped() {
    let server = LocalServer::start().unwrap();
    let service = local::service(&server);
    let saved = local::train(&service)
        .save_weights_for_sampler("one")
        .unwrap()
        .join()
        .unwrap();
    let path = saved.path.unwrap();
    let desk = Desk::at(&server.base_url());
    let mut proxy = desk
        .command(&["proxy", "--port", "0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    let stdout = proxy.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut url).unwrap();
    let url = url.trim().strip_suffix("/v1").unwrap();

    let models = http::request(url, "GET", "/v1/models", &[], b"").unwrap();
    let models = models.json()["data"].to_string();
    assert!(
        models.contains("tinker-local/tiny") && models.contains(&path),
        "{models}"
    );
    let ask = json!({"model": path, "prompt": "English: hello", "max_tokens": 4, "temperature": 0});
    let body = ask.to_string();
    let answer = http::request(url, "POST", "/v1/completions", &[], body.as_bytes()).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 4);

    kill_process(Pid::from_child(&proxy), Signal::TERM).unwrap();
    assert_eq!(proxy.wait().unwrap().code(), Some(0));
}
