//! The sizes of a model, and which of them fit together.

use serde::{Deserialize, Serialize};

/// The family of a dense decoder-only model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// Learned positions, LayerNorm, biases, tanh-GELU (Radford et al. 2019).
    Gpt2,
    /// RoPE, RMSNorm, grouped key/value heads, SwiGLU, no biases (Touvron et al. 2023).
    Llama,
}

/// The sizes of a model. Everything about its parameters and activations follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelShape {
    /// The family.
    pub architecture: Architecture,
    /// Blocks, L.
    pub layers: usize,
    /// Width of the residual stream, C.
    pub channels: usize,
    /// Query heads, H.
    pub heads: usize,
    /// Key/value heads, G; H for GPT-2.
    pub kv_heads: usize,
    /// Width inside the MLP, F.
    pub hidden: usize,
    /// Longest sequence, T.
    pub context: usize,
    /// Tokens there are, V.
    pub vocab: usize,
    /// Whether the output projection is the token embedding.
    pub tied: bool,
    /// The experts beside the MLP of every block, where there are some; `hidden` is then the width of the MLP that all
    /// tokens go through, and may be 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moe: Option<MoeShape>,
}

/// The sizes of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MoeShape {
    /// Experts, E.
    pub experts: usize,
    /// Experts that a token goes to, K.
    pub top_k: usize,
    /// Width inside an expert.
    pub hidden: usize,
    /// Whether scores are sigmoids of the logits, not their softmax.
    pub sigmoid: bool,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalize: bool,
    /// What the auxiliary loss of a sequence and layer, 1 where experts are evenly used, is multiplied by; each sequence
    /// weighs as much as its tokens do in the mean loss. It is in the gradients and not in the reported loss.
    pub balance: f64,
    /// How far the bias that is added to an expert's score, for the choice alone, moves after each step: up where the step used
    /// the expert less than the mean, else down. 0: there is none.
    #[serde(default)]
    pub bias_rate: f64,
    /// How many times its even share of a sequence's assignments, K T / E, an expert takes at most, rounded up; what is over
    /// goes nowhere. `None`: nothing is dropped.
    #[serde(default)]
    pub capacity: Option<f64>,
}

/// A shape that [`ModelShape::check`] passes has numbers here, equal to themselves.
impl Eq for MoeShape {}

impl MoeShape {
    /// Softmax scores, weights that add up to 1, no auxiliary loss, dropless.
    pub const fn new(experts: usize, top_k: usize, hidden: usize) -> Self {
        Self { experts, top_k, hidden, sigmoid: false, normalize: true, balance: 0.0, bias_rate: 0.0, capacity: None }
    }

    /// Checks that the factors are numbers of their ranges.
    fn check_factors(&self) -> Result<(), ShapeError> {
        let least = |least: f64| move |factor: &f64| !(*factor >= least && factor.is_finite());
        let of = |what, factor: f64, allowed| Err(ShapeError::Factor { what, value: factor.to_string(), allowed });
        let factors = [("the weight of the auxiliary loss", self.balance), ("the step of the biases", self.bias_rate)];
        if let Some((what, factor)) = factors.into_iter().find(|(_, factor)| least(0.0)(factor)) {
            return of(what, factor, "of at least 0");
        }
        match self.capacity.filter(least(f64::MIN_POSITIVE)) {
            Some(capacity) => of("the capacity of an expert", capacity, "above 0"),
            None => Ok(()),
        }
    }
}

/// Sizes that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A size that is zero.
    #[error("{what} is 0; a model needs at least 1")]
    Zero {
        /// The size.
        what: &'static str,
    },
    /// A size that is not a multiple of another.
    #[error("{number} {what} do not divide by {divisor} {by}; use {allowed} {by}")]
    NotDivisible {
        /// What is divided.
        what: &'static str,
        /// How many there are.
        number: usize,
        /// What it is divided by.
        by: &'static str,
        /// How many of those were asked for.
        divisor: usize,
        /// The counts that would do.
        allowed: String,
    },
    /// More chunks of the pipeline than layers to fill them.
    #[error("{layers} layers do not fill pp {pp} x {each} chunks = {}; use at most {layers}, or more layers", pp * each)]
    Chunks {
        /// Layers of the model.
        layers: usize,
        /// Stages.
        pp: usize,
        /// Chunks of each.
        each: usize,
    },
    /// RoPE turns pairs, so that a head must have an even size.
    #[error("{channels} channels in {heads} heads give heads of {size}, which is odd; RoPE needs an even head size")]
    OddHead {
        /// Channels asked for.
        channels: usize,
        /// Heads asked for.
        heads: usize,
        /// The head size that results.
        size: usize,
    },
    /// GPT-2 has no grouped heads.
    #[error(
        "gpt2 has a key/value head for each of its {heads} heads, not {kv_heads}; use model llama for grouped heads"
    )]
    GroupedGpt2 {
        /// Query heads.
        heads: usize,
        /// Key/value heads asked for.
        kv_heads: usize,
    },
    /// More experts a token than there are.
    #[error("each token goes to {top_k} experts of {experts}; use at most {experts}")]
    TopK {
        /// Experts of a token.
        top_k: usize,
        /// Experts there are.
        experts: usize,
    },
    /// A factor of a mixture that is no number, or outside its range.
    #[error("{what} is {value}; use a number {allowed}")]
    Factor {
        /// The factor.
        what: &'static str,
        /// What was given.
        value: String,
        /// What would do.
        allowed: &'static str,
    },
    /// More elements than an address space has.
    #[error(
        "a model of {layers} layers, {channels} channels and {vocab} tokens has more parameters than can be addressed"
    )]
    TooLarge {
        /// Layers asked for.
        layers: usize,
        /// Channels asked for.
        channels: usize,
        /// Vocabulary asked for.
        vocab: usize,
    },
}

impl ModelShape {
    /// GPT-2: as many key/value heads as heads, an MLP of 4C, tied embeddings.
    pub fn gpt2(layers: usize, channels: usize, heads: usize, context: usize, vocab: usize) -> Self {
        let (architecture, hidden) = (Architecture::Gpt2, channels.saturating_mul(4));
        Self { architecture, layers, channels, heads, kv_heads: heads, hidden, context, vocab, tied: true, moe: None }
    }

    /// Llama: an MLP of 8C/3 rounded up to a multiple of 64, tied embeddings.
    pub fn llama(layers: usize, channels: usize, heads: usize, kv_heads: usize, context: usize, vocab: usize) -> Self {
        let hidden = channels.saturating_mul(8).div_ceil(3 * 64).saturating_mul(64);
        let architecture = Architecture::Llama;
        Self { architecture, layers, channels, heads, kv_heads, hidden, context, vocab, tied: true, moe: None }
    }

    /// Checks that the sizes fit together.
    ///
    /// # Errors
    /// The first that does not, with the numbers and what would do.
    pub fn check(&self) -> Result<(), ShapeError> {
        let sizes = [
            ("layers", self.layers),
            ("channels", self.channels),
            ("heads", self.heads),
            ("kv-heads", self.kv_heads),
            ("the MLP's hidden size", if self.moe.is_some() { 1 } else { self.hidden }),
            ("experts", self.moe.map_or(1, |moe| moe.experts)),
            ("top-k", self.moe.map_or(1, |moe| moe.top_k)),
            ("an expert's hidden size", self.moe.map_or(1, |moe| moe.hidden)),
            ("context", self.context),
            ("vocab", self.vocab),
        ];
        if let Some((what, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ShapeError::Zero { what });
        }
        if let Some(MoeShape { top_k, experts, .. }) = self.moe.filter(|moe| moe.top_k > moe.experts) {
            return Err(ShapeError::TopK { top_k, experts });
        }
        if let Some(moe) = self.moe {
            moe.check_factors()?;
        }
        divides("channels", self.channels, "heads", self.heads)?;
        divides("heads", self.heads, "kv-heads", self.kv_heads)?;
        let grouped = self.kv_heads != self.heads;
        match self.architecture {
            Architecture::Gpt2 if grouped => {
                return Err(ShapeError::GroupedGpt2 { heads: self.heads, kv_heads: self.kv_heads });
            }
            Architecture::Llama if !self.head_size().is_multiple_of(2) => {
                let (channels, heads, size) = (self.channels, self.heads, self.head_size());
                return Err(ShapeError::OddHead { channels, heads, size });
            }
            _ => {}
        }
        // A bound that no count below exceeds: each layer has at most 4C + 3F rows and columns of C, with biases.
        let bound = || {
            let experts =
                self.moe.map_or(Some(0), |moe| moe.experts.checked_mul(moe.hidden.checked_mul(3)?.checked_add(1)?))?;
            let layer = self
                .hidden
                .checked_mul(3)?
                .checked_add(experts)?
                .checked_add(self.channels.checked_mul(8)?)?
                .checked_mul(self.channels)?;
            let tables = self.vocab.checked_mul(2)?.checked_add(self.context)?.checked_mul(self.channels)?;
            layer.checked_mul(self.layers)?.checked_add(tables)?.checked_mul(size_of::<f32>())
        };
        match bound() {
            Some(bytes) if bytes <= isize::MAX as usize => Ok(()),
            _ => Err(ShapeError::TooLarge { layers: self.layers, channels: self.channels, vocab: self.vocab }),
        }
    }

    /// Size of a head, D.
    pub fn head_size(&self) -> usize {
        self.channels / self.heads
    }

    /// Width of a packed row of queries, keys and values: (H + 2G) D.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_size()
    }

    /// Width before the MLP's activation: F, or 2F where a gate goes with it.
    pub fn expanded(&self) -> usize {
        match self.architecture {
            Architecture::Gpt2 => self.hidden,
            Architecture::Llama => 2 * self.hidden,
        }
    }
}

pub(super) fn divides(what: &'static str, number: usize, by: &'static str, divisor: usize) -> Result<(), ShapeError> {
    if number.is_multiple_of(divisor) {
        return Ok(());
    }
    let allowed: Vec<String> =
        (1..=number.min(1024)).filter(|count| number.is_multiple_of(*count)).map(|count| count.to_string()).collect();
    Err(ShapeError::NotDivisible { what, number, by, divisor, allowed: allowed.join(", ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mlp_of_llama_is_eight_thirds_rounded_up() {
        for (channels, hidden) in [(128, 384), (384, 1024), (512, 1408), (192, 512)] {
            assert_eq!(ModelShape::llama(1, channels, 2, 1, 8, 8).hidden, hidden);
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_named_with_those_that_would() {
        let error = ModelShape::gpt2(1, 24, 5, 8, 8).check().unwrap_err();
        let expected = "24 channels do not divide by 5 heads; use 1, 2, 3, 4, 6, 8, 12, 24 heads";
        assert_eq!(error.to_string(), expected);
        assert_eq!(ModelShape::gpt2(0, 24, 4, 8, 8).check(), Err(ShapeError::Zero { what: "layers" }));
        assert!(matches!(ModelShape::llama(1, 6, 2, 1, 8, 8).check(), Err(ShapeError::OddHead { size: 3, .. })));
        assert!(matches!(ModelShape::llama(1, 24, 4, 3, 8, 8).check(), Err(ShapeError::NotDivisible { .. })));
        let mut grouped = ModelShape::gpt2(1, 24, 4, 8, 8);
        grouped.kv_heads = 2;
        assert!(matches!(grouped.check(), Err(ShapeError::GroupedGpt2 { .. })));
        assert!(matches!(ModelShape::gpt2(1, 1 << 40, 1, 8, 1 << 40).check(), Err(ShapeError::TooLarge { .. })));
        assert_eq!(ModelShape::llama(2, 24, 4, 2, 8, 8).check(), Ok(()));
    }
}
