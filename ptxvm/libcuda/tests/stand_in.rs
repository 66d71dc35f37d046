//! The cuda device through the stand-in driver: the path that a real GPU takes, run on machines without one.
//!
//! Each test runs again in a child process of this program, whose library path begins with a temporary folder that holds
//! a `libcuda.so.1` link to the stand-in. The parent never opens it, so nothing here shadows a real driver.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::{Command, Output};

use warpweft_device::{Arg, Device, DeviceError, DeviceKind, Event, Module};

// Links the package, so that cargo builds its shared library beside this test.
use ptxvm_driver as _;

const PTX: &str = include_str!("kernels.ptx");
const IN_CHILD: &str = "PTXVM_STAND_IN_CHILD";

/// The stand-in's shared library, which cargo has put beside this program.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("a test knows its program");
    let folder = program.parent().expect("it lies in a folder");
    let newest = std::fs::read_dir(folder)
        .expect("the folder can be read")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("libptxvm_driver") && name.ends_with(".so")
        })
        .max_by_key(|path| path.metadata().and_then(|data| data.modified()).ok());
    newest.unwrap_or_else(|| panic!("no libptxvm_driver*.so in {}", folder.display()))
}

/// Runs the named test in a child process with the stand-in, or `body` when this is the child.
fn with_driver(test: &str, options: &str, body: impl FnOnce()) -> Option<Output> {
    if std::env::var_os(IN_CHILD).is_some() {
        body();
        return None;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::os::unix::fs::symlink(library(), folder.path().join("libcuda.so.1")).expect("a link");
    let output = Command::new(std::env::current_exe().expect("a test knows its program"))
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(IN_CHILD, "1")
        .env("LD_LIBRARY_PATH", folder.path())
        .env("PTXVM_OPTIONS", options)
        .output()
        .expect("the child starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ran = text(&output.stdout).contains("1 passed");
    assert!(output.status.success() && ran, "{}\n{}", text(&output.stdout), text(&output.stderr));
    Some(output)
}

fn open() -> Device {
    Device::open("cuda").expect("the stand-in has a device")
}

#[test]
fn without_a_driver_opening_is_an_error_that_says_what_was_looked_for() {
    // In a child whose library path is an empty folder; a machine with a real driver finds that instead, and says so.
    let error = match Device::open("cuda:77") {
        Err(error) => error.to_string(),
        Ok(_) => panic!("no machine has 78 GPUs"),
    };
    assert!(error.contains("libcuda.so.1") || error.contains("device 77 asked for"), "{error}");
    let wrong = Device::open("cuda:x").err().map(|error| error.to_string()).unwrap_or_default();
    assert!(wrong.contains("`x` is not a device number"), "{wrong}");
}

#[test]
fn memory_is_copied_filled_and_read_back() {
    with_driver("memory_is_copied_filled_and_read_back", "", || {
        let device = open();
        assert_eq!(device.kind(), DeviceKind::Cuda);
        let stream = device.stream();
        let mut x = device.upload(&[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        x.view_mut(1..3).unwrap().fill(&stream, 7.5).unwrap();
        assert_eq!(x.download(&stream).unwrap(), [1.0, 7.5, 7.5, 4.0]);
        // Every width of a fill.
        let mut wide = device.upload(&[0u64; 5]).unwrap();
        wide.view_mut(..4).unwrap().fill(&stream, 0x0123_4567_89ab_cdef).unwrap();
        assert_eq!(
            wide.download(&stream).unwrap(),
            [0x0123_4567_89ab_cdef; 4].into_iter().chain([0]).collect::<Vec<_>>()
        );
        let mut small = device.upload(&[0u8; 3]).unwrap();
        small.as_view_mut().fill(&stream, 9).unwrap();
        assert_eq!(small.download(&stream).unwrap(), [9; 3]);
        let mut half = device.upload(&[0u16; 3]).unwrap();
        half.as_view_mut().fill(&stream, 513).unwrap();
        assert_eq!(half.download(&stream).unwrap(), [513; 3]);
        // Its memory is not the host's.
        assert!(matches!(x.as_view().host(), Err(DeviceError::NotHostMemory { .. })));
        let empty = device.upload::<f32>(&[]).unwrap();
        assert!(empty.download(&stream).unwrap().is_empty());
    });
}

#[test]
fn a_kernel_runs_with_arguments_of_every_kind() {
    with_driver("a_kernel_runs_with_arguments_of_every_kind", "check=all", || {
        let device = open();
        let stream = device.stream();
        let module = Module::load(&device, PTX).unwrap();
        let kernel = module.kernel("scale").unwrap();
        let x = device.upload(&(0..300).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        let y = device.upload(&[0f32; 300]).unwrap();
        let args = [Arg::try_from(&x).unwrap(), Arg::try_from(&y).unwrap(), 2.5f32.into(), 300u32.into()];
        kernel.launch(&stream, [3, 1, 1], [128, 1, 1], 0, &args).unwrap();
        let wanted: Vec<f32> = (0..300).map(|i| i as f32 * 2.5).collect();
        assert_eq!(y.download(&stream).unwrap(), wanted);
        // A struct by value, and a variable of the module.
        let mut pair = 5u64.to_le_bytes().to_vec();
        pair.extend_from_slice(&7u32.to_le_bytes());
        pair.extend_from_slice(&[0; 4]);
        let (address, bytes) = module.global("total").unwrap();
        assert_eq!(bytes, 8);
        let sum = module.kernel("add_pair").unwrap();
        sum.launch(&stream, [1, 1, 1], [1, 1, 1], 0, &[Arg::bytes(&pair), Arg::pointer(address)]).unwrap();
        let out = device.upload(&[0u64]).unwrap();
        let copy = module.kernel("copy").unwrap();
        copy.launch(&stream, [1, 1, 1], [1, 1, 1], 0, &[Arg::pointer(address), Arg::try_from(&out).unwrap()]).unwrap();
        assert_eq!(out.download(&stream).unwrap(), [12]);
        // Shared memory beyond the ordinary limit is asked for by itself.
        let shared = module.kernel("through_shared").unwrap();
        let args = [Arg::try_from(&x).unwrap(), Arg::try_from(&y).unwrap()];
        shared.launch(&stream, [1, 1, 1], [128, 1, 1], 100 << 10, &args).unwrap();
        assert_eq!(y.download(&stream).unwrap()[..4], [127.0, 126.0, 125.0, 124.0]);
    });
}

#[test]
fn bad_ptx_gives_the_compiler_s_log_and_bad_arguments_their_numbers() {
    with_driver("bad_ptx_gives_the_compiler_s_log_and_bad_arguments_their_numbers", "", || {
        let device = open();
        let stream = device.stream();
        let error = Module::load(&device, ".version 7.0\n.target sm_80\n.address_size 64\n.entry k() { frob.u32; }");
        let error = error.expect_err("it does not compile").to_string();
        assert!(error.contains("CUDA_ERROR_INVALID_PTX") && error.contains("4:") && error.contains("frob"), "{error}");
        let module = Module::load(&device, PTX).unwrap();
        let error = module.kernel("scales").expect_err("it has none of that name").to_string();
        assert!(error.contains("`scales`") && error.contains("`scale`"), "{error}");
        assert!(module.global("nothing").is_err());
        let kernel = module.kernel("scale").unwrap();
        let few = kernel.launch(&stream, [1, 1, 1], [1, 1, 1], 0, &[]).unwrap_err().to_string();
        assert!(few.contains("takes 4 arguments, 0 given"), "{few}");
        let wide = [Arg::pointer(0), Arg::pointer(0), 1.0f64.into(), 1u32.into()];
        let wide = kernel.launch(&stream, [1, 1, 1], [1, 1, 1], 0, &wide).unwrap_err().to_string();
        assert!(wide.contains("has 4 bytes, given are 8"), "{wide}");
        let args = [Arg::pointer(0), Arg::pointer(0), 1.0f32.into(), 0u32.into()];
        let big = kernel.launch(&stream, [1, 1, 1], [2048, 1, 1], 0, &args).unwrap_err().to_string();
        assert!(big.contains("2048"), "{big}");
    });
}

#[test]
fn events_order_streams_and_measure_time() {
    with_driver("events_order_streams_and_measure_time", "", || {
        let device = open();
        let (first, second) = (device.stream(), device.stream());
        let module = Module::load(&device, PTX).unwrap();
        let kernel = module.kernel("scale").unwrap();
        let x = device.upload(&vec![1f32; 1 << 16]).unwrap();
        let y = device.upload(&vec![0f32; 1 << 16]).unwrap();
        let (start, end) = (Event::new(&device), Event::new(&device));
        first.record(&start).unwrap();
        let args = [Arg::try_from(&x).unwrap(), Arg::try_from(&y).unwrap(), 3f32.into(), (1u32 << 16).into()];
        kernel.launch(&first, [512, 1, 1], [128, 1, 1], 0, &args).unwrap();
        first.record(&end).unwrap();
        second.wait(&end).unwrap();
        assert_eq!(y.download(&second).unwrap(), vec![3f32; 1 << 16]);
        assert!(end.is_reached() && start.is_reached());
        assert!(end.since(&start).is_some());
    });
}

#[test]
fn devices_are_peers_once_they_are_made_so() {
    with_driver("devices_are_peers_once_they_are_made_so", "check=memcheck", || {
        let (near, far) = (open(), Device::open("cuda:1").unwrap());
        let stream = near.stream();
        let x = far.upload(&[4f32; 128]).unwrap();
        let y = near.upload(&[0f32; 128]).unwrap();
        near.enable_peer(&far).unwrap();
        // A second time is no error.
        near.enable_peer(&far).unwrap();
        let module = Module::load(&near, PTX).unwrap();
        let args = [Arg::try_from(&x).unwrap(), Arg::try_from(&y).unwrap(), 0.5f32.into(), 128u32.into()];
        module.kernel("scale").unwrap().launch(&stream, [1, 1, 1], [128, 1, 1], 0, &args).unwrap();
        assert_eq!(y.download(&stream).unwrap(), [2f32; 128]);
        assert!(Device::open("cuda:2").is_err());
    });
}

#[test]
fn a_kernel_s_fault_is_the_stream_s_error_and_the_device_s_end() {
    let output = with_driver("a_kernel_s_fault_is_the_stream_s_error_and_the_device_s_end", "check=memcheck", || {
        let device = open();
        let stream = device.stream();
        let module = Module::load(&device, PTX).unwrap();
        let kernel = module.kernel("scale").unwrap();
        let x = device.upload(&[1f32; 4]).unwrap();
        let args = [Arg::try_from(&x).unwrap(), Arg::try_from(&x).unwrap(), 1f32.into(), 1000u32.into()];
        kernel.launch(&stream, [8, 1, 1], [128, 1, 1], 0, &args).unwrap();
        let error = stream.synchronize().unwrap_err().to_string();
        assert!(error.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{error}");
        // As on a GPU, nothing works after it.
        assert!(device.upload(&[1f32]).and_then(|x| x.download(&device.stream())).is_err());
    });
    if let Some(output) = output {
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("memcheck") && told.contains("scale"), "{told}");
    }
}
