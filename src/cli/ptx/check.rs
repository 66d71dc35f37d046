//! `ptx check`: does a file parse and type, and what in it does not run.

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::json;
use warpweft::device::ptxvm::lower;
use warpweft::device::ptxvm::program::Program;

use super::{compile_failed, print_json};
use crate::cli::stop::Stop;

/// Compiles a PTX file. Status 0: it parses and types, with a note for each form that does not run. 2: it does not.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Flags {
    /// The PTX.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Writes one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// A form that does not run: line, instruction, reason, the function it is in.
struct Note<'a> {
    line: u32,
    instruction: &'a str,
    reason: &'a str,
    function: &'a str,
}

fn notes(program: &Program) -> Vec<Note<'_>> {
    let refusals = program.functions.iter().flat_map(|function| {
        function.refused.iter().map(|refusal| Note {
            line: refusal.line,
            instruction: &refusal.instruction,
            reason: &refusal.reason,
            function: &function.name,
        })
    });
    let mut notes: Vec<Note<'_>> = refusals.collect();
    notes.sort_by_key(|note| note.line);
    notes.dedup_by_key(|note| (note.line, note.instruction));
    notes
}

pub(super) fn main(flags: &Flags) -> Result<(), Stop> {
    let shown = flags.file.display();
    let text =
        std::fs::read_to_string(&flags.file).map_err(|error| Stop::usage(format!("cannot read {shown}: {error}")))?;
    let program = match lower::compile(&text) {
        Ok(program) => program,
        Err(error) => {
            if flags.json {
                let problems = error.problems.iter();
                let problems = problems.map(|problem| json!({"line": problem.line, "column": problem.column, "message": problem.what.to_string()}));
                print_json(&json!({"status": 2, "errors": problems.collect::<Vec<_>>()}))?;
            }
            return Err(compile_failed(&flags.file, &error));
        }
    };
    let notes = notes(&program);
    let kernels: Vec<&str> =
        program.functions.iter().filter(|function| function.entry).map(|function| function.name.as_str()).collect();
    if flags.json {
        let notes = notes.iter().map(|note| {
            json!({"line": note.line, "instruction": note.instruction, "reason": note.reason, "function": note.function})
        });
        let (version, target) = (program.version.to_string(), program.target.to_string());
        let notes = notes.collect::<Vec<_>>();
        return print_json(
            &json!({"status": 0, "version": version, "target": target, "kernels": kernels, "notes": notes}),
        );
    }
    let mut out = io::stdout().lock();
    for note in &notes {
        let Note { line, instruction, reason, function } = note;
        writeln!(out, "{shown}:{line}: note: `{instruction}` in `{function}` does not run here: {reason}")?;
    }
    let named = if kernels.is_empty() { "no kernel".to_owned() } else { kernels.join(", ") };
    writeln!(out, "{shown}: .version {}, .target {}: {named}", program.version, program.target)?;
    Ok(())
}
