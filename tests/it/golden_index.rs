//! No golden file is forgotten: each is asserted somewhere, or its part is still to come.

use std::collections::BTreeSet;
use std::path::Path;

/// Every golden file or folder, and the sources that read it. `later` names the part of the
/// project that will assert it.
const GOLDEN: &[(&str, &str)] = &[
    ("README.md", "none: explains the others"),
    ("auth.json", "src/config/tests.rs"),
    ("byte_estimates.json", "tests/it/golden_types.rs"),
    ("chunking.json", "tests/it/golden_types.rs"),
    ("cli.json", "later: command line"),
    ("cli_formatting.json", "later: command line"),
    ("future_scenarios.json", "later: futures"),
    ("fwdbwd_output", "later: wire"),
    ("fwdbwd_request", "later: wire"),
    ("fwdbwd_request.json", "tests/it/golden_types.rs"),
    ("http_capture.json", "later: clients"),
    ("json_dialect_requests.json", "later: wire"),
    ("json_responses.json", "tests/it/golden_types.rs"),
    ("metric_reduction.json", "tests/it/golden_types.rs"),
    ("proto_responses.json", "tests/it/golden_types.rs"),
    ("proto_schema.json", "src/wire/conformance/schema.rs"),
    ("query_strings.json", "src/wire/query.rs"),
    ("requests.json", "tests/it/golden_types.rs"),
    ("retry_and_errors.json", "src/transport/retry/tests.rs"),
    ("sample_response", "later: wire"),
    ("telemetry.json", "tests/it/golden_types.rs"),
    ("tinker_paths.json", "tests/it/golden_types.rs"),
    ("tokenizer_selection.json", "later: text"),
    ("topk.json", "tests/it/golden_types.rs"),
];

#[test]
fn every_golden_file_is_accounted_for() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = std::fs::read_dir(root.join("tests/fixtures/wire")).unwrap();
    let found: BTreeSet<String> = folder
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let listed: BTreeSet<String> = GOLDEN.iter().map(|(file, _)| file.to_string()).collect();
    assert_eq!(found, listed, "keep the table in step with the folder");

    for (file, place) in GOLDEN {
        if place.starts_with("none: ") {
            continue;
        }
        if let Some(part) = place.strip_prefix("later: ") {
            println!("not asserted yet: {file} ({part})");
            continue;
        }
        let source = std::fs::read_to_string(root.join(place))
            .unwrap_or_else(|error| panic!("{place}, said to assert {file}: {error}"));
        assert!(source.contains(file), "{place} does not mention {file}");
    }
}
