//! Prompt distillation: what a long instruction makes a model do becomes examples without it.

use std::path::Path;

use serde_json::json;

use super::fault;
use super::row::Row;
use crate::client::SamplingClient;
use crate::text::Tokenizer;
use crate::types::{ModelInput, SampleRequest, SamplingParams};
use crate::{Error, Result, files};

/// Asks a teacher, whose prompts carry a long instruction, and writes its answers as conversations
/// without it: a file for [`Supervised`](super::Supervised), after which the model does by itself
/// what it was told.
///
/// Each item is what the user says and the teacher's prompt for it. `extract` takes the answer
/// out of the teacher's text; items without one are left out. Returns how many were written.
///
/// ```no_run
/// # fn example(teacher: tinker::SamplingClient, tokenizer: tinker::Tokenizer) -> tinker::Result<()> {
/// use tinker::train::distill_prompt;
///
/// let item = |text: &str| {
///     let prompt = tokenizer.encode(&format!("Name the language of the text.\n{text}\nAnswer:"))?;
///     tinker::Result::Ok((text.to_owned(), tinker::ModelInput::from_ints(prompt)))
/// };
/// let items = vec![item("Guten Tag")?, item("Good day")?];
/// let first_word = |said: &str| said.split_whitespace().next().map(str::to_owned);
/// let written = distill_prompt(&teacher, &tokenizer, items, first_word, "languages.jsonl")?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// If the file cannot be written, or a sample fails for good.
pub fn distill_prompt(
    teacher: &SamplingClient,
    tokenizer: &Tokenizer,
    items: Vec<(String, ModelInput)>,
    extract: impl Fn(&str) -> Option<String>,
    file: impl AsRef<Path>,
) -> Result<usize> {
    let path = file.as_ref();
    if !files::folder_of(path).is_dir() {
        let problem = "there is no folder for it";
        return Err(Error::invalid(path.display().to_string(), problem));
    }
    let params = SamplingParams::max_tokens(1000).with_temperature(0.15);
    let (said, prompts): (Vec<String>, Vec<ModelInput>) = items.into_iter().unzip();
    let requests = prompts
        .into_iter()
        .map(|prompt| SampleRequest::new(prompt, &params));
    let mut lines = Vec::new();
    for (index, response) in teacher.sample_batch(requests).in_order() {
        let response = response?;
        let tokens = response.first().map(|sequence| sequence.tokens.as_slice());
        let text = tokenizer.decode_plain(tokens.unwrap_or_default())?;
        if let Some(answer) = extract(&text) {
            let messages = json!([
                {"role": "user", "content": said[index]},
                {"role": "assistant", "content": answer},
            ]);
            lines.push(Row::new().with("messages", messages).to_line() + "\n");
        }
    }
    let written = std::fs::write(path, lines.concat());
    written.map_err(|error| fault::file(path, "write", error))?;
    Ok(lines.len())
}
