//! The folder of foreign kernels, built by `scripts/foreign-kernels`.

use std::path::PathBuf;
use std::{env, fs};

use serde::de::DeserializeOwned;

/// A test that cannot find its kernels has proven nothing, so it fails.
pub(crate) fn folder() -> PathBuf {
    let folder = env::var_os("WARPWEFT_FOREIGN_KERNELS").unwrap_or_else(|| {
        panic!("set WARPWEFT_FOREIGN_KERNELS to a folder made by `scripts/foreign-kernels FOLDER`");
    });
    // Cargo runs tests in the package's folder; a relative path is meant from the workspace's root, where cargo was called.
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(folder)
}

pub(crate) fn text(name: &str) -> String {
    let path = folder().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}; run scripts/foreign-kernels", path.display()))
}

pub(crate) fn json<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Names of the files that end so, without the ending, sorted.
pub(crate) fn stems(below: &str, ending: &str) -> Vec<String> {
    let folder = folder().join(below);
    let listed = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let names =
        listed.map(|entry| entry.expect("the folder can be read").file_name().into_string().expect("a name in UTF-8"));
    let mut stems: Vec<String> = names.filter_map(|name| name.strip_suffix(ending).map(str::to_owned)).collect();
    stems.sort();
    stems
}
