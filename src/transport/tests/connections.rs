//! Stopping, reuse, proxies.

use std::net::{TcpListener, TcpStream};
use std::sync::{Barrier, mpsc};

use super::*;

#[test]
fn stopping_wakes_blocked_calls_and_refuses_new_ones() {
    let server = Server::start();
    let gate = Gate::new();
    server.always("POST", "x", hello().after(&gate));
    let transport = transport(&server);
    thread::scope(|scope| {
        let blocked: Vec<_> = (0..8)
            .map(|_| {
                let transport = transport.clone();
                scope.spawn(move || {
                    let request = post("x").with_read_timeout(Timeout::None);
                    transport.exchange(&request).unwrap_err().kind
                })
            })
            .collect();
        gate.wait_for(8);
        transport.stop_pool(Pool::Session);
        for call in blocked {
            assert_eq!(call.join().unwrap(), FaultKind::Stopped);
        }
    });
    assert_eq!(
        transport.exchange(&post("x")).unwrap_err().kind,
        FaultKind::Stopped
    );
    server.always("GET", "y", hello());
    assert!(transport.exchange(&get("y")).is_ok(), "other pools go on");
    transport.stop();
    assert_eq!(
        transport.exchange(&get("y")).unwrap_err().kind,
        FaultKind::Stopped
    );
}

#[test]
fn connections_are_reused_within_a_pool_and_never_between_pools() {
    let server = Server::start();
    server.always("POST", "x", hello());
    let transport = transport(&server);
    for pool in Pool::ALL {
        for _ in 0..5 {
            let mut request = post("x");
            request.pool = pool;
            transport.exchange(&request).unwrap();
        }
    }
    assert_eq!(server.connections(), Pool::ALL.len());
}

/// A thread submits a sample and then waits for it: one connection, and with TLS one handshake.
#[test]
fn a_sample_and_its_result_share_a_connection() {
    let server = Server::start();
    let transport = transport(&server);
    for route in [&route::ASAMPLE, &route::RETRIEVE_FUTURE] {
        server.always("POST", &route.fixed_path(), hello());
        let request = Request::to(route, route.fixed_path());
        transport.exchange(&request).unwrap();
    }
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_wide_pool_keeps_its_connections() {
    const WIDTH: usize = 64;
    let server = Server::start();
    let transport = transport(&server);
    // The same threads in every round: each keeps to the connections it has used.
    let round = Barrier::new(WIDTH + 1);
    thread::scope(|scope| {
        for _ in 0..WIDTH {
            scope.spawn(|| {
                for _ in 0..3 {
                    round.wait();
                    let mut request = post("x");
                    request.pool = Pool::Retrieve;
                    transport.exchange(&request).unwrap();
                    round.wait();
                }
            });
        }
        for _ in 0..3 {
            let gate = Gate::new();
            server.always("POST", "x", hello().after(&gate));
            round.wait();
            gate.wait_for(WIDTH);
            gate.open();
            round.wait();
            assert_eq!(server.connections(), WIDTH);
        }
    });
}

#[test]
fn thousands_of_calls_wait_side_by_side_and_stop_together() {
    const CALLS: usize = 2_000;
    let server = Server::start();
    let gate = Gate::new();
    server.always("POST", "x", hello().after(&gate));
    let transport = transport(&server);
    thread::scope(|scope| {
        let mut calls = Vec::new();
        while calls.len() < CALLS {
            let thread = thread::Builder::new().stack_size(128 << 10);
            let call = || {
                let mut request = post("x").with_read_timeout(Timeout::None);
                request.pool = Pool::Retrieve;
                transport.exchange(&request).unwrap_err().kind
            };
            calls.push(thread.spawn_scoped(scope, call).unwrap());
            // The system queues some hundred connections; more at once and it drops some.
            if calls.len() % 50 == 0 {
                gate.wait_for(calls.len());
            }
        }
        transport.stop_pool(Pool::Retrieve);
        for call in calls {
            assert_eq!(call.join().unwrap(), FaultKind::Stopped);
        }
    });
}

#[test]
fn a_connection_the_server_closed_is_replaced() {
    let server = Server::start();
    server.reply("POST", "x", hello().then_close());
    server.reply("POST", "x", hello().until_close());
    server.reply("POST", "x", hello());
    let transport = transport(&server);
    for _ in 0..2 {
        assert_eq!(transport.exchange(&post("x")).unwrap().status(), 200);
        server.wait_open(0);
    }
    assert_eq!(transport.exchange(&post("x")).unwrap().status(), 200);
    assert_eq!(server.connections(), 3);
}

#[test]
fn bytes_beyond_the_announced_length_do_not_reach_the_next_answer() {
    let server = Server::start();
    let text = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}HTTP/1.1 500 Forged\r\n\r\n";
    server.reply("POST", "x", Reply::raw(text));
    server.reply("POST", "x", hello());
    let transport = transport(&server);
    assert_eq!(transport.exchange(&post("x")).unwrap().body, b"{}");
    assert_eq!(transport.exchange(&post("x")).unwrap().status(), 200);
}

/// A CONNECT proxy that joins each tunnel to `target` and reports what it was asked.
fn connect_proxy(target: u16) -> (u16, mpsc::Receiver<String>, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (asked, heard) = mpsc::channel();
    let proxy = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        asked.send(String::from_utf8(head).unwrap()).unwrap();
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let mut server = TcpStream::connect(("127.0.0.1", target)).unwrap();
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let upstream = thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
        let _ = std::io::copy(&mut server, &mut client);
        let _ = client.shutdown(std::net::Shutdown::Both);
        upstream.join().unwrap();
    });
    (port, heard, proxy)
}

#[test]
fn an_explicit_proxy_carries_everything() {
    let server = Server::start();
    server.always("POST", "x", hello());
    let (port, heard, proxy) = connect_proxy(server.port());
    let config = Config::default()
        .with_base_url("http://service.invalid:8080")
        .with_proxy(format!("http://me:hunter2@127.0.0.1:{port}"));
    let transport = Transport::new(&config).unwrap();
    assert!(!format!("{transport:?}").contains("hunter2"));
    assert_eq!(transport.exchange(&post("x")).unwrap().status(), 200);
    assert_eq!(transport.exchange(&post("x")).unwrap().status(), 200);
    let head = heard.recv().unwrap();
    assert!(
        head.starts_with("CONNECT service.invalid:8080 HTTP/1.1\r\n"),
        "{head}"
    );
    assert!(head.contains("Proxy-Authorization: Basic"), "{head}");
    assert_eq!(
        server.requests()[0].header("host"),
        Some("service.invalid:8080")
    );
    drop(transport);
    proxy.join().unwrap();
}

#[test]
fn a_proxy_that_wants_credentials_is_not_asked_again() {
    let server = Server::start();
    server.otherwise(|_| Reply::status(407));
    let config = Config::default()
        .with_base_url("http://service.invalid")
        .with_proxy(server.url());
    let fault = Transport::new(&config)
        .unwrap()
        .exchange(&post("x"))
        .unwrap_err();
    assert_eq!(fault.kind, FaultKind::ProxyAuth);
    assert!(!fault.meaning().is_passing());
    assert!(fault.to_string().contains("407"), "{fault}");
}

#[test]
fn without_a_proxy_the_environment_is_ignored() {
    let server = Server::start();
    server.always("POST", "x", hello());
    let config = Config::from_lookup(|name| {
        (name == "HTTP_PROXY" || name == "ALL_PROXY").then(|| "http://proxy.invalid:1".into())
    })
    .unwrap()
    .with_base_url(format!("http://localhost:{}", server.port()))
    .without_proxy();
    assert!(
        Transport::new(&config)
            .unwrap()
            .exchange(&post("x"))
            .is_ok()
    );
}

/// A SOCKS5 proxy without credentials, for one connection to the port it is asked for.
fn socks_proxy() -> (String, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("socks5://{}", listener.local_addr().unwrap());
    let proxy = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut greeting = [0; 2];
        client.read_exact(&mut greeting).unwrap();
        client.read_exact(&mut vec![0; greeting[1].into()]).unwrap();
        client.write_all(&[5, 0]).unwrap();
        let mut wanted = [0; 4];
        client.read_exact(&mut wanted).unwrap();
        let length = match wanted[3] {
            1 => 4,
            3 => {
                let mut length = [0];
                client.read_exact(&mut length).unwrap();
                length[0].into()
            }
            other => panic!("address type {other}"),
        };
        client.read_exact(&mut vec![0; length]).unwrap();
        let mut port = [0; 2];
        client.read_exact(&mut port).unwrap();
        let target = ("127.0.0.1", u16::from_be_bytes(port));
        let mut server = std::net::TcpStream::connect(target).unwrap();
        client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
        let (mut upward, mut onward) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let up = thread::spawn(move || {
            let _ = std::io::copy(&mut upward, &mut onward);
            let _ = onward.shutdown(std::net::Shutdown::Both);
        });
        let _ = std::io::copy(&mut server, &mut client);
        let _ = client.shutdown(std::net::Shutdown::Both);
        up.join().unwrap();
    });
    (url, proxy)
}

#[test]
fn a_socks_proxy_is_used() {
    let server = Server::start();
    server.always("POST", "x", hello());
    let (url, proxy) = socks_proxy();
    let config = config(&server).with_proxy(url);
    let transport = Transport::new(&config).unwrap();
    assert_eq!(transport.exchange(&post("x")).unwrap().status(), 200);
    drop(transport);
    proxy.join().unwrap();
}

/// A server may answer before it has read a large body, and close.
#[test]
fn an_answer_that_comes_before_the_body_was_read_is_read() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base_url = format!("http://{}", listener.local_addr().unwrap());
    let server = thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            socket.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let reply = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
        socket.write_all(reply).unwrap();
        // Closing with the body unread resets the connection.
    });
    let transport = Transport::new(&Config::default().with_base_url(base_url)).unwrap();
    let large = vec![b' '; 64 << 20];
    let answer = transport.exchange(&post("x").with_body(Body::Json(&large)));
    assert_eq!(answer.unwrap().status(), 413);
    server.join().unwrap();
}

#[test]
fn limits_of_any_length_are_taken() {
    let server = Server::start();
    server.always("POST", "x", hello());
    let config = config(&server)
        .with_read_timeout(Duration::MAX)
        .with_connect_timeout(Duration::MAX);
    let transport = Transport::new(&config).unwrap();
    let request = post("x").with_read_timeout(Duration::MAX);
    assert!(transport.exchange(&request).is_ok());
}
