//! Operands of instructions.

use super::super::lexer::Kind;
use super::super::tree::{Name, Operand, OperandKind, Span};
use super::constant::Constant;
use super::{Parsed, Parser};

impl Parser<'_> {
    /// One operand. `call` takes parenthesised lists, elsewhere a parenthesis begins a constant expression.
    pub(super) fn operand(&mut self, call: bool) -> Parsed<Operand> {
        let start = self.token.span.start;
        let kind = match self.token.kind {
            Kind::Name if self.word() != "WARP_SZ" => self.named_operand()?,
            Kind::Mark(b'{') => {
                self.bump()?;
                let elements = self.deeper(|parser| parser.list(b'}', "`,` or `}`", |parser| parser.operand(false)))?;
                OperandKind::Vector(elements)
            }
            Kind::Mark(b'[') => self.deeper(Self::address)?,
            Kind::Mark(b'(') if call => {
                self.bump()?;
                let elements = self.deeper(|parser| parser.list(b')', "`,` or `)`", |parser| parser.operand(false)))?;
                OperandKind::List(elements)
            }
            Kind::Mark(b'!') => self.negated()?,
            _ => immediate(self.constant()?),
        };
        let first = Operand { kind, span: Span { start, end: self.last_end } };
        let pairs = matches!(first.kind, OperandKind::Name(_) | OperandKind::Sink | OperandKind::Vector(_));
        if !(pairs && self.eat(b'|')?) {
            return Ok(first);
        }
        let span = self.token.span;
        let name = self.name_or_blank("a predicate register or `_`")?;
        let kind = if name.text == "_" { OperandKind::Sink } else { OperandKind::Name(name.text) };
        let second = Operand { kind, span };
        let kind = OperandKind::Pair(Box::new(first), Box::new(second));
        Ok(Operand { kind, span: Span { start, end: self.last_end } })
    }

    /// `%r1`, `%tid.x`, `sym+4`, `_`.
    fn named_operand(&mut self) -> Parsed<OperandKind> {
        let mut name = self.name_or_blank("an operand")?;
        if name.text == "_" {
            return Ok(OperandKind::Sink);
        }
        self.element_suffix(&mut name)?;
        if self.eat(b'+')? {
            return Ok(OperandKind::Offset(name.text, self.offset()?));
        }
        if self.at(b'[') {
            return self.unexpected("`,` or `;` (an array's element is written `[name+bytes]`)");
        }
        Ok(OperandKind::Name(name.text))
    }

    /// `.x` and the like after a vector's name; colours (`.r`) become places (`.x`).
    fn element_suffix(&mut self, name: &mut Name) -> Parsed<()> {
        if self.token.kind == Kind::Dotted {
            let suffix = self.word();
            let place = match suffix {
                ".r" => ".x",
                ".g" => ".y",
                ".b" => ".z",
                ".a" => ".w",
                other => other,
            };
            name.text.push_str(place);
            name.span.end = self.bump()?.span.end;
        }
        Ok(())
    }

    /// `!p`, or a constant expression that begins with `!`.
    fn negated(&mut self) -> Parsed<OperandKind> {
        let before = (self.lexer, self.token, self.last_end);
        self.bump()?;
        if self.token.kind == Kind::Name && self.word() != "WARP_SZ" {
            let mut name = self.name("a predicate register")?;
            self.element_suffix(&mut name)?;
            return Ok(OperandKind::Not(name.text));
        }
        (self.lexer, self.token, self.last_end) = before;
        Ok(immediate(self.constant()?))
    }

    /// `[%rd1+16]`, `[sym]`, `[256]`, `[map, {%r1, %r2}]`.
    fn address(&mut self) -> Parsed<OperandKind> {
        self.bump()?;
        let first_at = self.token.span;
        let first = self.operand(false)?;
        if self.eat(b',')? {
            let mut parts = vec![first];
            parts.extend(self.list(b']', "`,` or `]`", |parser| parser.operand(false))?);
            return Ok(OperandKind::Addresses(parts));
        }
        if !self.at(b']') {
            return self.unexpected("`]`, `,` or `+` (a negative offset is written `+-8`)");
        }
        let name =
            |text: String| Name { span: Span { start: first_at.start, end: first_at.start + text.len() as u32 }, text };
        let kind = match first.kind {
            OperandKind::Name(text) => OperandKind::Address { base: Some(name(text)), offset: 0 },
            OperandKind::Offset(text, offset) => OperandKind::Address { base: Some(name(text)), offset },
            OperandKind::Integer(value) => OperandKind::Address { base: None, offset: value as i64 },
            _ => return self.unexpected("an address: a register, a symbol or an integer, with `+` and an offset"),
        };
        self.bump()?;
        // Says that the address is of unified memory: a promise that changes no value.
        self.eat_dotted(".unified")?;
        Ok(kind)
    }

    /// A constant integer after `+`.
    pub(super) fn offset(&mut self) -> Parsed<i64> {
        let at = self.token.span.start;
        let value = self.constant()?;
        Ok(self.want_integer(value, "+", at)? as i64)
    }
}

fn immediate(value: Constant) -> OperandKind {
    match value {
        Constant::Float(value) => OperandKind::Double(value.to_bits()),
        Constant::Single(bits) => OperandKind::Single(bits),
        integer => OperandKind::Integer(integer.integer()),
    }
}
