//! PTX text: lexer, parser, syntax tree, and errors with line and column.

pub mod tree;
