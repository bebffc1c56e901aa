//! What one attempt does, against a scripted server.

mod answers;
mod connections;
mod faults;
mod headers;
mod secrets;
mod tls;

use std::io::Write;
use std::thread;
use std::time::SystemTime;

use serde_json::json;

use super::*;
use crate::config::Timeout;
use crate::scripted::{Gate, Recorded, Reply, Server};
use crate::wire::route::{self, API_PREFIX};

fn config(server: &Server) -> Config {
    Config::default().with_base_url(server.url())
}

fn transport(server: &Server) -> Transport {
    Transport::new(&config(server)).unwrap()
}

fn post(name: &str) -> Request<'_> {
    Request::new(Method::Post, format!("{API_PREFIX}{name}"), Pool::Session)
        .with_body(Body::Json(b"{}"))
}

fn get(name: &str) -> Request<'_> {
    Request::new(Method::Get, format!("{API_PREFIX}{name}"), Pool::Rest)
}

impl<'a> Request<'a> {
    fn with_key(mut self, key: &'a Secret) -> Self {
        self.auth = Auth::Key(key);
        self
    }
}

fn hello() -> Reply {
    Reply::json(&json!({"greeting": "hé"}))
}
