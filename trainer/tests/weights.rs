//! A run that begins with somebody else's weights, and somebody else's program with ours.
#![forbid(unsafe_code)]

mod common;
mod runs;

use std::fs;
use std::path::{Path, PathBuf};

use runs::{Runs, train};
use warpweft_trainer::diff::diff;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(name)
}

/// Settings of the model that `make_hf.py` saved with transformers.
const LLAMA: &str = "model=llama layers=2 channels=16 heads=4 kv-heads=2 hidden=40 tied=false context=8 vocab=19";

fn bin(runs: &Runs) -> PathBuf {
    let path = runs.out("tokens.bin");
    let tokens = (0..600u16).flat_map(|token| (token * 7 % 17).to_le_bytes());
    fs::write(&path, tokens.collect::<Vec<_>>()).expect("tokens");
    path
}

#[test]
fn any_layout_begins_with_the_same_weights_from_a_file_or_a_folder() {
    let runs = Runs::new();
    let (data, folder) = (bin(&runs), runs.out("hub"));
    fs::create_dir(&folder).expect("a folder");
    fs::copy(golden("hf-llama.safetensors"), folder.join("model.safetensors")).expect("a copy");
    let settings = format!("{LLAMA} data={} lr=1e-3 dump=1", data.display());
    let file = golden("hf-llama.safetensors");
    let one = runs.train("one", &format!("{settings} ranks=1 weights={}", file.display()));
    let other = runs.train("other", &format!("{settings} ranks=4 tp=2 pp=2 weights={}", folder.display()));
    assert_eq!(diff(&one, &other, None).expect("two runs").parting, None);
    // They are not the weights that a run begins with by itself.
    let fresh = runs.train("fresh", &format!("{settings} ranks=1"));
    let parting = diff(&one, &fresh, None).expect("two runs").parting.expect("other weights");
    assert_eq!((parting.step, parting.tensor.as_str()), (1, "before.model.embed_tokens.weight"));
    // What a run saves is what another begins with: its folder is given as it is.
    let again = runs.train("again", &format!("{settings} ranks=2 weights={}", one.display()));
    assert!(diff(&one, &again, None).expect("two runs").parting.is_some(), "it begins where the other ended");
}

#[test]
fn weights_of_another_model_are_refused_by_name() {
    let runs = Runs::new();
    let (data, folder) = (bin(&runs), runs.out("hub"));
    fs::create_dir(&folder).expect("a folder");
    let refused = |settings: &str, weights: &Path, words: &[&str]| {
        let settings = format!("{settings} data={} ranks=1 weights={}", data.display(), weights.display());
        let error = train(&runs.config("refused", &settings)).remove(0).expect_err("other weights");
        let said = error.to_string();
        assert_eq!((error.exit_status(), said.lines().count()), (2, 1), "{said}");
        words.iter().for_each(|word| assert!(said.contains(word), "`{word}` is not in: {said}"));
    };
    refused(LLAMA, &folder, &["no weights in", "model.safetensors.index.json"]);
    let file = golden("hf-llama.safetensors");
    refused(&LLAMA.replace("hidden=40", "hidden=48"), &file, &["gate_proj", "[40, 16]", "[48, 16]"]);
    refused(&LLAMA.replace("tied=false", "tied=true"), &file, &["lm_head.weight"]);
    refused(&LLAMA.replace("vocab=19", "vocab=20"), &file, &["embed_tokens", "[19, 16]", "[20, 16]"]);
    fs::copy(&file, folder.join("model.safetensors")).expect("a copy");
    fs::write(folder.join("config.json"), r#"{"num_attention_heads": 4, "rope_theta": 500000.0}"#).expect("a file");
    refused(LLAMA, &folder, &["config.json: rope_theta is 500000", "10000"]);
    fs::write(folder.join("config.json"), r#"{"num_attention_heads": 2}"#).expect("a file");
    refused(LLAMA, &folder, &["num_attention_heads is 2, and the model's is 4"]);
}
