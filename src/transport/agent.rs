//! One ureq agent per purpose: connections, buffers, names, certificates, proxies.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ureq::http::Uri;
use ureq::tls::TlsConfig;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;
use ureq::{Agent, Proxy};

use super::certificates::tls_config;
use super::connect::Connections;
use super::descriptors::Sockets;
use super::fault::LookupFailed;
use crate::config::{Config, Proxies, Secret};
use crate::error::{Context, Error, Result};
use crate::sync::lock;
use crate::wire::route::Pool;

/// How long an idle connection is kept. Servers close theirs after a minute or so; ureq looks
/// whether a connection is still open before using it.
pub(crate) const IDLE_AGE: Duration = Duration::from_secs(90);

/// Nothing is there and nobody is asked: see [`Agents::release_idle`].
const NOWHERE: &str = "http://nowhere.invalid/";

/// The agents of one client, and what they share.
#[derive(Debug)]
pub(super) struct Agents {
    lanes: [Lane; Pool::ALL.len()],
    names: Arc<Names>,
    connections: Connections,
    proxies: ProxyRules,
    idle_age: Duration,
}

/// One purpose.
#[derive(Debug)]
struct Lane {
    /// More than one where hundreds of connections may be idle: ureq goes through all of an
    /// agent's, under its lock, for every request.
    strands: Vec<Strand>,
    stopped: AtomicBool,
}

#[derive(Debug)]
struct Strand {
    agent: Agent,
    /// Whether its idle connections must not be used again.
    stale: AtomicBool,
    /// Whether it was ever used, and so may have connections.
    used: AtomicBool,
}

impl Agents {
    pub(super) fn new(config: &Config, sockets: &Sockets, idle_age: Duration) -> Result<Self> {
        let tls = tls_config(config)?;
        let names = Arc::new(Names::default());
        let connections = Connections::default();
        let lanes = Pool::ALL.map(|pool| Lane {
            strands: build(pool, sockets, idle_age, &tls, &connections, &names),
            stopped: AtomicBool::new(false),
        });
        Ok(Self {
            lanes,
            names,
            connections,
            proxies: ProxyRules::new(&config.proxies)?,
            idle_age,
        })
    }

    /// How many connections are open.
    pub(super) fn open_connections(&self) -> usize {
        self.connections.open()
    }

    /// The agent for a request of this thread.
    pub(super) fn agent(&self, pool: Pool) -> &Agent {
        let strand = self.strand(pool);
        strand.used.store(true, Ordering::Relaxed);
        &strand.agent
    }

    /// Closes connections that have been idle for too long. ureq does so only when an agent is
    /// used, and what a crowd has left behind may not be for hours: so each that was ever used is
    /// asked for a host that has no address.
    pub(super) fn release_idle(&self) {
        for strand in self.lanes.iter().flat_map(|lane| &lane.strands) {
            if strand.used.load(Ordering::Relaxed) {
                let _ = strand.agent.get(NOWHERE).call();
            }
        }
    }

    pub(super) fn proxy_for(&self, url: &str) -> Option<Proxy> {
        self.proxies.choose(url)
    }

    /// Ends the pool: blocked calls return, new ones fail.
    pub(super) fn stop(&self, pool: Pool) {
        let lane = self.lane(pool);
        lane.stopped.store(true, Ordering::SeqCst);
        for strand in &lane.strands {
            strand.agent.clone().shutdown();
        }
    }

    pub(super) fn is_stopped(&self, pool: Pool) -> bool {
        self.lane(pool).stopped.load(Ordering::SeqCst)
    }

    /// Makes this thread's next request open a connection instead of reusing one.
    pub(super) fn mark_stale(&self, pool: Pool) {
        self.strand(pool).stale.store(true, Ordering::Relaxed);
    }

    /// How old a connection this thread's next request may reuse.
    pub(super) fn usable_age(&self, pool: Pool) -> Duration {
        if self.strand(pool).stale.swap(false, Ordering::Relaxed) {
            Duration::ZERO
        } else {
            self.idle_age
        }
    }

    /// Looks every host name up again: an address that no longer answers may have moved.
    pub(super) fn forget_names(&self) {
        lock(&self.names.known).clear();
    }

    fn lane(&self, pool: Pool) -> &Lane {
        &self.lanes[pool as usize]
    }

    /// Always the same one for a thread, so that it finds the connection it used before.
    fn strand(&self, pool: Pool) -> &Strand {
        let strands = &self.lane(pool).strands;
        if let [only] = &strands[..] {
            return only;
        }
        let mut hasher = DefaultHasher::new();
        std::thread::current().id().hash(&mut hasher);
        &strands[hasher.finish() as usize % strands.len()]
    }
}

/// Agents, idle connections of each, and buffers (in, out), by how many requests a purpose has in
/// flight and how large they are. 2,000 waiting calls with ureq's own 128 kB buffers would cost
/// 600 MB.
fn size(pool: Pool, sockets: &Sockets) -> (usize, usize, usize, usize) {
    const KB: usize = 1024;
    let (agents, idle, input, output) = match pool {
        Pool::Session => (1, 8, 16 * KB, 16 * KB),
        Pool::Train => (1, 64, 16 * KB, 128 * KB),
        // Room for the headers of both directions, a long token included. ureq wants 10 kB of
        // input to send a body and would move to a larger buffer for it.
        Pool::Retrieve => (32, 128, 10 * KB, 6 * KB),
        Pool::Poll => (1, 64, 16 * KB, 16 * KB),
        Pool::Telemetry => (1, 4, 16 * KB, 16 * KB),
        Pool::Rest => (1, 64, 64 * KB, 64 * KB),
    };
    // Idle connections are descriptors too: no more of them than may be in use.
    let most = match pool {
        // With a poller there are no flights, and submissions and fetches take no more together.
        Pool::Retrieve => [sockets.flights, sockets.posts, sockets.waits]
            .into_iter()
            .fold(0, usize::saturating_add),
        _ => sockets.others,
    };
    let agents = agents.min(most.div_ceil(idle));
    (agents, idle.min(most / agents), input, output)
}

/// No global or per-call timeout, which would be another call to the system at every read: only a
/// request with a deadline sets one.
fn build(
    pool: Pool,
    sockets: &Sockets,
    idle_age: Duration,
    tls: &TlsConfig,
    connections: &Connections,
    names: &Arc<Names>,
) -> Vec<Strand> {
    let (agents, idle, input, output) = size(pool, sockets);
    let config = Agent::config_builder()
        .tls_config(tls.clone())
        .proxy(None)
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .user_agent(super::USER_AGENT)
        .accept("")
        .accept_encoding("identity")
        .max_idle_connections(idle)
        .max_idle_connections_per_host(idle)
        .max_idle_age(idle_age)
        .input_buffer_size(input)
        .output_buffer_size(output)
        .build();
    let strand = || {
        let names = SharedNames(Arc::clone(names));
        Strand {
            agent: Agent::with_parts(config.clone(), connections.clone(), names),
            stale: AtomicBool::new(false),
            used: AtomicBool::new(false),
        }
    };
    std::iter::repeat_with(strand).take(agents).collect()
}

/// Addresses by host and port. ureq resolves for every request, even one on a pooled connection.
#[derive(Debug, Default)]
struct Names {
    known: Mutex<HashMap<String, Vec<SocketAddr>>>,
}

#[derive(Debug)]
struct SharedNames(Arc<Names>);

impl Resolver for SharedNames {
    fn resolve(
        &self,
        uri: &Uri,
        config: &ureq::config::Config,
        _timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let key = match (uri.scheme(), uri.authority()) {
            (Some(scheme), Some(authority)) => DefaultResolver::host_and_port(scheme, authority),
            _ => None,
        };
        let key = key.unwrap_or_default();
        let mut found = self.empty();
        if *uri == *NOWHERE {
            return Ok(found);
        }
        if let Some(addresses) = lock(&self.0.known).get(&key) {
            addresses.iter().for_each(|address| found.push(*address));
            return Ok(found);
        }
        // Without a timeout, which would cost a thread; the system's resolver has its own limit.
        let found = DefaultResolver::default()
            .resolve(uri, config, NextTimeout::default())
            .map_err(|error| match error {
                ureq::Error::Io(cause) => {
                    ureq::Error::Other(Box::new(LookupFailed(cause.to_string())))
                }
                other => other,
            })?;
        lock(&self.0.known).insert(key, found.iter().copied().collect());
        Ok(found)
    }
}

/// Which proxy a URL goes through.
#[derive(Debug, Default)]
struct ProxyRules {
    http: Option<Proxy>,
    https: Option<Proxy>,
    /// The environment's proxies never serve this machine itself.
    skip_loopback: bool,
    except: Vec<String>,
}

impl ProxyRules {
    fn new(proxies: &Proxies) -> Result<Self> {
        match proxies {
            Proxies::None => Ok(Self::default()),
            Proxies::Explicit(url) => {
                let proxy = parse_proxy(url, "the proxy")?;
                Ok(Self {
                    http: Some(proxy.clone()),
                    https: Some(proxy),
                    ..Self::default()
                })
            }
            Proxies::Environment {
                http,
                https,
                except,
            } => {
                let parse = |url: &Option<Secret>, name| match url {
                    Some(url) => parse_proxy(url, name).map(Some),
                    None => Ok(None),
                };
                Ok(Self {
                    http: parse(http, "HTTP_PROXY or ALL_PROXY")?,
                    https: parse(https, "HTTPS_PROXY or ALL_PROXY")?,
                    skip_loopback: true,
                    except: except
                        .iter()
                        .map(|host| host.to_ascii_lowercase())
                        .collect(),
                })
            }
        }
    }

    fn choose(&self, url: &str) -> Option<Proxy> {
        if self.http.is_none() && self.https.is_none() {
            return None;
        }
        let uri: Uri = url.parse().ok()?;
        let proxy = match uri.scheme_str() {
            Some("https") => self.https.as_ref()?,
            _ => self.http.as_ref()?,
        };
        let host = uri.host()?.trim_matches(['[', ']']).to_ascii_lowercase();
        let direct = (self.skip_loopback && is_loopback(&host))
            || self.except.iter().any(|rule| matches_rule(&host, rule));
        (!direct).then(|| proxy.clone())
    }
}

/// Whether a URL names this machine.
pub(super) fn is_local(url: &str) -> bool {
    let uri: Option<Uri> = url.parse().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
    is_loopback(host.trim_matches(['[', ']']))
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// `NO_PROXY`'s usual reading: `*` is everything, `a.b` covers itself and `*.a.b`.
fn matches_rule(host: &str, rule: &str) -> bool {
    let suffix = rule.trim_start_matches('*').trim_start_matches('.');
    rule == "*"
        || (!suffix.is_empty()
            && host
                .strip_suffix(suffix)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.')))
}

fn parse_proxy(url: &Secret, name: &str) -> Result<Proxy> {
    // The URL may hold a password, so it is not shown.
    Proxy::new(url.expose()).map_err(|_| {
        Error::Config(Context::new(format!(
            "{name} is not a usable proxy URL; give one such as http://proxy:3128 or socks5h://proxy:1080, or unset it"
        )))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scripted::{Reply, Server};
    use crate::wire::route::API_PREFIX;

    #[test]
    fn proxies_are_chosen_by_scheme_host_and_exceptions() {
        let rules = ProxyRules::new(&Proxies::Environment {
            http: Some("http://plain:1".into()),
            https: Some("http://secure:2".into()),
            except: vec!["corp.example".into(), ".Internal".into(), "10.0.0.7".into()],
        })
        .unwrap();
        #[track_caller]
        fn check(rules: &ProxyRules, url: &str, expected: Option<&str>) {
            let proxy = rules.choose(url);
            assert_eq!(proxy.as_ref().map(Proxy::host), expected, "{url}");
        }
        check(&rules, "http://h/x", Some("plain"));
        check(&rules, "https://h/x", Some("secure"));
        check(&rules, "https://corp.example/x", None);
        check(&rules, "https://a.corp.example/x", None);
        check(&rules, "https://notcorp.example/x", Some("secure"));
        check(&rules, "http://a.internal:80/x", None);
        check(&rules, "http://10.0.0.7/", None);
        check(&rules, "http://localhost:9/", None);
        check(&rules, "http://127.0.0.1:9/", None);
        check(&rules, "http://[::1]:9/", None);
        let explicit = ProxyRules::new(&Proxies::Explicit("http://p:1".into())).unwrap();
        check(&explicit, "http://127.0.0.1:9/", Some("p"));
        check(&ProxyRules::default(), "http://h/", None);
    }

    #[test]
    fn what_is_idle_for_long_is_closed_though_nothing_is_asked() {
        let server = Server::start();
        server.always("GET", "x", Reply::bytes("text/plain", "hello"));
        let agents =
            |age| Agents::new(&Config::default(), &Sockets::of_process(true), age).unwrap();
        let (old, young) = (agents(Duration::ZERO), agents(IDLE_AGE));
        let url = format!("{}{API_PREFIX}x", server.url());
        for agents in [&old, &young] {
            for pool in Pool::ALL {
                let mut answer = agents.agent(pool).get(&url).call().unwrap();
                answer.body_mut().read_to_string().unwrap();
            }
            assert_eq!(agents.open_connections(), Pool::ALL.len());
            agents.release_idle();
        }
        assert_eq!(old.open_connections(), 0);
        assert_eq!(young.open_connections(), Pool::ALL.len());
        // What is in use stays, through however many looks, and is let go of when it is not.
        let mut answer = old.agent(Pool::Rest).get(&url).call().unwrap();
        for _ in 0..4 {
            old.release_idle();
            assert_eq!(old.open_connections(), 1);
        }
        answer.body_mut().read_to_string().unwrap();
        old.release_idle();
        assert_eq!(old.open_connections(), 0);
        assert_eq!(server.connections(), 2 * Pool::ALL.len() + 1);
    }

    #[test]
    fn unusable_settings_say_what_to_do_and_hide_passwords() {
        #[track_caller]
        fn check(config: Config, words: &str) {
            let error = Agents::new(&config, &Sockets::of_process(true), IDLE_AGE).unwrap_err();
            assert!(matches!(error, Error::Config(_)));
            let text = format!("{error} {error:?}");
            assert!(text.contains(words), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
        let config = Config::default;
        check(
            config().with_proxy("fake://u:hunter2@p"),
            "not a usable proxy URL",
        );
        check(
            config().with_root_certificates("hunter2"),
            "BEGIN CERTIFICATE",
        );
        check(
            config().with_root_certificates(
                "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n",
            ),
            "not valid PEM",
        );
    }
}
