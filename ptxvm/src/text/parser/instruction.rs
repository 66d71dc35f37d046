//! Instructions: guard, name, modifiers, operands.

use super::super::lexer::Kind;
use super::super::tree::{Instruction, Name, Span};
use super::{Parsed, Parser};

impl Parser<'_> {
    /// `@p add.s32 ...;` or `@!p ...`.
    pub(super) fn guarded(&mut self) -> Parsed<Instruction> {
        let start = self.bump()?.span.start;
        let negated = self.eat(b'!')?;
        let guard = self.name("a predicate register")?;
        let name = self.name("an instruction")?;
        self.instruction(Some((guard, negated, start)), name)
    }

    /// What follows the instruction's name.
    pub(super) fn instruction(&mut self, guard: Option<(Name, bool, u32)>, name: Name) -> Parsed<Instruction> {
        let start = guard.as_ref().map_or(name.span.start, |guard| guard.2);
        let mut modifiers = Vec::with_capacity(4);
        while self.token.kind == Kind::Dotted {
            let span = self.bump()?.span;
            modifiers.push(Name { text: self.slice(span)[1..].to_owned(), span });
        }
        let call = name.text == "call";
        let mut operands = Vec::new();
        if !self.at(b';') {
            operands.reserve(3);
            loop {
                operands.push(self.operand(call)?);
                if !self.eat(b',')? {
                    break;
                }
            }
        }
        let end = self.expect(b';', "`,` or `;`")?.span.end;
        let guard = guard.map(|(register, negated, _)| (register, negated));
        Ok(Instruction { guard, name, modifiers, operands, span: Span { start, end } })
    }
}
