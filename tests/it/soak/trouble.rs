//! What goes wrong at the front, and when: for a seed the same things in the same order.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the front does to a request, or to a whole connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    /// Refused with this status, never handed on.
    Status(u16),
    /// The same, and the time to come back is given as a date.
    StatusUntil(u16),
    /// Hung up on before the server has it.
    DropBefore,
    /// Hung up on when the server has answered.
    DropAfter,
    /// Half of the answer, then the end.
    Half,
    /// No answer, no end: whoever asked has to lose patience. The server never has it.
    StallBefore,
    /// Half of the answer, and no end.
    StallMidway,
    /// The connection breaks while it agrees on encryption.
    CutHandshake,
    /// The connection breaks later, wherever that is.
    CutLater,
}

/// What strikes requests: in a thousand, up to this one.
const REQUESTS: [(u64, Trouble); 10] = [
    (12, Trouble::Status(429)),
    (20, Trouble::StatusUntil(429)),
    (30, Trouble::Status(503)),
    (35, Trouble::StatusUntil(503)),
    (40, Trouble::Status(500)),
    (60, Trouble::DropBefore),
    (80, Trouble::DropAfter),
    (95, Trouble::Half),
    (98, Trouble::StallBefore),
    (101, Trouble::StallMidway),
];

/// How many kinds there are.
pub(super) const KINDS: usize = REQUESTS.len() + 2;

/// A handshake is longer than this, and shorter than twice as much.
const HANDSHAKE: usize = 1200;

#[derive(Debug)]
pub(super) struct Dice {
    requests: AtomicU64,
    connections: AtomicU64,
    struck: Mutex<BTreeMap<Trouble, u64>>,
}

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            requests: AtomicU64::new(seed),
            connections: AtomicU64::new(!seed),
            struck: Mutex::default(),
        }
    }

    /// What is to happen to the next request: nothing, nine times in ten.
    pub(super) fn request(&self) -> Option<Trouble> {
        let number = next(&self.requests) % 1000;
        let trouble = REQUESTS.iter().find(|(end, _)| number < *end);
        let trouble = trouble.map(|(_, trouble)| *trouble);
        trouble.inspect(|trouble| self.count(*trouble))
    }

    /// After how many bytes the next encrypted connection breaks, and as what that counts.
    pub(super) fn connection(&self) -> Option<(usize, Trouble)> {
        let number = next(&self.connections);
        let bytes = (number >> 8) as usize;
        match number % 8 {
            0 => Some((1 + bytes % HANDSHAKE, Trouble::CutHandshake)),
            1 | 2 => Some((2 * HANDSHAKE + bytes % 8_000, Trouble::CutLater)),
            _ => None,
        }
    }

    pub(super) fn count(&self, trouble: Trouble) {
        *self.struck.lock().unwrap().entry(trouble).or_default() += 1;
    }

    /// How often each has struck.
    pub(super) fn struck(&self) -> BTreeMap<Trouble, u64> {
        self.struck.lock().unwrap().clone()
    }
}

/// splitmix64
fn next(state: &AtomicU64) -> u64 {
    let mut bits = state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// A socket that breaks after so many bytes, in the middle of whatever is under way. What it has
/// not read by then makes the system reset the connection.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) socket: TcpStream,
    pub(super) left: usize,
}

impl Cut {
    fn most(&self, wanted: usize) -> Result<usize> {
        match self.left {
            0 => Err(Error::from(ErrorKind::ConnectionReset)),
            left => Ok(left.min(wanted)),
        }
    }
}

impl Read for Cut {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let most = self.most(into.len())?;
        let count = self.socket.read(&mut into[..most])?;
        self.left -= count;
        Ok(count)
    }
}

impl Write for Cut {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let most = self.most(bytes.len())?;
        let count = self.socket.write(&bytes[..most])?;
        self.left -= count;
        Ok(count)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn every_trouble_strikes_early() {
    let dice = Dice::new(super::SEED);
    (0..200).for_each(|_| {
        dice.request();
    });
    let requests = dice.struck().len();
    assert_eq!(requests, REQUESTS.len(), "{:?}", dice.struck());
    let cuts = (0..16).filter_map(|_| dice.connection());
    let cuts: std::collections::BTreeSet<Trouble> = cuts.map(|(_, trouble)| trouble).collect();
    assert_eq!(cuts.len(), 2, "{cuts:?}");
}
