//! Weight files mapped into memory, shared by the matrices that read from them.
#![allow(
    unsafe_code,
    reason = "mapping a file is unsafe by nature; see SAFETY below"
)]

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Context, Error, Result};

/// A read-only file in memory.
#[derive(Debug, Clone)]
pub(crate) struct Mapping(Bytes);

#[derive(Debug, Clone)]
enum Bytes {
    File(Arc<memmap2::Mmap>),
    Embedded(&'static [u8]),
    Memory(Arc<[u8]>),
}

impl Mapping {
    /// Maps a whole file.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or mapped; the message names it.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let fail = |error: std::io::Error| {
            Error::Config(Context::caused(
                format!("cannot read {}", path.display()),
                error,
            ))
        };
        let file = File::open(path).map_err(fail)?;
        // SAFETY: the map is read-only and private, and only plain bytes are read from it. The
        // one hazard is another process truncating the file meanwhile, which `tinker serve`
        // documents: weight folders must not change while they are served.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(fail)?;
        Ok(Self(Bytes::File(Arc::new(map))))
    }

    /// A file that is part of the program.
    pub(crate) fn embedded(bytes: &'static [u8]) -> Self {
        Self(Bytes::Embedded(bytes))
    }

    /// Bytes that came from no file.
    pub(crate) fn memory(bytes: Vec<u8>) -> Self {
        Self(Bytes::Memory(bytes.into()))
    }

    /// The file's bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::File(map) => map,
            Bytes::Embedded(bytes) => bytes,
            Bytes::Memory(bytes) => bytes,
        }
    }

    /// A part of the file that keeps the whole mapping alive.
    ///
    /// # Panics
    ///
    /// If the range lies outside the file.
    pub(crate) fn section(&self, range: Range<usize>) -> Section {
        assert!(
            range.start <= range.end && range.end <= self.bytes().len(),
            "section outside the file"
        );
        Section {
            mapping: self.clone(),
            range,
        }
    }
}

/// Some bytes of a mapped file.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    mapping: Mapping,
    range: Range<usize>,
}

impl Section {
    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.mapping.bytes()[self.range.clone()]
    }

    /// Some of the bytes.
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub(crate) fn part(&self, range: Range<usize>) -> Self {
        let start = self.range.start;
        self.mapping.section(start + range.start..start + range.end)
    }
}
