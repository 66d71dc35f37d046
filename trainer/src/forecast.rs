//! What a run will take, from its configuration alone: memory of every rank, bytes and bubble of a step, FLOPs.

use serde_json::{Map, Value, json};
use warpweft_schedule::Schedule;

use crate::config::Config;
use crate::memory::{self, Bytes, Class};
use crate::model::{Model, Spread};
use crate::parallel::mesh::Sizes;
use crate::parallel::traffic::{self, Traffic};
use crate::recipe::Recipe;
use crate::report::{bytes, grouped};
use crate::{TrainError, flops};

/// What is known before anything runs.
#[derive(Clone, Debug)]
pub struct Forecast {
    /// The mesh.
    pub sizes: Sizes,
    /// Bytes by class of every rank; those of its communicators, and of checkpoints on their way, are not known.
    pub ranks: Vec<Bytes>,
    /// What all ranks together send in a step.
    pub sent: Traffic,
    /// The schedule of the passes, with all its times 1: its bubble and its activations are counts.
    pub schedule: Schedule,
    /// Sequences of a micro-batch on the first rank.
    pub micro_batch: usize,
    /// Elements of all parameters of the model.
    pub parameters: usize,
    /// FLOPs of a token.
    pub flops: f64,
    /// Tokens of a step.
    pub tokens: usize,
    /// How state is shared out, and what is kept and computed again, in words.
    plan: String,
}

impl Forecast {
    /// That of a configuration.
    ///
    /// # Errors
    /// Sizes that do not fit together.
    pub fn of(config: &Config) -> Result<Self, TrainError> {
        let (shape, recipe, sizes) = (config.shape(), Recipe::of(config), config.sizes);
        let places = (0..sizes.ranks()).map(|rank| sizes.place(rank));
        let memory = |place| memory::predict(&shape, &recipe, (sizes, place), config.dtype);
        let model = Model::new(shape, Spread::alone(&shape))?;
        let plan = format!(
            "ZeRO {}{}, recompute {:?}{}{}{}",
            recipe.zero.stage,
            recipe.zero.shards.map_or_else(String::new, |shards| format!(" over {shards}")),
            recipe.recompute,
            if recipe.sequence_parallel { ", rows shared out over tp" } else { "" },
            if recipe.exact { ", exact sums" } else { "" },
            if recipe.overlap { "" } else { ", nothing overlaps" },
        );
        Ok(Self {
            sizes,
            ranks: places.map(memory).collect::<Result<_, _>>()?,
            sent: traffic::predict(&shape, &recipe, sizes, config.dtype)?,
            schedule: recipe.passes(sizes)?,
            micro_batch: recipe.micro_batch,
            parameters: model.table().elements(),
            flops: flops::per_token(&model, recipe.tokens),
            tokens: recipe.batch * recipe.tokens,
            plan: plan.to_lowercase().replace("zero", "ZeRO"),
        })
    }

    /// The rank that holds most, and what it holds.
    pub fn largest(&self) -> (usize, Bytes) {
        let most = self.ranks.iter().enumerate().rev().max_by_key(|(_, bytes)| bytes.total());
        most.map_or((0, Bytes::default()), |(rank, bytes)| (rank, *bytes))
    }

    /// The memory of the largest rank, a class a line.
    pub fn memory(&self) -> String {
        let (rank, held) = self.largest();
        let classes = Class::ALL.into_iter().filter(|class| class.is_predicted());
        let rows = classes.map(|class| (class.name(), held.of(class))).chain([("total", held.total())]);
        let lines: Vec<_> = rows.map(|(name, count)| format!("  {name:<12}{:>12}", bytes(count))).collect();
        format!("memory of rank {rank}, which holds most, as predicted (communicators apart):\n{}", lines.join("\n"))
    }

    /// All of it for programs, under names that stay.
    pub fn json(&self) -> Value {
        let counts = |kinds: &mut dyn Iterator<Item = (&'static str, u64)>| {
            kinds.map(|(name, count)| (name.to_owned(), json!(count))).collect::<Map<_, _>>()
        };
        let rank = |held: &Bytes| {
            let classes = Class::ALL.into_iter().filter(|class| class.is_predicted());
            let all = classes.map(|class| (class.name(), held.of(class))).chain([("total", held.total())]);
            counts(&mut all.into_iter())
        };
        let Sizes { pp, dp, cp, tp, ep } = self.sizes;
        let (proof, kinds) = (self.schedule.proof(), self.sent.kinds());
        json!({
            "mesh": { "ranks": self.sizes.ranks(), "pp": pp, "dp": dp, "cp": cp, "tp": tp, "ep": ep },
            "plan": self.plan,
            "schedule": self.schedule.origin(),
            "micro_batches": self.schedule.micro_batches(),
            "micro_batch": self.micro_batch,
            "bubble_rate": proof.bubble_rate,
            "peak_activations": proof.peak_activations,
            "parameters": self.parameters,
            "flops_a_token": self.flops,
            "tokens_a_step": self.tokens,
            "sent_bytes_a_step": counts(&mut kinds.into_iter().chain([("total", self.sent.total())])),
            "largest_rank": self.largest().0,
            "memory_bytes": self.ranks.iter().map(rank).collect::<Vec<_>>(),
        })
    }

    /// All of it.
    pub fn text(&self) -> String {
        let Sizes { pp, dp, cp, tp, ep } = self.sizes;
        let (schedule, proof) = (&self.schedule, self.schedule.proof());
        let list = |counts: &[usize]| counts.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
        let mut lines = vec![
            format!("mesh: pp {pp} x dp {dp} x cp {cp} x tp {tp} = {} ranks, experts over ep {ep}", self.sizes.ranks()),
            format!(
                "plan: {}, {} micro-batches of {} sequences, {}",
                schedule.origin(),
                schedule.micro_batches(),
                self.micro_batch,
                self.plan
            ),
            format!(
                "model: {} parameters, {:.3} MFLOP a token, {:.3} GFLOP a step",
                grouped(self.parameters as u64),
                self.flops / 1e6,
                self.flops * self.tokens as f64 / 1e9
            ),
            format!(
                "bubble: {:.1} % where F = B = W; activations at most, in micro-batches of a chunk, by stage: {}",
                100.0 * proof.bubble_rate,
                list(&proof.peak_activations)
            ),
            "sent by all ranks in a step:".into(),
        ];
        let kinds = self.sent.kinds().into_iter().chain([("total", self.sent.total())]);
        lines.extend(kinds.map(|(kind, count)| format!("  {kind:<10}{:>16} bytes", grouped(count))));
        lines.push("memory by rank, in bytes (what communicators hold is not in it):".into());
        let classes: Vec<Class> = Class::ALL.into_iter().filter(|class| class.is_predicted()).collect();
        let names = classes.iter().map(|class| format!("{:>15}", class.name())).collect::<String>();
        lines.push(format!("  rank{names}{:>15}", "total"));
        for (rank, held) in self.ranks.iter().enumerate() {
            let counts = classes.iter().map(|class| format!("{:>15}", grouped(held.of(*class)))).collect::<String>();
            lines.push(format!("  {rank:>4}{counts}{:>15}", grouped(held.total())));
        }
        let (rank, held) = self.largest();
        lines.push(format!("rank {rank} holds most: {}", bytes(held.total())));
        lines.join("\n")
    }
}
