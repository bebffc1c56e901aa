//! The text of a sample as it grows: whole characters, nothing of a stop string.

use super::vocabulary::{Decoder, Vocabulary};

/// The strings that end a text.
#[derive(Clone, Copy)]
pub(in crate::local) struct Reader<'a> {
    pub(in crate::local) stops: &'a [String],
}

/// The text of one sample as it grows.
pub(in crate::local) struct Text {
    /// `None` once the sample is done.
    decoder: Option<Decoder>,
    bytes: Vec<u8>,
    /// How many bytes were given out.
    sent: usize,
}

impl Text {
    pub(in crate::local) fn new(vocabulary: &Vocabulary) -> Self {
        Self {
            decoder: Some(vocabulary.decoder()),
            bytes: Vec::new(),
            sent: 0,
        }
    }

    /// Adds a token, and gives out what is certain by now.
    pub(in crate::local) fn push(&mut self, reader: Reader<'_>, token: u32) -> String {
        if let Some(decoder) = &mut self.decoder {
            self.bytes.extend(decoder.push(token));
        }
        let bytes = &self.bytes;
        let end = match reader.stop_at(bytes, self.sent) {
            Some(end) => end,
            None => {
                let end = bytes.len() - reader.begun_stop(bytes);
                whole_characters(bytes, self.sent, end)
            }
        };
        self.give(end)
    }

    /// Gives out the rest.
    pub(in crate::local) fn finish(&mut self, reader: Reader<'_>) -> String {
        if let Some(decoder) = self.decoder.take() {
            self.bytes.extend(decoder.finish());
        }
        let end = reader.stop_at(&self.bytes, self.sent);
        self.give(end.unwrap_or(self.bytes.len()))
    }

    /// All of it, once it is finished.
    pub(in crate::local) fn whole(&self, reader: Reader<'_>) -> String {
        let end = reader.stop_at(&self.bytes, 0).unwrap_or(self.bytes.len());
        String::from_utf8_lossy(&self.bytes[..end]).into_owned()
    }

    /// The stop string that ended it, if one did.
    pub(in crate::local) fn stopped_by<'s>(&self, reader: Reader<'s>) -> Option<&'s str> {
        let at = reader.stop_at(&self.bytes, 0)?;
        let stops = reader.stops.iter().filter(|stop| !stop.is_empty());
        let mut here = stops.filter(|stop| self.bytes[at..].starts_with(stop.as_bytes()));
        here.next().map(String::as_str)
    }

    fn give(&mut self, end: usize) -> String {
        let new = self.bytes.get(self.sent..end).unwrap_or_default();
        let text = String::from_utf8_lossy(new).into_owned();
        self.sent = self.sent.max(end);
        text
    }
}

impl Reader<'_> {
    /// Where the first stop string begins; none does in the bytes before `sent`, but one may have
    /// begun there.
    fn stop_at(&self, bytes: &[u8], sent: usize) -> Option<usize> {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let start = sent.saturating_sub(longest);
        let stops = self.stops.iter().filter(|stop| !stop.is_empty());
        let found = stops.filter_map(|stop| find(&bytes[start..], stop.as_bytes()));
        found.min().map(|at| start + at)
    }

    /// How many bytes at the end may be the beginning of a stop string.
    fn begun_stop(&self, bytes: &[u8]) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        (1..longest.min(bytes.len() + 1))
            .rev()
            .find(|length| {
                let end = &bytes[bytes.len() - length..];
                self.stops
                    .iter()
                    .any(|stop| stop.as_bytes().starts_with(end))
            })
            .unwrap_or(0)
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// The end of the last whole character before `end`.
fn whole_characters(bytes: &[u8], start: usize, end: usize) -> usize {
    let mut at = start;
    while let Some(rest) = bytes.get(at..end) {
        match std::str::from_utf8(rest) {
            Ok(_) => return end,
            Err(error) => {
                let valid = at + error.valid_up_to();
                match error.error_len() {
                    // An unfinished character waits for its rest.
                    None => return valid,
                    // A broken one never gets better.
                    Some(length) => at = valid + length,
                }
            }
        }
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, stops: &[&str], expected: &[&str]) {
        let stops: Vec<String> = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let reader = Reader { stops: &stops };
        let mut growing = Text::new(&Vocabulary::Bytes);
        let mut pieces: Vec<String> = text
            .bytes()
            .map(|byte| growing.push(reader, u32::from(byte)))
            .collect();
        pieces.push(growing.finish(reader));
        pieces.retain(|piece| !piece.is_empty());
        assert_eq!(pieces, expected);
        assert_eq!(growing.whole(reader), expected.concat());
    }

    #[test]
    fn pieces_are_whole_characters() {
        check("aé\u{1F600}", &[], &["a", "é", "\u{1F600}"]);
    }

    #[test]
    fn broken_characters_do_not_spoil_their_neighbours() {
        let bytes = [0xE2, 0xD4, 0xA5, 0xFF, 0xC3, b'!', 0xF0];
        let reader = Reader { stops: &[] };
        let mut growing = Text::new(&Vocabulary::Bytes);
        let mut text: String = bytes
            .iter()
            .map(|byte| growing.push(reader, u32::from(*byte)))
            .collect();
        text += &growing.finish(reader);
        assert_eq!(text, String::from_utf8_lossy(&bytes));
        assert_eq!(text, growing.whole(reader));
    }

    #[test]
    fn nothing_of_a_stop_string_gets_out() {
        check("ab\n\nc", &["\n\n"], &["a", "b"]);
        check("a\nb\n", &["\n\n"], &["a", "\nb", "\n"]);
        check("xENDy", &["END", "xE"], &[] as &[&str]);
        check("plain", &[], &["p", "l", "a", "i", "n"]);
    }
}
