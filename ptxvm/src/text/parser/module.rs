//! Module scope: header, files, sections, and what is declared there.

use super::super::error::{Problem, SyntaxErrorKind};
use super::super::lexer::{Kind, shown};
use super::super::tree::{Alias, Module};
use super::{Parsed, Parser};
use crate::types::{Target, Version};

impl Parser<'_> {
    pub(super) fn module(mut self) -> Parsed<Module> {
        let version = self.version()?;
        let target = self.target()?;
        let mut module = Module {
            version,
            target,
            address_bits: 64,
            files: Vec::new(),
            variables: Vec::new(),
            functions: Vec::new(),
            aliases: Vec::new(),
        };
        if self.eat_dotted(".address_size")? {
            module.address_bits = self.count("32 or 64")?;
        }
        while self.token.kind != Kind::End {
            self.item(&mut module)?;
        }
        Ok(module)
    }

    fn version(&mut self) -> Parsed<Version> {
        if !self.eat_dotted(".version")? || self.token.kind != Kind::Decimal {
            return self.fail(SyntaxErrorKind::Header);
        }
        let parts = self.word().split_once('.');
        let version = parts.and_then(|(major, minor)| Some(Version(major.parse().ok()?, minor.parse().ok()?)));
        let Some(version) = version else {
            return self.fail(SyntaxErrorKind::Number(shown(self.word())));
        };
        self.bump()?;
        Ok(version)
    }

    /// `.target sm_90a, debug`.
    fn target(&mut self) -> Parsed<Target> {
        if !self.eat_dotted(".target")? {
            return self.fail(SyntaxErrorKind::Header);
        }
        let mut target = None;
        loop {
            let name = self.name("a target such as `sm_80`")?;
            let options = ["debug", "texmode_unified", "texmode_independent", "texmode_raw", "map_f64_to_f32"];
            if !options.contains(&name.text.as_str()) {
                let unknown = || Problem::new(SyntaxErrorKind::Target(shown(&name.text)), name.span.start);
                target = Some(architecture(&name.text).ok_or_else(unknown)?);
            }
            if !self.eat(b',')? {
                break;
            }
        }
        match target {
            Some(target) => Ok(target),
            None => self.fail(SyntaxErrorKind::Header),
        }
    }

    fn item(&mut self, module: &mut Module) -> Parsed<()> {
        if self.token.kind != Kind::Dotted {
            return self.unexpected("a directive such as `.entry` or `.global`");
        }
        match self.word() {
            ".file" => self.file(module),
            ".section" => self.section(),
            ".pragma" => self.pragma(),
            ".alias" => {
                self.bump()?;
                let name = self.name("the name of the alias")?;
                self.expect(b',', "`,`")?;
                let of = self.name("the function it stands for")?;
                self.semicolon()?;
                module.aliases.push(Alias { name, of });
                Ok(())
            }
            _ => {
                let linkage = self.linkage()?;
                if self.at_dotted(".entry") || self.at_dotted(".func") {
                    module.functions.push(self.function(linkage)?);
                    return Ok(());
                }
                self.variables(linkage, &mut |variable| module.variables.push(variable))
            }
        }
    }

    /// `.file 1 "a.cu"`, with time and size in some.
    fn file(&mut self, module: &mut Module) -> Parsed<()> {
        self.bump()?;
        let number = self.count("the number of the file")?;
        if self.token.kind != Kind::Text {
            return self.unexpected("the file's name in quotes");
        }
        module.files.push((number, self.word().trim_matches('"').to_owned()));
        self.bump()?;
        while self.eat(b',')? {
            self.length("a number")?;
        }
        Ok(())
    }

    /// `.section .debug_info { ... }`: data for debuggers, of no use here.
    fn section(&mut self) -> Parsed<()> {
        self.bump()?;
        match self.token.kind {
            Kind::Dotted | Kind::Name => self.bump()?,
            _ => return self.unexpected("the section's name"),
        };
        self.expect(b'{', "`{`")?;
        while !self.at(b'}') {
            if self.token.kind == Kind::End || self.at(b'{') {
                return self.unexpected("data or `}`, which ends the section");
            }
            self.bump()?;
        }
        self.bump()?;
        Ok(())
    }

    /// `.pragma "nounroll", "...";`: hints.
    pub(super) fn pragma(&mut self) -> Parsed<()> {
        self.bump()?;
        loop {
            if self.token.kind != Kind::Text {
                return self.unexpected("the pragma in quotes");
            }
            self.bump()?;
            if !self.eat(b',')? {
                break;
            }
        }
        self.semicolon()?;
        Ok(())
    }
}

/// `sm_90a`; the family targets (`sm_100f`) have specific instructions too.
fn architecture(name: &str) -> Option<Target> {
    let digits = name.strip_prefix("sm_")?;
    let (digits, specific) = match digits.strip_suffix(['a', 'f']) {
        Some(digits) => (digits, true),
        None => (digits, false),
    };
    let known = digits.len() <= 3 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let sm: u16 = digits.parse().ok().filter(|&sm| known && sm >= 10)?;
    Some(Target { sm, specific })
}
