//! Reading a prompt: its keys and values, and what was asked about its tokens.

use std::sync::Arc;

use super::decode;
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

    /// Reads the next piece. Where it is cut depends on the prompt alone.
    pub(crate) fn advance(
        &mut self,
        net: &Net<'_>,
        request: &SampleRequest,
        scratch: &mut Scratch,
    ) {
        let (start, end) = (self.table.rows(), self.next_end(request));
        if start < end {
            let x = decode::read(net, &request.prompt[start..end], &mut self.table, scratch);
            let width = net.weights.config.width;
            let newest = head::norm(net, &x[x.len() - width..], scratch);
            self.last = Some(newest[..].into());
            scratch.give(newest);
            self.report(net, request, start, &x, scratch);
            scratch.give(x);
        }
        if let (true, Some(last)) = (end == request.prompt.len(), &self.last) {
            // Alone, so that it is the same whatever else was asked.
            let mut logits = vec![0.0; net.weights.config.vocab];
            net.head().forward_each(last, 1, &mut logits);
            self.first = Some(logits.into());
        }
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

    /// Hands the newest piece, which was just read, to whoever reads the same.
    pub(crate) fn share(
        &self,
        adapter: Option<&Arc<Adapter>>,
        request: &SampleRequest,
        prefixes: &mut Prefixes,
    ) {
        if let Some(last) = &self.last {
            let end = self.table.rows();
            let pages = &self.table.pages()[(end - 1) / PIECE * PIECE / PAGE..];
            prefixes.keep(adapter, &request.prompt, end, pages, last);
        }
    }
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
            candidates: Candidates::new(),
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
