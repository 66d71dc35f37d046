//! Constant expressions (PTX ISA, "Constant expressions"): 64-bit integers, signed or not, and doubles.

use super::super::error::{Problem, SyntaxErrorKind};
use super::super::lexer::{Kind, Token, shown};
use super::{Parsed, Parser};

/// The value of a constant expression.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Constant {
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    /// `0f...`: kept to the bit, and no part of expressions.
    Single(u32),
}

use Constant::{Float, Signed, Single, Unsigned};

impl Constant {
    /// As an integer; a float is cut.
    pub(super) fn integer(self) -> i128 {
        match self {
            Signed(value) => i128::from(value),
            Unsigned(value) => i128::from(value),
            Float(value) => value as i128,
            Single(bits) => f32::from_bits(bits) as i128,
        }
    }

    fn float(self) -> f64 {
        match self {
            Signed(value) => value as f64,
            Unsigned(value) => value as f64,
            Float(value) => value,
            Single(bits) => f64::from(f32::from_bits(bits)),
        }
    }

    fn bits(self) -> u64 {
        self.integer() as u64
    }
}

/// Binary operators, from those that bind least: text and strength.
const OPERATORS: [(&str, u8); 18] = [
    ("||", 1),
    ("&&", 2),
    ("|", 3),
    ("^", 4),
    ("&", 5),
    ("==", 6),
    ("!=", 6),
    ("<", 7),
    (">", 7),
    ("<=", 7),
    (">=", 7),
    ("<<", 8),
    (">>", 8),
    ("+", 9),
    ("-", 9),
    ("*", 10),
    ("/", 10),
    ("%", 10),
];

impl Parser<'_> {
    /// A constant expression.
    pub(super) fn constant(&mut self) -> Parsed<Constant> {
        let condition = self.binary(0)?;
        if !self.at(b'?') {
            return Ok(condition);
        }
        let at = self.bump()?.span.start;
        self.deeper(|parser| {
            let yes = parser.constant()?;
            parser.expect(b':', "`:`")?;
            let no = parser.constant()?;
            parser.no_single(&[condition, yes, no], at)?;
            let chosen = if parser.truth(condition, "?", at)? { yes } else { no };
            parser.want_integer(yes, "?", at)?;
            parser.want_integer(no, "?", at)?;
            Ok(match (yes, no) {
                (Unsigned(_), _) | (_, Unsigned(_)) => Unsigned(chosen.bits()),
                _ => chosen,
            })
        })
    }

    /// Operands joined by operators that bind more than `least`.
    fn binary(&mut self, least: u8) -> Parsed<Constant> {
        let mut left = self.unary()?;
        loop {
            let operator = match self.token.kind {
                Kind::Mark(_) | Kind::Marks(..) => OPERATORS.iter().find(|(text, _)| *text == self.word()),
                _ => None,
            };
            let Some(&(text, strength)) = operator.filter(|(_, strength)| *strength > least) else {
                return Ok(left);
            };
            let at = self.bump()?.span.start;
            let right = self.deeper(|parser| parser.binary(strength))?;
            self.no_single(&[left, right], at)?;
            left = self.apply(text, left, right, at)?;
        }
    }

    fn no_single(&self, values: &[Constant], at: u32) -> Parsed<()> {
        let single = values.iter().any(|value| matches!(value, Single(_)));
        if single { Err(Problem::new(SyntaxErrorKind::SingleInExpression, at)) } else { Ok(()) }
    }

    fn apply(&self, operator: &'static str, left: Constant, right: Constant, at: u32) -> Parsed<Constant> {
        if matches!(operator, "&&" | "||") {
            let (a, b) = (self.truth(left, operator, at)?, self.truth(right, operator, at)?);
            return Ok(truth(if operator == "&&" { a && b } else { a || b }));
        }
        if let (Float(_), _) | (_, Float(_)) = (left, right) {
            return floats(operator, left.float(), right.float(), at);
        }
        if matches!(operator, "/" | "%") && right.bits() == 0 {
            return Err(Problem::new(SyntaxErrorKind::DivisionByZero, at));
        }
        Ok(match (operator, left, right) {
            // A shift keeps the type of what is shifted.
            ("<<" | ">>", Signed(a), _) => signed(operator, a, right.bits() as i64),
            ("<<" | ">>", ..) => unsigned(operator, left.bits(), right.bits()),
            // A remainder is always unsigned.
            ("%", ..) => unsigned(operator, left.bits(), right.bits()),
            (_, Signed(a), Signed(b)) => signed(operator, a, b),
            _ => unsigned(operator, left.bits(), right.bits()),
        })
    }

    fn unary(&mut self) -> Parsed<Constant> {
        let Token { kind, span } = self.token;
        match kind {
            Kind::Mark(mark @ (b'-' | b'+' | b'!' | b'~')) => {
                self.bump()?;
                let value = self.deeper(Self::unary)?;
                self.no_single(&[value], span.start)?;
                Ok(match (mark, value) {
                    (b'-', Signed(value)) => Signed(value.wrapping_neg()),
                    (b'-', Unsigned(value)) => Unsigned(value.wrapping_neg()),
                    (b'-', Float(value)) => Float(-value),
                    (b'!', value) => truth(!self.truth(value, "!", span.start)?),
                    (b'~', value) => Unsigned(!(self.want_integer(value, "~", span.start)? as u64)),
                    (_, value) => value,
                })
            }
            Kind::Mark(b'(') => {
                self.bump()?;
                for (cast, signed) in [(".s64", true), (".u64", false)] {
                    if self.eat_dotted(cast)? {
                        self.expect(b')', "`)`")?;
                        let value = self.deeper(Self::unary)?;
                        self.no_single(&[value], span.start)?;
                        return Ok(if signed { Signed(value.bits() as i64) } else { Unsigned(value.bits()) });
                    }
                }
                let value = self.deeper(Self::constant)?;
                self.expect(b')', "`)`")?;
                Ok(value)
            }
            Kind::Name if self.word() == "WARP_SZ" => {
                self.bump()?;
                Ok(Signed(32))
            }
            Kind::Integer => {
                let token = self.bump()?;
                let (value, unsigned) = self.integer(token)?;
                Ok(i64::try_from(value).ok().filter(|_| !unsigned).map_or(Unsigned(value), Signed))
            }
            Kind::Decimal => {
                self.bump()?;
                let text = self.slice(span);
                let value = text.parse().ok().filter(|value: &f64| value.is_finite());
                value.map(Float).ok_or_else(|| Problem::new(SyntaxErrorKind::Number(shown(text)), span.start))
            }
            Kind::Single => Ok(Single(self.hexadecimal()? as u32)),
            Kind::Double => Ok(Float(f64::from_bits(self.hexadecimal()?))),
            _ => self.unexpected("an operand"),
        }
    }

    /// The digits after `0f` or `0d`, which the lexer has checked.
    fn hexadecimal(&mut self) -> Parsed<u64> {
        let span = self.bump()?.span;
        let text = self.slice(span);
        u64::from_str_radix(&text[2..], 16).map_err(|_| Problem::new(SyntaxErrorKind::Number(shown(text)), span.start))
    }

    /// The value of an integer literal, and whether `U` says that it is unsigned.
    pub(super) fn integer(&self, token: Token) -> Parsed<(u64, bool)> {
        let text = self.slice(token.span);
        let (digits, unsigned) = text.strip_suffix('U').map_or((text, false), |digits| (digits, true));
        let (digits, radix) = match digits.as_bytes() {
            [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
            [b'0', b'b' | b'B', ..] => (&digits[2..], 2),
            [b'0', _, ..] => (&digits[1..], 8),
            _ => (digits, 10),
        };
        let malformed = digits.is_empty() || !digits.bytes().all(|byte| char::from(byte).is_digit(radix));
        let kind = match u64::from_str_radix(digits, radix) {
            Ok(value) if !malformed => return Ok((value, unsigned)),
            Err(_) if !malformed => SyntaxErrorKind::IntegerTooLarge(shown(text), 64),
            _ => SyntaxErrorKind::Number(shown(text)),
        };
        Err(Problem::new(kind, token.span.start))
    }

    fn truth(&self, value: Constant, operator: &'static str, at: u32) -> Parsed<bool> {
        Ok(self.want_integer(value, operator, at)? != 0)
    }

    pub(super) fn want_integer(&self, value: Constant, operator: &'static str, at: u32) -> Parsed<i128> {
        match value {
            Float(_) | Single(_) => Err(Problem::new(SyntaxErrorKind::NotAnInteger { operator }, at)),
            integer => Ok(integer.integer()),
        }
    }
}

fn truth(holds: bool) -> Constant {
    Signed(i64::from(holds))
}

fn compared<T: PartialOrd>(operator: &str, a: T, b: T) -> Constant {
    truth(match operator {
        "<" => a < b,
        ">" => a > b,
        "<=" => a <= b,
        ">=" => a >= b,
        "==" => a == b,
        _ => a != b,
    })
}

/// Both operands signed; `b` is not 0 where it divides. Shifts count modulo 64, as the compiler's do.
fn signed(operator: &str, a: i64, b: i64) -> Constant {
    Signed(match operator {
        "+" => a.wrapping_add(b),
        "-" => a.wrapping_sub(b),
        "*" => a.wrapping_mul(b),
        "/" => a.wrapping_div(b),
        "&" => a & b,
        "|" => a | b,
        "^" => a ^ b,
        "<<" => a.wrapping_shl(b as u32),
        ">>" => a.wrapping_shr(b as u32),
        _ => return compared(operator, a, b),
    })
}

fn unsigned(operator: &str, a: u64, b: u64) -> Constant {
    Unsigned(match operator {
        "+" => a.wrapping_add(b),
        "-" => a.wrapping_sub(b),
        "*" => a.wrapping_mul(b),
        "/" => a / b,
        "%" => a % b,
        "&" => a & b,
        "|" => a | b,
        "^" => a ^ b,
        "<<" => a.wrapping_shl(b as u32),
        ">>" => a.wrapping_shr(b as u32),
        _ => return compared(operator, a, b),
    })
}

fn floats(operator: &'static str, a: f64, b: f64, at: u32) -> Parsed<Constant> {
    let value = match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" if b == 0.0 => return Err(Problem::new(SyntaxErrorKind::DivisionByZero, at)),
        "/" => a / b,
        "<" | ">" | "<=" | ">=" | "==" | "!=" => return Ok(compared(operator, a, b)),
        _ => return Err(Problem::new(SyntaxErrorKind::NotAnInteger { operator }, at)),
    };
    Ok(Float(value))
}
