//! Every transport is the same reliable, ordered stream of bytes.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use warpweft_comm::bootstrap::{Bootstrap, threads};
use warpweft_comm::transport::{Exchange, LinkError, Setup, Transport, TransportKind, Want, connect};
use warpweft_comm::{CommError, Health};

/// An exchange that shows what passes through it.
struct Tapped<F> {
    inner: Box<dyn Exchange + Send>,
    seen: F,
}

impl<F: FnMut(&[u8])> Exchange for Tapped<F> {
    fn all_gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, CommError> {
        (self.seen)(bytes);
        self.inner.all_gather(bytes)
    }
}

const KINDS: [TransportKind; 3] = [TransportKind::Thread, TransportKind::Shm, TransportKind::Tcp];
const SLICE: Duration = Duration::from_millis(50);

/// SplitMix64: reproducible data and sizes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

fn open(kind: TransportKind, bootstrap: &mut Bootstrap) -> Result<Box<dyn Transport>, CommError> {
    let Bootstrap { rank, world, health, timeout, site, exchange, .. } = bootstrap;
    let setup = Setup { rank: *rank, world: *world, exchange: &mut **exchange, health, timeout: *timeout, site };
    connect(kind, setup)
}

/// Runs `body` as every rank, each in a thread, and gives back the results in rank order.
fn run<R: Send>(kind: TransportKind, world: usize, body: impl Fn(usize, Box<dyn Transport>) -> R + Sync) -> Vec<R> {
    let bootstraps = threads(world).expect("ranks");
    std::thread::scope(|scope| {
        let ranks: Vec<_> = bootstraps
            .into_iter()
            .map(|mut bootstrap| {
                let body = &body;
                scope.spawn(move || {
                    let transport = open(kind, &mut bootstrap).expect("a transport");
                    body(bootstrap.rank, transport)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    })
}

/// The stream from one rank to another: its bytes depend on nothing else.
struct Stream {
    random: Random,
    data: Vec<u8>,
    at: usize,
}

impl Stream {
    fn new(from: usize, to: usize, bytes: usize) -> Self {
        let mut data = vec![0; bytes];
        Random((from * 1000 + to) as u64).fill(&mut data);
        Self { random: Random((from * 7 + to * 13) as u64), data, at: 0 }
    }

    fn chunk(&mut self) -> usize {
        let largest = [1, 100, 5000, 300_000][self.random.below(4)];
        (1 + self.random.below(largest)).min(self.data.len() - self.at)
    }
}

#[test]
fn streams_arrive_whole_and_in_order_between_all_pairs_at_once() {
    for kind in KINDS {
        for world in [2, 3, 5] {
            run(kind, world, |rank, mut transport| {
                let peers: Vec<usize> = (0..world).filter(|&peer| peer != rank).collect();
                // More than a ring holds, and not a multiple of its size, so that it fills and wraps.
                let mut out: Vec<Stream> = peers.iter().map(|&peer| Stream::new(rank, peer, 2_500_003)).collect();
                let mut expected: Vec<Stream> = peers.iter().map(|&peer| Stream::new(peer, rank, 2_500_003)).collect();
                let mut into = vec![0; 300_000];
                let deadline = Instant::now() + Duration::from_secs(60);
                loop {
                    assert!(Instant::now() < deadline, "{kind} {world}: stuck");
                    let (mut moved, mut wanted) = (0, Vec::new());
                    for (index, &peer) in peers.iter().enumerate() {
                        let stream = &mut out[index];
                        let chunk = stream.chunk();
                        if chunk > 0 {
                            let sent = transport.try_send(peer, &stream.data[stream.at..][..chunk]).expect("sent");
                            stream.at += sent;
                            moved += sent;
                            wanted.push(Want { peer, send: true });
                        }
                        let stream = &mut expected[index];
                        let chunk = stream.chunk();
                        if chunk > 0 {
                            let taken = transport.try_recv(peer, &mut into[..chunk]).expect("received");
                            assert_eq!(into[..taken], stream.data[stream.at..][..taken], "{kind}: {peer} to {rank}");
                            stream.at += taken;
                            moved += taken;
                            wanted.push(Want { peer, send: false });
                        }
                    }
                    if wanted.is_empty() {
                        break;
                    }
                    if moved == 0 {
                        transport.park(&wanted, SLICE);
                    }
                }
            });
        }
    }
}

#[test]
fn what_was_sent_before_a_close_arrives_then_the_close() {
    for kind in KINDS {
        run(kind, 2, |rank, mut transport| {
            if rank == 0 {
                assert_eq!(transport.try_send(1, b"last words").expect("room"), 10);
                return;
            }
            let mut got = Vec::new();
            let error = loop {
                let mut byte = [0; 3];
                match transport.try_recv(0, &mut byte) {
                    Ok(0) => transport.park(&[Want { peer: 0, send: false }], SLICE),
                    Ok(count) => got.extend_from_slice(&byte[..count]),
                    Err(error) => break error,
                }
            };
            assert_eq!(got, b"last words");
            assert_eq!(error, LinkError::Closed { peer: 0 });
        });
    }
}

#[test]
fn a_park_ends_at_once_when_bytes_or_room_come_and_else_at_its_timeout() {
    for kind in KINDS {
        let late = run(kind, 2, |rank, mut transport| {
            let long = Duration::from_secs(20);
            if rank == 0 {
                // Long after the peer has stopped spinning.
                std::thread::sleep(Duration::from_millis(100));
                while transport.try_send(1, &[5; 65536]).expect("room") > 0 {}
                let start = Instant::now();
                transport.park(&[Want { peer: 1, send: true }], long);
                return start.elapsed();
            }
            let start = Instant::now();
            let mut byte = [0; 1];
            while transport.try_recv(0, &mut byte).expect("open") == 0 {
                transport.park(&[Want { peer: 0, send: false }], long);
            }
            let waited = start.elapsed();
            std::thread::sleep(Duration::from_millis(100));
            // Rank 0 sleeps until this makes room, and closes when it has woken.
            let drain = Instant::now();
            let mut rest = vec![0; 1 << 20];
            while let Ok(taken) = transport.try_recv(0, &mut rest) {
                if taken == 0 {
                    transport.park(&[Want { peer: 0, send: false }], long);
                }
            }
            waited.max(drain.elapsed())
        });
        assert!(late.iter().all(|&time| time < Duration::from_secs(10)), "{kind}: {late:?}");
    }
}

#[test]
fn no_wake_up_is_lost_in_a_ping_pong_with_random_pauses() {
    for kind in KINDS {
        for world in [2, 4] {
            run(kind, world, |rank, mut transport| {
                let mut random = Random(rank as u64);
                let peer = rank ^ 1;
                let start = Instant::now();
                for turn in 0..1500u32 {
                    if turn % 2 == rank as u32 % 2 {
                        if random.below(8) == 0 {
                            std::thread::sleep(Duration::from_micros(random.below(120) as u64));
                        }
                        assert_eq!(transport.try_send(peer, &turn.to_le_bytes()).expect("open"), 4);
                    } else {
                        let (mut got, mut have) = ([0; 4], 0);
                        while have < 4 {
                            let taken = transport.try_recv(peer, &mut got[have..]).expect("open");
                            have += taken;
                            if taken == 0 {
                                // A lost wake-up would sleep for the whole of this.
                                let before = Instant::now();
                                transport.park(&[Want { peer, send: false }], Duration::from_secs(20));
                                assert!(before.elapsed() < Duration::from_secs(15), "{kind}: a wake-up was lost");
                            }
                        }
                        assert_eq!(u32::from_le_bytes(got), turn);
                    }
                }
                assert!(start.elapsed() < Duration::from_secs(60));
            });
        }
    }
}

#[test]
fn auto_takes_threads_in_one_process_and_a_different_wish_is_refused() {
    assert!(run(TransportKind::Auto, 3, |_, transport| transport.kind()).iter().all(|&k| k == TransportKind::Thread));
    let bootstraps = threads(2).expect("ranks");
    std::thread::scope(|scope| {
        for mut bootstrap in bootstraps {
            scope.spawn(move || {
                let kind = [TransportKind::Thread, TransportKind::Shm][bootstrap.rank];
                let error = open(kind, &mut bootstrap).err().expect("a contradiction").to_string();
                assert!(error.contains("thread") && error.contains("shm"), "{error}");
            });
        }
    });
}

#[test]
fn a_rank_that_leaves_or_panics_before_it_is_connected_is_named() {
    let mut bootstraps = threads(3).expect("ranks");
    drop(bootstraps.remove(1));
    std::thread::scope(|scope| {
        for mut bootstrap in bootstraps {
            scope.spawn(move || {
                let error = open(TransportKind::Auto, &mut bootstrap).err().expect("incomplete").to_string();
                assert!(error.contains("rank 1 died"), "{error}");
            });
        }
    });
    let mut bootstraps = threads(2).expect("ranks");
    let (gone, stays) = (bootstraps.remove(1), bootstraps.remove(0));
    let health: Health = stays.health.clone();
    let panicked = std::thread::spawn(move || {
        let _held = gone;
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(panicked.join().is_err());
    let verdict = format!("{:?}", health.check());
    assert!(verdict.contains("rank: 1") && verdict.contains("panicked"), "{verdict}");
}

#[test]
fn a_rank_that_never_comes_is_named_after_the_timeout() {
    let mut bootstraps = threads(4).expect("ranks");
    let mut first = bootstraps.remove(0);
    first.timeout = Duration::from_millis(150);
    let error = open(TransportKind::Auto, &mut first).err().expect("alone").to_string();
    assert!(error.contains("missing: 1, 2, 3"), "{error}");
}

/// The port in a message of the set-up, if it names one.
fn port_in(message: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(message).into_owned();
    let (_, rest) = text.split_once("\"127.0.0.1:")?;
    rest.split('"').next()?.parse().ok()
}

#[test]
fn strangers_at_a_data_port_are_hung_up_on_and_counted() {
    let site = std::sync::Mutex::new(None);
    std::thread::scope(|scope| {
        for mut bootstrap in threads(3).expect("ranks") {
            let site = &site;
            scope.spawn(move || {
                let (rank, mut half_open) = (bootstrap.rank, None);
                let mut attack = |message: &[u8]| {
                    let Some(port) = port_in(message).filter(|_| rank == 0) else { return };
                    half_open = Some(TcpStream::connect(("127.0.0.1", port)).expect("an open port"));
                    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"GET / HTTP/1.1\r\n\r\n", &[0xFF; 4096], b"WARP"] {
                        let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("an open port");
                        // It may hang up before all has been said.
                        let _ = stranger.write_all(bytes);
                        let _ = stranger.shutdown(Shutdown::Write);
                        // Hung up on without an answer; unread bytes make that a reset.
                        assert_eq!(stranger.read(&mut [0; 1]).unwrap_or(0), 0);
                    }
                };
                let Bootstrap { world, health, timeout, site: own, exchange, .. } = &mut bootstrap;
                let inner = std::mem::replace(exchange, Bootstrap::alone().exchange);
                let mut tapped = Tapped { inner, seen: &mut attack };
                let (health, timeout, world) = (&*health, *timeout, *world);
                let setup = Setup { rank, world, exchange: &mut tapped, health, timeout, site: own };
                let transport = connect(TransportKind::Tcp, setup).expect("a transport, in spite of them");
                assert!(transport.address((rank + 1) % 3).starts_with("127.0.0.1:"));
                *site.lock().expect("unpoisoned") = Some(own.clone());
            });
        }
    });
    let notices = site.into_inner().expect("unpoisoned").expect("ranks").notices.take();
    assert!(notices.iter().any(|line| line.contains("GET / HT") && line.ends_with("(2 times)")), "{notices:?}");
}
