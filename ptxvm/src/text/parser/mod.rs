//! Tokens to the tree: recursive descent, one token ahead.
//!
//! This file holds the cursor and its small vocabulary; the grammar is in the files below it.

mod constant;
mod declaration;
mod function;
mod initializer;
mod instruction;
mod module;
mod operand;
mod statement;

use super::error::{Problem, SyntaxError, SyntaxErrorKind};
use super::lexer::{Kind, Lexer, Token, shown};
use super::tree::{Module, Name, Span};

/// How deep braces, parentheses and operators may nest.
pub const MAX_DEPTH: u32 = 200;
/// The longest text, in bytes.
pub const MAX_BYTES: usize = 1 << 30;
/// The most zeros that an initialiser may leave between the rows of an array.
pub const MAX_PADDING: u64 = 1 << 20;

type Parsed<T> = Result<T, Problem>;

/// Reads PTX.
pub fn parse(text: &str) -> Result<Module, SyntaxError> {
    if text.len() > MAX_BYTES {
        return Err(Problem::new(SyntaxErrorKind::TextTooLong { limit: MAX_BYTES }, 0).located(text));
    }
    Parser::new(text).and_then(Parser::module).map_err(|problem| problem.located(text))
}

/// The cursor.
struct Parser<'a> {
    text: &'a str,
    lexer: Lexer<'a>,
    /// The token that comes next.
    token: Token,
    /// Where the token before it ended.
    last_end: u32,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parsed<Parser<'a>> {
        let mut lexer = Lexer::new(text);
        let token = lexer.next()?;
        Ok(Parser { text, lexer, token, last_end: 0, depth: 0 })
    }

    /// Takes the next token.
    fn bump(&mut self) -> Parsed<Token> {
        let taken = self.token;
        self.token = self.lexer.next()?;
        self.last_end = taken.span.end;
        Ok(taken)
    }

    fn slice(&self, span: Span) -> &'a str {
        &self.text[span.start as usize..span.end as usize]
    }

    /// The text of the next token.
    fn word(&self) -> &'a str {
        self.slice(self.token.span)
    }

    fn at(&self, mark: u8) -> bool {
        self.token.kind == Kind::Mark(mark)
    }

    fn at_dotted(&self, word: &str) -> bool {
        self.token.kind == Kind::Dotted && self.word() == word
    }

    /// Takes `mark` if it comes next.
    fn eat(&mut self, mark: u8) -> Parsed<bool> {
        let there = self.at(mark);
        if there {
            self.bump()?;
        }
        Ok(there)
    }

    /// Takes the dotted `word` if it comes next.
    fn eat_dotted(&mut self, word: &str) -> Parsed<bool> {
        let there = self.at_dotted(word);
        if there {
            self.bump()?;
        }
        Ok(there)
    }

    fn expect(&mut self, mark: u8, expected: &'static str) -> Parsed<Token> {
        if self.at(mark) { self.bump() } else { self.unexpected(expected) }
    }

    fn semicolon(&mut self) -> Parsed<Token> {
        self.expect(b';', "`;`")
    }

    fn name(&mut self, expected: &'static str) -> Parsed<Name> {
        if self.word() == "_" { self.unexpected(expected) } else { self.name_or_blank(expected) }
    }

    /// A name, or `_`, which names nothing.
    fn name_or_blank(&mut self, expected: &'static str) -> Parsed<Name> {
        if self.token.kind != Kind::Name {
            return self.unexpected(expected);
        }
        let span = self.bump()?.span;
        Ok(self.named(span))
    }

    fn named(&self, span: Span) -> Name {
        Name { text: self.slice(span).to_owned(), span }
    }

    /// A literal that is a plain unsigned integer of 32 bits.
    fn count(&mut self, expected: &'static str) -> Parsed<u32> {
        let at = self.token.span;
        let value = self.length(expected)?;
        u32::try_from(value)
            .map_err(|_| Problem::new(SyntaxErrorKind::IntegerTooLarge(shown(self.slice(at)), 32), at.start))
    }

    /// A literal that is a plain unsigned integer.
    fn length(&mut self, expected: &'static str) -> Parsed<u64> {
        if self.token.kind != Kind::Integer {
            return self.unexpected(expected);
        }
        let token = self.bump()?;
        Ok(self.integer(token)?.0)
    }

    fn unexpected<T>(&self, expected: &'static str) -> Parsed<T> {
        let found = match self.token.kind {
            Kind::End => "the end of the text".to_owned(),
            _ => format!("`{}`", shown(self.word())),
        };
        self.fail(SyntaxErrorKind::Unexpected { expected, found })
    }

    /// An error at the next token.
    fn fail<T>(&self, kind: SyntaxErrorKind) -> Parsed<T> {
        Err(Problem::new(kind, self.token.span.start))
    }

    /// Runs `parse` one level deeper.
    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == MAX_DEPTH {
            return self.fail(SyntaxErrorKind::TooDeep { limit: MAX_DEPTH });
        }
        self.depth += 1;
        let parsed = parse(self)?;
        self.depth -= 1;
        Ok(parsed)
    }

    /// `one, one, one` up to `end`, which is taken too; may be empty.
    fn list<T>(
        &mut self,
        end: u8,
        expected: &'static str,
        mut one: impl FnMut(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        let mut all = Vec::new();
        if self.eat(end)? {
            return Ok(all);
        }
        loop {
            all.push(one(self)?);
            if !self.eat(b',')? {
                self.expect(end, expected)?;
                return Ok(all);
            }
        }
    }
}
