//! The orders of computation, one file a family. Messages come later, by one rule for all.

mod base;
mod dualpipe;
mod fused;
mod interleaved;
mod search;
mod split;
mod vee;
mod weave;

use crate::{Costs, Kind, Name, Operation, Placement, ScheduleError, Shape};

/// One order of computations a rank.
pub(crate) type Orders = Vec<Vec<Operation>>;

/// The placement and the orders of a schedule, and what it is called.
pub(crate) fn make(
    name: Name,
    p: usize,
    m: usize,
    v: Option<usize>,
    costs: &Costs,
    memory: Option<usize>,
) -> Result<(Placement, Orders, String), ScheduleError> {
    let round = Placement::new(Shape::Round, p, 1);
    let one = |orders| chunks(name, v, 1, "one chunk").map(|()| (round, orders));
    let (placement, orders) = match name {
        Name::GPipe => one(fused::gpipe(p, m))?,
        Name::OneForwardOneBackward => one(fused::one_forward_one_backward(p, m))?,
        Name::ZbH1 => one(split::h1(p, m))?,
        Name::ZbH2 => one(split::h2(p, m))?,
        Name::Interleaved => {
            let v = v.unwrap_or(2);
            (Placement::new(Shape::Round, p, v), interleaved::order(p, m, v))
        }
        Name::DualPipe => {
            chunks(name, v, 1, "one stage of each of its two copies of the model")?;
            (Placement::new(Shape::Both, p, 2), dualpipe::order(p, m)?)
        }
        Name::ZbV => {
            chunks(name, v, 2, "two chunks")?;
            (Placement::new(Shape::Vee, p, 2), vee::order(p, m))
        }
        Name::Auto => return search::auto(p, m, v, costs, memory),
    };
    Ok((placement, orders, name.to_string()))
}

fn chunks(name: Name, v: Option<usize>, wanted: usize, what: &'static str) -> Result<(), ScheduleError> {
    let fix = "leave v out, or use interleaved";
    match v {
        Some(v) if v != wanted => Err(ScheduleError::Chunks { name, wanted: what, v, fix }),
        _ => Ok(()),
    }
}

/// An order as it grows.
#[derive(Default)]
struct Order(Vec<Operation>);

impl Order {
    fn push(&mut self, kind: Kind, chunk: usize, micro_batch: usize) {
        self.0.push(Operation::new(kind, chunk, micro_batch));
    }
}

/// What is left of the orders without the micro-batches from `m` on. What is left of an order that ends, ends: no operation waits
/// for one of another micro-batch but the one before it on its rank.
fn without_padding(mut orders: Orders, m: usize) -> Orders {
    for order in &mut orders {
        order.retain(|operation| operation.micro_batch < m);
    }
    orders
}
