//! Sampling with text in and text out.

use super::sampling::SamplingClient;
use crate::error::{Error, Result};
use crate::text::{Message, Parsed, Renderer, Tokenizer};
use crate::types::{ModelInput, SampleOptions, SampledSequence};

impl SamplingClient {
    /// The renderer recommended for the base model, with its tokenizer; one made from the chat
    /// template for a model that is not known.
    ///
    /// # Errors
    ///
    /// As [`tokenizer`](Self::tokenizer) and
    /// [`Renderer::for_model`](crate::text::Renderer::for_model).
    pub fn renderer(&self) -> Result<Renderer> {
        Renderer::for_model(&self.base_model()?, &self.tokenizer()?)
    }

    /// Asks the model for its next turn in a conversation. Push the answer's message and ask
    /// again: it keeps the very tokens that were sampled. The renderer's stop is used unless the
    /// options have one.
    ///
    /// ```no_run
    /// # fn example(sampler: tinker::SamplingClient) -> tinker::Result<()> {
    /// use tinker::SamplingParams;
    /// use tinker::text::Message;
    ///
    /// let renderer = sampler.renderer()?;
    /// let mut messages = vec![Message::user("Name a colour.")];
    /// let answer = sampler.chat(&renderer, &messages, SamplingParams::max_tokens(64))?;
    /// println!("{}", answer.message.text());
    /// messages.extend([answer.message, Message::user("Another.")]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the conversation cannot be laid out, sampling fails, or the answer cannot be read.
    pub fn chat(
        &self,
        renderer: &Renderer,
        messages: &[Message],
        options: impl Into<SampleOptions>,
    ) -> Result<Parsed> {
        let mut options = options.into();
        if options.params.stop.is_none() {
            options.params.stop = Some(renderer.stop());
        }
        let prompt = renderer.generation_prompt(messages)?;
        renderer.parse(&self.one(&prompt, options)?.tokens)
    }

    /// Continues a text. Special tokens in it are tokens; the answer has none.
    ///
    /// # Errors
    ///
    /// If sampling fails, or a token is none of this tokenizer.
    pub fn sample_text(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        options: impl Into<SampleOptions>,
    ) -> Result<String> {
        let prompt = ModelInput::from_ints(tokenizer.encode(text)?);
        self.one(&prompt, options.into())?.text(tokenizer)
    }

    fn one(&self, prompt: &ModelInput, options: SampleOptions) -> Result<SampledSequence> {
        let response = self.sample(prompt, options)?;
        let first = response.sequences.into_iter().next();
        first.ok_or_else(|| Error::invalid("num_samples", "must be at least 1 for an answer"))
    }
}
