//! The device API as an embedder uses it; every test runs on each device of this build.
#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};

use warpweft_device::{Device, DeviceError, Event, bf16};

fn devices() -> Vec<Device> {
    vec![Device::open("cpu").unwrap(), Device::open("cpu:1").unwrap(), Device::open("cpu:3").unwrap()]
}

#[test]
fn a_buffer_starts_zeroed_aligned_and_keeps_what_is_written() {
    for device in devices() {
        let stream = device.stream();
        let mut buffer = device.zeros::<bf16>(1000).unwrap();
        assert_eq!(buffer.as_view().host().unwrap().as_ptr() as usize % 64, 0);
        assert!(buffer.download(&stream).unwrap().iter().all(|value| value.to_bits() == 0));
        buffer.view_mut(10..20).unwrap().fill(&stream, bf16::ONE).unwrap();
        let host = buffer.download(&stream).unwrap();
        assert!((0..1000).all(|i| host[i] == if (10..20).contains(&i) { bf16::ONE } else { bf16::ZERO }));
        assert_eq!(buffer.bytes(), 2000);
    }
}

#[test]
fn regions_are_checked_and_split() {
    let device = Device::cpu().unwrap();
    let stream = device.stream();
    let mut buffer = device.upload(&[1u32, 2, 3, 4, 5]).unwrap();
    let error = buffer.view(3..9).unwrap_err();
    assert_eq!(error.to_string(), "region 3..9 is not inside a buffer of 5 elements");
    assert!(buffer.view(..=usize::MAX).is_err());
    assert!(buffer.view(5..).unwrap().is_empty());
    let (left, right) = buffer.as_view_mut().split_at(2).unwrap();
    left.copy_from(&stream, right.as_view().slice(1..).unwrap()).unwrap();
    assert_eq!(buffer.download(&stream).unwrap(), [4, 5, 3, 4, 5]);
    let error = buffer.as_view_mut().copy_from_host(&stream, &[1]).unwrap_err();
    assert_eq!(error, DeviceError::LengthMismatch { what: "copy_from_host", given: 1, expected: 5 });
}

#[test]
fn a_device_that_is_not_there_says_what_was_looked_for() {
    let software = if cfg!(feature = "software") { "`x` is not a device number" } else { "a `software` backend" };
    let cuda = if cfg!(feature = "cuda") { "`x` is not a device number" } else { "a `cuda` backend in this build" };
    for (name, part) in [
        ("cuda:x", cuda),
        ("software:x", software),
        ("tpu", "`tpu` is no kind"),
        ("cpu:x", "`x` is not a thread count"),
    ] {
        let text = Device::open(name).unwrap_err().to_string();
        assert!(text.contains(part) && text.contains(name) && text.contains("Available: cpu"), "{text}");
    }
    assert_eq!(Device::open("cpu:0").unwrap_err(), DeviceError::BadThreads { asked: 0, limit: 1024 });
}

#[test]
fn memory_of_another_device_is_refused() {
    let (one, other) = (Device::cpu().unwrap(), Device::cpu().unwrap());
    let mut buffer = one.zeros::<f32>(4).unwrap();
    let error = buffer.as_view_mut().fill(&other.stream(), 1.0).unwrap_err();
    assert!(matches!(error, DeviceError::WrongDevice { .. }), "{error}");
    assert!(other.stream().record(&Event::new(&one)).is_err());
}

#[test]
fn impossible_sizes_are_an_error_not_an_abort() {
    let device = Device::cpu().unwrap();
    for len in [usize::MAX, usize::MAX / 8, isize::MAX as usize / 8] {
        assert!(matches!(device.zeros::<f64>(len), Err(DeviceError::OutOfMemory { .. })), "{len}");
    }
}

#[test]
fn events_tell_order_and_time() {
    let device = Device::cpu().unwrap();
    let stream = device.stream();
    let (start, end) = (Event::new(&device), Event::new(&device));
    assert!(!start.is_reached() && end.since(&start).is_none());
    stream.record(&start).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2));
    stream.record(&end).unwrap();
    stream.wait(&end).unwrap();
    assert!(end.since(&start).unwrap().as_millis() >= 2);
    assert!(start.since(&end).is_none());
}

#[test]
fn every_item_is_worked_on_once_whatever_the_threads() {
    for device in devices() {
        let counts: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
        device.cpu_pool().unwrap().for_each((0..100).collect(), |item: usize| {
            counts[item].fetch_add(1, Ordering::Relaxed);
        });
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
    }
}
