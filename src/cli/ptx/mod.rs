//! `warpweft ptx`: PTX on the software GPU. `check` compiles it, `run` runs kernels under checks, `profile` counts what they cost.

mod check;
mod flags;
mod job;
mod profile;
mod run;
mod scalar;
mod session;

use std::io::{self, Write};
use std::path::Path;

use clap::{ArgMatches, Args, Command};

use super::from;
use super::stop::Stop;
use warpweft::device::ptxvm::lower::CompileError;

/// The command.
pub(crate) fn command() -> Command {
    Command::new("ptx")
        .about("Checks PTX, and runs it on a GPU in software under sanitizers")
        .subcommand_required(true)
        .subcommand(check::Flags::augment_args(Command::new("check")))
        .subcommand(flags::Flags::augment_args(Command::new("run")))
        .subcommand(profile::Flags::augment_args(Command::new("profile")))
}

/// Does what was asked.
pub(crate) fn main(matches: &ArgMatches) -> Result<(), Stop> {
    match matches.subcommand() {
        Some(("check", matches)) => check::main(&from(matches)?),
        Some(("run", matches)) => run::main(&from(matches)?),
        Some(("profile", matches)) => profile::main(&from(matches)?),
        _ => Err(Stop::usage("ptx: which command is missing; `--help` lists them")),
    }
}

/// Says each problem of a module on standard error, as compilers do, and ends with status 2.
fn compile_failed(file: &Path, error: &CompileError) -> Stop {
    for problem in &error.problems {
        let _ =
            writeln!(io::stderr(), "{}:{}:{}: error: {}", file.display(), problem.line, problem.column, problem.what);
    }
    Stop::Reported(2)
}

/// One JSON object on standard output.
fn print_json(value: &serde_json::Value) -> Result<(), Stop> {
    Ok(writeln!(io::stdout(), "{value:#}")?)
}
