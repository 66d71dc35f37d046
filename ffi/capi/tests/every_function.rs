//! Every function of the headers, read from them, with one argument after the other made wrong: null, off its alignment, on top
//! of another array, of a type that is none, of a size that memory does not have. Each is an error that names the argument;
//! where the header lets null stand for something, the call works.
//!
//! The calls are a C program that is written here. An argument gets its value by its name and type; a new function whose
//! arguments have names of their own needs values in [`value`].
#![forbid(unsafe_code)]

mod building;
mod every;

use std::process::Command;

use building::{Linked, code, compile, output_of, run};
use every::program;

/// The program, compiled and run on a device.
fn passes(device: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (source, executable) = (folder.path().join("every.c"), folder.path().join("every"));
    std::fs::write(&source, program(&[code("warpweft.h"), code("warpweft_kernels.h") + &code("warpweft_moe.h")]))
        .expect("it can be written");
    run(&mut compile(source.to_str().expect("a plain path"), &executable, Linked::Shared));
    let said = output_of(Command::new(&executable).arg(device));
    let calls: usize = said.split_whitespace().next().and_then(|count| count.parse().ok()).expect("a number first");
    assert!(said.ends_with("calls, as they should be") && calls > 700, "{device}: {said}");
}

#[test]
fn wrong_arguments_are_named_on_the_cpu() {
    passes("cpu:1");
}

#[test]
fn wrong_arguments_are_named_on_a_device() {
    passes("software?check=all");
}
