//! `warpweft train`: the flags are the trainer's own table of settings.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};
use warpweft::comm::bootstrap;
use warpweft::trainer::TrainError;
use warpweft::trainer::config::{self, Config, FLAGS, Flag, Inputs, Launched};
use warpweft::trainer::forecast::Forecast;
use warpweft::trainer::report::Progress;

use super::ranks::{self, Job, Launch};
use super::stop::Stop;

/// The command with a flag for each setting.
pub(crate) fn command() -> Command {
    let config = Arg::new("config").value_name("CONFIG.toml").value_parser(clap::value_parser!(PathBuf));
    let config = config.help("File of settings, the same names as the flags; flags override it");
    Command::new("train")
        .about("Trains a GPT on text over local ranks, or as one rank of a job that torchrun, mpirun or srun started")
        .arg(config)
        .arg(Arg::new("json").long("json").action(ArgAction::SetTrue).help("With --dry-run: print one JSON object"))
        .args(FLAGS.iter().map(argument))
}

fn argument(flag: &'static Flag) -> Arg {
    let mut help = flag.help.to_owned();
    if !flag.choices.is_empty() && !flag.is_switch() {
        help += &format!(": {}", flag.choices.join(", "));
    }
    if !flag.default.is_empty() {
        help += &format!(" [default: {}]", flag.default);
    }
    let argument =
        Arg::new(flag.name).long(flag.name).help(help).action(ArgAction::Append).allow_negative_numbers(true);
    let argument = match flag.alias {
        Some(alias) => argument.visible_alias(alias),
        None => argument,
    };
    match flag.value_name {
        Some(value) => argument.value_name(value),
        None => argument.num_args(0..=1).require_equals(true).default_missing_value("true"),
    }
}

/// What was given on the command line, in the order of the table.
fn given(matches: &ArgMatches) -> Vec<(String, String)> {
    let values = FLAGS.iter().flat_map(|flag| {
        let values = matches.get_many::<String>(flag.name).into_iter().flatten();
        values.map(|value| (flag.name.to_owned(), value.clone()))
    });
    values.collect()
}

/// Trains.
pub(crate) fn main(matches: &ArgMatches) -> Result<(), Stop> {
    let (flags, json) = (given(matches), matches.get_flag("json"));
    let file = matches.get_one::<PathBuf>("config");
    let job_around = bootstrap::launched()?;
    let launched = job_around.map(|job| Launched { variable: job.variable.to_owned(), world: job.world });
    let inputs = Inputs { file: file.map(PathBuf::as_path), flags: &flags, launched };
    let config = Config::resolve(&inputs).map_err(TrainError::from)?;
    if config.dry_run {
        let forecast = Forecast::of(&config)?;
        let said = if json { forecast.json().to_string() } else { forecast.text() };
        return Ok(writeln!(io::stdout(), "{said}")?);
    }
    if json {
        return Err(Stop::usage(
            "--json is for --dry-run: a run writes log.jsonl and report.json into its folder (--out)",
        ));
    }
    job(&config).run(|bootstrap| {
        let communicator = ranks::connect(bootstrap, config.transport)?;
        let (progress, world) = (progress(communicator.rank()), communicator.world());
        // Ranks that share this machine's cores; where nobody says, all of them do.
        let here = job_around.and_then(|job| job.local_world).map_or(world, |ranks| ranks.clamp(1, world));
        warpweft::trainer::run(&config, communicator, here, progress)?;
        Ok(())
    })
}

/// A bar where there is a terminal; else lines on standard output, so that standard error holds errors only.
fn progress(rank: usize) -> Progress {
    match rank {
        0 if io::stderr().is_terminal() => Progress::stderr(),
        0 => Progress::lines(io::stdout()),
        _ => Progress::silent(),
    }
}

fn job(config: &Config) -> Job {
    let launch = match config.launch {
        config::Launch::Processes => Launch::Processes,
        config::Launch::Threads => Launch::Threads,
    };
    let asked = config.origin("launch") != config::Origin::Default;
    Job {
        ranks: Some(config.ranks),
        usual_ranks: config.ranks,
        transport: config.transport,
        launch: asked.then_some(launch),
        timeout: config.timeout,
    }
}

impl From<TrainError> for Stop {
    fn from(error: TrainError) -> Self {
        match error {
            TrainError::Comm(error) => error.into(),
            error if error.exit_status() == 2 => Stop::usage(error.to_string()),
            error => Stop::failed(error.to_string()),
        }
    }
}
