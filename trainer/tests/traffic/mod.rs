//! What the ranks send is what the formulas say, to the byte.

use warpweft_schedule::Name;
use warpweft_trainer::model::ModelShape;
use warpweft_trainer::parallel::mesh::Sizes;
use warpweft_trainer::parallel::traffic::Traffic;
use warpweft_trainer::step::Trainer;

use crate::training::Training;

const LAYERS: u64 = 4;
const CHANNELS: u64 = 16;
const TOKENS: u64 = 8;
const VOCAB: u64 = 19;
/// Sequences of a step, each a micro-batch of its own where it is one rank's.
const BATCH: u64 = 6;

fn training(sizes: Sizes) -> Training {
    let shape = ModelShape::gpt2(LAYERS as usize, CHANNELS as usize, 4, TOKENS as usize, VOCAB as usize);
    Training { sizes, micro_batch: 1, ..Training::of(shape, BATCH as usize, 2) }
}

/// What all ranks send in the second step.
fn sent(training: Training, dp: usize) -> Traffic {
    let each = training.run_then(dp, |_: &mut Trainer<f32>, reports| reports[1].traffic);
    each.into_iter().fold(Traffic::default(), |sum, of| sum + of)
}

/// Bytes of the model's units (tokens, positions, blocks, head), and of what in them is applied to rows of the residual
/// stream.
fn units() -> Vec<[u64; 2]> {
    let c = CHANNELS;
    let norms = 4 * c;
    let block = [12 * c * c + 9 * c + norms, norms];
    let ends = [[VOCAB * c, 0], [TOKENS * c, TOKENS * c], [2 * c, 2 * c]];
    let blocks = std::iter::repeat_n(block, LAYERS as usize);
    ends.into_iter().chain(blocks).map(|elements| elements.map(|elements| 4 * elements)).collect()
}

/// Bytes that a sum of `bytes` over `ranks` sends: twice to all but one, or where it is small at once to all others.
fn sum(bytes: u64, ranks: u64) -> u64 {
    let small = ranks > 2 && bytes <= 4096;
    if small { ranks * (ranks - 1) * bytes } else { 2 * (ranks - 1) * bytes }
}

/// Elements of a micro-batch's residual stream.
const STREAM: u64 = TOKENS * CHANNELS;

#[test]
fn data_parallelism_sends_each_gradient_twice_to_all_but_one() {
    for ranks in 2..=4 {
        let sent = sent(training(Sizes::ONE), ranks as usize);
        let sums: u64 = units().iter().map(|[whole, _]| sum(*whole, ranks)).sum();
        assert_eq!(sent.data, sums, "{ranks} ranks");
        assert_eq!((sent.tensor, sent.context, sent.pipeline), (0, 0, 0));
    }
}

#[test]
fn tensor_parallelism_sums_the_stream_twice_in_every_block_and_direction() {
    for tp in [2, 4] {
        let sent = sent(training(Sizes { tp: tp as usize, ..Sizes::ONE }), 1);
        let sums = (4 * LAYERS + 2) * sum(STREAM * 4, tp);
        let losses = tp * (tp - 1) * TOKENS * 3 * 8;
        assert_eq!(sent.tensor, BATCH * (sums + losses), "{tp} ranks");
        assert_eq!((sent.data, sent.context, sent.pipeline), (0, 0, 0));
    }
}

#[test]
fn sequence_parallelism_gathers_and_scatters_half_as_much_each_time() {
    for tp in [2, 4] {
        let training = Training { sequence_parallel: true, ..training(Sizes { tp: tp as usize, ..Sizes::ONE }) };
        let sent = sent(training, 1);
        let moves = (10 * LAYERS + 5) * (tp - 1) * STREAM * 4;
        let losses = tp * (tp - 1) * TOKENS * 3 * 8;
        let gradients: u64 = units().iter().map(|[_, met]| sum(*met, tp)).sum();
        assert_eq!(sent.tensor, BATCH * (moves + losses) + gradients, "{tp} ranks");
    }
}

#[test]
fn a_pipeline_sends_the_stream_over_each_border_and_back() {
    let names = [Name::GPipe, Name::OneForwardOneBackward, Name::ZbH1, Name::ZbH2, Name::Interleaved, Name::DualPipe];
    for name in names {
        for pp in [2, 4] {
            let borders = match name {
                Name::Interleaved if pp == 4 => continue,
                Name::Interleaved => 2 * pp - 1,
                _ => pp - 1,
            };
            let training = Training { pipeline: (name, None), ..training(Sizes { pp: pp as usize, ..Sizes::ONE }) };
            let sent = sent(training, 1);
            // Both ends hold the table of tokens; with two copies of the model each pair of stages holds the same.
            let whole: u64 = units().iter().map(|[whole, _]| whole).sum();
            let shared = if name == Name::DualPipe { whole } else { VOCAB * CHANNELS * 4 };
            assert_eq!(sent.pipeline, BATCH * 2 * borders * STREAM * 4 + 2 * shared, "{name} over {pp} stages");
            assert_eq!((sent.data, sent.tensor, sent.context), (0, 0, 0));
        }
    }
}
