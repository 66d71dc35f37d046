//! What the hardware would be charged for by the kernels of an op, from the counters of the software device.

use warpweft_device::ptxvm::observe::profile::Profile;

use super::On;

/// The counters of every kernel that `work` launches, in order.
pub(crate) fn profiles(work: impl FnOnce(&On)) -> Vec<Profile> {
    let on = On::open("software");
    on.stream.profile(|| work(&on)).unwrap().1
}

fn sectors(profiles: &[Profile], of: fn(&str) -> bool) -> u64 {
    let lines = profiles.iter().flat_map(|profile| &profile.instructions);
    lines.filter(|line| of(&line.text)).map(|line| line.sectors).sum()
}

/// Sectors of 32 bytes that are touched by accesses of four elements or 16 bytes a thread.
pub(crate) fn wide_sectors(profiles: &[Profile]) -> u64 {
    sectors(profiles, |text| text.contains(".v4.") || text.contains(".v2.u64"))
}

/// What a launch does, however its threads are scheduled.
#[derive(PartialEq, Eq)]
pub(crate) struct Work {
    kernel: String,
    /// Lanes that access global memory, and the sectors that they touch: all, and 16 bytes a lane.
    lanes: u64,
    sectors: u64,
    wide: u64,
    /// Passes over the banks of shared memory.
    wavefronts: u64,
    /// Operations on floats.
    operations: [u64; 3],
}

/// The work of launches, in order.
pub(crate) fn work(profiles: &[Profile]) -> Vec<Work> {
    let work = |profile: &Profile| Work {
        kernel: profile.kernel.clone(),
        lanes: profile.instructions.iter().filter(|line| line.requests > 0).map(|line| line.lanes).sum(),
        sectors: sectors(std::slice::from_ref(profile), |_| true),
        wide: wide_sectors(std::slice::from_ref(profile)),
        wavefronts: profile.wavefronts.0,
        operations: [profile.f32_operations, profile.f64_operations, profile.tensor_operations],
    };
    profiles.iter().map(work).collect()
}

/// Asserts that the kernels are bound by memory alone: that the sectors of 32 bytes that they touch are at most 1.05 times the
/// bytes that any kernel must move, that all but 5 % of them are touched by accesses of 16 bytes a thread, and that accesses to
/// shared memory do not conflict.
///
/// `again` are bytes that are read more than once by intent and lie in the caches by then: a weight that every row reads. The
/// test says how many, exactly; they count once more in the least.
#[track_caller]
pub(crate) fn assert_bound_by_memory(what: &str, profiles: &[Profile], again: usize) {
    assert_bound_by_memory_but(what, profiles, again, 5);
}

/// The same where up to `narrow` % of the sectors may be touched by narrower accesses: arrays of two types side by side, whose
/// neighbours a thread has alike.
#[track_caller]
pub(crate) fn assert_bound_by_memory_but(what: &str, profiles: &[Profile], again: usize, narrow: u64) {
    assert!(!profiles.is_empty(), "{what}: no kernel");
    assert_wide(what, profiles, again, narrow);
    let conflicts: u64 = profiles.iter().map(|profile| profile.wavefronts.1).sum();
    assert_eq!(conflicts, 0, "{what}: bank conflicts");
}

/// The same where accesses to shared memory may conflict.
#[track_caller]
pub(crate) fn assert_moved_once(what: &str, profiles: &[Profile]) {
    assert_wide(what, profiles, 0, 5);
}

#[track_caller]
fn assert_wide(what: &str, profiles: &[Profile], again: usize, narrow: u64) {
    let sum = |of: fn(&Profile) -> u64| profiles.iter().map(of).sum::<u64>();
    let (moved, least) = (sum(|p| p.read_bytes + p.written_bytes), sum(|p| p.least_bytes) + again as u64);
    let (wide, all) = (wide_sectors(profiles), sectors(profiles, |_| true));
    assert!(moved * 100 <= least * 105, "{what}: {moved} bytes moved, the least is {least}");
    assert!(wide * 100 >= all * (100 - narrow), "{what}: {wide} of {all} sectors are touched 16 bytes a thread");
}
