//! Reading a prompt: its cache, and what was asked about its tokens.

use super::decode::Cache;
use super::head;
use super::model::Net;
use super::ops::log_sum_exp;
use super::pass::{self, LayerPass, Packed};
use super::pick::{Picker, top};
use super::rng::Rng;
use super::sample::{SampleOutput, SampleRequest};
use super::scratch::Scratch;

/// Runs the prompt: its cache, the logits after its last token, and what was asked about it.
pub(crate) fn read_prompt(
    net: &Net<'_>,
    request: &SampleRequest,
    seed: u64,
    scratch: &mut Scratch,
) -> (SampleOutput, Cache, Vec<f32>) {
    let packed = Packed::new(net.weights, [&request.prompt[..]].into_iter());
    let mut cache = Cache::default();
    let mut x = pass::embed(net.weights, &packed.tokens, scratch);
    for layer in 0..net.weights.config.layers {
        let pass = LayerPass {
            net,
            layer,
            packed: &packed,
        };
        let (output, mut saved) = pass.forward(x, scratch);
        cache.push_layer(std::mem::take(&mut saved.k), std::mem::take(&mut saved.v));
        saved.recycle(scratch);
        x = output;
    }
    let normed = head::norm(net, &x, scratch);
    let last = packed.rows() - 1;
    let mut first = Vec::new();
    let mut report = PromptReport::new(request, seed);
    head::for_rows(
        net,
        &normed,
        report.first_row(last)..last + 1,
        scratch,
        |row, logits| {
            if row < last {
                report.row(row, logits);
            } else {
                first = logits.to_vec();
            }
        },
    );
    scratch.give(x);
    scratch.give(normed);
    (report.finish(), cache, first)
}

/// Gathers what was asked about the prompt, row by row; row `i` predicts token `i + 1`.
struct PromptReport<'a> {
    request: &'a SampleRequest,
    picker: Picker,
    rng: Rng,
    output: SampleOutput,
}

impl<'a> PromptReport<'a> {
    fn new(request: &'a SampleRequest, seed: u64) -> Self {
        let len = request.prompt.len();
        let cells = |width: usize| (len - 1) * width;
        let targets = request.target_prompt_logprobs.as_ref();
        Self {
            request,
            picker: Picker::new(request.temperature, None, 1.0),
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

    /// The first row anything was asked about; `last` if nothing was.
    fn first_row(&self, last: usize) -> usize {
        let request = self.request;
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

    fn row(&mut self, row: usize, logits: &[f32]) {
        let (request, output) = (self.request, &mut self.output);
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
                let token = self.picker.pick(logits, &mut self.rng);
                drawn.push((token, logits[token as usize] - total));
            }
        }
    }

    fn finish(self) -> SampleOutput {
        self.output
    }
}
