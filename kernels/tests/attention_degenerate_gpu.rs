//! Degenerate inputs of attention on the software device, one named test each, in every storage type and every range of head sizes
//! that has a program. (NaNs around what is there: attention_gpu_relations.rs.)
#![forbid(unsafe_code)]

mod common;

use common::attention::{Case, Gradients, Output, largest, shape};
use common::{On, U, assert_within, normal};
use warpweft_device::{Buffer, Float, View, bf16, f16};
use warpweft_kernels::KernelError;
use warpweft_kernels::attention::{self, Extra, Heads, Options, Saved, Shape, Starts};

/// Runs a check in every type, with a head size of each program.
macro_rules! in_every_type {
    ($check:ident) => {
        $check::<bf16>(64);
        $check::<f16>(104);
        $check::<bf16>(256);
        $check::<f32>(8);
        $check::<f32>(136);
    };
}

fn both<T: Float>(on: &On, case: &Case<T>) -> (Output<T>, Gradients<T>) {
    let saved = case.forward(on);
    let gradients = case.backward(on, &saved);
    (saved, gradients)
}

fn bytes<T: Float>(x: &[T]) -> &[u8] {
    bytemuck::cast_slice(x)
}

fn zero<T: Float>(x: &[T]) -> bool {
    x.iter().all(|x| x.to_f32() == 0.0)
}

fn no_keys<T: Float>(size: usize) {
    let on = On::software();
    let (saved, [dq, dk, dv]) = both(&on, &Case::<T>::new(shape(2, (70, 0), (2, 1), size), Options::FULL));
    assert!(zero(&saved.out) && saved.lse.iter().all(|&lse| lse == f32::NEG_INFINITY));
    assert!(zero(&dq) && dq.len() == 2 * 70 * 2 * size && dk.is_empty() && dv.is_empty());
}

#[test]
fn queries_without_keys_give_zero_and_an_lse_of_minus_infinity() {
    in_every_type!(no_keys);
}

fn no_queries<T: Float>(size: usize) {
    let on = On::software();
    let (_, [dq, dk, dv]) = both(&on, &Case::<T>::new(shape(2, (0, 70), (2, 1), size), Options::FULL));
    assert!(dq.is_empty() && zero(&dk) && zero(&dv) && dk.len() == 2 * 70 * size);
}

#[test]
fn keys_without_queries_get_gradients_of_zero() {
    in_every_type!(no_queries);
}

fn no_length<T: Float>(size: usize) {
    let on = On::software();
    both(&on, &Case::<T>::new(shape(0, (5, 5), (1, 1), size), Options::FULL));
    both(&on, &Case::<T>::new(shape(3, (0, 0), (1, 1), size), Options::FULL));
    let case = Case::<T>::of_lengths(&[(0, 0), (3, 0), (0, 4), (2, 2), (0, 0)], (1, 1), size, Options::CAUSAL);
    let (saved, [dq, dk, dv]) = both(&on, &case);
    let (alone, [q, k, v]) = both(&on, &case.sequences()[3].1);
    assert!(zero(&saved.out[..3 * size]) && saved.lse[..3] == [f32::NEG_INFINITY; 3] && saved.lse[3..] == alone.lse);
    assert!(zero(&dq[..3 * size]) && zero(&dk[..4 * size]) && zero(&dv[..4 * size]));
    for (all, part) in [(&saved.out, &alone.out), (&dq, &q), (&dk, &k), (&dv, &v)] {
        assert_eq!(bytes(&all[all.len() - 2 * size..]), bytes(part));
    }
}

#[test]
fn sequences_of_no_length_are_ordinary() {
    in_every_type!(no_length);
}

fn unseen_rows<T: Float>(size: usize) {
    let on = On::software();
    let case = Case::<T>::new(shape(2, (9, 4), (2, 1), size), Options::CAUSAL);
    let (saved, [dq, dk, dv]) = both(&on, &case);
    // The last four queries of each sequence, to which the keys belong: bottom right.
    let (row, rows) = (2 * size, |x: &[T], from: usize, to: usize| -> Vec<T> {
        x.chunks(9 * 2 * size).flat_map(|sequence| sequence[from * 2 * size..to * 2 * size].to_vec()).collect()
    });
    assert_eq!(rows(&saved.out, 0, 5).len(), 2 * 5 * row);
    assert!(zero(&rows(&saved.out, 0, 5)) && zero(&rows(&dq, 0, 5)));
    let square = Case {
        shape: Shape { queries: 4, ..case.shape },
        q: rows(&case.q, 5, 9),
        dout: rows(&case.dout, 5, 9),
        ..case.clone()
    };
    let (last, [q, k, v]) = both(&on, &square);
    assert_eq!(bytes(&rows(&saved.out, 5, 9)), bytes(&last.out));
    for (lse, last) in saved.lse.chunks(9).zip(last.lse.chunks(4)) {
        assert!(lse[..5] == [f32::NEG_INFINITY; 5] && lse[5..] == *last);
    }
    assert_within("dq", &rows(&dq, 5, 9), &common::f64s(&q), |_| 0.0);
    assert_within("dk", &dk, &common::f64s(&k), |_| 0.0);
    assert_within("dv", &dv, &common::f64s(&v), |_| 0.0);
}

#[test]
fn rows_that_see_no_key_are_zero_as_causal_is_aligned_bottom_right() {
    in_every_type!(unseen_rows);
}

/// `values`, one element behind an aligned place where `off`.
fn placed<T: Float>(on: &On, values: &[T], off: bool) -> (Buffer<T>, usize) {
    let first = usize::from(off);
    (on.up(&[&vec![T::from_f32(0.0); first], values].concat()), first)
}

fn off_by_one<T: Float>(size: usize) {
    let on = On::software();
    let case = Case::<T>::new(shape(1, (5, 7), (1, 1), size), Options::FULL);
    let saved = case.forward(&on);
    for wrong in ["q", "k", "v", "out", "dout", "dq", "dk", "dv"] {
        let at = |name: &str, values: &[T]| placed(&on, values, name == wrong);
        let named = |error: KernelError| {
            let named = format!("`{wrong}` must begin at a multiple of 16 bytes on a GPU");
            assert!(error.to_string().contains(&named), "{error}");
        };
        let [q, k, v] = [("q", &case.q), ("k", &case.k), ("v", &case.v)].map(|(name, x)| at(name, x));
        let inputs = [&q, &k, &v].map(|(x, first)| Heads::whole(x.view(*first..).unwrap(), 1, size));
        let seven = |len: usize| vec![T::from_f32(7.0); len];
        let mut lse = on.up(&[7.0f32; 5]);
        if ["q", "k", "v", "out"].contains(&wrong) {
            let (mut out, first) = at("out", &seven(5 * size));
            let (o, l) = (out.view_mut(first..).unwrap(), lse.as_view_mut());
            named(
                attention::forward_with(&on.stream, case.shape, case.options, Extra::default(), inputs, o, l)
                    .unwrap_err(),
            );
            assert!(on.down(&out)[first..].iter().all(|x| x.to_f32() == 7.0) && on.down(&lse) == [7.0; 5]);
        }
        let (out, dout) = (at("out", &saved.out), at("dout", &case.dout));
        let view = |x: &'_ (Buffer<T>, usize)| -> std::ops::RangeFrom<usize> { x.1.. };
        let given =
            Saved { out: out.0.view(view(&out)).unwrap(), lse: lse.as_view(), dout: dout.0.view(view(&dout)).unwrap() };
        let mut gradients = [("dq", 5), ("dk", 7), ("dv", 7)].map(|(name, rows)| at(name, &seven(rows * size)));
        let to = gradients.each_mut().map(|(x, first)| x.view_mut(*first..).unwrap());
        named(
            attention::backward_with(&on.stream, case.shape, case.options, Extra::default(), inputs, given, to)
                .unwrap_err(),
        );
        assert!(gradients.iter().all(|(x, first)| on.down(x)[*first..].iter().all(|x| x.to_f32() == 7.0)));
    }
}

#[test]
fn arrays_one_element_off_are_refused_by_name() {
    in_every_type!(off_by_one);
}

/// q, k and v whose tokens are `row` elements apart, and what comes of them.
fn with_rows<T: Float>(on: &On, case: &Case<T>, row: usize, first: usize, fill: bool) -> (Output<T>, Gradients<T>) {
    let arrays = [&case.q, &case.k, &case.v].map(|x| {
        let size = case.shape.head_size;
        let len = x.len() / size * row;
        let mut to = if fill { on.garbage::<T>(len) } else { on.device.uninitialized(len).unwrap() };
        for (at, values) in x.chunks(size).enumerate() {
            let at = at * row + first;
            to.view_mut(at..at + size).unwrap().copy_from_host(&on.stream, values).unwrap();
        }
        to
    });
    let inputs = arrays.each_ref().map(|x| Heads { rows: x.as_view(), row, first });
    let (mut out, mut lse) = (on.garbage(case.q.len()), on.garbage(case.shape.queries));
    let (o, l) = (out.as_view_mut(), lse.as_view_mut());
    attention::forward_with(&on.stream, case.shape, case.options, Extra::default(), inputs, o, l).unwrap();
    let dout = on.up(&case.dout);
    let saved = Saved { out: out.as_view(), lse: lse.as_view(), dout: dout.as_view() };
    let mut gradients = [&case.q, &case.k, &case.v].map(|x| on.garbage::<T>(x.len()));
    let to = gradients.each_mut().map(|x| x.as_view_mut());
    attention::backward_with(&on.stream, case.shape, case.options, Extra::default(), inputs, saved, to).unwrap();
    (Output { out: on.down(&out), lse: on.down(&lse) }, gradients.map(|x| on.down(&x)))
}

fn assert_same<T: Float>(a: &(Output<T>, Gradients<T>), b: &(Output<T>, Gradients<T>)) {
    assert_eq!(bytes(&a.0.out), bytes(&b.0.out));
    assert_eq!(a.0.lse, b.0.lse);
    a.1.iter().zip(&b.1).for_each(|(a, b)| assert_eq!(bytes(a), bytes(b)));
}

fn strided<T: Float>(size: usize) {
    let on = On::software();
    let case = Case::<T>::new(shape(1, (9, 11), (1, 1), size), Options::CAUSAL);
    assert_same(&with_rows(&on, &case, size + 24, 8, true), &both(&on, &case));
    // Rows that 16 bytes do not divide.
    let row = size + 4;
    let x = on.up(&normal::<T>(11 * row, 1));
    let inputs = [9, 11, 11].map(|rows| Heads { rows: x.view(..rows * row).unwrap(), row, first: 0 });
    let (mut out, mut lse) = (on.garbage::<T>(case.q.len()), on.garbage(9));
    let (o, l) = (out.as_view_mut(), lse.as_view_mut());
    let error = attention::forward_with(&on.stream, case.shape, case.options, Extra::default(), inputs, o, l);
    let error = error.unwrap_err().to_string();
    assert!(error.contains(&format!("`row` is {row}; it must be a multiple of 8")), "{error}");
}

#[test]
fn rows_of_wider_arrays_are_right_or_refused_by_name() {
    in_every_type!(strided);
}

fn far<T: Float>(size: usize) {
    let on = On::open("software?check=all&memory=274877906944");
    let case = Case::<T>::new(shape(1, (6, 6), (1, 1), size), Options::CAUSAL);
    let near = both(&on, &case);
    // Tokens so far apart that the last lie behind 2^31 elements.
    let row = (1 << 29) - 8;
    assert!(5 * row > 1 << 31);
    assert_same(&with_rows(&on, &case, row, 0, false), &near);
    // A sequence behind so many others, whose out and gradients of keys lie there too.
    let before = (1usize << 31) / size + 1;
    let sparse = |values: &[T], before: usize| {
        let mut to = on.device.uninitialized::<T>(before * size + values.len()).unwrap();
        to.view_mut(before * size..).unwrap().copy_from_host(&on.stream, values).unwrap();
        to
    };
    let down = |x: &Buffer<T>, before: usize| x.view(before * size..).unwrap().download(&on.stream).unwrap();
    let starts = |before: usize| on.up(&[before as u32, before as u32 + 6]);
    fn whole<T: Float>(x: &Buffer<T>, size: usize) -> Heads<'_, T> {
        Heads::whole(x.as_view(), 1, size)
    }
    let (k, v, key_starts) = (sparse(&case.k, before), sparse(&case.v, before), starts(before));
    for before_queries in [before, 0] {
        let (q, query_starts) = (sparse(&case.q, before_queries), starts(before_queries));
        let mut out = on.device.uninitialized::<T>(q.len()).unwrap();
        let mut lse = on.device.uninitialized::<f32>(before_queries + 6).unwrap();
        let starts = Some(Starts { queries: query_starts.as_view(), keys: key_starts.as_view() });
        let extra = Extra { starts, ..Extra::default() };
        let (inputs, o, l) = ([&q, &k, &v].map(|x| whole(x, size)), out.as_view_mut(), lse.as_view_mut());
        attention::forward_with(&on.stream, case.shape, case.options, extra, inputs, o, l).unwrap();
        assert_eq!(bytes(&down(&out, before_queries)), bytes(&near.0.out));
        if before_queries > 0 {
            // Backward would look at every row of out.
            continue;
        }
        let (dout, mut dq) = (on.up(&case.dout), on.garbage::<T>(case.q.len()));
        let [mut dk, mut dv] = [0; 2].map(|_| on.device.uninitialized::<T>(k.len()).unwrap());
        let saved = Saved { out: out.as_view(), lse: lse.as_view(), dout: dout.as_view() };
        let to = [dq.as_view_mut(), dk.as_view_mut(), dv.as_view_mut()];
        attention::backward_with(&on.stream, case.shape, case.options, extra, inputs, saved, to).unwrap();
        for (given, expected) in [(on.down(&dq), 0), (down(&dk, before), 1), (down(&dv, before), 2)] {
            assert_eq!(bytes(&given), bytes(&near.1[expected]));
        }
    }
}

#[test]
fn elements_behind_2_to_the_31_are_found() {
    in_every_type!(far);
}

fn head_sizes<T: Float>() {
    let on = On::software();
    for size in [12, 264] {
        let x = on.up(&normal::<T>(4 * size, 1));
        let x: View<'_, T> = x.as_view();
        let (mut out, mut lse) = (on.up(&vec![T::from_f32(7.0); 4 * size]), on.up(&[7.0f32; 4]));
        let (o, l) = (out.as_view_mut(), lse.as_view_mut());
        let shape = shape(1, (4, 4), (1, 1), size);
        let error = attention::forward(&on.stream, shape, Options::FULL, x, x, x, o, l).unwrap_err().to_string();
        let allowed = "it must be a multiple of 8, at most 256, on a GPU";
        assert_eq!(error, format!("attention::forward: `head_size` is {size}; {allowed}"));
        assert!(on.down(&out).iter().all(|x| x.to_f32() == 7.0) && on.down(&lse) == [7.0; 4]);
    }
}

#[test]
fn head_sizes_of_12_and_264_are_refused_by_name() {
    head_sizes::<bf16>();
    head_sizes::<f16>();
    head_sizes::<f32>();
}

fn on_small_cards<T: Float>(size: usize) {
    let case = Case::<T>::new(shape(1, (40, 70), (2, 1), size), Options::CAUSAL);
    assert_same(&both(&On::open("software?sm=86&check=all"), &case), &both(&On::software(), &case));
}

#[test]
fn cards_of_99_kib_of_shared_memory_give_the_same_bits() {
    in_every_type!(on_small_cards);
}

fn infinite_scores<T: Float>() {
    let on = On::software_with_nans();
    let options = Options { scale: Some(1.0), ..Options::FULL };
    let mut case = Case::<T>::new(shape(1, (3, 300), (1, 1), 8), options);
    case.q.fill(T::from_f32(1.0));
    // The last keys, which come first on a GPU, then all of them.
    case.k[150 * 8..].fill(T::from_f32(f32::NEG_INFINITY));
    let saved = case.forward(&on);
    let (exact, _) = case.reference(None);
    assert_within("out", &saved.out, &exact, |_| 0.03);
    case.k.fill(T::from_f32(f32::NEG_INFINITY));
    let saved = case.forward(&on);
    assert!(saved.out.iter().all(|x| x.to_f32() == 0.0) && saved.lse.iter().all(|&lse| lse == f32::NEG_INFINITY));
    // A NaN comes out of every row that sees it.
    let mut case = Case::<T>::new(shape(1, (5, 40), (1, 1), 8), Options::FULL);
    case.k[30 * 8] = T::from_f32(f32::NAN);
    let saved = case.forward(&on);
    assert!(saved.out.iter().all(|x| x.to_f32().is_nan()) && saved.lse.iter().all(|lse| lse.is_nan()));
}

#[test]
fn scores_that_are_not_finite_come_out_as_the_formula_has_them() {
    infinite_scores::<bf16>();
    infinite_scores::<f16>();
    infinite_scores::<f32>();
    // Far apart, and beyond e^x of f32.
    let on = On::software();
    let mut case = Case::<f16>::new(shape(1, (64, 200), (1, 1), 8), Options { scale: Some(1.0), ..Options::FULL });
    case.q.iter_mut().enumerate().for_each(|(i, q)| *q = f16::from_f32(if i % 8 == 0 { 1.0 } else { 0.0 }));
    for far in [200.0f32, -200.0, 3000.0] {
        case.k[70 * 8] = f16::from_f32(far);
        let (saved, gradients) = both(&on, &case);
        assert_within("out", &saved.out, &case.reference(None).0, |_| 0.01);
        let low = case.reference_gradients(Some(|x| f16::from_f64(x).to_f64()));
        gradients.iter().zip(case.reference_gradients(None)).zip(low).for_each(|((given, exact), low)| {
            let most = exact.iter().zip(&low).fold(0.0f64, |most, (x, low)| most.max((x - low).abs()));
            // dP and delta are sums of 8 products each, whose difference meets keys as large as `far`.
            let sums = 20.0 * U * 8.0 * largest(&case.dout) * largest(&case.v) * f64::from(far.abs());
            assert_within("a gradient", given, &exact, |_| 3.0 * most + sums);
        });
    }
}
