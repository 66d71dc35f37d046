//! From the syntax tree to what the executor runs: names resolved, types checked against the table, registers
//! numbered, labels turned into places.
//!
//! [`compile`] is the whole way from text. `module` holds the module's symbols, `body` walks one function,
//! `operands` and `build` lower one instruction (`moves`, `memory` and `calls` those with rules of their own),
//! `flow` and `registers` finish the function.

mod body;
mod build;
mod calls;
mod errors;
mod finish;
mod flow;
mod layout;
mod memory;
mod module;
mod moves;
mod names;
mod operands;
mod pool;
mod registers;
mod slots;
mod spelling;

use std::sync::Arc;

pub use errors::{CompileError, MOST_PROBLEMS, Problem, Wrong};

use crate::program::Program;
use crate::text;

/// How to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Registers that are never needed at once share a slot. Off, every register of the text keeps one of its own,
    /// which is slower and easier to watch.
    pub compact: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { compact: true }
    }
}

/// Parses, checks and lowers a module. Forms that do not run on this device compile too; they are listed in
/// [`crate::program::Function::refused`].
pub fn compile(text: &str) -> Result<Arc<Program>, CompileError> {
    compile_with(text, Options::default())
}

/// [`compile`] with choices.
pub fn compile_with(text: &str, options: Options) -> Result<Arc<Program>, CompileError> {
    let tree = text::parse(text).map_err(|error| {
        let (line, column) = (error.position.line, error.position.column);
        CompileError { problems: vec![Problem { line, column, what: Wrong::Syntax(error.kind) }] }
    })?;
    let mut errors = errors::Errors::new(text);
    let first = spelling::first_version(tree.target);
    if tree.version < first {
        let what = format!(".target {}", tree.target);
        errors.push(0, Wrong::NeedsVersion { what, needed: first, has: tree.version });
    }
    if tree.address_bits != 64 {
        errors.push(0, Wrong::Unsupported("this target has addresses of 64 bits: `.address_size 64`"));
    }
    let module = module::Module::new(&tree, &mut errors);
    let mut spellings = spelling::Spellings::new(tree.version, tree.target);
    let mut functions = Vec::new();
    for function in &tree.functions {
        if let Some(statements) = &function.body {
            let index = functions.len() as u32;
            let mut body = body::Body::new(&module, function, index, &mut errors, &mut spellings);
            body.run(statements);
            functions.push(body.finish(options.compact));
        }
    }
    errors.finish()?;
    Ok(Arc::new(Program {
        version: tree.version,
        target: tree.target,
        functions,
        variables: module.variables,
        externs: module.externs,
        files: tree.files.clone(),
        text: text.into(),
    }))
}
