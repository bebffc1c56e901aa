//! From text and trajectories to datums.
//!
//! A [`Reader`] streams rows from files of JSON lines: [`Conversation`], [`Pair`],
//! [`Comparison`], [`Judgement`] or [`Text`]. Its [`datums`](Reader::datums) renders them on all cores. [`shuffle()`] and
//! [`split`] order and divide rows as the cookbook does.
//!
//! ```no_run
//! use tinker::text::data::{Conversation, Reader, RenderOptions};
//! use tinker::text::{Renderer, Tokenizer};
//!
//! let tokenizer = Tokenizer::for_model("Qwen/Qwen3-8B")?;
//! let renderer = Renderer::for_model("Qwen/Qwen3-8B", &tokenizer)?;
//! let rows = Reader::<Conversation>::open("chats.jsonl.gz")?.skipping();
//! let mut datums = rows.datums(&renderer, RenderOptions::default().with_max_length(8192));
//! let data: Vec<tinker::Datum> = datums.by_ref().collect::<Result<_, _>>()?;
//! println!("{:?}, {} skipped", datums.statistics(), datums.skipped().count);
//! # let _ = data;
//! # Ok::<(), tinker::Error>(())
//! ```

mod example;
mod kl;
mod reader;
mod rows;
mod shuffle;
mod statistics;
mod trajectory;

pub use example::{DatumOptions, Example, Reduction};
pub use kl::{KlEstimate, KlPenalty, discounted_future_sum, full_sequence};
pub use reader::{Datums, Reader, RenderOptions, Skipped, split};
pub use rows::{Answers, Comparison, Conversation, Judgement, Pair, Preferred, Row, Said, Text};
pub use shuffle::{permutation, shuffle};
pub use statistics::{Lengths, Statistics};
pub use trajectory::{
    PARSE_ERROR_MASKED, Trajectory, TrajectoryDatum, TrajectoryGroup, Transition, group_advantages,
    trajectory_datums, without_constant_groups, without_mask,
};
