//! The kernel of rotary positions on the software device.
#![forbid(unsafe_code)]

mod common;

use common::counters::{assert_bound_by_memory, profiles};
use common::trial::{Trial, Verdict};
use common::ways::Ways;
use common::{On, U, assert_within, f64s, normal};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::rope::{self, Options, Shape, reference};

struct Case {
    shape: Shape,
    options: Options,
    positions: Option<Vec<u32>>,
    before: usize,
}

impl Case {
    fn new(shape: [usize; 5], position: usize, interleaved: bool) -> Self {
        let [batch, tokens, heads, head_size, row_stride] = shape;
        let shape = Shape { batch, tokens, heads, head_size, row_stride };
        let options = Options { position, interleaved, ..Options::default() };
        Self { shape, options, positions: None, before: 8 }
    }

    fn len(&self) -> usize {
        self.shape.batch * self.shape.tokens * self.shape.row_stride
    }

    fn run<T: Float>(&self, on: &On, back: bool) -> Vec<T> {
        let mut x = on.padded(self.before, &normal::<T>(self.len(), 1));
        let positions = self.positions.as_ref().map(|positions| on.up(positions));
        let positions = positions.as_ref().map(|positions| positions.as_view());
        let turn = if back { rope::backward } else { rope::forward };
        turn(&on.stream, self.shape, self.options, positions, x.view_mut()).unwrap();
        x.down(on)
    }

    fn check<T: Float>(&self, ways: Ways) {
        for back in [false, true] {
            let given = ways.same(|on| self.run::<T>(on, back));
            let x = f64s(&normal::<T>(self.len(), 1));
            let mut exact = x.clone();
            let sign = if back { -1.0 } else { 1.0 };
            reference::rotate(self.shape, self.options, self.positions.as_deref(), sign, &mut exact);
            let largest = x.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            // Cosine and sine rounded, one product and one fused sum, each of at most twice the largest element.
            assert_within("x", &given, &exact, |_| 4.0 * U * largest);
            let cpu = self.run::<T>(&On::threads(1), back);
            let other = given.iter().zip(&cpu).filter(|(a, b)| a != b).count();
            // The angles differ in f64's last bits, which seldom shows.
            assert!(other * 50 <= given.len(), "{other} of {} differ from the CPU's", given.len());
        }
    }
}

#[test]
fn rows_are_turned_in_every_way() {
    for interleaved in [false, true] {
        let cases = [[2, 3, 2, 16, 40], [1, 5, 1, 64, 64], [1, 2, 3, 6, 19]];
        for case in cases.map(|shape| Case::new(shape, 0, interleaved)) {
            case.check::<f32>(Ways::EVERY);
            case.check::<bf16>(Ways::EVERY);
            case.check::<f16>(Ways::EVERY);
        }
        let misaligned = Case { before: 1, ..Case::new([1, 3, 2, 32, 64], 7, interleaved) };
        misaligned.check::<bf16>(Ways::TWO);
        Case::new([1, 2, 40, 128, 5120], 0, interleaved).check::<f32>(Ways::TWO);
    }
}

#[test]
fn position_131071_is_as_exact_as_the_first() {
    Case::new([1, 2, 1, 128, 128], 131_070, false).check::<f32>(Ways::TWO);
    let positions = Some(vec![131_071, 0, 4_000_000, 17]);
    Case { positions, ..Case::new([2, 2, 1, 128, 128], 3, true) }.check::<f32>(Ways::TWO);
}

#[test]
fn every_byte_is_moved_once_and_no_bank_is_asked_twice() {
    const ROWS: usize = 3;
    fn check<T: Float>() {
        for (head_size, interleaved) in [(128, false), (128, true), (64, false), (64, true)] {
            let heads = 4096 / head_size;
            let case = Case { before: 0, ..Case::new([1, ROWS, heads, head_size, heads * head_size], 5, interleaved) };
            let counted = profiles(|on| drop(case.run::<T>(on, false)));
            // Each row reads the frequencies, of f64.
            let again = (ROWS - 1) * head_size / 2 * size_of::<f64>();
            assert_bound_by_memory(&format!("{}, heads of {head_size}", T::DTYPE), &counted, again);
        }
    }
    check::<f32>();
    check::<bf16>();
    check::<f16>();
}

#[test]
fn nothing_to_turn() {
    let on = On::software();
    assert!(Case::new([0, 3, 2, 16, 40], 0, false).run::<f32>(&on, false).is_empty());
    let kept = Case::new([1, 2, 0, 16, 40], 0, false);
    assert_eq!(kept.run::<f32>(&on, false), normal::<f32>(80, 1));
}

fn mutants<T: Float>() -> Verdict {
    let mut cases = Vec::new();
    for interleaved in [false, true] {
        cases.push(Case::new([2, 3, 2, 64, 160], 5, interleaved));
        cases.push(Case { before: 1, ..Case::new([1, 3, 3, 10, 31], 0, interleaved) });
        // More than the threads of a block have at once.
        let heads = 80 / size_of::<T>();
        cases.push(Case::new([1, 2, heads, 64, heads * 64], 3, interleaved));
        cases.push(Case { before: 1, ..Case::new([1, 2, 30, 10, 301], 0, interleaved) });
        // A head of more runs than a block has threads, of 16 bytes and of one pair.
        let long = 4160 / size_of::<T>();
        cases.push(Case { positions: Some(vec![9, 100_000]), ..Case::new([1, 2, 1, long, long], 1, interleaved) });
        cases.push(Case { before: 1, ..Case::new([1, 2, 1, 300, 301], 0, interleaved) });
    }
    Trial::of("rope", &format!("rope_rotate_{}", T::DTYPE), usize::MAX)
        .verdict(|on, judge| cases.iter().for_each(|case| judge.see(&case.run::<T>(on, true))))
}

#[test]
fn mutants_are_killed() {
    mutants::<f32>().and(mutants::<bf16>()).and(mutants::<f16>()).assert_killed();
}
