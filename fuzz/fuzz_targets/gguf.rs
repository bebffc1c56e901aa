#![no_main]

libfuzzer_sys::fuzz_target!(
    // A panic of the tokenizer's library ends in an error; the fuzzer's hook would not wait for that.
    init: drop(std::panic::take_hook()),
    |bytes: &[u8]| tinker::unversioned::fuzz::run("gguf", bytes)
);
