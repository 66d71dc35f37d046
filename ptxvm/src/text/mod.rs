//! PTX text: lexer, parser, syntax tree, and errors with line and column.
//!
//! [`parse`] takes any text and gives a tree or a [`SyntaxError`]; it never panics, its stack is bounded
//! ([`MAX_DEPTH`]), and its time grows with the text's length only. It knows the grammar, no instruction and no type rule: those are
//! the table's and the lowering's.

mod error;
mod lexer;
mod lines;
mod parser;
pub mod tree;

pub use error::{SyntaxError, SyntaxErrorKind};
pub use lines::{Lines, Position};
pub use parser::{MAX_BYTES, MAX_DEPTH, MAX_PADDING, parse};
