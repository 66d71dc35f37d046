//! One `mma` on registers in each model. `cargo bench -p warpweft-benches --bench tensor`
#![forbid(unsafe_code)]

use criterion::{Criterion, criterion_group, criterion_main};
use warpweft_ptxvm::numerics::{Settings, TensorModel};
use warpweft_ptxvm::registers::{Base, Counts, Operands, Registers};
use warpweft_ptxvm::table::{Build, TABLE};

fn shapes(criterion: &mut Criterion) {
    for spelling in [
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
    ] {
        let words: Vec<&str> = spelling.split('.').collect();
        let (form, mods) = TABLE.find(words[0], &words[1..]).expect("the table has this shape");
        let Build::Collective(choose) = form.build else { unreachable!("mma is a collective") };
        let run = choose(&mods);
        let mut registers = Registers::default();
        registers.enter(Base::default(), Counts { narrow: 16, wide: 0, predicates: 0 });
        for slot in 4..14 {
            for lane in 0..32 {
                // Ordinary numbers about 1 in every format: 0x3f8f and its like.
                registers.narrow_mut(slot)[lane] = 0x3f80_3f80 + (u32::from(slot) * 37 + lane as u32 * 11) % 0x70;
            }
        }
        let operands = Operands(std::array::from_fn(|at| at as u16));
        for model in [TensorModel::ExactSm80, TensorModel::ExactSm90, TensorModel::Native] {
            let settings = Settings { tensor: model, ..Settings::default() };
            criterion.bench_function(&format!("{} {model:?}", &spelling[17..]), |bencher| {
                bencher.iter(|| run(&mut registers, &operands, u32::MAX, &settings));
            });
        }
    }
}

criterion_group!(benches, shapes);
criterion_main!(benches);
