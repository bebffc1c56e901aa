//! Weights and traces, streamed to disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{RestClient, checkpoint_request};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::runtime::calls::download;
use crate::runtime::calls::files::{self, Links, Plan};
use crate::runtime::calls::stage::inside;
use crate::types::{CheckpointRef, ExternalWeightsUrls};
use crate::wire::reply::decode_json;
use crate::wire::route;

/// Downloads.
impl RestClient {
    /// A signed URL for each file of weights saved with
    /// [`save_weights_external`](crate::TrainingClient::save_weights_external).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a path other than `tinker://<run>/external_weights/<name>`.
    #[doc(alias = "get_external_weights_urls")]
    pub fn external_weights_urls(
        &self,
        checkpoint: impl Into<CheckpointRef>,
    ) -> Result<ExternalWeightsUrls> {
        let checkpoint = checkpoint.into();
        checkpoint.external_parts()?;
        self.signed_urls(&checkpoint)
    }

    /// The same for a path that the service itself has given.
    pub(super) fn signed_urls(&self, checkpoint: &CheckpointRef) -> Result<ExternalWeightsUrls> {
        let (run, id) = checkpoint.parts()?;
        self.get(&route::EXTERNAL_WEIGHTS_URLS, &[run, id], &[])
    }

    /// Downloads weights saved with
    /// [`save_weights_external`](crate::TrainingClient::save_weights_external) into a folder,
    /// which is made if need be, and returns the files. A connection that breaks is taken up
    /// where it broke; a file appears under its name only when it is whole.
    ///
    /// ```no_run
    /// # fn main() -> tinker::Result<()> {
    /// # let rest = tinker::ServiceClient::from_env()?.rest();
    /// let files = rest.download_external_weights("tinker://run/external_weights/final", "adapter")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a path other than `tinker://<run>/external_weights/<name>`;
    /// [`Error::Reply`] for a file name that leads out of the folder, before anything is
    /// downloaded; [`Error::Io`] if a file cannot be written.
    pub fn download_external_weights(
        &self,
        checkpoint: impl Into<CheckpointRef>,
        folder: impl AsRef<Path>,
    ) -> Result<Vec<PathBuf>> {
        let checkpoint = checkpoint.into();
        let sign = || self.external_weights_urls(checkpoint.clone());
        let links = Links::new(&sign)?;
        let mut places = BTreeMap::new();
        for name in links.names() {
            let place = inside(folder.as_ref(), &name)?;
            places.insert(name, place);
        }
        let plan = Plan {
            parallel: 1,
            lasting: false,
            hook: &|_| (),
        };
        files::all(&*self.service.host().link()?, &links, &places, &plan)?;
        Ok(places.into_values().collect())
    }

    /// Downloads a checkpoint as one archive, from servers that still offer it. The service
    /// itself does not any more: use
    /// [`download_external_weights`](Self::download_external_weights).
    ///
    /// # Errors
    ///
    /// [`Error::Status`] with 404 from servers without archives; [`Error::Io`] if the file
    /// cannot be written.
    #[doc(alias = "get_checkpoint_archive_url")]
    pub fn download_checkpoint_archive(
        &self,
        checkpoint: impl Into<CheckpointRef>,
        file: impl AsRef<Path>,
    ) -> Result<()> {
        #[derive(Deserialize)]
        struct Elsewhere {
            url: String,
        }
        let link = self.service.host().link()?;
        let file = file.as_ref();
        let request =
            checkpoint_request(&route::CHECKPOINT_ARCHIVE, &checkpoint.into())?.with_accept("*/*");
        // Servers of the JSON era redirect to the archive, or name its address in JSON.
        let Some(answer) = download::archive(&link, request, file)? else {
            return Ok(());
        };
        let elsewhere: Elsewhere = decode_json(&answer)?;
        download::to_file(&link, &elsewhere.url, file)
    }

    /// Has the service write a session's timeline as a Perfetto trace and downloads it.
    ///
    /// # Errors
    ///
    /// As [`export_session_trace`](Self::export_session_trace); [`Error::Io`] if the file
    /// cannot be written.
    pub fn download_session_trace(&self, session_id: &str, file: impl AsRef<Path>) -> Result<()> {
        let url = self.export_session_trace(session_id)?;
        let link = self.service.host().link()?;
        download::to_file(&link, &url, file.as_ref())
    }
}
