//! `warpweft schedule`: its numbers, its picture, its refusals.
#![forbid(unsafe_code)]

mod command;

use command::{refused, succeeds, warpweft};

fn schedule(line: &str) -> std::process::Command {
    warpweft(&format!("schedule {line}").split(' ').collect::<Vec<_>>())
}

fn json(line: &str) -> serde_json::Value {
    let said = succeeds(&mut schedule(&format!("{line} --json"))).stdout;
    assert!(said.starts_with("{\"cost\":") && said.trim_end().lines().count() == 1, "{said}");
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{said}: {error}"))
}

#[test]
fn published_rates_come_through_the_command() {
    let times = "--p 8 --m 32 --f 29.802 --b 29.428 --w 19.530 --comm 0.577";
    for (name, rate) in [("1f1b", "0.1898"), ("zb-h1", "0.1045"), ("zb-h2", "0.0559")] {
        let said = json(&format!("{name} {times}"));
        let measured = said["bubble_rate"].as_f64().expect("a rate");
        assert_eq!(format!("{measured:.4}"), rate, "{name}");
    }
    let said = json("1f1b --p 4 --m 8");
    assert_eq!(said["peak_activations"], serde_json::json!([4, 3, 2, 1]));
    assert_eq!(said["cost"].as_f64(), Some(33.0));
    // Two chunks a rank, in whole stages: the memory of 1F1B.
    let said = json("zb-v --p 4 --m 8");
    assert_eq!(said["peak_activations"], serde_json::json!([4, 4, 4, 4]));
    assert_eq!(said["bubble_rate"].as_f64(), Some(0.0));
    assert_eq!(json("dualpipe --p 4 --m 8")["parameter_copies"], 2);
}

#[test]
fn ranks_that_run_a_schedule_do_what_it_says() {
    let said = json("zb-h1 --p 3 --m 4 --measure 2");
    let measured = &said["measured"];
    assert_eq!(measured["peak_chunk_activations"], said["peak_chunk_activations"]);
    assert_eq!(measured["sends"], said["sends"]);
    // Waits are never shorter than they should be, and nothing can start before its input is there.
    assert!(measured["cost"].as_f64() >= said["cost"].as_f64(), "{said}");
    let said = succeeds(&mut schedule("1f1b --p 2 --m 3 --measure 1")).stdout;
    assert!(
        said.contains("measured on 2 ranks: cost ") && said.contains("activations as counted, messages as counted")
    );
    refused(&mut schedule("1f1b --p 2 --m 2 --measure 0"), &["--measure", "above 0"]);
}

#[test]
fn a_timeline_has_a_line_a_rank_and_a_picture() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("timeline.svg");
    let said = succeeds(schedule("zb-h1 --p 3 --m 4 --svg").arg(&file)).stdout;
    let ranks: Vec<&str> = said.lines().filter(|line| line.starts_with("rank ")).collect();
    assert_eq!(ranks.len(), 3, "{said}");
    assert!(ranks[0].starts_with("rank 0  F0 F1 F2"), "{said}");
    assert!(said.contains("proof: 36 operations"), "{said}");
    let picture = std::fs::read_to_string(&file).expect("the picture is there");
    assert!(picture.starts_with("<svg") && picture.matches("<title>").count() == 36, "{picture}");
}

#[test]
fn what_cannot_be_is_refused_in_one_sentence() {
    for (line, words) in [
        ("zb-h3 --p 2 --m 2", &["zb-h3", "zb-h1"][..]),
        ("1f1b --p 0 --m 2", &["--p", "1 or more"]),
        ("1f1b --p 2 --m 0", &["--m", "1 or more"]),
        ("1f1b --p 2 --m 2 --v 2", &["v 2", "interleaved"]),
        ("dualpipe --p 3 --m 6", &["3", "use 2 or 4"]),
        ("1f1b --p 2 --m 2 --f -1", &["-1", "--f"]),
        ("1f1b --p 2 --m 2 --comm NaN", &["NaN", "--comm"]),
        ("gpipe --p 2 --m 8 --memory 4", &["8", "4", "allow 8"]),
        ("auto --p 2 --m 8 --memory 0", &["limit is 0", "allow 1"]),
        ("1f1b --p 100000 --m 100000", &["100000", "fewer micro-batches"]),
    ] {
        refused(&mut schedule(line), words);
    }
}
