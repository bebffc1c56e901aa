//! Who is asking, what was used, what was done.

use std::collections::BTreeMap;

use hyper::StatusCode;
use hyper::header::LOCATION;
use serde_json::{Map, json};

use super::records::texts;
use super::{Answer, Call};
use crate::local::http::{Refusal, Reply};
use crate::local::state::downloads::Source;
use crate::local::state::ledger::{Count, Deed, Kind};
use crate::local::state::now;
use crate::types::{
    AuditEntry, AuditLog, BillingEvent, BillingEventInfo, BillingSession, BillingUsage,
    StorageUsage, StorageUsageItem, Timestamp,
};

const HOUR: i64 = 3600;
/// The longest time one question about usage may cover.
const LONGEST: i64 = 14 * 24 * HOUR;

pub(super) fn api_key(call: &Call) -> Answer {
    Ok(Reply::json(&json!({
        "key_id": 1,
        "name": *call.user,
        "note": "the embedded server accepts it",
        "details": {
            "org_details": {"name": "local"},
            "user_details": {"email": format!("{}@localhost", call.user)},
        },
    })))
}

/// There is nothing to forget: keys are the server's options.
pub(super) fn forget_api_key(_: &Call) -> Answer {
    Ok(Reply::empty())
}

/// The day's log behind a redirect, as the service has it.
pub(super) fn audit(call: &Call) -> Answer {
    let kind = call.query("event_type").unwrap_or_else(|| "all".into());
    let day = call
        .query("day")
        .unwrap_or_else(|| now().strftime("%Y-%m-%d").to_string());
    if day.parse::<jiff::civil::Date>().is_err() {
        return Err(Refusal::bad(format!("day must be YYYY-MM-DD, got {day:?}")));
    }
    let mut deeds = call.state().ledger.deeds();
    let runs = &call.state().catalogue;
    let owner = |deed: &Deed| runs.run(deed.path.run_id()).map(|run| run.owner);
    deeds.retain(|deed| owner(deed).is_ok_and(|owner| owner == *call.user));
    deeds.retain(|deed| deed.time.strftime("%Y-%m-%d").to_string() == day);
    // Projects, teams and organisations do not exist here.
    if !matches!(kind.as_str(), "all" | "checkpoints") {
        deeds.clear();
    }
    let entries = deeds.into_iter().map(|deed| AuditEntry {
        timestamp: deed.time,
        event: deed.event,
        event_details: Map::new(),
        model_id: Some(deed.path.run_id().to_string()),
        tinker_path: Some(deed.path.to_string()),
        purpose: None,
    });
    let log = AuditLog {
        entries: entries.collect(),
    };
    let text = serde_json::to_vec(&log)
        .map_err(|error| Refusal::internal(format!("the log cannot be written: {error}")))?;
    let source = Source::Document(text.into());
    let link = call.state().downloads.link(&call.server(), now(), source);
    Ok(Reply::empty()
        .with_status(StatusCode::FOUND)
        .with_header(LOCATION, &link.to("audit.json")))
}

pub(super) fn usage(call: &Call) -> Answer {
    let from = hour(call, "starting_on")?;
    let to = hour(call, "ending_before")?;
    let length = to.as_second() - from.as_second();
    if !(1..=LONGEST).contains(&length) {
        let detail = "ending_before must come after starting_on, by 14 days at most";
        return Err(Refusal::bad(detail));
    }
    let mut counts = call.state().ledger.counts(from, to);
    counts.retain(|count| count.of.owner == *call.user);
    let mut sessions = BTreeMap::new();
    for count in &counts {
        let metadata = call.state().sessions.get(&count.of.session);
        let user_metadata = metadata.ok().map(|session| texts(session.user_metadata));
        sessions.insert(
            count.of.session.as_str().into(),
            BillingSession { user_metadata },
        );
    }
    let data = counts.into_iter().map(|count| event(call, count));
    Ok(Reply::json(&BillingUsage {
        data: data.collect(),
        sessions,
        cost_data_through: Some(to.min(now())),
    }))
}

fn hour(call: &Call, name: &str) -> Result<Timestamp, Refusal> {
    let text = call.query(name).unwrap_or_default();
    let time = text.parse::<Timestamp>().ok();
    time.filter(|time| time.as_second() % HOUR == 0 && time.subsec_nanosecond() == 0)
        .ok_or_else(|| Refusal::bad(format!("{name} must be a whole hour in UTC, got {text:?}")))
}

fn event(call: &Call, count: Count) -> BillingEvent {
    let at = |second| Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH);
    let (of, token_count) = (count.of, count.count);
    let project_id = call.state().project_of(&of.session);
    BillingEvent {
        bucket_start: at(of.hour),
        bucket_end: at(of.hour + HOUR),
        base_model: of.base_model,
        user_id: None,
        user_name: Some(call.user.to_string()),
        session_id: Some(of.session.into()),
        project_id,
        // Nothing costs anything here.
        estimated_cost_usd: Some(0.0),
        effective_rate_usd_per_million_tokens: None,
        effective_rate_usd_per_gigabyte_month: None,
        event_info: match of.kind {
            Kind::Training => BillingEventInfo::Training { token_count },
            Kind::Prefill => BillingEventInfo::SamplingPrefill {
                cached: false,
                token_count,
            },
            Kind::Sample => BillingEventInfo::SamplingSample { token_count },
            Kind::Checkpoint => BillingEventInfo::Checkpoint { count: token_count },
        },
    }
}

pub(super) fn storage(call: &Call) -> Answer {
    let wanted = call.query("project_id");
    let mut items: BTreeMap<Option<String>, (u64, u64)> = BTreeMap::new();
    for checkpoint in call.state().catalogue.checkpoints(None) {
        if checkpoint.owner != *call.user {
            continue;
        }
        if wanted.is_none() || wanted == checkpoint.project_id {
            let (count, bytes) = items.entry(checkpoint.project_id).or_default();
            *count += 1;
            *bytes += checkpoint.size_bytes;
        }
    }
    let data = items
        .into_iter()
        .map(|(project_id, (count, bytes))| StorageUsageItem {
            project_id,
            org_user_urn: None,
            user_email: None,
            user_name: Some(call.user.to_string()),
            checkpoint_count: count,
            size_bytes: bytes,
            size_gigabytes: bytes as f64 / 1e9,
            estimated_monthly_cost_usd: Some(0.0),
        });
    Ok(Reply::json(&StorageUsage {
        effective_rate_usd_per_gigabyte_month: Some(0.0),
        data: data.collect(),
    }))
}
