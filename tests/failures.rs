//! A rank that dies in the middle of a run: the others end soon, one sentence names it, nothing is left, the run goes on from
//! its checkpoint.
#![forbid(unsafe_code)]

mod command;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command};
use std::thread;
use std::time::{Duration, Instant};

use command::{finish, losses, succeeds, train, warpweft};

/// The process of a rank of the job that `parent` started.
fn process_of(parent: u32, rank: usize) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let wanted = format!("WARPWEFT_RANK={rank}");
    children.split_whitespace().filter_map(|child| child.parse().ok()).find(|child: &u32| {
        let environment = fs::read(format!("/proc/{child}/environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|variable| variable == wanted.as_bytes())
    })
}

fn wait_until(what: &str, mut come: impl FnMut() -> bool) {
    let started = Instant::now();
    while !come() {
        assert!(started.elapsed() < Duration::from_secs(120), "{what} did not come");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until the run is past its first checkpoint.
fn well_under_way(out: &Path) {
    wait_until("a checkpoint and ten more steps", || {
        let saved = out.join("checkpoints/latest").is_file();
        saved && fs::read_to_string(out.join("log.jsonl")).is_ok_and(|log| log.lines().count() > 30)
    });
}

fn signal(name: &str, process: u32) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(process.to_string()).status();
    assert!(status.expect("`kill` runs").success(), "process {process} cannot be sent {name}");
}

/// Whether a process has ended (or is only waiting to be reaped).
fn ended(process: u32) -> bool {
    match fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
        Err(_) => true,
    }
}

/// What lies in /dev/shm under our name.
fn shared_memory() -> Vec<String> {
    let entries = fs::read_dir("/dev/shm").map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
    let names = entries.into_iter().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("warpweft") || name.starts_with("ww")).collect()
}

/// Starts three ranks, ends one in the middle by `name`, and says how long all others took to end.
fn one_rank_ends(out: &Path, transport: &str, victim: usize) -> Result<(), String> {
    let flags = ["--ranks", "3", "--transport", transport, "--steps", "1000000", "--save-every", "20"];
    let mut job: Child = train(out, &flags).spawn().expect("the command starts");
    let parent = job.id();
    well_under_way(out);
    let ranks: Vec<u32> = (0..3).filter_map(|rank| process_of(parent, rank)).collect();
    assert_eq!(ranks.len(), 3, "three ranks run");
    signal("KILL", ranks[victim]);
    let started = Instant::now();
    wait_until("the end of all ranks", || ranks.iter().all(|&rank| ended(rank)));
    wait_until("the end of the command", || job.try_wait().expect("its status can be asked for").is_some());
    let took = started.elapsed();
    let finished = finish(job);
    assert!(took < Duration::from_secs(2), "{transport}: the others took {took:?}");
    assert_eq!(finished.status, Some(1), "{}", finished.stderr);
    let said = finished.stderr.trim();
    let about = said.lines().filter(|line| line.contains("warpweft: ")).collect::<Vec<_>>();
    let [sentence] = about[..] else { return Err(format!("{transport}: not one sentence:\n{said}")) };
    let named = format!("rank {victim} (process {})", ranks[victim]);
    if !sentence.contains(&named) || !sentence.contains("signal 9") {
        return Err(format!("{transport}: `{named}` is not in: {sentence}"));
    }
    Ok(())
}

#[test]
fn a_killed_rank_ends_the_job_and_the_checkpoint_resumes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (transport, victim) in [("shm", 1), ("shm", 0), ("tcp", 2)] {
        let out = folder.path().join(format!("{transport}-{victim}"));
        if let Err(wrong) = one_rank_ends(&out, transport, victim) {
            panic!("{wrong}");
        }
        assert_eq!(shared_memory(), [] as [String; 0], "left in /dev/shm after {transport}");
        let reached = losses(&out).len();
        let more = (reached + 25).to_string();
        let mut resume = warpweft(&["train", "--steps", &more, "--resume"]);
        succeeds(resume.arg(&out));
        let after = losses(&out);
        assert!(after.len() > reached, "{transport}: nothing was trained after the resumption");
        assert!(after.iter().all(|loss| loss.is_finite()));
    }
}

/// What the command prints, once its ranks are connected and measure.
fn measuring(job: &mut Child) -> BufReader<ChildStdout> {
    let mut printed = BufReader::new(job.stdout.take().expect("it is piped"));
    let mut line = String::new();
    while !line.contains("(GB/s)") {
        line.clear();
        assert!(printed.read_line(&mut line).expect("a pipe can be read") > 0, "the table has no header");
    }
    printed
}

/// The processes of all ranks of a running job.
fn processes(job: &Child, world: usize) -> Vec<u32> {
    let ranks: Vec<u32> = (0..world).filter_map(|rank| process_of(job.id(), rank)).collect();
    assert_eq!(ranks.len(), world, "all ranks run");
    ranks
}

#[test]
fn a_stopped_rank_is_named_at_the_deadline_and_does_not_stay() {
    for victim in [0, 1] {
        let flags = "perf all_reduce -b 1M -e 1M -n 1000000000 -T 2 --ranks 3";
        let mut job = warpweft(&flags.split(' ').collect::<Vec<_>>()).spawn().expect("the command starts");
        let printed = measuring(&mut job);
        let ranks = processes(&job, 3);
        signal("STOP", ranks[victim]);
        let finished = finish(job);
        drop(printed);
        assert_eq!(finished.status, Some(1), "{}", finished.stderr);
        let sentences: Vec<&str> = finished.stderr.lines().collect();
        assert_eq!(sentences.len(), 1, "not one sentence: {}", finished.stderr);
        assert!(sentences[0].contains(&format!("rank {victim} (")), "{}", sentences[0]);
        assert!(ranks.iter().all(|&rank| ended(rank)), "a rank is left");
    }
}

/// Ctrl-Z and `fg`.
#[test]
fn a_job_that_is_stopped_as_a_whole_goes_on() {
    let flags = "perf all_reduce -b 64K -e 64K -n 100000 -T 3 --ranks 2";
    let mut job = warpweft(&flags.split(' ').collect::<Vec<_>>()).spawn().expect("the command starts");
    let mut printed = measuring(&mut job);
    let all: Vec<u32> = processes(&job, 2).into_iter().chain([job.id()]).collect();
    all.iter().for_each(|&process| signal("STOP", process));
    // Longer than a rank waits for another, but the time in which it does not run does not count.
    thread::sleep(Duration::from_secs(5));
    all.iter().for_each(|&process| signal("CONT", process));
    let mut rest = String::new();
    printed.read_to_string(&mut rest).expect("a pipe can be read");
    let finished = finish(job);
    assert_eq!(finished.status, Some(0), "{}", finished.stderr);
    assert!(rest.contains("0 OK"), "{rest}");
}

/// What a user should hear of although it works.
#[test]
fn a_stranger_at_the_port_is_reported_by_rank_0() {
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        free.local_addr().expect("it is bound").port()
    };
    let start = |rank: &str| {
        let mut command = warpweft(&["perf", "broadcast", "-b", "8", "-e", "8", "-n", "1", "-T", "60"]);
        command.envs([("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
        command.env("MASTER_PORT", port.to_string()).env("WARPWEFT_SECRET", "7".repeat(64));
        command.spawn().expect("the command starts")
    };
    let zero = start("0");
    let mut stranger = None;
    wait_until("an open port", || {
        stranger = std::net::TcpStream::connect(("127.0.0.1", port)).ok();
        stranger.is_some()
    });
    let mut stranger = stranger.expect("it is connected");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("it is sent");
    // Hung up on: by then the notice is made.
    let _ = stranger.read_to_end(&mut Vec::new());
    let one = finish(start("1"));
    let zero = finish(zero);
    assert_eq!((zero.status, one.status), (Some(0), Some(0)), "{}\n{}", zero.stderr, one.stderr);
    assert!(zero.stderr.contains("turned away") && zero.stderr.contains("GET / HT"), "{}", zero.stderr);
    assert_eq!(one.stderr, "");
}

#[test]
fn a_command_that_is_killed_takes_its_ranks_with_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().join("run");
    let flags = ["--ranks", "2", "--transport", "shm", "--steps", "1000000", "--save-every", "20"];
    let mut job = train(&out, &flags).spawn().expect("the command starts");
    well_under_way(&out);
    let ranks: Vec<u32> = (0..2).filter_map(|rank| process_of(job.id(), rank)).collect();
    assert_eq!(ranks.len(), 2);
    job.kill().expect("it can be killed");
    job.wait().expect("it ends");
    let started = Instant::now();
    wait_until("the end of its ranks", || ranks.iter().all(|&rank| ended(rank)));
    assert!(started.elapsed() < Duration::from_secs(2), "they took {:?}", started.elapsed());
}
