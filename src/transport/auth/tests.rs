use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::json;

use super::*;
use crate::config::{CredentialStore, StoredKey};

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../tests/fixtures/wire/auth.json")).unwrap()
}

#[test]
fn credentials_resolve_as_in_the_reference() {
    for case in golden()["resolution"].as_array().unwrap() {
        let folder = tempfile::tempdir().unwrap();
        let text = |name: &str| case[name].as_str();
        let mut config = Config::from_lookup(|name| {
            let known = ["TINKER_API_KEY", "TINKER_CREDENTIAL_CMD"].contains(&name);
            text(name).filter(|_| known).map(Into::into)
        })
        .unwrap()
        .with_credentials_file(folder.path().join("credentials.json"));
        if let Some(argument) = text("argument") {
            config = config.with_api_key(argument);
        }
        if let Some(key) = text("stored_default") {
            let store = config.credential_store().unwrap();
            store
                .update(|keys| {
                    keys.insert("1", StoredKey::manual(key, "n"));
                    keys.set_default(Some("1"));
                })
                .unwrap();
        }
        let policy = if case["enforce_cmd"] == true {
            CommandPolicy::Required
        } else {
            CommandPolicy::Optional
        };
        let outcome = Credential::resolve(&config, policy);
        match text("outcome").unwrap() {
            "ApiKeyAuthProvider" => assert!(matches!(outcome, Ok(Credential::Key(_))), "{case}"),
            "CredentialCmdAuthProvider" => {
                assert!(matches!(outcome, Ok(Credential::Command(_))), "{case}");
            }
            _ => {}
        }
        let token = outcome.and_then(|credential| credential.secret(LIMIT, &|| false));
        assert_eq!(
            token.as_ref().ok().map(Secret::expose),
            text("token"),
            "{case}"
        );
        if let Err(error) = token {
            assert!(matches!(error, Error::Credentials(_)), "{error}");
        }
    }
}

#[test]
fn other_hosts_have_their_own_keys() {
    let config = Config::default().with_api_key("anything");
    let error = Credential::resolve_key(&config).unwrap_err().to_string();
    assert!(
        error.contains("tml-") && !error.contains("anything"),
        "{error}"
    );
    let elsewhere = config.with_base_url("http://127.0.0.1:8000");
    assert_eq!(
        Credential::resolve_key(&elsewhere).unwrap().expose(),
        "anything"
    );
}

#[test]
fn a_service_without_tokens_wants_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("credentials.json");
    let store = CredentialStore::new(&path);
    store
        .update(|keys| {
            keys.insert("1", StoredKey::manual("tml-stored", "n"));
            keys.set_default(Some("1"));
        })
        .unwrap();
    let config = Config::default().with_credentials_file(path);
    assert_eq!(
        Credential::resolve_key(&config).unwrap().expose(),
        "tml-stored"
    );
    let config = config.with_credential_command("echo x");
    let error = Credential::resolve_key(&config).unwrap_err().to_string();
    assert!(error.contains("set TINKER_API_KEY"), "{error}");
    let config = config.with_api_key("tml-key");
    assert_eq!(
        Credential::resolve_key(&config).unwrap().expose(),
        "tml-key"
    );
}

#[test]
fn missing_and_required_credentials_say_what_to_set() {
    let error = |policy| {
        Credential::resolve(&Config::default(), policy)
            .unwrap_err()
            .to_string()
    };
    assert!(error(CommandPolicy::Optional).contains("set TINKER_API_KEY"));
    assert!(error(CommandPolicy::Required).contains("set TINKER_CREDENTIAL_CMD"));
}

#[cfg(unix)]
#[test]
fn commands_are_trimmed_bounded_and_never_shown() {
    let run = |command: &str, limit| command::run(&Secret::from(command), limit, &|| false);
    let long = Duration::from_secs(60);
    assert_eq!(run("printf ' key \\n'", long).unwrap().expose(), "key");
    assert_eq!(run("echo key; exit 3", long).unwrap().expose(), "key");
    let large = run("head -c 200000 /dev/zero | tr '\\0' k", long).unwrap();
    assert_eq!(large.expose().len(), 200_000);
    for (command, limit, words) in [
        ("true # hunter2", long, "printed no credential"),
        ("exit 7 # hunter2", long, "printed no credential"),
        (
            "sleep 600 # hunter2",
            Duration::from_millis(30),
            "did not finish within 0.03 s",
        ),
        (
            "sleep 600 & echo hunter2; wait",
            Duration::from_millis(30),
            "did not finish",
        ),
        (
            "exec >&-; sleep 600",
            Duration::from_millis(30),
            "did not finish",
        ),
    ] {
        let error = run(command, limit).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains(words) && !text.contains("hunter2"), "{text}");
    }
}

#[cfg(unix)]
#[test]
fn a_command_ends_with_its_client() {
    let looks = std::cell::Cell::new(0);
    let closed = || looks.replace(looks.get() + 1) >= 3;
    for command in ["sleep 600", "exec >&-; sleep 600"] {
        looks.set(0);
        let run = command::run(&command.into(), Duration::from_secs(60), &closed);
        assert!(matches!(run, Err(Error::Closed(_))), "{run:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_that_hangs_is_ended_with_what_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let script = format!("sleep 600 & echo $! > {}; wait", file.display());
    let script = Secret::from(script);
    // On a busy machine the shell may need longer than the first limit to come that far.
    let pid = [100, 1_000, 10_000]
        .into_iter()
        .find_map(|limit| {
            assert!(command::run(&script, Duration::from_millis(limit), &|| false).is_err());
            let pid = std::fs::read_to_string(&file).ok()?;
            pid.ends_with('\n').then(|| pid.trim().to_owned())
        })
        .unwrap();
    // The signal is sent by now; the system may still be carrying it out.
    let status = format!("/proc/{pid}/status");
    while std::fs::read_to_string(&status).is_ok_and(|text| !text.contains("State:\tZ")) {
        thread::yield_now();
    }
}

fn jwt(claims: &Value) -> Secret {
    let part = URL_SAFE_NO_PAD.encode(claims.to_string());
    Secret::from(format!("eyJhbGciOiJub25lIn0.{part}.sig"))
}

const EPOCH: u64 = 1_700_000_000;

fn at(seconds: u64) -> Moment {
    moment(seconds.cast_signed(), seconds)
}

/// So many seconds later by each clock.
fn moment(wall: i64, steady: u64) -> Moment {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    Moment {
        wall: UNIX_EPOCH + Duration::from_secs(EPOCH.saturating_add_signed(wall)),
        steady: *START + Duration::from_secs(steady),
    }
}

fn expiring(seconds: u64) -> Secret {
    jwt(&json!({"exp": EPOCH + seconds}))
}

#[test]
fn claims_say_who_we_are() {
    let claims = Claims::parse(&jwt(&json!({
        "sub": "tml:user:1", "org_id": "o1", "email": "", "iss": "passport-x", "exp": 12.5
    })))
    .unwrap();
    assert_eq!(claims.user_urn.as_deref(), Some("tml:user:1"));
    assert_eq!(claims.org_urn.as_deref(), Some("tml:organization:o1"));
    assert_eq!(claims.email, None);
    assert_eq!(claims.expires, Some(12.5));
    assert!(claims.is_passport());
    assert!(
        !Claims::parse(&jwt(&json!({"iss": "other"})))
            .unwrap()
            .is_passport()
    );
    for text in ["", "tml-1", "eyJ.!!.x", "a.e30K", "a.WzFd.c", "a..c"] {
        match Claims::parse(&Secret::from(text)) {
            Err(error) => assert!(error.to_string().contains("not a JWT"), "{error}"),
            // `a.e30K` is an empty object.
            Ok(claims) => assert_eq!((text, claims), ("a.e30K", Claims::default())),
        }
    }
}

#[test]
fn a_token_is_used_until_a_minute_before_its_end() {
    let cache = TokenCache::default();
    let first = cache.token(at(0), LIMIT, |_| Ok(expiring(3600))).unwrap();
    let unused = |_| -> Result<Secret> { panic!("no exchange is due") };
    assert_eq!(cache.token(at(3539), LIMIT, unused).unwrap(), first);
    let second = cache
        .token(at(3540), LIMIT, |_| Ok(expiring(7200)))
        .unwrap();
    assert_ne!(first, second);
    assert_eq!(cache.claims().unwrap().expires, Some(1_700_007_200.0));
}

#[test]
fn a_failed_exchange_falls_back_to_the_old_token() {
    let cache = TokenCache::default();
    let fail = |_| Err(Error::Connection(Context::new("down")));
    assert!(cache.token(at(0), LIMIT, fail).is_err());
    let first = cache.token(at(0), LIMIT, |_| Ok(expiring(100))).unwrap();
    assert_eq!(cache.token(at(99), LIMIT, fail).unwrap(), first);
    assert_eq!(cache.token(at(500), LIMIT, fail).unwrap(), first);
}

#[test]
fn the_background_renews_five_minutes_before_the_end() {
    let cache = TokenCache::default();
    let seconds = Duration::from_secs;
    assert_eq!(
        cache.next_refresh(at(0)),
        seconds(60),
        "nothing to renew yet"
    );
    cache.token(at(0), LIMIT, |_| Ok(expiring(3600))).unwrap();
    assert_eq!(cache.next_refresh(at(0)), seconds(3300));
    let unused = |_| -> Result<Secret> { panic!("not due") };
    assert_eq!(cache.refresh(at(3299), unused), seconds(1));
    let fail = |_| Err(Error::Connection(Context::new("down")));
    assert_eq!(cache.refresh(at(3300), fail), seconds(60));
    assert_eq!(
        cache.refresh(at(3360), |_| Ok(expiring(7200))),
        seconds(3540)
    );
}

#[test]
fn short_lived_tokens_are_not_asked_for_in_a_loop() {
    #[track_caller]
    fn check(life: u64, usable: u64, wait: u64) {
        let cache = TokenCache::default();
        let token = cache.token(at(0), LIMIT, |_| Ok(expiring(life))).unwrap();
        assert_eq!(
            lock(&cache.state).fresh(at(usable - 1)),
            Some(token),
            "{life}"
        );
        assert_eq!(lock(&cache.state).fresh(at(usable)), None, "{life}");
        assert_eq!(
            cache.next_refresh(at(0)),
            Duration::from_secs(wait),
            "{life}"
        );
    }
    check(3600, 3540, 3300);
    check(400, 340, 200);
    check(100, 50, 50);
    check(20, 10, 10);
    check(4, 2, 5);
    // Already over, or without an end: as long as after a failure.
    let cache = TokenCache::default();
    cache.token(at(10), LIMIT, |_| Ok(expiring(0))).unwrap();
    assert_eq!(cache.next_refresh(at(10)), Duration::from_secs(60));
    cache
        .token(at(10), LIMIT, |_| Ok(Secret::from("opaque")))
        .unwrap();
    assert_eq!(cache.next_refresh(at(10)), Duration::from_secs(60));
    assert!(
        lock(&cache.state).fresh(at(69)).is_some() && lock(&cache.state).fresh(at(70)).is_none()
    );
}

#[test]
fn a_clock_that_is_set_neither_keeps_a_dead_token_nor_asks_for_each_request() {
    /// A token fetched by this wall clock can be used until so many seconds after, by the other.
    #[track_caller]
    fn check(token: &Secret, fetched: i64, later: i64, usable: u64) {
        let cache = TokenCache::default();
        let fetch = |_| Ok(token.clone());
        cache.token(moment(fetched, 0), LIMIT, fetch).unwrap();
        let fresh = |steady| lock(&cache.state).fresh(moment(later, steady)).is_some();
        assert!(usable == 0 || fresh(usable - 1), "{usable}");
        assert!(!fresh(usable), "{usable}");
    }
    let hour = expiring(3600);
    let day = 86_400;
    check(&hour, 0, 0, 3540);
    // Set back, a little or a lot, after the token was fetched.
    check(&hour, 0, -day, 3540);
    check(&hour, 0, -10, 3540);
    // Set forward, or the machine slept.
    check(&hour, 0, 3540, 0);
    // Ahead all along: the token is over by this clock, but only just issued.
    check(&hour, day, day, 60);
    // Behind all along: the token says itself how long it lasts.
    let says = jwt(&json!({"iat": EPOCH, "exp": EPOCH + 3600}));
    check(&says, -day, -day, 3540);
    check(&says, 1800, 1800, 1740);
}

#[test]
fn many_callers_share_one_exchange() {
    let cache = TokenCache::default();
    let exchanges = AtomicUsize::new(0);
    let start = Barrier::new(16);
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                start.wait();
                let fetch = |_| {
                    exchanges.fetch_add(1, Ordering::SeqCst);
                    Ok(expiring(3600))
                };
                cache.token(at(0), LIMIT, fetch).unwrap();
            });
        }
    });
    assert_eq!(exchanges.load(Ordering::SeqCst), 1);
}

const LIMIT: Duration = TokenCache::LIMIT;

/// Starts an exchange that ends with what is sent, and calls `meanwhile` while it runs.
fn during_an_exchange(
    cache: &TokenCache,
    now: Moment,
    outcome: Result<Secret>,
    meanwhile: impl FnOnce(),
) {
    let (begun, started) = crossbeam_channel::unbounded();
    let (end, ending) = crossbeam_channel::unbounded::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let fetch = |_| {
                begun.send(()).unwrap();
                ending.recv().unwrap();
                outcome
            };
            let _ = cache.token(now, LIMIT, fetch);
        });
        started.recv().unwrap();
        meanwhile();
        end.send(()).unwrap();
    });
}

#[test]
fn an_unexpired_token_is_used_while_another_is_fetched() {
    let cache = TokenCache::default();
    let first = cache.token(at(0), LIMIT, |_| Ok(expiring(3600))).unwrap();
    let unused = |_| -> Result<Secret> { panic!("no exchange is wanted") };
    let hurried = cache.token(at(3550), Duration::from_secs(5), unused);
    assert_eq!(hurried.unwrap(), first);
    during_an_exchange(&cache, at(3550), Ok(expiring(7200)), || {
        let unused = |_| -> Result<Secret> { panic!("one exchange is enough") };
        assert_eq!(cache.token(at(3550), LIMIT, unused).unwrap(), first);
    });
}

#[test]
fn those_who_wait_for_an_exchange_share_its_failure() {
    let cache = TokenCache::default();
    let (begun, started) = crossbeam_channel::unbounded();
    let (end, ending) = crossbeam_channel::unbounded::<()>();
    thread::scope(|scope| {
        scope.spawn(|| {
            let fetch = |_| {
                begun.send(()).unwrap();
                ending.recv().unwrap();
                Err(Error::Connection(Context::new("down")))
            };
            cache.token(at(0), LIMIT, fetch).unwrap_err();
        });
        started.recv().unwrap();
        let nobody = |_| -> Result<Secret> { panic!("one exchange is enough") };
        let error = cache.token(at(0), Duration::ZERO, nobody).unwrap_err();
        assert!(error.is_timeout(), "{error}");
        // The exchange cannot end before this waits.
        let state = lock(&cache.state);
        end.send(()).unwrap();
        let error = cache.wait(state, LIMIT).unwrap_err();
        assert!(error.to_string().ends_with("down"), "{error}");
    });
}
