//! Makes the built-in model, and shows what it can learn and how fast the engine is.
//!
//! ```text
//! cargo run --release --example builtin_model -- make [FILE]   # some minutes; compares with the shipped file
//! cargo run --release --example builtin_model -- check         # the beginning of everything, in seconds
//! cargo run --release --example builtin_model -- pig-latin     # also: rewards, peft, large, shapes, speed
//! ```
//!
//! What runs is the library's own engine: its files, so that the recipe reaches weights and
//! gradients that no API shows.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    missing_debug_implementations,
    reason = "files of the library, used in part"
)]
#![allow(
    clippy::print_stdout,
    reason = "what was made and measured is its output"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a tool that cannot go on should stop there"
)]

#[path = "../../src/builtin.rs"]
mod builtin;
#[path = "../../src/error/mod.rs"]
mod error;
#[path = "../../src/gguf/mod.rs"]
mod gguf;
#[path = "../../src/local/engine/random.rs"]
mod random;
#[path = "../../src/sync.rs"]
mod sync;

mod drive;
mod export;
mod large;
mod local;
mod muon;
mod pig_latin;
mod recipe;
mod rewards;
mod shapes;
mod speed;
mod tasks;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["make", files @ ..] if files.len() < 2 => make(files.first().copied()),
        ["check"] => check(),
        ["pig-latin"] => pig_latin::learns_pig_latin_on_words_it_has_never_seen(true),
        ["rewards"] => rewards::rewards_make_it_add_carefully(true),
        ["peft"] => export::exports_an_adapter_for_peft(true),
        ["large"] => large::a_model_of_600_million_weights_fits_in_3_gb(true),
        ["shapes", words @ ..] => shapes::shapes(true, shapes::Shapes::parse(words)),
        ["speed"] => speed::speed(true),
        _ => {
            println!(
                "make [FILE] | check | pig-latin | rewards | peft | large | \
                 shapes [--large] [--base | --q8_0] [NAME] | speed"
            );
            std::process::exit(2);
        }
    }
}

/// Makes the model, writes it if that is wanted, and says whether it is the shipped one. It need not
/// be: other vectors, or another order of sums, round otherwise, and training makes much of that.
fn make(file: Option<&str>) {
    let bytes = recipe::make();
    if let Some(file) = file {
        std::fs::write(file, &bytes).unwrap();
    }
    recipe::has_learned_its_tasks(&bytes);
    match bytes == local::engine::builtin::WEIGHTS {
        true => println!("it is the shipped model, byte for byte"),
        false => println!("it has learned its tasks as the shipped model has, with other weights"),
    }
}

/// A short form of everything.
fn check() {
    recipe::begins_as_recorded();
    recipe::the_shipped_model_has_learned_its_tasks();
    pig_latin::learns_pig_latin_on_words_it_has_never_seen(false);
    rewards::rewards_make_it_add_carefully(false);
    export::exports_an_adapter_for_peft(false);
    large::a_model_of_600_million_weights_fits_in_3_gb(false);
    for words in [&[][..], &["--q8_0"]] {
        shapes::shapes(false, shapes::Shapes::parse(words));
    }
    speed::speed(false);
    println!("all of it begins as it should");
}
