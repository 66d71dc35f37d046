//! House rules that the compiler does not check: what a source file looks like, who may depend on whom, where `unsafe`
//! may stand, and that the documents are true about both. Each rule collects all its offenders before it fails.
#![forbid(unsafe_code)]

mod documents;
mod packages;
mod sources;

use std::fs;
use std::path::{Path, PathBuf};

/// A text file of the tree: its path from the root, with `/` on every system, and its text.
struct File {
    path: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every text file of the project, in order of its path. What a build or a run leaves behind is not part of it.
fn files() -> Vec<File> {
    let mut found = Vec::new();
    walk(root(), &mut found);
    let mut files: Vec<File> = found
        .into_iter()
        .filter_map(|path| {
            let text = fs::read_to_string(&path).ok()?;
            let path = path.strip_prefix(root()).ok()?.to_string_lossy().replace('\\', "/");
            Some(File { path, text })
        })
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(files.len() > 20, "only {} files found below {}", files.len(), root().display());
    files
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the project's folders can be read") {
        let entry = entry.expect("an entry of a folder can be read");
        let path = entry.path();
        let name = entry.file_name();
        if !path.is_dir() {
            found.push(path);
        } else if name != ".git" && name != "out" && name != "raw" && !path.join("CACHEDIR.TAG").exists() {
            walk(&path, found);
        }
    }
}

/// Fails with the list of offenders, if there are any.
fn none(rule: &str, offenders: Vec<String>) {
    assert!(offenders.is_empty(), "{rule}:\n  {}\n", offenders.join("\n  "));
}
