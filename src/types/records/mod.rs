//! What the service lists: runs, checkpoints, sessions, usage, and who is asking.

mod account;
mod billing;
mod runs;
mod search;
mod sessions;

pub use account::{
    ApiKeyDetails, ApiKeyInfo, ApiKeyOrganization, ApiKeyUser, AuditEntry, AuditEventType,
    AuditLog, ServerCapabilities, SupportedModel, WhoAmI,
};
pub use billing::{
    BillingEvent, BillingEventInfo, BillingSession, BillingUsage, StorageUsage, StorageUsageItem,
};
pub use runs::{
    AccessScope, Checkpoint, CheckpointPage, Cursor, ExternalWeightsUrls, SamplerInfo, TrainingRun,
    TrainingRunPage,
};
pub use search::{SearchOwner, SessionSearch, SessionSearchCursor, SessionSearchPage, StatusQuery};
pub use sessions::{
    FailureCategory, FailureReason, FinishReason, SessionDetails, SessionPage, SessionStatus,
    SessionSummary, TraceExport, TraceExportStatus,
};
