//! The C ABI as a C programmer meets it: programs compiled with warnings as errors against the shared and the static library,
//! and a header that declares exactly what the library exports.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the libraries as they are now. A test program does not depend on them as far as Cargo knows (no Rust code
/// can link them), so they are built here; the features of the whole workspace let this share what is built already.
fn libraries() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let test = std::env::current_exe().expect("a test knows its program");
        let profile = test.parent().and_then(Path::parent).expect("it lies in deps/ of its profile's folder");
        let name = profile.file_name().expect("the profile's folder has a name");
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--workspace", "--lib", "--frozen", "--target-dir"]);
        build.arg(profile.parent().expect("it lies in the target folder"));
        build.arg("--profile").arg(if name == "debug" { "dev".as_ref() } else { name });
        run(build.current_dir(package()));
        profile.to_path_buf()
    })
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&said));
    output
}

#[derive(Clone, Copy, Debug)]
enum Linked {
    Shared,
    Static,
}

/// Compiles one of the programs here, links it and runs it; it checks itself.
fn passes(program: &str, linked: Linked) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let executable = folder.path().join(program);
    let libraries = libraries();
    let mut compile = Command::new("cc");
    compile.args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread"]);
    compile.arg("-I").arg(package().join("include")).arg("-I").arg(package().join("tests"));
    compile.arg(package().join(format!("tests/{program}.c"))).arg("-o").arg(&executable);
    match linked {
        Linked::Shared => {
            compile.arg("-L").arg(libraries).arg("-l:libwarpweft.so").arg("-Wl,-rpath").arg("-Xlinker").arg(libraries)
        }
        // What the Rust standard library itself needs, as `rustc --print native-static-libs` lists it.
        Linked::Static => {
            compile.arg(libraries.join("libwarpweft.a")).args(["-lgcc_s", "-lutil", "-lrt", "-ldl", "-lc"])
        }
    };
    run(compile.arg("-lm"));
    // A launcher's variables around the test are not those of the program under test.
    let mut command = Command::new(&executable);
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(name);
    }
    let output = run(&mut command);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), format!("{program}: all checks passed"), "{linked:?}");
}

#[test]
fn two_ranks_over_the_shared_library() {
    passes("ranks", Linked::Shared);
}

#[test]
fn two_ranks_over_the_static_library() {
    passes("ranks", Linked::Static);
}

#[test]
fn kernels_over_the_shared_library() {
    passes("kernels", Linked::Shared);
}

#[test]
fn kernels_over_the_static_library() {
    passes("kernels", Linked::Static);
}

/// The names before `(` in the header, outside its comments.
fn declared() -> BTreeSet<String> {
    let text = std::fs::read_to_string(package().join("include/warpweft.h")).expect("the header can be read");
    let mut code = String::new();
    let mut rest = text.as_str();
    while let Some((before, comment)) = rest.split_once("/*") {
        code += before;
        rest = comment.split_once("*/").expect("a comment ends").1;
    }
    code += rest;
    let words = code.split('(').filter_map(|before| before.rsplit([' ', '*', '\n']).next());
    words.filter(|word| word.starts_with("ww_")).map(str::to_owned).collect()
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
    let (declared, exported) = (declared(), exported());
    assert!(declared.len() > 30, "only {declared:?}");
    assert_eq!(declared, exported);
}
