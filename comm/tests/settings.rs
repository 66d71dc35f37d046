//! Names of algorithms and operations, and the environment variable that chooses an algorithm.
#![forbid(unsafe_code)]

use std::process::Command;

use warpweft_comm::{Algorithm, CommError, Communicator, Op, Options, bootstrap};

#[test]
fn names_come_back_and_unknown_ones_are_refused_with_the_known() {
    for algorithm in Algorithm::ALL {
        assert_eq!(algorithm.name().parse::<Algorithm>().ok(), Some(algorithm));
    }
    for op in Op::ALL {
        assert_eq!(op.name().parse::<Op>().ok(), Some(op));
    }
    let error = "tree".parse::<Algorithm>().expect_err("no such algorithm");
    assert_eq!(error.to_string(), "`tree` is no algorithm; use auto, ring, recursive-doubling or direct");
    assert!("mean".parse::<Op>().is_err());
}

/// What a rank makes of the environment that its process was started with: runs in a child, since the environment of this
/// process belongs to all its tests.
#[test]
fn in_a_child_the_environment_decides() {
    let Ok(expected) = std::env::var("EXPECTED_ALGORITHM") else { return };
    let bootstrap = bootstrap::threads(1).expect("a job").remove(0);
    let options = Options { algorithm: Algorithm::Direct, ..Options::default() };
    match Communicator::new(bootstrap, options) {
        Ok(comm) => assert_eq!(comm.algorithm().name(), expected),
        Err(CommError::Config { what, .. }) => assert_eq!(what, expected),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn the_environment_overrides_the_algorithm_and_an_unknown_one_is_an_error() {
    for (value, expected) in
        [(Some("ring"), "ring"), (None, "direct"), (Some("rings"), "WARPWEFT_ALGO: `rings` is no algorithm")]
    {
        let mut child = Command::new(std::env::current_exe().expect("this program"));
        child.args(["--exact", "in_a_child_the_environment_decides"]).env("EXPECTED_ALGORITHM", expected);
        child.env_remove("WARPWEFT_ALGO");
        if let Some(value) = value {
            child.env("WARPWEFT_ALGO", value);
        }
        let output = child.output().expect("the child runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "the child ran the test");
    }
}
