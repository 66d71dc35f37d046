//! Numbers that are none end all ranks alike, with the step's number, and what is on its way to the disk arrives.
#![forbid(unsafe_code)]

mod common;
mod runs;

use std::sync::Arc;

use common::ranks;
use runs::{Runs, train};
use warpweft_device::Device;
use warpweft_trainer::TrainError;
use warpweft_trainer::checkpoint::Checkpoint;
use warpweft_trainer::dump::{Dump, steps};
use warpweft_trainer::model::ModelShape;
use warpweft_trainer::parallel::mesh::{Mesh, Sizes};
use warpweft_trainer::parallel::zero::Zero;
use warpweft_trainer::step::{Recipe, Sequences, Trainer};

/// Steps of which the second begins with a NaN among the weights of one rank; what each rank says.
fn poisoned(sizes: Sizes, zero: u8, victim: usize) -> Vec<String> {
    let shape = ModelShape::gpt2(2, 16, 4, 8, 19);
    ranks(sizes.ranks(), |communicator| {
        let mesh = Mesh::new(Arc::new(communicator), sizes, 1).expect("a mesh");
        let rank = mesh.world().rank();
        let recipe = Recipe { micro_batch: 1, zero: Zero::stage(zero), ..Recipe::new(8, 4) };
        let mine = recipe.share(&mesh, 4);
        let device = Device::cpu_with_threads(1).expect("a thread");
        let mut trainer = Trainer::<f32>::new(shape, recipe, &device, mesh).expect("a trainer");
        let ids: Vec<u32> = mine.flat_map(|row| (0..8).map(move |t| ((row * 5 + t * 3) % 19) as u32)).collect();
        let sequences = Sequences { inputs: &ids, targets: &ids };
        trainer.step(sequences, 32, None).expect("a first step");
        trainer.settle().expect("weights that arrive");
        if rank == victim {
            let table = trainer.model().table().clone();
            trainer.set_weights(|id| vec![f32::NAN; table.get(id).len()]).expect("as many weights");
        }
        let error = trainer.step(sequences, 32, None).expect_err("no number comes of it");
        assert!(matches!(error, TrainError::NotFinite { step: 2, .. }), "{error}");
        error.to_string()
    })
}

#[test]
fn a_nan_on_one_rank_is_the_same_error_of_all() {
    for (sizes, zero) in [
        (Sizes { dp: 3, ..Sizes::ONE }, 0),
        (Sizes { dp: 2, ..Sizes::ONE }, 2),
        (Sizes { tp: 2, ..Sizes::ONE }, 0),
        (Sizes { cp: 2, ..Sizes::ONE }, 0),
        (Sizes { pp: 2, ..Sizes::ONE }, 0),
        (Sizes { pp: 2, dp: 2, tp: 2, ..Sizes::ONE }, 1),
    ] {
        for victim in [0, sizes.ranks() - 1] {
            let said = poisoned(sizes, zero, victim);
            assert!(said[0].contains("step 2: the loss is") && said[0].contains("lower --lr"), "{}", said[0]);
            assert!(said.iter().all(|error| *error == said[0]), "{sizes:?}, rank {victim}: {said:?}");
        }
    }
}

#[test]
fn a_run_away_leaves_its_checkpoint_whole_and_its_last_step_written_down() {
    let runs = Runs::new();
    let config = runs.config("away", "ranks=4 dp=2 pp=2 lr=1e30 clip=0 warmup=0 save-every=1 steps=50 dump=1-50");
    let ended: Vec<TrainError> = train(&config).into_iter().map(|end| end.expect_err("it runs away")).collect();
    let TrainError::NotFinite { step, .. } = ended[0] else { panic!("{}", ended[0]) };
    assert!(ended.iter().all(|error| error.to_string() == ended[0].to_string()), "{ended:?}");
    let checkpoint = Checkpoint::load(&runs.out("away")).expect("the checkpoint that was on its way");
    checkpoint.verify().expect("whole");
    assert_eq!(checkpoint.step, step - 1);
    let written = steps(&runs.out("away"));
    assert_eq!(written, (1..=step).collect::<Vec<_>>());
    let dump = Dump::open(&runs.out("away"), step).expect("the step that ended it");
    assert_eq!(dump.manifest.grad_norm, None, "no number");
}
