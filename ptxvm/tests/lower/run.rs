//! What only lowering decides, seen from the results: how functions are called, registers shared, values widened.

use warpweft_ptxvm::observe::check::Checks;
use warpweft_ptxvm::system::Device;
use warpweft_ptxvm::types::Target;

/// Runs `k` of a module with one warp; it stores a word for each lane at its parameter.
fn words(functions: &str, body: &str) -> Vec<u32> {
    let text = format!(
        ".version 8.7\n.target sm_80\n.address_size 64\n{functions}\n.visible .entry k(.param .u64 out) {{\n\
         .reg .u64 to; .reg .b32 tid,x,y,z; .reg .pred p; .reg .u64 w;\n\
         ld.param.u64 to,[out]; mov.u32 tid,%tid.x; mad.wide.u32 to,tid,4,to;\n{body}\nst.global.b32 [to],x; ret; }}"
    );
    let device = Device::new(Target::SM_80).expect("a device");
    let out = device.allocate(128).expect("memory");
    let kernel = device.load(&text).expect("it compiles").kernel("k").expect("it is there");
    let run = kernel.launch([1, 1, 1], [32, 1, 1]).arg(&out).check(Checks::ALL).run().expect("it runs");
    assert_eq!(run.errors(), 0, "{run}");
    device.download(&out).expect("the results")
}

fn lanes(value: impl Fn(u32) -> u32) -> Vec<u32> {
    (0..32).map(value).collect()
}

#[test]
fn register_parameters_are_passed_by_value() {
    let functions = ".func (.reg .b32 r) f(.reg .b32 a, .reg .f32 b) { .reg .b32 t; mov.b32 t,b; add.u32 r,a,t; ret; }";
    assert_eq!(words(functions, "call (x),f,(tid,0f00000007);"), lanes(|lane| lane + 7));
    let two = ".func (.reg .b32 r, .reg .b32 s) f(.reg .b32 a) { add.u32 r,a,1; add.u32 s,a,2; ret; }";
    assert_eq!(words(two, "call (y,z),f,(tid); mul.lo.u32 x,y,z;"), lanes(|lane| (lane + 1) * (lane + 2)));
}

#[test]
fn a_guarded_call_is_made_by_some_lanes() {
    let functions = ".func (.reg .b32 r) f(.reg .b32 a) { add.u32 r,a,100; ret; }";
    let body = "mov.u32 x,tid; setp.lt.u32 p,tid,10; @p call (x),f,(tid);";
    assert_eq!(words(functions, body), lanes(|lane| if lane < 10 { lane + 100 } else { lane }));
}

#[test]
fn functions_call_themselves() {
    let functions = ".func (.param .b32 r) fib(.param .b32 n) {\n\
        .reg .b32 n1,a,b; .reg .pred p; ld.param.b32 n1,[n]; setp.lt.u32 p,n1,2; @p bra SMALL;\n\
        { .param .b32 i; .param .b32 o; sub.u32 a,n1,1; st.param.b32 [i],a; call (o),fib,(i); ld.param.b32 a,[o]; }\n\
        { .param .b32 i; .param .b32 o; sub.u32 b,n1,2; st.param.b32 [i],b; call (o),fib,(i); ld.param.b32 b,[o]; }\n\
        add.u32 a,a,b; st.param.b32 [r],a; ret;\nSMALL: st.param.b32 [r],n1; ret; }";
    let body =
        "and.b32 y,tid,7; { .param .b32 i; .param .b32 o; st.param.b32 [i],y; call (o),fib,(i); ld.param.b32 x,[o]; }";
    let fib = [0, 1, 1, 2, 3, 5, 8, 13];
    assert_eq!(words(functions, body), lanes(|lane| fib[lane as usize % 8]));
}

#[test]
fn the_address_of_a_parameter_is_a_local_one() {
    let functions = ".func (.param .b32 r) pick(.param .align 8 .b8 s[20], .param .b32 at) {\n\
        .reg .u64 base,off; .reg .b32 i; mov.u64 base,s; ld.param.b32 i,[at]; mul.wide.u32 off,i,4;\n\
        add.u64 base,base,off; ld.local.b32 i,[base]; st.param.b32 [r],i; ret; }";
    let body = "{ .param .align 8 .b8 s[20]; .param .b32 at; .param .b32 r;\n\
        st.param.b32 [s],10; st.param.b32 [s+4],11; st.param.b32 [s+8],12; st.param.b32 [s+12],13; st.param.b32 [s+16],14;\n\
        rem.u32 y,tid,5; st.param.b32 [at],y; call (r),pick,(s,at); ld.param.b32 x,[r]; }";
    assert_eq!(words(functions, body), lanes(|lane| 10 + lane % 5));
}

#[test]
fn conversions_fill_registers_wider_than_their_type() {
    // tid - 3 as a signed byte: the whole register takes its sign.
    assert_eq!(words("", "sub.u32 y,tid,3; cvt.s8.s32 x,y;"), lanes(|lane| lane.wrapping_sub(3)));
    assert_eq!(words("", "sub.u32 y,tid,3; cvt.u8.u32 x,y;"), lanes(|lane| lane.wrapping_sub(3) & 0xff));
    let high = "sub.u32 y,tid,3; cvt.s16.s32 w,y; shr.u64 w,w,32; cvt.u32.u64 x,w;";
    assert_eq!(words("", high), lanes(|lane| if lane < 3 { u32::MAX } else { 0 }));
    // A source wider than the type is cut.
    assert_eq!(words("", "mul.wide.u32 w,tid,0x01000001; cvt.u32.u8 x,w;"), lanes(|lane| lane & 0xff));
}

#[test]
fn special_registers_and_vectors_are_read_in_parts() {
    assert_eq!(words("", ".reg .u16 h; mov.u16 h,%tid.x; cvt.u32.u16 x,h;"), lanes(|lane| lane));
    assert_eq!(
        words("", ".reg .v2 .b32 v; mov.b32 v.x,tid; mov.b32 v.y,5; mad.lo.u32 x,v.x,v.y,v.y;"),
        lanes(|l| 5 * l + 5)
    );
    assert_eq!(
        words(
            ".shared .align 4 .b32 s[32];",
            "mov.u32 y,s; mad.lo.u32 y,tid,4,y; st.shared.b32 [y],tid; ld.shared.b32 x,[y];"
        ),
        lanes(|l| l)
    );
}
