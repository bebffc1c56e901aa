//! Prompts that were read before, piece by piece, so that nobody need read the same again.
//!
//! A piece is found by the weights and by every token up to its end, and prompts are cut by their
//! own length alone: what is found is, to the last bit, what reading it would have given.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::lora::Adapter;
use super::pages::Page;
use super::prompt::PIECE;

/// What was read of prompts, for as long as there is room.
#[derive(Debug, Default)]
pub(crate) struct Prefixes {
    roots: Vec<Root>,
    clock: u64,
}

/// What was read with the same weights.
#[derive(Debug)]
struct Root {
    /// `None` for the base alone. Weights never change behind an adapter: who trains on has a new
    /// one, and what was read with the old one goes when nobody has it any more.
    adapter: Option<Weak<Adapter>>,
    pieces: Pieces,
}

type Pieces = HashMap<Box<[u32]>, Piece>;

/// A piece of a prompt after all pieces before it.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) pages: Vec<Arc<Page>>,
    /// The last token's state before the head.
    pub(crate) last: Arc<[f32]>,
    next: Pieces,
    used: u64,
}

impl Piece {
    /// Pages that nobody else has.
    fn idle(&self) -> usize {
        let alone = |page: &&Arc<Page>| Arc::strong_count(page) == 1;
        self.pages.iter().filter(alone).count()
    }
}

impl Prefixes {
    /// The last piece of a prompt that is cut at `end`, if it was read before.
    pub(crate) fn find(
        &mut self,
        adapter: Option<&Arc<Adapter>>,
        prompt: &[u32],
        end: usize,
    ) -> Option<&Piece> {
        self.clock += 1;
        let root = self.roots.iter_mut().find(|root| root.is_of(adapter))?;
        let mut pieces = prompt[..end].chunks(PIECE);
        let mut found = root.pieces.get_mut(pieces.next()?)?;
        found.used = self.clock;
        for piece in pieces {
            found = found.next.get_mut(piece)?;
            found.used = self.clock;
        }
        Some(found)
    }

    /// How many tokens of a prompt have been read before.
    pub(crate) fn known(&self, adapter: Option<&Arc<Adapter>>, prompt: &[u32]) -> usize {
        let root = self.roots.iter().find(|root| root.is_of(adapter));
        let (mut pieces, mut known) = (root.map(|root| &root.pieces), 0);
        for tokens in prompt.chunks(PIECE) {
            let Some(piece) = pieces.and_then(|pieces| pieces.get(tokens)) else {
                break;
            };
            known += tokens.len();
            pieces = Some(&piece.next);
        }
        known
    }

    /// Keeps a piece that was read. One whose beginning was forgotten meanwhile cannot be found.
    pub(crate) fn keep(
        &mut self,
        adapter: Option<&Arc<Adapter>>,
        prompt: &[u32],
        end: usize,
        pages: &[Arc<Page>],
        last: &Arc<[f32]>,
    ) {
        self.roots.retain(Root::is_alive);
        let start = (end - 1) / PIECE * PIECE;
        let used = self.clock;
        let siblings = match start {
            0 => self.root(adapter),
            _ => match self.find_mut(adapter, prompt, start) {
                Some(before) => &mut before.next,
                None => return,
            },
        };
        siblings
            .entry(prompt[start..end].into())
            .or_insert_with(|| Piece {
                pages: pages.to_vec(),
                last: last.clone(),
                next: Pieces::new(),
                used,
            });
    }

    fn find_mut(
        &mut self,
        adapter: Option<&Arc<Adapter>>,
        prompt: &[u32],
        end: usize,
    ) -> Option<&mut Piece> {
        let root = self.roots.iter_mut().find(|root| root.is_of(adapter))?;
        let mut pieces = prompt[..end].chunks(PIECE);
        let first = root.pieces.get_mut(pieces.next()?)?;
        pieces.try_fold(first, |found, piece| found.next.get_mut(piece))
    }

    fn root(&mut self, adapter: Option<&Arc<Adapter>>) -> &mut Pieces {
        let place = self.roots.iter().position(|root| root.is_of(adapter));
        let place = place.unwrap_or_else(|| {
            self.roots.push(Root {
                adapter: adapter.map(Arc::downgrade),
                pieces: Pieces::new(),
            });
            self.roots.len() - 1
        });
        &mut self.roots[place].pieces
    }

    /// Forgets pieces, the longest unused first, until so many pages are free or all are in use.
    pub(crate) fn evict(&mut self, pages: usize) {
        self.roots.retain(Root::is_alive);
        let mut left = pages;
        while left > 0 {
            let mut ends = Vec::new();
            for root in &self.roots {
                gather_ends(&root.pieces, &mut ends);
            }
            ends.sort_unstable();
            let mut until = None;
            for (used, pages) in ends {
                if left == 0 {
                    break;
                }
                left = left.saturating_sub(pages);
                until = Some(used);
            }
            let Some(until) = until else { return };
            for root in &mut self.roots {
                forget_ends(&mut root.pieces, until);
            }
        }
    }

    /// Forgets everything.
    #[cfg(test)]
    pub(crate) fn clear(&mut self) {
        self.roots.clear();
    }
}

impl Root {
    fn is_of(&self, adapter: Option<&Arc<Adapter>>) -> bool {
        match (&self.adapter, adapter) {
            (Some(mine), Some(adapter)) => mine.as_ptr() == Arc::as_ptr(adapter),
            (None, None) => true,
            _ => false,
        }
    }

    fn is_alive(&self) -> bool {
        let adapter = self.adapter.as_ref();
        adapter.is_none_or(|adapter| adapter.strong_count() > 0)
    }
}

/// When each piece that nothing follows was used last, and the pages it alone holds.
fn gather_ends(pieces: &Pieces, ends: &mut Vec<(u64, usize)>) {
    for piece in pieces.values() {
        match (piece.next.is_empty(), piece.idle()) {
            (true, 0) => {}
            (true, idle) => ends.push((piece.used, idle)),
            (false, _) => gather_ends(&piece.next, ends),
        }
    }
}

fn forget_ends(pieces: &mut Pieces, until: u64) {
    pieces.retain(|_, piece| {
        if piece.next.is_empty() {
            return piece.used > until || piece.idle() == 0;
        }
        forget_ends(&mut piece.next, until);
        true
    });
}
