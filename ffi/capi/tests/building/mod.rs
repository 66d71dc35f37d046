//! Programs in C against the library: building it, compiling and linking them, running them.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

pub(crate) fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the libraries as they are now. A test program does not depend on them as far as Cargo knows (no Rust code
/// can link them), so they are built here; the features of the whole workspace let this share what is built already.
pub(crate) fn libraries() -> &'static Path {
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

pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = [&output.stdout[..], &output.stderr[..]].concat();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&said));
    output
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Linked {
    Shared,
    Static,
}

/// The compiler of a file of this package.
pub(crate) fn compile(file: &str, executable: &Path, linked: Linked) -> Command {
    let (compiler, standard) = if file.ends_with(".cpp") { ("c++", "-std=c++17") } else { ("cc", "-std=c11") };
    let mut compile = Command::new(compiler);
    compile.args([standard, "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread"]);
    compile.arg("-I").arg(package().join("include")).arg("-I").arg(package().join("tests"));
    compile.arg(package().join(file)).arg("-o").arg(executable);
    let libraries = libraries();
    match linked {
        Linked::Shared => {
            compile.arg("-L").arg(libraries).arg("-l:libwarpweft.so").arg("-Wl,-rpath").arg("-Xlinker").arg(libraries)
        }
        // What the Rust standard library itself needs, as `rustc --print native-static-libs` lists it.
        Linked::Static => {
            compile.arg(libraries.join("libwarpweft.a")).args(["-lgcc_s", "-lutil", "-lrt", "-ldl", "-lc"])
        }
    };
    compile
}

/// What a program prints, without a launcher's variables, which are not those of the program under test.
pub(crate) fn output_of(command: &mut Command) -> String {
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(name);
    }
    String::from_utf8_lossy(&run(command).stdout).trim().to_owned()
}

/// A header without its comments.
pub(crate) fn code(header: &str) -> String {
    let text = std::fs::read_to_string(package().join("include").join(header)).expect("it can be read");
    let (mut code, mut rest) = (String::new(), text.as_str());
    while let Some((before, comment)) = rest.split_once("/*") {
        code += before;
        rest = comment.split_once("*/").expect("a comment ends").1;
    }
    code + rest
}
