//! What is wrong with a text, and where.

use thiserror::Error;

use super::lines::Position;

/// A text that is no PTX.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {}, column {}: {kind}\n{position}", position.line, position.column)]
pub struct SyntaxError {
    /// What is wrong.
    pub kind: SyntaxErrorKind,
    /// Where.
    pub position: Position,
}

/// What can be wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum SyntaxErrorKind {
    #[error("expected {expected}, found {found}")]
    Unexpected { expected: &'static str, found: String },
    #[error("the character {0:?} has no place here: PTX is ASCII text")]
    Character(char),
    #[error("a comment begins here and does not end: `*/` is missing")]
    UnterminatedComment,
    #[error("a string begins here and does not end on its line: `\"` is missing")]
    UnterminatedString,
    #[error("the number `{0}` is malformed")]
    Number(String),
    #[error("the integer `{0}` does not fit in {1} bits")]
    IntegerTooLarge(String, u32),
    #[error("the text is longer than {limit} bytes")]
    TextTooLong { limit: usize },
    #[error("braces, brackets or operators are nested deeper than {limit}")]
    TooDeep { limit: u32 },
    #[error("a constant is divided by zero")]
    DivisionByZero,
    #[error("`{operator}` takes integers, not floating-point numbers")]
    NotAnInteger { operator: &'static str },
    #[error("a hexadecimal single (`0f...`) stands alone: it takes no part in constant expressions")]
    SingleInExpression,
    #[error("the text must begin with `.version MAJOR.MINOR` and `.target sm_NN`")]
    Header,
    #[error("the target `{0}` is not known: `sm_80`, `sm_90a`...")]
    Target(String),
    #[error("`{0}` is no type")]
    Type(String),
    #[error("the directive `{0}` has no place here")]
    Directive(String),
    #[error("{0} bytes is no alignment: it must be a power of two")]
    Alignment(u64),
    #[error("the initialiser has more elements than the array: `{name}` takes {most} here")]
    TooManyElements { name: String, most: u64 },
    #[error("the initialiser of `{name}` does not follow its shape: {expected}")]
    InitializerShape { name: String, expected: &'static str },
    #[error("the initialiser of `{name}` leaves more than {limit} zeros between its rows")]
    TooMuchPadding { name: String, limit: u64 },
}

/// The error as the parser carries it: a pointer wide, so that the good way stays cheap.
#[derive(Debug)]
pub(super) struct Problem(Box<(SyntaxErrorKind, u32)>);

impl Problem {
    pub(super) fn new(kind: SyntaxErrorKind, at: u32) -> Problem {
        Problem(Box::new((kind, at)))
    }

    /// With the place that it has in `text`.
    pub(super) fn located(self, text: &str) -> SyntaxError {
        let (kind, at) = *self.0;
        SyntaxError { kind, position: Position::new(text, at) }
    }
}
