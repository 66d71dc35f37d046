//! What a run writes of itself, read back.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use warpweft_trainer::parallel::traffic::Traffic;
use warpweft_trainer::report::events::{Event, SessionLog, Summary, Value, What, frame, read_frames};
use warpweft_trainer::report::trace::{Span, Trace, Track, decode, encode, write_chrome};
use warpweft_trainer::report::{
    Progress, ReportError, Reporter, Resumed, StepRecord, bytes, grouped, memory_table, prepare, prepare_file,
    step_line,
};

fn record(step: u64) -> StepRecord {
    StepRecord {
        step,
        loss: Some(5.545 - step as f64 / 100.0),
        grad_norm: Some(1.25),
        lr: Some(1e-3),
        tokens: 1536 * step,
        tokens_per_s: Some(19_312.4),
        mfu: Some(0.431),
        step_ms: Some(80.0),
        forward_ms: Some(20.0),
        backward_ms: Some(45.0),
        comm_ms: Some(10.0),
        exposed_comm_ms: Some(2.5),
        waiting_ms: Some(1.5),
        optimizer_ms: Some(5.0),
        peak_bytes: Some(47_396_659),
        sent_bytes: Some(Traffic { data: 4096, ..Traffic::default() }),
        val_loss: step.is_multiple_of(10).then_some(4.5),
        ..StepRecord::default()
    }
}

/// A sink that a test can look into.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn report(out: &Path, steps: std::ops::RangeInclusive<u64>, resumed: Option<u64>) -> Vec<PathBuf> {
    report_from(out, steps, resumed.map(|step| Resumed { step, run: out }))
}

fn report_from(out: &Path, steps: std::ops::RangeInclusive<u64>, resumed: Option<Resumed<'_>>) -> Vec<PathBuf> {
    prepare(out).unwrap();
    let mut reporter = Reporter::open(out, 20, resumed, Progress::silent()).unwrap();
    steps.for_each(|step| reporter.step(&record(step)).unwrap());
    reporter.finish([]).unwrap()
}

fn log(out: &Path) -> Vec<serde_json::Map<String, serde_json::Value>> {
    let text = fs::read_to_string(out.join("log.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn steps(out: &Path) -> Vec<u64> {
    log(out).iter().map(|line| line["step"].as_u64().unwrap()).collect()
}

#[test]
fn the_log_has_exactly_the_keys_agreed() {
    let out = tempfile::tempdir().unwrap();
    report(out.path(), 9..=10, None);
    let lines = log(out.path());
    let mut keys: Vec<_> = "step loss grad_norm lr tokens tokens_per_s mfu step_ms forward_ms backward_ms comm_ms \
                            exposed_comm_ms waiting_ms optimizer_ms peak_bytes sent_bytes"
        .split_whitespace()
        .collect();
    let text = fs::read_to_string(out.path().join("log.jsonl")).unwrap();
    let places: Vec<_> = keys.iter().map(|key| text.find(&format!("\"{key}\":")).unwrap()).collect();
    assert!(places.is_sorted(), "the keys stand in the order of the documentation");
    keys.sort();
    assert_eq!(lines[0].keys().collect::<Vec<_>>(), keys);
    keys.push("val_loss");
    keys.sort();
    assert_eq!(lines[1].keys().collect::<Vec<_>>(), keys);
    assert_eq!(lines[1]["val_loss"], 4.5);
    assert_eq!((&lines[0]["step"], &lines[0]["tokens"]), (&9.into(), &13_824.into()));
}

#[test]
fn what_is_not_known_or_not_finite_is_null() {
    let out = tempfile::tempdir().unwrap();
    prepare(out.path()).unwrap();
    let mut reporter = Reporter::open(out.path(), 1, None, Progress::silent()).unwrap();
    reporter
        .step(&StepRecord { step: 1, loss: Some(f64::NAN), lr: Some(f64::INFINITY), ..Default::default() })
        .unwrap();
    let line = &log(out.path())[0];
    for key in ["loss", "lr", "mfu", "grad_norm", "peak_bytes"] {
        assert!(line[key].is_null(), "{key}");
    }
    assert!(!line.contains_key("val_loss"));
}

#[test]
fn numbers_of_the_log_are_read_back_bit_by_bit() {
    let out = tempfile::tempdir().unwrap();
    prepare(out.path()).unwrap();
    let mut reporter = Reporter::open(out.path(), 3, None, Progress::silent()).unwrap();
    let numbers = [5.545_177_444_479_562_f64, f64::MIN_POSITIVE, 0.1 + 0.2];
    for (step, loss) in (1..).zip(numbers) {
        reporter.step(&StepRecord { step, loss: Some(loss), ..Default::default() }).unwrap();
    }
    let read: Vec<_> = log(out.path()).iter().map(|line| line["loss"].as_f64().unwrap().to_bits()).collect();
    assert_eq!(read, numbers.map(f64::to_bits));
}

#[test]
fn each_line_is_in_the_file_before_the_next_step() {
    let out = tempfile::tempdir().unwrap();
    prepare(out.path()).unwrap();
    let mut reporter = Reporter::open(out.path(), 20, None, Progress::silent()).unwrap();
    for step in 1..=5 {
        reporter.step(&record(step)).unwrap();
        assert_eq!(steps(out.path()), (1..=step).collect::<Vec<_>>());
    }
}

#[test]
fn a_resumed_run_goes_on_in_the_log() {
    let out = tempfile::tempdir().unwrap();
    report(out.path(), 1..=12, None);
    // Killed in the middle of a line, and in the middle of a step after the last checkpoint.
    let mut file = File::options().append(true).open(out.path().join("log.jsonl")).unwrap();
    file.write_all(b"{\"step\":13,\"lo").unwrap();
    report(out.path(), 11..=20, Some(10));
    assert_eq!(steps(out.path()), (1..=20).collect::<Vec<_>>());
    // Without a log it starts one.
    let other = tempfile::tempdir().unwrap();
    report(&other.path().join("a/b"), 11..=20, Some(10));
    assert_eq!(steps(&other.path().join("a/b")), (11..=20).collect::<Vec<_>>());
}

#[test]
fn a_run_that_goes_on_elsewhere_takes_its_log_along_and_mixes_with_no_other() {
    let (run, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    report(run.path(), 1..=12, None);
    // The new folder holds another run, of which nothing may stay among this one's.
    report(out.path(), 3..=8, None);
    fs::create_dir(out.path().join("checkpoints")).unwrap();
    report_from(out.path(), 11..=20, Some(Resumed { step: 10, run: run.path() }));
    assert_eq!(steps(out.path()), (1..=20).collect::<Vec<_>>());
    assert!(out.path().join("checkpoints.before").exists() && !out.path().join("checkpoints").exists());
    assert_eq!(fs::read_dir(out.path().join("tensorboard")).unwrap().count(), 1);
    assert_eq!(steps(run.path()), (1..=12).collect::<Vec<_>>(), "what it came from stays");
}

#[test]
fn a_log_that_is_none_is_not_thrown_away() {
    let out = tempfile::tempdir().unwrap();
    fs::write(out.path().join("log.jsonl"), "my notes\nof the day\n").unwrap();
    let error =
        Reporter::open(out.path(), 20, Some(Resumed { step: 10, run: out.path() }), Progress::silent()).err().unwrap();
    assert!(error.to_string().contains("log.jsonl, line 1: "), "{error}");
    assert_eq!(fs::read_to_string(out.path().join("log.jsonl")).unwrap(), "my notes\nof the day\n");
}

#[test]
fn a_new_run_replaces_log_and_events_and_sets_checkpoints_aside() {
    let out = tempfile::tempdir().unwrap();
    report(out.path(), 1..=5, None);
    let marker = out.path().join("checkpoints/latest");
    fs::create_dir(out.path().join("checkpoints")).unwrap();
    fs::write(&marker, "first").unwrap();
    fs::write(out.path().join("tensorboard/notes.txt"), "mine").unwrap();
    let sink = Shared::default();
    let mut reporter = Reporter::open(out.path(), 20, None, Progress::lines(sink.clone())).unwrap();
    assert!(
        sink.text().contains("checkpoints of an earlier run are in ") && sink.text().contains("checkpoints.before")
    );
    (1..=2).for_each(|step| reporter.step(&record(step)).unwrap());
    reporter.finish([]).unwrap();
    assert_eq!(steps(out.path()), [1, 2]);
    assert!(!marker.exists());
    assert_eq!(fs::read_to_string(out.path().join("checkpoints.before/latest")).unwrap(), "first");
    let events: Vec<_> = fs::read_dir(out.path().join("tensorboard")).unwrap().collect();
    assert_eq!(events.len(), 2, "one of this run, and the note");
}

#[test]
fn a_folder_that_cannot_be_written_is_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for out in [file.clone(), file.join("below"), PathBuf::from("/proc/warpweft")] {
        let text = prepare(&out).unwrap_err().to_string();
        assert!(text.contains("output folder") && text.contains(out.to_str().unwrap()), "{text}");
    }
    // The superuser may write anywhere; everyone else not here.
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o500)).unwrap();
    let may_write_anyway = File::create(closed.join("probe")).is_ok();
    assert_eq!(prepare(&closed).is_ok(), may_write_anyway);
    let open = folder.path().join("a/b/c");
    prepare(&open).unwrap();
    assert_eq!(fs::read_dir(&open).unwrap().count(), 0, "the probe is gone");
}

#[test]
fn a_trace_that_cannot_be_written_is_named_early() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    prepare_file(&path).unwrap();
    assert!(!path.exists());
    fs::write(&path, "earlier").unwrap();
    prepare_file(&path).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "earlier");
    for path in [folder.path().to_path_buf(), folder.path().join("none/trace.json")] {
        let text = prepare_file(&path).unwrap_err().to_string();
        assert!(text.contains(&format!("cannot write {}: ", path.display())), "{text}");
    }
}

#[test]
fn a_full_disk_is_named() {
    let out = tempfile::tempdir().unwrap();
    // A trace that leads to a device that is always full.
    std::os::unix::fs::symlink("/dev/full", out.path().join("trace.json")).unwrap();
    let spans = vec![vec![span(Track::Compute, "forward", 0, 5)]];
    let error = write_chrome(&out.path().join("trace.json"), &spans).unwrap_err().to_string();
    assert!(error.contains("cannot write") && error.contains("trace.json: No space left"), "{error}");
}

fn events(path: &Path) -> Vec<Event> {
    let (events, damaged) = read_frames(&fs::read(path).unwrap());
    assert_eq!(damaged, None);
    events
}

#[test]
fn events_are_read_back() {
    let out = tempfile::tempdir().unwrap();
    let files = report(out.path(), 1..=10, None);
    let events = events(&files[1]);
    assert_eq!(events.len(), 11);
    assert_eq!(events[0].what, Some(What::FileVersion("brain.Event:2".into())));
    let Some(What::Summary(summary)) = &events[10].what else { panic!("{:?}", events[10]) };
    let value = |tag: &str| summary.value.iter().find(|value| value.tag == tag).map(|value| value.simple_value);
    assert_eq!(events[10].step, 10);
    assert_eq!(value("loss/train"), Some(5.445));
    assert_eq!(value("loss/held_out"), Some(4.5));
    assert_eq!((value("time/exposed_comm_ms"), value("time/waiting_ms")), (Some(2.5), Some(1.5)));
    assert_eq!(value("memory/peak_bytes"), Some(47_396_659_f64 as f32));
    assert!(events.windows(2).all(|pair| pair[0].wall_time <= pair[1].wall_time));
}

#[test]
fn a_resumed_runs_events_replace_what_comes_again() {
    let out = tempfile::tempdir().unwrap();
    let files = report(out.path(), 11..=12, Some(10));
    let events = events(&files[1]);
    assert_eq!((events[1].step, &events[1].what), (11, &Some(What::SessionLog(SessionLog { status: 1 }))));
}

#[test]
fn frames_are_those_of_tensorboards_own_writer() {
    // `RecordWriter(f).write(event.SerializeToString())` of the Python package tensorboard 2.21.0.
    let version = Event { what: Some(What::FileVersion("brain.Event:2".into())), ..Event::default() };
    let mut wants = vec![15, 0, 0, 0, 0, 0, 0, 0, 109, 83, 43, 9];
    wants.extend(b"\x1a\x0dbrain.Event:2");
    wants.extend([252, 152, 81, 41]);
    assert_eq!(frame(&version), wants);
    let value = vec![Value { tag: "loss/train".into(), simple_value: 2.5 }];
    let loss = Event { wall_time: 1.5, step: 7, what: Some(What::Summary(Summary { value })) };
    let mut wants = vec![32, 0, 0, 0, 0, 0, 0, 0, 41, 237, 169, 80];
    wants.extend([9, 0, 0, 0, 0, 0, 0, 248, 63, 16, 7, 42, 19, 10, 17, 10, 10]);
    wants.extend(b"loss/train");
    wants.extend([21, 0, 0, 32, 64, 44, 5, 102, 145]);
    assert_eq!(frame(&loss), wants);
}

#[test]
fn damaged_events_are_noticed() {
    let out = tempfile::tempdir().unwrap();
    let files = report(out.path(), 1..=3, None);
    let good = fs::read(&files[1]).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        let (events, damaged) = read_frames(&bad);
        assert!(damaged.is_some_and(|from| from <= at), "byte {at}");
        assert!(events.len() < 4);
        let (events, damaged) = read_frames(&good[..at]);
        assert!(events.len() < 4 && (damaged.is_some() || at == 0 || !events.is_empty()));
    }
}

fn span(track: Track, name: &'static str, start_ns: u64, duration_ns: u64) -> Span {
    Span { track, name: name.into(), start_ns, duration_ns }
}

fn chrome(ranks: &[Vec<Span>]) -> Vec<serde_json::Value> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    write_chrome(&path, ranks).unwrap();
    let value: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    value["traceEvents"].as_array().unwrap().clone()
}

#[test]
fn the_trace_shows_all_ranks_side_by_side() {
    let ranks = vec![
        vec![
            span(Track::Compute, "backward \"h.1\"", 5_000, 3_500),
            span(Track::Communication, "bucket 0", 6_000, 1_000),
        ],
        vec![span(Track::Compute, "backward", 4_000, 2_000)],
    ];
    let events = chrome(&ranks);
    let of = |ph: &str| events.iter().filter(|event| event["ph"] == ph).cloned().collect::<Vec<_>>();
    let spans = of("X");
    assert_eq!(spans.len(), 3);
    let (first, second) = (&spans[0], &spans[1]);
    assert_eq!(
        (&first["pid"], &first["tid"], &first["ts"], &first["dur"]),
        (&0.into(), &(Track::Compute as u64).into(), &1.0.into(), &3.5.into())
    );
    assert_eq!(first["name"], "backward \"h.1\"");
    let communication = Track::Communication as u64;
    assert_eq!((&second["tid"], &second["ts"], &second["dur"]), (&communication.into(), &2.0.into(), &1.0.into()));
    assert_eq!((&spans[2]["pid"], &spans[2]["ts"]), (&1.into(), &0.0.into()));
    let threads: Vec<_> = of("M").into_iter().filter(|event| event["name"] == "thread_name").collect();
    assert_eq!(threads.len(), 2 * Track::ALL.len());
    let named = &threads[Track::Communication as usize];
    assert_eq!((&named["args"]["name"], &named["tid"]), (&"communication".into(), &communication.into()));
    assert_eq!(chrome(&[]), Vec::<serde_json::Value>::new());
    assert_eq!(chrome(&[vec![]]).len(), 2 + Track::ALL.len());
}

#[test]
fn spans_travel_between_ranks() {
    let trace = Trace::new();
    let before = Instant::now();
    assert_eq!(trace.time(Track::Storage, "read", || 7), 7);
    trace.add(Track::Compute, format!("layer {}", 3), before, before + Duration::from_micros(1500));
    let spans = trace.take();
    assert!(trace.take().is_empty());
    assert_eq!(decode(2, &encode(&spans)).unwrap(), spans);
    assert_eq!(spans[1].duration_ns, 1_500_000);
    assert!(spans[0].start_ns >= spans[1].start_ns);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    assert!(now - spans[1].start_ns < 60_000_000_000, "the times are those of the clock");
    let error = decode(2, b"nonsense").unwrap_err();
    assert!(matches!(error, ReportError::Spans { rank: 2, .. }), "{error}");
}

#[test]
fn the_lines_say_what_is_wanted_and_the_last_names_the_files() {
    let out = tempfile::tempdir().unwrap();
    let sink = Shared::default();
    prepare(out.path()).unwrap();
    let mut reporter = Reporter::open(out.path(), 500, None, Progress::lines(sink.clone())).unwrap();
    reporter.note("two ranks").unwrap();
    reporter.step(&record(1)).unwrap();
    reporter.step(&record(100)).unwrap();
    let files = reporter.finish([out.path().join("checkpoints/step-000500")]).unwrap();
    let text = sink.text();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[0], "two ranks");
    assert_eq!(
        lines[1],
        "step   1/500  loss 5.5350  norm 1.250  lr 1.00e-3  19,312 tokens/s  mfu 43.1 %  \
         exposed comm 2.5 ms (3 %)  memory 45.2 MiB  waiting 1.5 ms (2 %)"
    );
    assert!(lines[2].ends_with("memory 45.2 MiB  waiting 1.5 ms (2 %)  held-out loss 4.5000"));
    assert!(lines[3].starts_with("wrote ") && lines[3].contains("step-000500"));
    for file in &files {
        assert!(lines[3].contains(file.to_str().unwrap()));
    }
    assert!(files[..2].iter().all(|file| file.is_file()));
}

#[test]
fn a_line_of_unknowns_is_dashes() {
    let line = step_line(&StepRecord { step: 3, ..Default::default() }, 10);
    assert_eq!(line, "step  3/10  loss -  norm -  lr -  - tokens/s  mfu -  exposed comm -  memory -");
    // Where there are no other stages nobody waits for them.
    let line = step_line(&StepRecord { step: 3, waiting_ms: Some(0.0), ..Default::default() }, 10);
    assert!(line.ends_with("memory -"), "{line}");
}

#[test]
fn a_sink_that_fails_is_an_error() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let out = tempfile::tempdir().unwrap();
    prepare(out.path()).unwrap();
    let mut reporter = Reporter::open(out.path(), 500, None, Progress::lines(Closed)).unwrap();
    let error = reporter.step(&record(1)).unwrap_err();
    assert!(matches!(error, ReportError::Progress { .. }), "{error}");
    assert_eq!(steps(out.path()), [1], "the log has it all the same");
}

#[test]
fn a_bar_can_be_drawn_anywhere() {
    let out = tempfile::tempdir().unwrap();
    prepare(out.path()).unwrap();
    let bar = Progress::bar(indicatif::ProgressDrawTarget::hidden());
    let mut reporter = Reporter::open(out.path(), 20, None, bar).unwrap();
    (1..=20).for_each(|step| reporter.step(&record(step)).unwrap());
    reporter.note("a sample").unwrap();
    reporter.finish([]).unwrap();
    assert_eq!(steps(out.path()).len(), 20);
}

#[test]
fn sizes_are_readable() {
    let shown = [0, 1023, 1024, 1536, 1_048_525, 1_048_576, 47_396_659, u64::MAX].map(bytes);
    assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "1.0 MiB", "45.2 MiB", "16.0 EiB"]);
    assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    let table = memory_table(&[("parameters", 3 << 20), ("gradients", 1 << 20)]);
    assert_eq!(table, "  parameters     3.0 MiB\n  gradients      1.0 MiB\n  total          4.0 MiB");
}
