//! What the parameters of a model are called in files, and how they are cut there: as Hugging Face's models have them, so that
//! the weights of a run can be loaded there and the other way round.
//!
//! GPT-2's linear layers are `Conv1D` there, which holds `[inputs, outputs]`; Llama's packed rows are layers of their own, and
//! so is each expert. The order of rotary positions is the one of those models too: channel i of a head turns with channel
//! i + D/2. Llama with experts is a Mixtral where it is one: softmax scores, no shared expert, no biases; else its names are
//! those of DeepSeek-V3, which GLM-4-MoE and Qwen's mixtures share. GPT-2 has no mixtures there, and keeps its own names.

use std::ops::Range;

use crate::checkpoint::{Foreign, Rows, Whole};
use crate::model::Model;
use crate::model::shape::{Architecture, ModelShape};
use crate::model::table::Parameter;

/// The names of a mixture's tensors.
struct Mixture {
    block: &'static str,
    /// Of an expert: the gate's, that of what it gates, the one back.
    layers: [&'static str; 3],
}

const MIXTRAL: Mixture = Mixture { block: "block_sparse_moe", layers: ["w1", "w3", "w2"] };

const DEEPSEEK: Mixture = Mixture { block: "mlp", layers: ["gate_proj", "up_proj", "down_proj"] };

/// The end of the name of a router, and that of its biases.
const ROUTER: [&str; 2] = [".gate.weight", ".gate.e_score_correction_bias"];

/// Some rows of a parameter.
fn rows_of(parameter: &Parameter, rows: Range<usize>) -> Rows {
    Rows { parameter: parameter.name().into(), shape: parameter.shape().to_vec(), ranges: vec![rows] }
}

/// The layers of their own that Hugging Face has for the rows of one parameter.
fn split(parameter: &Parameter, packed: &str, parts: &[(&str, usize)]) -> Vec<Whole> {
    let mut end = 0;
    let part = |&(part, rows): &(&str, usize)| {
        end += rows;
        let shape = [&[rows], &parameter.shape()[1..]].concat();
        let name = parameter.name().replace(packed, part);
        Whole { name, shape, parts: vec![rows_of(parameter, end - rows..end)], turned: false }
    };
    parts.iter().map(part).collect()
}

/// The layers of each expert of a stack of Llama's: the gate and what it gates, or the one back.
fn experts(parameter: &Parameter, of: &Mixture) -> Vec<Whole> {
    let [experts, rows, columns] = parameter.shape() else { return Vec::new() };
    let (block, _) = parameter.name().split_once(".mlp.").unwrap_or_default();
    let parts = match parameter.name().ends_with("experts.up.weight") {
        true => vec![(of.layers[0], 0..rows / 2), (of.layers[1], rows / 2..*rows)],
        false => vec![(of.layers[2], 0..*rows)],
    };
    let whole = |expert: usize, (layer, rows): (&str, Range<usize>)| Whole {
        name: format!("{block}.{}.experts.{expert}.{layer}.weight", of.block),
        shape: vec![rows.len(), *columns],
        parts: vec![Rows { ranges: vec![expert..expert + 1, rows], ..rows_of(parameter, 0..0) }],
        turned: false,
    };
    (0..*experts).flat_map(|expert| parts.clone().into_iter().map(move |part| whole(expert, part))).collect()
}

/// What the parameters of a model are in the weights' file.
pub fn wholes(model: &Model) -> Vec<Whole> {
    let shape = model.shape();
    let mixtral = shape.hidden == 0
        && shape.moe.is_some_and(|moe| !moe.sigmoid && moe.normalize && moe.bias_rate == 0.0 && moe.capacity.is_none());
    named(model, if mixtral { &MIXTRAL } else { &DEEPSEEK })
}

/// The same by the names that a file of another program has for experts.
pub(crate) fn wholes_as_in(model: &Model, file: &Foreign) -> Vec<Whole> {
    let mixtral = file.names().any(|name| name.contains(MIXTRAL.block));
    named(model, if mixtral { &MIXTRAL } else { &DEEPSEEK })
}

fn named(model: &Model, mixture: &Mixture) -> Vec<Whole> {
    let shape = model.shape();
    let mut all: Vec<Whole> = Vec::new();
    // A shared expert of no width is no tensor there.
    for parameter in model.table().parameters().iter().filter(|parameter| parameter.elements() > 0) {
        let name = parameter.name();
        if name.contains("c_attn.kv")
            && let Some(packed) = all.iter_mut().rfind(|stored| stored.name == name.replace(".kv.", "."))
        {
            let rows = parameter.shape()[0];
            packed.parts.push(rows_of(parameter, 0..rows));
            packed.shape[usize::from(packed.turned)] += rows;
            continue;
        }
        match shape.architecture {
            Architecture::Gpt2 => all.push(of_gpt2(parameter)),
            Architecture::Llama => all.extend(of_llama(shape, parameter, mixture)),
        }
    }
    all.extend(biases(model).map(|name| Whole::plain(&name, &[shape.moe.map_or(0, |moe| moe.experts)])));
    all
}

fn of_gpt2(parameter: &Parameter) -> Whole {
    let name = parameter.name().replace("c_attn.q.", "c_attn.");
    let turned = parameter.shape().len() == 2
        && [".c_attn.", ".c_proj.", ".c_fc."].iter().any(|layer| parameter.name().contains(layer));
    let mut shape = parameter.shape().to_vec();
    if turned {
        shape.reverse();
    }
    Whole { name, shape, parts: vec![rows_of(parameter, 0..parameter.shape()[0])], turned }
}

fn of_llama(shape: &ModelShape, parameter: &Parameter, mixture: &Mixture) -> Vec<Whole> {
    let (name, rows) = (parameter.name(), parameter.shape()[0]);
    let values = shape.kv_heads * shape.head_size();
    if parameter.is_of_experts() {
        return experts(parameter, mixture);
    }
    let mut wholes = if name.contains("qkv_proj.q") {
        split(parameter, "qkv_proj.q", &[("q_proj", rows)])
    } else if name.contains("qkv_proj.kv") {
        split(parameter, "qkv_proj.kv", &[("k_proj", values), ("v_proj", values)])
    } else if name.contains("gate_up_proj") {
        split(parameter, "gate_up_proj", &[("gate_proj", shape.hidden), ("up_proj", shape.hidden)])
    } else {
        vec![Whole::plain(name, parameter.shape())]
    };
    if shape.moe.is_some() {
        let (router, shared) = (format!(".{}.gate.", mixture.block), ".mlp.shared_experts.");
        for whole in &mut wholes {
            let named = if whole.name.ends_with(ROUTER[0]) {
                whole.name.replace(".mlp.gate.", &router)
            } else {
                whole.name.replace(".mlp.", shared)
            };
            whole.name = named;
        }
    }
    wholes
}

/// The names of the biases of all routers, block after block, where there are some.
pub(super) fn biases(model: &Model) -> impl Iterator<Item = String> + '_ {
    let there = model.shape().moe.is_some_and(|moe| moe.bias_rate > 0.0);
    let names = model.table().parameters().iter().map(Parameter::name);
    names.filter(move |name| there && name.ends_with(ROUTER[0])).map(|name| name.replace(ROUTER[0], ROUTER[1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MoeShape, Spread};

    fn names(shape: ModelShape) -> Vec<(String, Vec<usize>)> {
        let model = Model::new(shape, Spread::alone(&shape)).expect("sizes that fit");
        wholes(&model).into_iter().map(|stored| (stored.name, stored.shape)).collect()
    }

    #[test]
    fn names_and_shapes_are_those_of_hugging_face() {
        let gpt2 = names(ModelShape::gpt2(1, 8, 2, 4, 11));
        let has = |names: &[(String, Vec<usize>)], name: &str, shape: &[usize]| {
            assert!(names.contains(&(name.to_owned(), shape.to_vec())), "{name} {shape:?} in {names:?}");
        };
        has(&gpt2, "transformer.wte.weight", &[11, 8]);
        has(&gpt2, "transformer.wpe.weight", &[4, 8]);
        has(&gpt2, "transformer.h.0.attn.c_attn.weight", &[8, 24]);
        has(&gpt2, "transformer.h.0.attn.c_attn.bias", &[24]);
        has(&gpt2, "transformer.h.0.mlp.c_fc.weight", &[8, 32]);
        has(&gpt2, "transformer.h.0.mlp.c_proj.weight", &[32, 8]);
        has(&gpt2, "transformer.ln_f.bias", &[8]);
        let llama = names(ModelShape::llama(1, 8, 2, 1, 4, 11));
        has(&llama, "model.embed_tokens.weight", &[11, 8]);
        has(&llama, "model.layers.0.self_attn.q_proj.weight", &[8, 8]);
        has(&llama, "model.layers.0.self_attn.v_proj.weight", &[4, 8]);
        has(&llama, "model.layers.0.mlp.gate_proj.weight", &[64, 8]);
        has(&llama, "model.layers.0.mlp.up_proj.weight", &[64, 8]);
        has(&llama, "model.layers.0.mlp.down_proj.weight", &[8, 64]);
        has(&llama, "model.norm.weight", &[8]);
        let moe = MoeShape::new(2, 1, 12);
        let mixture = |hidden, moe| ModelShape { hidden, moe: Some(moe), ..ModelShape::llama(1, 8, 2, 1, 4, 11) };
        let mixtral = names(mixture(0, moe));
        has(&mixtral, "model.layers.0.block_sparse_moe.gate.weight", &[2, 8]);
        has(&mixtral, "model.layers.0.block_sparse_moe.experts.1.w2.weight", &[8, 12]);
        has(&mixtral, "model.layers.0.block_sparse_moe.experts.1.w3.weight", &[12, 8]);
        assert_eq!(mixtral.len(), names(mixture(16, moe)).len() - 3, "no tensors of a shared expert");
        let deepseek = names(mixture(16, MoeShape { sigmoid: true, bias_rate: 1e-3, ..moe }));
        has(&deepseek, "model.layers.0.mlp.gate.weight", &[2, 8]);
        has(&deepseek, "model.layers.0.mlp.gate.e_score_correction_bias", &[2]);
        has(&deepseek, "model.layers.0.mlp.experts.1.gate_proj.weight", &[12, 8]);
        has(&deepseek, "model.layers.0.mlp.shared_experts.up_proj.weight", &[16, 8]);
        has(&deepseek, "model.layers.0.post_attention_layernorm.weight", &[8]);
    }
}
