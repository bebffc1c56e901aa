//! Server-sent events: bytes in, in any pieces; events out.

/// One event of a stream.
///
/// ```
/// let event = tinker::client::Event::default();
/// assert_eq!(event.name(), "message");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// Its kind; empty for the usual kind, `message`.
    pub event: String,
    /// Its content: the `data` lines, joined by line ends.
    pub data: String,
    /// The id last given in the stream.
    pub id: Option<String>,
    /// How long to wait before connecting again, in milliseconds, if this event says so.
    pub retry: Option<u64>,
}

impl Event {
    /// The event's kind: `message` unless it says otherwise.
    pub fn name(&self) -> &str {
        match self.event.as_str() {
            "" => "message",
            name => name,
        }
    }
}

/// The longest line, and the longest event, that is kept; a stream that goes on without an end
/// must not fill the memory.
const LONGEST: usize = 64 << 20;

/// A stream that cannot be read on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooLong;

/// Reads a stream as it arrives. It may be cut anywhere: between the two bytes of a line end, or
/// inside a letter.
#[derive(Debug, Default)]
pub(crate) struct SseReader {
    line: Vec<u8>,
    /// Whether the last byte was a carriage return, whose line feed may come with the next piece.
    after_return: bool,
    started: bool,
    event: Event,
    has_data: bool,
}

impl SseReader {
    /// Takes the next piece and gives the events that it completes.
    pub(crate) fn push(&mut self, piece: &[u8], events: &mut Vec<Event>) -> Result<(), TooLong> {
        for &byte in piece {
            let after_return = std::mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => self.end_line(events),
                _ if self.line.len() + self.event.data.len() >= LONGEST => return Err(TooLong),
                _ => self.line.push(byte),
            }
        }
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<Event>) {
        let line = std::mem::take(&mut self.line);
        // Only whole lines are decoded, so that no letter is cut.
        let mut text = String::from_utf8_lossy(&line).into_owned();
        if !std::mem::replace(&mut self.started, true)
            && let Some(rest) = text.strip_prefix('\u{feff}')
        {
            text = rest.to_owned();
        }
        if text.is_empty() {
            self.end_event(events);
            return;
        }
        let (field, value) = text.split_once(':').unwrap_or((&text, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event.event = value.to_owned(),
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
                self.has_data = true;
            }
            "id" if !value.contains('\0') => self.event.id = Some(value.to_owned()),
            "retry" if value.bytes().all(|byte| byte.is_ascii_digit()) => {
                self.event.retry = value.parse().ok();
            }
            // Comments, which begin with a colon, and what nobody knows.
            _ => {}
        }
    }

    fn end_event(&mut self, events: &mut Vec<Event>) {
        let mut event = std::mem::take(&mut self.event);
        if std::mem::take(&mut self.has_data) {
            self.event.id.clone_from(&event.id);
            events.push(event);
        } else {
            self.event.id = event.id.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<Event> {
        let (mut reader, mut events) = (SseReader::default(), Vec::new());
        for piece in pieces {
            reader.push(piece, &mut events).unwrap();
        }
        events
    }

    #[track_caller]
    fn check(stream: &str, expected: &[(&str, &str)]) {
        let events = read(&[stream.as_bytes()]);
        let found: Vec<_> = events.iter().map(|e| (e.name(), e.data.as_str())).collect();
        assert_eq!(found, expected, "{stream:?}");
    }

    #[test]
    fn streams_are_read_as_the_standard_says() {
        check("data: a\n\n", &[("message", "a")]);
        check("data:a\r\n\r\n", &[("message", "a")]);
        check(
            "data: a\r\rdata: b\r\r",
            &[("message", "a"), ("message", "b")],
        );
        check("\u{feff}data: a\n\n", &[("message", "a")]);
        check("data: one\ndata: two\n\n", &[("message", "one\ntwo")]);
        check("data\n\n", &[("message", "")]);
        check("data:  two spaces\n\n", &[("message", " two spaces")]);
        check(": comment\n\nevent: x\n\n", &[]);
        check("event: done\ndata: {}\n\n", &[("done", "{}")]);
        check("data: cut", &[]);
        check("data: cut\n", &[]);
        let events = read(&[b"id: 7\nretry: 20\ndata: a\n\ndata: b\nretry: x\n\n"]);
        assert_eq!(events[1].id.as_deref(), Some("7"));
        assert_eq!((events[0].retry, events[1].retry), (Some(20), None));
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut reader = SseReader::default();
        let piece = vec![b'x'; LONGEST];
        assert_eq!(reader.push(&piece, &mut Vec::new()), Ok(()));
        assert_eq!(reader.push(b"y", &mut Vec::new()), Err(TooLong));
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(
            stream in proptest::collection::vec(
                prop_oneof![
                    Just("data: ".to_owned()), Just("event: é\n".to_owned()),
                    Just("\n".to_owned()), Just("\r\n".to_owned()), Just("\r".to_owned()),
                    Just("id: 1\n".to_owned()), "[ a:日🦀]{0,6}",
                ],
                0..40,
            ),
            cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let stream = stream.concat().into_bytes();
            let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            places.push(0);
            places.push(stream.len());
            places.sort_unstable();
            let pieces: Vec<&[u8]> = places.windows(2).map(|pair| &stream[pair[0]..pair[1]]).collect();
            prop_assert_eq!(read(&pieces), read(&[&stream]));
            let bytes: Vec<&[u8]> = stream.chunks(1).collect();
            prop_assert_eq!(read(&bytes), read(&[&stream]));
        }
    }
}
