//! Files behind links that are their own credential.

use std::collections::HashMap;
use std::sync::Mutex;

use bytes::Bytes;

use crate::sync::lock;
use crate::types::{Timestamp, TinkerPath};

/// How long a link works.
const LIFETIME_SECONDS: i64 = 15 * 60;
/// How many bytes links and their documents may take; beyond that the oldest work no longer.
const MOST: usize = 64 << 20;
/// What a link takes beside its document.
const LINK: usize = 1 << 10;

/// What a link leads to.
#[derive(Debug, Clone)]
pub(in crate::local) enum Source {
    /// The files of a checkpoint in the layout of `peft`.
    Checkpoint(TinkerPath),
    /// A document that was made with the link.
    Document(Bytes),
}

/// The links given out and not yet expired.
#[derive(Debug, Default)]
pub(in crate::local) struct Downloads {
    links: Mutex<HashMap<String, (Source, Timestamp)>>,
}

/// A link without the file's name at its end.
#[derive(Debug)]
pub(in crate::local) struct Link {
    prefix: String,
    pub(in crate::local) expires: Timestamp,
}

impl Link {
    pub(in crate::local) fn to(&self, file: &str) -> String {
        format!("{}/{file}", self.prefix)
    }
}

impl Downloads {
    /// Makes a link on the server at this address, such as `http://127.0.0.1:8000`.
    pub(in crate::local) fn link(&self, server: &str, now: Timestamp, source: Source) -> Link {
        let seconds = now.as_second() + LIFETIME_SECONDS;
        let expires = Timestamp::from_second(seconds).unwrap_or(now);
        let token = uuid::Uuid::new_v4().simple().to_string();
        let prefix = format!("{server}/api/v1/download/{token}");
        let mut links = lock(&self.links);
        links.retain(|_, (_, expires)| *expires > now);
        make_room(&mut links, source.bytes());
        links.insert(token, (source, expires));
        Link { prefix, expires }
    }

    /// What a link leads to, if it still works.
    pub(in crate::local) fn find(&self, token: &str, now: Timestamp) -> Option<Source> {
        let links = lock(&self.links);
        let (source, expires) = links.get(token)?;
        (*expires > now).then(|| source.clone())
    }
}

impl Source {
    fn bytes(&self) -> usize {
        match self {
            Self::Checkpoint(_) => LINK,
            Self::Document(bytes) => LINK + bytes.len(),
        }
    }
}

/// Forgets the oldest links until so many bytes fit in.
fn make_room(links: &mut HashMap<String, (Source, Timestamp)>, bytes: usize) {
    let taken = links.values().map(|(source, _)| source.bytes());
    let mut over = (taken.sum::<usize>() + bytes).saturating_sub(MOST);
    while over > 0
        && let Some(oldest) = links.iter().min_by_key(|(_, (_, expires))| *expires)
    {
        let token = oldest.0.clone();
        let gone = links.remove(&token);
        over = over.saturating_sub(gone.map_or(0, |(source, _)| source.bytes()));
    }
}

/// A tar archive of a few files.
pub(in crate::local) fn tar(files: &[(&str, &[u8])], now: Timestamp) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, bytes) in files {
        let mut header = [0u8; 512];
        let mut field = |at: usize, text: &str| {
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        field(0, name);
        field(100, "0000644\0");
        field(108, "0000000\0");
        field(116, "0000000\0");
        field(124, &format!("{:011o}\0", bytes.len()));
        field(136, &format!("{:011o}\0", now.as_second().max(0)));
        // The checksum counts its own place as spaces.
        field(148, "        ");
        field(156, "0");
        field(257, "ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        archive.extend_from_slice(&header);
        archive.extend_from_slice(bytes);
        archive.resize(archive.len().next_multiple_of(512), 0);
    }
    archive.resize(archive.len() + 1024, 0);
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever asks for one document after the other does not fill the memory with them.
    #[test]
    fn the_oldest_documents_make_room() {
        let downloads = Downloads::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        let tokens: Vec<String> = (0..100)
            .map(|second| {
                let document = Source::Document(vec![0; 1 << 20].into());
                let link = downloads.link("http://h", at(second), document).to("x");
                link.rsplit('/').nth(1).unwrap().to_owned()
            })
            .collect();
        let works = |index: usize| downloads.find(&tokens[index], at(100)).is_some();
        assert!(works(99) && works(50) && !works(0));
        let kept = lock(&downloads.links);
        let bytes = kept.values().map(|(source, _)| source.bytes());
        assert!(bytes.sum::<usize>() <= MOST);
    }
}
