//! Real processes find each other, prove that they belong together, and hear of each other's end.
//!
//! The processes are this test program itself: `as_a_rank` is their entry, and does nothing without its variable.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use warpweft_comm::bootstrap::launch::{Job, Launcher};
use warpweft_comm::bootstrap::{self, Bootstrap, from_env};
use warpweft_comm::transport::{LinkError, Setup, Transport, TransportKind, Want, connect};
use warpweft_comm::{CommError, Verdict};

const ROLE: &str = "BOOTSTRAP_TEST_ROLE";
const FOLDER: &str = "BOOTSTRAP_TEST_FOLDER";
const SLICE: Duration = Duration::from_millis(50);

// ---- the side of the ranks

#[test]
fn as_a_rank() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("the parent sets it"));
    match role.as_str() {
        "launch" => return launch_and_wait(&folder),
        "leave at once" => return,
        _ => {}
    }
    let bootstrap = match from_env() {
        Ok(bootstrap) => bootstrap.expect("a job in the environment"),
        Err(error) => return say(&folder, &format!("error-{}", std::process::id()), &error.to_string()),
    };
    match role.as_str() {
        "shm" => work(&folder, bootstrap, TransportKind::Shm),
        "tcp" => work(&folder, bootstrap, TransportKind::Tcp),
        "auto" => work(&folder, bootstrap, TransportKind::Auto),
        "deaf" => {
            say(&folder, &format!("ready-{}", bootstrap.rank), "");
            std::thread::sleep(Duration::from_secs(60));
        }
        "abort" => {
            let by = bootstrap.rank;
            if by == 2 {
                bootstrap.health.report(Verdict::Aborted { by, reason: "on purpose".into() });
            }
            watch(&folder, &bootstrap);
        }
        "exit" => {
            if bootstrap.rank == 1 {
                std::process::exit(0);
            }
            watch(&folder, &bootstrap);
        }
        "panic" => {
            if bootstrap.rank == 1 {
                let _held = bootstrap;
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            watch(&folder, &bootstrap);
        }
        other => panic!("no role {other}"),
    }
}

/// Files appear whole: written beside, then renamed.
fn say(folder: &Path, name: &str, text: &str) {
    let draft = folder.join(format!(".{name}"));
    fs::write(&draft, text).expect("the folder is there");
    fs::rename(draft, folder.join(name)).expect("the folder is there");
}

fn open(bootstrap: &mut Bootstrap, kind: TransportKind) -> Result<Box<dyn Transport>, CommError> {
    let Bootstrap { rank, world, health, timeout, site, exchange, .. } = bootstrap;
    let setup = Setup { rank: *rank, world: *world, exchange: &mut **exchange, health, timeout: *timeout, site };
    connect(kind, setup)
}

/// Greets every peer and hears from each; then stays until the job's health turns bad, or the parent says `end`.
fn work(folder: &Path, mut bootstrap: Bootstrap, kind: TransportKind) {
    let mut transport = open(&mut bootstrap, kind).expect("a transport");
    let (rank, world) = (bootstrap.rank, bootstrap.world);
    let peers: Vec<usize> = (0..world).filter(|&peer| peer != rank).collect();
    for &peer in &peers {
        assert_eq!(transport.try_send(peer, &[rank as u8; 3]).expect("open"), 3);
    }
    for &peer in &peers {
        let (mut got, mut have) = ([0xFF; 3], 0);
        while have < 3 {
            have += transport.try_recv(peer, &mut got[have..]).expect("open");
            transport.park(&[Want { peer, send: false }], if have < 3 { SLICE } else { Duration::ZERO });
        }
        assert_eq!(got, [peer as u8; 3]);
    }
    say(folder, &format!("ready-{rank}"), &format!("{} {}", transport.kind(), bootstrap.source));
    let wanted: Vec<Want> = peers.iter().map(|&peer| Want { peer, send: false }).collect();
    let start = Instant::now();
    while bootstrap.health.check().is_ok() && !folder.join("end").exists() {
        assert!(start.elapsed() < Duration::from_secs(60) && folder.exists(), "the test has forgotten this rank");
        transport.park(&wanted, SLICE);
        std::thread::sleep(Duration::from_millis(1));
        for &peer in &peers {
            match transport.try_recv(peer, &mut [0; 1]) {
                Ok(0) | Err(LinkError::Closed { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    if !folder.join("end").exists() {
        watch(folder, &bootstrap);
    }
}

/// Waits for bad news and writes it down with the time.
fn watch(folder: &Path, bootstrap: &Bootstrap) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        if let Err(verdict) = bootstrap.health.check() {
            let failure = verdict.failure(bootstrap.rank, bootstrap.world, "watch");
            return say(folder, &format!("verdict-{}", bootstrap.rank), &failure.to_string());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no bad news");
}

fn launch_and_wait(folder: &Path) {
    let job = Launcher::new(2).start(|_| rank("deaf", folder)).expect("started");
    say(folder, "pids", &format!("{:?}", job.processes()));
    job.wait().expect("statuses");
}

// ---- the side of the test

/// This program as a process of a job.
fn rank(role: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a running program"));
    command.args(["as_a_rank", "--exact", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, role).env(FOLDER, folder).env("XDG_CONFIG_HOME", folder).env_remove("RUST_BACKTRACE");
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

/// The text of a file as soon as it is there.
fn heard(folder: &Path, name: &str) -> String {
    let start = Instant::now();
    loop {
        if let Ok(text) = fs::read_to_string(folder.join(name)) {
            return text;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{name} never came");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn launched(role: &str, ranks: usize, folder: &Path) -> Job {
    Launcher::new(ranks).start(|_| rank(role, folder)).expect("started")
}

fn kill(process: u32) -> SystemTime {
    let process = rustix::process::Pid::from_raw(process as i32).expect("a process");
    rustix::process::kill_process(process, rustix::process::Signal::KILL).expect("it runs");
    SystemTime::now()
}

fn written(folder: &Path, name: &str) -> SystemTime {
    fs::metadata(folder.join(name)).and_then(|data| data.modified()).expect("it is there")
}

fn left_in_shared_memory() -> Vec<String> {
    let names = fs::read_dir("/dev/shm").expect("it is there").flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("warpweft-")).collect()
}

#[test]
fn a_killed_rank_is_named_by_all_others_within_a_second_and_nothing_is_left() {
    for role in ["shm", "tcp"] {
        let folder = folder();
        let job = launched(role, 3, folder.path());
        for rank in 0..3 {
            assert_eq!(heard(folder.path(), &format!("ready-{rank}")), format!("{role} warpweft launcher"));
        }
        let process = job.processes()[1];
        let killed = kill(process);
        let outcome = job.wait().expect("statuses");
        let sentence = format!("rank 1 (process {process}) was killed by signal 9");
        assert_eq!(outcome.failure().as_deref(), Some(sentence.as_str()));
        for rank in [0, 2] {
            let name = format!("verdict-{rank}");
            let text = heard(folder.path(), &name);
            let expected = format!("rank 1 died: process {process} was killed by signal 9");
            assert!(text.contains(&expected), "{text}");
            let after = written(folder.path(), &name).duration_since(killed).unwrap_or_default();
            assert!(after < Duration::from_secs(1), "{role}: heard after {after:?}");
            assert!(outcome.ranks[rank].status.success() && !outcome.ranks[rank].killed);
        }
        assert_eq!(left_in_shared_memory(), [""; 0]);
    }
}

#[test]
fn a_job_that_ends_in_order_is_a_success() {
    let folder = folder();
    let job = launched("auto", 3, folder.path());
    (0..3).for_each(|rank| assert!(heard(folder.path(), &format!("ready-{rank}")).starts_with("shm")));
    say(folder.path(), "end", "");
    let outcome = job.wait().expect("statuses");
    assert_eq!(outcome.failure(), None);
    assert!(outcome.notices.is_empty(), "{:?}", outcome.notices);
    assert!(outcome.ranks.iter().all(|rank| rank.status.success()));
}

#[test]
fn an_exit_a_panic_and_an_abort_reach_all_processes() {
    let named = [
        ("exit", "rank 1 died: process", "ended with exit status 0"),
        ("panic", "rank 1 died: process", "panicked"),
        ("abort", "rank 2 aborted:", "on purpose"),
    ];
    for (role, who, how) in named {
        let folder = folder();
        let outcome = launched(role, 3, folder.path()).wait().expect("statuses");
        for rank in [0, if role == "abort" { 1 } else { 2 }] {
            let text = heard(folder.path(), &format!("verdict-{rank}"));
            assert!(text.contains(who) && text.contains(how), "{role}: {text}");
        }
        assert_eq!(outcome.first_failure, (role == "panic").then_some(1), "{role}");
    }
}

#[test]
fn a_rank_that_ends_before_it_joins_is_named_and_the_rest_does_not_wait() {
    let folder = folder();
    let start = Instant::now();
    let roles = ["shm", "leave at once", "shm"];
    let job = Launcher::new(3).start(|index| rank(roles[index], folder.path())).expect("started");
    let processes = job.processes();
    job.wait().expect("statuses");
    for index in [0, 2] {
        let text = heard(folder.path(), &format!("error-{}", processes[index]));
        assert!(text.contains("rank 1 died") && text.contains("before it joined"), "{text}");
    }
    assert!(start.elapsed() < Duration::from_secs(15));
}

#[test]
fn children_end_when_their_launcher_is_killed_even_if_they_do_not_listen() {
    let folder = folder();
    let mut launcher = rank("launch", folder.path()).spawn().expect("started");
    let pids = heard(folder.path(), "pids");
    let pids: Vec<u32> = pids.trim_matches(['[', ']']).split(", ").map(|pid| pid.parse().expect("a pid")).collect();
    (0..2).for_each(|rank| drop(heard(folder.path(), &format!("ready-{rank}"))));
    assert!(pids.iter().all(|&pid| runs(pid)));
    kill(launcher.id());
    launcher.wait().expect("killed");
    let start = Instant::now();
    while pids.iter().any(|&pid| runs(pid)) {
        assert!(start.elapsed() < Duration::from_secs(2), "children outlive their launcher");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether a process runs; one that has ended but that nobody has waited for does not.
fn runs(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[test]
fn a_program_that_is_not_there_is_an_error_and_leaves_no_process() {
    let folder = folder();
    let commands = |index: usize| match index {
        0 => rank("deaf", folder.path()),
        _ => Command::new("/no/such/program"),
    };
    let error = Launcher::new(2).start(commands).err().expect("nothing to start").to_string();
    assert!(error.contains("/no/such/program") && error.contains("rank 1 of 2"), "{error}");
    let error = Launcher::new(0).start(|_| rank("deaf", folder.path())).err().expect("no ranks").to_string();
    assert!(error.contains("0 ranks"), "{error}");
}

// ---- torchrun's environment

/// A port that was free a moment ago.
fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

/// A process as torchrun would start it, with a short timeout.
fn torchrun(role: &str, folder: &Path, index: usize, world: usize, port: u16, more: &[(&str, &str)]) -> Child {
    let mut command = rank(role, folder);
    let numbers = [("RANK", index), ("LOCAL_RANK", index), ("WORLD_SIZE", world), ("MASTER_PORT", port.into())];
    command.envs(numbers.map(|(name, value)| (name, value.to_string())));
    command.env("MASTER_ADDR", "127.0.0.1").env("WARPWEFT_TIMEOUT", "15").envs(more.iter().copied());
    command.spawn().expect("started")
}

fn error_of(folder: &Path, child: &mut Child) -> String {
    let text = heard(folder, &format!("error-{}", child.id()));
    child.wait().expect("it ends");
    text
}

#[test]
fn torchruns_ranks_meet_and_the_end_of_rank_0_or_another_is_reported() {
    for victim in [0, 1] {
        let (folder, port) = (folder(), port());
        let mut ranks: Vec<Child> = (0..3).map(|index| torchrun("auto", folder.path(), index, 3, port, &[])).collect();
        for rank in 0..3 {
            assert_eq!(heard(folder.path(), &format!("ready-{rank}")), "shm torchrun environment");
        }
        let killed = kill(ranks[victim].id());
        for rank in (0..3).filter(|&rank| rank != victim) {
            let name = format!("verdict-{rank}");
            let text = heard(folder.path(), &name);
            assert!(text.contains(&format!("rank {victim} died: connection closed")), "{text}");
            let after = written(folder.path(), &name).duration_since(killed).unwrap_or_default();
            assert!(after < Duration::from_secs(1), "heard after {after:?}");
        }
        ranks.iter_mut().for_each(|rank| drop(rank.wait()));
    }
}

#[test]
fn missing_ranks_are_named_to_all_who_came() {
    let (folder, port) = (folder(), port());
    let short = [("WARPWEFT_TIMEOUT", "1")];
    let mut ranks = [0, 2].map(|index| torchrun("auto", folder.path(), index, 4, port, &short));
    for rank in &mut ranks {
        let text = error_of(folder.path(), rank);
        assert!(text.contains("missing: 1, 3") && text.contains("1.0 s"), "{text}");
    }
}

#[test]
fn contradictions_are_refused_to_the_wrong_side_and_the_job_goes_on() {
    let (folder, port) = (folder(), port());
    let start = |index, world, more: &[(&str, &str)]| torchrun("auto", folder.path(), index, world, port, more);
    let zero = start(0, 3, &[]);
    let one = start(1, 3, &[]);
    // Of two that say they are rank 1 the server takes the first.
    let mut twins = [one, start(1, 3, &[])];
    let began = Instant::now();
    let (loser, text) = loop {
        let error = |twin: &Child| fs::read_to_string(folder.path().join(format!("error-{}", twin.id()))).ok();
        match twins.iter().enumerate().find_map(|(index, twin)| Some((index, error(twin)?))) {
            Some(found) => break found,
            None => assert!(began.elapsed() < Duration::from_secs(20), "nobody was refused"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    twins[loser].wait().expect("it ends");
    let [first, second] = twins;
    let one = if loser == 0 { second } else { first };
    assert!(text.contains("says that it is rank 1") && text.contains("is rank 1 already"), "{text}");
    let text = error_of(folder.path(), &mut start(1, 2, &[]));
    assert!(text.contains("job has 2 ranks, but it has 3"), "{text}");
    let text = error_of(folder.path(), &mut start(2, 3, &[("WARPWEFT_SECRET", &"ab".repeat(32))]));
    assert!(text.contains("does not know the secret"), "{text}");
    let two = start(2, 3, &[]);
    (0..3).for_each(|rank| drop(heard(folder.path(), &format!("ready-{rank}"))));
    say(folder.path(), "end", "");
    for mut rank in [zero, one, two] {
        assert!(rank.wait().expect("it ends").success());
    }
}

#[test]
fn strangers_at_the_port_do_not_disturb_the_job() {
    let (folder, port) = (folder(), port());
    let mut zero = torchrun("tcp", folder.path(), 0, 2, port, &[]);
    let call = || {
        let start = Instant::now();
        loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => return stream,
                Err(_) => assert!(start.elapsed() < Duration::from_secs(20), "the rendezvous never opened"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let half_open = call();
    for bytes in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0xFF; 4096], b"WARPWEFT\x63\0\0\0\x01\0\0\0", b""] {
        let mut stranger = call();
        // It may hang up before all has been said.
        let _ = stranger.write_all(bytes);
        let mut answer = Vec::new();
        stranger.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
        let _ = stranger.shutdown(std::net::Shutdown::Write);
        // Hung up on, at most with the version that would have been right; unread bytes make that a reset.
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"WARPWEFT\x01\0\0\0"), "{answer:?}");
    }
    let mut one = torchrun("tcp", folder.path(), 1, 2, port, &[]);
    (0..2).for_each(|rank| assert!(heard(folder.path(), &format!("ready-{rank}")).starts_with("tcp")));
    say(folder.path(), "end", "");
    assert!(zero.wait().expect("it ends").success() && one.wait().expect("it ends").success());
    drop(half_open);
}

#[test]
fn a_number_of_ranks_that_no_job_has_is_refused_before_anything_is_allocated() {
    for world in [0, bootstrap::MOST_RANKS + 1, usize::MAX] {
        let text = bootstrap::threads(world).err().expect("refused").to_string();
        assert!(text.contains(&format!("{world} ranks")) && text.contains("1 to 4096"), "{text}");
        assert!(Launcher::new(world).start(|_| unreachable!("nothing is started")).is_err());
    }
}

#[test]
fn an_occupied_port_and_an_incomplete_environment_are_named() {
    let folder = folder();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let text = error_of(folder.path(), &mut torchrun("auto", folder.path(), 0, 2, port, &[]));
    assert!(text.contains(&format!("127.0.0.1:{port}")) && text.contains("MASTER_PORT"), "{text}");
    let mut command = rank("auto", folder.path());
    let mut child = command.env("RANK", "0").env("WORLD_SIZE", "2").spawn().expect("started");
    let text = error_of(folder.path(), &mut child);
    assert!(text.contains("LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not"), "{text}");
}
