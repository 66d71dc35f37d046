//! Every argument of every op made wrong in turn, on the software device and on the CPU: the error names the argument, what was given
//! and what is allowed; nothing is written and no kernel is launched. (Attention's: `attention_gpu_relations.rs`.)
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
mod of_products;
mod of_rows;

use common::On;
use common::calls::{Call, Wrong};
use warpweft_device::{Float, bf16, f16};
use warpweft_kernels::moe::balance::{self, Sequences};
use warpweft_kernels::moe::dispatch;
use warpweft_kernels::moe::router::Score;
use warpweft_kernels::optimizer::{Control, Step};
use warpweft_kernels::{KernelError, cross_entropy, moe, norm};

type Done = Result<(), KernelError>;
/// What errors call an op, and a call of it.
type Named = (&'static str, fn(&Call<'_>) -> Done);

/// Rows and columns of most arrays.
const R: usize = 3;
const C: usize = 8;

/// The calls with arrays of `T`.
fn calls<T: Float>() -> Vec<Named> {
    vec![
        ("softmax forward", of_rows::softmax_forward::<T>),
        ("softmax forward", of_rows::softmax_masked::<T>),
        ("softmax backward", of_rows::softmax_backward::<T>),
        ("layernorm forward", of_rows::layernorm_alone::<T>),
        ("layernorm forward_residual", of_rows::layernorm_forward::<T>),
        ("layernorm backward_input", of_rows::layernorm_backward_input::<T>),
        ("layernorm backward_weight", of_rows::layernorm_backward_weight::<T>),
        ("rmsnorm forward", of_rows::rmsnorm_alone::<T>),
        ("rmsnorm forward_residual", of_rows::rmsnorm_forward::<T>),
        ("rmsnorm backward_input", of_rows::rmsnorm_backward_input::<T>),
        ("rmsnorm backward_weight", of_rows::rmsnorm_backward_weight::<T>),
        ("residual forward", of_rows::residual_forward::<T>),
        ("residual forward_dropout", of_rows::residual_dropout::<T>),
        ("residual backward_dropout", of_rows::residual_backward::<T>),
        ("transpose", of_rows::transposed::<T>),
        ("rope::forward", of_rows::rope_forward::<T>),
        ("embedding forward", of_rows::embedding_forward::<T>),
        ("embedding forward_shard", of_rows::embedding_forward_shard::<T>),
        ("embedding backward", of_rows::embedding_backward::<T>),
        ("embedding backward_shard", of_rows::embedding_backward_shard::<T>),
        ("cross_entropy forward", of_rows::cross_entropy_forward::<T>),
        ("cross_entropy backward", of_rows::cross_entropy_backward::<T>),
        ("cross_entropy forward_shard", of_rows::cross_entropy_forward_shard::<T>),
        ("cross_entropy backward_shard", of_rows::cross_entropy_backward_shard::<T>),
        ("matmul::forward", of_products::matmul_forward::<T>),
        ("matmul::activate", of_products::matmul_activate::<T>),
        ("matmul::backward_input", of_products::matmul_backward_input::<T>),
        ("matmul::backward_weight", of_products::matmul_backward_weight::<T>),
        ("matmul::backward_bias", of_products::matmul_backward_bias::<T>),
        ("matmul::backward_activation", of_products::matmul_backward_activation::<T>),
        ("moe::grouped::forward", of_products::grouped_forward::<T>),
        ("moe::grouped::backward_input", of_products::grouped_backward_input::<T>),
        ("moe::grouped::backward_bias", of_products::grouped_backward_bias::<T>),
        ("moe::grouped::backward_weight", of_products::grouped_backward_weight::<T>),
        ("moe::router::forward", of_products::router_forward::<T>),
        ("moe::router::backward", of_products::router_backward::<T>),
        ("moe::dispatch::permute", of_products::permute::<T>),
        ("moe::dispatch::combine", of_products::combine::<T>),
        ("moe::dispatch::backward_weights", of_products::backward_weights::<T>),
        ("optimizer", of_products::optimizer_step::<T>),
    ]
}

const ROUTING: moe::Shape = moe::Shape { rows: R, experts: C, top_k: 2 };
const SEQUENCES: Sequences = Sequences { shape: ROUTING, sequences: 1, tokens: R };

fn merge(c: &Call<'_>) -> Done {
    // The targets say how many rows there are.
    let (parts, targets) = (c.input::<f64>("parts", 2 * R * 3), c.on.up(&[0u32; R]));
    let (mut losses, mut normaliser) = (c.output::<f32>("losses", R), c.output::<f64>("normaliser", 2 * R));
    let (stream, targets, out) = (&c.on.stream, targets.as_view(), (losses.as_view_mut(), normaliser.as_view_mut()));
    let done = cross_entropy::merge(stream, 2, parts.as_view(), targets, None, out.0, out.1);
    c.untouched(&[&losses]);
    c.untouched(&[&normaliser]);
    done.map(drop)
}

fn balance_sums(c: &Call<'_>) -> Done {
    let (scores, experts) = (c.input::<f32>("scores", R * C), c.input::<u32>("experts", R * 2));
    let mut sums = c.output::<f64>("sums", 2 * C);
    let (s, e, out) = (scores.as_view(), experts.as_view(), sums.as_view_mut());
    let done = balance::sums(&c.on.stream, SEQUENCES, Score::Softmax, s, e, out);
    c.untouched(&[&sums]);
    done
}

fn balance_loss(c: &Call<'_>) -> Done {
    balance::loss(&c.on.stream, SEQUENCES, c.input::<f64>("sums", 2 * C).as_view()).map(drop)
}

fn balance_backward(c: &Call<'_>) -> Done {
    let (scores, sums) = (c.input::<f32>("scores", R * C), c.input::<f64>("sums", 2 * C));
    let mut dscores = c.output::<f32>("dscores", R * C);
    let (s, of, out) = (scores.as_view(), sums.as_view(), dscores.as_view_mut());
    let done = balance::backward(&c.on.stream, SEQUENCES, Score::Softmax, 0.5, s, of, out);
    c.untouched(&[&dscores]);
    done
}

fn move_bias(c: &Call<'_>) -> Done {
    // The bias says how many experts there are.
    let (counts, mut bias) = (c.input::<f64>("counts", C), c.on.up(&[7f32; C]));
    let done = balance::move_bias(&c.on.stream, 0.5, counts.as_view(), bias.as_view_mut());
    assert!(done.is_ok() || c.on.down(&bias) == [7.0; C], "written");
    done
}

fn within_capacity(c: &Call<'_>) -> Done {
    let (experts, mut keep) = (c.input::<u32>("experts", R * 2), c.output::<u32>("keep", R * 2));
    let (experts, out) = (experts.as_view(), keep.as_view_mut());
    let done = dispatch::within_capacity(&c.on.stream, ROUTING, 1, 2, experts, out);
    c.untouched(&[&keep]);
    done.map(drop)
}

fn sort(c: &Call<'_>) -> Done {
    let (experts, keep) = (c.input::<u32>("experts", R * 2), c.input::<u32>("keep", R * 2));
    let (mut counts, mut order) = (c.output::<u32>("counts", C), c.output::<u32>("order", R * 2));
    let mut places = c.output::<u32>("places", R * 2);
    let (e, k) = (experts.as_view(), Some(keep.as_view()));
    let (n, o, p) = (counts.as_view_mut(), order.as_view_mut(), places.as_view_mut());
    let done = dispatch::sort(&c.on.stream, ROUTING, e, k, n, o, p);
    c.untouched(&[&counts, &order, &places]);
    done.map(drop)
}

fn squares(c: &Call<'_>) -> Done {
    let (tensor, mut sum) = (c.on.up(&[1f32; C]), c.output::<f64>("sum", 1));
    let done = norm::sum_of_squares_into(&c.on.stream, &[tensor.as_view()], sum.as_view_mut());
    c.untouched(&[&sum]);
    done
}

fn clip(c: &Call<'_>) -> Done {
    let (sum, mut control) = (c.input::<f64>("sum", 1), c.output::<f64>("control", Control::LEN));
    let done = norm::clip(&c.on.stream, sum.as_view(), 1.0, control.as_view_mut());
    c.untouched(&[&control]);
    done
}

fn begin(c: &Call<'_>) -> Done {
    let mut control = c.output::<f64>("control", Control::LEN);
    let done = Control::begin(&c.on.stream, Step::default(), control.as_view_mut());
    c.untouched(&[&control]);
    done
}

/// The calls whose types are given.
const PLAIN: [Named; 10] = [
    ("cross_entropy merge", merge),
    ("moe::balance::sums", balance_sums),
    ("moe::balance::loss", balance_loss),
    ("moe::balance::backward", balance_backward),
    ("moe::balance::move_bias", move_bias),
    ("moe::dispatch::within_capacity", within_capacity),
    ("moe::dispatch::sort", sort),
    ("norm sum_of_squares", squares),
    ("norm clip", clip),
    ("optimizer begin", begin),
];

/// Goes through the arguments of a call one by one.
fn refuse(on: &On, elsewhere: &On, op: &str, call: fn(&Call<'_>) -> Done) {
    let right = Call::new(on, elsewhere, None, false);
    call(&right).unwrap();
    let arguments = right.named.into_inner();
    assert!(!arguments.is_empty());
    for (argument, len) in arguments {
        for wrong in [Wrong::Short, Wrong::Long, Wrong::Elsewhere] {
            let c = Call::new(on, elsewhere, Some((argument, wrong)), true);
            let run = || call(&c).expect_err(argument).to_string();
            let said = if on.device.cpu_pool().is_ok() { run() } else { without_a_launch(on, run) };
            let named = match wrong {
                Wrong::Short => format!("{op}: `{argument}` has {} elements; its shape ", len - 1),
                Wrong::Long => format!("{op}: `{argument}` has {} elements; its shape ", len + 1),
                Wrong::Elsewhere => format!("{argument} is on device "),
            };
            let allowed = wrong == Wrong::Elsewhere || said.ends_with(&format!("needs {len}"));
            assert!(said.starts_with(&named) && allowed, "{op}, `{argument}` {wrong:?}: {said}");
        }
    }
}

fn without_a_launch<R>(on: &On, run: impl FnOnce() -> R) -> R {
    let (result, launched) = on.stream.profile(run).unwrap();
    let launched: Vec<&str> = launched.iter().map(|profile| profile.kernel.as_str()).collect();
    assert!(launched.is_empty(), "launched {launched:?}");
    result
}

fn refuse_all<T: Float>(on: &On, elsewhere: &On) {
    calls::<T>().into_iter().for_each(|(op, call)| refuse(on, elsewhere, op, call));
}

#[test]
fn wrong_lengths_and_devices_are_named_on_a_software_device() {
    let (on, elsewhere) = (On::software(), On::threads(1));
    refuse_all::<f32>(&on, &elsewhere);
    refuse_all::<bf16>(&on, &elsewhere);
    refuse_all::<f16>(&on, &elsewhere);
    PLAIN.into_iter().for_each(|(op, call)| refuse(&on, &elsewhere, op, call));
}

#[test]
fn wrong_lengths_and_devices_are_named_on_the_cpu() {
    let (on, elsewhere) = (On::threads(1), On::software());
    refuse_all::<f32>(&on, &elsewhere);
    PLAIN.into_iter().for_each(|(op, call)| refuse(&on, &elsewhere, op, call));
}

/// f64 is for references: there are no kernels for arrays of it.
#[test]
fn arrays_of_f64_are_refused_on_a_gpu() {
    let on = On::software();
    for (op, call) in calls::<f64>() {
        let c = Call::new(&on, &on, None, true);
        let said = without_a_launch(&on, || call(&c)).expect_err(op).to_string();
        let named = said.starts_with(&format!("{op}: `")) && said.ends_with("` is f32, bf16 or f16 on a GPU");
        assert!(named, "{op}: {said}");
    }
}
