//! The device API on a software GPU: buffers, streams and events as on every device, and kernels.
#![forbid(unsafe_code)]

use warpweft_device::ptxvm::observe::check::Checks;
use warpweft_device::ptxvm::types::Target;
use warpweft_device::{
    Arg, Buffer, Device, DeviceError, DeviceKind, Event, Module, SoftwareOptions, View, ViewMut, bf16,
};

const PTX: &str = include_str!("software.ptx");

fn checked() -> Device {
    Device::open("software?check=all").unwrap()
}

#[test]
fn buffers_and_views_are_as_on_the_cpu() {
    for device in [Device::open("cpu").unwrap(), checked(), Device::open("software:1").unwrap()] {
        let stream = device.stream();
        let mut buffer = device.zeros::<bf16>(1000).unwrap();
        buffer.view_mut(10..20).unwrap().fill(&stream, bf16::ONE).unwrap();
        let host = buffer.download(&stream).unwrap();
        assert!((0..1000).all(|i| host[i] == if (10..20).contains(&i) { bf16::ONE } else { bf16::ZERO }));
        let mut buffer = device.upload(&[1u32, 2, 3, 4, 5]).unwrap();
        let (left, right) = buffer.as_view_mut().split_at(2).unwrap();
        left.copy_from(&stream, right.as_view().slice(1..).unwrap()).unwrap();
        assert_eq!(buffer.download(&stream).unwrap(), [4, 5, 3, 4, 5]);
        buffer.view_mut(1..4).unwrap().copy_from_host(&stream, &[7, 8, 9]).unwrap();
        let mut part = [0; 2];
        buffer.view(2..4).unwrap().copy_to_host(&stream, &mut part).unwrap();
        assert_eq!(part, [8, 9]);
        assert!(buffer.view(3..9).is_err() && buffer.view(5..).unwrap().is_empty());
        let wide = device.upload(&[1.0f64, -2.0]).unwrap();
        assert_eq!(wide.download(&stream).unwrap(), [1.0, -2.0]);
        assert_eq!(device.zeros::<f64>(0).unwrap().download(&stream).unwrap(), [0.0; 0]);
    }
}

#[test]
fn its_memory_is_not_the_hosts() {
    let device = checked();
    assert_eq!((device.kind(), device.to_string().as_str()), (DeviceKind::Software, "software"));
    let mut buffer = device.zeros::<f32>(4).unwrap();
    let refused = DeviceError::NotHostMemory { device: "software".to_owned() };
    assert_eq!(buffer.as_view().host().unwrap_err(), refused);
    assert_eq!(buffer.as_view_mut().host().unwrap_err(), refused);
    assert_eq!(View::from_host(&device, &[1f32]).unwrap_err(), refused);
    assert_eq!(device.cpu_pool().err(), Some(refused));
    let options = SoftwareOptions { memory_bytes: 1 << 20, ..Target::SM_80.into() };
    let error = Device::software(options).unwrap().zeros::<f32>(1 << 20).unwrap_err();
    assert!(matches!(error, DeviceError::OutOfMemory { count: 1_048_576, .. }), "{error}");
}

#[test]
fn five_gibibytes_of_zeros_cost_nothing() {
    let started = std::time::Instant::now();
    let device = checked();
    let stream = device.stream();
    let mut big = device.zeros::<u8>(5 << 30).unwrap();
    big.view_mut((1 << 32) + 5..(1 << 32) + 6).unwrap().fill(&stream, 9).unwrap();
    let part = big.view((1 << 32)..(1 << 32) + 8).unwrap().download(&stream).unwrap();
    assert_eq!(part, [0, 0, 0, 0, 0, 9, 0, 0]);
    assert!(started.elapsed().as_millis() < 1000, "{:?}", started.elapsed());
}

/// y = 3 a x over n elements, with x and y from a device.
fn scale(device: &Device, n: usize) -> Result<Vec<f32>, DeviceError> {
    let stream = device.stream();
    let kernel = Module::load(device, PTX)?.kernel("scale")?;
    let x = device.upload(&(0..n).map(|at| at as f32).collect::<Vec<_>>())?;
    let mut y = device.uninitialized::<f32>(n)?;
    let args = [Arg::try_from(&x)?, Arg::try_from(y.as_view_mut())?, 0.5f32.into(), (n as u32).into()];
    kernel.launch(&stream, [n.div_ceil(64) as u32, 1, 1], [64, 1, 1], 0, &args)?;
    // The kernel holds on to its memory.
    drop(x);
    y.download(&stream)
}

#[test]
fn a_kernel_runs_in_the_order_of_its_stream() {
    for device in
        [checked(), Device::open("software").unwrap(), Device::open("software?sm=90&schedule=random").unwrap()]
    {
        let expected: Vec<f32> = (0..1000).map(|at| 1.5 * at as f32).collect();
        assert_eq!(scale(&device, 1000).unwrap(), expected);
    }
    let error = scale(&Device::cpu().unwrap(), 10).unwrap_err();
    assert!(matches!(error, DeviceError::NoKernels { .. }), "{error}");
}

#[test]
fn a_report_is_the_error_of_the_stream_with_its_whole_text() {
    let device = checked();
    let stream = device.stream();
    let kernel = Module::load(&device, PTX).unwrap().kernel("scale").unwrap();
    let x = device.upload(&[1f32; 60]).unwrap();
    let y = device.zeros::<f32>(64).unwrap();
    let args = [Arg::try_from(&x).unwrap(), Arg::try_from(&y).unwrap(), 1f32.into(), 64u32.into()];
    kernel.launch(&stream, [1; 3], [64, 1, 1], 0, &args).unwrap();
    let error = stream.synchronize().unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, DeviceError::Kernel { .. }), "{text}");
    for words in ["kernel `scale`", "out-of-bounds", "ld.global.f32 %f2, [%rd4];", "lanes 28-31", "240 bytes", "--seed"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    // As with CUDA the device is of no more use.
    let error = y.download(&stream).unwrap_err();
    assert!(matches!(error, DeviceError::Kernel { .. }), "{error}");
    device.as_software().unwrap().clear_error();
    assert_eq!(y.download(&stream).unwrap().len(), 64);
}

#[test]
fn memory_of_others_is_reached_by_address() {
    let device = checked();
    let (stream, theirs) = (device.stream(), device.upload(&[1.0f32, 2.0, 3.0, 4.0]).unwrap());
    let address = theirs.as_view().address();
    let part = View::<f32>::of_device(&device, address + 4, 2).unwrap();
    assert_eq!((part.len(), part.address(), part.is_aligned(8)), (2, address + 4, false));
    assert_eq!(part.slice(1..).unwrap().download(&stream).unwrap(), [3.0]);
    let mut y = ViewMut::<f32>::of_device(&device, address, 4).unwrap();
    let kernel = Module::load(&device, PTX).unwrap().kernel("scale").unwrap();
    let x = part.slice(..1).unwrap().try_into().unwrap();
    let args = [x, y.reborrow().try_into().unwrap(), 0.5f32.into(), Arg::from(1u32)];
    kernel.launch(&stream, [1; 3], [32, 1, 1], 0, &args).unwrap();
    y.slice(3..).unwrap().fill(&stream, 9.0).unwrap();
    assert_eq!(theirs.download(&stream).unwrap(), [3.0, 2.0, 3.0, 9.0]);
    // A wrong address is nothing to the host: the device reports the access.
    let nowhere = View::<f32>::of_device(&device, 64, 1).unwrap();
    let args = [nowhere.try_into().unwrap(), (&theirs).try_into().unwrap(), 0.5f32.into(), Arg::from(1u32)];
    kernel.launch(&stream, [1; 3], [32, 1, 1], 0, &args).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(matches!(error, DeviceError::Kernel { .. }) && error.to_string().contains("scale"), "{error}");
}

#[test]
fn an_address_that_cannot_hold_the_elements_is_refused() {
    let device = checked();
    for (address, len) in [(2, 1), (u64::MAX - 3, 2), (0, usize::MAX)] {
        let error = View::<f32>::of_device(&device, address, len).unwrap_err();
        assert!(matches!(error, DeviceError::BadAddress { count, .. } if count == len), "{error}");
        assert!(error.to_string().contains("a multiple of 4"), "{error}");
    }
    assert!(View::<f32>::of_device(&device, 0, 0).unwrap().is_empty());
    let cpu = Device::cpu_with_threads(1).unwrap();
    assert!(matches!(ViewMut::<u8>::of_device(&cpu, 64, 1), Err(DeviceError::NoKernels { .. })));
}

#[test]
fn memory_of_others_is_theirs_to_keep_and_stays_on_its_device() {
    let (device, other) = (checked(), checked());
    let (stream, theirs) = (device.stream(), device.upload(&[1.0f32, 2.0]).unwrap());
    let address = theirs.as_view().address();
    // As a region of the one device it is none of the other's.
    let mut copy = other.zeros::<f32>(2).unwrap();
    let region = View::<f32>::of_device(&device, address, 2).unwrap();
    copy.as_view_mut().copy_from(&other.stream(), region).unwrap();
    assert_eq!(copy.download(&other.stream()).unwrap(), [1.0, 2.0]);
    let error = region.download(&other.stream()).unwrap_err();
    assert!(matches!(error, DeviceError::WrongDevice { .. }), "{error}");
    ViewMut::<f32>::of_device(&device, address, 2)
        .unwrap()
        .on_host(|values| {
            values[1] += 1.0;
            Ok::<_, DeviceError>(())
        })
        .unwrap();
    assert_eq!(*region.to_host().unwrap(), [1.0, 3.0]);
    // Nobody but its owner keeps it alive.
    let region = View::<f32>::of_device(&device, address, 1).unwrap();
    let y = device.zeros::<f32>(1).unwrap();
    drop(theirs);
    let args = [region.try_into().unwrap(), Arg::try_from(&y).unwrap(), 1f32.into(), 1u32.into()];
    let kernel = Module::load(&device, PTX).unwrap().kernel("scale").unwrap();
    kernel.launch(&stream, [1; 3], [1; 3], 0, &args).unwrap();
    let error = stream.synchronize().unwrap_err();
    assert!(matches!(&error, DeviceError::Kernel { report, .. } if report.contains("ld.global.f32")), "{error}");
}

#[test]
fn the_host_sees_what_every_stream_has_done() {
    let device = checked();
    let kernel = Module::load(&device, PTX).unwrap().kernel("scale").unwrap();
    let n = 1 << 14;
    let x = device.upload(&vec![1f32; n]).unwrap();
    let mut parts = [(); 3].map(|()| device.zeros::<f32>(n).unwrap());
    let scale = |x: &Buffer<f32>, y: &Buffer<f32>, n: usize| {
        let args = [Arg::try_from(x).unwrap(), Arg::try_from(y).unwrap(), 1f32.into(), (n as u32).into()];
        kernel.launch(&device.stream(), [n.div_ceil(256) as u32, 1, 1], [256, 1, 1], 0, &args).unwrap();
    };
    // Streams that nobody has waited for, and that are gone.
    parts.iter().for_each(|y| scale(&x, y, n));
    assert!(parts.iter().all(|y| y.as_view().to_host().unwrap().iter().all(|y| *y == 3.0)));
    let [first, second, third] = &mut parts;
    scale(first, second, n);
    let sum = second.as_view_mut().on_host(|values| {
        let sum: f64 = values.iter().map(|value| f64::from(*value)).sum();
        values.fill(2.0);
        Ok::<_, DeviceError>(sum)
    });
    assert_eq!(sum, Ok(9.0 * n as f64));
    // What it wrote is there for kernels; what it would have written before an error is not.
    let refused = DeviceError::OutOfRange { start: 1, end: 0, len: 0 };
    let result = second.as_view_mut().on_host(|values| {
        values.fill(9.0);
        Err::<(), _>(refused.clone())
    });
    assert_eq!(result, Err(refused));
    scale(second, third, n);
    assert!(third.as_view().to_host().unwrap().iter().all(|y| *y == 6.0));
    // A report in any stream is the host's error too.
    scale(&x, &device.zeros::<f32>(n - 64).unwrap(), n);
    let error = first.as_view().to_host().unwrap_err();
    assert!(matches!(error, DeviceError::Kernel { .. }), "{error}");
    let error = first.as_view_mut().on_host(|_| Ok::<_, DeviceError>(())).unwrap_err();
    assert!(matches!(error, DeviceError::Kernel { .. }), "{error}");
    // On the CPU they are the elements themselves.
    let (cpu, values) = (Device::cpu().unwrap(), [1u32, 2]);
    let view = View::from_host(&cpu, &values).unwrap();
    assert!(std::ptr::eq(view.to_host().unwrap().as_ptr(), values.as_ptr()));
}

#[test]
fn what_is_wrong_with_a_launch_is_said_at_once() {
    let device = checked();
    let (stream, module) = (device.stream(), Module::load(&device, PTX).unwrap());
    let kernel = module.kernel("scale").unwrap();
    let x = device.upload(&[1f32; 4]).unwrap();
    let said = |args: &[Arg]| kernel.launch(&stream, [1; 3], [4, 1, 1], 0, args).unwrap_err().to_string();
    let pointer = || Arg::try_from(&x).unwrap();
    assert!(said(&[pointer()]).contains("takes 4 arguments, 1 given"));
    let wrong = said(&[pointer(), pointer(), 1u32.into(), 4u32.into()]);
    assert!(wrong.contains("parameter 2 `a` is .f32") && wrong.contains("u32"), "{wrong}");
    let error = kernel.launch(&stream, [0, 1, 1], [1; 3], 0, &[pointer(), pointer(), 1f32.into(), 4u32.into()]);
    assert!(matches!(error, Err(DeviceError::Launch { .. })), "{error:?}");
    let other = checked();
    let foreign = Arg::try_from(&other.zeros::<f32>(4).unwrap()).unwrap();
    let error = kernel.launch(&stream, [1; 3], [4, 1, 1], 0, &[foreign, pointer(), 1f32.into(), 4u32.into()]);
    assert!(matches!(error, Err(DeviceError::WrongDevice { .. })), "{error:?}");
    let error = module.kernel("scael").unwrap_err();
    assert!(matches!(&error, DeviceError::NoSymbol { reason, .. } if reason.contains("`scale`")), "{error}");
    let error = Module::load(&device, "\n.version 8.0\n.target sm_80\n.entry k() { bad; }").unwrap_err();
    assert!(matches!(&error, DeviceError::Module { log, .. } if log.contains("line 4")), "{error}");
    assert!(Arg::try_from(&Device::cpu().unwrap().zeros::<f32>(1).unwrap()).is_err());
}

#[test]
fn variables_and_printing() {
    let device = checked();
    let (stream, module) = (device.stream(), Module::load(&device, PTX).unwrap());
    let (address, bytes) = module.global("factor").unwrap();
    assert_eq!(bytes, 4);
    device.as_software().unwrap().memory().write(address, &10u32.to_le_bytes()).unwrap();
    let x = device.upload(&[2f32]).unwrap();
    let y = device.zeros::<f32>(1).unwrap();
    let args = [Arg::try_from(&x).unwrap(), Arg::try_from(&y).unwrap(), 1f32.into(), 1u32.into()];
    module.kernel("scale").unwrap().launch(&stream, [1; 3], [1; 3], 0, &args).unwrap();
    assert_eq!(y.download(&stream).unwrap(), [20.0]);
    module.kernel("greet").unwrap().launch(&stream, [1; 3], [2, 1, 1], 0, &[]).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(stream.take_output(), b"hello\nhello\n");
    assert_eq!(stream.take_output(), b"");
}

#[test]
fn devices_of_one_system_are_beside_each_other() {
    let options = SoftwareOptions::from(Target::SM_80);
    let devices = Device::software_system([options.clone(), options]).unwrap();
    let [one, two] = devices.as_slice() else { panic!("two devices") };
    let (first, second) = (one.stream(), two.stream());
    let x = one.upload(&[1f32, 2.0, 3.0, 4.0]).unwrap();
    let mut y = two.zeros::<f32>(4).unwrap();
    let ready = Event::new(one);
    first.record(&ready).unwrap();
    second.wait(&ready).unwrap();
    y.as_view_mut().copy_from(&second, x.as_view()).unwrap();
    assert_eq!(y.download(&second).unwrap(), [1.0, 2.0, 3.0, 4.0]);
    assert!(ready.is_reached());

    // A kernel of the second reads the memory of the first once it may.
    let kernel = Module::load(two, PTX).unwrap().kernel("scale").unwrap();
    let args = [Arg::try_from(&x).unwrap(), Arg::try_from(&y).unwrap(), 1f32.into(), 4u32.into()];
    let error = kernel.launch(&second, [1; 3], [4, 1, 1], 0, &args).unwrap_err();
    assert!(matches!(error, DeviceError::WrongDevice { .. }), "{error}");
    two.enable_peer(one).unwrap();
    kernel.launch(&second, [1; 3], [4, 1, 1], 0, &args).unwrap();
    assert_eq!(y.download(&second).unwrap(), [3.0, 6.0, 9.0, 12.0]);

    // Others are reached through the host, for copies only.
    let (cpu, third) = (Device::cpu().unwrap(), checked());
    for device in [&cpu, &third] {
        let mut copy = device.zeros::<f32>(4).unwrap();
        copy.as_view_mut().copy_from(&device.stream(), y.as_view()).unwrap();
        assert_eq!(copy.download(&device.stream()).unwrap(), [3.0, 6.0, 9.0, 12.0]);
        assert!(matches!(two.enable_peer(device), Err(DeviceError::NoPeer { .. })));
        assert!(matches!(second.wait(&Event::new(device)), Err(DeviceError::WrongDevice { .. })));
    }
    y.as_view_mut().copy_from(&second, cpu.upload(&[9f32; 4]).unwrap().as_view()).unwrap();
    assert_eq!(y.download(&second).unwrap(), [9.0; 4]);
}

#[test]
fn names_open_devices_with_options() {
    assert_eq!(Device::open("software:0").unwrap().to_string(), "software:0");
    let device = Device::open("software?sm=90&check=memcheck,racecheck&seed=7&numerics=native").unwrap();
    let options = device.as_software().unwrap().options();
    assert_eq!((options.target, options.launch.exec.seed), (Target::SM_90, 7));
    assert_eq!(options.launch.checks.to_string(), "memcheck,racecheck");
    assert_eq!(Device::open("software:2?check=all").unwrap().as_software().unwrap().id().0, 2);
    for (name, part) in [
        ("software:9", "0 to 7"),
        ("software:x", "`x` is not a device number"),
        ("software?sm=70", "sm=70"),
        ("software?check=everything", "use all, none"),
        ("software?fast", "`fast` is no option"),
        ("software:1?sm=90", "`sm` is fixed"),
        ("software?speed=1", "seed"),
        ("softwares", "`softwares` is no kind"),
    ] {
        let text = Device::open(name).unwrap_err().to_string();
        assert!(text.contains(part) && text.contains(name) && text.contains("software:N"), "{text}");
    }
    assert_eq!(Checks::ALL, checked().as_software().unwrap().options().launch.checks);
}
