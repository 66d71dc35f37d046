//! What a named GPU could do with a launch: occupancy, and the least time by its roofline.

use serde::Serialize;

use super::Profile;

/// A GPU's limits and peak rates, from its maker's data sheet (dense rates, without sparsity) and the CUDA C++ Programming
/// Guide's table of compute capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gpu {
    /// Its name here.
    pub name: &'static str,
    /// Compute capability, 80 for 8.0.
    pub sm: u16,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Bytes a second of its memory.
    pub memory: f64,
    /// 16-bit tensor operations a second.
    pub tensor: f64,
    /// f32 operations a second.
    pub f32: f64,
    /// f64 operations a second, outside of tensor cores.
    pub f64: f64,
    /// Warps that an SM holds.
    pub warps: u32,
    /// Blocks that an SM holds.
    pub blocks: u32,
    /// Shared bytes of an SM.
    pub shared: u32,
}

/// GPUs that a roofline can be drawn for.
pub const GPUS: [Gpu; 6] = [
    Gpu {
        name: "a100",
        sm: 80,
        sms: 108,
        memory: 2.039e12,
        tensor: 312e12,
        f32: 19.5e12,
        f64: 9.7e12,
        warps: 64,
        blocks: 32,
        shared: 164 << 10,
    },
    Gpu {
        name: "h100",
        sm: 90,
        sms: 132,
        memory: 3.35e12,
        tensor: 989e12,
        f32: 67e12,
        f64: 34e12,
        warps: 64,
        blocks: 32,
        shared: 228 << 10,
    },
    Gpu {
        name: "h200",
        sm: 90,
        sms: 132,
        memory: 4.8e12,
        tensor: 989e12,
        f32: 67e12,
        f64: 34e12,
        warps: 64,
        blocks: 32,
        shared: 228 << 10,
    },
    Gpu {
        name: "l40s",
        sm: 89,
        sms: 142,
        memory: 0.864e12,
        tensor: 362e12,
        f32: 91.6e12,
        f64: 1.43e12,
        warps: 48,
        blocks: 24,
        shared: 100 << 10,
    },
    Gpu {
        name: "rtx3090",
        sm: 86,
        sms: 82,
        memory: 0.936e12,
        tensor: 71e12,
        f32: 35.6e12,
        f64: 0.556e12,
        warps: 48,
        blocks: 16,
        shared: 100 << 10,
    },
    Gpu {
        name: "rtx4090",
        sm: 89,
        sms: 128,
        memory: 1.008e12,
        tensor: 165e12,
        f32: 82.6e12,
        f64: 1.29e12,
        warps: 48,
        blocks: 24,
        shared: 100 << 10,
    },
];

/// Registers of an SM, and the unit in which a warp takes them.
const REGISTERS: u32 = 65536;
const REGISTER_UNIT: u32 = 256;
/// Shared bytes that the system takes of each block, and the unit of shared memory.
const SYSTEM_SHARED: u32 = 1024;
const SHARED_UNIT: u32 = 128;

/// How full an SM can be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Occupancy {
    /// Blocks that fit on an SM at once.
    pub blocks: u32,
    /// Share of the SM's warps that they fill.
    pub share: f64,
    /// What bounds it: `warps`, `blocks`, `registers` or `shared`.
    pub limit: &'static str,
}

/// The least time of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Roofline {
    /// Microseconds to move the least bytes.
    pub memory_us: f64,
    /// Microseconds for tensor operations at peak.
    pub tensor_us: f64,
    /// Microseconds for f32 operations at peak.
    pub f32_us: f64,
    /// Microseconds for f64 operations at peak.
    pub f64_us: f64,
    /// The largest of them.
    pub time_us: f64,
    /// Which it is.
    pub bound: &'static str,
}

impl Gpu {
    /// The GPU of a name.
    pub fn named(name: &str) -> Option<&'static Gpu> {
        GPUS.iter().find(|gpu| gpu.name.eq_ignore_ascii_case(name))
    }

    /// How many blocks fit, for threads of a block, registers of a thread and shared bytes of a block.
    pub fn occupancy(&self, threads: u32, registers: u32, shared: u32) -> Occupancy {
        let warps = threads.div_ceil(32).max(1);
        let of_warp = (registers.max(1) * 32).next_multiple_of(REGISTER_UNIT);
        let of_block = (shared + SYSTEM_SHARED).next_multiple_of(SHARED_UNIT);
        let limits = [
            (self.warps / warps, "warps"),
            (self.blocks, "blocks"),
            (REGISTERS / of_warp / warps, "registers"),
            (self.shared / of_block, "shared"),
        ];
        let (blocks, limit) = limits.into_iter().min_by_key(|&(blocks, _)| blocks).unwrap_or((0, "warps"));
        Occupancy { blocks, share: f64::from(blocks * warps) / f64::from(self.warps), limit }
    }

    /// The least time of a profiled launch.
    pub fn roofline(&self, profile: &Profile) -> Roofline {
        let us = |work: u64, rate: f64| work as f64 / rate * 1e6;
        let memory_us = us(profile.least_bytes, self.memory);
        let tensor_us = us(profile.tensor_operations, self.tensor);
        let (f32_us, f64_us) = (us(profile.f32_operations, self.f32), us(profile.f64_operations, self.f64));
        let bounds = [(memory_us, "memory"), (tensor_us, "tensor"), (f32_us, "f32"), (f64_us, "f64")];
        let (time_us, bound) =
            bounds.into_iter().fold((0.0, "memory"), |most, one| if one.0 > most.0 { one } else { most });
        Roofline { memory_us, tensor_us, f32_us, f64_us, time_us, bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occupancy_is_that_of_the_maker_s_calculator() {
        let a100 = Gpu::named("A100").unwrap();
        // 128 threads, 32 registers, no shared: 16 blocks fill the 64 warps.
        assert_eq!(a100.occupancy(128, 32, 0), Occupancy { blocks: 16, share: 1.0, limit: "warps" });
        // 255 registers: 8192 a warp, 8 warps, two blocks of four.
        assert_eq!(a100.occupancy(128, 255, 0), Occupancy { blocks: 2, share: 0.125, limit: "registers" });
        // 48 KiB of shared and one more for the system: three of them in 164 KiB.
        assert_eq!(a100.occupancy(128, 32, 48 << 10), Occupancy { blocks: 3, share: 0.1875, limit: "shared" });
        assert_eq!(a100.occupancy(32, 16, 0), Occupancy { blocks: 32, share: 0.5, limit: "blocks" });
        // What does not fit at all.
        assert_eq!(Gpu::named("l40s").unwrap().occupancy(1024, 128, 0).blocks, 0);
    }

    #[test]
    fn the_roofline_takes_the_slowest_part() {
        let profile = Profile { least_bytes: 2_039_000_000, tensor_operations: 312_000_000, ..Profile::default() };
        let roofline = Gpu::named("a100").unwrap().roofline(&profile);
        assert!((roofline.time_us - 1000.0).abs() < 1e-6 && roofline.bound == "memory");
        assert!((roofline.tensor_us - 1.0).abs() < 1e-9);
    }
}
