//! The `warpweft` command: its arguments, and what each of its commands does.

mod diff;
mod kernels;
mod perf;
mod ptx;
mod ranks;
mod schedule;
mod stop;
mod train;
mod usage;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, FromArgMatches};

use self::perf::{Kind, Settings};
use self::stop::Stop;

/// Version, revision and CUDA toolkit of this build.
const VERSION: &str =
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("WARPWEFT_REVISION"), "; ", env!("WARPWEFT_CUDA"), " at build time)");

/// Runs the command of this process.
pub(crate) fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => stop.report(),
    }
}

fn run(arguments: &[OsString]) -> Result<(), Stop> {
    if let Some(kind) = called_as(arguments) {
        let command = Settings::augment_args(clap::Command::new(kind.program()).version(VERSION));
        let Some(matches) = parse(command, arguments)? else { return Ok(()) };
        return perf::main(kind, &from::<Settings>(&matches)?);
    }
    let Some(matches) = parse(command(), arguments)? else { return Ok(()) };
    match matches.subcommand() {
        Some(("train", matches)) => train::main(matches),
        Some(("ptx", matches)) => ptx::main(matches),
        Some(("diff", matches)) => diff::main(&from(matches)?),
        Some(("kernels", matches)) => kernels::main(matches),
        Some(("schedule", matches)) => schedule::main(&from(matches)?),
        Some(("perf", matches)) => match matches.subcommand() {
            Some(("train", matches)) => perf::train::main(&from(matches)?),
            Some((name, matches)) => {
                let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
                let kind = kind.ok_or_else(|| Stop::usage(format!("there is no measurement `{name}`")))?;
                perf::main(kind, &from::<Settings>(matches)?)
            }
            None => Err(Stop::usage("perf: which collective is missing; `--help` lists them")),
        },
        _ => Err(Stop::usage("which command is missing; `--help` lists them")),
    }
}

fn command() -> clap::Command {
    let about = "Computation, communication and memory for training large models";
    let perf = clap::Command::new("perf")
        .about("Measures a collective, with the flags and columns of nccl-tests, or training steps")
        .subcommand_required(true)
        .subcommands(Kind::ALL.into_iter().map(|kind| Settings::augment_args(clap::Command::new(kind.name()))))
        .subcommand(perf::train::Settings::augment_args(clap::Command::new("train")));
    clap::Command::new("warpweft")
        .about(about)
        .version(VERSION)
        .subcommand_required(true)
        .subcommand(train::command())
        .subcommand(perf)
        .subcommand(kernels::command())
        .subcommand(ptx::command())
        .subcommand(diff::Flags::augment_args(clap::Command::new("diff")))
        .subcommand(schedule::Flags::augment_args(clap::Command::new("schedule")))
}

/// The collective in whose name this program was started: a link `all_reduce_perf` to it is that program.
fn called_as(arguments: &[OsString]) -> Option<Kind> {
    let name = Path::new(arguments.first()?).file_stem()?;
    Kind::ALL.into_iter().find(|kind| name == kind.program())
}

fn from<T: FromArgMatches>(matches: &clap::ArgMatches) -> Result<T, Stop> {
    T::from_arg_matches(matches).map_err(|error| Stop::usage(usage::sentence(&error)))
}

/// The matches, or nothing where help or version was all that was asked for.
fn parse(command: clap::Command, arguments: &[OsString]) -> Result<Option<clap::ArgMatches>, Stop> {
    use clap::error::ErrorKind::{DisplayHelp, DisplayVersion};
    match command.try_get_matches_from(arguments) {
        Ok(matches) => Ok(Some(matches)),
        Err(error) if matches!(error.kind(), DisplayHelp | DisplayVersion) => {
            // Somebody who closed the terminal has read enough.
            let _ = write!(io::stdout(), "{error}");
            Ok(None)
        }
        Err(error) => Err(Stop::usage(usage::sentence(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn clap_finds_no_fault_with_the_command() {
        command().debug_assert();
    }

    #[test]
    fn a_link_named_after_a_program_of_nccl_tests_is_that_program() {
        assert_eq!(called_as(&words("/usr/bin/all_reduce_perf -b 8")), Some(Kind::AllReduce));
        assert_eq!(called_as(&words("sendrecv_perf")), Some(Kind::SendRecv));
        assert_eq!(called_as(&words("target/release/warpweft perf")), None);
    }

    #[test]
    fn wrong_command_lines_are_one_sentence_with_the_nearest_known_word() {
        for (line, wanted) in [
            ("warpweft tarin", "there is no command `tarin`; did you mean `train`?"),
            ("warpweft train --chanels 64", "there is no flag or argument `--chanels`; did you mean `--channels`?"),
            (
                "warpweft perf all_reduce --minbyte 8",
                "there is no flag or argument `--minbyte`; did you mean `--minbytes`?",
            ),
            ("warpweft perf all_reduse", "there is no command `all_reduse`; did you mean `all_reduce`?"),
            ("warpweft perf all_reduce -b 8T", "`8T` is no size"),
            ("warpweft perf all_reduce -o mean", "use sum, prod, max, min, avg or all"),
            ("warpweft perf all_reduce -d float8", "bfloat16"),
            ("warpweft perf all_reduce --transport nccl", "use auto, thread, shm, tcp"),
            ("warpweft perf all_reduce -n 0", "0 is not in 1.."),
            ("warpweft perf all_reduce --ranks", "--ranks"),
            ("warpweft", "`--help`"),
            ("warpweft perf", "`--help`"),
        ] {
            let stop = run(&words(line)).expect_err(line);
            let Stop::Usage(sentence) = &stop else { panic!("{line}: {stop:?}") };
            assert!(sentence.contains(wanted), "{line}: {sentence}");
            assert_eq!(sentence.lines().count(), 1, "{line}: {sentence}");
            assert_eq!(stop.status(), 2);
        }
    }
}
