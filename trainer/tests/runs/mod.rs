//! Whole runs of a small model from settings, as ranks that are threads.
#![allow(dead_code)] // each test file uses some of it

use std::path::PathBuf;

use warpweft_trainer::config::{Config, Inputs};
use warpweft_trainer::report::Progress;
use warpweft_trainer::{Outcome, TrainError, run};

use crate::common::ranks;

const SMALL: &str = "layers=2 channels=16 heads=4 context=17 batch=5 steps=4 warmup=2 eval-every=0 save-every=2 sample=0 \
                     threads=1 micro-batch=2";

/// Runs in a folder that goes with them.
pub(crate) struct Runs(tempfile::TempDir);

impl Runs {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    /// The folder of a run.
    pub(crate) fn out(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A small model by settings such as `tp=2 dump=1-4`.
    pub(crate) fn config(&self, name: &str, settings: &str) -> Config {
        let named = |flag: &str| settings.split_whitespace().any(|setting| pair(setting).0 == flag);
        let small = SMALL.split_whitespace().map(pair).filter(|(flag, _)| !named("resume") && !named(flag));
        let out = ("out".to_owned(), self.out(name).to_str().expect("a path of text").to_owned());
        let flags: Vec<_> = small.chain(settings.split_whitespace().map(pair)).chain([out]).collect();
        Config::resolve(&Inputs { flags: &flags, ..Inputs::default() }).expect("a configuration that fits")
    }

    /// Trains it; gives its folder.
    pub(crate) fn train(&self, name: &str, settings: &str) -> PathBuf {
        for outcome in train(&self.config(name, settings)) {
            outcome.expect("a run");
        }
        self.out(name)
    }
}

fn pair(setting: &str) -> (String, String) {
    let (name, value) = setting.split_once('=').expect("name=value");
    (name.to_owned(), value.to_owned())
}

/// What each rank of a run comes to.
pub(crate) fn train(config: &Config) -> Vec<Result<Outcome, TrainError>> {
    ranks(config.ranks, |communicator| run(config, communicator, config.ranks, Progress::silent()))
}
