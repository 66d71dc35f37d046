//! Philox: the published known answers, moments of the distributions, and independence of how a tensor is split.
#![forbid(unsafe_code)]

use warpweft_device::{Device, bf16};
use warpweft_kernels::philox::{self, Philox4x32};

/// From the file `kat_vectors` of Random123 (D. E. Shaw Research), lines `philox4x32 10`.
#[test]
fn known_answers_of_random123() {
    let cases = [
        ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
        ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
        (
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ];
    for (counter, key, expected) in cases {
        assert_eq!(Philox4x32::cipher(counter, key), expected);
    }
}

#[test]
fn a_block_is_the_cipher_of_position_and_stream_under_the_seed() {
    let generator = Philox4x32::new(0x0102_0304_0506_0708, 0x1112_1314_1516_1718);
    let counter = [0x2526_2728, 0x2122_2324, 0x1516_1718, 0x1112_1314];
    let block = Philox4x32::cipher(counter, [0x0506_0708, 0x0102_0304]);
    let position = 0x2122_2324_2526_2728;
    assert_eq!(generator.block(position), block);
    assert_eq!([0, 1, 2, 3].map(|i| Philox4x32::new(3, 4).word(8 + i)), Philox4x32::new(3, 4).block(2));
}

const COUNT: usize = 1 << 18;

/// The tolerances are six standard errors of each estimate over `COUNT` samples: a right generator fails one in 10^9.
#[test]
fn uniform_numbers_have_the_moments_of_the_distribution() {
    let numbers: Vec<f64> = (0..COUNT as u64).map(|i| f64::from(Philox4x32::new(1, 2).uniform(i))).collect();
    assert!(numbers.iter().all(|u| (0.0..1.0).contains(u)));
    let n = COUNT as f64;
    let mean = numbers.iter().sum::<f64>() / n;
    let variance = numbers.iter().map(|u| (u - 0.5) * (u - 0.5)).sum::<f64>() / n;
    assert!((mean - 0.5).abs() < 6.0 * (1.0 / 12.0 / n).sqrt(), "{mean}");
    // The fourth central moment is 1/80, so the variance of (u - 1/2)^2 is 1/80 - 1/144.
    assert!((variance - 1.0 / 12.0).abs() < 6.0 * ((1.0 / 80.0 - 1.0 / 144.0) / n).sqrt(), "{variance}");
}

#[test]
fn normal_numbers_have_the_moments_of_the_distribution() {
    let generator = Philox4x32::new(7, 0);
    let numbers: Vec<f64> = (0..COUNT as u64).map(|i| generator.normal(i)).collect();
    let n = COUNT as f64;
    let moment = |power: i32| numbers.iter().map(|z| z.powi(power)).sum::<f64>() / n;
    // The variance of z^p is E z^2p - (E z^p)^2, with E z^2 = 1, E z^4 = 3, E z^6 = 15, E z^8 = 105.
    for (power, expected, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
        let (moment, bound) = (moment(power), 6.0 * f64::sqrt(variance / n));
        assert!((moment - expected).abs() < bound, "E z^{power} = {moment}, expected {expected} +- {bound}");
    }
    // The two numbers of a block, and neighbouring blocks, are uncorrelated.
    for lag in 1..=2 {
        let correlation = numbers.windows(lag + 1).map(|z| z[0] * z[lag]).sum::<f64>() / n;
        assert!(correlation.abs() < 6.0 / n.sqrt(), "lag {lag}: {correlation}");
    }
    assert!(numbers.iter().all(|z| z.abs() < 8.58));
}

#[test]
fn any_split_over_threads_and_parts_gives_the_same_numbers() {
    let generator = Philox4x32::new(u64::MAX, 5);
    let first = u64::MAX - 9_000; // The index wraps on the way.
    let len = 20_001;
    let expected: Vec<f32> =
        (0..len as u64).map(|i| (generator.normal(first.wrapping_add(i)) * 0.5 + 1.0) as f32).collect();
    for threads in 1..=3 {
        let device = Device::cpu_with_threads(threads).unwrap();
        let stream = device.stream();
        let mut whole = device.zeros::<f32>(len).unwrap();
        let (mut left, mut right) = whole.as_view_mut().split_at(7_777).unwrap();
        philox::normal(&stream, generator, first, (1.0, 0.5), left.reborrow()).unwrap();
        philox::normal(&stream, generator, first.wrapping_add(7_777), (1.0, 0.5), right.reborrow()).unwrap();
        assert_eq!(whole.download(&stream).unwrap(), expected);

        let mut uniform = device.zeros::<bf16>(len).unwrap();
        philox::uniform(&stream, generator, 3, (-1.0, 1.0), uniform.as_view_mut()).unwrap();
        for (i, value) in uniform.download(&stream).unwrap().into_iter().enumerate() {
            let u = generator.uniform(3 + i as u64);
            assert_eq!(value, bf16::from_f32(2.0 * u - 1.0));
        }
    }
}

#[test]
fn bounds_that_are_not_finite_are_refused() {
    let device = Device::cpu_with_threads(1).unwrap();
    let mut out = device.upload(&[3.0f32]).unwrap();
    let generator = Philox4x32::new(0, 0);
    let error = philox::uniform(&device.stream(), generator, 0, (0.0, f32::INFINITY), out.as_view_mut()).unwrap_err();
    assert_eq!(error.to_string(), "philox uniform: `high` is inf; it must be finite");
    let error = philox::normal(&device.stream(), generator, 0, (0.0, f32::NAN), out.as_view_mut()).unwrap_err();
    assert_eq!(error.to_string(), "philox normal: `std` is NaN; it must be finite");
    assert_eq!(out.download(&device.stream()).unwrap(), [3.0]);
}
