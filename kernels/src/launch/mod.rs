//! How an op's kernels are found and launched on a device that runs PTX: `kernels/cu` compiled to `kernels/ptx`, which is
//! part of this library.

mod list;
mod parts;
mod rows;
mod sort;

use warpweft_device::{Arg, Float, Module, Properties, Stream};

use crate::KernelError;

pub(crate) use list::List;
pub(crate) use parts::{Partials, PartsLaunch};
pub(crate) use rows::{RowLaunch, fits};
pub(crate) use sort::Sort;

/// The kernels of one op, as PTX for compute capability 8.0: cards from there on run it.
#[derive(Debug)]
pub struct Program {
    /// The op, which is the file's name.
    pub op: &'static str,
    /// The text.
    pub ptx: &'static str,
}

/// The least compute capability that the PTX is for.
const COMPUTE: u32 = 80;

macro_rules! programs {
    ($($name:ident: $op:literal),* $(,)?) => {
        $(pub(crate) static $name: Program =
            Program { op: $op, ptx: include_str!(concat!("../../ptx/", $op, ".sm_80.ptx")) };)*

        /// The PTX of every op: what `kernels/ptx` holds.
        pub fn programs() -> &'static [&'static Program] {
            static ALL: &[&Program] = &[$(&$name),*];
            ALL
        }
    };
}

programs! {
    OPTIMIZER: "optimizer",
    NORM: "norm",
    ROPE: "rope",
    TRANSPOSE: "transpose",
    PHILOX: "philox",
    MATMUL: "matmul",
    CAST: "cast",
    CROSS_ENTROPY: "cross_entropy",
    EMBEDDING: "embedding",
    LAYERNORM: "layernorm",
    RESIDUAL: "residual",
    RMSNORM: "rmsnorm",
    SOFTMAX: "softmax",
    MOE_DISPATCH: "moe_dispatch",
    MOE_ROUTER: "moe_router",
    ATTENTION_64: "attention_64",
    ATTENTION_128: "attention_128",
    ATTENTION_256: "attention_256",
    ATTENTION_F32: "attention_f32",
}

/// A grid of blocks, and the dynamic shared memory of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
}

impl Extent {
    /// A warp for each of `rows` rows, which fit.
    pub(crate) fn of_warps(rows: usize) -> Self {
        const ROWS: u32 = 4;
        Self { grid: [(rows as u32).div_ceil(ROWS), 1, 1], block: [32, ROWS, 1], shared: 0 }
    }

    /// A thread for each of `count` things, which fit.
    pub(crate) fn of_threads(count: usize) -> Self {
        const THREADS: u32 = 256;
        Self { grid: [(count as u32).div_ceil(THREADS), 1, 1], block: [THREADS, 1, 1], shared: 0 }
    }

    /// One thread.
    pub(crate) const ONE: Extent = Extent { grid: [1, 1, 1], block: [1, 1, 1], shared: 0 };
}

impl Program {
    /// Launches `kernel` of the op; a name that ends in `_` gets the type of `T` behind it.
    pub(crate) fn launch<T: Float>(
        &'static self,
        stream: &Stream,
        kernel: &str,
        extent: Extent,
        args: &[Arg],
    ) -> Result<(), KernelError> {
        let device = stream.device();
        self.fits(device.properties()?)?;
        let name = if kernel.ends_with('_') { format!("{kernel}{}", T::DTYPE) } else { kernel.to_owned() };
        let kernel = Module::of_program(device, self.ptx)?.kernel(&name)?;
        Ok(kernel.launch(stream, extent.grid, extent.block, extent.shared, args)?)
    }

    fn fits(&self, properties: &Properties) -> Result<(), KernelError> {
        if properties.compute >= COMPUTE {
            return Ok(());
        }
        Err(KernelError::NoKernel {
            op: self.op,
            card: properties.card.clone(),
            exists: "compute capability 8.0 and later",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_that_is_too_old_is_named_with_its_driver() {
        let card = "Tesla T4 (compute capability 7.5, driver for CUDA 12.4)".to_owned();
        let of = |compute| Properties { compute, shared_bytes: 64 << 10, multiprocessors: 40, card: card.clone() };
        for program in programs() {
            let error = program.fits(&of(75)).unwrap_err().to_string();
            let said =
                format!("{}: no kernel for {card}; there are kernels for compute capability 8.0 and later", program.op);
            assert_eq!(error, said);
            assert!(program.fits(&of(80)).is_ok() && program.fits(&of(120)).is_ok());
        }
    }
}
