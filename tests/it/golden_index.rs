//! No golden file is forgotten: each is asserted somewhere, or its part is still to come.

use std::collections::BTreeSet;
use std::path::Path;

/// Every golden file or folder, and what asserts it: sources that read it, or the golden file
/// that names each file of a folder (`through`). `later` names the part of the project that will.
const GOLDEN: &[(&str, &str)] = &[
    ("README.md", "none: explains the others"),
    ("auth.json", "src/config/tests.rs"),
    ("byte_estimates.json", "tests/it/golden_types.rs"),
    ("chunking.json", "tests/it/golden_types.rs"),
    ("cli.json", "tests/it/cli/golden.rs"),
    ("cli_formatting.json", "src/bin/tinker/units.rs"),
    ("future_scenarios.json", "tests/it/faults/futures.rs"),
    ("fwdbwd_output", "through: proto_responses.json"),
    ("fwdbwd_request", "through: fwdbwd_request.json"),
    (
        "fwdbwd_request.json",
        "src/wire/conformance/golden.rs tests/it/golden_types.rs",
    ),
    ("generate.py", "none: makes the others"),
    ("http_capture.json", "src/wire/conformance/golden.rs"),
    (
        "json_dialect_requests.json",
        "src/wire/conformance/golden.rs",
    ),
    (
        "json_responses.json",
        "src/wire/conformance/golden.rs tests/it/golden_types.rs",
    ),
    ("metric_reduction.json", "tests/it/golden_types.rs"),
    (
        "proto_responses.json",
        "src/wire/conformance/golden.rs tests/it/golden_types.rs",
    ),
    ("proto_schema.json", "src/wire/conformance/schema.rs"),
    ("query_strings.json", "src/wire/query.rs"),
    (
        "requests.json",
        "src/wire/conformance/golden.rs tests/it/golden_types.rs",
    ),
    ("retry_and_errors.json", "src/transport/retry/tests.rs"),
    ("sample_response", "through: proto_responses.json"),
    (
        "telemetry.json",
        "tests/it/golden_types.rs tests/it/sessions.rs",
    ),
    ("tinker_paths.json", "tests/it/golden_types.rs"),
    ("tokenizer_selection.json", "src/text/selection.rs"),
    ("topk.json", "tests/it/golden_types.rs"),
];

#[test]
fn every_golden_file_is_accounted_for() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = root.join("tests/fixtures/wire");
    let listed: BTreeSet<String> = GOLDEN.iter().map(|(file, _)| file.to_string()).collect();
    assert_eq!(
        names(&golden),
        listed,
        "keep the table in step with the folder"
    );

    for (file, place) in GOLDEN {
        match place.split_once(": ") {
            Some(("none", _)) => {}
            Some(("later", part)) => println!("not asserted yet: {file} ({part})"),
            Some((_, index)) => {
                let index = read(&golden.join(index));
                for name in names(&golden.join(file)) {
                    assert!(index.contains(&format!("{file}/{name}")), "{file}/{name}");
                }
            }
            None => {
                for source in place.split(' ') {
                    let text = read(&root.join(source));
                    assert!(text.contains(file), "{source} does not mention {file}");
                }
            }
        }
    }
}

fn names(folder: &Path) -> BTreeSet<String> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
