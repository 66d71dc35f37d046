//! The codes of element types and reductions.

use warpweft_comm::Op;
use warpweft_device::DType;
use warpweft_kernels::Write;

use crate::fault::Fault;

/// The type of a code: those of the header are the places in [`DType::ALL`].
pub(crate) fn dtype(argument: &'static str, code: i32) -> Result<DType, Fault> {
    let found = usize::try_from(code).ok().and_then(|code| DType::ALL.get(code).copied());
    found.ok_or(Fault::Value { argument, given: code.into(), allowed: "one of WW_F64 (0) to WW_U64 (11)" })
}

/// The reduction of a code.
pub(crate) fn op(code: i32) -> Result<Op, Fault> {
    match code {
        0 => Ok(Op::Sum),
        1 => Ok(Op::Prod),
        2 => Ok(Op::Min),
        3 => Ok(Op::Max),
        4 => Ok(Op::Avg),
        _ => Err(Fault::Value { argument: "op", given: code.into(), allowed: "one of WW_SUM (0) to WW_AVG (4)" }),
    }
}

/// Runs the body with `$type` as the element type of the code.
macro_rules! with_element {
    ($code:expr, $type:ident => $body:expr) => {
        match $crate::element::dtype("dtype", $code)? {
            warpweft_device::DType::F64 => $crate::element::with_element!(@ f64, $type, $body),
            warpweft_device::DType::F32 => $crate::element::with_element!(@ f32, $type, $body),
            warpweft_device::DType::F16 => $crate::element::with_element!(@ half::f16, $type, $body),
            warpweft_device::DType::BF16 => $crate::element::with_element!(@ half::bf16, $type, $body),
            warpweft_device::DType::I8 => $crate::element::with_element!(@ i8, $type, $body),
            warpweft_device::DType::I16 => $crate::element::with_element!(@ i16, $type, $body),
            warpweft_device::DType::I32 => $crate::element::with_element!(@ i32, $type, $body),
            warpweft_device::DType::I64 => $crate::element::with_element!(@ i64, $type, $body),
            warpweft_device::DType::U8 => $crate::element::with_element!(@ u8, $type, $body),
            warpweft_device::DType::U16 => $crate::element::with_element!(@ u16, $type, $body),
            warpweft_device::DType::U32 => $crate::element::with_element!(@ u32, $type, $body),
            warpweft_device::DType::U64 => $crate::element::with_element!(@ u64, $type, $body),
            _ => Err(Fault::Value { argument: "dtype", given: $code.into(), allowed: "a type of this header" }),
        }
    };
    (@ $actual:ty, $type:ident, $body:expr) => {{
        type $type = $actual;
        $body
    }};
}

/// Runs the body with `$type` as the type of the code, one of those that kernels compute with.
macro_rules! with_float {
    ($code:expr, $type:ident => $body:expr) => {
        $crate::element::with_float!("dtype", $code, $type => $body)
    };
    ($argument:literal, $code:expr, $type:ident => $body:expr) => {
        match $crate::element::dtype($argument, $code)? {
            warpweft_device::DType::F32 => $crate::element::with_element!(@ f32, $type, $body),
            warpweft_device::DType::BF16 => $crate::element::with_element!(@ half::bf16, $type, $body),
            warpweft_device::DType::F16 => $crate::element::with_element!(@ half::f16, $type, $body),
            _ => {
                let allowed = "WW_F32 (1), WW_F16 (2) or WW_BF16 (3)";
                Err(Fault::Value { argument: $argument, given: $code.into(), allowed })
            }
        }
    };
}

pub(crate) use {with_element, with_float};

/// What to do with a gradient that is already there.
pub(crate) fn write(code: i32) -> Result<Write, Fault> {
    match code {
        0 => Ok(Write::Set),
        1 => Ok(Write::Add),
        _ => Err(Fault::Value { argument: "write", given: code.into(), allowed: "WW_SET (0) or WW_ADD (1)" }),
    }
}

/// The product of sizes as a count.
pub(crate) fn count(argument: &'static str, sizes: &[usize]) -> Result<usize, Fault> {
    let product = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
    product.ok_or(Fault::TooLarge { argument, len: usize::MAX })
}
