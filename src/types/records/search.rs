//! Searching sessions.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{FinishReason, SessionSummary};
use crate::types::{SessionId, Timestamp, time};
use crate::{Error, Result};

/// Which sessions to find.
///
/// ```
/// use tinker::types::{SearchOwner, SessionSearch, StatusQuery};
///
/// let search = SessionSearch::default()
///     .with_display_name("night")
///     .with_owner(SearchOwner::Accessible)
///     .with_status(StatusQuery::Active)
///     .with_limit(10);
/// search.validate()?;
/// assert!(search.with_limit(201).validate().is_err());
/// # Ok::<(), tinker::Error>(())
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionSearch {
    /// This session. With `display_name`, a session that matches either is found. Default: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// In these projects. Default: all that the caller may list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_ids: Option<Vec<String>>,
    /// With all of these notes. Default: any.
    pub user_metadata: BTreeMap<String, String>,
    /// With these words in its name, in any case. Default: any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Whose. Default: the caller's own.
    pub owner: SearchOwner,
    /// In any of these states. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub statuses: Option<Vec<StatusQuery>>,
    /// How many on a page, 1 to 200. Default: 50.
    pub limit: u32,
    /// Where the page begins. Default: at the newest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<SessionSearchCursor>,
}

impl Default for SessionSearch {
    fn default() -> Self {
        Self {
            session_id: None,
            project_ids: None,
            user_metadata: BTreeMap::new(),
            display_name: None,
            owner: SearchOwner::Own,
            statuses: None,
            limit: 50,
            cursor: None,
        }
    }
}

impl SessionSearch {
    /// Finds this session.
    #[must_use]
    pub fn with_session_id(mut self, id: impl Into<SessionId>) -> Self {
        self.session_id = Some(id.into());
        self
    }

    /// Looks in one more project.
    #[must_use]
    pub fn with_project(mut self, id: impl Into<String>) -> Self {
        self.project_ids.get_or_insert_default().push(id.into());
        self
    }

    /// Demands one more note.
    #[must_use]
    pub fn with_user_metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.user_metadata.insert(key.into(), value.into());
        self
    }

    /// Demands these words in the name.
    #[must_use]
    pub fn with_display_name(mut self, words: impl Into<String>) -> Self {
        self.display_name = Some(words.into());
        self
    }

    /// Says whose sessions to search.
    #[must_use]
    pub fn with_owner(mut self, owner: SearchOwner) -> Self {
        self.owner = owner;
        self
    }

    /// Admits one more state.
    #[must_use]
    pub fn with_status(mut self, status: StatusQuery) -> Self {
        self.statuses.get_or_insert_default().push(status);
        self
    }

    /// Sets how many sessions are on a page.
    #[must_use]
    pub fn with_limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Begins where another page ended.
    #[must_use]
    pub fn with_cursor(mut self, cursor: SessionSearchCursor) -> Self {
        self.cursor = Some(cursor);
        self
    }

    /// Checks the search. Clients call this before sending.
    ///
    /// # Errors
    ///
    /// If the limit is not 1 to 200, a name or a list is empty, or there are more than 10 owners.
    pub fn validate(&self) -> Result<()> {
        if !(1..=200).contains(&self.limit) {
            let problem = format!("must be from 1 to 200, got {}", self.limit);
            return Err(Error::invalid("limit", problem));
        }
        if self.display_name.as_deref() == Some("") {
            return Err(Error::invalid("display_name", "must not be empty"));
        }
        if let SearchOwner::User { owner_urns } = &self.owner
            && !(1..=10).contains(&owner_urns.len())
        {
            let problem = format!("must name 1 to 10 owners, got {}", owner_urns.len());
            return Err(Error::invalid("owner.owner_urns", problem));
        }
        let Some(statuses) = &self.statuses else {
            return Ok(());
        };
        if statuses.is_empty() {
            return Err(Error::invalid("statuses", "must not be an empty list"));
        }
        let no_reason = |status: &StatusQuery| matches!(status, StatusQuery::ClientFinished { reasons: Some(reasons) } if reasons.is_empty());
        if statuses.iter().any(no_reason) {
            return Err(Error::invalid(
                "statuses.reasons",
                "must not be an empty list",
            ));
        }
        Ok(())
    }
}

/// Whose sessions to search.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum SearchOwner {
    /// The caller's own.
    #[default]
    Own,
    /// Everyone's that the caller may see.
    Accessible,
    /// Those of these users.
    User {
        /// Who: 1 to 10.
        owner_urns: Vec<String>,
    },
}

/// A state to search for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum StatusQuery {
    /// Running.
    Active,
    /// Cancelled in the console.
    Cancelled,
    /// Failed.
    Failed,
    /// Ended by its client.
    ClientFinished {
        /// In one of these ways. Default: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasons: Option<Vec<FinishReason>>,
    },
}

/// Where the next page begins. Pass it back as it came.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSearchCursor {
    /// When the last session of the page was opened.
    #[serde(with = "time")]
    pub last_created_at: Timestamp,
    /// Its id.
    pub last_session_id: SessionId,
}

/// A page of sessions, newest first.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionSearchPage {
    /// The sessions.
    pub sessions: Vec<SessionSummary>,
    /// Where the next page begins; `None` after the last.
    #[serde(default)]
    pub next_cursor: Option<SessionSearchCursor>,
}
