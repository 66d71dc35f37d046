//! Kernels for Hopper: they are read and typed, and what does not run is refused by name.

use warpweft_ptxvm::lower;

use crate::corpus;

pub(crate) fn every_module_compiles() {
    let modules = corpus::stems("sm_90a", ".ptx");
    assert!(modules.len() >= 8, "only {} modules for sm_90a", modules.len());
    for name in &modules {
        let program = lower::compile(&corpus::text(&format!("sm_90a/{name}.ptx")));
        let program = program.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(program.target.sm, 90, "{name}");
    }
}
