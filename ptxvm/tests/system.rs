//! The host's side: modules, launches, streams, events, several devices, and every wrong request as an error.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use warpweft_ptxvm::exec::{Asynchrony, Divergence, Flow, HostCall, Schedule};
use warpweft_ptxvm::observe::check::Checks;
use warpweft_ptxvm::system::{Device, DeviceOptions, Event, Pointer, System, SystemError};
use warpweft_ptxvm::types::Target;

const PTX: &str = include_str!("system.ptx");

fn device() -> Device {
    Device::new(Target::SM_80).unwrap()
}

#[test]
fn a_kernel_test_is_ten_lines() {
    let device = device();
    let module = device.load(PTX).unwrap();
    let x = device.upload(&[1.5f32; 256]).unwrap();
    let y = device.allocate(1024).unwrap();
    let launch = module.kernel("scale").unwrap().launch([2, 1, 1], [128, 1, 1]);
    let run = launch.arg(&x).arg(&y).arg(2.0f32).arg(256u32).check(Checks::ALL).seed(1).run().unwrap();
    assert_eq!(run.errors(), 0, "{run}");
    assert_eq!(device.download::<f32>(&y).unwrap(), [3.0; 256]);
    assert!(run.warp_instructions > 8 * 5, "{run}");
}

#[test]
fn every_schedule_gives_the_same_sums() {
    let device = device();
    let kernel = device.load(PTX).unwrap().kernel("count").unwrap();
    for schedule in [Schedule::RoundRobin, Schedule::Reverse, Schedule::Random] {
        for divergence in [Divergence::Reconverge, Divergence::Independent] {
            for (workers, checks) in [(1, Checks::ALL), (1, Checks::NONE), (4, Checks::NONE)] {
                let total = device.upload(&[0u32]).unwrap();
                let launch = kernel.launch([50, 1, 1], [96, 1, 1]).arg(&total).schedule(schedule).seed(9);
                let launch =
                    launch.divergence(divergence).asynchrony(Asynchrony::Random).workers(workers).check(checks);
                let run = launch.run().unwrap();
                assert_eq!(run.errors(), 0, "{run}");
                assert_eq!(device.download::<u32>(&total).unwrap(), [50 * 96]);
            }
        }
    }
}

#[test]
fn arguments_are_checked_by_name_type_and_size() {
    let device = device();
    let module = device.load(PTX).unwrap();
    let x = device.upload(&[0f32; 4]).unwrap();
    let launch = || module.kernel("scale").unwrap().launch([1; 3], [4, 1, 1]);
    let said = |launch: warpweft_ptxvm::system::Launch| launch.run().unwrap_err().to_string();
    assert_eq!(
        said(launch().arg(&x)),
        "kernel `scale` takes 4 arguments, 1 given; its parameters: x .u64 (8 bytes, a pointer), y .u64 (8 bytes, a \
         pointer), a .f32 (4 bytes), n .u32 (4 bytes)"
    );
    assert_eq!(
        said(launch().arg(&x).arg(&x).arg(1u32).arg(4u32)),
        "kernel `scale`: parameter 2 `a` is .f32 (4 bytes), given is a value of type u32 (4 bytes)"
    );
    assert_eq!(
        said(launch().arg(&x).arg(&x).arg(1f64).arg(4u32)),
        "kernel `scale`: parameter 2 `a` is .f32 (4 bytes), given is a value of type f64 (8 bytes)"
    );
    assert!(said(launch().arg(1f64).arg(&x).arg(1f32).arg(4u32)).contains("parameter 0 `x`"));
    assert!(said(launch().arg(&x).arg(&x).arg(1f32).arg(4u64)).contains("parameter 3 `n`"));
    // Bits of the right size, an address as a number, and the sign of an integer are the caller's business.
    let raw = 1f32.to_le_bytes();
    let right = launch().arg(Pointer(x.address())).arg(x.address()).arg(raw.as_slice()).arg(4i32);
    assert_eq!(right.check(Checks::ALL).run().unwrap().errors(), 0);

    let struct_of = |bytes: &[u8]| module.kernel("structured").unwrap().launch([1; 3], [1; 3]).arg(bytes).validate();
    assert!(struct_of(&[0; 12]).is_ok());
    let error = struct_of(&[0; 16]).unwrap_err().to_string();
    assert!(error.contains("12 bytes (`.param .b8 s[12]`)") && error.contains("16 raw bytes"), "{error}");
    let half = module.kernel("half").unwrap().launch([1; 3], [1; 3]);
    assert!(
        half.clone().arg(half::f16::ONE).validate().is_ok() && half.clone().arg(half::bf16::ONE).validate().is_ok()
    );
    assert!(half.clone().arg(1u16).validate().is_ok() && half.arg(1f32).validate().is_err());
}

#[test]
fn wrong_launches_are_errors_before_anything_runs() {
    let device = device();
    let module = device.load(PTX).unwrap();
    let kernel = module.kernel("count").unwrap();
    let total = device.upload(&[7u32]).unwrap();
    let said = |grid, block, shared| {
        let launch = kernel.launch(grid, block).arg(&total).shared(shared);
        (launch.clone().validate().unwrap_err().to_string(), launch.enqueue(&device.stream()).unwrap_err().to_string())
    };
    for (grid, block, shared, words) in [
        ([0, 1, 1], [1, 1, 1], 0, "grid"),
        ([1, 65536, 1], [1, 1, 1], 0, "65536"),
        ([1, 1, 1], [1, 0, 1], 0, "block"),
        ([1, 1, 1], [33, 32, 1], 0, "1024"),
        ([1, 1, 1], [1, 1, 65], 0, "65"),
        ([u32::MAX, 1, 1], [1, 1, 1], 0, "4294967295"),
        ([1, 1, 1], [1, 1, 1], 163 * 1024 + 1, "166913"),
        ([1, 1, 1], [1, 1, 1], u32::MAX, "4294967295"),
    ] {
        let (now, enqueued) = said(grid, block, shared);
        assert!(now.contains(words) && now == enqueued, "{words}: {now} / {enqueued}");
    }
    assert!(kernel.launch([1; 3], [1; 3]).arg(&total).shared(163 * 1024).run().is_ok());
    let fixed = module.kernel("fixed").unwrap();
    let error = fixed.launch([1; 3], [32, 1, 1]).run().unwrap_err().to_string();
    assert!(error.contains("fixed") && error.contains("[64, 1, 1]"), "{error}");
    let error = kernel.launch([1; 3], [1; 3]).arg(&total).cluster([2, 1, 1]).run().unwrap_err();
    assert!(matches!(error, SystemError::Cluster { .. }), "{error}");
    let error = module.kernel("cuont").unwrap_err().to_string();
    assert!(error.contains("`cuont`") && error.contains("`count`"), "{error}");
    let other = Device::new(Target::SM_80).unwrap();
    let error = kernel.launch([1; 3], [1; 3]).arg(&other.upload(&[1u32]).unwrap()).run().unwrap_err();
    assert!(matches!(error, SystemError::OtherSystem { .. }), "{error}");
    let error = kernel.launch([1; 3], [1; 3]).arg(&total).enqueue(&other.stream()).unwrap_err();
    assert!(matches!(error, SystemError::OtherSystem { .. }), "{error}");
    let error = module.kernel("calls_host").unwrap().launch([1; 3], [1; 3]).arg(&total).run().unwrap_err().to_string();
    assert!(error.contains("add_on_host"), "{error}");
    assert_eq!(device.download::<u32>(&total).unwrap(), [8], "one of these ran");
}

#[test]
fn modules_are_for_their_target_and_later_ones() {
    let newer = PTX.replace(".target sm_80", ".target sm_90");
    assert!(matches!(device().load(&newer), Err(SystemError::Target { .. })));
    assert!(Device::new(Target::SM_90).unwrap().load(&newer).is_ok());
    assert!(Device::new(Target::SM_90).unwrap().load(PTX).is_ok());
    let error = device().load("\n.version 8.0\n.target sm_80\n.entry k() { nonsense; }").unwrap_err().to_string();
    assert!(error.contains("line 4"), "{error}");
}

#[test]
fn variables_have_memory_initial_values_and_addresses_of_each_other() {
    let device = device();
    let module = device.load(PTX).unwrap();
    let table = module.global("table").unwrap();
    let mut bytes = [0; 16];
    device.memory().read(table.address, &mut bytes).unwrap();
    assert_eq!(bytes, [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    let link = module.global("link").unwrap();
    let mut address = [0; 8];
    device.memory().read(link.address, &mut address).unwrap();
    assert_eq!(u64::from_le_bytes(address), table.address + 4);
    let error = module.global("tabel").unwrap_err().to_string();
    assert!(error.contains("`tabel`") && error.contains("`table`"), "{error}");

    let out = device.allocate(8).unwrap();
    let run = module.kernel("look").unwrap().launch([1; 3], [1; 3]).arg(&out).check(Checks::ALL).run().unwrap();
    assert_eq!(run.errors(), 0, "{run}");
    assert_eq!(device.download::<u32>(&out).unwrap(), [2, 40]);
    // The host may change both kinds; a second module has its own.
    device.memory().write(module.global("scale_by").unwrap().address, &41u32.to_le_bytes()).unwrap();
    device.memory().write(table.address + 4, &5u32.to_le_bytes()).unwrap();
    module.kernel("look").unwrap().launch([1; 3], [1; 3]).arg(&out).run().unwrap();
    assert_eq!(device.download::<u32>(&out).unwrap(), [5, 41]);
    let second = device.load(PTX).unwrap();
    second.kernel("look").unwrap().launch([1; 3], [1; 3]).arg(&out).run().unwrap();
    assert_eq!(device.download::<u32>(&out).unwrap(), [2, 40]);
    let before = device.memory().allocations().len();
    drop(second);
    assert!(device.memory().allocations().len() < before, "a module's variables go with it");
}

#[test]
fn a_failed_kernel_stops_its_device_until_the_error_is_cleared() {
    let device = device();
    let module = device.load(PTX).unwrap();
    let total = device.upload(&[1u32]).unwrap();
    for (name, kind) in [("traps", "trap"), ("astray", "out-of-bounds")] {
        for checks in [Checks::NONE, Checks::ALL] {
            let run = module.kernel(name).unwrap().launch([1; 3], [32, 1, 1]).check(checks).run().unwrap();
            assert_eq!(run.errors(), 1, "{run}");
            assert_eq!(run.reports[0].kind, kind, "{run}");
            assert!(run.failure().is_some() && run.to_string().contains("stopped after"), "{run}");
            for error in [
                device.download::<u32>(&total).unwrap_err(),
                device.allocate(4).unwrap_err(),
                device.load(PTX).unwrap_err(),
                module.kernel("count").unwrap().launch([1; 3], [1; 3]).arg(&total).run().unwrap_err(),
            ] {
                let words = error.to_string();
                assert!(words.contains(&format!("kernel `{name}`")) && words.contains("device 0"), "{words}");
            }
            device.clear_error();
            assert_eq!(device.download::<u32>(&total).unwrap(), [1]);
        }
    }
}

#[test]
fn a_kernel_without_end_stops_at_its_limit() {
    let kernel = device().load(PTX).unwrap().kernel("spins").unwrap();
    for (checks, workers) in [(Checks::ALL, 1), (Checks::NONE, 1), (Checks::NONE, 2)] {
        let launch = kernel.launch([3, 1, 1], [64, 1, 1]).limit(50_000).check(checks).workers(workers);
        let run = launch.run().unwrap();
        assert_eq!(run.reports.len(), 1, "{run}");
        assert_eq!(run.reports[0].kind, "limit", "{run}");
        assert!((50_000..60_000).contains(&run.warp_instructions), "{run}");
        kernel.module().device().clear_error();
    }
}

#[test]
fn streams_keep_their_order_and_events_order_them() {
    let device = device();
    let module = device.load(PTX).unwrap();
    let total = device.upload(&[0u32]).unwrap();
    let (first, second) = (device.stream(), device.stream());
    let (never, done) = (Event::new(), Event::new());
    assert!(!never.is_recorded() && never.is_reached(), "as in CUDA");
    second.wait(&never).unwrap();
    for _ in 0..3 {
        module.kernel("count").unwrap().launch([20, 1, 1], [64, 1, 1]).arg(&total).enqueue(&first).unwrap();
    }
    first.record(&done).unwrap();
    second.wait(&done).unwrap();
    let seen = Arc::new(AtomicU32::new(0));
    let (memory, address, kept) = (Arc::clone(device.memory()), total.address(), Arc::clone(&seen));
    second
        .submit_short(move || {
            let mut bytes = [0; 4];
            memory.read(address, &mut bytes)?;
            kept.store(u32::from_le_bytes(bytes), Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
    second.synchronize().unwrap();
    assert_eq!(seen.load(Ordering::Relaxed), 3 * 20 * 64);
    let runs = first.synchronize().unwrap();
    assert_eq!(runs.len(), 3);
    assert!(done.is_reached() && done.since(&done).is_some() && done.since(&never).is_none());
    device.synchronize();
    assert!(first.is_idle() && second.is_idle());
}

#[test]
fn an_error_of_a_stream_comes_with_its_synchronisation_and_stops_what_follows() {
    let device = device();
    let module = device.load(PTX).unwrap();
    let total = device.upload(&[0u32]).unwrap();
    let stream = device.stream();
    let event = Event::new();
    // Holds the stream until both launches are queued.
    stream.wait(&event).unwrap();
    module.kernel("traps").unwrap().launch([1; 3], [1; 3]).enqueue(&stream).unwrap();
    let late = module.kernel("count").unwrap().launch([1; 3], [1; 3]).arg(&total).enqueue(&stream);
    let error = match (late, stream.synchronize()) {
        (Ok(()), Err(error)) | (Err(error), Ok(_)) => error,
        (late, done) => panic!("{late:?} {done:?}"),
    };
    assert!(matches!(error, SystemError::Stopped { .. }), "{error}");
    device.clear_error();
    assert_eq!(device.download::<u32>(&total).unwrap(), [0]);
    assert!(stream.synchronize().is_ok());
}

#[test]
fn kernels_of_two_devices_wait_for_each_other() {
    let system = System::new([Target::SM_80; 2]).unwrap();
    let devices = [system.device(0).unwrap(), system.device(1).unwrap()];
    let modules = devices.each_ref().map(|device| device.load(PTX).unwrap());
    let flags = devices.each_ref().map(|device| device.upload(&[0u32, 0]).unwrap());
    let launch = |own: usize, other: usize| {
        let launch = modules[own].kernel("meet").unwrap().launch([1; 3], [1; 3]);
        launch.arg(&flags[own]).arg(&flags[other]).limit(200_000_000)
    };
    // Without peer access the other's memory is a fault.
    let run = launch(0, 1).run().unwrap();
    assert_eq!(run.reports[0].kind, "no-peer-access", "{run}");
    devices[0].clear_error();
    devices[0].enable_peer(&devices[1]).unwrap();
    devices[1].enable_peer(&devices[0]).unwrap();
    let streams = devices.each_ref().map(Device::stream);
    launch(0, 1).enqueue(&streams[0]).unwrap();
    launch(1, 0).enqueue(&streams[1]).unwrap();
    for (stream, (device, flag)) in streams.iter().zip(devices.iter().zip(&flags)) {
        let runs = stream.synchronize().unwrap();
        assert_eq!(runs[0].errors(), 0, "{}", runs[0]);
        assert_eq!(device.download::<u32>(flag).unwrap()[0], 1);
    }
    assert!(devices[0].enable_peer(&Device::new(Target::SM_80).unwrap()).is_err());
    assert!(system.device(2).is_err());
}

#[test]
fn functions_of_the_host_see_the_callers_and_write_memory() {
    let device = device();
    let module = device.load(PTX).unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    device.system().provide("add_on_host", move |call: &mut HostCall<'_>| {
        // The first call of each lane waits a turn.
        if counted.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            return Ok(Flow::Again);
        }
        let address = call.argument_u64(0)?;
        let ([x, ..], _) = call.thread();
        call.write(address + 4 * u64::from(x), &(call.argument_u32(1)? + 100 * x).to_le_bytes())?;
        call.set_result(&x.to_le_bytes());
        Ok(Flow::Done)
    });
    let out = device.allocate(4 * 4).unwrap();
    let launch = module.kernel("calls_host").unwrap().launch([1; 3], [4, 1, 1]).arg(&out);
    let run = launch.run().unwrap();
    assert_eq!(run.errors(), 0, "{run}");
    assert_eq!(device.download::<u32>(&out).unwrap(), [7, 107, 207, 307]);
    assert_eq!(calls.load(Ordering::Relaxed), 8);
}

#[test]
fn memory_is_limited_and_filled_lazily() {
    let options = DeviceOptions { memory_bytes: 6 << 30, ..Target::SM_80.into() };
    let device = Device::new(options).unwrap();
    let big = device.allocate_as("big", 5 << 30).unwrap();
    device.fill(&big, 0x0102u16).unwrap();
    let error = device.allocate_as("more", 2 << 30).unwrap_err().to_string();
    assert!(error.contains("`more`") && error.contains("2147483648"), "{error}");
    let mut end = [0; 4];
    device.memory().read(big.address() + (5 << 30) - 4, &mut end).unwrap();
    assert_eq!(end, [2, 1, 2, 1]);
    drop(big);
    assert!(device.allocate(5 << 30).is_ok());
    let odd = device.allocate(6).unwrap();
    assert!(matches!(device.download::<f32>(&odd), Err(SystemError::Ragged { .. })));
    assert!(device.fill(&odd, 1f32).is_err() && device.write(&odd, &[0u64]).is_err());
}

#[test]
fn an_address_depends_on_the_calls_alone() {
    let addresses = || {
        let device = device();
        let first = device.allocate(100).unwrap();
        let module = device.load(PTX).unwrap();
        let second = device.upload(&[1u8; 70_000]).unwrap();
        [first.address(), module.global("table").unwrap().address, second.address()]
    };
    assert_eq!(addresses(), addresses());
}

/// Numbers that look random.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn whatever_is_launched_ends_in_a_run_or_an_error() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let device = device();
    let module = device.load(PTX).unwrap();
    let names: Vec<String> = module.kernels().map(|function| function.name.clone()).collect();
    let buffer = device.upload(&[0u8; 4096]).unwrap();
    let (mut runs, mut refused) = (0, 0);
    for _ in 0..1500 {
        let mut next = |below: u64| random(&mut state) % below;
        let kernel = module.kernel(&names[next(names.len() as u64) as usize]).unwrap();
        let extents = [0, 1, 1, 2, 3, 33, 1024, 65_536, u32::MAX];
        let mut extent = || {
            let most = if next(4) == 0 { 9 } else { 5 };
            extents[next(most) as usize].max(u32::from(next(8) > 0))
        };
        let (grid, block) = ([extent(), extent(), extent()], [extent(), extent(), extent()]);
        let mut launch = kernel.launch(grid, block).limit(1 + next(3000)).seed(next(u64::MAX));
        launch = launch.shared([0, 0, 16, 200_000, u32::MAX][next(5) as usize]);
        launch = launch.check(if next(2) == 0 { Checks::ALL } else { Checks::NONE });
        let wanted = kernel.function().params.len() as u64;
        let given = if next(10) == 0 { next(6) } else { wanted };
        for at in 0..given {
            let bytes = kernel.function().params.get(at as usize).map_or(8, |param| u64::from(param.bytes));
            let near = buffer.address() + next(5000);
            launch = match next(4) {
                0 => launch.arg(Pointer([near, 0, u64::MAX, 0x7f00_0000_0000, 0x7f10_0000_0010][next(5) as usize])),
                1 => launch.arg(near as u32),
                2 => launch.arg(f32::from_bits(near as u32)),
                _ => launch.arg((0..bytes).map(|_| next(256) as u8).collect::<Vec<u8>>().as_slice()),
            };
        }
        match launch.run() {
            Ok(_) => runs += 1,
            Err(_) => refused += 1,
        }
        device.clear_error();
    }
    assert!(runs > 100 && refused > 100, "{runs} runs, {refused} refused");
}
