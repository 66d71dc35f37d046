//! Verdicts on right and wrong programs, as `ptxas` 13.0 gave them, and the shape of what is lowered.
//!
//! `instructions.txt` holds single instructions, `registers.txt` instructions with a register of every type in one
//! place, `modules.txt` whole modules. `+` was accepted and `-` refused; with `!` we differ on purpose: functions that
//! are declared and not defined belong to the host here, and addresses of functions or of 32 bits initialise nothing.
//! (`~` before a type in `registers.txt` says the same: a packed register counts as 32 bits in every place.)
//! With `WARPWEFT_PTXAS` naming a `ptxas`, it is asked again.
#![forbid(unsafe_code)]

mod corpus;
mod lowered;
mod run;
mod table;

use warpweft_ptxvm::lower;

/// What the snippets of `instructions.txt` may name.
const DECLARATIONS: &str = ".reg .f32 f,g; .reg .f64 d,e; .reg .u32 r,q,q2; .reg .s32 i; .reg .b32 b; \
    .reg .u16 h,h2; .reg .b16 hb; .reg .f16 hf; .reg .b64 l,m; .reg .pred p,pq; .reg .b64 a; .reg .u64 u; \
    .reg .b8 b8; .reg .v4 .f32 v4; .reg .b128 w; .reg .f16x2 hx;";

const REGISTERS: &[&str] = &[
    "b8", "b16", "b32", "b64", "u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f16", "f16x2", "f32", "f64",
    "pred",
];

/// A program, what `ptxas` says of it, and whether we say the same.
struct Verdict {
    text: String,
    accepted: bool,
    differs: bool,
}

fn kernel(body: &str) -> String {
    format!(".version 8.7\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 kp) {{\n{body}\nret;\n}}\n")
}

fn instructions() -> Vec<Verdict> {
    let verdict = |line: &str| {
        let (sign, snippet) = line.split_at(1);
        Verdict { text: kernel(&format!("{DECLARATIONS}{snippet}")), accepted: sign == "+", differs: false }
    };
    include_str!("instructions.txt").lines().map(verdict).collect()
}

fn registers() -> Vec<Verdict> {
    let line = |line: &'static str| {
        let (snippet, accepted) = line.split_once(" =>").expect("an arrow on each line");
        REGISTERS.iter().map(move |register| {
            let listed = |mark| accepted.split_whitespace().any(|known| known.strip_prefix(mark) == Some(*register));
            let text = kernel(&snippet.replace("$R", register));
            Verdict { text, accepted: listed(""), differs: listed("~") }
        })
    };
    include_str!("registers.txt").lines().flat_map(line).collect()
}

fn modules() -> Vec<Verdict> {
    let module = |block: &str| {
        let (head, text) = block.split_once('\n').expect("a head and a text");
        let text = format!("{}\n", text.trim_end());
        Verdict { text, accepted: head.starts_with('+'), differs: head[1..].starts_with('!') }
    };
    include_str!("modules.txt").split("\n\n").map(module).collect()
}

fn agree(verdicts: &[Verdict]) {
    let mut wrong = Vec::new();
    for verdict in verdicts {
        let ours = lower::compile(&verdict.text);
        if ours.is_ok() != (verdict.accepted != verdict.differs) {
            let ours = ours.err().map_or("accepted".to_owned(), |error| error.to_string());
            wrong.push(format!("ptxas accepts: {}; ours: {ours}\n{}", verdict.accepted, verdict.text));
        }
    }
    assert!(wrong.is_empty(), "{} of {} verdicts differ:\n{}", wrong.len(), verdicts.len(), wrong.join("\n"));
}

#[test]
fn single_instructions_are_judged_as_ptxas_does() {
    agree(&instructions());
}

#[test]
fn registers_of_every_type_are_judged_as_ptxas_does() {
    agree(&registers());
}

#[test]
fn modules_are_judged_as_ptxas_does() {
    agree(&modules());
}

#[test]
fn the_recorded_verdicts_are_ptxas_s() {
    let Some(ptxas) = std::env::var_os("WARPWEFT_PTXAS") else {
        return;
    };
    let folder = std::env::temp_dir().join(format!("ptxvm-lower-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let (input, output) = (folder.join("k.ptx"), folder.join("k.cubin"));
    // Every seventh of the many register verdicts; all others.
    let sampled = registers().into_iter().step_by(7);
    for verdict in instructions().into_iter().chain(modules()).chain(sampled) {
        std::fs::write(&input, &verdict.text).expect("the input is written");
        let target = verdict.text.split(".target ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let target = target.filter(|target| !matches!(*target, "sm_70")).unwrap_or("sm_80");
        let mut run = std::process::Command::new(&ptxas);
        let run = run.arg(format!("-arch={target}")).arg(&input).arg("-o").arg(&output).output().expect("ptxas runs");
        let said = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.success(), verdict.accepted, "{}\n{said}", verdict.text);
    }
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}
