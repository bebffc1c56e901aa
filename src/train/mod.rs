//! What a training script would write by hand: loops, logs, checkpoints, schedules, metrics.
//!
//! Small pieces that compose. A loop such as [`Supervised`] takes a service, a [`Run`] (a folder
//! in the format of the Python cookbook, and who listens) and data; each piece can be used without
//! the others in a loop of your own.
//!
//! | to | use |
//! |---|---|
//! | train on examples | [`Supervised`], [`Dataset`], [`Batches`], [`SoftTargets`] |
//! | train on preferences | [`Dpo`], or a judge: [`rl::PreferenceModel`] |
//! | train by reinforcement | [`rl`] |
//! | measure on the way | [`Evaluator`], [`NllEvaluator`] |
//! | keep a run's files, read those of others | [`Run`], [`RunFolder`], [`RunReader`], [`Summary`] |
//! | hear of metrics | [`Logger`], [`Table`], [`Bar`], [`JsonLines`], [`Csv`] for trackio |
//! | save on the way | [`SavePolicy`], [`Checkpoints`] |
//! | end early, go on by itself | [`Interrupt`], [`AutoResume`] |
//! | choose settings | [`learning_rate_for`], [`lora_parameters`], [`Schedule`] |

mod chats;
mod checkpoints;
mod code;
mod csv;
mod dataset;
mod dpo;
mod evaluate;
mod fault;
mod folder;
mod hyperparams;
mod interrupt;
mod log;
mod model;
mod prompts;
mod reader;
mod record;
mod resume;
mod row;
mod run;
mod schedule;
mod scores;
mod soft;
mod steps;
mod summary;
mod supervised;
mod timing;

pub mod rl;

pub use chats::Conversations;
pub use checkpoints::{Checkpoints, Due, Position, SavePolicy};
pub use csv::Csv;
pub use dataset::{Batches, Dataset};
pub use dpo::Dpo;
pub use evaluate::{Evaluator, NllEvaluator, Snapshot};
pub use folder::{Existing, RunFolder};
pub use hyperparams::{full_learning_rate_for, learning_rate_for, lora_parameters};
pub use interrupt::Interrupt;
pub use log::{Bar, JsonLines, Logger, Table};
pub use model::Model;
pub use prompts::distill_prompt;
#[cfg(all(feature = "chat", feature = "local"))]
pub(crate) use reader::is_recent;
pub use reader::{RunKind, RunReader, RunStatus, main_metric};
pub use record::CheckpointRecord;
pub use resume::AutoResume;
pub use row::{Row, Value};
pub use run::{Outcome, Report, Run};
pub use schedule::{Decay, Schedule};
pub use scores::{BitsPerByte, DpoScores, mean_nll, split};
pub use soft::SoftTargets;
pub use summary::Summary;
pub use supervised::Supervised;
pub use timing::{Span, Timing};
