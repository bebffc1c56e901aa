//! `tinker auth`: the stored API key.

use std::io::{self, IsTerminal};

use anyhow::Context as _;
use clap::Subcommand;
use tinker::client::RawCall;
use tinker::config::{Config, CredentialStore, KeyDetails, StoredKey};
use tinker::types::console;
use tinker::{Error, ServiceClient};

use crate::context::Context;
use crate::failure::Failure;
use crate::output::Table;
use crate::terminal;

#[derive(Debug, Subcommand)]
pub(crate) enum Auth {
    /// Store an API key, once the service has confirmed it.
    Login,
    /// Remove the stored API key.
    Logout,
    /// Check that there is a credential and that the service accepts it.
    Status,
    /// Show whose the credential is.
    Whoami,
}

impl Auth {
    pub(crate) fn run(self, context: &mut Context) -> anyhow::Result<()> {
        match self {
            Self::Login => login(context),
            Self::Logout => logout(context),
            Self::Status => status(context),
            Self::Whoami => whoami(context),
        }
    }
}

fn store(config: &Config) -> anyhow::Result<CredentialStore> {
    config.credential_store().ok_or_else(|| {
        Failure::new("there is no home folder to keep the key in")
            .advise("Set HOME, or pass the key in TINKER_API_KEY.")
            .into()
    })
}

fn login(context: &mut Context) -> anyhow::Result<()> {
    let config = context.config()?;
    let store = store(&config)?;
    if store.load()?.default_key().is_some() {
        return Err(Failure::new("already logged in")
            .advise("Run 'tinker auth logout' before logging in again.")
            .into());
    }
    let host = machine();
    let url = console::new_api_key_url(&format!("tinker-cli-{host}"));
    context
        .out
        .line(&format!("Create an API Key: {}", link(&url)))?;
    context.out.flush()?;
    let key = terminal::secret("Paste your API key")?;
    if key.is_empty() {
        return Err(Failure::new("the API key must not be empty").into());
    }
    let service = ServiceClient::new(config)?;
    let info = service
        .rest()
        .api_key_info(key.as_str())
        .context("could not validate the API key")?;
    let mut stored = StoredKey::manual(key, &info.name);
    let mut greeting = "Logged in.".to_owned();
    if let Some(details) = &info.details {
        let (organization, email) = (&details.org_details.name, &details.user_details.email);
        greeting = format!("Logged in as {email} ({organization}).");
        let whose = KeyDetails {
            organization: organization.clone(),
            email: email.clone(),
        };
        stored = stored.with_details(info.note.clone().unwrap_or_default(), whose);
    }
    let id = info.key_id.to_string();
    store.update(|keys| {
        keys.insert(id.as_str(), stored);
        keys.set_default(Some(&id));
    })?;
    context.out.line(&format!(
        "{greeting} Stored API key '{}' as the default credential.",
        info.name
    ))
}

/// This machine's name, for the key's.
fn machine() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    #[cfg(not(unix))]
    let name = String::new();
    let short = name.split('.').next().unwrap_or_default().trim();
    if short.is_empty() { "unknown" } else { short }.to_owned()
}

fn logout(context: &mut Context) -> anyhow::Result<()> {
    let config = context.config()?;
    let store = store(&config)?;
    let keys = store.load()?;
    let (Some(id), Some(record)) = (keys.default_id(), keys.default_key()) else {
        return Err(Failure::new("no default credential is stored")
            .advise("There is nothing to log out from. Run 'tinker auth login' to log in.")
            .into());
    };
    let (id, name) = (id.to_owned(), record.name());
    // Keys made for this machine end with it; one the user made may be in use elsewhere.
    let generated = matches!(record, StoredKey::Generated { .. });
    let deleted = match generated {
        true => ServiceClient::new(config)?
            .rest()
            .delete_api_key(record.key().clone()),
        false => Ok(()),
    };
    // The file is cleared whatever the service says.
    store.update(|keys| keys.remove(&id))?;
    let organization = record.details().map_or_else(
        || "unknown (not stored with this credential)".to_owned(),
        |details| details.organization.clone(),
    );
    let hint = format!(
        "API key organization: {organization}\nDelete api key here: {}",
        link(&console::api_key_url(&id))
    );
    match (generated, deleted) {
        (true, Ok(())) => context.out.line(&format!(
            "Removed credential '{name}' and deleted its API key on the server."
        )),
        (_, Err(error)) => Err(Failure::new(format!(
            "could not delete the API key on the server: {error}"
        ))
        .advise(format!(
            "Removed the local credential.\nAPI key name: {name}\nAPI key ID: {id}\n{hint}"
        ))
        .into()),
        (false, Ok(())) => {
            context.out.line(&format!(
                "Removed credential '{name}'. The API key is still active."
            ))?;
            context.out.line(&hint)
        }
    }
}

fn status(context: &mut Context) -> anyhow::Result<()> {
    let has = context.config()?.has_credential();
    let answer = |yes: bool| if yes { "yes" } else { "no" };
    context
        .out
        .line(&format!("Credentials available: {}", answer(has)))?;
    if !has {
        return Err(Failure::new("no Tinker credentials are available")
            .advise("Run 'tinker auth login' or set TINKER_API_KEY.")
            .into());
    }
    let call = RawCall::get("get_server_capabilities").without_retries();
    let reached = context.service()?.call_raw(&call);
    context
        .out
        .line(&format!("Tinker accessible: {}", answer(reached.is_ok())))?;
    context.out.flush()?;
    reached.map(drop).map_err(Into::into)
}

fn whoami(context: &mut Context) -> anyhow::Result<()> {
    let has_key = context.config()?.has_credential();
    let who = context.service()?.whoami().map_err(|error| match error {
        Error::Credentials(_) if has_key => anyhow::Error::from(
            Failure::new(error.to_string()).advise("'tinker auth status' checks the key itself."),
        ),
        error => error.into(),
    })?;
    if context.is_json() {
        return context.out.json(&who);
    }
    let mut table = Table::properties();
    table.row(["Email", who.email.as_deref().unwrap_or("N/A")]);
    table.row(["User", &who.user_urn]);
    table.row(["Organization", &who.org_urn]);
    context.out.table(&table)
}

/// An address that terminals make clickable.
fn link(url: &str) -> String {
    match io::stdout().is_terminal() {
        true => format!("\x1b]8;;{url}\x1b\\{url}\x1b]8;;\x1b\\"),
        false => url.to_owned(),
    }
}
