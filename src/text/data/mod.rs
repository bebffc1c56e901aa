//! From text and trajectories to datums.

mod example;
mod kl;
mod shuffle;
mod trajectory;

pub use example::{DatumOptions, Example, Reduction};
pub use kl::{KlEstimate, KlPenalty, discounted_future_sum, full_sequence};
pub use shuffle::{permutation, shuffle};
pub use trajectory::{
    PARSE_ERROR_MASKED, Trajectory, TrajectoryDatum, TrajectoryGroup, Transition, group_advantages,
    trajectory_datums, without_constant_groups, without_mask,
};
