//! Assignments to experts and rows with numbers in them, and everything that the calls of `moe::dispatch` make of them.

use warpweft_device::{DeviceError, Float};
use warpweft_kernels::moe::Shape;
use warpweft_kernels::moe::dispatch::{self, NONE, Rows};
use warpweft_kernels::{KernelError, Write};

use super::{On, f64s, normal, tokens};

/// Assignments of rows to experts, and which of them count.
#[derive(Clone)]
pub(crate) struct Choice {
    pub(crate) shape: Shape,
    pub(crate) sequences: usize,
    pub(crate) experts: Vec<u32>,
    pub(crate) keep: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sorted {
    pub(crate) counts: Vec<u32>,
    pub(crate) order: Vec<u32>,
    pub(crate) places: Vec<u32>,
    pub(crate) len: usize,
}

impl Choice {
    pub(crate) fn new((rows, experts, top_k): (usize, usize, usize), sequences: usize) -> Self {
        let all = rows * top_k;
        let chosen = tokens(all, experts as u32, 3);
        let keep = tokens(all, 4, 5).iter().map(|x| x.min(&1) * 7).collect();
        Self { shape: Shape { rows, experts, top_k }, sequences, experts: chosen, keep }
    }

    /// All to one expert.
    pub(crate) fn to(mut self, expert: u32) -> Self {
        self.experts.fill(expert);
        self
    }

    pub(crate) fn sort(&self, on: &On, keep: bool) -> Sorted {
        let all = self.experts.len();
        let [mut counts, mut order, mut places] =
            [self.shape.experts, all, all].map(|len| on.up(&vec![0x0909_0909u32; len]));
        let (experts, kept) = (on.up(&self.experts), on.up(&self.keep));
        let (c, o, p) = (counts.as_view_mut(), order.as_view_mut(), places.as_view_mut());
        let kept = keep.then(|| kept.as_view());
        let len = dispatch::sort(&on.stream, self.shape, experts.as_view(), kept, c, o, p).unwrap();
        Sorted { counts: on.down(&counts), order: on.down(&order), places: on.down(&places), len }
    }

    /// For each capacity how many are dropped, and what is kept.
    pub(crate) fn capacities(&self, on: &On, capacities: &[usize]) -> Vec<(usize, Vec<u32>)> {
        let experts = on.up(&self.experts);
        let one = |capacity: &usize| {
            let mut keep = on.up(&vec![9u32; self.experts.len()]);
            let (e, k) = (experts.as_view(), keep.as_view_mut());
            let dropped = dispatch::within_capacity(&on.stream, self.shape, self.sequences, *capacity, e, k);
            (dropped.unwrap(), on.down(&keep))
        };
        capacities.iter().map(one).collect()
    }

    /// Sorted in both ways, and kept by every capacity.
    pub(crate) fn all(&self, on: &On) -> ([Sorted; 2], Vec<(usize, Vec<u32>)>) {
        let sorted = [false, true].map(|keep| self.sort(on, keep));
        (sorted, self.capacities(on, &[0, 1, 2, 3, 40, usize::MAX]))
    }
}

/// Rows with numbers in them: `before` elements behind the begin of their buffers, between NaNs.
pub(crate) struct Moving<T> {
    pub(crate) of: Rows,
    pub(crate) sorted: Sorted,
    pub(crate) before: usize,
    /// `[rows, channels]`.
    pub(crate) wide: Vec<T>,
    /// `[len, channels]`.
    pub(crate) moved: Vec<T>,
    pub(crate) weights: Vec<f32>,
}

impl<T: Float> Moving<T> {
    pub(crate) fn new(
        (rows, top_k, channels): (usize, usize, usize),
        before: usize,
        numbers: fn(usize, u64) -> Vec<T>,
    ) -> Self {
        let choice = Choice::new((rows, top_k + 3, top_k), 1);
        // With assignments that have no place.
        let sorted = choice.sort(&On::threads(1), true);
        let (wide, moved) = (numbers(rows * channels, 1), numbers(sorted.len * channels, 2));
        let of = Rows { rows, top_k, channels, len: sorted.len };
        let weights = numbers(rows * top_k, 3).into_iter().map(T::to_f32).collect();
        Self { of, sorted, before, wide, moved, weights }
    }

    /// Rows in the order of experts without weights and with them.
    pub(crate) fn permute(&self, on: &On) -> Vec<f64> {
        let order = on.up(&self.sorted.order[..self.of.len]);
        let (x, weights) = (on.padded(self.before, &self.wide), on.padded(1, &self.weights));
        let one = |weights| {
            let mut y = on.padded_garbage::<T>(self.before, self.moved.len());
            dispatch::permute(&on.stream, self.of, order.as_view(), weights, x.view(), y.view_mut()).unwrap();
            f64s(&y.down(on))
        };
        [None, Some(weights.view())].map(one).concat()
    }

    /// Their sums, set and added, without weights and with them.
    pub(crate) fn combine(&self, on: &On) -> Vec<f64> {
        let places = on.up(&self.sorted.places);
        let (x, weights) = (on.padded(self.before, &self.moved), on.padded(1, &self.weights));
        let mut all = Vec::new();
        for weights in [None, Some(weights.view())] {
            for write in [Write::Set, Write::Add] {
                let mut y = match write {
                    Write::Set => on.padded_garbage::<T>(self.before, self.wide.len()),
                    Write::Add => on.padded(self.before, &self.wide),
                };
                let (p, x) = (places.as_view(), x.view());
                dispatch::combine(&on.stream, self.of, p, weights, x, write, y.view_mut()).unwrap();
                all.extend(f64s(&y.down(on)));
            }
        }
        all
    }

    pub(crate) fn backward_weights(&self, on: &On) -> Vec<f32> {
        let places = on.up(&self.sorted.places);
        let (x, dy) = (on.padded(self.before, &self.moved), on.padded(self.before, &self.wide));
        let mut dweights = on.padded_garbage::<f32>(1, self.weights.len());
        let (p, d) = (places.as_view(), dweights.view_mut());
        dispatch::backward_weights(&on.stream, self.of, p, x.view(), dy.view(), d).unwrap();
        dweights.down(on)
    }

    /// The products in f64, and their sums of magnitudes.
    pub(crate) fn products(&self) -> [Vec<f64>; 2] {
        let Rows { top_k, channels, .. } = self.of;
        let product = |assignment: usize, of: fn(f64) -> f64| -> f64 {
            let place = self.sorted.places[assignment];
            if place == NONE {
                return 0.0;
            }
            let (x, dy) = (&self.moved[place as usize * channels..], &self.wide[assignment / top_k * channels..]);
            (0..channels).map(|c| of(x[c].to_f64() * dy[c].to_f64())).sum()
        };
        [|x| x, f64::abs].map(|of: fn(f64) -> f64| (0..self.weights.len()).map(|a| product(a, of)).collect())
    }
}

/// What the calls that move rows say of numbers that their arrays must not hold, and what they write.
pub(crate) fn outside<T: Float>(on: &On) -> (Vec<String>, Vec<f64>) {
    let of = Rows { rows: 4, top_k: 2, channels: 4, len: 6 };
    let (x, mut written) = (on.up(&normal::<T>(24, 1)), Vec::new());
    let (order, places) = (on.up(&[0u32, 5, 8, 9, 1, 2]), on.up(&[0u32, 1, NONE, 6, 2, 3, 7, 4]));
    let told = |result: Result<(), KernelError>| {
        result.unwrap();
        on.stream.synchronize().unwrap_err().to_string()
    };
    let wide = x.view(..16).unwrap();
    let half = T::from_f32(0.5);
    let mut y = on.up(&[half; 24]);
    let mut said = vec![told(dispatch::permute(&on.stream, of, order.as_view(), None, wide, y.as_view_mut()))];
    written.extend(f64s(&on.down(&y)));
    let (mut y, p) = (on.up(&[half; 16]), places.as_view());
    said.push(told(dispatch::combine(&on.stream, of, p, None, x.as_view(), Write::Set, y.as_view_mut())));
    written.extend(f64s(&on.down(&y)));
    let mut y = on.up(&[0.5f32; 8]);
    said.push(told(dispatch::backward_weights(&on.stream, of, p, x.as_view(), wide, y.as_view_mut())));
    written.extend(f64s(&on.down(&y)));
    (said, written)
}

/// What the calls that wait say themselves, and what they write.
pub(crate) fn outside_sort(on: &On) -> ([String; 2], [Vec<u32>; 4]) {
    let mut choice = Choice::new((4, 4, 2), 4);
    (choice.experts[4], choice.experts[7]) = (4, 9);
    let [mut keep, mut counts, mut order, mut places] = [8, 4, 8, 8].map(|len| on.up(&vec![7u32; len]));
    let experts = on.up(&choice.experts);
    let (e, k) = (experts.as_view(), keep.as_view_mut());
    let error = dispatch::within_capacity(&on.stream, choice.shape, 4, 1, e, k).unwrap_err();
    assert!(matches!(error, KernelError::Device(DeviceError::BadData { .. })));
    let (c, o, p) = (counts.as_view_mut(), order.as_view_mut(), places.as_view_mut());
    let sort = dispatch::sort(&on.stream, choice.shape, e, None, c, o, p).unwrap_err();
    ([error, sort].map(|error| error.to_string()), [keep, counts, order, places].map(|buffer| on.down(&buffer)))
}
