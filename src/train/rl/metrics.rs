//! The health of reinforcement learning, in numbers.

use std::collections::BTreeMap;

use crate::text::data::{KlEstimate, TrajectoryGroup};
use crate::train::row::{Row, Value};

/// The figures of a batch of rollouts: under `env/all/`, and under `env/<tag>/` for every tag once
/// some tag is not on every group.
#[doc(alias = "compute_trajectory_metrics")]
pub fn env_metrics(groups: &[(&TrajectoryGroup, Vec<String>)]) -> Row {
    let mut tags: Vec<&String> = Vec::new();
    for tag in groups.iter().flat_map(|(_, tags)| tags) {
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    let tagged = |tag: &String| -> Vec<&TrajectoryGroup> {
        // A tag that stands twice on a group counts twice, as in the Python tools.
        let copies = |tags: &[String]| tags.iter().filter(|other| *other == tag).count();
        let repeated = groups
            .iter()
            .flat_map(|(group, tags)| vec![*group; copies(tags)]);
        repeated.collect()
    };
    let mut metrics = Row::new();
    if tags.iter().any(|tag| tagged(tag).len() < groups.len()) {
        for tag in tags {
            add(&mut metrics, &format!("env/{tag}/"), &tagged(tag));
        }
    }
    let all: Vec<&TrajectoryGroup> = groups.iter().map(|(group, _)| *group).collect();
    add(&mut metrics, "env/all/", &all);
    metrics
}

fn add(metrics: &mut Row, prefix: &str, groups: &[&TrajectoryGroup]) {
    let episodes = || groups.iter().flat_map(|group| &group.trajectories);
    let turns = || episodes().flat_map(|episode| &episode.transitions);
    let (count, episode_count) = (turns().count(), episodes().count());
    let said: usize = turns().map(|turn| turn.action.len()).sum();
    let read: usize = turns()
        .map(|turn| turn.observation.length().unwrap_or(0))
        .sum();
    let mut set = |name: &str, value: Value| metrics.set(format!("{prefix}{name}"), value);
    set("ac_tokens_per_turn", ratio(said, count).into());
    set("ob_tokens_per_turn", ratio(read, count).into());
    set("turns_per_episode", ratio(count, episode_count).into());
    set("total_episodes", episode_count.into());
    set("total_turns", count.into());
    set("total_ac_tokens", said.into());
    set("total_ob_tokens", read.into());
    let rewards: Vec<f64> = groups
        .iter()
        .flat_map(|group| group.total_rewards())
        .collect();
    let mean = rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
    set("reward/total", mean.into());
    let of_turns = turns().map(|turn| &turn.metrics);
    let of_episodes = groups.iter().flat_map(|group| &group.metrics);
    for (name, value) in means(of_turns.chain(of_episodes)) {
        set(name, value.into());
    }
    let share = |is: &dyn Fn(&TrajectoryGroup) -> bool| {
        ratio(
            groups.iter().filter(|group| is(group)).count(),
            groups.len(),
        )
    };
    let good = |group: &TrajectoryGroup| group.total_rewards().first().is_some_and(|r| *r >= 0.5);
    set(
        "by_group/frac_mixed",
        share(&|group| !group.is_constant()).into(),
    );
    set(
        "by_group/frac_all_good",
        share(&|group| group.is_constant() && good(group)).into(),
    );
    set(
        "by_group/frac_all_bad",
        share(&|group| group.is_constant() && !good(group)).into(),
    );
}

fn ratio(part: usize, whole: usize) -> f64 {
    match whole {
        0 => 0.0,
        whole => part as f64 / whole as f64,
    }
}

/// Every figure averaged over the records that have it, in the order of first appearance.
fn means<'a>(records: impl Iterator<Item = &'a BTreeMap<String, f64>>) -> Vec<(&'a str, f64)> {
    let mut sums: Vec<(&str, f64, usize)> = Vec::new();
    for (name, value) in records.flatten() {
        match sums.iter_mut().find(|(known, ..)| known == name) {
            Some((_, sum, count)) => (*sum, *count) = (*sum + value, *count + 1),
            None => sums.push((name, *value, 1)),
        }
    }
    let mean = |(name, sum, count)| (name, sum / count as f64);
    sums.into_iter().map(mean).collect()
}

/// How far the model in training is from the one that sampled. Training is healthy while
/// `optim/kl_sample_train_v1` stays below 0.01.
pub(super) fn health(kl: KlEstimate) -> Row {
    Row::new()
        .with("optim/kl_sample_train_v1", kl.v1)
        .with("optim/kl_sample_train_v2", kl.v2)
        .with("optim/entropy", kl.entropy)
}
