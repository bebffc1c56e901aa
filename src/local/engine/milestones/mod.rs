//! What the shipped model must be able to learn, how fast, and what else takes minutes to show.
//!
//! Each test has a short form that every run of the tests includes. The long forms, with the
//! figures: `TINKER_TEST_LONG=1 cargo test --release --lib milestones -- --nocapture`

mod export;
mod large;
mod pig_latin;
mod rewards;
mod shapes;
mod speed;

/// Whether the long forms are wanted.
pub(crate) fn long() -> bool {
    std::env::var_os("TINKER_TEST_LONG").is_some()
}
