//! Stamps what `warpweft --version` reports: the git revision and the CUDA toolkit that was there at build time.
//!
//! Never fails: what cannot be found is stamped as such. Nothing is linked and nothing is generated here.
#![forbid(unsafe_code)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=WARPWEFT_REVISION={}", revision().unwrap_or_else(|| "no git revision".into()));
    println!("cargo:rustc-env=WARPWEFT_CUDA={}", cuda_toolkit().unwrap_or_else(|| "no CUDA toolkit".into()));
}

/// The short hash of HEAD; `None` where there is no git or where the repository is somebody else's around ours.
fn revision() -> Option<String> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR")?);
    let top = PathBuf::from(git(&here, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != here.canonicalize().ok()? {
        return None;
    }
    // HEAD moves when another branch is checked out, the log of HEAD on every commit.
    for name in ["HEAD", "logs/HEAD"] {
        let path = here.join(git(&here, &["rev-parse", "--git-path", name])?);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    git(&here, &["rev-parse", "--short=12", "HEAD"])
}

fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

/// The first toolkit among CUDA_HOME, CUDA_PATH, the `nvcc` on PATH and /usr/local/cuda: `CUDA toolkit 13.0 in /usr/local/cuda`.
fn cuda_toolkit() -> Option<String> {
    let mut places = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        println!("cargo:rerun-if-env-changed={variable}");
        places.extend(env::var_os(variable).map(PathBuf::from));
    }
    println!("cargo:rerun-if-env-changed=PATH");
    let path = env::var_os("PATH").unwrap_or_default();
    let bins = env::split_paths(&path).filter(|folder| folder.join("nvcc").is_file());
    places.extend(bins.filter_map(|folder| folder.parent().map(Path::to_path_buf)));
    places.push("/usr/local/cuda".into());
    places.iter().find_map(|place| {
        let output = Command::new(place.join("bin/nvcc")).arg("--version").output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let (_, rest) = text.split_once("release ")?;
        let version = rest.split(',').next()?;
        Some(format!("CUDA toolkit {version} in {}", place.display()))
    })
}
