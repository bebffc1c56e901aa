//! Certificates: the built-in roots, added ones, and what a failed handshake says.

use std::io::Read;
use std::net::TcpListener;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;

const AUTHORITY: &str = include_str!("../../../tests/fixtures/tls/ca.pem");
const CERTIFICATE: &[u8] = include_bytes!("../../../tests/fixtures/tls/server.pem");
const KEY: &[u8] = include_bytes!("../../../tests/fixtures/tls/server.key");

/// Serves one connection over TLS: one request, one small answer.
fn serve_once() -> (u16, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE).unwrap();
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate],
            PrivateKeyDer::from_pem_slice(KEY).unwrap(),
        )
        .unwrap();
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = StreamOwned::new(connection, stream);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read_exact(&mut byte).is_err() {
                return;
            }
            head.push(byte[0]);
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}");
        let _ = stream.flush();
        let _ = stream.read(&mut [0]);
    });
    (port, server)
}

#[track_caller]
fn check(config: Config, expected: Result<(), FaultKind>) {
    let (port, server) = serve_once();
    let config = config.with_base_url(format!("https://127.0.0.1:{port}"));
    let transport = Transport::new(&config).unwrap();
    let outcome = transport.exchange(&get("x"));
    if let Err(fault) = &outcome {
        assert!(
            fault.to_string().contains("with_root_certificates"),
            "{fault}"
        );
    }
    assert_eq!(outcome.map(drop).map_err(|fault| fault.kind), expected);
    drop(transport);
    server.join().unwrap();
}

#[test]
fn a_private_certificate_needs_its_authority() {
    check(Config::default(), Err(FaultKind::Tls));
    check(Config::default().with_root_certificates(AUTHORITY), Ok(()));
}

#[cfg(feature = "native-certs")]
#[test]
fn system_certificates_are_added_too() {
    let config = Config::default().with_system_certificates();
    check(config.clone(), Err(FaultKind::Tls));
    check(config.with_root_certificates(AUTHORITY), Ok(()));
}

/// Waiting threads have small stacks; a lookup and a handshake must fit.
#[test]
fn an_exchange_fits_into_a_small_stack() {
    let (port, server) = serve_once();
    let config = Config::default()
        .with_base_url(format!("https://localhost:{port}"))
        .with_root_certificates(AUTHORITY);
    let transport = Transport::new(&config).unwrap();
    let call = thread::Builder::new().stack_size(128 << 10);
    let call = call.spawn(move || transport.exchange(&get("x")).unwrap().status());
    assert_eq!(call.unwrap().join().unwrap(), 200);
    server.join().unwrap();
}
