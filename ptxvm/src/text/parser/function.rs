//! Kernels and device functions: head and performance directives.

use super::super::error::SyntaxErrorKind;
use super::super::lexer::{Kind, shown};
use super::super::tree::{Function, Linkage};
use super::{Parsed, Parser};

impl Parser<'_> {
    pub(super) fn function(&mut self, linkage: Linkage) -> Parsed<Function> {
        let entry = self.at_dotted(".entry");
        self.bump()?;
        if !entry && self.at_dotted(".attribute") {
            self.attribute()?;
        }
        let returns = if !entry && self.at(b'(') { self.params()? } else { Vec::new() };
        let name = self.name("the function's name")?;
        let params = if self.at(b'(') { self.params()? } else { Vec::new() };
        let mut function = Function {
            linkage,
            entry,
            returns,
            name,
            params,
            noreturn: false,
            required_block: None,
            max_block: None,
            min_blocks: None,
            max_registers: None,
            cluster: None,
            body: None,
        };
        while self.token.kind == Kind::Dotted {
            self.directive(&mut function)?;
        }
        if self.at(b'{') {
            function.body = Some(self.block()?);
        } else if !self.eat(b';')? {
            return self.unexpected("`{` or `;`");
        }
        Ok(function)
    }

    fn directive(&mut self, function: &mut Function) -> Parsed<()> {
        let word = self.word();
        match word {
            ".pragma" => return self.pragma(),
            ".attribute" => return self.attribute(),
            ".noreturn" | ".maxntid" | ".reqntid" | ".minnctapersm" | ".maxnctapersm" | ".maxnreg" => {}
            ".reqnctapercluster" | ".explicitcluster" | ".maxclusterrank" | ".blocksareclusters" => {}
            ".abi_preserve" | ".abi_preserve_control" => {}
            _ => return self.fail(SyntaxErrorKind::Directive(shown(word))),
        }
        self.bump()?;
        match word {
            ".noreturn" => function.noreturn = true,
            ".maxntid" => function.max_block = Some(self.shape()?),
            ".reqntid" => function.required_block = Some(self.shape()?),
            ".minnctapersm" => function.min_blocks = Some(self.count("how many blocks")?),
            ".maxnreg" => function.max_registers = Some(self.count("how many registers")?),
            ".reqnctapercluster" => function.cluster = Some(self.shape()?),
            // The launch says how large a cluster is.
            ".explicitcluster" | ".blocksareclusters" => {}
            _ => {
                self.count("a number")?;
            }
        }
        Ok(())
    }

    /// `16, 4, 1`; what is left out is 1.
    fn shape(&mut self) -> Parsed<[u32; 3]> {
        let mut shape = [1; 3];
        for (axis, extent) in shape.iter_mut().enumerate() {
            if axis > 0 && !self.eat(b',')? {
                break;
            }
            *extent = self.count("an extent")?;
        }
        Ok(shape)
    }
}
