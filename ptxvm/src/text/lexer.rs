//! Bytes to tokens.

use super::error::{Problem, SyntaxErrorKind};
use super::tree::Span;

/// What a token is; its text is its span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The end of the text.
    End,
    /// `add`, `%r1`, `$L__BB0_1`, `_`.
    Name,
    /// `.s32`, `.L2::128B`: with its dot.
    Dotted,
    /// `42`, `0x2AU`, `0b101`, `017`.
    Integer,
    /// `1.5e3`, `.5`, `8.0`.
    Decimal,
    /// `0f3F800000`.
    Single,
    /// `0d3FF0000000000000`.
    Double,
    /// `"..."`, quotes included.
    Text,
    /// One character of punctuation.
    Mark(u8),
    /// `<<`, `>>`, `<=`, `>=`, `==`, `!=`, `&&`, `||`: its two characters.
    Marks(u8, u8),
}

/// A token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) span: Span,
}

/// Reads tokens on demand. A copy is a place to come back to.
#[derive(Clone, Copy)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

/// Whether a byte continues a name.
const FOLLOWS: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'_' || byte as u8 == b'$';
        byte += 1;
    }
    table
};

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Lexer<'a> {
        Lexer { text, at: 0 }
    }

    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn problem<T>(&self, kind: SyntaxErrorKind, at: usize) -> Result<T, Problem> {
        Err(Problem::new(kind, at as u32))
    }

    /// The next token.
    pub(super) fn next(&mut self) -> Result<Token, Problem> {
        self.skip_blank()?;
        let start = self.at;
        let kind = match self.byte(0) {
            _ if start >= self.text.len() => Kind::End,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => self.name(),
            b'$' | b'%' if FOLLOWS[usize::from(self.byte(1))] => self.name(),
            b'.' => self.dotted()?,
            b'0'..=b'9' => self.number()?,
            b'"' => self.string()?,
            mark => self.mark(mark)?,
        };
        Ok(Token { kind, span: Span { start: start as u32, end: self.at as u32 } })
    }

    /// Skips spaces, comments and line markers (`# 12 "file"`).
    fn skip_blank(&mut self) -> Result<(), Problem> {
        let bytes = self.text.as_bytes();
        loop {
            match (self.byte(0), self.byte(1)) {
                (b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c, _) => self.at += 1,
                (b'/', b'/') => self.skip_line()?,
                (b'#', _) if self.is_line_marker() => self.skip_line()?,
                (b'/', b'*') => {
                    let body = &bytes[self.at + 2..];
                    let Some(length) = body.windows(2).position(|two| two == b"*/") else {
                        return self.problem(SyntaxErrorKind::UnterminatedComment, self.at);
                    };
                    self.only_ascii(self.at + 2 + length)?;
                    self.at += length + 4;
                }
                _ => return Ok(()),
            }
        }
    }

    fn is_line_marker(&self) -> bool {
        let rest = self.text.as_bytes()[self.at + 1..].trim_ascii_start();
        rest.first().is_some_and(u8::is_ascii_digit) || rest.starts_with(b"line")
    }

    fn skip_line(&mut self) -> Result<(), Problem> {
        let rest = &self.text.as_bytes()[self.at..];
        let end = self.at + rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
        self.only_ascii(end)?;
        self.at = end;
        Ok(())
    }

    /// Refuses what is not ASCII, or NUL, from here to `end`: the compiler refuses it in comments and strings too.
    fn only_ascii(&self, end: usize) -> Result<(), Problem> {
        match self.text[self.at..end].char_indices().find(|(_, one)| !one.is_ascii() || *one == '\0') {
            None => Ok(()),
            Some((offset, one)) => self.problem(SyntaxErrorKind::Character(one), self.at + offset),
        }
    }

    fn name(&mut self) -> Kind {
        self.at += 1;
        while FOLLOWS[usize::from(self.byte(0))] {
            self.at += 1;
        }
        Kind::Name
    }

    /// A modifier or directive; `.5` is a number, but `.5d` and `.32x32b` are modifiers.
    fn dotted(&mut self) -> Result<Kind, Problem> {
        let start = self.at;
        self.at += 1;
        loop {
            if FOLLOWS[usize::from(self.byte(0))] {
                self.at += 1;
            } else if self.byte(0) == b':' && self.byte(1) == b':' && FOLLOWS[usize::from(self.byte(2))] {
                self.at += 2;
            } else {
                break;
            }
        }
        let word = &self.text.as_bytes()[start + 1..self.at];
        match word.first() {
            None => self.unexpected("a modifier after `.`", start),
            Some(first)
                if first.is_ascii_digit() && word.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'e' | b'E')) =>
            {
                self.at = start;
                self.decimal()
            }
            Some(_) => Ok(Kind::Dotted),
        }
    }

    fn number(&mut self) -> Result<Kind, Problem> {
        let start = self.at;
        match (self.byte(0), self.byte(1)) {
            (b'0', b'f' | b'F') => self.exact(start, 8, Kind::Single),
            (b'0', b'd' | b'D') => self.exact(start, 16, Kind::Double),
            (b'0', b'x' | b'X' | b'b' | b'B') => {
                self.name();
                Ok(Kind::Integer)
            }
            _ => {
                while self.byte(0).is_ascii_digit() {
                    self.at += 1;
                }
                if matches!(self.byte(0), b'.' | b'e' | b'E') {
                    self.at = start;
                    return self.decimal();
                }
                if FOLLOWS[usize::from(self.byte(0))] {
                    self.name();
                }
                Ok(Kind::Integer)
            }
        }
    }

    /// `0f` and `0d` take exactly so many hexadecimal digits.
    fn exact(&mut self, start: usize, digits: usize, kind: Kind) -> Result<Kind, Problem> {
        self.name();
        let word = &self.text[start + 2..self.at];
        if word.len() == digits && word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(kind);
        }
        self.malformed(start)
    }

    fn decimal(&mut self) -> Result<Kind, Problem> {
        let start = self.at;
        while matches!(self.byte(0), b'0'..=b'9' | b'.') {
            self.at += 1;
        }
        if matches!(self.byte(0), b'e' | b'E') {
            self.at += if matches!(self.byte(1), b'+' | b'-') { 2 } else { 1 };
        }
        if FOLLOWS[usize::from(self.byte(0))] {
            self.name();
        }
        if self.text[start..self.at].parse::<f64>().is_ok() { Ok(Kind::Decimal) } else { self.malformed(start) }
    }

    fn malformed(&self, start: usize) -> Result<Kind, Problem> {
        self.problem(SyntaxErrorKind::Number(shown(&self.text[start..self.at])), start)
    }

    fn unexpected(&self, expected: &'static str, at: usize) -> Result<Kind, Problem> {
        let found = self.text[at..].chars().next().map_or_else(String::new, |one| format!("`{one}`"));
        self.problem(SyntaxErrorKind::Unexpected { expected, found }, at)
    }

    fn string(&mut self) -> Result<Kind, Problem> {
        let start = self.at;
        let rest = &self.text.as_bytes()[start + 1..];
        let Some(length) = rest.iter().position(|&byte| byte == b'"' || byte == b'\n').filter(|&end| rest[end] == b'"')
        else {
            return self.problem(SyntaxErrorKind::UnterminatedString, start);
        };
        self.only_ascii(start + 1 + length)?;
        self.at = start + length + 2;
        Ok(Kind::Text)
    }

    fn mark(&mut self, mark: u8) -> Result<Kind, Problem> {
        let next = self.byte(1);
        if matches!(
            (mark, next),
            (b'<', b'<' | b'=') | (b'>', b'>' | b'=') | (b'=' | b'!', b'=') | (b'&', b'&') | (b'|', b'|')
        ) {
            self.at += 2;
            return Ok(Kind::Marks(mark, next));
        }
        if b",;:(){}[]<>@!+-*/%&|^~?=".contains(&mark) {
            self.at += 1;
            return Ok(Kind::Mark(mark));
        }
        match self.text[self.at..].chars().next() {
            Some(one) => self.problem(SyntaxErrorKind::Character(one), self.at),
            None => Ok(Kind::End),
        }
    }
}

/// The beginning of a text that an error quotes.
pub(super) fn shown(text: &str) -> String {
    let mut start: String = text.chars().take(40).collect();
    if start.len() < text.len() {
        start.push_str("...");
    }
    start
}
