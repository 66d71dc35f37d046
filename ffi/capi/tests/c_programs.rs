//! The C ABI as a C programmer meets it: programs compiled with warnings as errors against the shared and the static library,
//! and a header that declares exactly what the library exports.
#![forbid(unsafe_code)]

mod building;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use building::{Linked, code, compile, libraries, output_of, package, run};

// Links the package, so that Cargo builds its shared library beside this test.
use ptxvm_driver as _;

/// The ops that have kernels for everything that the programs ask of them; others may have some already.
const ON_A_GPU: [&str; 15] = [
    "attention",
    "cast",
    "cross_entropy",
    "embedding",
    "layernorm",
    "matmul",
    "moe",
    "norm",
    "optimizer",
    "philox",
    "residual",
    "rmsnorm",
    "rope",
    "softmax",
    "transpose",
];

/// The devices on which programs that take one run: its name, and the ops that must have a kernel there.
fn devices() -> [Vec<String>; 2] {
    let software = ["software?check=all"].into_iter().chain(ON_A_GPU);
    [vec!["cpu:2".to_owned()], software.map(str::to_owned).collect()]
}

/// A program that takes a device runs on each.
fn passes_on_every_device(program: &str, linked: Linked) {
    devices().iter().for_each(|device| passes(program, linked, device));
}

/// Compiles one of the programs here, links it and runs it; it checks itself.
fn passes(program: &str, linked: Linked, arguments: &[String]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let executable = folder.path().join(program);
    run(compile(&format!("tests/{program}.c"), &executable, linked).arg("-lm"));
    let said = output_of(Command::new(&executable).args(arguments));
    assert_eq!(said, format!("{program}: all checks passed"), "{linked:?}, {arguments:?}");
}

#[test]
fn two_ranks() {
    passes("ranks", Linked::Shared, &[]);
    passes("ranks", Linked::Static, &[]);
}

#[test]
fn attention_products_and_norms() {
    passes_on_every_device("kernels", Linked::Shared);
    passes_on_every_device("kernels", Linked::Static);
}

#[test]
fn softmax_and_its_masks() {
    passes_on_every_device("softmax", Linked::Shared);
}

#[test]
fn the_other_ops() {
    passes_on_every_device("ops", Linked::Shared);
    passes_on_every_device("ops", Linked::Static);
}

#[test]
fn mixtures_of_experts() {
    passes_on_every_device("moe", Linked::Shared);
    passes_on_every_device("moe", Linked::Static);
}

#[test]
fn attention_in_longer_rows() {
    passes_on_every_device("rows", Linked::Shared);
}

#[test]
fn types_of_two_bytes() {
    passes_on_every_device("halves", Linked::Shared);
}

#[test]
fn wrong_arguments() {
    passes_on_every_device("arguments", Linked::Shared);
    passes_on_every_device("arguments", Linked::Static);
}

#[test]
fn tensors_of_dlpack() {
    passes_on_every_device("dlpack", Linked::Shared);
    passes_on_every_device("dlpack", Linked::Static);
}

#[test]
fn a_wrong_pointer_is_a_report_of_the_software_device() {
    passes("device", Linked::Shared, &["software?check=all".to_owned()]);
}

/// A folder in which the driver of a GPU is found: the stand-in for it.
fn with_a_driver() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::os::unix::fs::symlink(stand_in(), folder.path().join("libcuda.so.1")).expect("a link can be made");
    folder
}

#[test]
fn tensors_of_dlpack_on_the_path_of_a_gpu() {
    let folder = with_a_driver();
    let executable = folder.path().join("dlpack");
    run(&mut compile("tests/dlpack.c", &executable, Linked::Shared));
    let mut command = Command::new(&executable);
    let said = output_of(command.args(["cuda", "softmax"]).env("LD_LIBRARY_PATH", folder.path()));
    assert_eq!(said, "dlpack: all checks passed");
}

#[test]
fn a_kernel_in_a_stream_of_another_runtime() {
    let folder = with_a_driver();
    let executable = folder.path().join("device");
    let mut compile = compile("tests/device.c", &executable, Linked::Shared);
    // The program calls the driver as another runtime would; both find the same one.
    run(compile.arg("-Wl,--no-as-needed").arg("-L").arg(folder.path()).arg("-l:libcuda.so.1"));
    let said = output_of(Command::new(&executable).arg("cuda").env("LD_LIBRARY_PATH", folder.path()));
    assert_eq!(said, "device: all checks passed");
}

#[test]
fn a_program_in_cpp() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let executable = folder.path().join("plain");
    run(&mut compile("tests/plain.cpp", &executable, Linked::Shared));
    for device in ["cpu", "software?check=all"] {
        assert_eq!(output_of(Command::new(&executable).arg(device)), "plain: all checks passed");
    }
}

/// NumPy is the other side of DLPack here. `WARPWEFT_PYTHON` names a Python that has it, which must then work; without it the
/// test is of `python3` where that has NumPy.
#[test]
fn python_with_numpy() {
    let given = std::env::var_os("WARPWEFT_PYTHON");
    let python = given.clone().unwrap_or_else(|| "python3".into());
    let has_numpy = Command::new(&python).args(["-c", "import numpy"]).output().is_ok_and(|said| said.status.success());
    if !has_numpy && given.is_none() {
        return;
    }
    for device in ["cpu", "software?check=all"] {
        let mut command = Command::new(&python);
        command.arg(package().join("examples/python/softmax.py")).arg(libraries().join("libwarpweft.so"));
        assert!(output_of(command.arg(device)).ends_with("all as in NumPy"), "{device}");
    }
}

/// The program of `docs/c-api.md` compiles without a warning and prints what the page says.
#[test]
fn the_example_of_the_documentation() {
    let page = std::fs::read_to_string(package().join("../../docs/c-api.md")).expect("the page can be read");
    let block = |mark: &str| {
        let (_, rest) = page.split_once(mark).unwrap_or_else(|| panic!("no {mark:?} in the page"));
        rest.split_once("\n```").expect("a block ends").0.trim_start_matches('\n').to_owned()
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, executable) = (folder.path().join("example.c"), folder.path().join("example"));
    std::fs::write(&source, block("```c\n")).expect("it can be written");
    run(compile(source.to_str().expect("a plain path"), &executable, Linked::Shared).arg("-lm"));
    for device in ["cpu", "software?check=all"] {
        assert_eq!(output_of(Command::new(&executable).arg(device)), block("It prints\n\n```").trim());
    }
}

/// The stand-in for the driver, which Cargo has put beside this program.
fn stand_in() -> PathBuf {
    let program = std::env::current_exe().expect("a test knows its program");
    let folder = program.parent().expect("it lies in a folder");
    let files = std::fs::read_dir(folder).expect("it can be read").map(|entry| entry.expect("an entry").path());
    let libraries = files.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libptxvm_driver") && name.ends_with(".so")
    });
    let newest = libraries.max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok());
    newest.unwrap_or_else(|| panic!("no libptxvm_driver*.so in {}", folder.display()))
}

/// The functions that the shared library exports.
fn exported() -> BTreeSet<String> {
    let library = libraries().join("libwarpweft.so");
    let output = run(Command::new("nm").args(["--dynamic", "--defined-only", "--format=posix"]).arg(library));
    let text = String::from_utf8(output.stdout).expect("names are plain text");
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn the_header_declares_exactly_what_is_exported() {
    let code = code("warpweft.h") + &code("warpweft_kernels.h") + &code("warpweft_moe.h");
    let words = code.split('(').filter_map(|before| before.rsplit([' ', '*', '\n']).next());
    let declared: BTreeSet<_> = words.filter(|word| word.starts_with("ww_")).map(str::to_owned).collect();
    let exported = exported();
    assert!(declared.len() > 30, "only {declared:?}");
    assert_eq!(declared, exported);
}
