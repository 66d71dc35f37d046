//! What a device keeps for the ops that launch kernels on it: their programs, its properties, its status word.
#![forbid(unsafe_code)]

use warpweft_device::{Arg, Device, DeviceError, Kernel, Module, Stream};

/// One address for each text, by which a device knows it.
static PTX: &str = include_str!("software.ptx");

fn checked() -> Device {
    Device::open("software?check=all").unwrap()
}

/// What `scale` makes of 1.
fn scaled(kernel: &Kernel, stream: &Stream) -> f32 {
    let device = stream.device();
    let (x, y) = (device.upload(&[1f32]).unwrap(), device.zeros::<f32>(1).unwrap());
    let args = [Arg::try_from(&x).unwrap(), Arg::try_from(&y).unwrap(), 1f32.into(), 1u32.into()];
    kernel.launch(stream, [1; 3], [1; 3], 0, &args).unwrap();
    y.download(stream).unwrap()[0]
}

#[test]
fn a_program_is_loaded_once_on_each_device() {
    let (device, other) = (checked(), checked());
    let (first, again) = (Module::of_program(&device, PTX).unwrap(), Module::of_program(&device, PTX).unwrap());
    let apart = Module::load(&device, PTX).unwrap();
    assert_eq!(first.global("factor").unwrap(), again.global("factor").unwrap());
    assert_ne!(first.global("factor").unwrap(), apart.global("factor").unwrap());
    // What one of them writes the other sees, and nobody else.
    let (address, _) = first.global("factor").unwrap();
    device.as_software().unwrap().memory().write(address, &7u32.to_le_bytes()).unwrap();
    drop(first);
    let elsewhere = Module::of_program(&other, PTX).unwrap();
    for (module, factor) in [(&again, 7.0), (&apart, 3.0), (&elsewhere, 3.0)] {
        assert_eq!(scaled(&module.kernel("scale").unwrap(), &module.device().stream()), factor);
    }
    let error = Module::of_program(&Device::cpu().unwrap(), PTX).unwrap_err();
    assert!(matches!(error, DeviceError::NoKernels { .. }), "{error}");
}

#[test]
fn another_text_takes_a_programs_place() {
    let (device, other) = (checked(), checked());
    let scale = |device: &Device| Module::of_program(device, PTX).unwrap().kernel("scale").unwrap();
    let before = scale(&device);
    device.replace_program(PTX, &PTX.replace("factor = 3", "factor = 5")).unwrap();
    // Kernels that somebody has stay what they are.
    for (kernel, factor) in [(before, 3.0), (scale(&device), 5.0), (scale(&other), 3.0)] {
        assert_eq!(scaled(&kernel, &kernel.device().stream()), factor);
    }
    // A text that is none changes nothing.
    let error = device.replace_program(PTX, "\n.version 8.0\n.target sm_80\n.entry k() { bad; }").unwrap_err();
    assert!(matches!(&error, DeviceError::Module { log, .. } if log.contains("line 4")), "{error}");
    assert_eq!(scaled(&scale(&device), &device.stream()), 5.0);
    // Nor need the program have been loaded before.
    other.replace_program(PTX, &PTX.replace("factor = 3", "factor = 11")).unwrap();
    assert_eq!(scaled(&scale(&other), &other.stream()), 11.0);
    let error = Device::cpu().unwrap().replace_program(PTX, PTX).unwrap_err();
    assert!(matches!(error, DeviceError::NoKernels { .. }), "{error}");
}

#[test]
fn properties_are_those_of_the_card() {
    // What a block may have when it asks for it: the CUDA C++ programming guide's table of compute capabilities.
    for (name, compute, kibibytes) in
        [("software?sm=80", 80, 163), ("software?sm=86", 86, 99), ("software?sm=90", 90, 227)]
    {
        let device = Device::open(name).unwrap();
        let properties = device.properties().unwrap();
        assert_eq!((properties.compute, properties.shared_bytes), (compute, kibibytes << 10), "{name}");
        assert!(properties.multiprocessors > 0 && properties.card.contains(&format!("sm_{compute}")), "{properties:?}");
        assert_eq!(device.properties().unwrap(), properties);
    }
    assert!(matches!(Device::cpu().unwrap().properties(), Err(DeviceError::NoKernels { .. })));
}

/// Has a kernel look for values from `limit` on.
fn look(stream: &Stream, what: &'static str, values: &[u32], limit: u32) {
    let device = stream.device();
    let [word, number] = device.fault(what).unwrap();
    let args = [Arg::try_from(&device.upload(values).unwrap()).unwrap(), limit.into(), word, number];
    let kernel = Module::of_program(device, PTX).unwrap().kernel("look").unwrap();
    kernel.launch(stream, [1; 3], [values.len() as u32, 1, 1], 0, &args).unwrap();
}

#[track_caller]
fn found(error: DeviceError, expected: (&str, u64, u64, u64)) {
    let DeviceError::BadData { what, row, value, limit, .. } = &error else { panic!("{error}") };
    assert_eq!((*what, *row, *value, *limit), expected);
    let text = error.to_string();
    for part in [expected.0, &format!("row {}", expected.1), &expected.2.to_string(), &expected.3.to_string()] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn wrong_data_that_a_kernel_finds_is_the_next_synchronisations_error_once() {
    let device = checked();
    let stream = device.stream();
    look(&stream, "an op: `tokens`", &[1, 2, 3, 4], 5);
    stream.synchronize().unwrap();
    look(&stream, "an op: `tokens`", &[1, 2, 9, 3], 5);
    found(stream.synchronize().unwrap_err(), ("an op: `tokens`", 2, 9, 5));
    stream.synchronize().unwrap();
    // The first is told, whatever comes behind it; by a copy to the host too, and in whichever stream.
    let kept = device.upload(&[1u8]).unwrap();
    look(&stream, "an op: `targets`", &[0, 6], 6);
    look(&stream, "an op: `tokens`", &[8], 5);
    stream.device().synchronize().unwrap();
    found(kept.download(&device.stream()).unwrap_err(), ("an op: `targets`", 1, 6, 6));
    assert_eq!(kept.download(&stream).unwrap(), [1]);
    look(&stream, "an op: `tokens`", &[7], 6);
    found(kept.as_view().to_host().unwrap_err(), ("an op: `tokens`", 0, 7, 6));
}

#[test]
fn every_argument_has_a_number_of_its_own_on_the_one_word() {
    let device = checked();
    let numbers = ["one", "two", "one"].map(|what| device.fault(what).unwrap());
    let [one, two, again] = numbers.map(|[word, number]| (word.address(), format!("{number:?}")));
    assert_eq!(one, again);
    assert_eq!(one.0, two.0);
    assert_ne!(one.1, two.1);
    let error = Device::cpu().unwrap().fault("one").unwrap_err();
    assert!(matches!(error, DeviceError::NoKernels { .. }), "{error}");
}
