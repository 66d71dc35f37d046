//! The executor: warps, divergence, blocks, barriers, asynchronous copies, host threads.
