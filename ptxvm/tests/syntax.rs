//! The grammar: what `ptxas` accepts and refuses, and what the tree then holds.
//!
//! Each verdict of the tables was given by `ptxas` 13.0 (with `WARPWEFT_PTXAS` naming one, the first test asks it again).
//! Snippets that `ptxas` refuses for their types or names are not here: the parser knows no types.
#![forbid(unsafe_code)]

use warpweft_ptxvm::text::tree::{Initializer, Instruction, OperandKind, Statement};
use warpweft_ptxvm::text::{MAX_DEPTH, SyntaxErrorKind, parse};
use warpweft_ptxvm::types::{Space, Target, Type, Version};

const HEADER: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";

/// Statements within a kernel that has a few registers.
fn body(statements: &str) -> String {
    format!(
        "{HEADER}.global .u32 g[8];\n.visible .entry k(.param .u64 a) {{\n.reg .b32 %r<9>; .reg .b64 %rd<9>; \
         .reg .pred %p<9>; .reg .f32 %f<9>; .reg .f64 %d<9>; .reg .v4 .u32 %v; .shared .u32 s[16];\n{statements}\nret;\n}}\n"
    )
}

const GOOD_STATEMENTS: &[&str] = &[
    "add.u32 %r1, %r2, - 3;",
    "mov.f32 %f1, 1.e5;",
    "mov.f32 %f1, 09.5;",
    "mov.u32 %r1, 0U;",
    "add.s32%r1,%r2,%r3;",
    "vadd.s32.s32.s32 %r1, %r2.b0, %r3.h1;",
    "%L: bra %L;",
    "setp.eq.and.u32 %p1, %r1, %r2, ! %p2;",
    "mov.u32 %r1, 1+2;",
    "add.s32 %r1, %r2, (1<<4)|3;",
    "mov.u32 %r1, 1 ? 2 : 3;",
    "mov.u32 %r1, WARP_SZ-1;",
    "ld.global.u32 %r1, [g+4*2];",
    "ld.global.u32 %r1, [%rd1+4-8];",
    "ld.global.u32 %r1, [%rd1+-8];",
    "ld.global.u32 %r1, [g+(4)];",
    "ld.local.u32 %r1, [0];",
    "mov.u64 %rd1, g+4;",
    "mov.f32 %f1, 1.5;",
    "mov.f32 %f1, .5;",
    "mov.f32 %f1, 5.;",
    "mov.f32 %f1, 1e3;",
    "mov.f32 %f1, -1.5e-3;",
    "mov.f32 %f1, 0F3F800000;",
    "mov.f64 %d1, 0d3FF0000000000000;",
    "mov.f32 %f1, 1.5+2.0;",
    "mov.u64 %rd1, 18446744073709551615;",
    "mov.u32 %r1, 0b101;",
    "mov.u32 %r1, 0B101U;",
    "mov.u32 %r1, 017;",
    "mov.u32 %r1, 0XffU;",
    "mov.u32 %r1, -(3);",
    "mov.u32 %r1, !3;",
    "mov.u32 %r1, ~3;",
    "mov.u64 %rd1, (.s64)3;",
    "mov.u32 %r1, %v.x;",
    "mov.u32 %r1, %v.r;",
    "mov.u32 %r1, %tid .x;",
    "add .s32 %r1, %r2, %r3;",
    "add\n.s32\n%r1,\n%r2,%r3\n;",
    "mov.u32 %r1, 3; mov.u32 %r2,4;",
    "{ }",
    "L: L2:",
    "L: { bra L; }",
    "setp.eq.s32 %p1|%p2, %r1, %r2;",
    "setp.eq.s32 %p1 | %p2, %r1, %r2;",
    "setp.eq.s32 _|%p2, %r1, %r2;",
    "setp.eq.s32 %p1|_, %r1, %r2;",
    "mov.b64 {%r1,_}, %rd1;",
    "mov.b64 %rd1, {1,2};",
    "@!%p1 mov.u32 %r1, 3;",
    "@ ! %p1 mov.u32 %r1, 3;",
    "/* a /* b */ mov.u32 %r1, 3;",
    ".pragma \"nounroll\";",
    ".loc 1 2 3 mov.u32 %r1, 3;",
    " # 1 \"foo.cu\"",
    "bar.sync 0\n;",
    ".reg .u32 q<0x10>, w; mov.u32 w, q15;",
    ".reg .v4 .u32 q<3>; mov.u32 %r1, q2.x;",
    ".align 8 .local .b8 l[16];",
    ".shared .u32 x, y[3], z[2][3];",
    ".param .b32 p0, p1; st.param.b32 [p1+0], %r1;",
];

const BAD_STATEMENTS: &[&str] = &[
    "@%p1.x mov.u32 %r1, %r2;",
    "mov.u32 %r1, %tid.z.x;",
    "mov.u32 %r1, -%r2;",
    "mov.u32 %r1, 0x;",
    "mov.u32 %r1, 0b2;",
    "mov.f32 %f1, 1e;",
    "mov.f32 %f1, 1e+;",
    "mov.f32 %f1, 1..5;",
    "mov.f32 %f1, 1e999;",
    "mov.f32 %f1, 1.0/0.0;",
    "mov.f64 %d1, 1.5 % 2.0;",
    "mov.f64 %d1, ~1.5;",
    "mov.f64 %d1, !1.5;",
    "mov.f64 %d1, 1 ? 1.5 : 2;",
    "mov.u32 %r1, (1;",
    "mov.u32 %r1, 1+;",
    ".loc 1 2 3;",
    ".pragma nounroll;",
    "3L: bra 3L;",
    "_: bra _;",
    "mov.u32 %r1, 3,;",
    "mov.u32 %r1, \"abc\";",
    "mov . u32 %r1, 3;",
    "ld.global.u32 %r1, [%rd1-8];",
    "ld.global.u32 %r1, [4+%rd1];",
    "ld.global.u32 %r1, [(g+4)];",
    "ld.global.u32 %r1, [g][4];",
    "ld.global.u32 %r1, [%rd1;",
    "mov.u64 %rd1, g-4;",
    "mov.u64 %rd1, generic(g);",
    "mov.u64 %rd1, 4+g;",
    "mov.f32 %f1, 1.5f;",
    "mov.f32 %f1, -0f3f800000;",
    "mov.f32 %f1, 0f3F80000;",
    "mov.f32 %f1, 0f3F80000000;",
    "mov.f32 %f1, 0f3F800000+1.0;",
    "mov.u32 %r1, 019;",
    "mov.u32 %r1, 0xffu;",
    "mov.u32 %r1, 10UL;",
    "mov.u32 %r1, 7/0;",
    "mov.u32 %r1, 7%0;",
    "mov.u32 %r1, %tid. x;",
    "add. s32 %r1, %r2, %r3;",
    ";",
    "{ ; }",
    "@%p1 L: bra L;",
    "mov.b64 {%r1,%r2,}, %rd1;",
    "/* unterminated",
    "// ünïcode",
    "/* ünïcode */",
    ".pragma \"ü\";",
    ".pragma \"nounroll;",
    ".loc 1 2",
    "#pragma x",
    "mov.u32 %r1, 'a';",
    "mov.u32 %r1,;",
    "mov.u32 ,%r1;",
    "mov.u32 %r1 %r2;",
    "mov.u32 %r1, %r2",
    ".reg .u32 a<-1>;",
    ".reg .u32 a<1+2>;",
    ".reg .u32 a<99999999999>;",
    ".reg .u32 .v4 a;",
    ".shared .u32 x[-1];",
    ".shared .u32 x[1+2];",
    ".branchtargets A;",
    ".maxnreg 3;",
    "\0",
    "}",
];

const GOOD_MODULES: &[&str] = &[
    ".global .u32 x[2][2] = {{1},{2,3}};",
    ".global .u32 x[] = {1,2,3};",
    ".global .u32 x[][2] = {{1},{2}};",
    ".global .u32 x = 1;",
    ".global .u32 x[2] = {};",
    ".global .f32 x[2] = {0f3F800000, 0d3FF0000000000000};",
    ".global .u32 y; .global .u64 x[2] = {y, generic(y)};",
    ".global .u32 y; .global .u64 x[2] = {y+4, generic(y)+4};",
    ".global .u32 y; .global .u8 x[2] = {0xFF(y), 0xFF00(y)};",
    ".global .v4 .f32 x;",
    ".global .align 16 .b8 x[3] = {1, 2, -1};",
    ".global .attribute(.managed) .u32 x;",
    ".extern .shared .align 16 .b8 x[];",
    ".weak .shared .u32 x;",
    ".common .global .u32 x;",
    ".global .u32 x = 3, y = 4;",
    ".func f { ret; }",
    ".func (.reg .u32 r) f(.reg .u32 a, .reg .b64 b) { mov.u32 r, a; ret; }",
    ".extern .func (.param .b32 r) f(.param .b64 a, .param .align 8 .b8 b[16])\n;",
    ".func f(.param .b64 a) .noreturn { trap; }",
    ".entry k { ret; }",
    ".entry k(.param .u64 .ptr .global .align 16 a, .param .u64 .ptr b, .param .u32 .ptr .shared d) { ret; }",
    ".entry k() .maxntid 16,4,2 .minnctapersm 2 .pragma \"nounroll\"; { ret; }",
    ".entry k() .maxntid 128 .minnctapersm 2 .maxnreg 32 { ret; }",
    ".entry k() .reqntid 16, 4 { ret; }",
    ".entry k(.param .b32 .align 4 a, .param .b32 _) { ret; }",
    ".visible .func b() { ret; } .visible .func a(); .alias a, b;",
    ".file 1 \"a.cu\", 1234, 567",
    ".section .debug_x { .b8 1, 2\n.b32 3\nL: .b64 .debug_str+4\n}",
    ".entry a$b(){ ret; } .entry $x(){ret;} .entry _x(){ret;} .entry %x(){ret;} .entry add(){ret;}",
    ".func (.param .b32 r) f(.param .b64 a){ret;} .entry k(){ .reg .b64 %p; .param .b64 x; .param .b32 y; \
     call.uni (y), f, (x); call (y), f, (x); mov.u64 %p, f; pr: .callprototype (.param .b32 _) _ (.param .b64 _); \
     call (y), %p, (x), pr; ret; }",
    ".func f(){ret;} .entry k(){ .reg .b64 %p; call f; call f, (); call (), f, (); mov.u64 %p, f; t: .calltargets f; \
     call %p, (), t; ret; }",
    ".entry k(){ .reg .u32 %r; ts: .branchtargets A, B; mov.u32 %r, 0; A: brx.idx %r, ts; B: ret; }",
    ".entry k(){ ts: .branchtargets A<3>; A0: A1: A2: ret; }",
];

const BAD_MODULES: &[&str] = &[
    "@@DWARF .byte 0x1",
    ".global .u32 x[2][2] = {{1,2,3},{2,3}};",
    ".global .u32 x[2][2] = {1,2,3,4};",
    ".global .u32 x[2][2] = {{1},2};",
    ".global .u32 x = {1};",
    ".global .u32 x[2] = {1,};",
    ".global .u32 x[2] = 1;",
    ".global .u32 x[2] = {1, 2, 3};",
    ".global .u32 y; .global .u64 x[2] = {y-4, y};",
    ".global .u32 y; .global .u64 x[2] = {generic(y+4), y};",
    ".global .u32 y; .global .u64 x[2] = {4+y, y};",
    ".global .u32 y; .global .u8 x[2] = {0xFF(y)+1, 1};",
    ".global .v4 .f32 x = {1,2,3,4};",
    ".global .align 3 .u32 x;",
    ".global .u32 .attribute(.managed) x;",
    ".entry k(.param .b32 a,) { ret; }",
    ".entry k() .maxntid 16,4,2,1 { ret; }",
    ".entry k() { ret; };",
    ".entry k() { ret; } }",
    ".entry k() { ret;",
    ".entry 3() { ret; }",
    ".entry _() { ret; }",
    ".entry x-y() { ret; }",
    ".visible .visible .entry k() { ret; }",
    ".visible .weak .entry k() { ret; }",
    ".entry .attribute(.managed) f() { ret; }",
    ".section .debug_x { .b8 1 { } }",
    ".file 1 a.cu",
    ".target sm_80",
    ".version 8.0",
    ".address_size 64",
    "foo",
    "}",
];

fn each() -> impl Iterator<Item = (bool, String)> {
    let modules = |good, all: &'static [&str]| all.iter().map(move |text| (good, format!("{HEADER}{text}\n")));
    let statements = |good, all: &'static [&str]| all.iter().map(move |text| (good, body(text)));
    modules(true, GOOD_MODULES)
        .chain(modules(false, BAD_MODULES))
        .chain(statements(true, GOOD_STATEMENTS))
        .chain(statements(false, BAD_STATEMENTS))
}

#[test]
fn accepts_and_refuses_as_the_compiler_does() {
    for (good, text) in each() {
        let parsed = parse(&text);
        assert_eq!(parsed.is_ok(), good, "{text}\n{:?}", parsed.err());
    }
}

#[test]
fn the_compiler_still_gives_the_verdicts_of_the_tables() {
    let Some(ptxas) = std::env::var_os("WARPWEFT_PTXAS") else {
        return;
    };
    let folder = std::env::temp_dir().join(format!("warpweft-syntax-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let (input, output) = (folder.join("t.ptx"), folder.join("t.cubin"));
    for (good, text) in each() {
        std::fs::write(&input, &text).expect("a temporary file");
        let mut run = std::process::Command::new(&ptxas);
        let run = run.arg("-arch=sm_80").arg(&input).arg("-o").arg(&output).output().expect("ptxas runs");
        assert_eq!(run.status.success(), good, "{text}\n{}", String::from_utf8_lossy(&run.stderr));
    }
    std::fs::remove_dir_all(&folder).expect("the temporary folder can go");
}

/// The instructions of a kernel's body, without the final `ret`.
fn instructions(statements: &str) -> Vec<Instruction> {
    let module = parse(&body(statements)).unwrap_or_else(|error| panic!("{error}"));
    let all = module.functions[0].body.clone().expect("a body");
    let only = all.into_iter().filter_map(|statement| match statement {
        Statement::Instruction(instruction) => Some(instruction),
        _ => None,
    });
    let mut all: Vec<Instruction> = only.collect();
    all.pop();
    all
}

fn last_operand(statement: &str) -> OperandKind {
    let mut operands = instructions(statement).remove(0).operands;
    operands.pop().expect("an operand").kind
}

/// Values as `ptxas` 13.0 computes them (read from its machine code), where the ISA's table leaves room.
#[test]
fn constants_are_evaluated() {
    let integers: &[(&str, i128)] = &[
        ("0x2A", 42),
        ("0b101U", 5),
        ("017", 15),
        ("18446744073709551615", u64::MAX as i128),
        ("-1", -1),
        ("1+2*3", 7),
        ("(1<<4)|3", 19),
        ("10-3-2", 5),
        ("7/2", 3),
        ("-7/2", -3),
        ("-7 % 4", 1),
        ("-7/2U", 0x7FFF_FFFF_FFFF_FFFC),
        ("7/-2", -3),
        ("1<<64", 1),
        ("1<<-1", i64::MIN as i128),
        ("-8>>65", -4),
        ("-8U>>1", 0x7FFF_FFFF_FFFF_FFFC),
        ("(-8&-1)>>1", -4),
        ("~0>>1", 0x7FFF_FFFF_FFFF_FFFF),
        ("(.s64)0xFFFFFFFFFFFFFFF8 >> 1", -4),
        ("(3U-4)>>60", 15),
        ("(~3) < 0", 0),
        ("(4|3)-8 < 0", 1),
        ("2^3&1|8", 11),
        ("1+1<<2*1", 8),
        ("3 == 3 != 0", 1),
        ("2.9 > 1.5", 1),
        ("-8>>1", -4),
        ("~0", u64::MAX as i128),
        ("!0+1", 2),
        ("1 ? 2 : 3", 2),
        ("0 ? 2 : 1 ? 4 : 5", 4),
        ("(.u64)-1", u64::MAX as i128),
        ("1<2 && 2<=2 && 3!=4", 1),
        ("-1 < 0U", 0),
        ("WARP_SZ*2", 64),
        ("2^3&1", 3),
    ];
    for (text, value) in integers {
        match last_operand(&format!("mov.u64 %rd1, {text};")) {
            OperandKind::Integer(found) => assert_eq!(found, *value, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    let floats = [("1.5", 1.5), (".5", 0.5), ("5.", 5.0), ("1e3", 1e3), ("-1.5e-3", -1.5e-3), ("1.5+2", 3.5)];
    for (text, value) in floats {
        match last_operand(&format!("mov.f64 %d1, {text};")) {
            OperandKind::Double(bits) => assert_eq!(f64::from_bits(bits), value, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    assert!(matches!(last_operand("mov.f32 %f1, 0f3f800000;"), OperandKind::Single(0x3F80_0000)));
    assert!(matches!(last_operand("mov.f64 %d1, 0dBFF0000000000000;"), OperandKind::Double(0xBFF0_0000_0000_0000)));
}

#[test]
fn operands_are_what_they_look_like() {
    let all = instructions(
        "@!%p1 setp.eq.s32 %p2|_, %r1, %tid.x;\n ld.shared::cta.v2.b32 {%r1, _}, [s+-8];\n ld.global.b32 %r1, [%rd1+4*2];\n\
         selp.b32 %r1, 1, 0, !%p1; mov.u32 %r1, %v.g; cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes \
         [%r1+16], [%rd1, {%r1, %r2}], [%r3];",
    );
    let text = body("@!%p1 setp.eq.s32 %p2|_, %r1, %tid.x;");
    let (register, negated) = all[0].guard.clone().expect("a guard");
    assert_eq!((register.text.as_str(), negated), ("%p1", true));
    let span = all[0].span;
    assert_eq!(&text[span.start as usize..span.end as usize], "@!%p1 setp.eq.s32 %p2|_, %r1, %tid.x;");
    let modifiers = |at: usize| all[at].modifiers.iter().map(|name| name.text.as_str()).collect::<Vec<_>>();
    assert_eq!(modifiers(0), ["eq", "s32"]);
    assert_eq!(modifiers(1), ["shared::cta", "v2", "b32"]);
    assert_eq!(modifiers(5)[3..], ["2d", "shared::cluster", "global", "mbarrier::complete_tx::bytes"]);
    let OperandKind::Pair(first, second) = &all[0].operands[0].kind else { panic!("{:?}", all[0].operands) };
    assert!(matches!(&first.kind, OperandKind::Name(name) if name == "%p2"));
    assert!(matches!(second.kind, OperandKind::Sink));
    assert!(matches!(&all[0].operands[2].kind, OperandKind::Name(name) if name == "%tid.x"));
    let address = |at: usize, operand: usize| match &all[at].operands[operand].kind {
        OperandKind::Address { base, offset } => (base.as_ref().map(|name| name.text.clone()), *offset),
        other => panic!("{other:?}"),
    };
    assert_eq!(address(1, 1), (Some("s".into()), -8));
    assert_eq!(address(2, 1), (Some("%rd1".into()), 8));
    assert!(matches!(&all[3].operands[3].kind, OperandKind::Not(name) if name == "%p1"));
    assert!(matches!(&all[4].operands[1].kind, OperandKind::Name(name) if name == "%v.y"));
    assert_eq!(address(5, 0), (Some("%r1".into()), 16));
    assert!(matches!(&all[5].operands[1].kind, OperandKind::Addresses(parts) if parts.len() == 2));
}

#[test]
fn a_module_holds_what_its_text_says() {
    let text = ".version 8.7\n.target sm_90a, debug\n.address_size 64\n.file 3 \"k.cu\"\n\
        .visible .const .align 16 .b8 table[8] = {1, 2};\n.global .u64 where[2] = {generic(table)+4, 0xFF00(table)};\n\
        .global .f32 grid[2][3] = {{1.0}, {2.0, 3.0}};\n\
        .extern .shared .align 1024 .b8 smem[];\n\
        .visible .entry k(.param .u64 .ptr .global .align 16 x, .param .align 8 .b8 s[24]) .reqntid 128 .minnctapersm 2\n\
        { .reg .pred %p<3>; { .reg .b32 %p1; } .loc 3 7 5, function_name $L__info_string0, inlined_at 3 9 1\n\
        L: @%p1 bra L; ts: .branchtargets L, L; ret; }";
    let module = parse(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(module.version, Version(8, 7));
    assert_eq!(module.target, Target { sm: 90, specific: true });
    assert_eq!((module.address_bits, module.files.as_slice()), (64, [(3, "k.cu".to_owned())].as_slice()));
    let [table, place, grid, smem] = module.variables.as_slice() else { panic!("{:?}", module.variables) };
    assert_eq!((table.space, table.align, table.ty, &table.dims[..]), (Space::Const, Some(16), Type::B8, &[8][..]));
    assert_eq!(table.init, [Initializer::Integer(1), Initializer::Integer(2)]);
    assert!(matches!(&place.init[0], Initializer::Address { name, generic: true, addend: 4 } if name.text == "table"));
    assert!(matches!(&place.init[1], Initializer::AddressByte { shift: 8, generic: false, .. }));
    let float = |value: f64| Initializer::Float(value.to_bits());
    assert_eq!(grid.init, [float(1.0), Initializer::Integer(0), Initializer::Integer(0), float(2.0), float(3.0)]);
    assert_eq!((smem.space, smem.align, &smem.dims[..]), (Space::Shared, Some(1024), &[0][..]));
    let kernel = &module.functions[0];
    assert_eq!(kernel.params[0].pointer, Some((Space::Global, 16)));
    assert_eq!((kernel.params[1].align, &kernel.params[1].dims[..]), (Some(8), &[24][..]));
    assert_eq!((kernel.required_block, kernel.min_blocks), (Some([128, 1, 1]), Some(2)));
    let body = kernel.body.as_ref().expect("a body");
    assert!(matches!(&body[0], Statement::Registers { ty: Type::Pred, names, .. } if names[0].1 == Some(3)));
    assert!(matches!(&body[1], Statement::Scope(inner) if inner.len() == 1));
    assert!(matches!(&body[2], Statement::Loc(loc) if (loc.file, loc.line, loc.column) == (3, 7, 5)));
    assert!(matches!(&body[5], Statement::BranchTargets(label, targets) if label.text == "ts" && targets.len() == 2));
}

#[test]
fn errors_say_where_and_what() {
    let error = parse(&format!("{HEADER}.entry k() {{\n  mov.u32 %r1 %r2;\n}}\n")).expect_err("no comma");
    assert_eq!((error.position.line, error.position.column), (5, 15));
    let expected = "line 5, column 15: expected `,` or `;`, found `%r2`\n\
                    5 |   mov.u32 %r1 %r2;\n  |               ^";
    assert_eq!(error.to_string(), expected);
    let long = format!("{HEADER}{} \u{e9}", " ".repeat(100_000));
    let error = parse(&long).expect_err("not ASCII");
    assert_eq!(error.kind, SyntaxErrorKind::Character('\u{e9}'));
    assert_eq!((error.position.line, error.position.column), (4, 100_002));
    assert!(error.to_string().len() < 400);
    let end = parse(&format!("{HEADER}.entry k() {{")).expect_err("no end");
    assert_eq!((end.position.line, end.position.column), (4, 13));
}

/// Nothing that nests overflows the stack, nothing large costs more than its own length.
#[test]
fn depth_and_size_are_bounded() {
    let deep = 1_000_000;
    let nested = ["{", "(", "!", "-", "[", "1?", "1?1:", "1+(", "{("];
    for open in nested {
        let texts = [body(&open.repeat(deep)), body(&format!("mov.b32 %r1, {}", open.repeat(deep)))];
        for text in texts {
            parse(&text).expect_err("too deep, or never closed");
        }
    }
    let within = MAX_DEPTH as usize - 1;
    parse(&body(&format!("{}{}", "{".repeat(within), "}".repeat(within)))).expect("so deep is allowed");
    let flat = format!("mov.u32 %r1, {}1;", "1+".repeat(deep));
    parse(&body(&flat)).expect("a long sum does not nest");
    let rows = format!("{HEADER}.global .u32 x[9999999][9999999] = {{{{1}},{{2}}}};");
    let error = parse(&rows).expect_err("too many zeros");
    assert!(matches!(error.kind, SyntaxErrorKind::TooMuchPadding { .. }), "{error}");
    let large = parse(&body("mov.u64 %rd1, 18446744073709551616;")).expect_err("65 bits");
    assert!(matches!(large.kind, SyntaxErrorKind::IntegerTooLarge(_, 64)), "{large}");
    let comments = body(&"/* */".repeat(deep));
    parse(&comments).expect("comments cost their length");
    parse(&body(&"/*".repeat(deep))).expect_err("one comment that never ends");
}
