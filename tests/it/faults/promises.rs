//! What a client that runs for days must keep to, and the tests that hold it to it.
//!
//! Each line was a defect once, found from outside. The names are looked up in the sources, so a
//! test that is renamed or dropped is missed here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const PROMISES: &[(&str, &[&str])] = &[
    (
        "only the owner of a session finishes it",
        &["reach_a_clone_of_a_sampler_never_ends_its_owners_session"],
    ),
    (
        "who holds bytes waits for no thread, and who waits for bytes holds none",
        &[
            "a_wait_that_holds_bytes_needs_no_thread_that_another_holds",
            "announced_results_wait_for_bytes_without_a_thread",
        ],
    ),
    (
        "a job that comes back with its permit wakes who waits for one",
        &[
            "a_lost_sample_that_keeps_the_only_permit_goes_on_before_the_next",
            "samples_refused_for_the_rate_keep_their_permits_and_go_on",
            "a_returning_job_that_holds_the_last_flight_wakes_who_waits_for_one",
        ],
    ),
    (
        "a number that may have been used is given to nobody else",
        &[
            "effect_a_number_that_may_have_been_used_is_never_given_to_another_operation",
            "a_number_that_may_have_been_used_is_not_free",
        ],
    ),
    (
        "a known service's TLS or redirect hiccup is an outage, and a poller never dies of it",
        &[
            "a_broken_handshake_of_a_known_service_is_an_outage",
            "reach_a_redirect_in_mid_run_is_borne",
            "poller_that_cannot_go_on_leaves_all_who_wait_and_all_who_come_to_poll_for_themselves",
        ],
    ),
    (
        "a damaged 200 is asked for again wherever a number makes that harmless",
        &["effect_a_damaged_200_to_a_save_is_asked_for_again_under_its_number"],
    ),
    (
        "one TLS configuration: handshakes are resumed, idle connections small, few of either",
        &[
            "later_handshakes_are_resumed",
            "an_idle_connection_is_small",
            "a_sample_and_its_result_share_a_connection",
        ],
    ),
    (
        "what is in flight fits the process's descriptors, and a lack of them costs nothing",
        &[
            "at_128_descriptors_all_samples_arrive_and_files_can_be_opened",
            "at_256_descriptors_all_samples_arrive_and_files_can_be_opened",
            "connections_fit_and_leave_a_quarter_to_the_program",
            "faults_have_one_meaning",
        ],
    ),
    (
        "a stalled sampler starves no other",
        &[
            "a_stalled_sampler_leaves_others_their_permits",
            "samplers_take_turns_and_one_that_stalls_leaves_the_others_their_share",
        ],
    ),
    (
        "samples that wait in the poller are reported on, and noticed when they get nowhere",
        &[
            "progress_is_said_while_samples_wait_in_the_poller",
            "a_run_that_gets_nowhere_in_the_poller_counts_as_stuck",
        ],
    ),
    (
        "cancelled samples are let go of at once",
        &[
            "cancelled_samples_leave_the_poller_at_once",
            "cancelled_samples_leave_the_queue_at_once",
        ],
    ),
    (
        "proxies and certificates: SOCKS works, a 407 is final, the environment's roots count",
        &[
            "a_socks_proxy_is_used",
            "a_proxy_that_wants_credentials_is_not_asked_again",
            "reach_a_proxy_that_wants_credentials_is_asked_once",
            "an_explicit_proxy_carries_everything",
            "the_environment_names_the_certificates_to_trust",
        ],
    ),
    (
        "one exchange of tokens serves all, within a time, and an unexpired token meanwhile",
        &[
            "many_callers_share_one_exchange",
            "those_who_wait_for_an_exchange_share_its_failure",
            "an_unexpired_token_is_used_while_another_is_fetched",
            "reach_a_close_does_not_wait_for_an_exchange_of_tokens",
        ],
    ),
    (
        "a resumed download is checked, and its links renewed",
        &[
            "a_rest_of_other_content_is_never_appended",
            "a_whole_that_breaks_after_a_range_request_is_taken_up_right",
            "a_wrong_digest_leaves_no_file",
            "links_are_renewed_before_they_run_out_and_when_refused",
        ],
    ),
    (
        "a batch gives what is there before it pulls more, and input may depend on results",
        &[
            "a_batch_gives_what_is_there_before_it_pulls_the_next_request",
            "pushed_requests_may_depend_on_results",
        ],
    ),
    (
        "what newer and other servers say survives",
        &[
            "newer_prompt_logprobs_line_up_with_the_prompt",
            "newer_states_of_completions_wake_the_sample",
            "newer_stop_reasons_are_kept",
            "paths_keep_colons_and_the_slash_of_checkpoints",
        ],
    ),
    (
        "no value panics, and a thread that dies or cannot be had is noticed",
        &[
            "reach_any_close_timeout_is_taken",
            "reach_any_refresh_interval_is_taken",
            "reach_too_large_a_number_of_a_clone_is_an_error",
            "limits_of_any_length_are_taken",
            "a_thread_that_panics_goes_on",
            "a_job_whose_thread_was_refused_runs_once_one_can_be_had",
        ],
    ),
    (
        "with a poller, as many are submitted and fetched at a time as the reference submits",
        &[
            "a_polled_sampler_submits_400_at_a_time",
            "a_polled_sampler_fetches_400_at_a_time",
        ],
    ),
    (
        "silent submissions never more than double the load",
        &[
            "silent_submissions_hold_no_permit_but_never_more_than_double_the_load",
            "silent_bytes_never_double_the_load_either",
        ],
    ),
    (
        "a save under a name that is taken fails at once",
        &["effect_a_save_under_a_name_that_is_taken_fails_at_once_and_the_queue_goes_on"],
    ),
    (
        "an answer that comes before the body was read is read",
        &[
            "an_answer_that_comes_before_the_body_was_read_is_read",
            "a_body_that_is_too_large_is_refused_and_the_queue_goes_on",
        ],
    ),
    (
        "a handle does not choose who receives the key",
        &["reach_a_handle_does_not_choose_who_receives_the_key"],
    ),
    (
        "no secret is shown, wherever it was configured and whoever echoes it",
        &[
            "reach_what_a_service_echoes_shows_no_secret",
            "whatever_was_configured_as_a_secret_is_hidden_for_ever",
            "logs_show_requests_and_no_secrets",
            "debug_shows_no_secret",
        ],
    ),
    (
        "the service hears how a program ended, and the program that its session was lost",
        &[
            "reach_a_scope_says_how_it_ended",
            "reach_a_session_that_the_service_ended_is_said_and_takes_nothing_more",
            "a_lost_session_is_told",
        ],
    ),
    (
        "waits vary and are told, scores are repeated, odd metrics kept, telemetry is fair, and \
         nothing kept per sampler, note or loss grows without bound",
        &[
            "difference_backoff_has_jitter",
            "long_waits_are_told_and_not_obeyed",
            "scoring_is_repeated_even_where_samples_are_not",
            "newer_metrics_without_a_reduction_keep_their_name",
            "newer_telemetry_says_nothing_of_samples_that_are_submitted_again",
            "the_oldest_graphs_are_forgotten",
        ],
    ),
    (
        "a forked child that drops its copies leaves the parent's session alone",
        &["a_child_that_drops_its_copy_leaves_the_parents_session_alone"],
    ),
];

#[test]
fn every_promise_has_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut known = BTreeSet::new();
    for folder in ["src", "tests/it"] {
        collect(&root.join(folder), &mut known);
    }
    for (promise, tests) in PROMISES {
        for test in *tests {
            assert!(known.contains(*test), "{promise}: there is no {test}");
        }
    }
}

/// The functions marked as tests in a folder's sources.
fn collect(folder: &Path, known: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, known);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            for marked in text.split("#[test]").skip(1) {
                let name = marked
                    .split_once("fn ")
                    .and_then(|(_, rest)| rest.split_once('('));
                known.extend(name.map(|(name, _)| name.to_owned()));
            }
        }
    }
}
