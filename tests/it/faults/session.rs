//! What a session does by itself: heartbeats, and looks at the dynamic configuration.

use std::time::Duration;

use serde_json::{Value, json};
use tinker::{SamplingParams, ServiceClient};

use super::{prompt, status, try_again};
use crate::support::fake::{Fake, route};
use crate::support::logs;
use crate::support::scripted::{Gate, Recorded, Reply};

/// A session on a clock that a test moves on by hand.
struct Idle {
    fake: Fake,
    service: ServiceClient,
}

impl Idle {
    /// The first answers of a route, if it needs others than the usual ones.
    fn new(path: &str, answers: impl IntoIterator<Item = Reply>) -> Self {
        let fake = Fake::start();
        for answer in answers {
            fake.reply(path, answer);
        }
        let service = fake.service();
        service.session_id().unwrap();
        Self { fake, service }
    }

    /// Lets this much time pass once the heartbeat and the upkeep wait for it.
    fn pass(&self, seconds: u64) {
        self.fake.clock.wait_for_rhythms(2);
        self.fake.clock.advance(Duration::from_secs(seconds));
    }

    /// Waits until this many requests have come.
    fn wait(&self, path: &str, count: usize) {
        let is_one = |request: &&Recorded| request.path.ends_with(path);
        self.fake
            .server
            .wait_until(|requests| requests.iter().filter(is_one).count() >= count);
    }

    /// Waits until both wait again, so that what they had to do is done.
    #[track_caller]
    fn check(&self, path: &str, count: usize) {
        self.wait(path, count);
        self.fake.clock.wait_for_rhythms(2);
        assert_eq!(self.fake.server.requests_to(path).len(), count);
    }

    /// Drops a sample that waits for its result.
    fn drop_a_sample(&self) {
        let gate = Gate::new();
        let stalled = try_again().after(&gate);
        self.fake
            .server
            .always("POST", &route("retrieve_future"), stalled);
        let sampler = self.service.create_sampling_client("some/model").unwrap();
        let params = SamplingParams::max_tokens(4);
        let sample = sampler.submit_sample(&prompt(1), params).unwrap();
        gate.wait_for(1);
        drop(sample);
        gate.open();
    }

    /// Drops a sample and waits until the service is told.
    fn check_cancels(&self) {
        self.drop_a_sample();
        self.wait("cancel_future", 1);
    }
}

fn dynamic(value: Value) -> Reply {
    Reply::json(&value)
}

#[test]
fn session_heartbeat_comes_first_after_10_s() {
    let idle = Idle::new("session_heartbeat", []);
    idle.pass(9);
    idle.check("session_heartbeat", 0);
    idle.pass(1);
    idle.check("session_heartbeat", 1);
}

#[test]
fn session_heartbeat_goes_on_10_s_after_each_attempt_whatever_it_brought() {
    let answers = [
        status(500),
        Reply::hang_up(),
        status(404),
        Reply::raw("not HTTP"),
        Reply::status(400),
    ];
    let idle = Idle::new("session_heartbeat", answers);
    for count in 1..=7 {
        idle.pass(10);
        idle.check("session_heartbeat", count);
    }
}

#[test]
fn session_heartbeat_ends_with_a_410() {
    let idle = Idle::new("session_heartbeat", [status(410)]);
    idle.pass(10);
    idle.wait("session_heartbeat", 1);
    let clock = &idle.fake.clock;
    for looks in 2..=3 {
        // Only the upkeep is left, which looks every five minutes.
        clock.wait_for_rhythms(1);
        clock.advance(Duration::from_secs(300));
        idle.wait("client/dynamic_config", looks);
    }
    assert_eq!(idle.fake.bodies("session_heartbeat").len(), 1);
}

#[test]
fn session_heartbeat_warns_each_time_after_120_s_without_a_success() {
    logs::capture();
    let session = json!({"session_id": "S-silent", "type": "create_session"});
    let idle = Idle::new("create_session", [Reply::json(&session)]);
    let path = route("session_heartbeat");
    idle.fake.server.always("POST", &path, status(503));
    let warnings = || logs::with("no heartbeat of session S-silent").len();
    for count in 1..=12 {
        idle.pass(10);
        idle.check("session_heartbeat", count);
    }
    assert_eq!(warnings(), 0);
    for count in 13..=14 {
        idle.pass(10);
        idle.check("session_heartbeat", count);
    }
    assert_eq!(warnings(), 2);
    let good = Reply::json(&json!({"type": "session_heartbeat"}));
    idle.fake.server.always("POST", &path, good);
    idle.pass(10);
    idle.check("session_heartbeat", 15);
    assert_eq!(warnings(), 2);
}

#[test]
fn session_dynamic_config_is_read_again_after_its_interval() {
    let idle = Idle::new(
        "client/dynamic_config",
        [dynamic(json!({"refresh_interval_sec": 15}))],
    );
    idle.pass(14);
    idle.check("client/dynamic_config", 1);
    idle.pass(1);
    idle.check("client/dynamic_config", 2);
}

#[test]
fn session_dynamic_config_is_read_every_10_s_at_most() {
    let eager = || dynamic(json!({"refresh_interval_sec": 1}));
    let idle = Idle::new("client/dynamic_config", [eager(), eager(), eager()]);
    idle.pass(9);
    idle.check("client/dynamic_config", 1);
    idle.pass(1);
    idle.check("client/dynamic_config", 2);
    idle.pass(10);
    idle.check("client/dynamic_config", 3);
}

#[test]
fn session_dynamic_config_takes_effect_when_it_changes() {
    let off = dynamic(json!({"refresh_interval_sec": 10}));
    let on = dynamic(json!({"refresh_interval_sec": 10, "sample_cancel_enabled": true}));
    let idle = Idle::new("client/dynamic_config", [off, on]);
    idle.drop_a_sample();
    idle.pass(10);
    idle.check("client/dynamic_config", 2);
    assert_eq!(idle.fake.bodies("cancel_future").len(), 0);
    idle.check_cancels();
}

#[test]
fn session_dynamic_config_stays_when_it_cannot_be_read() {
    let on = dynamic(json!({"refresh_interval_sec": 10, "sample_cancel_enabled": true}));
    let idle = Idle::new("client/dynamic_config", [on, status(500), Reply::hang_up()]);
    for count in 2..=3 {
        idle.pass(10);
        idle.check("client/dynamic_config", count);
    }
    idle.check_cancels();
}
