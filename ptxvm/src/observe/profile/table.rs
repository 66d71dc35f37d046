//! The profile as a table.

use std::fmt;

use super::{Gpu, Profile};

impl Profile {
    /// Bytes that were moved over the least that must be; 1 where nothing must.
    pub fn traffic_ratio(&self) -> f64 {
        let moved = (self.read_bytes + self.written_bytes) as f64;
        if self.least_bytes == 0 { 1.0 } else { moved / self.least_bytes as f64 }
    }

    /// The launch beside a GPU's roofline, as text.
    pub fn against<'a>(&'a self, gpu: &'a Gpu) -> impl fmt::Display + 'a {
        Against { profile: self, gpu }
    }
}

struct Against<'a> {
    profile: &'a Profile,
    gpu: &'a Gpu,
}

impl fmt::Display for Against<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Against { profile, gpu } = self;
        let threads = profile.block.iter().product();
        let occupancy = gpu.occupancy(threads, profile.registers, profile.shared_bytes);
        let roofline = gpu.roofline(profile);
        writeln!(
            out,
            "on {}: {} blocks an SM ({:.0} % of its warps, bound by {}), at least {:.2} us, bound by {}",
            gpu.name,
            occupancy.blocks,
            100.0 * occupancy.share,
            occupancy.limit,
            roofline.time_us,
            roofline.bound
        )?;
        writeln!(
            out,
            "  memory {:.2} us, tensor {:.2} us, f32 {:.2} us, f64 {:.2} us",
            roofline.memory_us, roofline.tensor_us, roofline.f32_us, roofline.f64_us
        )
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = |[x, y, z]: [u32; 3]| format!("{x}x{y}x{z}");
        writeln!(
            out,
            "{}: grid {}, block {}, {} shared bytes, about {} registers",
            self.kernel,
            shape(self.grid),
            shape(self.block),
            self.shared_bytes,
            self.registers
        )?;
        let lanes = self.thread_instructions as f64 / self.warp_instructions.max(1) as f64;
        writeln!(out, "  warp instructions   {:>14}   {lanes:.1} lanes of 32 at work", self.warp_instructions)?;
        for (class, count) in &self.mix {
            let share = 100.0 * *count as f64 / self.warp_instructions.max(1) as f64;
            writeln!(out, "    {:<24} {count:>12}   {share:>5.1} %", class.name())?;
        }
        let (wide, requests) = self.wide_requests;
        writeln!(out, "  global bytes read   {:>14}", self.read_bytes)?;
        writeln!(out, "  global bytes written{:>14}", self.written_bytes)?;
        writeln!(
            out,
            "  the least to move   {:>14}   {:.2} times that was moved",
            self.least_bytes,
            self.traffic_ratio()
        )?;
        writeln!(out, "  global requests     {requests:>14}   {wide} of them 16 bytes a lane or more")?;
        writeln!(
            out,
            "  shared wavefronts   {:>14}   {} of them bank conflicts",
            self.wavefronts.0, self.wavefronts.1
        )?;
        writeln!(out, "  local bytes         {:>14}", self.local_bytes)?;
        writeln!(out, "  branches            {:>14}   {} of them divergent", self.branches.0, self.branches.1)?;
        writeln!(out, "  tensor operations   {:>14}", self.tensor_operations)?;
        writeln!(out, "  f32 operations      {:>14}", self.f32_operations)?;
        writeln!(out, "  line  executions  lanes  sectors/request  conflicts  local  instruction")?;
        for line in &self.instructions {
            let lanes = line.lanes as f64 / line.executions.max(1) as f64;
            let sectors = match line.requests {
                0 => String::new(),
                requests => format!("{:.1}", line.sectors as f64 / requests as f64),
            };
            writeln!(
                out,
                "  {:>4}  {:>10}  {lanes:>5.1}  {sectors:>15}  {:>9}  {:>5}  {}",
                line.line, line.executions, line.conflicts, line.local_bytes, line.text
            )?;
        }
        Ok(())
    }
}
