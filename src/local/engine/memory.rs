//! How much memory a pass may take.

use std::fs;
use std::sync::OnceLock;

/// What is assumed where the system does not say.
const DEFAULT: usize = 1 << 30;

/// Numbers a pass may keep between forward and backward: a part of what was free when the first
/// pass began.
pub(crate) fn activations() -> usize {
    (free() / 8).clamp(128 << 20, 4 << 30) / size_of::<f32>()
}

/// Bytes of buffers that a model keeps between passes; what is more goes back to the system.
pub(crate) fn kept() -> usize {
    (free() / 16).clamp(64 << 20, 1 << 30)
}

/// What was free when the first pass began.
fn free() -> usize {
    static FREE: OnceLock<usize> = OnceLock::new();
    *FREE.get_or_init(|| {
        let told = fs::read_to_string("/proc/meminfo").ok();
        told.and_then(|told| available(&told)).unwrap_or(DEFAULT)
    })
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available(told: &str) -> Option<usize> {
    let line = told
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_available() {
        let told = "MemTotal:       24000000 kB\nMemAvailable:    2048 kB\nBuffers: 1 kB\n";
        assert_eq!(available(told), Some(2 << 20));
        assert_eq!(available("MemAvailable: lots"), None);
        assert!(activations() >= 32 << 20);
    }
}
