//! Statements of a body.

use super::super::error::SyntaxErrorKind;
use super::super::lexer::{Kind, shown};
use super::super::tree::{Loc, Name, Statement};
use super::{Parsed, Parser};

impl Parser<'_> {
    /// `{ ... }`.
    pub(super) fn block(&mut self) -> Parsed<Vec<Statement>> {
        self.expect(b'{', "`{`")?;
        self.deeper(|parser| {
            let mut statements = Vec::new();
            while !parser.at(b'}') {
                parser.statement(&mut statements)?;
            }
            parser.bump()?;
            Ok(statements)
        })
    }

    fn statement(&mut self, out: &mut Vec<Statement>) -> Parsed<()> {
        match self.token.kind {
            Kind::Mark(b'{') => out.push(Statement::Scope(self.block()?)),
            Kind::Mark(b'@') => out.push(Statement::Instruction(self.guarded()?)),
            Kind::Dotted => return self.directive_statement(out),
            Kind::Name => {
                let name = self.name("an instruction")?;
                if !self.eat(b':')? {
                    out.push(Statement::Instruction(self.instruction(None, name)?));
                } else if self.at_dotted(".branchtargets") {
                    out.push(self.branch_targets(name)?);
                } else if self.at_dotted(".callprototype") || self.at_dotted(".calltargets") {
                    out.push(self.call_prototype(name)?);
                } else {
                    out.push(Statement::Label(name));
                }
            }
            _ => return self.unexpected("an instruction, a label, a directive or `}`"),
        }
        Ok(())
    }

    fn directive_statement(&mut self, out: &mut Vec<Statement>) -> Parsed<()> {
        match self.word() {
            ".reg" => out.push(self.registers()?),
            ".loc" => out.push(Statement::Loc(self.loc()?)),
            ".pragma" => self.pragma()?,
            ".branchtargets" | ".callprototype" | ".calltargets" => {
                return self.fail(SyntaxErrorKind::Directive(format!("{} without a label", shown(self.word()))));
            }
            _ => {
                let linkage = self.linkage()?;
                self.variables(linkage, &mut |variable| out.push(Statement::Variable(variable)))?;
            }
        }
        Ok(())
    }

    /// `.loc 1 12 3, function_name $L__info_string0+4, inlined_at 1 20 4`.
    fn loc(&mut self) -> Parsed<Loc> {
        self.bump()?;
        let loc = self.place()?;
        while self.eat(b',')? {
            match self.word() {
                "function_name" => {
                    self.bump()?;
                    self.name("the label of the function's name")?;
                    if self.eat(b'+')? {
                        self.offset()?;
                    }
                }
                "inlined_at" => {
                    self.bump()?;
                    self.place()?;
                }
                _ => return self.unexpected("`function_name` or `inlined_at`"),
            }
        }
        Ok(loc)
    }

    fn place(&mut self) -> Parsed<Loc> {
        let (file, line) = (self.count("the number of the file")?, self.count("the line")?);
        Ok(Loc { file, line, column: self.count("the column")? })
    }

    /// `ts: .branchtargets A, B<3>;`, where `B<3>` is B0, B1, B2.
    fn branch_targets(&mut self, label: Name) -> Parsed<Statement> {
        self.bump()?;
        let mut targets = Vec::new();
        loop {
            let name = self.name("a label")?;
            if self.eat(b'<')? {
                let count = self.count("how many labels")?;
                self.expect(b'>', "`>`")?;
                // Each of them is defined somewhere in the text, so there cannot be more than it has bytes.
                if count as usize > self.text.len() {
                    return self.unexpected("a count of labels that the text can hold");
                }
                targets.extend((0..count).map(|at| Name { text: format!("{}{at}", name.text), span: name.span }));
            } else {
                targets.push(name);
            }
            if !self.eat(b',')? {
                break;
            }
        }
        self.semicolon()?;
        Ok(Statement::BranchTargets(label, targets))
    }

    /// `p: .callprototype (.param .b32 _) _ (.param .b64 _);` and `t: .calltargets f, g;`
    fn call_prototype(&mut self, label: Name) -> Parsed<Statement> {
        if self.eat_dotted(".callprototype")? {
            if self.at(b'(') {
                self.params()?;
            }
            self.name_or_blank("`_`")?;
            if self.at(b'(') {
                self.params()?;
            }
            while self.at_dotted(".noreturn")
                || self.at_dotted(".abi_preserve")
                || self.at_dotted(".abi_preserve_control")
            {
                let counted = self.bump()?.kind == Kind::Dotted && self.token.kind == Kind::Integer;
                if counted {
                    self.count("a number")?;
                }
            }
        } else {
            self.bump()?;
            loop {
                self.name("a function")?;
                if !self.eat(b',')? {
                    break;
                }
            }
        }
        self.semicolon()?;
        Ok(Statement::CallPrototype(label))
    }
}
