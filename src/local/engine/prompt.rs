//! Reading a prompt: its keys and values, and what was asked about its tokens.

use super::decode::{self, Cache};
use super::head;
use super::model::Net;
use super::ops::log_sum_exp;
use super::pick::{Candidates, Picker, top};
use super::rng::Rng;
use super::sample::{SampleOutput, SampleRequest};
use super::scratch::Scratch;

/// Tokens read at a time, so that sequences under way need not wait for a long prompt.
pub(crate) const PIECE: usize = 128;

/// A prompt that is being read.
#[derive(Debug)]
pub(crate) struct Reading {
    cache: Cache,
    report: PromptReport,
    first: Vec<f32>,
}

/// A prompt that has been read.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) cache: Cache,
    /// The logits after its last token.
    pub(crate) first: Vec<f32>,
}

impl Reading {
    /// Begins to read a request's prompt.
    pub(crate) fn new(request: &SampleRequest, seed: u64, net: &Net<'_>) -> Self {
        Self {
            cache: Cache::new(&net.weights.config),
            report: PromptReport::new(request, seed),
            first: Vec::new(),
        }
    }

    /// How many tokens the next piece has; none once the prompt is read.
    pub(crate) fn next_piece(&self, request: &SampleRequest) -> usize {
        PIECE.min(request.prompt.len() - self.cache.rows())
    }

    /// Reads the next piece. Where it is cut depends on the prompt alone.
    pub(crate) fn advance(
        &mut self,
        net: &Net<'_>,
        request: &SampleRequest,
        scratch: &mut Scratch,
    ) {
        let start = self.cache.rows();
        let end = start + self.next_piece(request);
        let x = decode::read(net, &request.prompt[start..end], &mut self.cache, scratch);
        let last = request.prompt.len() - 1;
        let asked = PromptReport::first_row(request).max(start);
        if asked < end {
            let normed = head::norm(net, &x, scratch);
            head::for_rows(
                net,
                &normed,
                asked - start..end - start,
                scratch,
                |row, logits| {
                    if start + row < last {
                        self.report.row(request, start + row, logits);
                    } else {
                        self.first = logits.to_vec();
                    }
                },
            );
            scratch.give(normed);
        }
        scratch.give(x);
    }

    /// What was read, and what was asked about it.
    pub(crate) fn finish(self) -> (Prompt, SampleOutput) {
        let prompt = Prompt {
            cache: self.cache,
            first: self.first,
        };
        (prompt, self.report.output)
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
