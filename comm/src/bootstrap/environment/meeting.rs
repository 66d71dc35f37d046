//! Where the ranks of a job meet, and what names the job: rank 0 listens there, the others call.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};

use sha2::{Digest, Sha256};

use super::place::Place;
use super::slurm::Hosts;
use super::variables::{Variables, port};
use crate::CommError;

/// The ports for jobs that are given none: outside the range from which Linux takes ports of its own choice (32768 on).
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A place to meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Meeting {
    pub(super) host: String,
    pub(super) port: u16,
    /// Where host and port come from.
    host_from: &'static str,
    port_from: String,
    /// How to say another port to the launcher, where the flags of a launcher are needed.
    flags: Option<&'static str>,
    /// What this job has and no other: it makes the job's own secret out of the user's, so that ranks of two jobs that
    /// derive the same port never take each other for their own.
    pub(super) job: Option<String>,
}

/// What a launcher that names no place knows instead.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    /// What names the job, and which variables say so.
    pub(super) job: Option<String>,
    pub(super) job_from: &'static str,
    /// The hosts of the job.
    pub(super) first_host: Option<Hosts>,
    /// The flags by which a user gives the place.
    pub(super) flags: &'static str,
}

impl Chosen {
    /// `MASTER_ADDR` and `MASTER_PORT` where they are set; else loopback on one host, or the first host, and a port that
    /// follows from the job's name.
    pub(super) fn meeting(self, variables: &Variables<'_>, place: &Place) -> Result<Meeting, CommError> {
        let name = place.launcher.name();
        let (host, host_from) = match (variables.text("MASTER_ADDR")?, self.first_host) {
            (Some(host), _) => (host, "MASTER_ADDR"),
            (None, Some(hosts)) if hosts.several => (hosts.first, "the first of Slurm's list of hosts"),
            (None, Some(_)) => ("127.0.0.1".to_owned(), "one host"),
            (None, None) if place.on_one_host() => ("127.0.0.1".to_owned(), "one host"),
            (None, None) => {
                let (here, world) = (place.local_world.unwrap_or(0), place.world);
                return Err(CommError::Config {
                    what: format!("{here} of {world} ranks are on this host, and {name} does not say where to meet"),
                    fix: format!("give it {}: the host of rank 0 and a port that is free there", self.flags),
                });
            }
        };
        let (port, port_from) = match (variables.text("MASTER_PORT")?, &self.job) {
            (Some(value), _) => (port("MASTER_PORT", &value, "a port between 1 and 65535")?, "MASTER_PORT".to_owned()),
            (None, Some(job)) => (derived_port(job), format!("from {}", self.job_from)),
            (None, None) => {
                return Err(CommError::Config {
                    what: format!("MASTER_PORT is not set, and nothing that {name} says names this job alone"),
                    fix: format!("give it {}", self.flags),
                });
            }
        };
        Ok(Meeting { host, port, host_from, port_from, flags: Some(self.flags), job: self.job })
    }
}

/// A port that follows from the name of a job.
fn derived_port(job: &str) -> u16 {
    let digest = Sha256::digest(job.as_bytes());
    PORTS.start + u16::from_le_bytes([digest[0], digest[1]]) % (PORTS.end - PORTS.start)
}

impl Meeting {
    /// At a place that the launcher says.
    pub(super) fn at(host: String, port: u16) -> Self {
        Self { host, port, host_from: "MASTER_ADDR", port_from: "MASTER_PORT".into(), flags: None, job: None }
    }

    /// `host:port`, as others call it.
    pub(super) fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Opens the rendezvous of rank 0. On loopback if that is where the others look for it, else on every interface: which
    /// one the name means elsewhere cannot be known here (Debian names a host 127.0.1.1 to itself).
    pub(super) fn listen(&self) -> Result<TcpListener, CommError> {
        let Self { host, port, host_from, port_from, flags, .. } = self;
        let addresses = (host.as_str(), *port).to_socket_addrs().map_err(|error| CommError::Config {
            what: format!("the host to meet at is `{host}` ({host_from}), which has no address: {error}"),
            fix: "set MASTER_ADDR to the name or address of the host of rank 0".into(),
        })?;
        let addresses: Vec<SocketAddr> = addresses.collect();
        let literal = host.parse::<IpAddr>().is_ok() || host.eq_ignore_ascii_case("localhost");
        let first = addresses.first().map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), SocketAddr::ip);
        let interface = match first {
            loopback if loopback.is_loopback() && literal => loopback,
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        TcpListener::bind((interface, *port)).map_err(|error| {
            let at = SocketAddr::new(interface, *port);
            let what = format!("rank 0 cannot open the rendezvous at {at} ({host_from}, {port_from}): {error}");
            let fix = "end the program that has the port, or choose another MASTER_PORT for all ranks";
            let fix = flags.map_or(fix.to_owned(), |flags| format!("{fix} ({flags})"));
            CommError::Config { what, fix }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_occupied_port_is_named_with_its_origin_and_the_fix() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("bound").port();
        let given = Meeting::at("127.0.0.1".into(), port);
        let error = given.listen().expect_err("occupied").to_string();
        assert!(error.contains(&format!("127.0.0.1:{port}")) && error.contains("another MASTER_PORT"), "{error}");
        let derived = Meeting { port_from: "from SLURM_JOB_ID".into(), flags: Some("`srun -x`"), ..given };
        let error = derived.listen().expect_err("occupied").to_string();
        assert!(error.contains("from SLURM_JOB_ID") && error.contains("`srun -x`"), "{error}");
    }

    #[test]
    fn derived_ports_are_where_they_should_be_and_differ() {
        let ports: std::collections::BTreeSet<u16> = (0..200).map(|job| derived_port(&format!("{job}.0"))).collect();
        assert!(ports.iter().all(|port| PORTS.contains(port)));
        // 200 of 12,000: about 1.7 meet another by chance.
        assert!(ports.len() > 190, "{} different", ports.len());
    }
}
