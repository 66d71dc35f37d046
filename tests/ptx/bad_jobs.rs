//! Exit status 2: every wrong job is one sentence that names the place.

use serde_json::{Value, json};

use super::command::{refused, run, warpweft};
use super::{Folder, kernels, saxpy_job};

#[test]
fn wrong_jobs() {
    let folder = Folder::new();
    let good = saxpy_job(&folder);
    let param = "/launches/0/params/0";
    let struct_bytes = format!("{param}/bytes");
    let pointers = format!("{param}/pointers");
    let cases: Vec<(&str, Value, &[&str])> = vec![
        ("/device", json!("sm_70"), &["device", "sm_70", "sm_80"]),
        ("/module", json!("none.ptx"), &["none.ptx", "No such file"]),
        ("/schedule", json!("fast"), &["schedule", "fast", "rr, reverse, random"]),
        ("/async", json!(1), &["job.json", "line 1", "string"]),
        ("/check", json!(["memcheck", "racechek"]), &["check", "racechek", "racecheck"]),
        ("/check", json!({"memcheck": true}), &["check", "array"]),
        ("/seed", json!(-1), &["-1", "u64"]),
        ("/limit", json!(0), &["limit", "0"]),
        ("/numerics", json!("fp32"), &["numerics", "fp32", "native"]),
        ("/dump", json!({"z": "z.bin"}), &["dump", "`z`", "`x`, `y`"]),
        ("/buffers/x/bytes", json!(4001), &["`x`", "x.bin", "4000", "4001"]),
        ("/buffers/x/bytes", json!(1u64 << 60), &["x"]),
        ("/buffers/y", json!({"bytes": 1u64 << 40, "init": "zero"}), &["`y`", "1099511627776", "free"]),
        ("/buffers/y", json!({"init": "zero"}), &["`y`", "bytes"]),
        ("/buffers/y", json!({"bytes": 4000, "inti": "zero"}), &["inti", "init"]),
        ("/buffers/x/init", json!("none.bin"), &["`x`", "none.bin", "No such file"]),
        ("/launches/0/kernel", json!("saxpi"), &["launches[0]", "`saxpi`", "`saxpy`"]),
        ("/launches/1/grid", json!([0, 1, 1]), &["launches[1]", "grid", "[0, 1, 1]"]),
        ("/launches/0/grid", json!([]), &["launches[0]", "grid", "0 numbers"]),
        ("/launches/0/grid", json!([1, 65536, 1]), &["launches[0]", "65536", "65535"]),
        ("/launches/0/block", json!([1025]), &["launches[0]", "block", "1025", "1024"]),
        ("/launches/0/block", json!([64, 64]), &["launches[0]", "block", "64"]),
        ("/launches/0/block", json!(-1), &["job.json", "-1"]),
        ("/launches/0/params", json!([]), &["launches[0]", "saxpy_struct", "1 arguments, 0 given"]),
        ("/launches/0/params/0", json!({"u32": 7}), &["launches[0]", "saxpy_struct_param_0", "24 bytes", "u32"]),
        ("/launches/0/params/0", json!({"u8": 256}), &["launches[0]", "params[0]", "u8", "256", "range"]),
        ("/launches/0/params/0", json!({"u32": 1, "f32": 2}), &["launches[0]", "params[0]", "2 values"]),
        ("/launches/0/params/0", json!({}), &["launches[0]", "params[0]", "empty"]),
        ("/launches/0/params/0", json!({"i32": 1}), &["launches[0]", "params[0]", "`i32`", "s32"]),
        ("/launches/0/params/0", json!({"ptr": "q"}), &["launches[0]", "params[0]", "`q`", "`x`, `y`"]),
        ("/launches/0/params/0", json!({"ptr": "x", "at": 1}), &["params[0]", "`at`"]),
        (&struct_bytes, json!("00ff0"), &["launches[0]", "params[0]", "hexadecimal"]),
        (&struct_bytes, json!("00é0"), &["launches[0]", "params[0]", "hexadecimal"]),
        (&struct_bytes, json!("00ff"), &["params[0]", "`x`", "byte 0", "2 bytes"]),
        (&pointers, json!([{"at": 17, "ptr": "x"}]), &["params[0]", "`x`", "byte 17", "24 bytes"]),
        (&pointers, json!([{"at": u64::MAX, "ptr": "x"}]), &["params[0]", "`x`"]),
        (&pointers, json!([{"ptr": "x"}]), &["params[0]", "at"]),
    ];
    for (place, value, words) in cases {
        let mut job = good.clone();
        *job.pointer_mut(place).unwrap_or_else(|| panic!("{place}")) = value;
        let path = folder.job(&job);
        refused(&mut warpweft(&["ptx", "run", "--job", &path]), words);
        assert!(!folder.path("out.bin").exists(), "{place}: nothing ran");
    }
    for (place, key, value, words) in [
        ("", "lunches", json!([]), ["lunches", "launches"]),
        ("/launches/0", "shared", json!(1 << 20), ["launches[0]", "1048576"]),
        ("/launches/0", "cluster", json!([2, 1, 1]), ["launches[0]", "cluster"]),
        ("/launches/0", "shared", json!(u64::MAX), ["job.json", "u32"]),
    ] {
        let mut job = good.clone();
        job.pointer_mut(place).expect("the place")[key] = value;
        refused(&mut warpweft(&["ptx", "run", "--job", &folder.job(&job)]), &words);
    }
}

#[test]
fn files_that_are_no_job() {
    let folder = Folder::new();
    for (text, words) in [
        ("", vec!["line 1"]),
        ("{", vec!["line 1"]),
        ("[]", vec!["job.json"]),
        ("{\"module\": \"k.ptx\"}", vec!["launches"]),
        (
            "{\"module\": \"k.ptx\", \"buffers\": {\"a\": {\"bytes\": 1}, \"a\": {\"bytes\": 2}}, \"launches\": []}",
            vec!["`a`", "twice"],
        ),
    ] {
        let path = folder.write("job.json", text.as_bytes());
        refused(&mut warpweft(&["ptx", "run", "--job", &path]), &words);
    }
    refused(&mut warpweft(&["ptx", "run", "--job", "/no/job.json"]), &["/no/job.json", "No such file"]);
}

#[test]
fn wrong_flags() {
    let file = kernels("vectors.ptx");
    let cases: Vec<(&[&str], &[&str])> = vec![
        (&[], &["--kernel", "saxpy_struct, saxpy, neighbours, spin"]),
        (&["--kernel", "saxpy", "--arg", "buf:4"], &["saxpy", "3 arguments, 1 given", "y"]),
        (
            &["--kernel", "saxpy", "--arg", "buf:4", "--arg", "buf:4", "--arg", "u32:1"],
            &["parameter 2 `a`", ".f32", "u32"],
        ),
        (&["--kernel", "spin", "--arg", "u33:1"], &["--arg u33:1", "u32"]),
        (&["--kernel", "spin", "--arg", "1"], &["--arg 1", "TYPE:VALUE"]),
        (&["--kernel", "spin", "--arg", "x=buf:4", "--arg", "x=buf:4"], &["`x`"]),
        (&["--kernel", "spin", "--arg", "buf:no.bin"], &["no.bin", "No such file"]),
        (&["--kernel", "spin", "--arg", "ptr:q+x"], &["`x`"]),
        (&["--kernel", "spin", "--dump", "x"], &["--dump x", "NAME=FILE"]),
        (&["--kernel", "spin", "--check", "everything"], &["check", "everything", "memcheck"]),
        (&["--kernel", "spin", "--grid", "1,2,3,4"], &["--grid", "4 numbers"]),
        (&["--kernel", "spin", "--grid", "many"], &["--grid", "many"]),
        (&["--kernel", "spin", "--device", "sm_75"], &["sm_75", "sm_80"]),
        (&["--kernel", "spin", "--job", "j.json"], &["--job"]),
        (&["--kernels", "spin"], &["--kernels", "--kernel"]),
    ];
    for (flags, words) in cases {
        refused(warpweft(&["ptx", "run", &file]).args(flags), words);
    }
    refused(&mut warpweft(&["ptx", "run"]), &["FILE"]);
    refused(&mut warpweft(&["ptx", "chekc"]), &["chekc", "check"]);
    let newer = ["ptx", "run", &kernels("hopper.ptx"), "--kernel", "plain"];
    refused(&mut warpweft(&newer), &["sm_90", "sm_80"]);
}

#[test]
fn with_json_the_sentence_is_in_the_object_too() {
    let finished = run(&mut warpweft(&["ptx", "run", "--json", "--job", "/no/job.json"]));
    assert_eq!(finished.status, Some(2));
    let value: Value = serde_json::from_str(&finished.stdout).expect("one JSON object");
    assert_eq!(value["status"], 2);
    assert!(value["error"].as_str().is_some_and(|error| error.contains("/no/job.json")), "{value}");
}
