//! Whole checkpoints as folders on this machine.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::RestClient;
use super::download::inside;
use crate::client::{Export, Resume};
use crate::error::{Context, Error, Result};
use crate::runtime::calls::files::{self, Links, Plan};
use crate::runtime::calls::part::{cannot, forget};
use crate::types::{CheckpointKind, CheckpointRef, TinkerPath};

pub use crate::runtime::calls::files::DownloadProgress;

/// How long the service keeps what a training checkpoint is exported as; renewed with the links.
const EXPORT_TTL: Duration = Duration::from_secs(3_600);

/// How a checkpoint is downloaded.
#[derive(Clone)]
#[non_exhaustive]
pub struct DownloadOptions {
    /// Whether a folder that is there already is replaced. Default: no.
    pub force: bool,
    /// How many files are fetched at once. Default: 4.
    pub parallel: usize,
    hook: Arc<dyn Fn(DownloadProgress) + Send + Sync>,
}

impl Default for DownloadOptions {
    fn default() -> Self {
        Self {
            force: false,
            parallel: 4,
            hook: Arc::new(|_| ()),
        }
    }
}

impl fmt::Debug for DownloadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DownloadOptions")
            .field("force", &self.force)
            .field("parallel", &self.parallel)
            .finish_non_exhaustive()
    }
}

impl DownloadOptions {
    /// Replaces a folder that is there already.
    #[must_use]
    pub fn with_force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Sets how many files are fetched at once.
    #[must_use]
    pub fn with_parallel(mut self, files: usize) -> Self {
        self.parallel = files;
        self
    }

    /// Calls `hook` as bytes arrive, on the threads that fetch them.
    #[must_use]
    pub fn on_progress(mut self, hook: impl Fn(DownloadProgress) + Send + Sync + 'static) -> Self {
        self.hook = Arc::new(hook);
        self
    }
}

/// A downloaded checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Downloaded {
    /// Where it is.
    pub folder: PathBuf,
    /// Its files, below the folder.
    pub files: Vec<PathBuf>,
    /// How many bytes they have together.
    pub bytes: u64,
}

impl RestClient {
    /// Downloads a checkpoint into a folder of its own, which appears only once it is complete.
    ///
    /// External weights are fetched as they are. A training checkpoint is first exported: a model
    /// is created from it, its weights saved for other programs, fetched, and the export deleted.
    /// Several files are fetched at once, in constant memory; links are renewed before they run
    /// out. What a failure leaves is kept in a hidden folder beside the target, and the next
    /// call goes on with it; a client that is closed meanwhile leaves whole files only.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tinker::{LoraConfig, ServiceClient, client::DownloadOptions};
    ///
    /// let service = ServiceClient::local()?; // or ServiceClient::from_env()?
    /// let training = service.create_lora_training_client("tinker-local/tiny", LoraConfig::rank(4))?;
    /// let path = training.save_state("final")?.join()?.path;
    /// # let home = tempfile::tempdir()?;
    /// # let folder = home.path().join("adapter");
    /// let got = service.rest().download_checkpoint(&path, &folder, DownloadOptions::default())?;
    /// assert!(got.folder.join("adapter_config.json").exists());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for sampler weights, which cannot be downloaded, or a folder that is
    /// there already; [`Error::Reply`] for a file name that leads out of the folder; otherwise
    /// what befalls requests and files.
    pub fn download_checkpoint(
        &self,
        checkpoint: impl Into<CheckpointRef>,
        folder: impl AsRef<Path>,
        options: DownloadOptions,
    ) -> Result<Downloaded> {
        let path = checkpoint.into().to_string();
        let path = path.as_str();
        let parsed: TinkerPath = path.parse()?;
        let folder = folder.as_ref();
        if folder.exists() && !options.force {
            let problem = format!("{} is there already", folder.display());
            return Err(Error::invalid("folder", problem));
        }
        match parsed.kind() {
            CheckpointKind::Sampler => Err(Error::invalid(
                "tinker_path",
                format!(
                    "sampler weights cannot be downloaded, only training checkpoints and external weights: {path}"
                ),
            )),
            CheckpointKind::External => self.download_staged(path, folder, &options, None),
            CheckpointKind::Training => match self.download_exported(path, folder, &options) {
                // Servers of older dialects export nothing.
                Err(error) if matches!(error.status(), Some(404 | 405)) => {
                    self.download_unpacked(path, folder).map_err(|_| error)
                }
                outcome => outcome,
            },
        }
    }

    /// The same from a server that offers archives.
    #[cfg(feature = "archive")]
    fn download_unpacked(&self, path: &str, folder: &Path) -> Result<Downloaded> {
        let stage = Stage::open(folder)?;
        let (archive, unpacked) = (stage.folder.join("archive"), stage.folder.join("unpacked"));
        self.download_checkpoint_archive(path, &archive)?;
        if unpacked.exists() {
            fs::remove_dir_all(&unpacked).map_err(|error| cannot("remove", &unpacked, error))?;
        }
        let opened = File::open(&archive).map_err(|error| cannot("read", &archive, error))?;
        let outcome = crate::client::unpack(opened, &unpacked);
        let _ = fs::remove_file(&archive);
        let files = outcome.inspect_err(|_| drop(fs::remove_dir_all(&unpacked)))?;
        let size = |file: &PathBuf| file.metadata().map_or(0, |found| found.len());
        let bytes = files.iter().map(size).sum();
        let placed = |file: &PathBuf| folder.join(file.strip_prefix(&unpacked).unwrap_or(file));
        let files = files.iter().map(placed).collect();
        place(&unpacked, folder)?;
        Ok(Downloaded {
            folder: folder.to_owned(),
            files,
            bytes,
        })
    }

    #[cfg(not(feature = "archive"))]
    fn download_unpacked(&self, _: &str, _: &Path) -> Result<Downloaded> {
        Err(Error::Config(Context::new(
            "archives need the feature `archive`",
        )))
    }

    fn download_exported(
        &self,
        path: &str,
        folder: &Path,
        options: &DownloadOptions,
    ) -> Result<Downloaded> {
        let resume =
            Resume::from_checkpoint(path).with_metadata("created_by", "tinker checkpoint download");
        let training = self.service.create_training_client_from_state(resume)?;
        let export = Export::named("download").with_ttl(EXPORT_TTL);
        let saved = training.save_weights_external(export)?.join()?;
        let export = saved.path.ok_or_else(|| {
            Error::Reply(Context::new("the service does not say where the export is"))
        })?;
        let outcome = self.download_staged(&export, folder, options, Some(EXPORT_TTL));
        if let Err(error) = self.delete_checkpoint(&export) {
            log::warn!(
                "the temporary export {export} could not be deleted ({error}); it expires within {} s",
                EXPORT_TTL.as_secs()
            );
        }
        outcome
    }

    /// Fetches external weights into a folder beside the target, then gives it its name.
    fn download_staged(
        &self,
        path: &str,
        folder: &Path,
        options: &DownloadOptions,
        renew: Option<Duration>,
    ) -> Result<Downloaded> {
        let stage = Stage::open(folder)?;
        let link = self.service.link()?;
        let sign = || {
            let urls = self.external_weights_urls(path)?;
            if renew.is_some() {
                // The files must not go before the links to them.
                self.set_checkpoint_ttl(path, renew)?;
            }
            Ok(urls)
        };
        let links = Links::new(&sign)?;
        let names = links.names();
        if names.is_empty() {
            let message = format!("{path} has no files");
            return Err(Error::Reply(Context::new(message)));
        }
        let mut places = BTreeMap::new();
        for name in &names {
            places.insert(name.clone(), inside(&stage.folder, name)?);
        }
        let plan = Plan {
            parallel: options.parallel,
            lasting: true,
            hook: &*options.hook,
        };
        let bytes = files::all(&link, &links, &places, &plan)?;
        places.values().for_each(|place| forget(place));
        place(&stage.folder, folder)?;
        Ok(Downloaded {
            folder: folder.to_owned(),
            files: names.iter().map(|name| folder.join(name)).collect(),
            bytes,
        })
    }
}

/// The hidden folder beside a target in which its files come together. One process at a time.
struct Stage {
    folder: PathBuf,
    lock: PathBuf,
    held: File,
}

impl Stage {
    fn open(target: &Path) -> Result<Self> {
        let name = target.file_name().ok_or_else(|| {
            Error::invalid("folder", format!("names no folder: {}", target.display()))
        })?;
        let name = name.to_string_lossy();
        let folder = target.with_file_name(format!(".{name}.partial"));
        let lock = target.with_file_name(format!(".{name}.partial.lock"));
        fs::create_dir_all(&folder).map_err(|error| cannot("make", &folder, error))?;
        let held = File::create(&lock).map_err(|error| cannot("write", &lock, error))?;
        held.try_lock().map_err(|_| {
            let problem = format!("another download to {} is under way", target.display());
            Error::invalid("folder", problem)
        })?;
        Ok(Self { folder, lock, held })
    }
}

/// Gives a folder another's place, whole.
fn place(made: &Path, target: &Path) -> Result<()> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let old = target.with_file_name(format!(".{name}.replaced"));
    let replaces = target.exists();
    if replaces {
        let _ = fs::remove_dir_all(&old);
        fs::rename(target, &old).map_err(|error| cannot("replace", target, error))?;
    }
    fs::rename(made, target).map_err(|error| cannot("write", target, error))?;
    if replaces {
        let _ = fs::remove_dir_all(&old);
    }
    Ok(())
}

impl Drop for Stage {
    fn drop(&mut self) {
        // What a failure left stays for the next call; only an empty folder goes.
        let _ = fs::remove_dir(&self.folder);
        let _ = fs::remove_file(&self.lock);
        let _ = self.held.unlock();
    }
}
