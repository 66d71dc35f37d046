//! Loads and stores of every type, space, vector width and hint: bytes keep their places, and a register wider than the
//! type is filled with its sign or zeros.

use warpweft_ptxvm::types::{Kind, Type};

use crate::case::{Case, module, program};
use crate::coverage::{FORMS_80, listed};
use crate::inputs::Random;

/// Threads of a launch: two warps.
const THREADS: usize = 64;

pub(crate) fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = listed(FORMS_80).chain(["ld.param.v2.u64"]).filter_map(of_form).collect();
    let types = ["b8", "b16", "b32", "b64", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64"];
    for t in types {
        let every = [
            format!("ld.{t}"),
            format!("ld.shared.{t}"),
            format!("ldu.global.{t}"),
            format!("st.{t}"),
            format!("st.local.{t}"),
        ];
        all.extend(every.iter().filter_map(|form| of_form(form)));
        let ty = Type::from_name(t).expect("a type");
        for register in [32, 64].into_iter().filter(|&bits| bits > ty.bits() && ty.kind() != Kind::Float) {
            all.push(load(&Form::of(&format!("ld.global.{t}")), register).named(&format!("to{register}")));
            all.push(store(&Form::of(&format!("st.global.{t}")), register).named(&format!("from{register}")));
        }
    }
    all.sort_by_key(Case::file_name);
    all.dedup_by_key(|case| case.file_name());
    all
}

/// The case of a form, where it is a load or a store outside of a call.
fn of_form(form: &str) -> Option<Case> {
    let parsed = Form::of(form);
    match form.split('.').next() {
        Some("ld" | "ldu") => Some(load(&parsed, parsed.register_bits())),
        Some("st") if parsed.space != "param" => Some(store(&parsed, parsed.register_bits())),
        _ => None,
    }
}

/// What the words of a form say.
struct Form {
    spelled: String,
    /// `global`, `shared`..., empty for a generic address.
    space: String,
    ty: Type,
    count: usize,
    policy: bool,
}

impl Form {
    fn of(spelled: &str) -> Form {
        let words: Vec<&str> = spelled.split('.').collect();
        let spaces = ["global", "shared", "shared::cta", "local", "const", "param"];
        let count = words.iter().find_map(|word| word.strip_prefix('v').and_then(|count| count.parse().ok()));
        Form {
            spelled: spelled.to_owned(),
            space: words.iter().find(|word| spaces.contains(word)).copied().unwrap_or("").replace("::cta", ""),
            ty: words.last().and_then(|word| Type::from_name(word)).unwrap_or(Type::B32),
            count: count.unwrap_or(1),
            policy: words.contains(&"L2::cache_hint"),
        }
    }

    /// Bytes of a thread's access.
    fn bytes(&self) -> usize {
        self.count * self.ty.bytes() as usize
    }

    /// Bits of the registers that compilers use for the type.
    fn register_bits(&self) -> u32 {
        self.ty.bits().max(16)
    }

    /// `%v0` or `{%v0, %v1}`.
    fn registers(&self) -> String {
        let names: Vec<String> = (0..self.count).map(|at| format!("%v{at}")).collect();
        if self.count == 1 { names[0].clone() } else { format!("{{{}}}", names.join(", ")) }
    }

    /// The operand of a cache policy, where the form has one.
    fn policy_operand(&self) -> &'static str {
        if self.policy { ", %policy" } else { "" }
    }

    /// The bytes that the threads access.
    fn data(&self) -> Vec<u8> {
        let mut random = Random::of(&self.spelled);
        (0..THREADS * self.bytes()).map(|_| random.bits() as u8).collect()
    }

    /// Declarations and addresses: `%in` and `%out` are the thread's places in the two buffers, whose strides are given;
    /// `%offset` is its place in an array of the accessed elements.
    fn start(&self, register: u32, strides: (usize, usize)) -> String {
        let policy = match self.policy {
            true => "    createpolicy.fractional.L2::evict_last.b64 %policy, 1.0;\n",
            false => "",
        };
        format!(
            "    .reg .b16 %byte;
    .reg .b32 %thread, %next, %offset, %shared;
    .reg .b64 %in, %out, %wide, %place, %policy;
    .reg .b{register} %v<{}>;
    .shared .align 16 .b8 block[{}];
    .local .align 16 .b8 own[64];

    mov.u32 %thread, %tid.x;
    ld.param.u64 %in, [input];
    ld.param.u64 %out, [output];
    cvta.to.global.u64 %in, %in;
    cvta.to.global.u64 %out, %out;
    mad.wide.u32 %in, %thread, {}, %in;
    mad.wide.u32 %out, %thread, {}, %out;
{policy}",
            self.count,
            THREADS * self.bytes(),
            strides.0,
            strides.1,
        )
    }
}

/// Copies so many bytes of the thread from one place to another, one at a time.
fn copied(bytes: usize, from: (&str, &str), to: (&str, &str)) -> String {
    let one =
        |at| format!("    ld.{}.u8 %byte, [{}+{at}];\n    st.{}.u8 [{}+{at}], %byte;\n", from.0, from.1, to.0, to.1);
    (0..bytes).map(one).collect()
}

/// The value of an element as a register of so many bits holds it, in 8 bytes.
fn extended(ty: Type, element: &[u8], register: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..element.len()].copy_from_slice(element);
    let value = u64::from_le_bytes(bytes);
    let unused = 64 - ty.bits();
    let value = if ty.kind() == Kind::Signed { ((value << unused) as i64 >> unused) as u64 } else { value };
    (value & (u64::MAX >> (64 - register))).to_le_bytes()
}

/// The load under test, from its space, and plain stores of what the registers hold.
fn load(form: &Form, register: u32) -> Case {
    let (bytes, data) = (form.bytes(), form.data());
    let mut body = form.start(register, (bytes, 8 * form.count));
    let mut before = String::new();
    // Which thread's element each thread gets.
    let mut source: fn(usize) -> usize = |thread| thread;
    let address = match form.space.as_str() {
        "" => {
            body += "    cvta.global.u64 %in, %in;\n";
            "%in"
        }
        "global" => "%in",
        "const" => {
            let list: Vec<String> = data.iter().map(u8::to_string).collect();
            before = format!(".const .align 16 .b8 table[{}] = {{{}}};\n", data.len(), list.join(", "));
            body += &format!("    mov.u64 %place, table;\n    mad.wide.u32 %place, %thread, {bytes}, %place;\n");
            "%place"
        }
        "shared" => {
            source = |thread| (thread + 1) % THREADS;
            body += &format!("    mov.u32 %shared, block;\n    mad.lo.u32 %offset, %thread, {bytes}, %shared;\n");
            body += &copied(bytes, ("global", "%in"), ("shared", "%offset"));
            body += &format!(
                "    bar.sync 0;\n    add.u32 %next, %thread, 1;\n    and.b32 %next, %next, {};\n    mad.lo.u32 %next, %next, {bytes}, %shared;\n",
                THREADS - 1
            );
            "%next"
        }
        "local" => {
            body += "    mov.u64 %place, own;\n";
            body += &copied(bytes, ("global", "%in"), ("local", "%place"));
            "%place"
        }
        _ => {
            source = |_| 0;
            "given"
        }
    };
    body += &format!("    {} {}, [{address}]{};\n", form.spelled, form.registers(), form.policy_operand());
    for at in 0..form.count {
        body += &format!("    st.global.b{register} [%out+{}], %v{at};\n", 8 * at);
    }
    body += "    ret;\n";
    let element = |thread: usize, at: usize| {
        let first = source(thread) * bytes + at * form.ty.bytes() as usize;
        extended(form.ty, &data[first..first + form.ty.bytes() as usize], register)
    };
    let expected = (0..THREADS).flat_map(|thread| (0..form.count).flat_map(move |at| element(thread, at))).collect();
    let mut parameters = ".param .u64 input, .param .u64 output".to_owned();
    let by_value = if form.space == "param" { data[..16].to_vec() } else { Vec::new() };
    if !by_value.is_empty() {
        parameters += ", .param .align 16 .b8 given[16]";
    }
    let output = vec![0; THREADS * 8 * form.count];
    let ptx = module(&form.spelled, &before, &parameters, &body);
    let mut case = program(&form.spelled, &ptx, (1, THREADS as u32), vec![data, output], vec![(1, expected)]);
    case.by_value = by_value;
    case
}

/// Plain loads of 8 bytes for each register, and the store under test; from shared and local memory the bytes come back
/// one by one.
fn store(form: &Form, register: u32) -> Case {
    let bytes = form.bytes();
    let mut random = Random::of(&form.spelled);
    let data: Vec<u8> = (0..THREADS * 8 * form.count).map(|_| random.bits() as u8).collect();
    let mut body = form.start(register, (8 * form.count, bytes));
    for at in 0..form.count {
        body += &format!("    ld.global.b{register} %v{at}, [%in+{}];\n", 8 * at);
    }
    let (address, back) = match form.space.as_str() {
        "" => {
            body += "    cvta.global.u64 %out, %out;\n";
            ("%out", None)
        }
        "shared" => {
            body += &format!("    mov.u32 %shared, block;\n    mad.lo.u32 %offset, %thread, {bytes}, %shared;\n");
            ("%offset", Some("shared"))
        }
        "local" => {
            body += "    mov.u64 %place, own;\n";
            ("%place", Some("local"))
        }
        _ => ("%out", None),
    };
    body += &format!("    {} [{address}], {}{};\n", form.spelled, form.registers(), form.policy_operand());
    if let Some(space) = back {
        body += &copied(bytes, (space, address), ("global", "%out"));
    }
    body += "    ret;\n";
    let expected = data.chunks(8).flat_map(|value| value[..form.ty.bytes() as usize].to_vec()).collect();
    let output = vec![0; THREADS * bytes];
    let ptx = module(&form.spelled, "", ".param .u64 input, .param .u64 output", &body);
    program(&form.spelled, &ptx, (1, THREADS as u32), vec![data, output], vec![(1, expected)])
}
