//! The settings of an optimizer: those of a training, and those of a step.

use warpweft_device::View;

use super::OP;
use crate::KernelError;

/// The settings of Adam, in either form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Decay of the mean of gradients, in [0, 1).
    pub beta1: f64,
    /// Decay of the mean of squared gradients, in [0, 1).
    pub beta2: f64,
    /// Added to the root of the mean square, at least 0.
    pub eps: f64,
}

impl Default for Adam {
    /// PyTorch's.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8 }
    }
}

/// The settings of SGD; the default is the plain one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sgd {
    /// Decay of the sum of gradients, in [0, 1); 0 keeps no sum.
    pub momentum: f64,
    /// What is taken off a gradient's share in the sum, in [0, 1]; not of the first.
    pub dampening: f64,
    /// Nesterov's form, which needs momentum and no dampening.
    pub nesterov: bool,
}

/// Which formula.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Weight decay apart from the gradient (Loshchilov and Hutter).
    AdamW(Adam),
    /// Weight decay as a part of the gradient: L2 regularisation (Kingma and Ba).
    Adam(Adam),
    /// Stochastic gradient descent.
    Sgd(Sgd),
}

/// How a parameter without a master is rounded to its storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounding {
    /// To nearest even.
    #[default]
    Nearest,
    /// Up or down by chance, so that the mean is right: for bf16 parameters without master. The random bits are a pure
    /// function of the seed, the step (its lower 32 bits), the tensor and the element.
    Stochastic {
        /// The key of the generator.
        seed: u64,
    },
}

/// What stays the same over a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// The formula.
    pub rule: Rule,
    /// Weight decay, at least 0, of the tensors that have `decay` set.
    pub weight_decay: f64,
    /// Of parameters without a master.
    pub rounding: Rounding,
}

impl Default for Options {
    /// AdamW with PyTorch's settings.
    fn default() -> Self {
        Self { rule: Rule::AdamW(Adam::default()), weight_decay: 1e-2, rounding: Rounding::Nearest }
    }
}

/// The numbers of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Learning rate, at least 0.
    pub lr: f64,
    /// The number of this step, from 1.
    pub number: u64,
    /// The factor on every gradient: the clip coefficient, 1 without. It must be finite, so that a step whose gradients
    /// have a NaN for their norm is refused; skip that step.
    pub grad_scale: f64,
}

impl Default for Step {
    /// PyTorch's learning rate of Adam, at step 1.
    fn default() -> Self {
        Self { lr: 1e-3, number: 1, grad_scale: 1.0 }
    }
}

/// Where the numbers of a step are.
#[derive(Clone, Copy)]
pub enum Numbers<'a> {
    /// Here.
    Host(Step),
    /// On the device, as [`Control`](super::Control) lays them out, where kernels before this one have put them: the host
    /// waits for none of them.
    Device(View<'a, f64>),
}

impl From<Step> for Numbers<'_> {
    fn from(step: Step) -> Self {
        Self::Host(step)
    }
}

/// The first of the rules that does not hold, as an error.
fn first_broken<const N: usize>(rules: [(&'static str, f64, bool, &str); N]) -> Result<(), KernelError> {
    match rules.into_iter().find(|(_, _, allowed, _)| !allowed) {
        Some((argument, given, _, allowed)) => {
            Err(KernelError::Number { op: OP, argument, given, allowed: allowed.to_owned() })
        }
        None => Ok(()),
    }
}

fn not_negative(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

const NOT_NEGATIVE: &str = "finite and at least 0";
const BELOW_ONE: &str = "at least 0 and less than 1";

impl Options {
    pub(super) fn check(&self) -> Result<(), KernelError> {
        let below_one = |value: f64| (0.0..1.0).contains(&value);
        match self.rule {
            Rule::AdamW(adam) | Rule::Adam(adam) => first_broken([
                ("beta1", adam.beta1, below_one(adam.beta1), BELOW_ONE),
                ("beta2", adam.beta2, below_one(adam.beta2), BELOW_ONE),
                ("eps", adam.eps, not_negative(adam.eps), NOT_NEGATIVE),
            ])?,
            Rule::Sgd(Sgd { momentum, dampening, nesterov }) => {
                first_broken([
                    ("momentum", momentum, below_one(momentum), BELOW_ONE),
                    ("dampening", dampening, (0.0..=1.0).contains(&dampening), "at least 0 and at most 1"),
                ])?;
                if nesterov && (momentum == 0.0 || dampening != 0.0) {
                    let rule = "needs momentum and no dampening";
                    return Err(KernelError::Combination { op: OP, argument: "nesterov", rule });
                }
            }
        }
        first_broken([("weight_decay", self.weight_decay, not_negative(self.weight_decay), NOT_NEGATIVE)])
    }

    /// Whether tensors have a mean of gradients, and a mean of squares.
    pub(super) fn means(&self) -> [bool; 2] {
        match self.rule {
            Rule::AdamW(_) | Rule::Adam(_) => [true, true],
            Rule::Sgd(sgd) => [sgd.momentum != 0.0, false],
        }
    }
}

impl Step {
    pub(super) fn check(&self) -> Result<(), KernelError> {
        if self.number == 0 {
            let allowed = "at least 1: the first step is number 1".to_owned();
            return Err(KernelError::Size { op: OP, argument: "step", given: 0, allowed });
        }
        let scale = "finite; skip a step of NaN gradients";
        first_broken([
            ("lr", self.lr, not_negative(self.lr), NOT_NEGATIVE),
            ("grad_scale", self.grad_scale, self.grad_scale.is_finite(), scale),
        ])
    }
}
