//! The kernels of the embedding on the software device: the same bits as the CPU's, as both sum in the same order in f64.
#![forbid(unsafe_code)]

mod common;

use common::trial::{Judge, Trial, Verdict, sample};
use common::ways::Ways;
use common::{On, f64s, normal, tokens};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::embedding::{self, Shape, Shard};

/// Everything that the op has for one table, of which rows from `shard.first` on are here.
struct Case<T> {
    shape: Shape,
    shard: Shard,
    before: usize,
    ids: Vec<u32>,
    /// Of the calls for a part of a table.
    shard_ids: Vec<u32>,
    table: Vec<T>,
    positions: Vec<T>,
    dy: Vec<T>,
}

impl<T: Float> Case<T> {
    fn new([batch, tokens_, channels, vocab]: [usize; 4], before: usize) -> Self {
        let shape = Shape { batch, tokens: tokens_, channels, vocab, positions: tokens_ + 2 };
        let (first, rows) = (vocab / 3, batch * tokens_);
        let mut shard_ids = tokens(rows, 2 * vocab as u32, 10);
        // Both sides of both ends.
        let ends = [first as i64 - 1, first as i64, (first + vocab) as i64 - 1, (first + vocab) as i64];
        shard_ids.iter_mut().zip(ends).for_each(|(id, end)| *id = end.max(0) as u32);
        Self {
            shape,
            shard: Shard { first, vocab: 2 * vocab },
            before,
            ids: tokens(rows, vocab as u32, 9),
            shard_ids,
            table: normal(vocab * channels, 1),
            positions: normal((tokens_ + 2) * channels, 2),
            dy: normal(rows * channels, 3),
        }
    }

    /// One token in most places, so that it has many rows.
    fn crowded(mut self) -> Self {
        self.ids.iter_mut().step_by(3).for_each(|id| *id = 2);
        self.ids.iter_mut().skip(1).step_by(3).for_each(|id| *id = 2);
        self
    }

    /// Outputs of every forward call, one after the other.
    fn forward(&self, on: &On) -> Vec<f64> {
        let (ids, shard_ids) = (on.up(&self.ids), on.up(&self.shard_ids));
        let table = on.padded(self.before, &self.table);
        let positions = on.padded(self.before, &self.positions);
        let mut all = Vec::new();
        for positions in [None, Some(positions.view())] {
            let mut y = on.padded_garbage::<T>(self.before, self.dy.len());
            embedding::forward(&on.stream, self.shape, ids.as_view(), table.view(), positions, y.view_mut()).unwrap();
            all.extend(f64s(&y.down(on)));
        }
        for write in [Write::Set, Write::Add] {
            let (mut y, ids) = (on.padded(self.before, &self.dy), shard_ids.as_view());
            embedding::forward_shard(&on.stream, self.shape, self.shard, ids, table.view(), write, y.view_mut())
                .unwrap();
            all.extend(f64s(&y.down(on)));
        }
        all
    }

    /// Gradients by every backward call, one after the other.
    fn backward(&self, on: &On) -> Vec<f32> {
        let Shape { channels, vocab, positions, .. } = self.shape;
        let (ids, dy) = (on.up(&self.ids), on.padded(self.before, &self.dy));
        let mut dtable = on.padded(self.before, &normal(vocab * channels, 4));
        let mut dpositions = on.padded(self.before, &normal(positions * channels, 5));
        let (ids, out) = (ids.as_view(), (dtable.view_mut(), Some(dpositions.view_mut())));
        embedding::backward(&on.stream, self.shape, ids, dy.view(), out.0, out.1).unwrap();
        let mut all = [dtable.down(on), dpositions.down(on)].concat();
        let ids = on.up(&self.shard_ids);
        embedding::backward_shard(&on.stream, self.shape, self.shard, ids.as_view(), dy.view(), dtable.view_mut())
            .unwrap();
        all.extend(dtable.down(on));
        all
    }

    fn check(&self, ways: Ways) {
        let cpu = On::threads(2);
        assert_eq!(ways.same(|on| self.forward(on)), self.forward(&cpu));
        assert_eq!(ways.same(|on| self.backward(on)), self.backward(&cpu));
    }
}

#[test]
fn tiles_are_right_in_every_way() {
    Case::<f32>::new([2, 5, 12, 7], 8).check(Ways::EVERY);
    Case::<bf16>::new([3, 40, 5, 11], 1).crowded().check(Ways::EVERY);
    Case::<f16>::new([1, 9, 64, 300], 8).check(Ways::EVERY);
}

#[test]
fn large_shapes_are_right() {
    Case::<f32>::new([3, 100, 40, 50_257], 8).check(Ways::TWO);
    Case::<bf16>::new([2, 3, 1032, 300], 8).check(Ways::TWO);
    Case::<bf16>::new([2, 50, 16, 70_000], 8).check(Ways::TWO);
    Case::<f16>::new([9, 600, 8, 300], 8).crowded().check(Ways::TWO);
}

#[test]
fn nothing_is_nothing() {
    for sizes in [[0, 5, 4, 3], [2, 3, 0, 3]] {
        Case::<f32>::new(sizes, 8).check(Ways::TWO);
    }
}

/// What both calls say of tokens outside the vocabulary in some rows, and what they write.
fn outside<T: Float>(on: &On, rows: &[usize]) -> ([String; 2], Vec<T>, Vec<f32>) {
    let mut case = Case::<T>::new([2, 4, 4, 7], 0);
    rows.iter().for_each(|row| case.ids[*row] = 7);
    let (ids, table, dy) = (on.up(&case.ids), on.up(&case.table), on.up(&case.dy));
    let (mut y, mut dtable) = (on.up(&[T::from_f32(0.5); 32]), on.up(&[0.25f32; 28]));
    embedding::forward(&on.stream, case.shape, ids.as_view(), table.as_view(), None, y.as_view_mut()).unwrap();
    let forward = on.stream.synchronize().unwrap_err().to_string();
    embedding::backward(&on.stream, case.shape, ids.as_view(), dy.as_view(), dtable.as_view_mut(), None).unwrap();
    let backward = on.stream.synchronize().unwrap_err().to_string();
    ([forward, backward], on.down(&y), on.down(&dtable))
}

#[test]
fn a_token_outside_the_vocabulary_names_its_row_and_writes_nothing() {
    // The word is free again after it has been told.
    let (said, y, dtable) = outside::<f32>(&On::software(), &[5]);
    for (said, call) in said.iter().zip(["embedding forward: `ids`", "embedding backward: `ids`"]) {
        assert!(said.contains(call) && said.contains("row 5") && said.contains('7'), "{said}");
    }
    assert_eq!(y[20..24], [0.5; 4]);
    let mut case = Case::<f32>::new([2, 4, 4, 7], 0);
    case.ids[5] = 0;
    case.dy[20..24].fill(0.0);
    let cpu = On::threads(1);
    let mut expected = cpu.up(&[0.25f32; 28]);
    let (ids, dy) = (cpu.up(&case.ids), cpu.up(&case.dy));
    embedding::backward(&cpu.stream, case.shape, ids.as_view(), dy.as_view(), expected.as_view_mut(), None).unwrap();
    assert_eq!(dtable, cpu.down(&expected));
}

fn mutants<T: Float>(most: usize) -> Verdict {
    let cases = [
        Case::<T>::new([2, 5, 12 * 4 / size_of::<T>(), 7], 0),
        Case::new([1, 9, 37, 5], 1),
        Case::new([1, 3, 516 * 4 / size_of::<T>(), 5], 0),
        Case::new([41, 60, 2, 290], 0).crowded(),
    ];
    let faults = |on: &On, judge: &mut Judge<'_>| {
        // Of several rows one is told, whole.
        for rows in [&[5][..], &[1, 3, 4, 6]] {
            let (said, y, dtable) = outside::<T>(on, rows);
            judge.see(said.concat().as_bytes());
            judge.see(&y);
            judge.see(&dtable);
        }
    };
    let forward = |on: &On, judge: &mut Judge<'_>| {
        cases.iter().for_each(|case| judge.see(&case.forward(on)));
        faults(on, judge);
    };
    let backward = |on: &On, judge: &mut Judge<'_>| {
        cases.iter().for_each(|case| judge.see(&case.backward(on)));
        faults(on, judge);
    };
    let kernel = |call: &str| format!("embedding_{call}_{}", T::DTYPE);
    let verdict = Trial::of("embedding", &kernel("forward"), most).verdict(forward);
    let table = Trial::of("embedding", &kernel("backward_table"), most).verdict(backward);
    let all = verdict.and(table).and(Trial::of("embedding", &kernel("backward_positions"), most).verdict(backward));
    if size_of::<T>() == 4 { all.and(Trial::of("embedding", "embedding_keys", most).verdict(backward)) } else { all }
}

/// Rows whose sums show in which order they come: what is added between a large number and its opposite is lost.
fn ordered(rows: usize, vocab: usize, crowded: bool) -> Case<f32> {
    let case = Case::<f32>::new([1, rows, 1, vocab], 0);
    let mut case = if crowded { case.crowded() } else { case };
    for (i, dy) in case.dy.iter_mut().enumerate() {
        match i % 4 {
            0 => *dy = 2f32.powi(60),
            2 => *dy = -2f32.powi(60),
            _ => {}
        }
    }
    case
}

#[test]
fn mutants_are_killed() {
    // Of the sort: lengths that end in each round of a warp; every digit in every block, and more of them than the scan has threads; one
    // pass over the digits and three.
    let short = (0..8).map(|round| ordered(32 * round + 5, 3, true));
    let long = [ordered(2100, 290, true), ordered(10_240, 256, false), ordered(100, 70_000, true)];
    let cases: Vec<Case<f32>> = short.chain(long).collect();
    let sort = Trial::of("embedding", "embedding_sort", sample(20, usize::MAX)).verdict(|on, judge| {
        cases.iter().for_each(|case| judge.see(&case.backward(on)));
    });
    let few = sample(5, usize::MAX);
    let all = sort.and(mutants::<f32>(sample(20, usize::MAX))).and(mutants::<bf16>(few)).and(mutants::<f16>(few));
    all.assert_killed();
}
