//! Which certificates are trusted.

use std::fs;
use std::path::Path;

use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::config::{Config, Trusted};
use crate::error::{Context, Error, Result};

/// The built-in roots or those the environment names, together with what the program adds.
///
/// # Errors
///
/// [`Error::Config`] for certificates that cannot be read.
pub(super) fn tls_config(config: &Config) -> Result<TlsConfig> {
    let mut extra: Vec<Certificate<'static>> = Vec::new();
    for pem in &config.root_certificates {
        let found = parse(&pem.0, "a root certificate")?;
        if found.is_empty() {
            return Err(Error::Config(Context::new(
                "no certificate among the root certificates: give PEM text \
                 that has a `-----BEGIN CERTIFICATE-----` line",
            )));
        }
        extra.extend(found);
    }
    #[cfg(feature = "native-certs")]
    if config.system_certificates {
        let system = rustls_native_certs::load_native_certs();
        if system.certs.is_empty() {
            log::warn!("no certificates found in the system's trust store");
        }
        let own = |der: &_| Certificate::from_der(der).to_owned();
        extra.extend(system.certs.iter().map(|der| own(der)));
    }
    match &config.trusted {
        // ureq replaces its own roots when it is given some, so they are all named.
        Trusted::BuiltIn if extra.is_empty() => return Ok(TlsConfig::default()),
        Trusted::BuiltIn => extra.extend(
            webpki_root_certs::TLS_SERVER_ROOT_CERTS
                .iter()
                .map(|certificate| Certificate::from_der(certificate).to_owned()),
        ),
        Trusted::File(file) => extra.extend(from_file(file)?),
        Trusted::Folder(folder) => extra.extend(from_folder(folder)?),
    }
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&extra))
        .build())
}

fn parse(pem: &[u8], what: &str) -> Result<Vec<Certificate<'static>>> {
    let mut found = Vec::new();
    for item in parse_pem(pem) {
        match item {
            Ok(PemItem::Certificate(certificate)) => found.push(certificate),
            Ok(_) => {}
            Err(error) => {
                let message = format!("{what} is not valid PEM");
                return Err(Error::Config(Context::caused(message, error)));
            }
        }
    }
    Ok(found)
}

fn from_file(file: &Path) -> Result<Vec<Certificate<'static>>> {
    let what = format!("SSL_CERT_FILE ({})", file.display());
    let pem = fs::read(file)
        .map_err(|error| Error::Config(Context::caused(format!("{what} cannot be read"), error)))?;
    parse(&pem, &what)
}

/// What is no certificate in the folder is passed over, as OpenSSL does.
fn from_folder(folder: &Path) -> Result<Vec<Certificate<'static>>> {
    let what = format!("SSL_CERT_DIR ({})", folder.display());
    let entries = fs::read_dir(folder)
        .map_err(|error| Error::Config(Context::caused(format!("{what} cannot be read"), error)))?;
    let files = entries
        .flatten()
        .filter_map(|entry| fs::read(entry.path()).ok());
    Ok(files
        .filter_map(|pem| parse(&pem, &what).ok())
        .flatten()
        .collect())
}
