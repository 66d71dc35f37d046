//! Checkpoints: what is written is what is read, and nothing else is ever believed.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;
use warpweft_comm::Communicator;
use warpweft_device::bf16;
use warpweft_trainer::checkpoint::{
    CONFIG_FILE, Checkpoint, CheckpointError, Foreign, Held, MANIFEST_FILE, Piece, Saver, Snapshot, Tensors,
    WEIGHTS_FILE, Whole, locate,
};

const OPTIMIZER_FILE: &str = "optimizer-00000-of-00001.safetensors";

fn piece<T: warpweft_device::Element>(name: &str, shape: &[usize], elements: &[T]) -> Piece {
    Piece::new(name, Held::whole(shape), elements)
}

fn saver_of(run: &Path) -> Saver {
    Saver::new(run, Arc::new(Communicator::alone()))
}

fn values(count: usize, scale: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 - 7.5) * scale).collect()
}

fn snapshot(step: u64) -> Snapshot {
    let half: Vec<bf16> = values(15, 0.5).into_iter().map(bf16::from_f32).collect();
    Snapshot {
        step,
        seed: u64::MAX,
        data_tokens: 12_345,
        config: "layers = 1\nheads = 2\n".into(),
        wholes: [("h.0.bias", &[3][..]), ("wte.weight", &[5, 3]), ("empty", &[0, 4]), ("h.0.weight", &[4, 6])]
            .map(|(name, shape)| Whole::plain(name, shape))
            .to_vec(),
        weights: vec![
            piece("h.0.bias", &[3], &values(3, 1.0)),
            piece("wte.weight", &[5, 3], &half),
            piece("empty", &[0, 4], &[0.0_f32; 0]),
            piece("h.0.weight", &[4, 6], &values(24, step as f32)),
        ],
        optimizer: vec![
            piece("h.0.weight.m", &[4, 6], &values(24, 1e-3)),
            piece("h.0.weight.v", &[4, 6], &values(24, 1e-6)),
        ],
    }
}

/// A run's folder with checkpoints of these steps.
fn run(steps: &[u64]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = saver_of(folder.path());
    for step in steps {
        saver.save(snapshot(*step)).unwrap();
    }
    saver.finish().unwrap();
    folder
}

fn names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}

#[track_caller]
fn refused(folder: &Path) -> String {
    match Checkpoint::load(folder).and_then(|checkpoint| checkpoint.verify()) {
        Ok(()) => panic!("accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn what_is_written_is_read() {
    let folder = run(&[200]);
    let read = Checkpoint::load(folder.path()).unwrap();
    let wrote = snapshot(200);
    assert_eq!((read.step, read.seed, read.data_tokens), (200, u64::MAX, 12_345));
    assert_eq!(read.config, wrote.config);
    let (weights, optimizer) = (read.weights(&wrote.wholes).unwrap(), read.optimizer().unwrap());
    for (pieces, file) in [(&wrote.weights, &weights), (&wrote.optimizer, &optimizer)] {
        assert_eq!(file.names().collect::<BTreeSet<_>>(), pieces.iter().map(|t| t.name.as_str()).collect());
        file.expect_only(pieces.iter().map(|piece| piece.name.as_str())).unwrap();
        for piece in pieces {
            if piece.name == "wte.weight" {
                let mut into = vec![bf16::ZERO; 15];
                file.read(&piece.name, &piece.held, &mut into).unwrap();
                assert_eq!(bytemuck::cast_slice::<_, u8>(&into), piece.bytes);
            } else {
                let mut into = vec![0.0_f32; piece.held.len()];
                file.read(&piece.name, &piece.held, &mut into).unwrap();
                assert_eq!(bytemuck::cast_slice::<_, u8>(&into), piece.bytes);
            }
        }
    }
}

#[test]
fn the_same_state_gives_the_same_bytes() {
    let (one, two) = (run(&[3]), run(&[3]));
    for file in [WEIGHTS_FILE, OPTIMIZER_FILE, MANIFEST_FILE, CONFIG_FILE] {
        let path = Path::new("checkpoints/step-000003").join(file);
        assert_eq!(fs::read(one.path().join(&path)).unwrap(), fs::read(two.path().join(&path)).unwrap(), "{file}");
    }
}

#[test]
fn weights_are_plain_safetensors() {
    let folder = run(&[1]);
    let bytes = fs::read(folder.path().join("checkpoints/step-000001").join(WEIGHTS_FILE)).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("h.0.weight").unwrap().shape(), [4, 6]);
    assert_eq!(file.tensor("wte.weight").unwrap().dtype(), safetensors::Dtype::BF16);
}

#[test]
fn a_run_a_folder_of_checkpoints_and_a_checkpoint_are_all_found() {
    let folder = run(&[100, 200]);
    let newest = folder.path().join("checkpoints/step-000200");
    for place in ["", "checkpoints", "checkpoints/step-000200"] {
        assert_eq!(locate(&folder.path().join(place)).unwrap(), newest);
    }
    assert_eq!(Checkpoint::load(&folder.path().join("checkpoints/step-000100")).unwrap().step, 100);
}

#[test]
fn the_last_two_written_stay() {
    let folder = run(&[100, 200, 300, 400]);
    assert_eq!(names(&folder.path().join("checkpoints")), set(&["latest", "step-000300", "step-000400"]));
    // Resumed from an earlier one, the run's newest checkpoint has a lower step; it is the one that counts.
    let mut saver = saver_of(folder.path());
    saver.save(snapshot(350)).unwrap();
    assert_eq!(saver.finish().unwrap().unwrap(), folder.path().join("checkpoints/step-000350"));
    assert_eq!(names(&folder.path().join("checkpoints")), set(&["latest", "step-000350", "step-000400"]));
    assert_eq!(Checkpoint::load(folder.path()).unwrap().step, 350);
}

#[test]
fn a_step_written_again_replaces_the_old_one() {
    let folder = run(&[100, 200]);
    let mut again = snapshot(200);
    again.seed = 5;
    let mut saver = saver_of(folder.path());
    saver.save(again).unwrap();
    saver.finish().unwrap();
    assert_eq!(Checkpoint::load(folder.path()).unwrap().seed, 5);
    assert_eq!(names(&folder.path().join("checkpoints")), set(&["latest", "step-000100", "step-000200"]));
}

#[test]
fn what_a_killed_run_left_behind_does_no_harm() {
    let folder = run(&[100]);
    let left = folder.path().join("checkpoints/.step-000150.partial");
    fs::create_dir(&left).unwrap();
    fs::write(left.join(WEIGHTS_FILE), b"half").unwrap();
    assert_eq!(Checkpoint::load(folder.path()).unwrap().step, 100);
    let mut saver = saver_of(folder.path());
    saver.save(snapshot(200)).unwrap();
    saver.finish().unwrap();
    assert_eq!(Checkpoint::load(folder.path()).unwrap().step, 200);
    assert!(!left.exists());
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let step = folder.join("checkpoints/step-000200");
    let mut files: Vec<_> = names(&step).iter().map(|name| step.join(name)).collect();
    files.push(folder.join("checkpoints/latest"));
    assert_eq!(files.len(), 6);
    files
}

#[test]
fn every_flipped_byte_is_noticed_and_named() {
    let folder = run(&[100, 200]);
    for path in files(folder.path()) {
        let good = fs::read(&path).unwrap();
        let file = path.file_name().unwrap().to_str().unwrap();
        for at in 0..good.len() {
            let bits = [0x01, 0x20, 0x80, 0xff][at % 4];
            let mut bad = good.clone();
            bad[at] ^= bits;
            fs::write(&path, &bad).unwrap();
            let text = refused(folder.path());
            // Where a file is checked against a seal, the very byte is found; the others are their own witness.
            if file == "latest" {
                assert!(text.contains("latest"), "{file} byte {at}: {text}");
            } else if file == "manifest.check" {
                assert!(text.contains("manifest.check: byte"), "{file} byte {at}: {text}");
            } else {
                assert!(text.contains(&format!("{file}: byte {at} is damaged (")), "{file} byte {at}: {text}");
            }
        }
        fs::write(&path, &good).unwrap();
    }
    assert_eq!(Checkpoint::load(folder.path()).unwrap().step, 200);
}

#[test]
fn every_truncation_is_noticed_and_named() {
    let folder = run(&[100, 200]);
    for path in files(folder.path()) {
        let good = fs::read(&path).unwrap();
        let file = path.file_name().unwrap().to_str().unwrap();
        for length in 0..good.len() {
            fs::write(&path, &good[..length]).unwrap();
            let text = refused(folder.path());
            let sealed = file.ends_with(".safetensors") || file == CONFIG_FILE || file == MANIFEST_FILE;
            let wants = if sealed { format!("{file}: ends at byte {length} of") } else { format!("{file}: byte") };
            assert!(text.contains(&wants), "{file} cut at {length}: {text}");
        }
        fs::write(&path, [&good[..], b"x"].concat()).unwrap();
        let text = refused(folder.path());
        assert!(text.contains(file), "{file} longer: {text}");
        fs::remove_file(&path).unwrap();
        // Without the marker, or the manifest, there is no checkpoint to be found here.
        let text = refused(folder.path());
        assert!(text.contains(file) || text.contains("no checkpoint in"), "{file} gone: {text}");
        fs::write(&path, &good).unwrap();
    }
    assert_eq!(Checkpoint::load(folder.path()).unwrap().step, 200);
}

#[test]
fn damage_names_the_field() {
    let folder = run(&[200]);
    let path = folder.path().join("checkpoints/step-000200").join(WEIGHTS_FILE);
    let good = fs::read(&path).unwrap();
    let damage = |at: usize| {
        let mut bad = good.clone();
        bad[at] ^= 4;
        fs::write(&path, &bad).unwrap();
        refused(folder.path())
    };
    assert!(damage(3).contains("byte 3 is damaged (length of the header)"));
    assert!(damage(20).contains("byte 20 is damaged (header)"));
    let last = good.len() - 1;
    assert!(damage(last).contains(&format!("byte {last} is damaged (tensor `wte.weight`)")), "{}", damage(last));
    let first = good.len() - 15 * 2 - 27 * 4;
    assert!(damage(first).contains("(tensor `h.0.bias`)"), "{}", damage(first));
}

#[test]
fn tensors_of_another_model_are_named() {
    let folder = run(&[200]);
    let read = Checkpoint::load(folder.path()).unwrap();
    let says = |result: Result<(), CheckpointError>, parts: &[&str]| {
        let text = result.unwrap_err().to_string();
        parts.iter().for_each(|part| assert!(text.contains(part), "`{text}` lacks `{part}`"));
    };
    let (wholes, optimizer) = (snapshot(200).wholes, read.optimizer().unwrap());
    let of = |name: &str, shape: &[usize]| {
        let other = wholes.iter().filter(|whole| whole.name != "h.0.weight").cloned();
        read.weights(&other.chain([Whole::plain(name, shape)]).collect::<Vec<_>>()).map(|_| ())
    };
    says(of("h.1.weight", &[4, 6]), &[WEIGHTS_FILE, "`h.1.weight` is missing"]);
    says(of("h.0.weight", &[6, 4]), &["`h.0.weight`", "[4, 6]", "[6, 4]"]);
    says(read.weights(&wholes[1..]).map(|_| ()), &[WEIGHTS_FILE, "`h.0.bias` is not one", "another model"]);
    let weights = read.weights(&wholes).unwrap();
    let mut into = [0.0_f32; 15];
    says(weights.read("wte.weight", &Held::whole(&[5, 3]), &mut into), &["`wte.weight` is bf16", "f32"]);
    says(optimizer.read("h.0.weight.m", &Held::whole(&[5, 3]), &mut into), &["`h.0.weight.m`", "[4, 6]", "[5, 3]"]);
    says(optimizer.expect_only(["h.0.weight.m"]), &["`h.0.weight.v`", "another model"]);
}

#[test]
fn a_snapshot_that_contradicts_itself_is_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let mut bad = snapshot(1);
    bad.weights[0].bytes.pop();
    let mut saver = saver_of(folder.path());
    saver.save(bad).unwrap();
    let text = saver.finish().unwrap_err().to_string();
    assert!(text.contains("step 1 was not written") && text.contains("`h.0.bias`"), "{text}");
    let mut bad = snapshot(1);
    bad.optimizer[1].name = bad.optimizer[0].name.clone();
    let mut saver = saver_of(folder.path());
    saver.save(bad).unwrap();
    assert!(saver.finish().unwrap_err().to_string().contains("twice"));
}

#[test]
fn weights_from_elsewhere_are_read_without_a_seal() {
    let folder = run(&[7]);
    let path = folder.path().join("checkpoints/step-000007").join(WEIGHTS_FILE);
    assert_eq!(Tensors::open(&path).unwrap().names().count(), 4);
    let good = fs::read(&path).unwrap();
    for length in 0..good.len() {
        fs::write(&path, &good[..length]).unwrap();
        assert!(Tensors::open(&path).is_err());
    }
    // Any byte of the header wrong: refused, or read as other tensors, but never out of bounds.
    for at in 0..good.len() - 15 * 2 - 27 * 4 {
        for byte in [0, b'0', b'9', b'"', b'-', 0xff] {
            let mut bad = good.clone();
            bad[at] = byte;
            fs::write(&path, &bad).unwrap();
            let Ok(file) = Foreign::open(&path) else { continue };
            let Ok((pieces, _)) = file.weights(&snapshot(7).wholes) else { continue };
            let mut into = [0.0_f32; 24];
            let _ = pieces.read("h.0.weight", &Held::whole(&[4, 6]), &mut into);
        }
    }
    // A header that claims to be of any length, or to hold tensors anywhere.
    for length in [1_u64, 7, 1 << 20, u64::MAX, u64::MAX - 7] {
        let mut bad = good.clone();
        bad[..8].copy_from_slice(&length.to_le_bytes());
        fs::write(&path, &bad).unwrap();
        assert!(Tensors::open(&path).is_err());
    }
}

#[test]
fn an_error_is_told_at_the_next_step_and_the_next_save() {
    let folder = run(&[100]);
    let checkpoints = folder.path().join("checkpoints");
    fs::remove_dir_all(&checkpoints).unwrap();
    fs::write(&checkpoints, b"in the way").unwrap();
    let mut saver = saver_of(folder.path());
    saver.save(snapshot(200)).unwrap();
    let mut told = saver.poll();
    while told.is_ok() {
        std::thread::yield_now();
        told = saver.poll();
    }
    let text = told.unwrap_err().to_string();
    assert!(text.contains("step 200 was not written: cannot create") && text.contains("none before it"), "{text}");
    saver.poll().unwrap();
    saver.save(snapshot(300)).unwrap();
    assert!(saver.save(snapshot(400)).is_err());
}

/// Set in the child process of the disk-full tests: the run's folder.
const CHILD: &str = "WARPWEFT_TEST_DISK_FULL";

/// A snapshot larger than what the limits of these tests leave room for.
fn large(step: u64) -> Snapshot {
    let mut large = snapshot(step);
    large.wholes.push(Whole::plain("large", &[1 << 20]));
    large.weights.push(piece("large", &[1 << 20], &vec![1.0_f32; 1 << 20]));
    large
}

/// The part of the next two tests that runs in a child process, where there is no room.
fn save_without_room(folder: &Path) {
    let mut saver = saver_of(folder);
    saver.save(snapshot(100)).unwrap();
    saver.save(large(200)).unwrap();
    let text = saver.finish().unwrap_err().to_string();
    assert!(text.contains("the checkpoint of step 200 was not written: cannot write"), "{text}");
    assert!(text.contains(".step-000200.partial/weights.safetensors: "), "{text}");
    assert!(text.contains("step-000100 is untouched, and --resume takes it"), "{text}");
    assert_eq!(names(&folder.join("checkpoints")), set(&["latest", "step-000100"]));
    assert_eq!(Checkpoint::load(folder).unwrap().step, 100);
    // With the space given back, the next one is written.
    let mut saver = saver_of(folder);
    saver.save(snapshot(300)).unwrap();
    saver.finish().unwrap();
    assert_eq!(Checkpoint::load(folder).unwrap().step, 300);
    std::io::stdout().write_all(format!("the child has seen: {text}\n").as_bytes()).unwrap();
}

/// Runs the named test once more, as a child, by a shell in whose text `"$@"` is its command line.
fn child(test_name: &str, shell: &str, wrapper: &[&str], folder: &Path) -> std::process::Output {
    let test = std::env::current_exe().unwrap();
    let mut command = match wrapper.split_first() {
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments).arg("sh");
            command
        }
        None => Command::new("sh"),
    };
    command.args(["-c", shell, "sh"]).arg(test).args(["--exact", test_name, "--nocapture"]);
    command.env(CHILD, folder).output().unwrap()
}

#[test]
fn a_file_that_may_not_grow_leaves_the_checkpoint_before_it() {
    if let Some(folder) = std::env::var_os(CHILD) {
        return save_without_room(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    // The signal that a limit on file sizes sends is ignored, so that the write itself fails. 1024 blocks are 512 KiB
    // or 1 MiB, by shell.
    let output = child(
        "a_file_that_may_not_grow_leaves_the_checkpoint_before_it",
        "trap '' XFSZ; ulimit -f 1024; exec \"$@\"",
        &[],
        folder.path(),
    );
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("the child has seen"), "{output:?}");
}

#[test]
fn a_full_disk_leaves_the_checkpoint_before_it() {
    if let Some(folder) = std::env::var_os(CHILD) {
        return save_without_room(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let unshare = ["unshare", "--user", "--map-root-user", "--mount"];
    let mount = format!("mount -t tmpfs -o size=1m none '{}'", folder.path().display());
    let able = Command::new(unshare[0]).args(&unshare[1..]).args(["sh", "-c", &mount]).output();
    if !able.is_ok_and(|output| output.status.success()) {
        // No small disk can be made here; the test above fails the same write by another limit.
        return;
    }
    let output = child(
        "a_full_disk_leaves_the_checkpoint_before_it",
        &format!("{mount} && exec \"$@\""),
        &unshare,
        folder.path(),
    );
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("No space left on device"), "{output:?}");
}
