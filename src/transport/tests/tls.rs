//! Certificates: the built-in roots, added ones, and what a failed handshake says.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
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
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let connection = ServerConnection::new(server_config()).unwrap();
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

fn server_config() -> Arc<ServerConfig> {
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
    Arc::new(config)
}

type Secured = StreamOwned<ServerConnection, TcpStream>;

/// Shakes hands and reads the head of a request.
fn hear(config: &Arc<ServerConfig>, socket: TcpStream) -> Secured {
    let connection = ServerConnection::new(config.clone()).unwrap();
    let mut stream = StreamOwned::new(connection, socket);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    stream
}

/// Answers one request on a connection and closes it; whether its handshake was resumed.
fn answer(config: &Arc<ServerConfig>, socket: TcpStream) -> bool {
    let mut stream = hear(config, socket);
    let resumed = stream.conn.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
    let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
    stream.write_all(reply).unwrap();
    stream.flush().unwrap();
    stream.conn.send_close_notify();
    let _ = stream.flush();
    resumed
}

/// One TLS configuration serves all pools of a client, so all but the first handshake are short.
#[test]
fn later_handshakes_are_resumed() {
    const CONNECTIONS: usize = 12;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let config = server_config();
        let accepted = listener.incoming().take(CONNECTIONS);
        accepted
            .map(|socket| answer(&config, socket.unwrap()))
            .collect::<Vec<bool>>()
    });
    let config = Config::default()
        .with_base_url(format!("https://localhost:{port}"))
        .with_root_certificates(AUTHORITY);
    let transport = Transport::new(&config).unwrap();
    for index in 0..CONNECTIONS {
        // Two pools in turn.
        let request = match index % 2 {
            0 => get("x"),
            _ => post("x"),
        };
        assert_eq!(transport.exchange(&request).unwrap().status(), 200);
    }
    let resumed = server.join().unwrap();
    let mut expected = vec![true; CONNECTIONS];
    expected[0] = false;
    assert_eq!(resumed, expected);
}

/// Set in the process whose memory is measured: where its server is.
#[cfg(target_os = "linux")]
const MEASURED: &str = "TINKER_TEST_IDLE_URL";

/// Connections that are idle at once, and what each may cost in memory: ureq's two buffers for it
/// (16 kB), rustls' state, and what the allocator keeps of handshakes made side by side; 84 kB when
/// it was measured. With a TLS configuration for each, as ureq makes them for requests that are
/// configured one by one, it was 140 kB more.
#[cfg(target_os = "linux")]
const IDLE: usize = 100;
#[cfg(target_os = "linux")]
const IDLE_COST: usize = 128 << 10;

/// Opens them all side by side, lets them become idle, and says what one costs.
#[cfg(target_os = "linux")]
#[allow(clippy::print_stdout, reason = "how the child tells its parent")]
fn measure_idle_connections(url: &str) {
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find(|line| line.starts_with("VmRSS:"));
        let kilobytes = line.unwrap().split_whitespace().nth(1).unwrap();
        kilobytes.parse::<usize>().unwrap() << 10
    };
    let config = Config::default()
        .with_base_url(url)
        .with_root_certificates(AUTHORITY)
        .with_connect_timeout(std::time::Duration::from_secs(60));
    let transport = Transport::new(&config).unwrap();
    let call = |pool| {
        let mut request = get("x").with_read_timeout(Timeout::None);
        request.pool = pool;
        assert_eq!(transport.exchange(&request).unwrap().status(), 200);
    };
    // What is made once, for all; over a connection that none of them finds idle.
    call(Pool::Rest);
    let (before, open) = (resident(), transport.open_connections());
    thread::scope(|scope| {
        for _ in 0..IDLE {
            let thread = thread::Builder::new().stack_size(256 << 10);
            thread.spawn_scoped(scope, || call(Pool::Retrieve)).unwrap();
        }
    });
    let made = transport.open_connections() - open;
    println!("\nidle={made} cost={}", (resident() - before) / made);
    std::process::exit(0);
}

#[test]
#[cfg(target_os = "linux")]
fn an_idle_connection_is_small() {
    if let Ok(url) = std::env::var(MEASURED) {
        return measure_idle_connections(&url);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let (config, all) = (server_config(), std::sync::Barrier::new(IDLE));
        let mut sockets = listener.incoming().map(Result::unwrap);
        let reply = |mut stream: Secured| {
            let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
            stream.write_all(reply).unwrap();
            stream.flush().unwrap();
            stream
        };
        let _first = reply(hear(&config, sockets.next().unwrap()));
        thread::scope(|scope| {
            for socket in sockets.take(IDLE) {
                let (config, all) = (&config, &all);
                scope.spawn(move || {
                    let stream = hear(config, socket);
                    // Nobody is answered before all are there, so that none takes another's.
                    all.wait();
                    // Open until the client is gone.
                    let _ = reply(stream).read(&mut [0]);
                });
            }
        });
    });
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "transport::tests::tls::an_idle_connection_is_small",
        ])
        .args(["--nocapture", "--test-threads=1"])
        .env(MEASURED, format!("https://localhost:{port}"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let number = |name: &str| -> usize {
        let (_, rest) = said.split_once(name).unwrap_or_else(|| panic!("{said}"));
        let word = rest.split_whitespace().next().unwrap();
        word.parse().unwrap()
    };
    let (made, cost) = (number("idle="), number("cost="));
    assert!(made > IDLE / 2, "{made} of {IDLE} were kept");
    assert!(cost < IDLE_COST, "{cost} bytes for each of {made}");
    server.join().unwrap();
}

/// A handshake that fails is final only while the service has never answered.
#[test]
fn a_broken_handshake_of_a_known_service_is_an_outage() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let config = server_config();
        let mut sockets = listener.incoming().map(Result::unwrap);
        answer(&config, sockets.next().unwrap());
        let mut garbled = sockets.next().unwrap();
        let _ = garbled.read(&mut [0; 1024]);
        let _ = garbled.write_all(b"HTTP/1.1 503 Restarting\r\n\r\n");
        drop(garbled);
        answer(&config, sockets.next().unwrap());
    });
    let config = Config::default()
        .with_base_url(format!("https://127.0.0.1:{port}"))
        .with_root_certificates(AUTHORITY);
    let transport = Transport::new(&config).unwrap();
    assert!(transport.exchange(&post("x")).is_ok());
    let fault = transport.exchange(&post("x")).unwrap_err();
    assert!(fault.meaning().is_passing(), "{fault}");
    assert_eq!(fault.meaning().effect(), crate::error::Effect::None);
    assert!(transport.exchange(&post("x")).is_ok());
    server.join().unwrap();
}

#[test]
fn the_environment_names_the_certificates_to_trust() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, AUTHORITY).unwrap();
    std::fs::write(folder.path().join("README"), "no certificate").unwrap();
    let config = |variable: &'static str, value: std::path::PathBuf| {
        let lookup = move |name: &str| (name == variable).then(|| value.clone().into());
        Config::from_lookup(lookup).unwrap()
    };
    check(config("SSL_CERT_FILE", file), Ok(()));
    check(config("SSL_CERT_DIR", folder.path().into()), Ok(()));
    let missing = config("SSL_CERT_FILE", folder.path().join("none.pem"));
    let error = Transport::new(&missing).unwrap_err();
    assert!(error.to_string().contains("SSL_CERT_FILE"), "{error}");
}
