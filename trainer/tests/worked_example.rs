//! The worked two-layer example, exactly: X = 1, W1 = 2, ReLU, W2 = 3, Y = 10, loss (z - y)²/2, through the layers that
//! the models are made of.
#![forbid(unsafe_code)]

use warpweft_device::{Buffer, Device};
use warpweft_kernels::Write;
use warpweft_kernels::matmul::Activation;
use warpweft_trainer::memory::{Account, Allocator};
use warpweft_trainer::model::{Linear, Pass, Table};
use warpweft_trainer::parallel::gradients::Gradients;
use warpweft_trainer::parallel::mesh::Mesh;
use warpweft_trainer::parallel::plan::Plan;
use warpweft_trainer::parallel::weights::Weights;
use warpweft_trainer::parallel::zero::{Sharding, Zero};

#[test]
fn forward_and_backward_give_the_numbers_of_the_page() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::cpu_with_threads(1)?;
    let stream = device.stream();
    let mut table = Table::default();
    let first = Linear::whole(&mut table, "first", [1, 1]).with_activation(Activation::Relu);
    let second = Linear::whole(&mut table, "second", [1, 1]);
    let ids = ["first.weight", "second.weight"].map(|name| table.find(name).expect("a parameter of that name"));

    let account = Account::default();
    let mut allocator = Allocator { device: &device, account: &account };
    let mesh = Mesh::alone()?;
    let plan = Plan::derive(&table, &mesh, false, Zero::NONE)?;
    let sharding = Sharding::new(&table, &mesh, &plan, Zero::NONE)?;
    let mut weights = Weights::<f32>::zeros(&table, &sharding, &mut allocator)?;
    weights.view_mut(ids[0])?.fill(&stream, 2.0)?;
    weights.view_mut(ids[1])?.fill(&stream, 3.0)?;
    let mut gradients = Gradients::new(&table, &mesh, &plan, &sharding, &mut allocator)?;

    let x = device.upload(&[1.0f32])?;
    let [mut z1, mut a1, mut z2]: [Buffer<f32>; 3] = [device.zeros(1)?, device.zeros(1)?, device.zeros(1)?];
    let (plan, weights) = (&plan, &weights);
    let pass = Pass {
        stream: &stream,
        weights,
        mesh: &mesh,
        plan,
        batch: 1,
        tokens: 1,
        positions: None,
        documents: &[],
        skipped: 0,
        trace: None,
    };
    first.forward(&pass, x.as_view(), Some(z1.as_view_mut()), None, a1.as_view_mut())?;
    second.forward(&pass, a1.as_view(), None, None, z2.as_view_mut())?;
    let value = |buffer: &Buffer<f32>| Ok::<f32, warpweft_device::DeviceError>(buffer.as_view().host()?[0]);
    assert_eq!((value(&z1)?, value(&a1)?, value(&z2)?), (2.0, 2.0, 6.0));
    let error = value(&z2)? - 10.0;
    assert_eq!((error * error / 2.0, error), (8.0, -4.0));

    let delta2 = device.upload(&[error])?;
    let [mut da1, mut delta1, mut dx]: [Buffer<f32>; 3] = [device.zeros(1)?, device.zeros(1)?, device.zeros(1)?];
    gradients.begin_step(&stream, &vec![1; table.units().len()])?;
    second.backward_input(&pass, delta2.as_view(), Write::Set, da1.as_view_mut())?;
    second.backward_weight(&pass, a1.as_view(), delta2.as_view(), &mut gradients)?;
    first.backward_activation(&pass, z1.as_view(), da1.as_view(), delta1.as_view_mut())?;
    first.backward_input(&pass, delta1.as_view(), Write::Set, dx.as_view_mut())?;
    first.backward_weight(&pass, x.as_view(), delta1.as_view(), &mut gradients)?;
    gradients.finish()?;
    assert_eq!((value(&da1)?, value(&delta1)?, value(&dx)?), (-12.0, -12.0, -24.0));
    assert_eq!(gradients.summed_of(ids[1])?.host()?, [-8.0]);
    assert_eq!(gradients.summed_of(ids[0])?.host()?, [-12.0]);
    Ok(())
}
