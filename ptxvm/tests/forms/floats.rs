//! Floating-point arithmetic of every width: the exact result rounded once, flushed, saturated.

use crate::case::{Case, operation};
use crate::coverage::{FORMS_80, listed};
use crate::exact::{BF16, F16, F32, F64, Format, Mode, Number, product, quotient, square_root, sum};

/// What the words of a form say.
#[derive(Clone)]
pub(crate) struct Form {
    /// As it is spelled.
    pub(crate) spelled: &'static str,
    /// Its words.
    pub(crate) words: Vec<&'static str>,
    /// The format of its last type.
    pub(crate) format: Format,
    /// Two values in a register.
    pub(crate) packed: bool,
    /// Subnormal sources and results become zeros.
    pub(crate) ftz: bool,
}

/// The format that a type's name says, and whether two are packed.
pub(crate) fn format(ty: &str) -> Option<(Format, bool)> {
    Some(match ty {
        "f16" => (F16, false),
        "f16x2" => (F16, true),
        "bf16" => (BF16, false),
        "bf16x2" => (BF16, true),
        "f32" => (F32, false),
        "f64" => (F64, false),
        _ => return None,
    })
}

/// The value of bits of a format, none of which a double cannot hold.
pub(crate) fn value(format: Format, bits: u64) -> f64 {
    match format.number(bits) {
        Number::Nan => f64::NAN,
        Number::Infinite(negative) => f64::INFINITY.copysign(if negative { -1.0 } else { 1.0 }),
        number @ Number::Finite(_) => f64::from_bits(F64.rounded(number, Mode::Nearest)),
    }
}

impl Form {
    /// Of a form whose last type is a float.
    pub(crate) fn of(spelled: &'static str) -> Option<Form> {
        let words: Vec<&str> = spelled.split('.').collect();
        let (format, packed) = format(words.last()?)?;
        Some(Form { spelled, ftz: words.contains(&"ftz"), words, format, packed })
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    /// A source as the operation sees it.
    pub(crate) fn source(&self, bits: u64) -> u64 {
        if self.ftz { self.format.flushed(bits) } else { bits }
    }

    /// A result as it is written: flushed, clamped to [0, 1] (NaN and what is negative to +0), or at least 0.
    fn finished(&self, bits: u64) -> u64 {
        let format = self.format;
        let bits = if self.ftz { format.flushed(bits) } else { bits };
        let negative = bits & format.sign() != 0;
        match () {
            _ if self.has("sat") && (format.is_nan(bits) || negative) => 0,
            _ if self.has("sat") => bits.min(format.one()),
            _ if self.has("relu") && !format.is_nan(bits) && negative => 0,
            _ => bits,
        }
    }
}

/// The operations, and how many sources they have.
const OPERATIONS: [(&str, usize); 14] = [
    ("add", 2),
    ("sub", 2),
    ("mul", 2),
    ("fma", 3),
    ("mad", 3),
    ("div", 2),
    ("rcp", 1),
    ("sqrt", 1),
    ("abs", 1),
    ("neg", 1),
    ("min", 2),
    ("max", 2),
    ("copysign", 2),
    ("testp", 1),
];

/// Forms of sm_90 and of the ISA beside those of the list.
const MORE: &[&str] = &[
    "add.bf16",
    "add.rn.bf16",
    "add.bf16x2",
    "sub.bf16",
    "sub.bf16x2",
    "mul.bf16",
    "mul.rn.bf16",
    "mul.bf16x2",
    "fma.rz.bf16",
    "fma.rm.bf16",
    "fma.rp.bf16",
    "fma.rz.bf16x2",
    "fma.rm.relu.bf16",
    "fma.rp.relu.bf16x2",
    "mad.rn.ftz.f32",
    "mad.rz.sat.f32",
    "abs.ftz.f16",
    "abs.ftz.f16x2",
    "neg.ftz.f16",
    "neg.ftz.f16x2",
    "min.ftz.f16",
    "max.ftz.f16",
    "min.ftz.f16x2",
    "max.ftz.f16x2",
    "min.ftz.NaN.f16",
    "max.ftz.NaN.f16x2",
];

pub(crate) fn cases() -> Vec<Case> {
    listed(FORMS_80).chain(MORE.iter().copied()).filter_map(Form::of).filter_map(case).collect()
}

fn case(form: Form) -> Option<Case> {
    let (name, sources) = OPERATIONS.iter().find(|(name, _)| *name == form.words[0])?;
    if form.has("approx") || form.has("full") {
        return None;
    }
    let t = *form.words.last()?;
    let inputs: String = ["a", "b", "c"].iter().take(*sources).map(|name| format!(" {name}:{t}")).collect();
    let result = if *name == "testp" { "pred" } else { t };
    let spelled = form.spelled;
    let operands = format!("d:{result}{inputs}");
    // Where the ISA leaves the bits of a NaN open, any will do.
    let open = form.format == F64 || matches!(*name, "abs" | "neg");
    let (to_define, to_accept) = (form.clone(), form);
    let built = operation(spelled, &operands, move |x| vec![to_define.defined(x)]);
    let accept = move |x: &[u64], got: &[u64]| to_accept.same(to_accept.defined(x), got[0]);
    Some(if open { built.accept(accept).case() } else { built.case() })
}

impl Form {
    /// What the form gives for its sources, half by half where they are packed.
    fn defined(&self, x: &[u64]) -> u64 {
        if !self.packed {
            return self.of_values(x);
        }
        let half = |shift: u32| {
            let halves: Vec<u64> = x.iter().map(|bits| bits >> shift & 0xffff).collect();
            self.of_values(&halves) << shift
        };
        half(0) | half(16)
    }

    /// Whether two results are the same, whatever NaNs they hold.
    fn same(&self, expected: u64, got: u64) -> bool {
        let one = |expected, got| expected == got || (self.format.is_nan(expected) && self.format.is_nan(got));
        match self.packed {
            true => one(expected & 0xffff, got & 0xffff) && one(expected >> 16, got >> 16),
            false => one(expected, got),
        }
    }

    fn of_values(&self, x: &[u64]) -> u64 {
        let (format, mode) = (self.format, Mode::of(&self.words));
        let bits: Vec<u64> = x.iter().map(|&bits| self.source(bits)).collect();
        let number = |at: usize| format.number(bits[at]);
        let opposite = |at: usize| format.number(bits[at] ^ format.sign());
        let result = match self.words[0] {
            "add" => format.rounded(sum(number(0), number(1), mode), mode),
            "sub" => format.rounded(sum(number(0), opposite(1), mode), mode),
            "mul" => format.rounded(product(number(0), number(1)), mode),
            "fma" | "mad" => format.rounded(sum(product(number(0), number(1)), number(2), mode), mode),
            "div" => format.rounded(quotient(number(0), number(1)), mode),
            "rcp" => format.rounded(quotient(format.number(format.one()), number(0)), mode),
            "sqrt" => format.rounded(square_root(number(0)), mode),
            "abs" => bits[0] & !format.sign(),
            "neg" => bits[0] ^ format.sign(),
            "copysign" => (bits[0] & format.sign()) | (bits[1] & !format.sign()),
            "testp" => u64::from(self.tested(x[0])),
            _ => self.extreme(bits[0], bits[1]),
        };
        if self.words[0] == "testp" { result } else { self.finished(result) }
    }

    /// `min` and `max`: a number rather than a NaN unless `.NaN`; -0 is less than +0; `.xorsign.abs` of the magnitudes,
    /// with the product's sign.
    fn extreme(&self, a: u64, b: u64) -> u64 {
        let format = self.format;
        let xor = self.has("xorsign");
        let sign = if xor { (a ^ b) & format.sign() } else { 0 };
        let [a, b] = [a, b].map(|bits| if xor { bits & !format.sign() } else { bits });
        let chosen = match (format.is_nan(a), format.is_nan(b)) {
            (true, true) => return format.nan(),
            (true, _) | (_, true) if self.has("NaN") => return format.nan(),
            (true, _) => b,
            (_, true) => a,
            _ => {
                // Bits in the order of the numbers: negative ones turned around.
                let order = |bits: u64| {
                    let magnitude = (bits & !format.sign()) as i64;
                    if bits & format.sign() != 0 { -1 - magnitude } else { magnitude }
                };
                if (order(a) < order(b)) == (self.words[0] == "min") { a } else { b }
            }
        };
        chosen | sign
    }

    fn tested(&self, bits: u64) -> bool {
        let magnitude = bits & !self.format.sign();
        let (nan, infinite) = (self.format.is_nan(bits), magnitude == self.format.infinity());
        match self.words[1] {
            "finite" => !nan && !infinite,
            "infinite" => infinite,
            "number" => !nan,
            "notanumber" => nan,
            // Zero is normal, as the ISA says.
            "normal" => !nan && !infinite && !self.format.is_subnormal(bits),
            _ => self.format.is_subnormal(bits),
        }
    }
}
