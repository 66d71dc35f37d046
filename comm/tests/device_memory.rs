//! Collectives and messages over memory that the host cannot address: the same elements as over host memory.
#![forbid(unsafe_code)]

mod common;

use common::{options, ranks};
use warpweft_comm::transport::TransportKind;
use warpweft_comm::{Algorithm, Communicator, Op};
use warpweft_device::{Buffer, Device};

const WORLD: usize = 3;

/// Runs `work` on every rank with a software device of its own, and with the CPU; the elements it gives must be the same.
fn same_on_devices(work: impl Fn(&Communicator, &Device) -> Vec<Buffer<f32>> + Send + Sync + 'static) {
    ranks(WORLD, options(TransportKind::Thread, Algorithm::Auto), move |comm| {
        let on = |device: Device| -> Vec<Vec<f32>> {
            let stream = device.stream();
            work(&comm, &device).iter().map(|buffer| buffer.download(&stream).unwrap()).collect()
        };
        let expected = on(Device::cpu_with_threads(1).unwrap());
        assert!(expected.iter().any(|values| values.iter().any(|value| *value != 0.0)));
        assert_eq!(on(Device::open("software").unwrap()), expected);
    });
}

fn data(comm: &Communicator, device: &Device, count: usize) -> Buffer<f32> {
    device.upload(&(0..count).map(|index| (comm.rank() * 7 + index % 5) as f32).collect::<Vec<_>>()).unwrap()
}

#[test]
fn collectives() {
    same_on_devices(|comm, device| {
        let mut all = data(comm, device, 100);
        comm.all_reduce(&mut all, Op::Sum).unwrap();
        let (mut part, mut whole) = (device.zeros(4).unwrap(), device.zeros(12).unwrap());
        comm.reduce_scatter(&data(comm, device, 12), &mut part, Op::Max).unwrap();
        comm.all_gather(&part, &mut whole).unwrap();
        let (mut told, mut exchanged) = (data(comm, device, 9), device.zeros(6).unwrap());
        // A part of a buffer; the rest stays as it is.
        comm.broadcast(told.view_mut(2..5).unwrap(), 2).unwrap();
        comm.all_to_all(&data(comm, device, 6), &mut exchanged).unwrap();
        vec![all, part, whole, told, exchanged]
    });
}

#[test]
fn messages() {
    same_on_devices(|comm, device| {
        let (next, last) = ((comm.rank() + 1) % WORLD, (comm.rank() + WORLD - 1) % WORLD);
        let mut got = device.zeros(50).unwrap();
        comm.sendrecv(&data(comm, device, 50), next, &mut got, last).unwrap();
        let mut own = device.zeros(3).unwrap();
        let mine = data(comm, device, 3);
        comm.group(|group| {
            group.send(&mine, comm.rank()).recv(&mut own, comm.rank());
        })
        .unwrap();
        vec![got, own]
    });
}

#[test]
fn operations_under_way() {
    same_on_devices(|comm, device| {
        let pending = comm.start_all_reduce(data(comm, device, 64), Op::Sum);
        let (next, last) = ((comm.rank() + 1) % WORLD, (comm.rank() + WORLD - 1) % WORLD);
        let ring = comm.start_sendrecv(data(comm, device, 8), next, device.zeros::<f32>(8).unwrap(), last);
        let mut scoped = data(comm, device, 10);
        let all = pending.wait().unwrap().buffer;
        let (_, got) = ring.wait().unwrap().buffer;
        comm.scope(|scope| {
            scope.all_reduce(&mut scoped, Op::Min);
        })
        .unwrap();
        vec![all, got, scoped]
    });
}
