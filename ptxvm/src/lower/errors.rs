//! What is wrong with a module, and where.

use std::fmt;

use crate::types::{Target, Type, Version};

/// Why a module does not compile: the first findings, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileError {
    /// At least one, at most [`MOST_PROBLEMS`].
    pub problems: Vec<Problem>,
}

/// So many problems are collected; the rest would mostly follow from them.
pub const MOST_PROBLEMS: usize = 20;

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line in the text, from 1.
    pub line: u32,
    /// Column, from 1, in bytes.
    pub column: u32,
    /// What.
    pub what: Wrong,
}

impl CompileError {
    /// The first finding.
    pub fn first(&self) -> &Problem {
        &self.problems[0]
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "line {}, column {}: {}", self.line, self.column, self.what)
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.problems.iter().enumerate() {
            write!(out, "{}{problem}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for CompileError {}

/// The kinds of findings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum Wrong {
    #[error("{0}")]
    Syntax(crate::text::SyntaxErrorKind),
    #[error("no instruction is named `{name}`{}", hint(.nearest))]
    UnknownInstruction { name: String, nearest: Option<String> },
    #[error("`{spelling}` is no form of `{name}`{}", hint(.nearest))]
    UnknownForm { spelling: String, name: String, nearest: Option<String> },
    #[error("`{what}` needs .target {needed} or higher; the module says {has}")]
    NeedsTarget { what: String, needed: Target, has: Target },
    #[error("`{what}` needs .version {needed} or later; the module says {has}")]
    NeedsVersion { what: String, needed: Version, has: Version },
    #[error("`{0}` is not declared here")]
    UnknownName(String),
    #[error("`{0}` is declared twice")]
    Duplicate(String),
    #[error("`{spelling}` takes {expected} operands; {found} are given")]
    OperandCount { spelling: String, expected: String, found: usize },
    #[error("`{name}` is a {found} register; operand {operand} of `{spelling}` is {expected}")]
    TypeMismatch { name: String, found: Type, operand: String, spelling: String, expected: Type },
    #[error("operand {operand} of `{spelling}` cannot be {found}: it must be {expected}")]
    WrongOperand { operand: String, spelling: String, found: &'static str, expected: &'static str },
    #[error("operand {operand} of `{spelling}` needs {expected} elements; {found} are given")]
    VectorLength { operand: String, spelling: String, expected: usize, found: usize },
    #[error("the constant {value} does not fit operand {operand} of `{spelling}`, which is {expected}")]
    ConstantType { value: String, operand: String, spelling: String, expected: Type },
    #[error("`{name}` lies in the {found} space; `{spelling}` accesses the {expected} space")]
    WrongSpace { name: String, found: &'static str, spelling: String, expected: &'static str },
    #[error("`{name}` is a {found} register; an address here needs {expected} bits")]
    AddressWidth { name: String, found: Type, expected: &'static str },
    #[error("`{name}` cannot be {used}: it is {is}")]
    WrongKind { name: String, is: &'static str, used: &'static str },
    #[error("`{callee}` takes {expected} arguments; {found} are given")]
    ArgumentCount { callee: String, expected: usize, found: usize },
    #[error("argument {argument} of `{callee}` has {found} bytes; its parameter has {expected}")]
    ArgumentSize { callee: String, argument: String, expected: u32, found: u32 },
    #[error("`{callee}` returns {expected} values; {found} are taken")]
    ResultCount { callee: String, expected: usize, found: usize },
    #[error("`{0}` is declared without a body or `.extern`, and never defined")]
    Undefined(String),
    #[error("{what} is {value}, more than the {most} that a kernel can have")]
    TooMuch { what: &'static str, value: u64, most: u64 },
    #[error("an alignment of {0} is no power of two")]
    Alignment(u32),
    #[error("the initialiser of `{name}` has {found} elements; the variable has {room}")]
    TooManyInitializers { name: String, found: usize, room: u64 },
    #[error("`{name}` cannot be initialised by {found}")]
    Initializer { name: String, found: &'static str },
    #[error("`.{first}` and `.{second}` do not go together in `{spelling}`")]
    Conflict { first: String, second: String, spelling: String },
    #[error("`{spelling}` needs {missing}")]
    Missing { spelling: String, missing: &'static str },
    #[error("{0}")]
    Unsupported(&'static str),
    #[error("`{0}`, which lowering inserts here, is missing from the table")]
    Inserted(&'static str),
}

fn hint(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|text| format!("; the nearest is `{text}`")).unwrap_or_default()
}

/// Collects findings with their places.
pub(super) struct Errors<'t> {
    text: &'t str,
    starts: Vec<u32>,
    problems: Vec<Problem>,
}

impl<'t> Errors<'t> {
    pub(super) fn new(text: &'t str) -> Errors<'t> {
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at as u32 + 1);
        Errors { text, starts: std::iter::once(0).chain(breaks).collect(), problems: Vec::new() }
    }

    /// The text.
    pub(super) fn text(&self) -> &'t str {
        self.text
    }

    /// The line of a byte, from 1.
    pub(super) fn line(&self, at: u32) -> u32 {
        self.starts.partition_point(|start| *start <= at) as u32
    }

    /// Notes a finding at a byte of the text.
    pub(super) fn push(&mut self, at: u32, what: Wrong) {
        if self.problems.len() < MOST_PROBLEMS {
            let line = self.line(at);
            let column = at - self.starts[line as usize - 1] + 1;
            self.problems.push(Problem { line, column, what });
        }
    }

    /// Whether no more are wanted.
    pub(super) fn full(&self) -> bool {
        self.problems.len() >= MOST_PROBLEMS
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.problems.len()
    }

    /// Whether there are any.
    pub(super) fn any(&self) -> bool {
        !self.problems.is_empty()
    }

    /// The findings, where there are any.
    pub(super) fn finish(mut self) -> Result<(), CompileError> {
        if self.problems.is_empty() {
            return Ok(());
        }
        self.problems.sort_by_key(|problem| (problem.line, problem.column));
        Err(CompileError { problems: self.problems })
    }
}
