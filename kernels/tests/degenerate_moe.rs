//! Degenerate inputs of what sends rows to experts: the router, the balance of experts, and the rows' way there and back.
#![forbid(unsafe_code)]

mod common;

use common::degenerate::{Op, degenerate_inputs};
use common::dispatched::Moving;
use common::routing::{Routing, SIGMOID, balanced};
use common::{On, U, assert_within, f64s, integers, normal, rounding};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::Write;
use warpweft_kernels::moe::balance::{self, Sequences};
use warpweft_kernels::moe::dispatch::{self, NONE, Rows};
use warpweft_kernels::moe::router::{self, Score};
use warpweft_kernels::moe::{Shape, reference};

struct Router;

degenerate_inputs!(Router: router_no_rows, router_no_columns, router_rows_of_65_537, router_off_by_one, router_between_nans);

impl Op for Router {
    /// A column is an expert.
    fn check<T: Float>(rows: usize, experts: usize, before: usize) {
        // Many experts are gone through for each choice.
        let top_k = if experts > 1000 { 1 } else { experts.min(3) };
        let case = Routing::<T>::new((rows, experts, top_k), SIGMOID, before).biased();
        let (on, cpu) = (On::software(), On::threads(1));
        let (routed, expected) = (case.forward(&on), case.forward(&cpu));
        assert_eq!(routed.bits(), expected.bits());
        // A sigmoid is a power of f64 within 1 unit, a sum and a division, rounded once.
        let scores = reference::scores(case.shape, Score::Sigmoid, &f64s(&case.logits));
        assert_within("scores", &routed.scores, &scores, |i| 2f64.powi(-50) * scores[i]);
        let (given, expected) = (case.backward(&on, &routed), case.backward(&cpu, &routed));
        // The same but for one rounding, where a last bit of f64 decides it.
        let near = |(given, expected): (&f64, &f64)| (given - expected).abs() <= 2.0 * rounding::<T>(*expected);
        assert!(given.iter().zip(&expected).all(near));
    }
}

/// Scores and their gradients are f32 whatever the logits were.
fn balance_as_on_the_cpu(rows: usize, experts: usize) {
    let mut case = Routing::<f32>::new((rows, experts, experts.min(3)), SIGMOID, 8);
    // The biases to be moved.
    case.dscores = normal(experts, 3);
    let routed = case.forward(&On::threads(1));
    let [given, expected] = [On::software(), On::threads(1)].map(|on| balanced(&on, 1, &case, &routed));
    for (given, expected) in given.iter().zip(&expected) {
        assert_eq!(given.len(), expected.len());
        // Sums of shares in f64 in another order; gradients and biases are rounded to f32 after it.
        let near = |(given, expected): (&f64, &f64)| (given - expected).abs() <= 2.0 * U * expected.abs();
        assert!(given.iter().zip(expected).all(near));
    }
}

#[test]
fn balance_no_rows() {
    balance_as_on_the_cpu(0, 40);
}

#[test]
fn balance_no_columns() {
    balance_as_on_the_cpu(5, 0);
}

#[test]
fn balance_rows_of_65_537() {
    balance_as_on_the_cpu(2, 65_537);
}

/// The scores lie one element off, and what is written too (`common/routing.rs`).
#[test]
fn balance_off_by_one() {
    balance_as_on_the_cpu(3, 40);
}

#[test]
fn balance_between_nans() {
    balance_as_on_the_cpu(3, 37);
}

struct Dispatch;

degenerate_inputs!(Dispatch: dispatch_no_rows, dispatch_no_columns, dispatch_rows_of_65_537, dispatch_off_by_one, dispatch_between_nans);

impl Op for Dispatch {
    fn check<T: Float>(rows: usize, columns: usize, before: usize) {
        let case = Moving::<T>::new((rows, 2, columns), before, integers);
        let (on, cpu) = (On::software(), On::threads(1));
        assert_eq!(case.permute(&on), case.permute(&cpu));
        assert_eq!(case.combine(&on), case.combine(&cpu));
        // Whole numbers.
        assert_eq!(f64s(&case.backward_weights(&on)), case.products()[0]);
    }
}

/// What the calls that move rows say of a number that is beyond what there is, in row 1.
fn row_out_of_range<T: Float>() {
    let (on, of) = (On::software(), Rows { rows: 3, top_k: 1, channels: 8, len: 3 });
    let (x, wrong) = (on.up(&normal::<T>(24, 1)), on.up(&[0u32, 3, 2]));
    let (x, wrong, stream) = (x.as_view(), wrong.as_view(), &on.stream);
    let told = |argument: &str| {
        let said = stream.synchronize().unwrap_err().to_string();
        assert!(said.contains(&format!("moe::dispatch::{argument}")) && said.contains("3 in row 1"), "{said}");
    };
    let untouched = |y: &[T]| y.iter().all(|x| x.to_f64() == 0.5);
    let mut y = on.up(&[T::from_f32(0.5); 24]);
    dispatch::permute(stream, of, wrong, None, x, y.as_view_mut()).unwrap();
    told("permute: `order`");
    assert!(untouched(&on.down(&y)[8..16]) && !untouched(&on.down(&y)[16..]));
    let mut y = on.up(&[T::from_f32(0.5); 24]);
    dispatch::combine(stream, of, wrong, None, x, Write::Set, y.as_view_mut()).unwrap();
    told("combine: `places`");
    assert!(untouched(&on.down(&y)[8..16]) && !untouched(&on.down(&y)[16..]));
    let mut dweights = on.up(&[0.5f32; 3]);
    dispatch::backward_weights(stream, of, wrong, x, x, dweights.as_view_mut()).unwrap();
    told("backward_weights: `places`");
    let dweights = on.down(&dweights);
    assert!(dweights[1] == 0.5 && dweights[0] != 0.5 && dweights[2] != 0.5);
}

#[test]
fn dispatch_row_out_of_range() {
    row_out_of_range::<f32>();
    row_out_of_range::<bf16>();
    row_out_of_range::<f16>();
}

/// What the gradient says of an expert that there is not, in row 1, whose logits get none.
fn expert_out_of_range<T: Float>() {
    let (on, shape) = (On::software(), Shape { rows: 3, experts: 4, top_k: 1 });
    let (scores, experts, dweights) = (on.up(&[0.25f32; 12]), on.up(&[0u32, 4, 3]), on.up(&[1f32, 2.0, 3.0]));
    let mut dlogits = on.up(&[T::from_f32(0.5); 12]);
    let (s, e, d) = (scores.as_view(), experts.as_view(), dlogits.as_view_mut());
    router::backward(&on.stream, shape, SIGMOID, s, e, dweights.as_view(), None, d).unwrap();
    let said = on.stream.synchronize().unwrap_err().to_string();
    assert!(said.contains("moe::router::backward: `experts`") && said.contains("4 in row 1"), "{said}");
    let dlogits = f64s(&on.down(&dlogits));
    assert!(dlogits[4..8].iter().all(|x| *x == 0.5) && dlogits[8..].iter().all(|x| *x != 0.5));
}

#[test]
fn router_expert_out_of_range() {
    expert_out_of_range::<f32>();
    expert_out_of_range::<bf16>();
    expert_out_of_range::<f16>();
}

#[test]
fn balance_expert_out_of_range() {
    let (on, shape) = (On::software(), Shape { rows: 3, experts: 4, top_k: 1 });
    let of = Sequences { shape, sequences: 1, tokens: 3 };
    let (scores, experts, mut sums) = (on.up(&[0.25f32; 12]), on.up(&[0u32, 4, 3]), on.up(&[0f64; 8]));
    let (s, e, out) = (scores.as_view(), experts.as_view(), sums.as_view_mut());
    balance::sums(&on.stream, of, Score::Sigmoid, s, e, out).unwrap();
    let said = on.stream.synchronize().unwrap_err().to_string();
    assert!(said.contains("moe::balance::sums: `experts`") && said.contains("4 in row 1"), "{said}");
}

/// What sorting says of an expert that there is not.
#[test]
fn dispatch_expert_out_of_range() {
    let (on, shape) = (On::software(), Shape { rows: 3, experts: 4, top_k: 1 });
    let experts = on.up(&[0u32, 4, 3]);
    let [mut counts, mut order, mut places] = [4, 3, 3].map(|len| on.up(&vec![7u32; len]));
    let (c, o, p) = (counts.as_view_mut(), order.as_view_mut(), places.as_view_mut());
    let said = dispatch::sort(&on.stream, shape, experts.as_view(), None, c, o, p).unwrap_err().to_string();
    assert!(said.contains("moe::dispatch::sort: `experts`") && said.contains("4 in row 1"), "{said}");
    assert_eq!(on.down(&places)[1], NONE);
    let mut keep = on.up(&[9u32; 3]);
    let (e, k) = (experts.as_view(), keep.as_view_mut());
    let said = dispatch::within_capacity(&on.stream, shape, 3, 1, e, k).unwrap_err().to_string();
    assert!(said.contains("moe::dispatch::within_capacity: `experts`") && said.contains("4 in row 1"), "{said}");
}
