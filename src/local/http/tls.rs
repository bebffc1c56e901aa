//! Encrypted connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::{Context, Error, Result};

/// The files a server proves its name with.
#[derive(Debug, Clone)]
pub(in crate::local) struct Identity {
    /// The certificate and those that signed it, in PEM.
    pub(in crate::local) certificates: PathBuf,
    /// Its private key, in PEM.
    pub(in crate::local) key: PathBuf,
}

impl Identity {
    /// Reads the files; what is wrong with them shows now, not with the first client.
    pub(in crate::local) fn acceptor(&self) -> Result<TlsAcceptor> {
        let refuse = |path: &Path, error: &dyn std::fmt::Display| {
            let message = format!("cannot use {}: {error}", path.display());
            Error::Config(Context::new(message))
        };
        let certificates: Vec<_> = CertificateDer::pem_file_iter(&self.certificates)
            .and_then(Iterator::collect)
            .map_err(|error| refuse(&self.certificates, &error))?;
        if certificates.is_empty() {
            return Err(refuse(&self.certificates, &"it holds no certificate"));
        }
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|error| refuse(&self.key, &error))?;
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| {
                let builder = builder.with_no_client_auth();
                builder.with_single_cert(certificates, key)
            })
            .map_err(|error| refuse(&self.certificates, &error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
