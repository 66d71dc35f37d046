//! `warpweft kernels`: what kernels there are, whether they are right on a device, what they move, and how fast.

mod case;
mod cases;
mod check;
mod count;
mod list;
mod peer;
mod perf;

use clap::{ArgMatches, Args, Command};

use super::from;
use super::stop::Stop;
use warpweft::device::Device;
use warpweft::kernels::KernelError;

/// The command.
pub(crate) fn command() -> Command {
    Command::new("kernels")
        .about("Lists the kernels, checks them on a device against the CPU, counts what they move, measures them")
        .subcommand_required(true)
        .subcommand(list::Flags::augment_args(Command::new("list")))
        .subcommand(check::Flags::augment_args(Command::new("check")))
        .subcommand(count::Flags::augment_args(Command::new("count")))
        .subcommand(perf::Flags::augment_args(Command::new("perf")))
}

/// Does what was asked.
pub(crate) fn main(matches: &ArgMatches) -> Result<(), Stop> {
    match matches.subcommand() {
        Some(("list", matches)) => list::main(&from(matches)?),
        Some(("check", matches)) => check::main(&from(matches)?),
        Some(("count", matches)) => count::main(&from(matches)?),
        Some(("perf", matches)) => perf::main(&from(matches)?),
        _ => Err(Stop::usage("kernels: which command is missing; `--help` lists them")),
    }
}

/// The device of a name, and what it calls itself.
fn open(name: &str) -> Result<(Device, String), Stop> {
    let device = Device::open(name).map_err(|error| Stop::usage(error.to_string()))?;
    let card = device.properties().map_or_else(|_| device.to_string(), |properties| properties.card.clone());
    Ok((device, card))
}

/// There is no case of an op.
fn no_op(op: Option<&str>) -> Stop {
    Stop::usage(format!("there is no op `{}`; `warpweft kernels list` has them", op.unwrap_or("")))
}

/// An error of an op on a device.
fn failed(case: &case::Case, error: &KernelError) -> Stop {
    Stop::failed(format!("{case}: {error}"))
}
