//! A file in the making: where it stands, and whether an answer fits what is there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest;

use super::download::Hook;
use crate::error::{Context, Error, Result};
use crate::transport::{Head, Receiver};

/// A file in the making, beside its final place.
pub(crate) struct Part {
    target: PathBuf,
    path: PathBuf,
    /// Whether what is there outlives this process if it fails.
    lasting: bool,
    out: Option<BufWriter<File>>,
    known: Known,
    /// What the bytes of the answer under way are worth.
    taken: Take,
    digest: Option<Vec<u8>>,
    finished: bool,
}

/// What is known of a file under way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// How many bytes are there.
    pub(crate) written: u64,
    /// How many there will be.
    pub(crate) total: Option<u64>,
    /// What tells this content from another under the same name: a strong `ETag`, or the time of
    /// the last change.
    pub(crate) mark: Option<String>,
}

impl Known {
    /// From where the rest can be asked for. Without anything to tell the content by, a rest
    /// might belong to something else.
    pub(crate) fn resumable(&self) -> u64 {
        match self.mark.is_some() || self.total.is_some() {
            true => self.written,
            false => 0,
        }
    }
}

/// What to do with the body that follows a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Take {
    /// It is the whole: begin anew with it.
    Anew,
    /// It is the rest that was asked for.
    Append,
    /// It fits nothing.
    Leave,
}

/// What an attempt that got an answer gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Given {
    /// The file is complete.
    Whole,
    /// It is longer than before: a server may send less than the rest that was asked for.
    More,
    /// The answer and what is there are not of one content.
    Useless,
    /// An error status.
    Refused,
}

/// Whether an answer's body fits what is there.
fn fits(known: &Known, head: &Head) -> Take {
    if head.status != 206 {
        return Take::Anew;
    }
    let Some((from, total)) = head.header("content-range").and_then(content_range) else {
        return Take::Leave;
    };
    let same_length = known.total.is_none() || total.is_none() || known.total == total;
    let found = mark_of(head);
    let same_mark = known.mark.is_none() || found.is_none() || known.mark == found;
    match from == Some(known.written) && same_length && same_mark {
        true => Take::Append,
        false => Take::Leave,
    }
}

/// `bytes 5-9/10`: the first byte and the whole length, where they are given.
fn content_range(text: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let from = range
        .split_once('-')
        .and_then(|(from, _)| from.parse().ok());
    Some((from, total.parse().ok()))
}

/// A validator that changes with the content. A weak one may stay the same.
fn mark_of(head: &Head) -> Option<String> {
    let tag = head.header("etag").filter(|tag| tag.starts_with('"'));
    tag.or_else(|| head.header("last-modified"))
        .map(str::to_owned)
}

/// The SHA-256 of the content, where the server gives it.
fn digest_of(head: &Head) -> Option<Vec<u8>> {
    let listed = |name: &str| {
        let list = head.header(name)?;
        list.split(',').find_map(|entry| {
            let (algorithm, value) = entry.trim().split_once('=')?;
            let value = value.trim_matches(':');
            algorithm.eq_ignore_ascii_case("sha-256").then_some(value)
        })
    };
    let text = listed("repr-digest")
        .or_else(|| listed("digest"))
        .or_else(|| head.header("x-amz-checksum-sha256"))?;
    STANDARD
        .decode(text)
        .ok()
        .filter(|digest| digest.len() == 32)
}

impl Part {
    /// A file that no other process knows of; removed unless it becomes whole.
    pub(crate) fn scratch(target: &Path) -> Result<Self> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = target.with_file_name(format!(".{name}.{}.part", fastrand::u64(..)));
        Self::open(target, path, false)
    }

    /// A file whose beginnings stay for a later process to go on with, and whose note stays
    /// even with the whole of it: the server is asked whether it is still so.
    pub(crate) fn lasting(target: &Path) -> Result<Self> {
        let path = beside(target, "part");
        if target.exists() {
            fs::rename(target, &path).map_err(|error| cannot("move", target, error))?;
        }
        Self::open(target, path, true)
    }

    fn open(target: &Path, path: PathBuf, lasting: bool) -> Result<Self> {
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(|error| cannot("make", folder, error))?;
        }
        let mut part = Self {
            target: target.to_owned(),
            path,
            lasting,
            out: None,
            known: Known::default(),
            taken: Take::Leave,
            digest: None,
            finished: false,
        };
        match part.left_behind() {
            Some(known) => part.go_on(known)?,
            None => part.restart()?,
        }
        Ok(part)
    }

    /// What an earlier process left, if it said what it belongs to.
    fn left_behind(&self) -> Option<Known> {
        let note = fs::read_to_string(beside(&self.target, NOTE)).ok()?;
        let (total, mark) = note.split_once('\n')?;
        let total: Option<u64> = total.parse().ok();
        let written = fs::metadata(&self.path).ok()?.len();
        let plausible = written > 0 && total.is_none_or(|total| written <= total);
        (self.lasting && plausible).then(|| Known {
            written,
            total,
            mark: Some(mark.to_owned()).filter(|mark| !mark.is_empty()),
        })
    }

    fn go_on(&mut self, known: Known) -> Result<()> {
        let file = OpenOptions::new().append(true).open(&self.path);
        let file = file.map_err(|error| cannot("write", &self.path, error))?;
        self.out = Some(BufWriter::with_capacity(256 << 10, file));
        self.known = known;
        Ok(())
    }

    pub(crate) fn known(&self) -> Known {
        self.known.clone()
    }

    /// Empties the file.
    pub(crate) fn restart(&mut self) -> Result<()> {
        self.reset()
            .map_err(|error| cannot("write", &self.path, error))
    }

    fn reset(&mut self) -> io::Result<()> {
        // Dropped as it is, the buffer would go to the file after all.
        drop(self.out.take().map(BufWriter::into_parts));
        let file = File::create(&self.path)?;
        self.out = Some(BufWriter::with_capacity(256 << 10, file));
        self.known = Known::default();
        self.digest = None;
        Ok(())
    }

    /// The part as a download's receiver.
    pub(crate) fn with<'a>(&'a mut self, hook: Hook<'a>) -> Receiving<'a> {
        self.taken = Take::Leave;
        Receiving { part: self, hook }
    }

    /// What an answer gave, once its body has been taken; `before` it, so many bytes were there.
    pub(crate) fn judge(&self, head: &Head, before: u64) -> Given {
        let all = self
            .known
            .total
            .is_none_or(|total| self.known.written == total);
        let asked_past_the_end = head.status == 416
            && self.known.written > 0
            && head.header("content-range").and_then(content_range)
                == Some((None, Some(self.known.written)));
        let short = self
            .known
            .total
            .is_some_and(|total| self.known.written < total);
        match head.status {
            _ if asked_past_the_end => Given::Whole,
            416 => Given::Useless,
            _ if !head.is_success() => Given::Refused,
            _ if self.taken != Take::Leave && all => Given::Whole,
            _ if self.taken == Take::Append && short && self.known.written > before => Given::More,
            _ => Given::Useless,
        }
    }

    /// Checks the content and gives the file its name.
    pub(crate) fn finish(mut self) -> Result<()> {
        let flushed = match self.out.take() {
            Some(out) => out.into_inner().map_err(io::IntoInnerError::into_error),
            None => Err(io::Error::other("the file is not open")),
        };
        flushed
            .and_then(|file| file.sync_all())
            .map_err(|error| cannot("write", &self.target, error))?;
        if let Some(expected) = &self.digest {
            let found = sha256(&self.path).map_err(|error| cannot("read", &self.path, error))?;
            if found != *expected {
                // Half of it may be from another content: none of it can be trusted.
                self.lasting = false;
                return Err(Error::Reply(Context::new(format!(
                    "{} does not have the SHA-256 that the server gave for it",
                    self.target.display()
                ))));
            }
        }
        fs::rename(&self.path, &self.target)
            .map_err(|error| cannot("write", &self.target, error))?;
        self.finished = true;
        Ok(())
    }

    /// The content, for what turns out to be no file; none is left.
    pub(crate) fn read(mut self) -> Result<Vec<u8>> {
        let flushed = self.out.as_mut().map_or(Ok(()), Write::flush);
        flushed
            .and_then(|()| fs::read(&self.path))
            .map_err(|error| cannot("read", &self.path, error))
    }

    /// Ends without a file. What the user broke off leaves nothing half-written.
    pub(crate) fn abandon(mut self, error: Error) -> Error {
        if matches!(error, Error::Closed(_)) {
            self.lasting = false;
        }
        error
    }
}

/// Beside a lasting part: its length and its mark.
const NOTE: &str = "part-of";

/// A hidden file beside another.
fn beside(target: &Path, suffix: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{suffix}"))
}

/// Removes what was noted about a lasting part.
fn forget(target: &Path) {
    // There is none beside most files.
    let _ = fs::remove_file(beside(target, NOTE));
}

fn sha256(path: &Path) -> io::Result<Vec<u8>> {
    let mut reader = BufReader::with_capacity(256 << 10, File::open(path)?);
    let mut context = digest::Context::new(&digest::SHA256);
    let mut buffer = vec![0; 64 << 10];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(context.finish().as_ref().to_vec()),
            count => context.update(&buffer[..count]),
        }
    }
}

/// A part while an answer arrives.
pub(crate) struct Receiving<'a> {
    part: &'a mut Part,
    hook: Hook<'a>,
}

impl Receiver for Receiving<'_> {
    fn begin(&mut self, head: &Head) -> io::Result<bool> {
        let part = &mut *self.part;
        part.taken = fits(&part.known, head);
        match part.taken {
            Take::Leave => return Ok(false),
            Take::Append => {
                let range = head.header("content-range").and_then(content_range);
                let total = range.and_then(|(_, total)| total);
                part.known.total = part.known.total.or(total);
            }
            Take::Anew => {
                part.reset()?;
                part.known.total = head.header("content-length").and_then(|n| n.parse().ok());
                part.known.mark = mark_of(head);
            }
        }
        if let Some(digest) = digest_of(head) {
            part.digest = Some(digest);
        }
        if part.lasting {
            let total = part.known.total.map(|total| total.to_string());
            let mark = part.known.mark.as_deref().unwrap_or_default();
            let note = beside(&part.target, NOTE);
            fs::write(note, format!("{}\n{mark}", total.unwrap_or_default()))?;
        }
        (self.hook)(part.known.written, part.known.total);
        Ok(true)
    }

    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        let part = &mut *self.part;
        match &mut part.out {
            Some(out) => out.write_all(bytes)?,
            None => return Err(io::Error::other("the file is not open")),
        }
        part.known.written += bytes.len() as u64;
        (self.hook)(part.known.written, part.known.total);
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        drop(self.out.take());
        if !self.finished && !self.lasting {
            let _ = fs::remove_file(&self.path);
            forget(&self.target);
        }
    }
}

/// An input/output error as one of ours.
pub(crate) fn cannot(what: &str, file: &Path, error: io::Error) -> Error {
    Error::Io(Context::caused(
        format!("cannot {what} {}", file.display()),
        error,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_rest_of_the_same_content_is_appended() {
        let known = Known {
            written: 5,
            total: Some(10),
            mark: Some("\"a\"".into()),
        };
        #[track_caller]
        fn check(known: &Known, status: u16, headers: &[(&str, &str)], expected: Take) {
            let head = Head::of(status, headers);
            assert_eq!(fits(known, &head), expected, "{status} {headers:?}");
        }
        let range = |text| ("content-range", text);
        check(&known, 206, &[range("bytes 5-9/10")], Take::Append);
        check(&known, 206, &[range("bytes 5-9/*")], Take::Append);
        check(
            &known,
            206,
            &[range("bytes 5-9/10"), ("etag", "\"a\"")],
            Take::Append,
        );
        check(
            &known,
            206,
            &[range("bytes 5-9/10"), ("etag", "\"b\"")],
            Take::Leave,
        );
        check(&known, 206, &[range("bytes 4-9/10")], Take::Leave);
        check(&known, 206, &[range("bytes 5-9/11")], Take::Leave);
        check(&known, 206, &[range("5-9")], Take::Leave);
        check(&known, 206, &[], Take::Leave);
        check(&known, 200, &[], Take::Anew);
    }

    #[test]
    fn a_rest_is_asked_for_only_where_it_can_be_told() {
        let known = |total, mark: Option<&str>| Known {
            written: 5,
            total,
            mark: mark.map(str::to_owned),
        };
        assert_eq!(known(None, None).resumable(), 0);
        assert_eq!(known(Some(10), None).resumable(), 5);
        assert_eq!(known(None, Some("x")).resumable(), 5);
        // A weak tag may stay the same while the bytes change.
        assert_eq!(mark_of(&Head::of(200, &[("etag", "W/\"a\"")])), None);
    }

    #[test]
    fn digests_are_read_in_every_spelling() {
        let sum = STANDARD.encode([7; 32]);
        for (name, value) in [
            ("repr-digest", format!("sha-256=:{sum}:")),
            ("digest", format!("md5=x, SHA-256={sum}")),
            ("x-amz-checksum-sha256", sum.clone()),
        ] {
            let head = Head::of(200, &[(name, &value)]);
            assert_eq!(digest_of(&head), Some(vec![7; 32]), "{name}");
        }
        assert_eq!(
            digest_of(&Head::of(200, &[("digest", "sha-256=short")])),
            None
        );
    }
}
