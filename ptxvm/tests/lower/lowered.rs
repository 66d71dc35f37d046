//! What a program is lowered to: places, layouts, meeting points, messages.

use std::sync::Arc;

use warpweft_ptxvm::lower::{self, CompileError, Options};
use warpweft_ptxvm::program::{Action, Address, AddressBase, Function, Program};
use warpweft_ptxvm::types::Space;

fn module(text: &str) -> Result<Arc<Program>, CompileError> {
    lower::compile(&format!(".version 8.7\n.target sm_80\n.address_size 64\n{text}"))
}

fn function(body: &str) -> Function {
    let program = module(&format!(".visible .entry k() {{\n{body}\nret;\n}}\n")).expect("the body compiles");
    program.functions[0].clone()
}

/// (line of the branch, line where its paths meet; 0 where they do not). Lines count from the body's first.
fn meetings(body: &str) -> Vec<(u32, u32)> {
    let function = function(body);
    let line = |at: u32| function.code.get(at as usize).map_or(0, |instruction| instruction.site.line - 4);
    let branch = |at: usize| match &function.code[at].action {
        Action::Branch(branch) if function.code[at].guard.is_some() => Some((line(at as u32), line(branch.reconverge))),
        Action::BranchIndexed { reconverge, .. } => Some((line(at as u32), line(*reconverge))),
        _ => None,
    };
    (0..function.code.len()).filter_map(branch).collect()
}

const P: &str = ".reg .pred p; .reg .b32 r; .reg .u32 i;\n";

#[test]
fn branches_meet_at_the_post_dominator() {
    // if, if-else, loop, and a loop with a second way out.
    assert_eq!(meetings(&format!("{P}@p bra L;\nmov.b32 r,1;\nL: mov.b32 r,2;")), [(2, 4)]);
    assert_eq!(meetings(&format!("{P}@p bra L;\nmov.b32 r,1;\nbra M;\nL: mov.b32 r,2;\nM: mov.b32 r,3;")), [(2, 6)]);
    assert_eq!(meetings(&format!("{P}L: mov.b32 r,1;\n@p bra L;\nmov.b32 r,2;")), [(3, 4)]);
    let two = "L: mov.b32 r,1;\n@p bra M;\n@p bra L;\nmov.b32 r,2;\nM: mov.b32 r,3;";
    assert_eq!(meetings(&format!("{P}{two}")), [(3, 6), (4, 6)]);
}

#[test]
fn paths_that_end_early_do_not_keep_the_others_apart() {
    // The inner branch leaves the kernel; the outer one's paths still meet at the last line but one.
    for end in ["ret;", "exit;", "trap;"] {
        let body = format!("{P}@p bra E;\n@p bra X;\nmov.b32 r,1;\nbra M;\nX: {end}\nE: mov.b32 r,2;\nM: mov.b32 r,3;");
        assert_eq!(meetings(&body), [(2, 8), (3, 4)], "{end}");
    }
    // A guarded exit is no branch at all.
    let body = format!("{P}@p bra E;\n@p exit;\nmov.b32 r,1;\nbra M;\nE: mov.b32 r,2;\nM: mov.b32 r,3;");
    assert_eq!(meetings(&body), [(2, 7)]);
}

#[test]
fn loops_without_end_and_irreducible_flow_do_not_break_it() {
    assert_eq!(meetings(&format!("{P}L: mov.b32 r,1;\n@p bra M;\nmov.b32 r,2;\nM: bra L;")), [(3, 5)]);
    // Two entries into one loop.
    let body = format!("{P}@p bra B;\nA: mov.b32 r,1;\nB: mov.b32 r,2;\n@p bra A;\nmov.b32 r,3;");
    assert_eq!(meetings(&body), [(2, 4), (5, 6)]);
    let body = format!(
        "{P}T: .branchtargets A,B,C;\nbrx.idx i,T;\nA: mov.b32 r,1;\nbra M;\nB: mov.b32 r,2;\nbra M;\n\
         C: mov.b32 r,3;\nM: mov.b32 r,4;"
    );
    assert_eq!(meetings(&body), [(3, 9)]);
    // What nothing reaches is lowered all the same.
    assert_eq!(meetings(&format!("{P}bra M;\n@p bra M;\nmov.b32 r,1;\nM: mov.b32 r,2;")), [(3, 5)]);
}

#[test]
fn registers_share_slots_only_where_they_may() {
    // a and b are never needed at once; c is needed across both.
    let body = ".reg .b32 a,b,c; .reg .u64 g;\nld.global.b32 c,[g];\nld.global.b32 a,[g];\nst.global.b32 [g],a;\n\
                ld.global.b32 b,[g];\nst.global.b32 [g],b;\nst.global.b32 [g],c;";
    let narrow = |function: &Function, at: usize| function.code[at].operands[0];
    let compact = function(body);
    assert_eq!(compact.registers.narrow, 2);
    assert_eq!(narrow(&compact, 1), narrow(&compact, 3), "a and b");
    assert_ne!(narrow(&compact, 0), narrow(&compact, 1), "c and a");
    let text = format!(".version 8.7\n.target sm_80\n.address_size 64\n.entry k() {{ {body} }}");
    let loose = lower::compile_with(&text, Options { compact: false }).expect("it compiles");
    assert_eq!(loose.functions[0].registers.narrow, 3);
}

#[test]
fn a_guarded_write_keeps_the_value_of_the_other_lanes() {
    // Without the guard x is new in every turn of the loop; with it, lanes that skip the write keep the last turn's.
    let body = |guard: &str| {
        format!(
            ".reg .pred p,q; .reg .b32 x,y; .reg .u64 g;\nL: {guard} mov.b32 x,1;\nst.global.b32 [g],x;\n\
             ld.global.b32 y,[g];\nst.global.b32 [g],y;\n@q bra L;"
        )
    };
    let constants = 1;
    assert_eq!(function(&body("")).registers.narrow, constants + 1, "x and y take turns");
    assert_eq!(function(&body("@p")).registers.narrow, constants + 2, "x is needed while y lives");
}

#[test]
fn a_value_needed_again_in_a_loop_lives_through_it() {
    let body = ".reg .pred p; .reg .b32 x,y; .reg .u64 g;\nld.global.b32 x,[g];\nL: st.global.b32 [g],x;\n\
                ld.global.b32 y,[g];\nst.global.b32 [g],y;\n@p bra L;";
    assert_eq!(function(body).registers.narrow, 2);
}

#[test]
fn shared_memory_holds_what_the_kernel_reaches() {
    let program = module(
        ".shared .align 4 .b8 a[100]; .shared .align 1024 .b8 b[16]; .extern .shared .align 128 .b8 d[];\n\
         .func f() { .shared .b32 own; .reg .b32 r; ld.shared.b32 r,[own]; ret; }\n\
         .entry one() { .reg .b32 r; ld.shared.b32 r,[a]; ret; }\n\
         .entry two() { .reg .b32 r; ld.shared.b32 r,[a+8]; ld.shared.b32 r,[b]; ld.shared.b32 r,[d+4]; ret; }\n\
         .entry three() { call f; ret; }\n\
         .entry none() { ret; }",
    )
    .expect("it compiles");
    let bytes = |name: &str| {
        let function = program.functions.iter().find(|function| function.name == name).expect("it is there");
        (function.shared_bytes, function.dynamic_shared)
    };
    assert_eq!(bytes("one"), (100, 100));
    assert_eq!(bytes("two"), (1040, 2048));
    assert_eq!(bytes("three"), (4, 4));
    assert_eq!(bytes("none"), (0, 0));
    let two = program.functions.iter().find(|function| function.name == "two").expect("it is there");
    let addresses = two.code.iter().filter_map(|instruction| match &instruction.action {
        Action::Load(load) => Some(load.address),
        _ => None,
    });
    let at = |offset| Address { base: AddressBase::Absolute, offset, space: Space::Shared };
    assert_eq!(addresses.collect::<Vec<_>>(), [at(8), at(1024), at(2052)]);
}

#[test]
fn parameters_are_laid_out_by_their_alignment() {
    let program = module(
        ".entry k(.param .u8 a, .param .u64 b, .param .u16 c, .param .align 16 .b8 d[20], .param .f32 e) { ret; }",
    )
    .expect("it compiles");
    let places = program.functions[0].params.iter().map(|param| (param.offset, param.bytes));
    assert_eq!(places.collect::<Vec<_>>(), [(0, 1), (8, 8), (16, 2), (32, 20), (52, 4)]);
    assert_eq!(program.functions[0].param_bytes, 56);
}

#[test]
fn variables_hold_their_first_values() {
    let program = module(
        ".global .align 4 .u16 a[4] = {1,2,0xffff}; .const .f32 b[2] = {0f3F800000, 2.0};\n\
         .global .u64 c[2] = {a+2, generic(a)}; .global .f64 d = 1.5; .global .b8 e[1024];\n\
         .global .align 8 .u8 f[8] = {0xFF(a+1),0xFF00(a+1),0xFF0000(a+1),0xFF000000(a+1),0xFF00000000(a+1),\
         0xFF0000000000(a+1),0xFF000000000000(a+1),0xFF00000000000000(a+1)};\n\
         .entry k() { ret; }",
    )
    .expect("it compiles");
    let [a, b, c, d, e, f] = program.variables.as_slice() else { panic!("six variables") };
    assert_eq!((a.init.as_slice(), a.bytes, a.align), ([1, 0, 2, 0, 0xff, 0xff].as_slice(), 8, 4));
    assert_eq!((b.init.as_slice(), b.space), ([0, 0, 0x80, 0x3f, 0, 0, 0, 0x40].as_slice(), Space::Const));
    assert_eq!(c.addresses, [(0, 0, 2), (8, 0, 0)]);
    assert_eq!(d.init, 1.5f64.to_le_bytes());
    assert_eq!((e.init.len(), e.bytes), (0, 1024));
    assert_eq!((f.addresses.as_slice(), f.init.len()), ([(0, 0, 1)].as_slice(), 8));
}

#[test]
fn call_parameters_share_the_frame_scope_by_scope() {
    let program = module(
        ".func (.param .b32 r) f(.param .align 8 .b8 a[16], .param .b32 b) { st.param.b32 [r],1; ret; }\n\
         .entry k() { .local .align 8 .b8 depot[8]; .reg .b64 x;\n\
         { .param .align 8 .b8 p[16]; .param .b32 q; .param .b32 v; st.param.b64 [p+8],x; call (v),f,(p,q); }\n\
         { .param .align 8 .b8 p[16]; .param .b32 q; .param .b32 v; call (v),f,(p,q); } ret; }",
    )
    .expect("it compiles");
    let [f, k] = program.functions.as_slice() else { panic!("two functions") };
    assert_eq!(f.returns, Some((0, 4)));
    let calls: Vec<_> = k
        .code
        .iter()
        .filter_map(|instruction| match &instruction.action {
            Action::Call(call) => Some((call.arguments.clone(), call.result)),
            _ => None,
        })
        .collect();
    assert_eq!(calls, [(vec![8, 24], Some(28)), (vec![8, 24], Some(28))]);
    assert_eq!(k.local_bytes, 32);
}

#[test]
fn forms_that_do_not_run_are_listed_by_name() {
    let text = ".version 8.7\n.target sm_90a\n.address_size 64\n.entry k() {\n.reg .b64 s; .reg .pred p;\n\
                mbarrier.init.shared::cta.b64 [s], 1;\nwgmma.fence.sync.aligned;\nret;\n}";
    let text = text.replace("[s]", "[m]").replace(".reg .b64 s;", ".shared .b64 m;");
    let program = lower::compile(&text).expect("it compiles");
    let refused = &program.functions[0].refused;
    let named: Vec<_> = refused.iter().map(|refusal| (refusal.instruction.as_str(), refusal.line)).collect();
    assert_eq!(named, [("mbarrier.init.shared::cta.b64", 6), ("wgmma.fence.sync.aligned", 7)]);
}

#[test]
fn errors_say_where_and_what_comes_near() {
    let error = |body: &str| module(&format!(".entry k() {{\n{body}\n}}")).expect_err("it is wrong");
    let first = |body: &str| error(body).to_string();
    let unknown = first(".reg .b32 a;\n  addd.u32 a,a,a;");
    assert_eq!(unknown, "line 6, column 3: no instruction is named `addd`; the nearest is `add`");
    let form = first(".reg .b32 a; ld.globl.b32 a,[a];");
    assert!(form.contains("`ld.globl.b32` is no form of `ld`") && form.contains("ld{.weak"), "{form}");
    let typed = first(".reg .f32 f; .reg .b32 a; add.s32 a,a,f;");
    assert_eq!(typed, "line 5, column 39: `f` is a .f32 register; operand b of `add.s32` is .s32");
    let target = first(".reg .b64 a; .reg .b32 r; ld.relaxed.cluster.global.b32 r,[a];");
    assert!(target.contains("`.cluster` needs .target sm_90 or higher; the module says sm_80"), "{target}");
    // Findings are collected, and not without end.
    assert_eq!(error(".reg .b32 a;\nmov.b32 a,x;\nmov.b32 a,y;").problems.len(), 2);
    assert_eq!(error(&"bra nowhere;\n".repeat(100)).problems.len(), lower::MOST_PROBLEMS);
}
