//! The environment, read once.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{Config, Proxies, Secret, Trusted};
use crate::error::{Context, Error, Result};

impl Config {
    /// [`from_env`](Self::from_env) with any source of variables.
    pub(crate) fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let raw = |name: &str| match lookup(name).map(OsString::into_string) {
            Some(Err(_)) => Err(Error::Config(Context::new(format!(
                "the environment variable {name} is not valid Unicode: set it again or unset it"
            )))),
            Some(Ok(text)) => Ok(Some(text)),
            None => Ok(None),
        };
        let text = |name: &str| Ok::<_, Error>(raw(name)?.filter(|text| !text.is_empty()));
        let secret = |name: &str| Ok::<_, Error>(text(name)?.map(Secret::from));
        let proxy = |upper: &str| match secret(upper)? {
            None => secret(&upper.to_ascii_lowercase()),
            found => Ok(found),
        };
        let all = proxy("ALL_PROXY")?;
        let home = lookup("HOME")
            .or_else(|| lookup("USERPROFILE"))
            .filter(|home| !home.is_empty());
        Ok(Self {
            base_url: text("TINKER_BASE_URL")?.map(Into::into),
            api_key: secret("TINKER_API_KEY")?,
            credential_command: secret("TINKER_CREDENTIAL_CMD")?,
            credentials_path: home.map(|home| PathBuf::from(home).join(".tinker/credentials.json")),
            project_id: text("TINKER_PROJECT_ID")?,
            // A variable that is set but empty means one empty tag, as in the reference.
            tags: raw("TINKER_TAGS")?.map_or_else(Vec::new, |tags| split_tags(&tags)),
            cloudflare_id: secret("CLOUDFLARE_ACCESS_CLIENT_ID")?,
            cloudflare_secret: secret("CLOUDFLARE_ACCESS_CLIENT_SECRET")?,
            proxies: Proxies::Environment {
                http: proxy("HTTP_PROXY")?.or_else(|| all.clone()),
                https: proxy("HTTPS_PROXY")?.or(all),
                except: proxy("NO_PROXY")?.map_or_else(Vec::new, |list| split_list(list.expose())),
            },
            // The file goes before the folder, as in Python's httpx.
            trusted: match (text("SSL_CERT_FILE")?, text("SSL_CERT_DIR")?) {
                (Some(file), _) => Trusted::File(file.into()),
                (None, Some(folder)) => Trusted::Folder(folder.into()),
                (None, None) => Trusted::BuiltIn,
            },
            telemetry: raw("TINKER_TELEMETRY")?.is_none_or(|value| is_on(&value)),
            log_level: text("TINKER_LOG")?.and_then(|level| match level.as_str() {
                "debug" => Some(log::LevelFilter::Debug),
                "info" => Some(log::LevelFilter::Info),
                _ => None,
            }),
            ..Self::default()
        })
    }
}

fn split_tags(tags: &str) -> Vec<String> {
    let mut kept: Vec<String> = Vec::new();
    for tag in tags.split(',') {
        if !kept.iter().any(|known| known == tag) {
            kept.push(tag.to_owned());
        }
    }
    kept
}

fn split_list(list: &str) -> Vec<String> {
    list.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
        .map(str::to_owned)
        .collect()
}

fn is_on(value: &str) -> bool {
    ["1", "true", "yes", "on"]
        .iter()
        .any(|on| value.eq_ignore_ascii_case(on))
}
