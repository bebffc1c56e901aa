//! Reading a prompt: its keys and values, and what was asked about its tokens.

use std::sync::Arc;

use super::decode::{self, Unread};
use super::head;
use super::lora::Adapter;
use super::model::Net;
use super::ops::log_sum_exp;
use super::pages::{PAGE, Table};
use super::pick::{Candidates, Picker, top};
use super::prefix::Prefixes;
use super::rng::Rng;
use super::sample::{SampleOutput, SampleRequest};
use super::scratch::Scratch;

/// Tokens read at a time, so that sequences under way need not wait for a long prompt.
pub(crate) const PIECE: usize = 4 * PAGE;

/// A prompt that is being read, or has been.
#[derive(Debug)]
pub(crate) struct Reading {
    table: Table,
    /// `None` once it was filed, or if nobody asked.
    report: Option<PromptReport>,
    /// The first row anything is asked about.
    asked: usize,
    /// The state of the newest token before the head.
    last: Option<Arc<[f32]>>,
    /// The same of every piece that was just read.
    fresh: Vec<Arc<[f32]>>,
    /// The logits after the last token.
    first: Option<Arc<[f32]>>,
    /// Tokens that others had read.
    cached: usize,
}

impl Reading {
    /// Begins to read a request's prompt.
    pub(crate) fn new(request: &SampleRequest, seed: u64) -> Self {
        Self {
            report: Some(PromptReport::new(request, seed)),
            asked: PromptReport::first_row(request),
            ..Self::again(request)
        }
    }

    /// Begins to read a prompt again of which everything asked has been said.
    pub(crate) fn again(request: &SampleRequest) -> Self {
        Self {
            table: Table::default(),
            report: None,
            asked: request.prompt.len() - 1,
            last: None,
            fresh: Vec::new(),
            first: None,
            cached: 0,
        }
    }

    /// Begins again, without what was read.
    pub(crate) fn restart(&mut self, request: &SampleRequest, seed: u64) {
        *self = match self.report {
            Some(_) => Self::new(request, seed),
            None => Self::again(request),
        };
    }

    /// What has been read.
    pub(crate) fn table(&mut self) -> &mut Table {
        &mut self.table
    }

    /// The prompt and the logits after it, once it is read.
    pub(crate) fn whole(&self) -> Option<(&Table, &Arc<[f32]>)> {
        Some((&self.table, self.first.as_ref()?))
    }

    /// Where the next piece ends; where it begins once the prompt is read.
    pub(crate) fn next_end(&self, request: &SampleRequest) -> usize {
        request.prompt.len().min(self.table.rows() + PIECE)
    }

    /// Whether what others read up to `end` is enough here.
    pub(crate) fn may_skip(&self, request: &SampleRequest, end: usize) -> bool {
        end <= self.asked || self.asked + 1 == request.prompt.len()
    }

    /// Skips the pieces that were read before.
    pub(crate) fn skip(
        &mut self,
        adapter: Option<&Arc<Adapter>>,
        request: &SampleRequest,
        prefixes: &mut Prefixes,
    ) {
        loop {
            let (start, end) = (self.table.rows(), self.next_end(request));
            if start == end || !self.may_skip(request, end) {
                return;
            }
            let Some(piece) = prefixes.find(adapter, &request.prompt, end) else {
                return;
            };
            self.table.append(&piece.pages, end - start);
            self.last = Some(piece.last.clone());
            self.cached += end - start;
        }
    }

    /// How many rows to read next: whole pieces, at least one and at most so many rows if there
    /// are more.
    pub(crate) fn rows_ahead(&self, request: &SampleRequest, most: usize) -> usize {
        let left = request.prompt.len() - self.table.rows();
        match left <= most {
            true => left,
            false => (most / PIECE * PIECE).clamp(PIECE.min(left), left),
        }
    }

    /// Takes in what was computed for the rows from `start` on.
    fn hear(
        &mut self,
        net: &Net<'_>,
        request: &SampleRequest,
        start: usize,
        x: &[f32],
        scratch: &mut Scratch,
    ) {
        let width = net.weights.config.width;
        for piece in x.chunks(PIECE * width) {
            let newest = head::norm(net, &piece[piece.len() - width..], scratch);
            self.fresh.push(newest[..].into());
            scratch.give(newest);
        }
        if let Some(last) = self.fresh.last() {
            self.last = Some(last.clone());
        }
        self.report(net, request, start, x, scratch);
    }

    /// Notes what was asked about the rows of a piece; the prompt's last row begins the samples.
    fn report(
        &mut self,
        net: &Net<'_>,
        request: &SampleRequest,
        start: usize,
        x: &[f32],
        scratch: &mut Scratch,
    ) {
        let rows = x.len() / net.weights.config.width;
        let asked = self.asked.max(start) - start;
        let until = rows.min(request.prompt.len() - 1 - start);
        if let Some(report) = self.report.as_mut().filter(|_| asked < until) {
            let normed = head::norm(net, x, scratch);
            head::for_rows(net, &normed, asked..until, scratch, |row, logits| {
                report.row(request, start + row, logits);
            });
            scratch.give(normed);
        }
    }

    /// What was asked about the prompt and how much of it others had read, the first time.
    pub(crate) fn take_report(&mut self) -> Option<SampleOutput> {
        let report = self.report.take()?;
        Some(SampleOutput {
            cached: self.cached,
            ..report.output
        })
    }

    /// Hands the newest pieces, which were just read, to whoever reads the same.
    pub(crate) fn share(
        &mut self,
        adapter: Option<&Arc<Adapter>>,
        request: &SampleRequest,
        prefixes: &mut Prefixes,
    ) {
        let rows = self.table.rows();
        let first = rows.div_ceil(PIECE) - self.fresh.len();
        for (index, last) in self.fresh.drain(..).enumerate() {
            let (start, end) = (first + index, rows.min((first + index + 1) * PIECE));
            let pages = start * PIECE / PAGE..end.div_ceil(PAGE);
            let pages = &self.table.pages()[pages];
            prefixes.keep(adapter, &request.prompt, end, pages, &last);
        }
    }
}

/// A prompt to be read on, and by how many rows.
#[derive(Debug)]
pub(crate) struct Due<'a> {
    pub(crate) request: &'a SampleRequest,
    pub(crate) reading: &'a mut Reading,
    pub(crate) rows: usize,
}

/// Reads on, several prompts at once. How they are cut does not show in the result.
pub(crate) fn advance(net: &Net<'_>, due: &mut [Due<'_>], scratch: &mut Scratch) {
    let starts: Vec<usize> = due.iter().map(|one| one.reading.table.rows()).collect();
    let unread = due.iter_mut().zip(&starts).map(|(one, start)| Unread {
        tokens: &one.request.prompt[*start..*start + one.rows],
        table: &mut one.reading.table,
    });
    let mut unread: Vec<Unread<'_>> = unread.filter(|one| !one.tokens.is_empty()).collect();
    if !unread.is_empty() {
        let x = decode::read(net, &mut unread, scratch);
        let mut rest = &x[..];
        for (one, start) in due.iter_mut().zip(starts).filter(|(one, _)| one.rows > 0) {
            let own;
            (own, rest) = rest.split_at(one.rows * net.weights.config.width);
            one.reading.hear(net, one.request, start, own, scratch);
        }
        scratch.give(x);
    }
    begin(net, due, scratch);
}

/// Computes the logits after the prompts that have been read to their ends.
fn begin(net: &Net<'_>, due: &mut [Due<'_>], scratch: &mut Scratch) {
    let whole = |one: &&mut Due<'_>| one.reading.table.rows() == one.request.prompt.len();
    let mut whole: Vec<_> = due.iter_mut().filter(whole).collect();
    let last = whole.iter().filter_map(|one| one.reading.last.as_deref());
    let last: Vec<f32> = last.flatten().copied().collect();
    if last.is_empty() {
        return;
    }
    let (width, vocab) = (net.weights.config.width, net.weights.config.vocab);
    let mut logits = scratch.take(last.len() / width * vocab);
    // Each alone, so that it is the same whatever else was asked.
    net.head()
        .forward_each(&last, last.len() / width, &mut logits);
    for (one, logits) in whole.iter_mut().zip(logits.chunks_exact(vocab)) {
        one.reading.first = Some(logits.into());
    }
    scratch.give(logits);
}

/// Gathers what was asked about the prompt, row by row; row `i` predicts token `i + 1`.
#[derive(Debug)]
struct PromptReport {
    picker: Picker,
    candidates: Candidates,
    rng: Rng,
    output: SampleOutput,
}

impl PromptReport {
    fn new(request: &SampleRequest, seed: u64) -> Self {
        let len = request.prompt.len();
        let cells = |width: usize| (len - 1) * width;
        let targets = request.target_prompt_logprobs.as_ref();
        Self {
            picker: Picker::new(request.temperature, None, 1.0),
            candidates: Candidates::default(),
            rng: Rng::stream(seed, u64::MAX),
            output: SampleOutput {
                sequences: Vec::new(),
                cached: 0,
                prompt_logprobs: request.prompt_logprobs.then(|| vec![None; len]),
                topk_prompt_logprobs: (request.topk_prompt_logprobs > 0).then(|| vec![None; len]),
                target_prompt_logprobs: targets.map(|targets| vec![0.0; cells(targets.width)]),
                prompt_alt_tokens: (request.prompt_alt_tokens > 0)
                    .then(|| Vec::with_capacity(cells(request.prompt_alt_tokens))),
            },
        }
    }

    /// The first row anything was asked about; the last if nothing was.
    fn first_row(request: &SampleRequest) -> usize {
        let last = request.prompt.len() - 1;
        if request.target_prompt_logprobs.is_some() || request.prompt_alt_tokens > 0 {
            0
        } else if request.prompt_logprobs || request.topk_prompt_logprobs > 0 {
            request
                .prompt_logprobs_last_n
                .map_or(0, |n| last - n.min(last))
        } else {
            last
        }
    }

    fn row(&mut self, request: &SampleRequest, row: usize, logits: &[f32]) {
        let output = &mut self.output;
        let total = log_sum_exp(logits);
        let last_n = request.prompt_logprobs_last_n.unwrap_or(usize::MAX);
        if request.prompt.len() - (row + 1) <= last_n {
            if let Some(logprobs) = &mut output.prompt_logprobs {
                logprobs[row + 1] = Some(logits[request.prompt[row + 1] as usize] - total);
            }
            if let Some(topk) = &mut output.topk_prompt_logprobs {
                topk[row + 1] = Some(top(logits, total, request.topk_prompt_logprobs));
            }
        }
        if let (Some(out), Some(targets)) = (
            &mut output.target_prompt_logprobs,
            &request.target_prompt_logprobs,
        ) {
            let range = row * targets.width..(row + 1) * targets.width;
            for (out, token) in out[range.clone()].iter_mut().zip(&targets.tokens[range]) {
                if let Ok(token) = usize::try_from(*token) {
                    *out = logits[token] - total;
                }
            }
        }
        if let Some(drawn) = &mut output.prompt_alt_tokens {
            for _ in 0..request.prompt_alt_tokens {
                let token = self
                    .picker
                    .pick(logits, &mut self.rng, &mut self.candidates);
                drawn.push((token, logits[token as usize] - total));
            }
        }
    }
}
