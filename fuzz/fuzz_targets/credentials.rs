#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tinker::unversioned::fuzz::run("credentials", bytes));
