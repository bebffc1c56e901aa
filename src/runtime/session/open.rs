//! Opening a session, or joining one.

use std::sync::Arc;

use super::Session;
use super::core::Core;
use super::counters::Counters;
use super::heartbeat::heartbeat;
use super::upkeep::upkeep;
use crate::config::Config;
use crate::error::Result;
use crate::runtime::calls::Link;
use crate::runtime::process::Process;
use crate::transport::PROTOCOL_VERSION;
use crate::types::{ClientConfig, DynamicConfig};
use crate::wire::reply::CreateSessionReply;
use crate::wire::request::{CreateSessionRequest, to_json};
use crate::wire::route;

impl Session {
    /// Opens a session with the service.
    pub(crate) fn open(
        link: Arc<Link>,
        config: Config,
        client_config: ClientConfig,
        dynamic: DynamicConfig,
    ) -> Result<Arc<Self>> {
        let body = to_json(&CreateSessionRequest {
            tags: config.tags.as_slice().into(),
            user_metadata: std::borrow::Cow::Borrowed(&config.user_metadata),
            sdk_version: PROTOCOL_VERSION.into(),
            project_id: config.project_id.as_deref().map(Into::into),
            display_name: config.display_name.as_deref().map(Into::into),
        })?;
        let reply: CreateSessionReply = link.json(&route::CREATE_SESSION, &body)?;
        for (level, message) in [
            (log::Level::Info, &reply.info_message),
            (log::Level::Warn, &reply.warning_message),
            (log::Level::Error, &reply.error_message),
        ] {
            if let Some(message) = message {
                log::log!(
                    level,
                    "the service says: {}",
                    link.transport().redact(message)
                );
            }
        }
        let (id, is_owner) = (reply.session_id, true);
        Self::start(link, config, client_config, dynamic, id, is_owner)
    }

    /// Joins a session that another client opened: keeps it alive, and leaves ending it to its
    /// owner.
    pub(crate) fn join(
        link: Arc<Link>,
        config: Config,
        client_config: ClientConfig,
        dynamic: DynamicConfig,
        session_id: String,
    ) -> Result<Arc<Self>> {
        Self::start(link, config, client_config, dynamic, session_id, false)
    }

    fn start(
        link: Arc<Link>,
        config: Config,
        client_config: ClientConfig,
        dynamic: DynamicConfig,
        session_id: String,
        is_owner: bool,
    ) -> Result<Arc<Self>> {
        let core = Arc::new(Core::new(link, config, client_config, dynamic, session_id));
        let session = Arc::new(Self {
            core: core.clone(),
            counters: Arc::new(Counters::default()),
            is_owner,
            process: Process::current(),
        });
        let beating = core.clone();
        core.background
            .spawn("tinker-heartbeat", move || heartbeat(&beating))?;
        let kept = core.clone();
        core.background
            .spawn("tinker-upkeep", move || upkeep(&kept))?;
        if core.config.telemetry {
            let (telemetry, link) = (core.telemetry.clone(), core.link.clone());
            core.background.spawn("tinker-telemetry", move || {
                telemetry.run(&link, link.stop())
            })?;
        }
        Ok(session)
    }
}
