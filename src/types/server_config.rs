//! What the service tells its clients about how to behave.

use serde::{Deserialize, Serialize};

/// Settings fetched once, before anything else. Missing ones have their defaults, unknown ones
/// are ignored.
///
/// ```
/// let config: tinker::unversioned::ClientConfig = serde_json::from_str(r#"{"new_flag": 1}"#)?;
/// assert_eq!(config.fwdbwd_max_chunk_len, 1024);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientConfig {
    /// Exchange the credential for short-lived tokens. Default: false.
    pub pjwt_auth_enabled: bool,
    /// Where credentials come from by default: `api_key` or `credential_cmd`. Default: `api_key`.
    pub credential_default_source: String,
    /// Estimated bytes of sampling requests being sent at a time. Default: 10 MiB.
    pub sample_dispatch_bytes_semaphore_size: u64,
    /// Bytes of results being fetched at a time. Default: 50 MiB.
    pub inflight_response_bytes_semaphore_size: u64,
    /// Send the requests of one training call side by side. Default: true.
    pub parallel_fwdbwd_chunks: bool,
    /// Compress training requests with zstd. Default: false.
    pub proto_compress_fwdbwd: bool,
    /// Most examples in a training request. Default: 1024.
    pub fwdbwd_max_chunk_len: usize,
    /// Most estimated bytes in a training request. Default: 5,000,000.
    pub fwdbwd_max_chunk_bytes_count: usize,
    /// Estimated bytes of training requests being sent at a time. Default: 50,000,000.
    pub fwdbwd_dispatch_bytes_semaphore_size: u64,
    /// How long to wait for a billing problem to be solved, in seconds. Default: 3600.
    pub billing_exception_max_pause_duration_sec: u64,
    /// Do not repeat failed samples. Default: false.
    pub sample_no_retries: bool,
    /// Give up when no sample succeeds for very long. Default: true.
    pub sample_enable_stuck_detection: bool,
    /// Most samples in flight per sampling client. Default: 2000.
    pub sample_max_concurrent_requests: usize,
    /// A choice of the Python SDK's transport, without meaning here. Default: true.
    pub use_pyqwest_transport: bool,
    /// Create a model from a checkpoint in one request. Default: false.
    pub create_model_via_load_weights: bool,
    /// Learn of finished samples through one poll for the whole session. Default: false.
    pub sample_use_retrieve_futures: bool,
    /// Run custom losses on the service. Default: false.
    pub custom_loss_server_side: bool,
    /// Ask the service for the number of a copied sampling client. Default: false.
    pub sample_join_sampling_session: bool,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            pjwt_auth_enabled: false,
            credential_default_source: "api_key".to_owned(),
            sample_dispatch_bytes_semaphore_size: 10 * 1024 * 1024,
            inflight_response_bytes_semaphore_size: 50 * 1024 * 1024,
            parallel_fwdbwd_chunks: true,
            proto_compress_fwdbwd: false,
            fwdbwd_max_chunk_len: 1024,
            fwdbwd_max_chunk_bytes_count: 5_000_000,
            fwdbwd_dispatch_bytes_semaphore_size: 50_000_000,
            billing_exception_max_pause_duration_sec: 3600,
            sample_no_retries: false,
            sample_enable_stuck_detection: true,
            sample_max_concurrent_requests: 2000,
            use_pyqwest_transport: true,
            create_model_via_load_weights: false,
            sample_use_retrieve_futures: false,
            custom_loss_server_side: false,
            sample_join_sampling_session: false,
        }
    }
}

/// Settings fetched again from time to time.
///
/// ```
/// let config: tinker::unversioned::DynamicConfig = serde_json::from_str("{}")?;
/// assert_eq!(config.refresh_interval_sec, 300);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DynamicConfig {
    /// Seconds until they should be fetched again. Default: 300; less than 10 counts as 10.
    pub refresh_interval_sec: u64,
    /// Whether dropped samples are cancelled on the service. Default: false.
    pub sample_cancel_enabled: bool,
    /// Most samples cancelled in one go. Default: 64.
    pub sample_cancel_max_batch_size: usize,
}

impl Default for DynamicConfig {
    fn default() -> Self {
        Self {
            refresh_interval_sec: 300,
            sample_cancel_enabled: false,
            sample_cancel_max_batch_size: 64,
        }
    }
}
