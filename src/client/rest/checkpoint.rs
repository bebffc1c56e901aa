//! Whole checkpoints as folders on this machine.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::RestClient;
use crate::client::{Export, Resume};
use crate::error::{Context, Error, Meaning, Result};
use crate::runtime::calls::files::{Links, Plan};
use crate::runtime::calls::stage::Stage;
use crate::types::{CheckpointKind, CheckpointRef, TinkerPath};

pub use crate::runtime::calls::files::DownloadProgress;
pub use crate::runtime::calls::stage::Downloaded;

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

    /// Calls `hook` as bytes arrive, on the threads that fetch them. If it panics, the download
    /// goes on without it.
    #[must_use]
    pub fn on_progress(mut self, hook: impl Fn(DownloadProgress) + Send + Sync + 'static) -> Self {
        let panicked = AtomicBool::new(false);
        self.hook = Arc::new(move |progress| {
            if panicked.load(Ordering::Relaxed) {
                return;
            }
            if catch_unwind(AssertUnwindSafe(|| hook(progress))).is_err() {
                log::error!("the progress hook panicked; the download goes on without it");
                panicked.store(true, Ordering::Relaxed);
            }
        });
        self
    }
}

impl RestClient {
    /// Downloads a checkpoint into a folder of its own, which appears only once it is complete.
    ///
    /// External weights are fetched as they are. A training checkpoint is first exported: a model
    /// is created from it, its weights saved for other programs, fetched, and the export deleted.
    /// Several files are fetched at once, in constant memory; links are renewed before they run
    /// out. What a failure leaves is kept in a hidden folder beside the target, and the next
    /// call for the same checkpoint goes on with it; a client that is closed meanwhile leaves whole files only.
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
        let checkpoint = checkpoint.into();
        let (path, folder) = (checkpoint.to_string(), folder.as_ref());
        let kind = path.parse::<TinkerPath>()?.kind();
        if kind == CheckpointKind::Sampler {
            let problem = "sampler weights cannot be downloaded, only training checkpoints \
                           and external weights";
            return Err(Error::invalid("tinker_path", format!("{problem}: {path}")));
        }
        let stage = Stage::open(folder, &path, options.force)?;
        match kind {
            CheckpointKind::External => self.download_staged(&path, &stage, &options, None),
            _ => match self.download_exported(&path, &stage, &options) {
                // SkyRL and servers of before 0.28 export nothing, but have archives.
                Err(error) if exports_nothing(&error) => {
                    self.download_unpacked(&path, &stage).map_err(|_| error)
                }
                outcome => outcome,
            },
        }
    }

    #[cfg(feature = "archive")]
    fn download_unpacked(&self, path: &str, stage: &Stage) -> Result<Downloaded> {
        stage.unpack(|archive| self.download_checkpoint_archive(path, archive))
    }

    #[cfg(not(feature = "archive"))]
    fn download_unpacked(&self, _: &str, _: &Stage) -> Result<Downloaded> {
        let message = "archives need the feature `archive`";
        Err(Error::Config(Context::new(message)))
    }

    fn download_exported(
        &self,
        path: &str,
        stage: &Stage,
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
        let outcome = self.download_staged(&export, stage, options, Some(EXPORT_TTL));
        if let Err(error) = self.delete_checkpoint(&export) {
            log::warn!(
                "the temporary export {export} could not be deleted ({error}); it expires within {} s",
                EXPORT_TTL.as_secs()
            );
        }
        outcome
    }

    fn download_staged(
        &self,
        path: &str,
        stage: &Stage,
        options: &DownloadOptions,
        renew: Option<Duration>,
    ) -> Result<Downloaded> {
        let sign = || {
            let urls = self.signed_urls(&path.into())?;
            if renew.is_some() {
                // The files must not go before the links to them.
                self.set_checkpoint_ttl(path, renew)?;
            }
            Ok(urls)
        };
        let plan = Plan {
            parallel: options.parallel,
            lasting: true,
            hook: &*options.hook,
        };
        let link = self.service.host().link()?;
        stage.fetch(&link, &Links::new(&sign)?, &plan)
    }
}

/// Whether the server has no such call at all.
fn exports_nothing(error: &Error) -> bool {
    let meaning = error.meaning();
    matches!(meaning, Some(Meaning::Missing | Meaning::Unsupported))
}
