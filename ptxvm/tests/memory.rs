//! The address space as the executor and the host see it.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use warpweft_ptxvm::memory::{AddressSpace, DeviceId, FaultKind, MemoryError, Page, RED_ZONE};
use warpweft_ptxvm::types::Space;

const GIB: u64 = 1 << 30;
const ONE: DeviceId = DeviceId(0);
const TWO: DeviceId = DeviceId(1);

fn space() -> AddressSpace {
    AddressSpace::new(&[8 * GIB, 8 * GIB]).unwrap()
}

/// Pages that take memory.
fn touched(space: &AddressSpace, address: u64) -> usize {
    let allocation = space.find(address).unwrap();
    (0..allocation.pages()).filter(|&page| allocation.page(page).is_ok()).count()
}

#[test]
fn a_buffer_past_32_bits_costs_the_pages_touched() {
    let started = Instant::now();
    let space = space();
    let big = space.allocate(ONE, 5 * GIB, 1, "big").unwrap();
    space.fill(big, 5 * GIB, &0x01020304u32.to_le_bytes()).unwrap();
    let copy = space.allocate(TWO, 5 * GIB, 1, "copy").unwrap();
    for at in [0, (1 << 32) - 2, (1 << 32) + 4096, 5 * GIB - 8] {
        space.write(big + at, &at.to_le_bytes()).unwrap();
    }
    space.copy(copy, big, 5 * GIB).unwrap();
    for base in [big, copy] {
        for at in [0, (1 << 32) - 2, (1 << 32) + 4096, 5 * GIB - 8] {
            let mut bytes = [0; 8];
            space.read(base + at, &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), at);
        }
        let mut bytes = [0; 6];
        space.read(base + 3 * GIB + 1, &mut bytes).unwrap();
        assert_eq!(bytes, [3, 2, 1, 4, 3, 2]);
        assert_eq!(touched(&space, base), 4, "the write at 2^32 - 2 touches two pages, of which one is another's");
    }
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[test]
fn every_way_of_writing_is_read_back_by_every_way_of_reading() {
    let space = space();
    let base = space.allocate(ONE, 3 * Page::BYTES + 13, 1, "x").unwrap();
    let allocation = space.find(base).unwrap();
    let bytes: Vec<u8> = (0..allocation.bytes).map(|at| (at * 7 + at / 251) as u8).collect();
    // Ragged pieces, the borders of pages among them.
    let mut at = 0;
    for len in (1..).map(|step| step * 37 % 9001) {
        let end = (at + len).min(bytes.len());
        space.write(base + at as u64, &bytes[at..end]).unwrap();
        at = end;
        if at == bytes.len() {
            break;
        }
    }
    let mut back = vec![0; bytes.len()];
    space.read(base, &mut back).unwrap();
    assert_eq!(back, bytes);
    for at in (0..bytes.len() - 8).step_by(8).chain([Page::BYTES as usize - 8, Page::BYTES as usize]) {
        let offset = at as u64;
        let word = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(allocation.load_u64(offset), word);
        assert_eq!(allocation.load_u32(offset + 4), (word >> 32) as u32);
        assert_eq!(allocation.load_u16(offset + 2), (word >> 16) as u16);
        assert_eq!(allocation.load_u8(offset + 3), (word >> 24) as u8);
        assert_eq!(allocation.word(offset).load(Relaxed), word as u32);
    }
    allocation.store_u64(8, 0x1111_1111_2222_2222);
    allocation.store_u32(12, 0xdead_beef);
    allocation.store_u16(10, 0xabcd);
    allocation.store_u8(9, 0x77);
    assert_eq!(allocation.load_u64(8), 0xdead_beef_abcd_7722);
}

#[test]
fn fills_repeat_the_value_at_any_place() {
    let space = space();
    let base = space.allocate(ONE, 4 * Page::BYTES, 1, "x").unwrap();
    space.fill(base, 4 * Page::BYTES, &[9]).unwrap();
    for (value, at, count) in [
        (&[0xab][..], 5, 3),
        (&[1, 2], 2, 40_000),
        (&[1, 2, 3, 4], Page::BYTES - 4, 17_000),
        (&[1, 2, 3, 4, 5, 6, 7, 8], Page::BYTES + 8, 12_000),
    ] {
        let bytes = (count * value.len()) as u64;
        space.fill(base + at, bytes, value).unwrap();
        let mut back = vec![0; bytes as usize];
        space.read(base + at, &mut back).unwrap();
        assert!(back.chunks(value.len()).all(|chunk| chunk == value));
    }
    let mut edges = [0; 2];
    space.read(base, &mut edges).unwrap();
    assert_eq!(edges, [9, 9]);
    for (value, at, bytes) in [(&[1, 2, 3][..], 0, 9), (&[], 0, 8), (&[1, 2], 1, 2), (&[1, 2, 3, 4], 0, 6)] {
        assert!(matches!(space.fill(base + at, bytes, value), Err(MemoryError::Pattern { .. })));
    }
}

#[test]
fn a_byte_has_a_value_when_the_host_gave_it_one() {
    let space = space();
    let base = space.allocate(ONE, 3 * Page::BYTES, 1, "x").unwrap();
    let other = space.allocate(TWO, 3 * Page::BYTES, 1, "y").unwrap();
    let x = space.find(base).unwrap();
    assert_eq!(x.defined(100, 64), 0);
    space.write(base + 101, &[1, 2, 3]).unwrap();
    assert_eq!(x.defined(100, 8), 0b1110);
    space.fill(base + Page::BYTES, Page::BYTES, &[0]).unwrap();
    assert_eq!(x.defined(Page::BYTES - 4, 8), 0xf0);
    assert_eq!(x.defined(2 * Page::BYTES - 60, 64), u64::MAX >> 4);
    space.copy(other + 3, base, 2 * Page::BYTES).unwrap();
    let y = space.find(other).unwrap();
    assert_eq!(y.defined(103, 8), 0b1110);
    assert_eq!(y.defined(Page::BYTES - 1, 8), 0xf0);
    assert_eq!(y.defined(2 * Page::BYTES, 8), 0b111);
    x.set_defined(102, 1, false);
    assert_eq!(x.defined(100, 8), 0b1010);
    space.assume_defined();
    assert_eq!(x.defined(100, 64), u64::MAX);
    assert_eq!(x.defined(0, 3), 0b111);
}

#[test]
fn what_nobody_wrote_is_no_number() {
    let space = space();
    let x = space.find(space.allocate(ONE, 64, 1, "x").unwrap()).unwrap();
    assert!(f32::from_bits(x.load_u32(4)).is_nan() && f64::from_bits(x.load_u64(8)).is_nan());
    assert!(half::f16::from_bits(x.load_u16(2)).is_nan() && half::bf16::from_bits(x.load_u16(2)).is_nan());
}

#[test]
fn faults_say_what_is_near_and_how_far() {
    let space = space();
    let x = space.allocate(ONE, 1000, 1, "x").unwrap();
    let y = space.allocate(ONE, 4096, 4096, "y").unwrap();
    assert!(x.is_multiple_of(256) && y.is_multiple_of(4096) && y - (x + 1000) >= RED_ZONE);
    let fault = |address, bytes| space.fault(ONE, address, bytes, Space::Global, true);
    let said = |address, bytes| {
        let fault = fault(address, bytes);
        (fault.kind, fault.allocation.unwrap())
    };
    let place = format!("`x` (1000 bytes at {x:#x} on device 0)");
    assert_eq!(said(x + 1000, 8), (FaultKind::OutOfBounds, format!("0 bytes past the end of {place}")));
    assert_eq!(said(x + 992, 16), (FaultKind::OutOfBounds, format!("at byte 992 of {place}, 8 bytes past its end")));
    assert_eq!(said(x + 2, 4), (FaultKind::Misaligned, format!("at byte 2 of {place}")));
    assert_eq!(said(x - 16, 16), (FaultKind::OutOfBounds, format!("16 bytes before {place}")));
    assert!(said(y - 4, 4).1.starts_with("4 bytes before `y`"));
    space.find(x).unwrap().set_read_only(true);
    assert_eq!(space.resolve(ONE, x, 4, true).unwrap_err(), FaultKind::ReadOnly);
    assert!(space.resolve(ONE, x, 4, false).is_ok());
    assert_eq!(space.resolve(TWO, x, 4, false).unwrap_err(), FaultKind::NoPeerAccess);
    space.enable_peer(TWO, ONE).unwrap();
    assert!(space.resolve(TWO, x, 4, false).is_ok());
    assert_eq!(space.resolve(ONE, x, 4, true).unwrap_err(), FaultKind::ReadOnly);
    let kept = space.find(x).unwrap();
    space.free(x).unwrap();
    assert!(kept.freed());
    assert_eq!(said(x + 8, 8), (FaultKind::UseAfterFree, format!("in {place}, which was freed")));
    assert_eq!(space.free(x).unwrap_err().to_string(), format!("cannot free {x:#x}: in {place}, which was freed"));
    let inside = space.free(y + 8).unwrap_err().to_string();
    assert!(inside.contains("at byte 8 of `y`"), "{inside}");
    for address in [0, 1, u64::MAX, u64::MAX - 7, 1 << 47] {
        assert_eq!(fault(address, 1).kind, FaultKind::OutOfBounds);
    }
    let error = space.read(y + 4000, &mut [0; 100]).unwrap_err().to_string();
    assert!(error.contains("read 100 bytes") && error.contains("4 bytes past its end"), "{error}");
}

#[test]
fn addresses_follow_from_the_calls_and_memory_comes_back() {
    let run = || {
        let space = space();
        let a = space.allocate(ONE, 100, 1, "a").unwrap();
        let b = space.allocate(TWO, 0, 1, "b").unwrap();
        space.free(a).unwrap();
        let c = space.allocate(ONE, 5 * GIB, 512, "c").unwrap();
        (a, b, c, space.usage(ONE).unwrap())
    };
    assert_eq!(run(), run());
    let (a, _, c, usage) = run();
    assert_ne!(a, c, "a freed address rests");
    assert_eq!(usage, (3 * GIB, 8 * GIB));

    // More than all addresses of a device, a little at a time: freed ones come round again.
    let space = AddressSpace::new(&[64 * GIB]).unwrap();
    let kept = space.allocate(ONE, 1000, 1, "kept").unwrap();
    space.write(kept, &[5; 1000]).unwrap();
    for _ in 0..18 {
        let address = space.allocate(ONE, 60 * GIB, 1, "round").unwrap();
        assert!(address > kept + 1000);
        space.free(address).unwrap();
    }
    let mut back = [0; 1000];
    space.read(kept, &mut back).unwrap();
    assert_eq!(back, [5; 1000]);
}

#[test]
fn impossible_requests_are_errors_with_the_numbers() {
    let space = space();
    let error = space.allocate(ONE, 9 * GIB, 1, "w").unwrap_err().to_string();
    assert_eq!(error, "cannot allocate 9663676416 bytes for `w` on device 0: 8589934592 of 8589934592 bytes are free");
    for bytes in [u64::MAX, u64::MAX - 255, 1 << 63] {
        assert!(matches!(space.allocate(TWO, bytes, 1, "w"), Err(MemoryError::OutOfMemory { .. })));
    }
    for align in [0, 3, 1 << 40] {
        assert!(matches!(space.allocate(ONE, 8, align, "w"), Err(MemoryError::Alignment { .. })));
    }
    let error = space.allocate(DeviceId(2), 8, 1, "w").unwrap_err().to_string();
    assert_eq!(error, "there is no device 2: the system has 2, counted from 0");
    assert!(space.enable_peer(ONE, DeviceId(7)).is_err());
    assert!(AddressSpace::new(&[]).is_err() && AddressSpace::new(&[1; 65]).is_err());
    assert!(AddressSpace::new(&[u64::MAX]).is_err());
    assert!(space.write(u64::MAX - 1, &[1, 2, 3]).is_err());
    assert!(space.copy(0, 8, u64::MAX).is_err());
}

#[test]
fn threads_share_a_page_without_losing_a_byte() {
    let space = space();
    let base = space.allocate(ONE, 2 * Page::BYTES, 1, "x").unwrap();
    let allocation = space.find(base).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let allocation = &allocation;
            scope.spawn(move || (thread..2 * Page::BYTES).step_by(4).for_each(|at| allocation.store_u8(at, at as u8)));
        }
    });
    assert!((0..2 * Page::BYTES).all(|at| allocation.load_u8(at) == at as u8));
}
