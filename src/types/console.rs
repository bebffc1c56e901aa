//! Addresses of the service's web console.

use super::TinkerPath;
use super::percent::{is_unreserved, percent_encode};

const BASE: &str = "https://tinker.thinkingmachines.ai";

/// The list of sessions.
pub fn sessions_url() -> String {
    format!("{BASE}/sessions")
}

/// One session.
///
/// ```
/// assert_eq!(tinker::types::console::session_url("S1"),
///            "https://tinker.thinkingmachines.ai/sessions/S1");
/// ```
pub fn session_url(session_id: &str) -> String {
    format!("{BASE}/sessions/{session_id}")
}

/// One training run.
pub fn training_run_url(run_id: &str) -> String {
    format!("{BASE}/training_runs/{run_id}")
}

/// One checkpoint.
pub fn checkpoint_url(path: &TinkerPath) -> String {
    let (run, checkpoint) = (quote(path.run_id()), quote(&path.checkpoint_id()));
    format!("{BASE}/checkpoints/{run}/{checkpoint}")
}

/// A page to try a sampler checkpoint out.
pub fn playground_url(path: &TinkerPath) -> String {
    let path = quote(&path.to_string());
    format!("{BASE}/playground?mode=checkpoint&checkpoint={path}")
}

/// One API key.
pub fn api_key_url(key_id: &str) -> String {
    format!("{BASE}/keys/{}", quote(key_id))
}

/// The page that creates an API key, with its name filled in.
///
/// ```
/// assert_eq!(tinker::types::console::new_api_key_url("my host"),
///            "https://tinker.thinkingmachines.ai/keys?new_key=true&key_name=my+host");
/// ```
pub fn new_api_key_url(key_name: &str) -> String {
    let name = quote(key_name).replace("%20", "+");
    format!("{BASE}/keys?new_key=true&key_name={name}")
}

/// Percent-encodes everything but letters, digits and `_.-~`.
fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    percent_encode(&mut out, text, is_unreserved);
    out
}
