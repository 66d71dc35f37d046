//! A driver library that is not NVIDIA's: the stand-in over the software device.

// Links the package, so that cargo builds its shared library beside this test.
use ptxvm_driver as _;
use tempfile::TempDir;

/// A folder with a `libcuda.so.1` that is the stand-in, which cargo has put beside this program.
pub(crate) fn stand_in() -> TempDir {
    let program = std::env::current_exe().expect("a test knows its program");
    let beside = program.parent().expect("it lies in a folder");
    let files = std::fs::read_dir(beside).expect("the folder can be read").filter_map(|entry| Some(entry.ok()?.path()));
    let libraries = files.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("libptxvm_driver") && name.ends_with(".so")
    });
    let newest = libraries.max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok());
    let newest = newest.unwrap_or_else(|| panic!("no libptxvm_driver*.so in {}", beside.display()));
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::os::unix::fs::symlink(newest, folder.path().join("libcuda.so.1")).expect("a link");
    folder
}
