//! Initial values of variables: nested braces, flattened row by row.

use super::super::error::SyntaxErrorKind;
use super::super::lexer::Kind;
use super::super::tree::{Initializer, Name};
use super::constant::Constant;
use super::{MAX_PADDING, Parsed, Parser};

/// The array that is being filled.
struct Filling<'a> {
    name: &'a Name,
    dims: Vec<u64>,
    out: Vec<Initializer>,
    padding: u64,
}

impl Filling<'_> {
    /// Zeros up to `length` elements.
    fn pad(&mut self, parser: &Parser<'_>, length: u64) -> Parsed<()> {
        let missing = length.saturating_sub(self.out.len() as u64);
        self.padding = self.padding.saturating_add(missing);
        if self.padding > MAX_PADDING {
            let name = self.name.text.clone();
            return parser.fail(SyntaxErrorKind::TooMuchPadding { name, limit: MAX_PADDING });
        }
        self.out.resize(self.out.len() + missing as usize, Initializer::Integer(0));
        Ok(())
    }

    fn shape<T>(&self, parser: &Parser<'_>, expected: &'static str) -> Parsed<T> {
        parser.fail(SyntaxErrorKind::InitializerShape { name: self.name.text.clone(), expected })
    }
}

impl Parser<'_> {
    /// What follows `=`. A first dimension that is left open (`x[]`) takes the length of the list.
    pub(super) fn initializer(&mut self, name: &Name, dims: &mut [u64], vector: u32) -> Parsed<Vec<Initializer>> {
        let mut filling = Filling { name, dims: dims.to_vec(), out: Vec::new(), padding: 0 };
        if vector > 1 {
            return filling.shape(self, "a vector variable takes no initial value");
        }
        if dims.is_empty() {
            if self.at(b'{') {
                return filling.shape(self, "a scalar takes one value, without braces");
            }
            return Ok(vec![self.element()?]);
        }
        let rows = self.row(&mut filling, 0)?;
        if dims[0] == 0 {
            dims[0] = rows;
        }
        Ok(filling.out)
    }

    /// A braced list of the elements of dimension `level`; how many there were.
    fn row(&mut self, filling: &mut Filling<'_>, level: usize) -> Parsed<u64> {
        if !self.at(b'{') {
            return filling.shape(self, "a list in braces for each dimension");
        }
        self.bump()?;
        let most = match filling.dims[level] {
            0 if level == 0 => u64::MAX,
            most => most,
        };
        let last = level + 1 == filling.dims.len();
        let inner = filling.dims[level + 1..].iter().fold(1_u64, |product, &dim| product.saturating_mul(dim));
        let (start, mut count) = (filling.out.len() as u64, 0_u64);
        self.deeper(|parser| {
            parser.list(b'}', "`,` or `}`", |parser| {
                if count == most {
                    let name = filling.name.text.clone();
                    return parser.fail(SyntaxErrorKind::TooManyElements { name, most });
                }
                filling.pad(parser, start.saturating_add(count.saturating_mul(inner)))?;
                count += 1;
                if !last {
                    parser.row(filling, level + 1)?;
                } else if parser.at(b'{') {
                    return filling.shape(parser, "no more braces than the array has dimensions");
                } else {
                    let element = parser.element()?;
                    filling.out.push(element);
                }
                Ok(())
            })
        })?;
        Ok(count)
    }

    /// A number, `sym`, `sym+4`, `generic(sym)+4`, or a byte of an address, `0xFF00(sym)`.
    fn element(&mut self) -> Parsed<Initializer> {
        if self.token.kind == Kind::Name && self.word() != "WARP_SZ" {
            let (name, generic, addend) = self.symbol()?;
            return Ok(Initializer::Address { name, generic, addend });
        }
        let start = self.token;
        let value = self.constant()?;
        if start.kind == Kind::Integer && self.last_end == start.span.end && self.at(b'(') {
            return self.address_byte(value);
        }
        Ok(match value {
            Constant::Float(value) => Initializer::Float(value.to_bits()),
            Constant::Single(bits) => Initializer::Float(f64::from(f32::from_bits(bits)).to_bits()),
            integer => Initializer::Integer(integer.integer()),
        })
    }

    fn address_byte(&mut self, mask: Constant) -> Parsed<Initializer> {
        let shift = (0..64).step_by(8).find(|shift| mask.integer() == 0xFF_i128 << shift);
        let Some(shift) = shift else {
            return self.unexpected("a mask of one byte (`0xFF`, `0xFF00`...) before `(`");
        };
        self.bump()?;
        let (name, generic, addend) = self.symbol()?;
        self.expect(b')', "`)`")?;
        Ok(Initializer::AddressByte { name, generic, addend, shift })
    }

    /// `sym+4` or `generic(sym)+4`: name, whether generic, addend.
    fn symbol(&mut self) -> Parsed<(Name, bool, i64)> {
        let mut name = self.name("a symbol")?;
        let generic = name.text == "generic" && self.at(b'(');
        if generic {
            self.bump()?;
            name = self.name("a symbol")?;
            self.expect(b')', "`)`")?;
        }
        let addend = if self.eat(b'+')? { self.offset()? } else { 0 };
        Ok((name, generic, addend))
    }
}
