//! A job whose ranks are told by environment variables who they are: torchrun's, or those of our own launcher.
//! The variables are listed at the head of [`super`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use super::member::{Invitation, Member};
use super::rendezvous::{Rendezvous, Settings};
use super::secret::Secret;
use super::{Bootstrap, DEFAULT_TIMEOUT, Site, user_secret};
use crate::notice::Notices;
use crate::transport::Exchange;
use crate::{CommError, Health};

const TORCHRUN: [&str; 5] = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"];
pub(super) const OURS: [&str; 4] =
    ["WARPWEFT_RANK", "WARPWEFT_WORLD_SIZE", "WARPWEFT_LOCAL_RANK", "WARPWEFT_RENDEZVOUS"];
pub(super) const SECRET: &str = "WARPWEFT_SECRET";
const TIMEOUT: &str = "WARPWEFT_TIMEOUT";
const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// torchrun's variables, which a launcher within torchrun must not hand down.
pub(super) const FOREIGN: [&str; 5] = TORCHRUN;

/// Joins the job that the environment describes, if it describes one. Returns when all ranks have joined.
///
/// The variables are listed in [the module's page](crate::bootstrap).
///
/// # Errors
/// [`CommError::Config`] for variables that are missing, malformed, or contradict each other or the rendezvous; a failure
/// naming the ranks that did not come in time.
pub fn from_env() -> Result<Option<Bootstrap>, CommError> {
    Described::from_env()?.map(Described::join).transpose()
}

/// [`from_env`] with a deadline of its own for every wait, the first one for all ranks too, whatever `WARPWEFT_TIMEOUT` says.
///
/// # Errors
/// As [`from_env`].
pub fn from_env_within(timeout: Duration) -> Result<Option<Bootstrap>, CommError> {
    Described::from_env()?.map(|described| Described { timeout, ..described }.join()).transpose()
}

/// A job as the environment describes it.
#[derive(Debug, PartialEq, Eq)]
struct Described {
    rank: usize,
    world: usize,
    local_rank: usize,
    host: String,
    port: u16,
    secret: Option<Secret>,
    timeout: Duration,
    launched: bool,
}

type Value = Result<Option<String>, CommError>;

fn malformed(name: &str, value: &str, wanted: &str) -> CommError {
    CommError::Config { what: format!("{name} is `{value}`"), fix: format!("set it to {wanted}") }
}

fn number(name: &str, value: &str) -> Result<usize, CommError> {
    value.trim().parse().map_err(|_| malformed(name, value, "a whole number, 0 or more"))
}

impl Described {
    fn from_env() -> Result<Option<Self>, CommError> {
        Self::read(|name| match std::env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(value)) => Err(malformed(name, &value.to_string_lossy(), "plain text")),
        })
    }

    fn read(variable: impl Fn(&str) -> Value) -> Result<Option<Self>, CommError> {
        let torchrun = all_or_none(&TORCHRUN, &variable)?;
        let ours = all_or_none(&OURS, &variable)?;
        let (names, [rank, world, local_rank], host, port) = match (torchrun, ours) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                return Err(CommError::Config {
                    what: "the variables of torchrun (RANK) and of our launcher (WARPWEFT_RANK) are both set".into(),
                    fix: "unset those of the launcher that did not start this process".into(),
                });
            }
            (Some([rank, world, local_rank, host, port]), None) => {
                let agent = variable(AGENT_STORE)?.is_some_and(|value| value.eq_ignore_ascii_case("true"));
                let port = master_port(&port, agent)?;
                (&TORCHRUN[..3], [rank, world, local_rank], host.trim().to_owned(), port)
            }
            (None, Some([rank, world, local_rank, rendezvous])) => {
                let address: SocketAddr = rendezvous
                    .parse()
                    .map_err(|_| malformed("WARPWEFT_RENDEZVOUS", &rendezvous, "an address and a port"))?;
                (&OURS[..3], [rank, world, local_rank], address.ip().to_string(), address.port())
            }
        };
        let launched = names[0] == OURS[0];
        let (rank, world) = (number(names[0], &rank)?, number(names[1], &world)?);
        let local_rank = number(names[2], &local_rank)?;
        if rank >= world {
            return Err(CommError::Config {
                what: format!("{} is {rank}, but {} is {world}", names[0], names[1]),
                fix: format!("ranks are numbered from 0, so this must be at most {}", world.saturating_sub(1)),
            });
        }
        super::check_world(names[1], world)?;
        let secret = variable(SECRET)?.map(|digits| {
            // The value itself stays out of the message: it may be nearly right.
            let wrong = format!("{} characters", digits.chars().count());
            Secret::from_hex(digits.trim()).ok_or_else(|| malformed(SECRET, &wrong, "64 hexadecimal digits"))
        });
        let timeout = variable(TIMEOUT)?.map(|value| {
            let seconds = value.trim().parse().ok().filter(|seconds| *seconds > 0.0);
            let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            timeout.ok_or_else(|| malformed(TIMEOUT, &value, "seconds, more than 0"))
        });
        let timeout = timeout.transpose()?.unwrap_or(DEFAULT_TIMEOUT);
        let secret = secret.transpose()?;
        Ok(Some(Self { rank, world, local_rank, host, port, secret, timeout, launched }))
    }

    fn source(&self) -> &'static str {
        if self.launched { "warpweft launcher" } else { "torchrun environment" }
    }

    fn join(self) -> Result<Bootstrap, CommError> {
        let source = self.source();
        let Self { rank, world, local_rank, host, port, timeout, launched, secret } = self;
        if world == 1 && !launched {
            return Ok(Bootstrap { source, local_rank, timeout, ..Bootstrap::alone() });
        }
        let secret = secret.map_or_else(user_secret::load, Ok)?;
        let (notices, health) = (Notices::default(), Health::new());
        let server = if rank == 0 && !launched {
            let (secret, notices) = (secret.clone(), notices.clone());
            let settings = Settings { world, secret, notices, grace: Duration::ZERO };
            Some(Rendezvous::open(listen(&host, port)?, settings)?)
        } else {
            None
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let rendezvous = format!("{host}:{port}");
        let invitation = Invitation { rank, world, rendezvous, secret: secret.clone(), timeout, launched };
        let (mut member, addresses) = Member::join(&invitation, &health, server)?;
        // Nobody goes on before all are there; who is missing is named after the timeout.
        member.all_gather(&[])?;
        let site = Site { secret, address: addresses.own, rendezvous: addresses.rendezvous, notices };
        let exchange = Box::new(member);
        Ok(Bootstrap { rank, world, local_rank, source, health, timeout, site, exchange })
    }
}

/// The values of variables that belong together: all of them, or none.
fn all_or_none<const N: usize>(
    names: &[&str; N],
    variable: impl Fn(&str) -> Value,
) -> Result<Option<[String; N]>, CommError> {
    let mut values = Vec::with_capacity(N);
    for name in names {
        values.push(variable(name)?.filter(|value| !value.trim().is_empty()));
    }
    let listed = |set: bool| {
        let chosen = names.iter().zip(&values).filter(|(_, value)| value.is_some() == set);
        chosen.map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    };
    match values.iter().filter(|value| value.is_some()).count() {
        0 => Ok(None),
        count if count == N => {
            let values: Vec<String> = values.into_iter().flatten().collect();
            Ok(<[String; N]>::try_from(values).ok())
        }
        _ => Err(CommError::Config {
            what: format!("{} is set, but {} is not", listed(true), listed(false)),
            fix: format!("set all of {} or none", names.join(", ")),
        }),
    }
}

/// torchrun's port, or ours beside it.
fn master_port(value: &str, agent_store: bool) -> Result<u16, CommError> {
    let port: Option<u16> = value.trim().parse().ok().filter(|port| *port > 0);
    let port = port.and_then(|port| if agent_store { port.checked_add(1) } else { Some(port) });
    port.ok_or_else(|| {
        malformed("MASTER_PORT", value, "a port between 1 and 65535 (65534 under torchrun's agent store)")
    })
}

/// Opens the rendezvous of rank 0. On loopback if that is where the others look for it, else on every interface: which
/// one the name means elsewhere cannot be known here (Debian names a host 127.0.1.1 to itself).
fn listen(host: &str, port: u16) -> Result<TcpListener, CommError> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| CommError::Config {
        what: format!("MASTER_ADDR is `{host}`, which has no address: {error}"),
        fix: "set it to the name or address of the host of rank 0".into(),
    })?;
    let addresses: Vec<SocketAddr> = addresses.collect();
    let literal = host.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost");
    let first = addresses.first().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), SocketAddr::ip);
    let interface = match first {
        loopback if loopback.is_loopback() && literal => loopback,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    TcpListener::bind((interface, port)).map_err(|error| {
        let what = format!("rank 0 cannot open the rendezvous at {} (MASTER_ADDR, MASTER_PORT): {error}", {
            SocketAddr::new(interface, port)
        });
        let fix = "end the program that has the port, or choose another MASTER_PORT for all ranks".into();
        CommError::Config { what, fix }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Option<Described>, CommError> {
        let find = |name: &str| set.iter().rfind(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Described::read(|name| Ok(find(name)))
    }

    const TORCH: [(&str, &str); 5] =
        [("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "node0"), ("MASTER_PORT", "29500")];

    fn with(extra: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
        [&TORCH[..], extra].concat()
    }

    fn error(set: &[(&str, &str)]) -> String {
        read(set).err().map(|error| error.to_string()).expect("an error")
    }

    #[test]
    fn torchruns_variables_are_read() {
        assert_eq!(read(&[]).expect("none"), None);
        let found = read(&TORCH).expect("all").expect("all");
        assert_eq!((found.rank, found.world, found.local_rank), (1, 4, 1));
        assert_eq!((found.host.as_str(), found.port, found.launched), ("node0", 29500, false));
        assert_eq!(found.timeout, DEFAULT_TIMEOUT);
        let found = read(&with(&[("TORCHELASTIC_USE_AGENT_STORE", "True")])).expect("all").expect("all");
        assert_eq!(found.port, 29501, "the agent's own store has the port");
        let found = read(&with(&[("WARPWEFT_TIMEOUT", "1.5")])).expect("all").expect("all");
        assert_eq!(found.timeout, Duration::from_millis(1500));
    }

    #[test]
    fn our_launchers_variables_are_read() {
        let ours = [
            ("WARPWEFT_RANK", "0"),
            ("WARPWEFT_WORLD_SIZE", "2"),
            ("WARPWEFT_LOCAL_RANK", "0"),
            ("WARPWEFT_RENDEZVOUS", "127.0.0.1:4000"),
        ];
        let found = read(&ours).expect("all").expect("all");
        assert_eq!((found.host.as_str(), found.port, found.launched), ("127.0.0.1", 4000, true));
        assert!(error(&[&TORCH[..], &ours[..]].concat()).contains("both set"));
    }

    #[test]
    fn wrong_variables_are_named_with_their_value() {
        for missing in 0..5 {
            let mut partial = TORCH.to_vec();
            let (name, _) = partial.remove(missing);
            let error = error(&partial);
            assert!(error.contains(&format!("but {name} is not")), "{error}");
        }
        for (name, value) in [
            ("RANK", "one"),
            ("RANK", "-1"),
            ("WORLD_SIZE", "4.0"),
            ("LOCAL_RANK", "x"),
            ("MASTER_PORT", "0"),
            ("MASTER_PORT", "65536"),
            ("WARPWEFT_TIMEOUT", "0"),
            ("WARPWEFT_TIMEOUT", "inf"),
            ("WARPWEFT_TIMEOUT", "nan"),
        ] {
            let error = error(&with(&[(name, value)]));
            assert!(error.contains(&format!("{name} is `{value}`")), "{error}");
        }
        assert!(error(&with(&[("RANK", "4")])).contains("RANK is 4, but WORLD_SIZE is 4"));
        assert!(error(&with(&[("WORLD_SIZE", "0")])).contains("WORLD_SIZE is 0"));
        let error_of_many = error(&with(&[("WORLD_SIZE", "1000000000000")]));
        assert!(error_of_many.contains("WORLD_SIZE asks for 1000000000000 ranks"), "{error_of_many}");
        let error = error(&with(&[("WARPWEFT_SECRET", "abc")]));
        assert!(error.contains("WARPWEFT_SECRET") && !error.contains("abc"), "{error}");
    }

    #[test]
    fn an_occupied_port_is_named_with_the_fix() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("bound").port();
        let error = listen("127.0.0.1", port).expect_err("occupied").to_string();
        assert!(
            error.contains(&format!("127.0.0.1:{port}")) && error.contains("choose another MASTER_PORT"),
            "{error}"
        );
    }
}
