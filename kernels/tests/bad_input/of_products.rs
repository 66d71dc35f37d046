//! Calls of products, of what sends rows to experts, and of the optimizers.

use warpweft_device::Float;
use warpweft_kernels::Write;
use warpweft_kernels::matmul::{self, Activation, Epilogue, Through};
use warpweft_kernels::moe::dispatch::{self, Rows};
use warpweft_kernels::moe::{self, grouped, router};
use warpweft_kernels::optimizer::{self, Control, Numbers, Place, Step, Tensor};

use super::common::calls::Call;
use super::{C, Done, R};

/// A layer of `[R, 4, C]`.
const LAYER: matmul::Shape = matmul::Shape { m: R, n: 4, k: C };

pub(super) fn matmul_forward<T: Float>(c: &Call<'_>) -> Done {
    let (x, w) = (c.input::<T>("x", R * C), c.input::<T>("w", 4 * C));
    let (bias, residual) = (c.input::<T>("bias", 4), c.input::<T>("residual", R * 2));
    let (mut pre, mut y) = (c.output::<T>("pre", R * 4), c.output::<T>("y", R * 2));
    let (bias, residual) = (Some(bias.as_view()), Some(residual.as_view()));
    let (scale, activation, of_pre) = (1.0, Activation::SwiGlu, Some(pre.as_view_mut()));
    let epilogue = Epilogue { scale, bias, activation, pre: of_pre, residual };
    let done = matmul::forward(&c.on.stream, LAYER, x.as_view(), w.as_view(), epilogue, y.as_view_mut());
    c.untouched(&[&pre, &y]);
    done
}

pub(super) fn matmul_activate<T: Float>(c: &Call<'_>) -> Done {
    let (pre, mut y) = (c.input::<T>("pre", R * 4), c.output::<T>("y", R * 4));
    let done = matmul::activate(&c.on.stream, LAYER, Activation::Relu, pre.as_view(), y.as_view_mut());
    c.untouched(&[&y]);
    done
}

pub(super) fn matmul_backward_input<T: Float>(c: &Call<'_>) -> Done {
    let (dy, w, pre) = (c.input::<T>("dy", R * 4), c.input::<T>("w", 4 * C), c.input::<T>("pre", R * C));
    let (mut db, mut dx) = (c.output::<f32>("db", C), c.output::<T>("dx", R * C));
    let (pre, of_db) = (Some(pre.as_view()), Some(db.as_view_mut()));
    let through = Through { scale: 1.0, activation: Activation::Relu, pre, db: of_db };
    let (stream, dy, w, out) = (&c.on.stream, dy.as_view(), w.as_view(), dx.as_view_mut());
    let done = matmul::backward_input_through(stream, LAYER, dy, w, through, Write::Set, out);
    c.untouched(&[&db]);
    c.untouched(&[&dx]);
    done
}

pub(super) fn matmul_backward_weight<T: Float>(c: &Call<'_>) -> Done {
    let (x, dy) = (c.input::<T>("x", R * C), c.input::<T>("dy", R * 4));
    let mut dw = c.output::<f32>("dw", 4 * C);
    let done = matmul::backward_weight(&c.on.stream, LAYER, x.as_view(), dy.as_view(), dw.as_view_mut());
    c.untouched(&[&dw]);
    done
}

pub(super) fn matmul_backward_bias<T: Float>(c: &Call<'_>) -> Done {
    let (dy, mut db) = (c.input::<T>("dy", R * 4), c.output::<f32>("db", 4));
    let done = matmul::backward_bias(&c.on.stream, LAYER, dy.as_view(), db.as_view_mut());
    c.untouched(&[&db]);
    done
}

pub(super) fn matmul_backward_activation<T: Float>(c: &Call<'_>) -> Done {
    let (pre, dy, mut dpre) = (c.input::<T>("pre", R * 4), c.input::<T>("dy", R * 4), c.output::<T>("dpre", R * 4));
    let (stream, pre, dy) = (&c.on.stream, pre.as_view(), dy.as_view());
    let done = matmul::backward_activation(stream, LAYER, Activation::GeluErf, pre, dy, dpre.as_view_mut());
    c.untouched(&[&dpre]);
    done
}

const GROUPS: grouped::Shape<'_> = grouped::Shape { counts: &[2, 0, 1], n: 4, k: C };

pub(super) fn grouped_forward<T: Float>(c: &Call<'_>) -> Done {
    let (x, w) = (c.input::<T>("x", R * C), c.input::<T>("w", 3 * 4 * C));
    let (bias, residual) = (c.input::<T>("bias", 3 * 4), c.input::<T>("residual", R * 4));
    let (mut pre, mut y) = (c.output::<T>("pre", R * 4), c.output::<T>("y", R * 4));
    let (bias, residual) = (Some(bias.as_view()), Some(residual.as_view()));
    let (scale, activation, of_pre) = (1.0, Activation::Relu, Some(pre.as_view_mut()));
    let epilogue = Epilogue { scale, bias, activation, pre: of_pre, residual };
    let done = grouped::forward_with(&c.on.stream, GROUPS, x.as_view(), w.as_view(), epilogue, y.as_view_mut());
    c.untouched(&[&pre, &y]);
    done
}

pub(super) fn grouped_backward_input<T: Float>(c: &Call<'_>) -> Done {
    let (dy, w, pre) = (c.input::<T>("dy", R * 4), c.input::<T>("w", 3 * 4 * C), c.input::<T>("pre", R * C));
    let (mut db, mut dx) = (c.output::<f32>("db", 3 * C), c.output::<T>("dx", R * C));
    let (pre, of_db) = (Some(pre.as_view()), Some(db.as_view_mut()));
    let through = Through { scale: 1.0, activation: Activation::Relu, pre, db: of_db };
    let (stream, dy, w, out) = (&c.on.stream, dy.as_view(), w.as_view(), dx.as_view_mut());
    let done = grouped::backward_input_through(stream, GROUPS, dy, w, through, Write::Set, out);
    c.untouched(&[&db]);
    c.untouched(&[&dx]);
    done
}

pub(super) fn grouped_backward_bias<T: Float>(c: &Call<'_>) -> Done {
    let (dy, mut db) = (c.input::<T>("dy", R * 4), c.output::<f32>("db", 3 * 4));
    let done = grouped::backward_bias(&c.on.stream, GROUPS, dy.as_view(), db.as_view_mut());
    c.untouched(&[&db]);
    done
}

pub(super) fn grouped_backward_weight<T: Float>(c: &Call<'_>) -> Done {
    let (x, dy) = (c.input::<T>("x", R * C), c.input::<T>("dy", R * 4));
    let mut dw = c.output::<f32>("dw", 3 * 4 * C);
    let done = grouped::backward_weight(&c.on.stream, GROUPS, x.as_view(), dy.as_view(), dw.as_view_mut());
    c.untouched(&[&dw]);
    done
}

/// Two of C experts for each of R rows.
const ROUTING: moe::Shape = moe::Shape { rows: R, experts: C, top_k: 2 };

pub(super) fn router_forward<T: Float>(c: &Call<'_>) -> Done {
    let (logits, bias) = (c.input::<T>("logits", R * C), c.input::<f32>("bias", C));
    let (mut scores, mut weights) = (c.output::<f32>("scores", R * C), c.output::<f32>("weights", R * 2));
    let mut experts = c.output::<u32>("experts", R * 2);
    let (logits, bias, options) = (logits.as_view(), Some(bias.as_view()), router::Options::default());
    let (s, e, w) = (scores.as_view_mut(), experts.as_view_mut(), weights.as_view_mut());
    let done = router::forward(&c.on.stream, ROUTING, options, logits, bias, s, e, w);
    c.untouched(&[&scores, &weights]);
    c.untouched(&[&experts]);
    done.map(drop)
}

pub(super) fn router_backward<T: Float>(c: &Call<'_>) -> Done {
    let (scores, experts) = (c.input::<f32>("scores", R * C), c.input::<u32>("experts", R * 2));
    let (dweights, dscores) = (c.input::<f32>("dweights", R * 2), c.input::<f32>("dscores", R * C));
    let (mut dlogits, options) = (c.output::<T>("dlogits", R * C), router::Options::default());
    let (s, e, w) = (scores.as_view(), experts.as_view(), dweights.as_view());
    let (d, out) = (Some(dscores.as_view()), dlogits.as_view_mut());
    let done = router::backward(&c.on.stream, ROUTING, options, s, e, w, d, out);
    c.untouched(&[&dlogits]);
    done
}

const MOVED: Rows = Rows { rows: R, top_k: 2, channels: C, len: 5 };

pub(super) fn permute<T: Float>(c: &Call<'_>) -> Done {
    let (order, weights) = (c.input::<u32>("order", 5), c.input::<f32>("weights", R * 2));
    let (x, mut y) = (c.input::<T>("x", R * C), c.output::<T>("y", 5 * C));
    let (order, weights) = (order.as_view(), Some(weights.as_view()));
    let done = dispatch::permute(&c.on.stream, MOVED, order, weights, x.as_view(), y.as_view_mut());
    c.untouched(&[&y]);
    done
}

pub(super) fn combine<T: Float>(c: &Call<'_>) -> Done {
    let (places, weights) = (c.input::<u32>("places", R * 2), c.input::<f32>("weights", R * 2));
    let (x, mut y) = (c.input::<T>("x", 5 * C), c.output::<T>("y", R * C));
    let (places, weights) = (places.as_view(), Some(weights.as_view()));
    let done = dispatch::combine(&c.on.stream, MOVED, places, weights, x.as_view(), Write::Set, y.as_view_mut());
    c.untouched(&[&y]);
    done
}

pub(super) fn backward_weights<T: Float>(c: &Call<'_>) -> Done {
    let (places, x, dy) = (c.input::<u32>("places", R * 2), c.input::<T>("x", 5 * C), c.input::<T>("dy", R * C));
    let mut dweights = c.output::<f32>("dweights", R * 2);
    let (places, x, dy, out) = (places.as_view(), x.as_view(), dy.as_view(), dweights.as_view_mut());
    let done = dispatch::backward_weights(&c.on.stream, MOVED, places, x, dy, out);
    c.untouched(&[&dweights]);
    done
}

pub(super) fn optimizer_step<T: Float>(c: &Call<'_>) -> Done {
    // The parameter says how long it is.
    let (mut param, mut master) = (c.on.up(&[T::ZERO; C]), c.output::<f32>("master", C));
    let (grad, mut m, mut v) = (c.input::<f32>("grad", C), c.output::<f32>("m", C), c.output::<f32>("v", C));
    let control = c.input::<f64>("control", Control::LEN);
    let tensor = Tensor {
        param: param.as_view_mut(),
        master: Some(master.as_view_mut()),
        grad: grad.as_view(),
        m: Some(m.as_view_mut()),
        v: Some(v.as_view_mut()),
        decay: true,
        place: Place::default(),
    };
    // A control that is right has step 0 here: then the host's.
    let right = control.len() == Control::LEN && control.device() == &c.on.device;
    let numbers = if right { Numbers::Host(Step::default()) } else { Numbers::Device(control.as_view()) };
    let done = optimizer::step(&c.on.stream, optimizer::Options::default(), numbers, &mut [tensor]);
    c.untouched(&[&master, &m, &v]);
    done
}
