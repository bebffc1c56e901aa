//! A tiny HTTP client on `std::net`, for what the real clients would never send.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// What came back, as far as it came.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// The `detail` of a refusal.
    #[track_caller]
    pub(crate) fn detail(&self) -> String {
        self.json()["detail"].as_str().unwrap().to_owned()
    }
}

/// One request on a connection of its own. An error means the connection broke.
pub(crate) fn request(
    base_url: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Reply> {
    let host = base_url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host)?;
    // Guards against a hang; no test waits for it.
    stream.set_read_timeout(Some(Duration::from_secs(120)))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "host") {
        head.push_str(&format!("host: {host}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !headers.iter().any(|(name, _)| *name == "content-type") {
        head.push_str("content-type: application/json\r\n");
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    read_reply(BufReader::new(stream))
}

fn read_reply(mut from: impl BufRead) -> std::io::Result<Reply> {
    let mut line = String::new();
    let broken = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    from.read_line(&mut line)?;
    let status = line
        .split(' ')
        .nth(1)
        .and_then(|text| text.parse().ok())
        .ok_or_else(broken)?;
    let mut headers = Vec::new();
    loop {
        line.clear();
        from.read_line(&mut line)?;
        match line.split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => break,
        }
    }
    let mut reply = Reply {
        status,
        headers,
        body: Vec::new(),
    };
    match reply.header("content-length").map(str::parse::<usize>) {
        Some(length) => {
            let length = length.map_err(|_| broken())?;
            reply.body.resize(length, 0);
            from.read_exact(&mut reply.body)?;
        }
        None => drop(from.read_to_end(&mut reply.body)?),
    }
    Ok(reply)
}

/// Posts JSON to a path below `/api/v1/` and expects an answer.
#[track_caller]
pub(crate) fn post(base_url: &str, path: &str, body: Value) -> Reply {
    let headers = [
        ("content-type", "application/json"),
        ("accept", "application/json"),
    ];
    let path = format!("/api/v1/{path}");
    request(
        base_url,
        "POST",
        &path,
        &headers,
        body.to_string().as_bytes(),
    )
    .unwrap()
}

/// Gets a path below `/api/v1/`.
#[track_caller]
pub(crate) fn get(base_url: &str, path: &str) -> Reply {
    request(base_url, "GET", &format!("/api/v1/{path}"), &[], b"").unwrap()
}
