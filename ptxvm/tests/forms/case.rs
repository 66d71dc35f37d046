//! A case: one instruction form, a module that executes it, and what it must give.

use warpweft_ptxvm::table::TABLE;
use warpweft_ptxvm::types::{Target, Type, Version};

use crate::inputs;

/// What an instruction gives for its sources, by the ISA's text: bits of each source in the order of the operands
/// (predicates 0 or 1, immediates too), to the bits of each destination.
pub(crate) type Definition = Box<dyn Fn(&[u64]) -> Vec<u64>>;

/// Whether a result is one that the ISA allows: sources, then the result's bits.
pub(crate) type Acceptance = Box<dyn Fn(&[u64], &[u64]) -> bool>;

/// What a case expects.
pub(crate) enum Expectation {
    /// Destination bits of each thread.
    Bits(Vec<Vec<u64>>),
    /// Any that is accepted.
    Accepted(Acceptance),
    /// The kernel is stopped, by an instruction that says so.
    Stops,
    /// It does not run: the launch is refused, and the form is named.
    Refused,
    /// Whole buffers: the index of the argument and its bytes after the launch.
    Buffers(Vec<(usize, Vec<u8>)>),
}

/// One form under test.
pub(crate) struct Case {
    /// The form as the list spells it: `atom.global.gpu.acq_rel.exch.b32`.
    pub(crate) form: String,
    /// Empty, or what tells it from other cases of the form.
    pub(crate) variant: String,
    /// The module; its entry is `test`.
    pub(crate) ptx: String,
    /// Grid and block, in x.
    pub(crate) launch: (u32, u32),
    /// Arguments: buffers, in the order of the entry's parameters.
    pub(crate) buffers: Vec<Vec<u8>>,
    /// The last argument, by value; empty for none.
    pub(crate) by_value: Vec<u8>,
    /// Sources of each thread, for [`Expectation::Accepted`] and messages.
    pub(crate) sources: Vec<Vec<u64>>,
    /// Bits of each destination, in the order of the operands.
    pub(crate) result_bits: Vec<u32>,
    /// Operands, for what runs the instruction alone; empty for a case that is more than one instruction.
    pub(crate) operands: Vec<Operand>,
    /// What comes out.
    pub(crate) expected: Expectation,
}

impl Case {
    /// Tells apart several cases of one form.
    pub(crate) fn named(mut self, what: &str) -> Case {
        self.variant = format!("-{what}");
        self
    }

    /// How many results are compared.
    pub(crate) fn results(&self) -> usize {
        match &self.expected {
            Expectation::Buffers(buffers) => buffers.iter().map(|(_, bytes)| bytes.len() / 4).sum(),
            Expectation::Stops | Expectation::Refused => 1,
            _ => self.sources.len() * self.result_bits.len(),
        }
    }

    /// The name of its module's file.
    pub(crate) fn file_name(&self) -> String {
        format!("{}{}.ptx", self.form.replace("::", "--"), self.variant)
    }
}

/// A case that is a whole module of its own: entry `test`, whose parameters are the addresses of the buffers in order.
/// `expected` names buffers and their bytes after the launch. The text must hold the form as it is spelled.
pub(crate) fn program(
    form: &str,
    ptx: &str,
    launch: (u32, u32),
    buffers: Vec<Vec<u8>>,
    expected: Vec<(usize, Vec<u8>)>,
) -> Case {
    let spelled = ptx.match_indices(form).any(|(at, _)| {
        let (before, after) = (ptx[..at].chars().next_back(), ptx[at + form.len()..].chars().next());
        before.is_none_or(|before| before.is_whitespace() || before == ';')
            && after.is_some_and(|after| after.is_whitespace() || after == ';')
    });
    assert!(spelled, "{form}: its module does not hold it:\n{ptx}");
    Case {
        form: form.to_owned(),
        variant: String::new(),
        ptx: ptx.to_owned(),
        launch,
        buffers,
        by_value: Vec::new(),
        sources: Vec::new(),
        result_bits: Vec::new(),
        operands: Vec::new(),
        expected: Expectation::Buffers(expected),
    }
}

/// The text of a module for a form: its header, what stands before the entry, and the entry `test` with its parameters
/// and body.
pub(crate) fn module(form: &str, before: &str, parameters: &str, body: &str) -> String {
    let (version, target) = required(form);
    format!(
        ".version {version}\n.target {target}\n.address_size 64\n\n{before}.visible .entry test({parameters})\n{{\n{body}}}\n"
    )
}

/// Threads of a block of an operation's launch.
const BLOCK: usize = 128;

/// An operation of registers to registers under construction: the harness loads its sources from a buffer, one tuple a
/// thread, executes it, and stores its destinations.
pub(crate) struct Operation {
    form: String,
    operands: Vec<Operand>,
    immediates: Vec<Vec<u64>>,
    values: Option<Vec<Vec<u64>>>,
    define: Definition,
    accept: Option<Acceptance>,
}

/// One operand of the text.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    /// Its part in the instruction.
    pub(crate) kind: Kind,
    /// What it holds.
    pub(crate) ty: Type,
    /// Elements of a braced vector; 0 is a scalar.
    pub(crate) count: usize,
}

/// The part of an operand in its instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Destination,
    /// The second half of `d|p`.
    Pair,
    Source,
    Immediate,
    /// The carry flag, which the text does not name.
    CarryIn,
    CarryOut,
}

/// An operation: its form, its operands (`d:s32 |p:pred a:s32 b:s32 #immLut >cc <cc v:b16*2`; names beginning with `d`
/// are destinations), and its definition.
pub(crate) fn operation(form: &str, operands: &str, define: impl Fn(&[u64]) -> Vec<u64> + 'static) -> Operation {
    let operand = |word: &str| {
        let flag = |kind| Operand { kind, ty: Type::Pred, count: 0 };
        match word {
            ">cc" => return flag(Kind::CarryOut),
            "<cc" => return flag(Kind::CarryIn),
            _ => {}
        }
        if word.starts_with('#') {
            return Operand { kind: Kind::Immediate, ty: Type::B32, count: 0 };
        }
        let (name, ty) = word.split_once(':').expect("an operand is name:type");
        let (ty, count) = ty.split_once('*').map_or((ty, 0), |(ty, count)| (ty, count.parse().expect("a count")));
        let kind = match name.as_bytes()[0] {
            b'd' => Kind::Destination,
            b'|' => Kind::Pair,
            _ => Kind::Source,
        };
        Operand { kind, ty: Type::from_name(ty).expect("a type"), count }
    };
    Operation {
        form: form.to_owned(),
        operands: operands.split_whitespace().map(operand).collect(),
        immediates: vec![Vec::new()],
        values: None,
        define: Box::new(define),
        accept: None,
    }
}

impl Operation {
    /// One instruction for each list of immediates.
    pub(crate) fn immediates(mut self, variants: impl IntoIterator<Item = Vec<u64>>) -> Operation {
        self.immediates = variants.into_iter().collect();
        self
    }

    /// These sources (immediates left out) in place of corner values and random ones.
    pub(crate) fn values(mut self, values: Vec<Vec<u64>>) -> Operation {
        self.values = Some(values);
        self
    }

    /// Accepts what the function says instead of the definition's bits alone.
    pub(crate) fn accept(mut self, accept: impl Fn(&[u64], &[u64]) -> bool + 'static) -> Operation {
        self.accept = Some(Box::new(accept));
        self
    }

    /// The finished case.
    pub(crate) fn case(self) -> Case {
        let types: Vec<Type> = self.sources().flat_map(|operand| vec![operand.ty; operand.count.max(1)]).collect();
        let mut tuples = self.values.clone().unwrap_or_else(|| inputs::tuples(&self.form, &types));
        for at in 0..(BLOCK - tuples.len() % BLOCK) % BLOCK {
            tuples.push(tuples[at % tuples.len()].clone());
        }
        let input = tuples.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
        let results = self.results();
        let sources: Vec<Vec<u64>> = tuples
            .iter()
            .flat_map(|tuple| self.immediates.iter().map(|imm| self.with_immediates(tuple, imm)))
            .collect();
        let expected: Vec<Vec<u64>> = sources.iter().map(|sources| (self.define)(sources)).collect();
        let output = vec![0u8; 8 * results.len() * sources.len()];
        let ptx = self.module(types.len(), results.len());
        Case {
            variant: String::new(),
            ptx,
            launch: ((tuples.len() / BLOCK) as u32, BLOCK as u32),
            buffers: vec![input, output],
            by_value: Vec::new(),
            sources,
            result_bits: results,
            operands: self.operands,
            expected: self.accept.map_or(Expectation::Bits(expected), Expectation::Accepted),
            form: self.form,
        }
    }

    /// Operands that the kernel loads, in order.
    fn sources(&self) -> impl Iterator<Item = &Operand> {
        self.operands.iter().filter(|operand| matches!(operand.kind, Kind::Source | Kind::CarryIn))
    }

    /// Bits of each destination as it is stored.
    fn results(&self) -> Vec<u32> {
        let written = |operand: &&Operand| matches!(operand.kind, Kind::Destination | Kind::Pair | Kind::CarryOut);
        self.operands
            .iter()
            .filter(written)
            .flat_map(|operand| vec![stored_bits(operand.ty); operand.count.max(1)])
            .collect()
    }

    /// The sources of a variant, immediates at their places.
    fn with_immediates(&self, tuple: &[u64], immediates: &[u64]) -> Vec<u64> {
        let (mut loaded, mut immediates) = (tuple.iter(), immediates.iter());
        let mut all = Vec::new();
        for operand in &self.operands {
            match operand.kind {
                Kind::Source | Kind::CarryIn => all.extend(loaded.by_ref().take(operand.count.max(1))),
                Kind::Immediate => all.extend(immediates.next()),
                _ => {}
            }
        }
        all
    }

    /// The module's text: `sources` values are loaded and `results` are stored for each variant.
    fn module(&self, sources: usize, results: usize) -> String {
        let mut body = String::new();
        let mut registers = String::new();
        let mut names = vec![String::new(); self.operands.len()];
        let mut slot = 0;
        for (at, operand) in self.operands.iter().enumerate() {
            let count = operand.count.max(1);
            let parts: Vec<String> = (0..count).map(|part| format!("%x{at}_{part}")).collect();
            if operand.kind != Kind::Immediate {
                for part in &parts {
                    registers += &format!("    .reg .{} {part};\n", register_type(operand.ty));
                }
            }
            if matches!(operand.kind, Kind::Source | Kind::CarryIn) {
                for part in &parts {
                    body += &load(part, operand.ty, 8 * slot);
                    slot += 1;
                }
            }
            names[at] = if operand.count > 0 { format!("{{{}}}", parts.join(", ")) } else { parts[0].clone() };
        }
        for (variant, immediates) in self.immediates.iter().enumerate() {
            body += &self.variant(&names, immediates, 8 * variant * results);
        }
        let stride = (8 * sources, 8 * results * self.immediates.len());
        let start = format!(
            "    .reg .b32 %x, %block, %thread, %flag, %scratch;
    .reg .b64 %in, %out;
{registers}
    mov.u32 %x, %tid.x;
    mov.u32 %block, %ctaid.x;
    mad.lo.u32 %thread, %block, {BLOCK}, %x;
    ld.param.u64 %in, [input];
    ld.param.u64 %out, [output];
    cvta.to.global.u64 %in, %in;
    cvta.to.global.u64 %out, %out;
    mad.wide.u32 %in, %thread, {}, %in;
    mad.wide.u32 %out, %thread, {}, %out;
",
            stride.0, stride.1,
        );
        let parameters = ".param .u64 input, .param .u64 output";
        module(&self.form, "", parameters, &format!("{start}{body}    ret;\n"))
    }

    /// One execution of the instruction, and the stores of what it gives.
    fn variant(&self, names: &[String], immediates: &[u64], offset: usize) -> String {
        let mut immediates = immediates.iter();
        let mut text: Vec<String> = Vec::new();
        let mut before = String::new();
        let mut after = String::new();
        let mut result = offset;
        let borrow = self.form.starts_with("sub");
        for (operand, name) in self.operands.iter().zip(names) {
            match operand.kind {
                Kind::Destination => text.push(name.clone()),
                Kind::Pair => {
                    let first = text.pop().expect("a pair follows a destination");
                    text.push(format!("{first}|{name}"));
                }
                Kind::Source => text.push(name.clone()),
                Kind::Immediate => text.push(immediates.next().expect("an immediate a variant").to_string()),
                Kind::CarryIn if borrow => {
                    before += &format!("    selp.u32 %flag, 1, 0, {name};\n    sub.cc.u32 %scratch, 0, %flag;\n")
                }
                Kind::CarryIn => {
                    before +=
                        &format!("    selp.u32 %flag, 1, 0, {name};\n    add.cc.u32 %scratch, %flag, 0xffffffff;\n")
                }
                Kind::CarryOut if borrow => {
                    after += &format!("    subc.u32 %flag, 0, 0;\n    setp.ne.u32 {name}, %flag, 0;\n")
                }
                Kind::CarryOut => after += &format!("    addc.u32 %flag, 0, 0;\n    setp.ne.u32 {name}, %flag, 0;\n"),
            }
        }
        for (operand, name) in self.operands.iter().zip(names) {
            if matches!(operand.kind, Kind::Destination | Kind::Pair | Kind::CarryOut) {
                for part in name.trim_matches(['{', '}']).split(", ") {
                    after += &store(part, operand.ty, result);
                    result += 8;
                }
            }
        }
        format!("{before}    {} {};\n{after}", self.form, text.join(", "))
    }
}

/// The lowest `.version` and `.target` that the table gives the form, the modifiers that came later, and at least those of
/// sm_80.
pub(crate) fn required(form: &str) -> (Version, Target) {
    let mut words = form.split('.');
    let name = words.next().unwrap_or_default();
    let words: Vec<&str> = words.collect();
    let (row, _) = TABLE.find(name, &words).unwrap_or_else(|| panic!("{form}: no row of the table has it"));
    let target = row.target.max(Target::SM_80);
    let has = |start: &str| words.iter().any(|word| word.starts_with(start));
    let floor = match () {
        _ if has("bulk") && has("shared::cta") && !words.contains(&"bulk_group") => Version(8, 6),
        _ if target.sm > 80 || (name == "mbarrier" && (has("release") || has("acquire"))) => Version(8, 0),
        _ if has("shared::cta") || (name.starts_with("bar") && words[0] == "cta") => Version(7, 8),
        _ if name == "cvta" && has("param") => Version(7, 7),
        _ if has("L1::") || has("L2::") => Version(7, 4),
        _ => Version(7, 0),
    };
    (row.version.max(floor), target)
}

/// The type that a register of a value is declared with; values of 8 bits live in registers of 32.
fn register_type(ty: Type) -> &'static str {
    match ty.bits() {
        1 => "pred",
        16 => "b16",
        64 => "b64",
        _ => "b32",
    }
}

/// Bits that are stored of a destination: an 8-bit result is extended to its 32-bit register.
fn stored_bits(ty: Type) -> u32 {
    match ty.bits() {
        1 | 8 => 32,
        bits => bits,
    }
}

fn load(register: &str, ty: Type, offset: usize) -> String {
    match ty.bits() {
        1 => format!("    ld.global.u32 %flag, [%in+{offset}];\n    setp.ne.u32 {register}, %flag, 0;\n"),
        bits => format!("    ld.global.b{} {register}, [%in+{offset}];\n", bits.max(16) + 16 * u32::from(bits == 8)),
    }
}

fn store(register: &str, ty: Type, offset: usize) -> String {
    match ty.bits() {
        1 => format!("    selp.u32 %flag, 1, 0, {register};\n    st.global.u32 [%out+{offset}], %flag;\n"),
        _ => format!("    st.global.b{} [%out+{offset}], {register};\n", stored_bits(ty)),
    }
}
