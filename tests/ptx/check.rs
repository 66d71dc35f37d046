//! `ptx check`.

use serde_json::Value;

use super::command::{refused, run, succeeds, warpweft};
use super::{Folder, kernels};

#[test]
fn forms_that_do_not_run_are_notes() {
    let finished = succeeds(&mut warpweft(&["ptx", "check", &kernels("hopper.ptx")]));
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", finished.stdout);
    assert!(lines[0].contains("hopper.ptx:18: note: ") && lines[0].contains("barrier.cluster.arrive"), "{}", lines[0]);
    assert!(lines[1].contains("hopper.ptx:19: note: ") && lines[1].contains("barrier.cluster.wait"), "{}", lines[1]);
    assert!(lines[2].ends_with(".version 8.0, .target sm_90: plain, clustered"), "{}", lines[2]);
    let finished = succeeds(&mut warpweft(&["ptx", "check", &kernels("hopper.ptx"), "--json"]));
    let value: Value = serde_json::from_str(&finished.stdout).expect("one JSON object");
    assert_eq!(value["notes"].as_array().map(Vec::len), Some(2));

    let quiet = succeeds(&mut warpweft(&["ptx", "check", &kernels("vectors.ptx")]));
    assert_eq!(quiet.stdout.lines().count(), 1, "{}", quiet.stdout);
}

#[test]
fn a_launch_refuses_such_a_form_by_name_and_runs_the_rest() {
    let clustered = ["ptx", "run", &kernels("hopper.ptx"), "--device", "sm_90", "--kernel", "clustered"];
    refused(&mut warpweft(&clustered), &["barrier.cluster.arrive", "line 18", "clustered"]);
    let plain = ["ptx", "run", &kernels("hopper.ptx"), "--device", "sm_90", "--kernel", "plain", "--arg", "buf:4"];
    succeeds(&mut warpweft(&plain));
}

#[test]
fn wrong_ptx_is_told_with_line_and_column() {
    let folder = Folder::new();
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n";
    for (body, place, words) in [
        (".visible .entry k()\n{\n    add.s31 %r1, 1, 2;\n    ret;\n}\n", ":6:", "add.s31"),
        (".visible .entry k()\n{\n    .reg .b32 %r<2>;\n    add.s32 %r1, %r7, 2;\n}\n", ":7:18: ", "%r7"),
        (".visible .entry k(\n", ":5:1: ", ""),
    ] {
        let file = folder.write("wrong.ptx", format!("{head}{body}").as_bytes());
        for command in [vec!["ptx", "check", &file], vec!["ptx", "run", &file]] {
            let finished = run(&mut warpweft(&command));
            assert_eq!(finished.status, Some(2), "{body}");
            let said = &finished.stderr;
            assert!(
                said.contains(place) && said.contains("error: ") && said.contains(words),
                "{place} {words}: {said}"
            );
        }
    }
    refused(&mut warpweft(&["ptx", "check", "/no/such.ptx"]), &["/no/such.ptx", "No such file"]);
}
