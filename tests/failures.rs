//! A rank that dies in the middle of a run: the others end soon, one sentence names it, nothing is left, the run goes on from
//! its checkpoint.
#![forbid(unsafe_code)]

mod command;

use std::fs;
use std::path::Path;
use std::process::{Child, Command};
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
