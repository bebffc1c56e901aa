//! `tinker doctor`: everything a client needs, looked at one by one.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;
use tinker::client::RawCall;
use tinker::config::Config;
use tinker::types::Timestamp;
use tinker::{Error, ServiceClient};

use crate::context::Context;
use crate::failure::{Failure, one_line};
use crate::output::Table;

/// Check credentials, network, clock and the server, and say what to do about what is wrong.
#[derive(Debug, Args)]
pub(crate) struct Doctor {}

/// What came of one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warning,
    Failed,
}

#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Default, Serialize)]
struct Report {
    checks: Vec<Finding>,
}

impl Report {
    fn ok(&mut self, check: &'static str, found: impl Into<String>) {
        self.add(check, Verdict::Ok, found.into(), None);
    }

    fn warn(&mut self, check: &'static str, found: impl Into<String>, remedy: &str) {
        self.add(check, Verdict::Warning, found.into(), Some(remedy.into()));
    }

    fn fail(&mut self, check: &'static str, found: impl Into<String>, remedy: &str) {
        self.add(check, Verdict::Failed, found.into(), Some(remedy.into()));
    }

    fn add(
        &mut self,
        check: &'static str,
        verdict: Verdict,
        found: String,
        remedy: Option<String>,
    ) {
        self.checks.push(Finding {
            check,
            verdict,
            found: one_line(&found),
            remedy,
        });
    }

    fn count(&self, verdict: Verdict) -> usize {
        let is = |finding: &&Finding| finding.verdict == verdict;
        self.checks.iter().filter(is).count()
    }
}

impl Doctor {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        let mut report = Report::default();
        match context.config() {
            Ok(config) => examine(&mut report, &config),
            Err(error) => report.fail(
                "configuration",
                format!("{error:#}"),
                "Correct the environment variable it names.",
            ),
        }
        descriptors(&mut report);
        tokenizers(&mut report);
        present(context, &report)
    }
}

fn examine(report: &mut Report, config: &Config) {
    match config.base_url() {
        Ok(url) => report.ok("base URL", url),
        Err(error) => {
            report.fail(
                "base URL",
                error.to_string(),
                "Set TINKER_BASE_URL to http(s)://host.",
            );
            return;
        }
    }
    proxies(report);
    match config.has_credential() {
        true => report.ok("credentials", "there is one"),
        false => {
            report.fail(
                "credentials",
                "none",
                "Set TINKER_API_KEY, or store a key with 'tinker auth login'.",
            );
            return;
        }
    }
    match ServiceClient::new(config.clone().with_patience(Duration::ZERO)) {
        Ok(service) => server(report, &service, config),
        Err(error) => report.fail("client", error.to_string(), "Correct the setting it names."),
    }
}

fn server(report: &mut Report, service: &ServiceClient, config: &Config) {
    let url = config.base_url().unwrap_or_default();
    let secure = url.starts_with("https:");
    let started = Instant::now();
    let call = RawCall::get("get_server_capabilities").without_retries();
    let answer = match service.call_raw(&call) {
        Ok(answer) => answer,
        Err(error) => return unreached(report, &error, secure),
    };
    let took = started.elapsed().as_millis();
    report.ok("reachability", format!("answers within {took} ms"));
    match secure {
        true => report.ok("TLS", "the certificate is trusted"),
        false if on_this_machine(&url) => {
            report.ok("TLS", "not used, nor needed: the server is on this machine");
        }
        false => report.warn(
            "TLS",
            "not used: keys and data travel as they are",
            "Use https://, unless you trust every machine on the way.",
        ),
    }
    match answer.json::<tinker::types::ServerCapabilities>() {
        Ok(offered) => {
            let names: Vec<String> = offered.model_names().map(|name| name.to_string()).collect();
            report.ok(
                "models",
                format!("{} offered: {}", names.len(), names.join(", ")),
            );
        }
        Err(error) => report.fail(
            "models",
            error.to_string(),
            "Check that TINKER_BASE_URL is that of a Tinker server.",
        ),
    }
    clock(report, answer.header("date"));
    dialect(report, service);
}

/// Whether what is sent to a URL stays on this machine.
fn on_this_machine(url: &str) -> bool {
    let (_, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split('/').next().unwrap_or_default();
    let (_, name) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (name, closing) = match name.strip_prefix('[') {
        Some(name) => (name, ']'),
        None => (name, ':'),
    };
    let host = name.split(closing).next().unwrap_or_default();
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// What kind of failure keeps the server away.
fn unreached(report: &mut Report, error: &Error, secure: bool) {
    let found = error.to_string();
    match error.status() {
        Some(401 | 403) => report.fail(
            "credentials",
            found,
            "The server refuses the key: get another with 'tinker auth login'.",
        ),
        Some(_) => report.fail(
            "reachability",
            found,
            "Something answers, but not as Tinker does: check TINKER_BASE_URL.",
        ),
        None if secure && matches!(error, Error::Config(_)) => report.fail(
            "TLS",
            found,
            "Trust the server's authority (Config::with_root_certificates), or check for a proxy \
             that reads along.",
        ),
        None => report.fail(
            "reachability",
            found,
            "Check the network, TINKER_BASE_URL and the proxy variables.",
        ),
    }
}

/// Signed links and tokens go by the time; a clock that is off makes them invalid.
fn clock(report: &mut Report, date: Option<&str>) {
    let Some(date) = date else {
        report.warn(
            "clock",
            "the server does not tell the time",
            "Nothing to do.",
        );
        return;
    };
    let format = "%a, %d %b %Y %H:%M:%S GMT";
    let Ok(theirs) = Timestamp::strptime(format!("{format} %z"), format!("{date} +0000")) else {
        report.warn(
            "clock",
            format!("the server's date is not one: {date}"),
            "Nothing to do.",
        );
        return;
    };
    let off = Timestamp::now().as_second() - theirs.as_second();
    match off.abs() {
        0..=30 => report.ok("clock", format!("{off} s from the server's")),
        _ => report.fail(
            "clock",
            format!("{off} s from the server's"),
            "Set this machine's clock (NTP): tokens and signed links depend on it.",
        ),
    }
}

fn dialect(report: &mut Report, service: &ServiceClient) {
    let body = serde_json::json!({ "sdk_version": "0.36.0" });
    let call = RawCall::post("client/config").without_retries();
    let flags = call
        .with_json(&body)
        .and_then(|call| service.call::<serde_json::Value>(&call));
    match flags {
        Ok(flags) => {
            let on: Vec<String> = flags
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(_, value)| *value == &serde_json::Value::Bool(true))
                .map(|(name, _)| name.clone())
                .collect();
            let on = if on.is_empty() {
                "no flags on".into()
            } else {
                on.join(", ")
            };
            report.ok("dialect", format!("current protocol; {on}"));
        }
        Err(error) if error.status() == Some(404) => {
            report.ok(
                "dialect",
                "an older or self-hosted server: defaults are used",
            );
        }
        Err(error) => report.warn(
            "dialect",
            error.to_string(),
            "Try again; defaults are used.",
        ),
    }
}

fn proxies(report: &mut Report) {
    let names = ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"];
    let is_set = |name: &&&str| {
        let lower = name.to_lowercase();
        std::env::var_os(name)
            .or_else(|| std::env::var_os(lower))
            .is_some_and(|value| !value.is_empty())
    };
    let set: Vec<&str> = names.iter().filter(is_set).copied().collect();
    match set.is_empty() {
        true => report.ok("proxy", "none"),
        // A proxy's address may carry a password, so it is not shown.
        false => report.ok("proxy", format!("by {}", set.join(", "))),
    }
}

#[cfg(unix)]
fn descriptors(report: &mut Report) {
    const ENOUGH: u64 = 1_024;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    match limit {
        Some(count) if count < ENOUGH => report.warn(
            "descriptors",
            format!("{count} at most"),
            "Raise it for thousands of samples at once: ulimit -n 4096.",
        ),
        Some(count) => report.ok("descriptors", format!("{count} at most")),
        None => report.ok("descriptors", "no limit"),
    }
}

#[cfg(not(unix))]
fn descriptors(_: &mut Report) {}

fn tokenizers(report: &mut Report) {
    let Some(cache) = tinker::config::hub_cache() else {
        report.warn("tokenizers", "no home folder for the cache", "Set HF_HOME.");
        return;
    };
    let count = std::fs::read_dir(&cache).map_or(0, |entries| {
        let is_model = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("models--");
        entries
            .flatten()
            .filter(|entry| is_model(&entry.file_name()))
            .count()
    });
    match count {
        0 => report.warn(
            "tokenizers",
            format!("none in {}", cache.display()),
            "Download the one of your model: hf download NAME tokenizer.json tokenizer_config.json",
        ),
        _ => report.ok(
            "tokenizers",
            format!("{count} model(s) in {}", cache.display()),
        ),
    }
}

fn present(context: &mut Context, report: &Report) -> anyhow::Result<()> {
    if context.is_json() {
        context.out.json(report)?;
    } else {
        let mut table = Table::new(["", "Check", "Found"]);
        for finding in &report.checks {
            let mark = match finding.verdict {
                Verdict::Ok => "✓",
                Verdict::Warning => "!",
                Verdict::Failed => "✗",
            };
            let remedy = finding
                .remedy
                .as_ref()
                .map(|remedy| format!("\n→ {remedy}"));
            let found = format!("{}{}", finding.found, remedy.unwrap_or_default());
            table.row([mark, finding.check, &found]);
        }
        context.out.table(&table)?;
    }
    context.out.flush()?;
    match report.count(Verdict::Failed) {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} check(s) failed"))
            .advise("Do what stands beside them, then run 'tinker doctor' again.")
            .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::on_this_machine;

    #[test]
    fn only_loopback_is_this_machine() {
        for here in [
            "http://127.0.0.1:8000",
            "http://127.1.2.3/api",
            "http://[::1]:8000",
            "http://LocalHost",
            "http://name:word@127.0.0.1:8000",
        ] {
            assert!(on_this_machine(here), "{here}");
        }
        for away in [
            "http://10.0.0.1:8000",
            "http://localhost.example.org",
            "http://[2001:db8::1]:80",
            "http://example.org/127.0.0.1",
            "http://127.0.0.1@example.org",
        ] {
            assert!(!on_this_machine(away), "{away}");
        }
    }
}
