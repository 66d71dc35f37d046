//! From bytes of a text to lines and columns.

use std::fmt;

/// The longest excerpt of a line that a position quotes: generated text has lines without end.
const EXCERPT: usize = 160;

/// Where the lines of a text begin.
#[derive(Clone, Debug)]
pub struct Lines {
    starts: Vec<u32>,
}

impl Lines {
    /// Finds the lines of `text`.
    pub fn new(text: &str) -> Lines {
        let ends = text.bytes().enumerate().filter(|&(_, byte)| byte == b'\n');
        Lines { starts: std::iter::once(0).chain(ends.map(|(at, _)| at as u32 + 1)).collect() }
    }

    /// The line, from 1, that byte `at` is in.
    pub fn line(&self, at: u32) -> u32 {
        self.starts.partition_point(|&start| start <= at) as u32
    }
}

/// A place in a text, with the line to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// From 1.
    pub line: u32,
    /// In characters, from 1; one past the last character is where the text or line ends too early.
    pub column: u32,
    /// The line as the text has it, or what is around the column of a very long one.
    pub excerpt: String,
    /// The column in the excerpt, from 1.
    pub caret: u32,
}

impl Position {
    /// The place of byte `at` of `text`.
    pub fn new(text: &str, at: u32) -> Position {
        let mut at = (at as usize).min(text.len());
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let start = text[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let line = text.as_bytes()[..start].iter().filter(|&&byte| byte == b'\n').count() as u32 + 1;
        let before = text[start..at].chars().count();
        let skipped = before.saturating_sub(EXCERPT / 2);
        let whole = text[start..].split('\n').next().unwrap_or_default();
        let excerpt = whole.chars().skip(skipped).take(EXCERPT);
        let excerpt = excerpt.map(|shown| if shown.is_control() { ' ' } else { shown }).collect();
        Position { line, column: before as u32 + 1, excerpt, caret: (before - skipped) as u32 + 1 }
    }
}

impl fmt::Display for Position {
    /// The line and a caret under the column.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.line.to_string();
        let (margin, caret) = (number.len(), self.caret as usize);
        write!(out, "{number} | {}\n{:margin$} | {:>caret$}", self.excerpt, "", "^")
    }
}
