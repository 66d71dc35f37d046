//! `atom` and `red` of every kind: each thread on a cell of its own, where old and new value are known, and all threads
//! on one cell, where the order does not matter to the sum.

use half::{bf16, f16};
use warpweft_ptxvm::types::Type;

use crate::case::{Case, module, program};
use crate::coverage::{FORMS_80, listed};
use crate::inputs::{Random, corners};
use crate::integer::{number, wrapped};

/// Threads of a launch: four warps.
const THREADS: usize = 128;

/// The new value of a cell: old, b, c.
type Update = fn(Type, u64, u64, u64) -> u64;

pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for form in listed(FORMS_80).filter(|form| form.starts_with("atom.") || form.starts_with("red.")) {
        let parsed = Form::of(form);
        all.push(own_cells(&parsed));
        if let Some(increment) = parsed.increment() {
            all.push(one_cell(&parsed, increment));
        }
    }
    all
}

/// What the words of a form say.
struct Form {
    spelled: String,
    op: &'static str,
    ty: Type,
    shared: bool,
    global: bool,
    returns: bool,
}

const UPDATES: [(&str, Update); 10] = [
    ("and", |_, old, b, _| old & b),
    ("or", |_, old, b, _| old | b),
    ("xor", |_, old, b, _| old ^ b),
    ("exch", |_, _, b, _| b),
    ("cas", |_, old, b, c| if old == b { c } else { old }),
    ("inc", |_, old, b, _| if old >= b { 0 } else { old + 1 }),
    ("dec", |_, old, b, _| if old == 0 || old > b { b } else { old - 1 }),
    ("min", |ty, old, b, _| if number(ty, b) < number(ty, old) { b } else { old }),
    ("max", |ty, old, b, _| if number(ty, b) > number(ty, old) { b } else { old }),
    ("add", |ty, old, b, _| wrapped(ty, number(ty, old) + number(ty, b))),
];

impl Form {
    fn of(spelled: &str) -> Form {
        let words: Vec<&str> = spelled.split('.').collect();
        let found = UPDATES.iter().find(|(op, _)| words.contains(op)).expect("an operation");
        Form {
            spelled: spelled.to_owned(),
            op: found.0,
            ty: words.last().and_then(|word| Type::from_name(word)).expect("a type"),
            shared: words.contains(&"shared"),
            global: words.contains(&"global"),
            returns: words[0] == "atom",
        }
    }

    /// Bytes of a cell.
    fn bytes(&self) -> usize {
        self.ty.bytes() as usize
    }

    fn update(&self, old: u64, b: u64, c: u64) -> u64 {
        if self.op == "add" {
            match self.ty {
                Type::F32 => return sum_f32(old, b, !self.shared),
                Type::F64 => return (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
                Type::F16 => return sum_f16(old, b),
                Type::Bf16 => return sum_bf16(old, b),
                Type::F16x2 => return sum_f16(old & 0xffff, b & 0xffff) | sum_f16(old >> 16, b >> 16) << 16,
                Type::Bf16x2 => return sum_bf16(old & 0xffff, b & 0xffff) | sum_bf16(old >> 16, b >> 16) << 16,
                _ => {}
            }
        }
        let (_, update) = UPDATES.iter().find(|(op, _)| *op == self.op).expect("an operation");
        update(self.ty, old, b, c)
    }

    /// For sums and counts: what one thread adds to the common cell, and what is there at the end, from 0 on.
    fn increment(&self) -> Option<(u64, u64)> {
        let threads = THREADS as u64;
        Some(match (self.op, self.ty) {
            ("add", Type::F32) => (1f32.to_bits().into(), (THREADS as f32).to_bits().into()),
            ("add", Type::F64) => (1f64.to_bits(), (THREADS as f64).to_bits()),
            ("add", Type::F16) => (0x3c00, f16::from_f64(threads as f64).to_bits().into()),
            ("add", Type::F16x2) => (0x3c00_3c00, 0x10001 * u64::from(f16::from_f64(threads as f64).to_bits())),
            ("add", Type::Bf16) => (0x3f80, bf16::from_f64(threads as f64).to_bits().into()),
            ("add", Type::Bf16x2) => (0x3f80_3f80, 0x10001 * u64::from(bf16::from_f64(threads as f64).to_bits())),
            ("add", _) => (3, 3 * threads),
            ("inc", _) => (u64::from(u32::MAX), threads),
            ("xor", _) => (1, threads % 2),
            ("or", _) => (5, 5),
            _ => return None,
        })
    }

    /// The registers of an operand.
    fn register_bits(&self) -> u32 {
        self.ty.bits().max(16)
    }

    /// The instruction on `[place]`, with `%old`, `%b` and `%c`.
    fn instruction(&self, place: &str) -> String {
        let old = if self.returns { "%old, " } else { "" };
        let c = if self.op == "cas" { ", %c" } else { "" };
        format!("    {} {old}[{place}], %b{c};\n", self.spelled)
    }

    /// Declarations, and `%in`, `%out`: the thread's places in buffers with the strides given.
    fn start(&self, strides: (usize, usize)) -> String {
        let (bits, wide) = (self.register_bits(), THREADS * self.bytes());
        format!(
            "    .reg .pred %first;
    .reg .b32 %thread, %place;
    .reg .b64 %in, %out, %address;
    .reg .b{bits} %old, %b, %c, %cell;
    .shared .align 8 .b8 block[{wide}];

    mov.u32 %thread, %tid.x;
    ld.param.u64 %in, [input];
    ld.param.u64 %out, [output];
    cvta.to.global.u64 %in, %in;
    cvta.to.global.u64 %out, %out;
    mad.wide.u32 %in, %thread, {}, %in;
    mad.wide.u32 %out, %thread, {}, %out;
",
            strides.0, strides.1
        )
    }
}

/// A sum of subnormals is flushed on global memory, and is not on shared memory.
fn sum_f32(old: u64, b: u64, flushed: bool) -> u64 {
    let flush = |value: f32| if flushed && value.is_subnormal() { 0f32.copysign(value) } else { value };
    let [old, b] = [old, b].map(|bits| flush(f32::from_bits(bits as u32)));
    // A sum of two singles rounded to double and then to single is rounded right.
    flush((f64::from(old) + f64::from(b)) as f32).to_bits().into()
}

fn sum_f16(old: u64, b: u64) -> u64 {
    let [old, b] = [old, b].map(|bits| f16::from_bits(bits as u16).to_f64());
    f16::from_f64(old + b).to_bits().into()
}

fn sum_bf16(old: u64, b: u64) -> u64 {
    let [old, b] = [old, b].map(|bits| bf16::from_bits(bits as u16).to_f64());
    bf16::from_f64(old + b).to_bits().into()
}

/// Sources of a thread: the cell, b and c. NaNs and infinities are left out: what they make is not said.
fn sources(form: &Form) -> Vec<[u64; 3]> {
    let mut random = Random::of(&form.spelled);
    let finite = |&bits: &u64| match form.ty {
        Type::F32 => f32::from_bits(bits as u32).abs() < 1e30,
        Type::F64 => f64::from_bits(bits).abs() < 1e300,
        Type::F16 => f16::from_bits(bits as u16).to_f32().abs() < 3e4,
        Type::Bf16 => bf16::from_bits(bits as u16).to_f32().abs() < 1e30,
        Type::F16x2 => [bits, bits >> 16].iter().all(|&half| f16::from_bits(half as u16).to_f32().abs() < 3e4),
        Type::Bf16x2 => [bits, bits >> 16].iter().all(|&half| bf16::from_bits(half as u16).to_f32().abs() < 1e30),
        _ => true,
    };
    let values: Vec<u64> = corners(form.ty).into_iter().filter(finite).collect();
    let mut pick = || values[random.below(values.len())];
    let mut all: Vec<[u64; 3]> = (0..THREADS).map(|_| [pick(), pick(), pick()]).collect();
    // Half of the comparisons meet.
    all.iter_mut().step_by(2).filter(|_| form.op == "cas").for_each(|values| values[1] = values[0]);
    all
}

/// Each thread on its own cell: the old value comes out, and the new one stands there.
fn own_cells(form: &Form) -> Case {
    let (bytes, bits) = (form.bytes(), form.register_bits());
    let sources = sources(form);
    let stride = 3 * bytes;
    let mut body = form.start((stride, 2 * bytes));
    body += &format!("    ld.global.b{bits} %cell, [%in];\n    ld.global.b{bits} %b, [%in+{bytes}];\n");
    body += &format!("    ld.global.b{bits} %c, [%in+{}];\n    mov.b{bits} %old, %cell;\n", 2 * bytes);
    let (place, back) = if form.shared {
        body += &format!("    mov.u32 %place, block;\n    mad.lo.u32 %place, %thread, {bytes}, %place;\n");
        body += &format!("    st.shared.b{bits} [%place], %cell;\n");
        ("%place", "shared")
    } else {
        let generic = if form.global { "mov.u64 %address, %in" } else { "cvta.global.u64 %address, %in" };
        body += &format!("    {generic};\n");
        ("%address", "global")
    };
    body += &form.instruction(place);
    let kept = if form.shared { place } else { "%in" };
    body += &format!("    ld.{back}.b{bits} %cell, [{kept}];\n    st.global.b{bits} [%out], %old;\n");
    body += &format!("    st.global.b{bits} [%out+{bytes}], %cell;\n    ret;\n");
    let cut = |value: u64| value.to_le_bytes()[..bytes].to_vec();
    let input = sources.iter().flatten().flat_map(|&value| cut(value)).collect();
    let expected = sources.iter().flat_map(|&[old, b, c]| [cut(old), cut(form.update(old, b, c))].concat()).collect();
    let ptx = module(&form.spelled, "", ".param .u64 input, .param .u64 output", &body);
    let output = vec![0; THREADS * 2 * bytes];
    program(&form.spelled, &ptx, (1, THREADS as u32), vec![input, output], vec![(1, expected)])
}

/// All threads on one cell.
fn one_cell(form: &Form, (increment, total): (u64, u64)) -> Case {
    let (bytes, bits) = (form.bytes(), form.register_bits());
    let mut body = form.start((bytes, 0));
    body += &format!("    ld.global.b{bits} %b, [%in];\n    setp.eq.u32 %first, %thread, 0;\n");
    if form.shared {
        body += &format!("    mov.u32 %place, block;\n    mov.b{bits} %cell, 0;\n");
        body += &format!("    @%first st.shared.b{bits} [%place], %cell;\n    bar.sync 0;\n");
        body += &form.instruction("%place");
        body += &format!("    bar.sync 0;\n    ld.shared.b{bits} %cell, [%place];\n");
        body += &format!("    @%first st.global.b{bits} [%out], %cell;\n    ret;\n");
    } else {
        let generic = if form.global { "mov.u64 %address, %out" } else { "cvta.global.u64 %address, %out" };
        body += &format!("    {generic};\n{}    ret;\n", form.instruction("%address"));
    }
    let cut = |value: u64| value.to_le_bytes()[..bytes].to_vec();
    let input = (0..THREADS).flat_map(|_| cut(increment)).collect();
    let ptx = module(&form.spelled, "", ".param .u64 input, .param .u64 output", &body);
    let buffers = vec![input, vec![0; bytes]];
    program(&form.spelled, &ptx, (1, THREADS as u32), buffers, vec![(1, cut(total))]).named("one-cell")
}
