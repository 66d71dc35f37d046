//! One step of training as numbers: the line of `log.jsonl`.

use serde::{Deserialize, Serialize};

use crate::parallel::traffic::Traffic;

/// What is known of one step. In the log, a number that is not known, or not finite, is `null`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// The step, from 1.
    pub step: u64,
    /// Mean loss of a token over all ranks and micro-batches, in nats.
    pub loss: Option<f64>,
    /// Global norm of the gradient, before clipping.
    pub grad_norm: Option<f64>,
    /// Learning rate.
    pub lr: Option<f64>,
    /// Tokens trained on since the start of the run, this step's included.
    pub tokens: u64,
    /// Tokens a second of this step, over all ranks.
    pub tokens_per_s: Option<f64>,
    /// Model FLOPs a second, as a part of what the machine can do; 1 is all of it.
    pub mfu: Option<f64>,
    /// Time of the step.
    pub step_ms: Option<f64>,
    /// Time of computation in the forward passes.
    pub forward_ms: Option<f64>,
    /// Time of computation in the backward passes.
    pub backward_ms: Option<f64>,
    /// Time in which communication was under way.
    pub comm_ms: Option<f64>,
    /// The part of it in which nothing else was done: what it cost.
    pub exposed_comm_ms: Option<f64>,
    /// Time in which the passes waited for other stages of the pipeline.
    pub waiting_ms: Option<f64>,
    /// Time in norm, clip and optimizer.
    pub optimizer_ms: Option<f64>,
    /// Most memory in use at once, on the rank that used most.
    pub peak_bytes: Option<u64>,
    /// Bytes that rank 0 sent in the step, by what for; new weights that are under way count for the next one.
    pub sent_bytes: Option<Traffic>,
    /// The auxiliary loss of experts, times its weight: in the gradients, and not in `loss`. With what follows, there only
    /// where the model has experts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub aux_loss: Option<f64>,
    /// The smallest margin of all choices of experts; `null` where all are chosen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub routing_margin: Option<f64>,
    /// How many times the mean the most used expert of a layer was chosen.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expert_load: Option<f64>,
    /// Assignments to experts that were over their capacity.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dropped: Option<u64>,
    /// Held-out loss, on the steps that took one; else the key is not there.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub val_loss: Option<f64>,
}
