//! Blocks behind many others, so that a test of offsets beyond 2^31 elements need not run those.

/// A program whose kernels begin at block `before`: a launch of two blocks runs that one and the next.
pub(crate) fn from_block(ptx: &str, before: usize) -> String {
    let mut text = String::new();
    for line in ptx.lines() {
        text.push_str(line);
        let block = line.trim().strip_prefix("mov.u32").and_then(|rest| rest.strip_suffix(", %ctaid.x;"));
        if let Some(register) = block.map(str::trim) {
            text.push_str(&format!("\n\tadd.u32 {register}, {register}, {before};"));
        }
        text.push('\n');
    }
    assert_ne!(text, ptx, "no kernel asks for its block");
    text
}
