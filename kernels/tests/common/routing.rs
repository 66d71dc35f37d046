//! Routings with numbers in them, and everything that the router and its balance make of them.

use warpweft_device::Float;
use warpweft_kernels::moe::Shape;
use warpweft_kernels::moe::balance::{self, Sequences};
use warpweft_kernels::moe::router::{self, Options, Score};

use super::{On, f64s, normal};

/// Bits, all NaNs being alike.
pub(crate) fn bits<T: Float>(values: &[T]) -> Vec<u64> {
    values.iter().map(|x| if x.to_f64().is_nan() { u64::MAX } else { x.to_f64().to_bits() }).collect()
}

/// Logits of one shape in one storage type, `before` elements behind the begin of their buffers.
pub(crate) struct Routing<T> {
    pub(crate) shape: Shape,
    pub(crate) options: Options,
    pub(crate) before: usize,
    pub(crate) logits: Vec<T>,
    pub(crate) bias: Option<Vec<f32>>,
    pub(crate) dweights: Vec<f32>,
    pub(crate) dscores: Vec<f32>,
}

/// Everything that the forward call writes and gives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Routed {
    pub(crate) scores: Vec<f32>,
    pub(crate) experts: Vec<u32>,
    pub(crate) weights: Vec<f32>,
    pub(crate) margin: (u32, usize),
}

impl Routed {
    pub(crate) fn bits(&self) -> (Vec<u64>, &[u32], Vec<u64>, (u32, usize)) {
        (bits(&self.scores), &self.experts, bits(&self.weights), self.margin)
    }
}

impl<T: Float> Routing<T> {
    pub(crate) fn new((rows, experts, top_k): (usize, usize, usize), options: Options, before: usize) -> Self {
        let all = rows * experts;
        Self {
            shape: Shape { rows, experts, top_k },
            options,
            before,
            logits: normal::<f32>(all, 1).iter().map(|x| T::from_f32(3.0 * x)).collect(),
            bias: None,
            dweights: normal(rows * top_k, 2),
            dscores: normal(all, 3),
        }
    }

    pub(crate) fn biased(mut self) -> Self {
        self.bias = Some(normal::<f32>(self.shape.experts, 4).iter().map(|x| 0.1 * x).collect());
        self
    }

    pub(crate) fn forward(&self, on: &On) -> Routed {
        let Shape { rows, experts, top_k } = self.shape;
        let (logits, bias) = (on.padded(self.before, &self.logits), self.bias.as_ref().map(|b| on.padded(1, b)));
        let mut scores = on.padded_garbage(self.before, rows * experts);
        let mut weights = on.padded_garbage(3, rows * top_k);
        let mut chosen = on.up(&vec![u32::MAX; rows * top_k]);
        let (s, c, w) = (scores.view_mut(), chosen.as_view_mut(), weights.view_mut());
        let bias = bias.as_ref().map(|bias| bias.view());
        let margin = router::forward(&on.stream, self.shape, self.options, logits.view(), bias, s, c, w).unwrap();
        let margin = (margin.smallest.to_bits(), margin.row);
        Routed { scores: scores.down(on), experts: on.down(&chosen), weights: weights.down(on), margin }
    }

    /// With the scores' own gradients and without.
    pub(crate) fn backward(&self, on: &On, of: &Routed) -> Vec<f64> {
        let (scores, chosen) = (on.padded(self.before, &of.scores), on.up(&of.experts));
        let (dweights, dscores) = (on.padded(3, &self.dweights), on.padded(self.before, &self.dscores));
        let mut all = Vec::new();
        for dscores in [None, Some(dscores.view())] {
            let mut dlogits = on.padded_garbage::<T>(self.before, self.logits.len());
            let (s, c, w, d) = (scores.view(), chosen.as_view(), dweights.view(), dlogits.view_mut());
            router::backward(&on.stream, self.shape, self.options, s, c, w, dscores, d).unwrap();
            all.extend(f64s(&dlogits.down(on)));
        }
        all
    }
}
pub(crate) const SOFTMAX: Options = Options { score: Score::Softmax, normalize: true, scale: 1.0 };
pub(crate) const SIGMOID: Options = Options { score: Score::Sigmoid, normalize: true, scale: 2.5 };
pub(crate) const PLAIN: Options = Options { score: Score::Softmax, normalize: false, scale: 0.5 };
pub(crate) const PLAIN_SIGMOID: Options = Options { score: Score::Sigmoid, normalize: false, scale: 1.0 };

/// A routing of four rows with an expert that there is not in row 2, and another one in row 3.
fn wrong<T: Float>(options: Options) -> (Routing<T>, Routed) {
    let case = Routing::<T>::new((4, 3, 2), options, 0);
    let mut routed = case.forward(&On::threads(1));
    (routed.experts[5], routed.experts[7]) = (3, 4);
    (case, routed)
}

/// What the backward call says of it, and what it writes.
pub(crate) fn outside_backward<T: Float>(on: &On, options: Options) -> (String, Vec<f64>) {
    let (case, routed) = wrong::<T>(options);
    let (scores, experts) = (on.up(&routed.scores), on.up(&routed.experts));
    let (dweights, mut dlogits) = (on.up(&case.dweights), on.up(&[T::from_f32(0.5); 12]));
    let (s, e, d) = (scores.as_view(), experts.as_view(), dlogits.as_view_mut());
    router::backward(&on.stream, case.shape, case.options, s, e, dweights.as_view(), None, d).unwrap();
    (on.stream.synchronize().unwrap_err().to_string(), f64s(&on.down(&dlogits)))
}

/// What the sums say of it, and what they write.
pub(crate) fn outside_sums(on: &On) -> (String, Vec<f64>) {
    let (case, routed) = wrong::<f32>(SOFTMAX);
    let (scores, experts) = (on.up(&routed.scores), on.up(&routed.experts));
    let of = Sequences { shape: case.shape, sequences: 2, tokens: 2 };
    let mut sums = on.up(&[0.25f64; 12]);
    balance::sums(&on.stream, of, Score::Softmax, scores.as_view(), experts.as_view(), sums.as_view_mut()).unwrap();
    (on.stream.synchronize().unwrap_err().to_string(), on.down(&sums))
}

/// The sums of sequences of `tokens` tokens, their losses, the gradients and the moved biases.
pub(crate) fn balanced(on: &On, sequences: usize, case: &Routing<f32>, routed: &Routed) -> [Vec<f64>; 4] {
    let (shape, score) = (case.shape, case.options.score);
    let of = Sequences { shape, sequences, tokens: shape.rows / sequences };
    let (scores, experts) = (on.padded(1, &routed.scores), on.up(&routed.experts));
    let mut sums = on.padded_garbage::<f64>(1, sequences * 2 * shape.experts);
    balance::sums(&on.stream, of, score, scores.view(), experts.as_view(), sums.view_mut()).unwrap();
    let loss = balance::loss(&on.stream, of, sums.view()).unwrap();
    let mut dscores = on.padded_garbage::<f32>(1, scores.view().len());
    balance::backward(&on.stream, of, score, 0.75, scores.view(), sums.view(), dscores.view_mut()).unwrap();
    let sums = sums.down(on);
    let mut bias = on.padded(1, &case.dscores[..shape.experts]);
    balance::move_bias(&on.stream, 0.125, on.up(&sums[..shape.experts]).as_view(), bias.view_mut()).unwrap();
    [sums, vec![loss], f64s(&dscores.down(on)), f64s(&bias.down(on))]
}
