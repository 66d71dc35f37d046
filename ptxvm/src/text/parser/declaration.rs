//! Variables, registers and parameters.

use super::super::error::{Problem, SyntaxErrorKind};
use super::super::lexer::{Kind, shown};
use super::super::tree::{Linkage, Name, Param, Statement, Variable};
use super::{Parsed, Parser};
use crate::types::{Space, Type};

/// What stands before a declared name.
#[derive(Default)]
struct Qualifiers {
    space: Option<Space>,
    register: bool,
    align: Option<u32>,
    vector: Option<u32>,
    ty: Option<Type>,
    pointer: Option<(Space, u32)>,
}

impl Parser<'_> {
    pub(super) fn linkage(&mut self) -> Parsed<Linkage> {
        let linkage = match self.word() {
            ".visible" => Linkage::Visible,
            ".extern" => Linkage::Extern,
            ".weak" => Linkage::Weak,
            ".common" => Linkage::Common,
            _ => return Ok(Linkage::None),
        };
        self.bump()?;
        Ok(linkage)
    }

    /// `.global .align 4 .u32 x[2] = {1, 2}, y;`
    pub(super) fn variables(&mut self, linkage: Linkage, take: &mut dyn FnMut(Variable)) -> Parsed<()> {
        let start = self.token;
        let qualifiers = self.qualifiers()?;
        let Some(space) = qualifiers.space.filter(|_| !qualifiers.register) else {
            let place = shown(self.slice(start.span));
            return Err(Problem::new(SyntaxErrorKind::Directive(place), start.span.start));
        };
        let ty = self.typed(&qualifiers)?;
        let (align, vector) = (qualifiers.align, qualifiers.vector.unwrap_or(1));
        loop {
            let name = self.name("the variable's name")?;
            let mut dims = self.dimensions()?;
            let init = if self.eat(b'=')? { self.initializer(&name, &mut dims, vector)? } else { Vec::new() };
            take(Variable { linkage, space, align, vector, ty, name, dims, init });
            if !self.eat(b',')? {
                break;
            }
        }
        self.semicolon()?;
        Ok(())
    }

    /// `.reg .b32 %r<12>, x;`
    pub(super) fn registers(&mut self) -> Parsed<Statement> {
        let qualifiers = self.qualifiers()?;
        let ty = self.typed(&qualifiers)?;
        let mut names: Vec<(Name, Option<u32>)> = Vec::new();
        loop {
            let name = self.name("the register's name")?;
            let mut count = None;
            if self.eat(b'<')? {
                count = Some(self.count("how many registers")?);
                self.expect(b'>', "`>`")?;
            }
            names.push((name, count));
            if !self.eat(b',')? {
                break;
            }
        }
        self.semicolon()?;
        Ok(Statement::Registers { ty, vector: qualifiers.vector.unwrap_or(1), names })
    }

    /// `(.param .u64 .ptr .global .align 16 a, .param .b32 b[4])`.
    pub(super) fn params(&mut self) -> Parsed<Vec<Param>> {
        self.expect(b'(', "`(`")?;
        self.list(b')', "`,` or `)`", Self::param)
    }

    fn param(&mut self) -> Parsed<Param> {
        if !self.at_dotted(".param") && !self.at_dotted(".reg") && !self.at_dotted(".align") {
            return self.unexpected("a parameter that begins with `.param` or `.reg`");
        }
        let qualifiers = self.qualifiers()?;
        let ty = self.typed(&qualifiers)?;
        let name = self.name_or_blank("the parameter's name")?;
        let dims = self.dimensions()?;
        let Qualifiers { register, align, pointer, .. } = qualifiers;
        Ok(Param { register, align, ty, pointer, name, dims })
    }

    fn typed(&self, qualifiers: &Qualifiers) -> Parsed<Type> {
        match qualifiers.ty {
            Some(ty) => Ok(ty),
            None => self.unexpected("a type such as `.b32`"),
        }
    }

    /// Everything dotted before a name, in any order.
    fn qualifiers(&mut self) -> Parsed<Qualifiers> {
        let mut all = Qualifiers::default();
        while self.token.kind == Kind::Dotted {
            let word = self.word();
            match word {
                // Only a parameter has more to say after its type.
                _ if all.ty.is_some() && word != ".ptr" && word != ".align" => return self.unexpected("a name"),
                ".reg" => all.register = true,
                ".global" | ".shared" | ".local" | ".const" | ".param" => all.space = space(word),
                ".v2" | ".v4" | ".v8" => all.vector = Some(u32::from(word.as_bytes()[2] - b'0')),
                ".align" => {
                    self.bump()?;
                    all.align = Some(self.alignment()?);
                    continue;
                }
                ".ptr" => {
                    self.bump()?;
                    all.pointer = Some(self.pointee()?);
                    continue;
                }
                ".attribute" => {
                    self.attribute()?;
                    continue;
                }
                _ => match Type::from_name(&word[1..]) {
                    Some(ty) => all.ty = Some(ty),
                    None if all.space.is_some() || all.register => {
                        return self.fail(SyntaxErrorKind::Type(shown(word)));
                    }
                    None => return self.fail(SyntaxErrorKind::Directive(shown(word))),
                },
            }
            self.bump()?;
        }
        Ok(all)
    }

    /// What follows `.ptr`: the space it points into and the alignment promised.
    fn pointee(&mut self) -> Parsed<(Space, u32)> {
        let into = if self.token.kind == Kind::Dotted { space(self.word()) } else { None };
        if into.is_some() {
            self.bump()?;
        }
        let align = if self.eat_dotted(".align")? { self.alignment()? } else { 1 };
        Ok((into.unwrap_or(Space::Generic), align))
    }

    fn alignment(&mut self) -> Parsed<u32> {
        let at = self.token.span.start;
        let bytes = self.count("an alignment in bytes")?;
        if !bytes.is_power_of_two() {
            return Err(Problem::new(SyntaxErrorKind::Alignment(u64::from(bytes)), at));
        }
        Ok(bytes)
    }

    /// `.attribute(.managed, .unified(1, 2))`: how a driver maps it, which changes no value.
    pub(super) fn attribute(&mut self) -> Parsed<()> {
        self.bump()?;
        self.expect(b'(', "`(`")?;
        self.list(b')', "`,` or `)`", |parser| {
            if parser.token.kind != Kind::Dotted {
                return parser.unexpected("an attribute such as `.managed`");
            }
            parser.bump()?;
            if parser.eat(b'(')? {
                parser.list(b')', "`,` or `)`", |parser| parser.length("a number"))?;
            }
            Ok(())
        })?;
        Ok(())
    }

    /// `[4][8]`; `[]` is 0.
    fn dimensions(&mut self) -> Parsed<Vec<u64>> {
        let mut dims = Vec::new();
        while self.eat(b'[')? {
            dims.push(if self.at(b']') { 0 } else { self.length("how many elements")? });
            self.expect(b']', "`]`")?;
        }
        Ok(dims)
    }
}

fn space(word: &str) -> Option<Space> {
    Some(match word {
        ".global" => Space::Global,
        ".shared" => Space::Shared,
        ".local" => Space::Local,
        ".const" => Space::Const,
        ".param" => Space::Param,
        _ => return None,
    })
}
