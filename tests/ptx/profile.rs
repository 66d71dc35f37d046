//! `ptx profile`: the counters of a kernel whose traffic is known, as JSON and as a table.

use serde_json::Value;

use crate::command::{refused, succeeds, warpweft};
use crate::{Folder, saxpy_job};

#[test]
fn the_traffic_of_saxpy_is_its_vectors_once() {
    let folder = Folder::new();
    let path = folder.job(&saxpy_job(&folder));
    let text = succeeds(&mut warpweft(&["ptx", "profile", "--job", &path, "--json", "--gpu", "h100"])).stdout;
    let report: Value = serde_json::from_str(&text).expect("JSON");
    let launch = &report["launches"][0];
    let profile = &launch["profile"];
    // 1000 floats are 125 sectors of 32 bytes: x and y read, y written.
    assert_eq!((&profile["read_bytes"], &profile["written_bytes"]), (&8000.into(), &4000.into()), "{text}");
    assert_eq!(profile["least_bytes"], 12000);
    assert_eq!(profile["wavefronts"], serde_json::json!([0, 0]));
    // One fused multiply-add a lane, or a product and a sum.
    assert_eq!(profile["f32_operations"], 2000);
    assert_eq!(report["gpu"]["name"], "h100");
    let time = launch["roofline"]["time_us"].as_f64().expect("a number");
    assert!((time - 12000.0 / 3.35e12 * 1e6).abs() < 1e-9, "{time}");
    let table = succeeds(&mut warpweft(&["ptx", "profile", "--job", &path])).stdout;
    assert!(table.contains("global bytes read") && table.contains("on a100"), "{table}");
}

#[test]
fn an_unknown_gpu_is_named_with_those_there_are() {
    refused(&mut warpweft(&["ptx", "profile", "x.ptx", "--gpu", "b300"]), &["b300", "h200"]);
}
