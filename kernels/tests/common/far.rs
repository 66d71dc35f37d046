//! Blocks behind many others, so that a test of offsets beyond 2^31 elements need not run those.

use warpweft_device::{Arg, Buffer, Element, Float, Module};
use warpweft_kernels::programs;

use super::On;

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

/// The last two of so many rows that they lie behind 2^31 elements of each array: arrays are sparse buffers, and only the blocks of
/// those rows run.
pub(crate) struct Far {
    pub(crate) on: On,
    pub(crate) columns: usize,
    /// Rows before them: a multiple of the rows of a part of partial sums.
    pub(crate) before: usize,
    module: Module,
}

impl Far {
    /// Of `op`, whose blocks have `of_a_block` rows.
    pub(crate) fn new(op: &str, columns: usize, of_a_block: usize) -> Self {
        let on = On::open("software?check=all&memory=274877906944");
        let before = ((1usize << 31) / columns + 1).next_multiple_of(256);
        let program = programs().iter().find(|program| program.op == op).unwrap();
        let module = Module::load(&on.device, &from_block(program.ptx, before / of_a_block)).unwrap();
        Self { on, columns, before, module }
    }

    /// All rows.
    pub(crate) fn rows(&self) -> u32 {
        self.before as u32 + 2
    }

    /// An array of rows of `width` elements, the last two of which have values.
    pub(crate) fn up<T: Element>(&self, width: usize, values: &[T]) -> Buffer<T> {
        assert_eq!(values.len(), 2 * width);
        let mut buffer = self.room(width);
        buffer.view_mut(self.before * width..).unwrap().copy_from_host(&self.on.stream, values).unwrap();
        buffer
    }

    /// The same to be written.
    pub(crate) fn room<T: Element>(&self, width: usize) -> Buffer<T> {
        self.on.device.uninitialized((self.before + 2) * width).unwrap()
    }

    /// The last two rows.
    pub(crate) fn down<T: Element>(&self, width: usize, buffer: &Buffer<T>) -> Vec<T> {
        buffer.view(self.before * width..).unwrap().download(&self.on.stream).unwrap()
    }

    /// Launches so many blocks, the first of which has the first of the two rows.
    pub(crate) fn launch(&self, kernel: &str, grid: [u32; 3], block: [u32; 3], shared: usize, args: &[Arg]) {
        let kernel = self.module.kernel(kernel).unwrap();
        kernel.launch(&self.on.stream, grid, block, shared as u32, args).unwrap();
        self.on.stream.synchronize().unwrap();
    }

    /// A block for each of the two rows, with `inputs` of them kept in shared memory, as `launch/rows.rs` has it.
    pub(crate) fn launch_rows<T: Float>(&self, kernel: &str, inputs: usize, args: &[Arg]) {
        let bytes = self.columns * size_of::<T>();
        let threads = bytes.div_ceil(64).next_power_of_two() as u32;
        assert!((64..=1024).contains(&threads), "a warp a row");
        self.launch(&format!("{kernel}_{}", T::DTYPE), [2, 1, 1], [threads, 1, 1], inputs * bytes, args);
    }
}

/// Where a buffer is, as an argument.
pub(crate) fn at<T: Element>(buffer: &Buffer<T>) -> Arg {
    Arg::try_from(buffer).unwrap()
}
