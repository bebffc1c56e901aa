use std::collections::HashMap;
use std::ffi::OsString;

use serde_json::Value;

use super::*;
use crate::error::Error;

fn from_pairs(pairs: &[(&str, &str)]) -> Config {
    let pairs: HashMap<_, _> = pairs.iter().copied().collect();
    Config::from_lookup(|name| pairs.get(name).map(OsString::from)).unwrap()
}

fn golden() -> Value {
    serde_json::from_str(include_str!("../../tests/fixtures/wire/auth.json")).unwrap()
}

#[test]
fn base_urls_resolve_as_the_reference_does() {
    for case in golden()["base_url"].as_array().unwrap() {
        let env = case["TINKER_BASE_URL"].as_str();
        let mut config = from_pairs(
            &env.map(|v| ("TINKER_BASE_URL", v))
                .into_iter()
                .collect::<Vec<_>>(),
        );
        if let Some(argument) = case["argument"].as_str() {
            config = config.with_base_url(argument);
        }
        assert_eq!(
            config.base_url().unwrap(),
            case["resolved"].as_str().unwrap(),
            "{case}"
        );
    }
}

#[test]
fn unusable_base_urls_say_what_to_do() {
    #[track_caller]
    fn check(url: &str, problem: &str) {
        let error = Config::default().with_base_url(url).base_url().unwrap_err();
        assert!(matches!(error, Error::Config(_)));
        let text = error.to_string();
        assert!(
            text.contains(problem) && text.contains("give one such as"),
            "{text}"
        );
        assert!(!text.contains("hunter2"), "{text}");
    }
    check("tinker.example", "no scheme");
    check("ftp://host", "neither http nor https");
    check("http://", "no host");
    check("http:///path", "no host");
    check("http://:80", "no host");
    check("http://host:port", "port that is not a number");
    check("http://host:99999", "port that is not a number");
    check("http://host/?key=1", "query");
    check("http://ho st", "white space");
    check("http://me:hunter2@host", "user or password");
}

#[test]
fn the_environment_is_read_once_and_empty_means_unset() {
    let config = from_pairs(&[
        ("TINKER_API_KEY", ""),
        ("TINKER_CREDENTIAL_CMD", "print-key"),
        ("TINKER_PROJECT_ID", "p"),
        ("TINKER_TAGS", "a,b,a"),
        ("TINKER_TELEMETRY", "off"),
        ("TINKER_LOG", "debug"),
        ("HOME", "/home/u"),
        ("CLOUDFLARE_ACCESS_CLIENT_ID", "id"),
    ]);
    assert_eq!(config.api_key, None);
    assert_eq!(config.credential_command, Some(Secret::from("print-key")));
    assert_eq!(config.project_id.as_deref(), Some("p"));
    assert_eq!(config.tags, ["a", "b"]);
    assert!(!config.telemetry);
    assert_eq!(config.log_level(), Some(log::LevelFilter::Debug));
    assert_eq!(
        config.credentials_path,
        Some(PathBuf::from("/home/u/.tinker/credentials.json"))
    );
    assert_eq!(config.cloudflare_id, Some(Secret::from("id")));
    assert_eq!(config.cloudflare_secret, None);
}

#[test]
fn tags_of_an_empty_variable_are_one_empty_tag() {
    assert_eq!(from_pairs(&[("TINKER_TAGS", "")]).tags, [""]);
    assert!(from_pairs(&[]).tags.is_empty());
}

#[test]
fn telemetry_is_on_for_four_words() {
    for (value, on) in [
        ("1", true),
        ("TRUE", true),
        ("yes", true),
        ("On", true),
        ("0", false),
        ("", false),
        ("y", false),
    ] {
        assert_eq!(
            from_pairs(&[("TINKER_TELEMETRY", value)]).telemetry,
            on,
            "{value}"
        );
    }
    assert!(from_pairs(&[]).telemetry);
}

#[test]
fn proxies_come_by_scheme_from_either_case() {
    let config = from_pairs(&[
        ("https_proxy", "http://s:1"),
        ("ALL_PROXY", "http://a:1"),
        ("NO_PROXY", "localhost, .internal ,"),
    ]);
    assert_eq!(
        config.proxies,
        Proxies::Environment {
            http: Some("http://a:1".into()),
            https: Some("http://s:1".into()),
            except: vec!["localhost".into(), ".internal".into()],
        }
    );
    assert_eq!(config.without_proxy().proxies, Proxies::None);
}

#[test]
fn debug_shows_no_secret() {
    let config = from_pairs(&[
        ("HTTPS_PROXY", "http://u:hunter2@p:1"),
        ("TINKER_CREDENTIAL_CMD", "echo hunter2"),
    ])
    .with_api_key("tml-hunter2")
    .with_header("X-Extra", "hunter2")
    .with_cloudflare_access("hunter2", "hunter2")
    .with_root_certificates("hunter2");
    let text = format!("{config:?}");
    assert!(!text.contains("hunter2"), "{text}");
    let text = format!("{:?}", config.with_proxy("http://u:hunter2@p:1"));
    assert!(!text.contains("hunter2"), "{text}");
    for url in [
        "https://me:hunter2@host/a",
        "me:hunter2@host",
        "//hunter2@host",
    ] {
        let config = Config::default()
            .with_base_url(url)
            .with_handle_origin("https://host")
            .with_handle_origin(url);
        let text = format!("{config:?}");
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("***@host"), "{text}");
        let refused = config.base_url().unwrap_err().to_string();
        assert!(!refused.contains("hunter2"), "{refused}");
        assert!(refused.contains("***@host"), "{refused}");
    }
    let config = Config::default().with_base_url("https://host/a?key=hunter2");
    let refused = config.base_url().unwrap_err();
    let text = format!("{config:?} {refused}");
    assert!(!text.contains("hunter2"), "{text}");
    assert_eq!(text.matches("https://host/a?***").count(), 2, "{text}");
    let text = format!("{:?}", Config::default().with_base_url("https://host/a"));
    assert!(text.contains("\"https://host/a\""), "{text}");
}

#[cfg(unix)]
#[test]
fn a_variable_that_is_not_unicode_is_named() {
    use std::os::unix::ffi::OsStringExt;
    let error = Config::from_lookup(|name| {
        (name == "TINKER_PROJECT_ID").then(|| OsString::from_vec(vec![0xff]))
    })
    .unwrap_err();
    assert!(error.to_string().contains("TINKER_PROJECT_ID"));
}

#[test]
fn the_stored_file_has_the_reference_text_and_modes() {
    let golden = &golden()["credentials_file"];
    let folder = tempfile::tempdir().unwrap();
    let store = CredentialStore::new(folder.path().join("new/credentials.json"));
    let whose = KeyDetails {
        organization: "Org".into(),
        email: "a@b.c".into(),
    };
    store
        .update(|keys| {
            keys.insert(
                "42",
                StoredKey::manual("tml-a", "laptop").with_details("", whose.clone()),
            );
            keys.insert(
                "43",
                StoredKey::Generated {
                    key: "tml-b".into(),
                    name: "old".into(),
                    details: whose,
                },
            );
            keys.set_default(Some("42"));
        })
        .unwrap();
    let text = std::fs::read_to_string(store.path()).unwrap();
    assert_eq!(text, golden["text"].as_str().unwrap());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode =
            |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(store.path()), 0o600);
        assert_eq!(mode(store.path().parent().unwrap()), 0o700);
    }
    assert!(store.update(|keys| keys.remove("42")).unwrap().is_some());
    let text = std::fs::read_to_string(store.path()).unwrap();
    assert_eq!(
        text,
        golden["text_after_deleting_default"].as_str().unwrap()
    );
    assert_eq!(store.load().unwrap().default_id(), None);
}

#[test]
fn damaged_files_are_reported_without_their_content() {
    let folder = tempfile::tempdir().unwrap();
    let store = CredentialStore::new(folder.path().join("credentials.json"));
    for text in [
        "",
        "{",
        "tml-hunter2",
        r#"{"version":2,"keys":{}}"#,
        r#"{"version":1,"keys":{"a":{"type":"tml-hunter2"}}}"#,
    ] {
        std::fs::write(store.path(), text).unwrap();
        let error = store.load().unwrap_err().to_string();
        assert!(error.contains("repair it or remove it"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        assert!(
            store.update(|_| ()).is_err(),
            "a damaged file is never overwritten"
        );
        assert_eq!(std::fs::read_to_string(store.path()).unwrap(), text);
    }
}

#[test]
fn an_unreadable_file_is_named_and_is_not_an_empty_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = CredentialStore::new(folder.path());
    let error = store.load().unwrap_err().to_string();
    assert!(error.contains("cannot be read"), "{error}");
    let below_a_file = folder.path().join("file/credentials.json");
    std::fs::write(folder.path().join("file"), "").unwrap();
    let error = CredentialStore::new(below_a_file)
        .update(|_| ())
        .unwrap_err();
    assert!(error.to_string().contains("cannot be written"), "{error}");
}
