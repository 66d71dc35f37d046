//! Kernels that compilers wrote, from a folder that `WARPWEFT_PTX_CORPUS` names: every one must pass the checks.

use std::path::PathBuf;

use warpweft_ptxvm::lower;

#[test]
fn compiled_kernels_pass() {
    let Some(folders) = std::env::var_os("WARPWEFT_PTX_CORPUS") else {
        return;
    };
    let mut wrong = Vec::new();
    let mut count = 0;
    for folder in std::env::split_paths(&folders) {
        let entries = std::fs::read_dir(&folder).expect("the corpus is a folder");
        let paths = entries.map(|entry| entry.expect("the folder can be read").path());
        let mut paths: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "ptx")).collect();
        paths.sort();
        for path in paths {
            let text = std::fs::read_to_string(&path).expect("PTX is text");
            count += 1;
            if let Err(error) = lower::compile(&text) {
                wrong.push(format!("{}\n{error}", path.display()));
            }
        }
    }
    assert!(count > 0, "the corpus has no .ptx files");
    assert!(wrong.is_empty(), "{} of {count} do not compile:\n{}", wrong.len(), wrong.join("\n"));
}
