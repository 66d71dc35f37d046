//! `mma`: a module for each form that runs. A and B hold one value each, so that every element of D is its C plus k times
//! their product, whatever the layout; layouts and sums are proven element by element in `tests/tensor`.

use half::f16;
use warpweft_ptxvm::table::{Build, Form, TABLE, ValueShape};
use warpweft_ptxvm::types::Type;

use crate::case::{Case, module, program};

pub(crate) fn cases() -> Vec<Case> {
    let runs = |form: &&Form| matches!(form.build, Build::Collective(_));
    TABLE
        .named("mma")
        .filter(runs)
        .flat_map(|form| {
            // The integer forms clamp where `.satfinite` says so; these sums are far from the ends.
            form.pattern.spellings().filter_map(|words| case(form, &format!("mma{words}")))
        })
        .collect()
}

/// The register that holds a value of a type as often as it has room.
fn filled(ty: Type, value: i32) -> u64 {
    match ty {
        Type::F16 => u64::from(f16::from_f32(value as f32).to_bits()) * 0x1_0001,
        Type::Bf16 => u64::from((value as f32).to_bits() >> 16) * 0x1_0001,
        Type::Tf32 | Type::F32 => u64::from((value as f32).to_bits()),
        Type::F64 => f64::from(value).to_bits(),
        // 1 and 2 of the 8-bit formats.
        Type::E4m3 => {
            if value == 1 {
                0x3838_3838
            } else {
                0x4040_4040
            }
        }
        Type::E5m2 => {
            if value == 1 {
                0x3c3c_3c3c
            } else {
                0x4040_4040
            }
        }
        Type::S8 | Type::U8 => u64::from(value as u8) * 0x0101_0101,
        _ => value as u32 as u64,
    }
}

fn case(form: &Form, spelled: &str) -> Option<Case> {
    let words: Vec<&str> = spelled.split('.').collect();
    let types: Vec<Type> = words.iter().filter_map(|word| Type::from_name(word)).collect();
    let [d, a, b, _] = types[..] else { return None };
    let shape = words.iter().find(|word| word.starts_with('m') && word.contains('n') && word.contains('k'))?;
    let k: i32 = shape.split('k').next_back()?.parse().ok()?;
    let counts: Vec<(bool, usize)> = form
        .operands
        .iter()
        .map(|operand| match operand.value {
            ValueShape::Vector(ty, count) => (ty.bits() == 64, usize::from(count)),
            ValueShape::Value { ty, .. } => (ty.bits() == 64, 1),
            _ => (false, 1),
        })
        .collect();
    let (first, second) = (1, 2);
    let registers = |name: &str, count: usize| {
        let names: Vec<String> = (0..count).map(|at| format!("%{name}{at}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    let wide = |wide: bool| if wide { "b64" } else { "b32" };
    let [results, left, right] = [counts[0], counts[1], counts[2]];
    let bytes = if results.0 { 8 } else { 4 };
    let mut text = format!(
        "    .reg .b32 %lane;
    .reg .b64 %in, %out;
    .reg .{} %d<{}>, %c<{}>;
    .reg .{} %a<{}>;
    .reg .{} %b<{}>;

    mov.u32 %lane, %laneid;
    ld.param.u64 %in, [input];
    ld.param.u64 %out, [output];
    cvta.to.global.u64 %in, %in;
    cvta.to.global.u64 %out, %out;
    mad.wide.u32 %in, %lane, {stride}, %in;
    mad.wide.u32 %out, %lane, {stride}, %out;
",
        wide(results.0),
        results.1,
        results.1,
        wide(left.0),
        left.1,
        wide(right.0),
        right.1,
        stride = bytes * results.1,
    );
    for at in 0..left.1 {
        text += &format!("    mov.{} %a{at}, {:#x};\n", wide(left.0), filled(a, first));
    }
    for at in 0..right.1 {
        text += &format!("    mov.{} %b{at}, {:#x};\n", wide(right.0), filled(b, second));
    }
    for at in 0..results.1 {
        text += &format!("    ld.global.{} %c{at}, [%in+{}];\n", wide(results.0), bytes * at);
    }
    text += &format!(
        "    {spelled} {}, {}, {}, {};\n",
        registers("d", results.1),
        registers("a", left.1),
        registers("b", right.1),
        registers("c", results.1)
    );
    for at in 0..results.1 {
        text += &format!("    st.global.{} [%out+{}], %d{at};\n", wide(results.0), bytes * at);
    }
    text += "    ret;\n";
    let elements = |add: i32| -> Vec<u8> {
        let one = |at: usize| filled(d, (at % 61) as i32 + add).to_le_bytes()[..bytes].to_vec();
        (0..32 * results.1).flat_map(one).collect()
    };
    let ptx = module(spelled, "", ".param .u64 input, .param .u64 output", &text);
    let output = vec![0; 32 * bytes * results.1];
    Some(program(spelled, &ptx, (1, 32), vec![elements(0), output], vec![(1, elements(k * first * second))]))
}
