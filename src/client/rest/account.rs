//! The account: audit log, usage, storage. Most of it needs an administrator's key.

use super::RestClient;
use crate::error::{Error, Result};
use crate::types::{AuditEventType, AuditLog, BillingUsage, Date, StorageUsage, Timestamp};
use crate::wire::route;

/// The longest stretch of usage the service reports at once, in hours.
const MAX_USAGE_HOURS: i64 = 14 * 24;

/// The account. These calls need an administrator's key on the hosted service.
impl RestClient {
    /// What was done on a day, in UTC; the service chooses the day if none is given.
    ///
    /// ```no_run
    /// # fn main() -> tinker::Result<()> {
    /// # let rest = tinker::ServiceClient::from_env()?.rest();
    /// use tinker::types::{AuditEventType, Date};
    ///
    /// let day = Date::constant(2026, 1, 15);
    /// for entry in rest.audit_log(AuditEventType::All, Some(day))?.entries {
    ///     println!("{} {}", entry.timestamp, entry.event);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Status`] with 403 without an administrator's key.
    #[doc(alias = "get_audit_log")]
    pub fn audit_log(&self, events: AuditEventType, day: Option<Date>) -> Result<AuditLog> {
        let query = [
            ("event_type", events.as_str().into()),
            ("day", day.map(|day| day.to_string()).into()),
        ];
        self.get(&route::AUDIT_LOG, &[], &query)
    }

    /// What was used between two full hours, and its estimated cost.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless both times are full hours in order, at most 14 days apart.
    #[doc(alias = "get_billing_usage")]
    pub fn billing_usage(
        &self,
        starting_on: Timestamp,
        ending_before: Timestamp,
    ) -> Result<BillingUsage> {
        check_usage(starting_on, ending_before)?;
        let query = [
            ("starting_on", starting_on.to_string().into()),
            ("ending_before", ending_before.to_string().into()),
        ];
        self.get(&route::BILLING_USAGE, &[], &query)
    }

    /// What checkpoints take at present, in one project or in all.
    ///
    /// # Errors
    ///
    /// [`Error::Status`] with 403 without an administrator's key.
    #[doc(alias = "get_current_checkpoint_storage_usage")]
    pub fn storage_usage(&self, project_id: Option<&str>) -> Result<StorageUsage> {
        let query = [("project_id", project_id.into())];
        self.get(&route::CHECKPOINT_STORAGE_USAGE, &[], &query)
    }
}

/// Refuses a stretch of time that the service would refuse.
fn check_usage(starting_on: Timestamp, ending_before: Timestamp) -> Result<()> {
    let times = [
        ("starting_on", starting_on),
        ("ending_before", ending_before),
    ];
    for (name, time) in times {
        if time.as_nanosecond() % 3_600_000_000_000 != 0 {
            let problem = format!("must be a full hour, got {time}");
            return Err(Error::invalid(name, problem));
        }
    }
    let hours = (ending_before.as_second() - starting_on.as_second()) / 3_600;
    if !(1..=MAX_USAGE_HOURS).contains(&hours) {
        let problem = format!("must be 1 hour to 14 days after starting_on, got {hours} hours");
        return Err(Error::invalid("ending_before", problem));
    }
    Ok(())
}
