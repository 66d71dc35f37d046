//! Whatever is wrong with what a user gives: one sentence that says it, exit status 2, and nothing is spoilt.
#![forbid(unsafe_code)]

mod command;

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use command::{losses, refused, run, succeeds, train, warpweft};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn out(&self) -> PathBuf {
        self.0.path().join("run")
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).expect("the folder can be written");
        path.to_string_lossy().into_owned()
    }
}

#[test]
fn data_that_is_not_there_or_holds_nothing() {
    let folder = Folder::new();
    refused(&mut train(&folder.out(), &["--data", "/no/such/file"]), &["/no/such/file", "No such file"]);
    let empty = folder.file("empty.txt", b"");
    refused(&mut train(&folder.out(), &["--data", &empty]), &["empty.txt", "no data"]);
    let short = folder.file("short.txt", b"to be");
    refused(&mut train(&folder.out(), &["--data", &short]), &["short.txt", "5 tokens", "context 32"]);
    let odd = folder.file("odd.bin", &[0; 1001]);
    refused(&mut train(&folder.out(), &["--data", &odd]), &["odd.bin", "1001 bytes"]);
}

#[test]
fn a_token_outside_the_vocabulary() {
    let folder = Folder::new();
    let mut tokens: Vec<u8> = (0..5000u16).flat_map(|token| (token % 90).to_le_bytes()).collect();
    tokens[2000..2002].copy_from_slice(&300u16.to_le_bytes());
    let data = folder.file("tokens.bin", &tokens);
    let flags = ["--data", &data, "--vocab", "100"];
    refused(&mut train(&folder.out(), &flags), &["tokens.bin", "token 300", "byte 2000", "vocabulary of 100", "301"]);
    let text = folder.file("text.txt", "a text in which every byte is below 128 ".repeat(100).as_bytes());
    refused(&mut train(&folder.out(), &["--data", &text, "--vocab", "65"]), &["text.txt", "--vocab"]);
}

#[test]
fn settings_that_contradict_each_other() {
    let folder = Folder::new();
    let out = folder.out();
    let bare = |flags: &[&str]| {
        let mut command = warpweft(&["train", "--out"]);
        command.arg(&out).args(flags);
        command
    };
    let words = ["channels 128", "heads 3", "1, 2, 4, 8"];
    refused(&mut bare(&["--channels", "128", "--heads", "3"]), &words);
    refused(&mut bare(&["--heads", "4", "--kv-heads", "3"]), &["kv-heads 3", "1, 2, 4"]);
    refused(&mut bare(&["--ranks", "0"]), &["ranks", "0", "1 to"]);
    refused(&mut bare(&["--ranks", "4", "--batch", "3"]), &["batch 3", "ranks 4"]);
    refused(&mut bare(&["--transport", "thread", "--launch", "processes"]), &["thread", "processes"]);
    refused(&mut bare(&["--steps", "many"]), &["steps", "many"]);
    refused(&mut bare(&["--model", "lama"]), &["lama", "llama"]);
    refused(&mut bare(&["--experts", "2", "--ep", "4"]), &["experts 2 (flag)", "ep 4 (flag)", "at least 4 experts"]);
    refused(&mut bare(&["--ep", "2"]), &["ep 2 (flag)", "experts 0 (default)", "give --experts"]);
    refused(&mut bare(&["--recompute", "ful"]), &["recompute cannot be `ful`", "did you mean `full`?"]);
    refused(&mut bare(&["--zero", "4"]), &["zero cannot be `4`", "0 or 1 or 2 or 3"]);
    refused(&mut bare(&["--tp", "3"]), &["heads 4", "tp 3 (flag)", "use tp 1, 2, 4"]);
    refused(&mut bare(&["--pp", "8"]), &["4 layers do not fill pp 8"]);
    refused(&mut bare(&["--batch", "8", "--global-batch", "9"]), &["batch", "twice"]);
    refused(&mut warpweft(&["perf", "all_reduce", "--ranks", "0"]), &["--ranks 0", "1 to"]);
    refused(&mut warpweft(&["perf", "all_reduce", "-b", "64M"]), &["--minbytes 67108864", "--maxbytes 33554432"]);
    let words = ["--maxbytes", "no memory"];
    refused(&mut warpweft(&["perf", "all_reduce", "-b", "8", "-e", "4000000000G", "--ranks", "1"]), &words);
    refused(&mut warpweft(&["perf", "broadcast", "-r", "5", "--ranks", "2"]), &["--root 5", "2 ranks"]);
    assert!(!out.join("log.jsonl").exists(), "something was written");
}

#[test]
fn unknown_flags_and_keys_name_the_nearest_known_one() {
    let folder = Folder::new();
    refused(&mut train(&folder.out(), &["--chanels", "64"]), &["--chanels", "--channels"]);
    refused(&mut warpweft(&["trian"]), &["trian", "train"]);
    refused(&mut warpweft(&["perf", "all_reduce", "--mimbytes", "8"]), &["--mimbytes", "--minbytes"]);
    let file = folder.file("run.toml", b"layers = 2\nchanels = 64\n");
    refused(&mut warpweft(&["train", &file]), &["run.toml", "chanels", "channels"]);
    let file = folder.file("broken.toml", b"layers = \n");
    refused(&mut warpweft(&["train", &file]), &["broken.toml", "line 1"]);
    refused(&mut warpweft(&["train", "no.toml"]), &["no.toml", "No such file"]);
}

fn torchrun(command: &mut Command, rank: &str, world: &str, port: u16) {
    command.envs([("RANK", rank), ("WORLD_SIZE", world), ("LOCAL_RANK", rank), ("MASTER_ADDR", "127.0.0.1")]);
    command.env("MASTER_PORT", port.to_string()).env("WARPWEFT_SECRET", "5".repeat(64));
}

#[test]
fn an_environment_that_does_not_fit() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("it is bound").port();
    let mut command = train(&folder.out(), &[]);
    torchrun(&mut command, "0", "2", port);
    refused(&mut command, &[&format!("127.0.0.1:{port}"), "MASTER_PORT"]);

    let mut command = train(&folder.out(), &["--ranks", "3"]);
    torchrun(&mut command, "0", "2", 1);
    refused(&mut command, &["ranks 3", "WORLD_SIZE = 2"]);
    let mut command = warpweft(&["perf", "all_reduce", "--ranks", "3"]);
    torchrun(&mut command, "0", "2", 1);
    refused(&mut command, &["--ranks 3", "WORLD_SIZE = 2"]);

    let mut command = train(&folder.out(), &[]);
    torchrun(&mut command, "2", "2", 1);
    refused(&mut command, &["RANK is 2", "WORLD_SIZE is 2"]);
    let mut command = train(&folder.out(), &[]);
    torchrun(&mut command, "0", "1000000000000", 1);
    refused(&mut command, &["1000000000000"]);
    let mut command = train(&folder.out(), &[]);
    refused(command.env("RANK", "0").env("WORLD_SIZE", "1"), &["MASTER_ADDR", "is not"]);
}

#[test]
fn a_rank_whose_launcher_has_gone_does_not_look_for_it() {
    let folder = Folder::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("it is bound").to_string();
    drop(listener);
    let mut command = train(&folder.out(), &["--ranks", "2"]);
    command.envs([("WARPWEFT_RANK", "1"), ("WARPWEFT_LOCAL_RANK", "1"), ("WARPWEFT_WORLD_SIZE", "2")]);
    command.env("WARPWEFT_RENDEZVOUS", &address).env("WARPWEFT_SECRET", "5".repeat(64));
    let started = std::time::Instant::now();
    refused(&mut command, &["rank 1 of 2", &address]);
    assert!(started.elapsed().as_secs() < 60, "a tenth of the time in which ranks may come: {:?}", started.elapsed());
}

#[test]
fn an_output_folder_that_cannot_be_written_is_found_before_any_data_is_read() {
    let folder = Folder::new();
    let file = folder.file("file", b"kept");
    let out = Path::new(&file).join("run");
    // The data is wrong too; what is said is about the folder.
    refused(&mut train(&out, &["--data", "/no/such/file"]), &["output folder", &out.to_string_lossy()]);
    assert_eq!(fs::read(&file).expect("it is still there"), b"kept");
    let json = format!("{file}/results.json");
    refused(&mut warpweft(&["perf", "all_reduce", "-b", "8", "-e", "8", "-J", &json]), &[&json]);
}

/// A short run with checkpoints of step 4 and 8.
fn trained(folder: &Folder) -> PathBuf {
    let out = folder.out();
    succeeds(&mut train(&out, &["--ranks", "2", "--steps", "8", "--save-every", "4"]));
    out
}

fn resume(out: &Path, flags: &[&str]) -> Command {
    let mut command = warpweft(&["train", "--resume"]);
    command.arg(out).args(flags);
    command
}

#[test]
fn a_damaged_checkpoint_names_the_file_the_byte_and_the_field() {
    let folder = Folder::new();
    let out = trained(&folder);
    let newest = out.join("checkpoints/step-000008");
    for name in ["weights.safetensors", "optimizer-00000-of-00002.safetensors", "manifest.json"] {
        let path = newest.join(name);
        let whole = fs::read(&path).expect("it is there");
        fs::write(&path, &whole[..whole.len() - 3]).expect("it can be cut off");
        refused(&mut resume(&out, &["--steps", "12"]), &[name, "byte", "resume from another"]);
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 0x40;
        fs::write(&path, &flipped).expect("it can be changed");
        refused(&mut resume(&out, &["--steps", "12"]), &[name, "byte", "resume from another"]);
        fs::write(&path, &whole).expect("it can be put back");
    }
    // The older one still serves, as the message says; and the newest again, now that it is whole.
    succeeds(&mut resume(&out, &["--steps", "12"]));
    refused(&mut resume(&folder.0.path().join("nothing"), &[]), &["nothing", "No such file"]);
    refused(&mut resume(folder.0.path(), &[]), &["no checkpoint", "latest"]);
    refused(&mut resume(&out, &["--layers", "3"]), &["layers 3", "resumed"]);
}

#[test]
fn a_full_disk_while_saving_leaves_the_previous_checkpoint() {
    let folder = Folder::new();
    let out = trained(&folder);
    // No file may grow past 24 blocks of 1,024 bytes: the log fits, the weights of the next checkpoint do not. The signal that
    // comes with it is ignored, so that the write itself fails as it does on a full disk.
    let shell = format!(
        "trap '' XFSZ; ulimit -f 24; exec '{}' train --resume '{}' --steps 16 --save-every 4 --sample 0",
        env!("CARGO_BIN_EXE_warpweft"),
        out.display()
    );
    let mut command = Command::new("bash");
    command.args(["-c", &shell]).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let finished = run(&mut command);
    assert_eq!(finished.status, Some(2), "{}\n{}", finished.stderr, finished.stdout);
    for word in ["checkpoint of step 12", "not written", "step-000008"] {
        assert!(finished.stderr.contains(word), "`{word}` is not in: {}", finished.stderr);
    }
    succeeds(&mut resume(&out, &["--steps", "16"]));
    assert_eq!(losses(&out).len(), 16);
}
