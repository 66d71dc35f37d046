//! Sorting, scanning, counting and picking, as Triton compiles them: all results are exact, or sums with a bound.

use half::f16;

use crate::numbers::{Bounded, F32, Numbers, Real, close, same};
use crate::triton::Kernel;
use crate::vm::{Buffer, Machine, Ways};

/// Rows of `columns`, one program a row; the reference makes one row of results from one row of inputs.
fn by_rows<T, R>(ways: &Ways, name: &str, input: &[T], columns: usize, results: usize, row: impl Fn(&[T]) -> Vec<R>)
where
    T: bytemuck::Pod,
    R: bytemuck::Pod + std::fmt::Debug,
{
    let kernel = Kernel::open(name);
    let rows = input.len() / columns;
    let wanted: Vec<R> = input.chunks(columns).flat_map(row).collect();
    ways.each(|machine| {
        let (inp, out) = (machine.upload(input), machine.output::<R>(rows * results));
        let call = kernel.on(machine).buffer("out", &out).buffer("inp", &inp);
        call.integers(&[("columns", columns as i32)]).launch([rows as u32, 1, 1]);
        same("out", &machine.download::<R>(&out), &wanted);
    });
}

pub(crate) fn sort_f32(ways: &Ways) {
    let mut x = Numbers::new(61).reals::<f32>(3 * 201, 100.0);
    // Equal keys, both infinities, subnormals.
    x[5] = x[9];
    (x[11], x[12], x[13], x[14]) = (f32::INFINITY, f32::NEG_INFINITY, 1e-40, -1e-40);
    by_rows(ways, "sort_f32", &x, 201, 201, |row| {
        let mut row = row.to_vec();
        row.sort_by(f32::total_cmp);
        row
    });
}

pub(crate) fn sort_i32_descending(ways: &Ways) {
    let mut x = Numbers::new(62).integers(4 * 100, -30, 30);
    (x[0], x[1]) = (i32::MAX, i32::MIN + 1);
    by_rows(ways, "sort_i32_descending", &x, 100, 100, |row| {
        let mut row = row.to_vec();
        row.sort_by(|a, b| b.cmp(a));
        row
    });
}

pub(crate) fn sort_i64(ways: &Ways) {
    let mut numbers = Numbers::new(63);
    let x: Vec<i64> = (0..3 * 64).map(|_| numbers.bits() as i64).collect();
    by_rows(ways, "sort_i64", &x, 64, 64, |row| {
        let mut row = row.to_vec();
        row.sort_unstable();
        row
    });
}

pub(crate) fn top_k(ways: &Ways) {
    let x = Numbers::new(64).reals::<f32>(3 * 250, 9.0);
    by_rows(ways, "top_k", &x, 250, 16, |row| {
        let mut row = row.to_vec();
        row.sort_by(|a, b| b.total_cmp(a));
        row.truncate(16);
        row
    });
}

pub(crate) fn cumsum_i32(ways: &Ways) {
    // Sums wrap.
    let x = Numbers::new(65).integers(2 * 1000, -2_000_000_000, 2_000_000_000);
    by_rows(ways, "cumsum_i32", &x, 1000, 1000, |row| running(row, i32::wrapping_add));
}

pub(crate) fn cumsum_f64_reverse(ways: &Ways) {
    // Whole numbers: every order of additions gives the same.
    let x = Numbers::new(66).whole::<f64>(3 * 199, 1000);
    by_rows(ways, "cumsum_f64_reverse", &x, 199, 199, |row| {
        let backwards: Vec<f64> = row.iter().rev().copied().collect();
        running(&backwards, |a, b| a + b).into_iter().rev().collect()
    });
}

fn running<T: Copy>(row: &[T], add: impl Fn(T, T) -> T) -> Vec<T> {
    let mut result: Vec<T> = Vec::with_capacity(row.len());
    for &x in row {
        result.push(result.last().map_or(x, |&sum| add(sum, x)));
    }
    result
}

/// h[t] = a[t] h[t-1] + x[t] by an associative scan over pairs.
pub(crate) fn linear_recurrence(ways: &Ways) {
    let kernel = Kernel::open("linear_recurrence");
    let (rows, columns) = (16, 60);
    let mut numbers = Numbers::new(67);
    let decay: Vec<f32> = (0..rows * columns).map(|_| numbers.real(0.95).abs() as f32).collect();
    let x = numbers.reals::<f32>(rows * columns, 1.0);
    let mut wanted = Vec::new();
    for (a, x) in decay.chunks(columns).zip(x.chunks(columns)) {
        // `size`: the same recurrence of magnitudes, which every rounding on the way is relative to. A tree of 6 levels
        // multiplies and adds at most twice at each.
        let (mut h, mut size) = (0.0, 0.0);
        for (a, x) in a.iter().zip(x) {
            (h, size) = (a.f64() * h + x.f64(), a.f64() * size + x.f64().abs());
            wanted.push(Bounded { value: h, error: size * 2.0 * columns as f64 * F32 });
        }
    }
    ways.each(|machine| {
        let (a, input, out) = (machine.upload(&decay), machine.upload(&x), machine.output::<f32>(rows * columns));
        let call = kernel.on(machine).buffer("out", &out).buffer("decay", &a).buffer("inp", &input);
        call.integers(&[("columns", columns as i32)]).launch([2, 1, 1]);
        close("h", &machine.download::<f32>(&out), &wanted);
    });
}

pub(crate) fn histogram(ways: &Ways) {
    let kernel = Kernel::open("histogram");
    let (count, bins) = (1333, kernel.constant("BINS") as usize);
    let mut numbers = Numbers::new(68);
    let x: Vec<i32> = (0..count).map(|_| numbers.between(0, 8) as i32 * numbers.between(0, 9) as i32).collect();
    let mut wanted = vec![0i32; bins];
    x.iter().for_each(|&x| wanted[x as usize] += 1);
    ways.each(|machine| {
        let (inp, out) = (machine.upload(&x), machine.zeros::<i32>(bins));
        let call = kernel.on(machine).buffer("out", &out).buffer("inp", &inp);
        call.integers(&[("count", count)]).launch([3, 1, 1]);
        same("bins", &machine.download::<i32>(&out), &wanted);
    });
}

/// Places of the least and the largest of each row; of equal ones the first.
pub(crate) fn arg_extremes(ways: &Ways) {
    let kernel = Kernel::open("arg_extremes");
    let (rows, columns) = (4, 400);
    let x: Vec<f32> = Numbers::new(69).integers(rows * columns, -60, 60).iter().map(|&x| x as f32).collect();
    let first = |row: &[f32], better: fn(f32, f32) -> bool| {
        (1..row.len()).fold(0, |best, at| if better(row[at], row[best]) { at } else { best })
    };
    let smallest: Vec<i32> = x.chunks(columns).map(|row| first(row, |a, b| a < b) as i32).collect();
    let largest: Vec<i32> = x.chunks(columns).map(|row| first(row, |a, b| a > b) as i32).collect();
    let values: Vec<f32> = x.chunks(columns).zip(&largest).map(|(row, &at)| row[at as usize]).collect();
    ways.each(|machine| {
        let input = machine.upload(&x);
        let (low, high, best) = (machine.output::<i32>(rows), machine.output::<i32>(rows), machine.output::<f32>(rows));
        let call = kernel.on(machine).buffer("out_min", &low).buffer("out_max", &high).buffer("values", &best);
        call.buffer("inp", &input).integers(&[("columns", columns as i32)]).launch([rows as u32, 1, 1]);
        same("argmin", &machine.download::<i32>(&low), &smallest);
        same("argmax", &machine.download::<i32>(&high), &largest);
        same("max", &machine.download::<f32>(&best), &values);
    });
}

pub(crate) fn gather_rows(ways: &Ways) {
    let kernel = Kernel::open("gather_rows");
    let (rows, columns, entries) = (6, 205, 10);
    let mut numbers = Numbers::new(70);
    let table = numbers.reals::<f32>(entries * columns, 1.0);
    let index = numbers.integers(rows, 0, entries as i64);
    let row = |&at: &i32| table[at as usize * columns..(at as usize + 1) * columns].to_vec();
    let wanted: Vec<f32> = index.iter().flat_map(row).collect();
    ways.each(|machine| {
        let (from, which, out) =
            (machine.upload(&table), machine.upload(&index), machine.output::<f32>(rows * columns));
        let call = kernel.on(machine).buffer("out", &out).buffer("table", &from).buffer("index", &which);
        call.integers(&[("columns", columns as i32)]).launch([rows as u32, 1, 1]);
        same("rows", &machine.download::<f32>(&out), &wanted);
    });
}

pub(crate) fn permute_within(ways: &Ways) {
    let kernel = Kernel::open("permute_within");
    let (block, programs) = (kernel.constant("BLOCK") as usize, 2);
    let mut numbers = Numbers::new(71);
    let x = numbers.reals::<f32>(block * programs, 1.0);
    let index: Vec<i32> = (0..programs).flat_map(|_| numbers.permutation(block)).collect();
    let wanted: Vec<f32> = (0..x.len()).map(|at| x[at / block * block + index[at] as usize]).collect();
    ways.each(|machine| {
        let (inp, which, out) = (machine.upload(&x), machine.upload(&index), machine.output::<f32>(x.len()));
        let call = kernel.on(machine).buffer("out", &out).buffer("inp", &inp).buffer("index", &which);
        call.launch([programs as u32, 1, 1]);
        same("out", &machine.download::<f32>(&out), &wanted);
    });
}

/// The gradient of an embedding: rows with one target meet in atomics. Whole numbers, so that every order gives the same.
fn scatter_add<T: Real>(ways: &Ways, name: &str, columns: usize) {
    let kernel = Kernel::open(name);
    let (rows, entries) = (9, 4);
    let mut numbers = Numbers::new(72);
    let (grad, table) = (numbers.whole::<T>(rows * columns, 5), numbers.whole::<T>(entries * columns, 5));
    let index = numbers.integers(rows, 0, entries as i64);
    let mut wanted: Vec<f64> = table.iter().map(|x| x.f64()).collect();
    for (at, g) in grad.iter().enumerate() {
        wanted[index[at / columns] as usize * columns + at % columns] += g.f64();
    }
    let wanted: Vec<T> = wanted.into_iter().map(T::from_f64).collect();
    ways.each(|machine| {
        let (into, from, which) = (machine.upload(&table), machine.upload(&grad), machine.upload(&index));
        let call = kernel.on(machine).buffer("table", &into).buffer("grad", &from).buffer("index", &which);
        call.integers(&[("columns", columns as i32)]).launch([rows as u32, 1, 1]);
        same("table", &machine.download::<T>(&into), &wanted);
    });
}

pub(crate) fn scatter_add_f32(ways: &Ways) {
    scatter_add::<f32>(ways, "scatter_add_f32", 99);
}

pub(crate) fn scatter_add_f16(ways: &Ways) {
    scatter_add::<f16>(ways, "scatter_add_f16", 112);
}

/// Blocks take room by an atomic, in whatever order they come: the set is what counts, and where each block says it went.
pub(crate) fn compact(ways: &Ways) {
    let kernel = Kernel::open("compact");
    let block = kernel.constant("BLOCK") as usize;
    let x = Numbers::new(73).integers(700, 0, 100_000);
    let odd: Vec<i32> = x.iter().copied().filter(|x| x % 2 == 1).collect();
    ways.each(|machine| {
        let programs = x.len().div_ceil(block);
        let (inp, counter) = (machine.upload(&x), machine.zeros::<i32>(1));
        let out = machine.output::<i32>(odd.len());
        let places = machine.upload(&vec![-1i32; programs * block]);
        let call = kernel.on(machine).buffer("out", &out).buffer("places", &places).buffer("counter", &counter);
        call.buffer("inp", &inp).integers(&[("count", x.len() as i32)]).launch([programs as u32, 1, 1]);
        same("counter", &machine.download::<i32>(&counter), &[odd.len() as i32]);
        let (got, places) = (machine.download::<i32>(&out), machine.download::<i32>(&places));
        for (at, x) in x.iter().enumerate().filter(|(_, x)| *x % 2 == 1) {
            assert_eq!(got[places[at] as usize], *x, "element {at}, which went to {}", places[at]);
        }
        let sorted = |mut values: Vec<i32>| {
            values.sort_unstable();
            values
        };
        same("the set", &sorted(got), &sorted(odd.clone()));
    });
}

pub(crate) fn grid_reduce(ways: &Ways) {
    let kernel = Kernel::open("grid_reduce");
    let x = Numbers::new(74).whole::<f32>(1700, 40);
    let total: f32 = x.iter().sum();
    let largest = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let smallest = x.iter().copied().fold(f32::INFINITY, f32::min);
    let positive = x.iter().filter(|x| **x > 0.0).count() as i32;
    ways.each(|machine: &Machine| {
        let inp = machine.upload(&x);
        let sum = machine.zeros::<f32>(1);
        let (high, low) = (machine.upload(&[f32::NEG_INFINITY]), machine.upload(&[f32::INFINITY]));
        let count = machine.zeros::<i32>(1);
        let call = kernel.on(machine).buffer("total", &sum).buffer("largest", &high).buffer("smallest", &low);
        let call = call.buffer("count_positive", &count).buffer("inp", &inp);
        call.integers(&[("count", x.len() as i32)]).launch([4, 1, 1]);
        let read = |buffer: &Buffer| machine.download::<f32>(buffer)[0];
        assert_eq!((read(&sum), read(&high), read(&low)), (total, largest, smallest));
        assert_eq!(machine.download::<i32>(&count), [positive]);
    });
}

/// Every block leaves a part, and the last one to come adds them: the counter orders the parts for it.
pub(crate) fn last_block_sum(ways: &Ways) {
    let kernel = Kernel::open("last_block_sum");
    let x = Numbers::new(75).whole::<f32>(4000, 1000);
    let total: f64 = x.iter().map(|x| x.f64()).sum();
    ways.each(|machine| {
        let (inp, out, arrived) = (machine.upload(&x), machine.output::<f64>(1), machine.zeros::<i32>(1));
        let parts = machine.output::<f64>(8);
        let call = kernel.on(machine).buffer("out", &out).buffer("parts", &parts).buffer("arrived", &arrived);
        call.buffer("inp", &inp).integers(&[("count", x.len() as i32)]).launch([8, 1, 1]);
        assert_eq!(machine.download::<f64>(&out), [total]);
    });
}
