//! One row for each of several types, written once.

/// The Rust type that computes with values of a PTX type, and the one of twice its width.
macro_rules! value {
    (u8) => {
        u8
    };
    (s8) => {
        i8
    };
    (b8) => {
        u8
    };
    (u16) => {
        u16
    };
    (s16) => {
        i16
    };
    (b16) => {
        u16
    };
    (u32) => {
        u32
    };
    (s32) => {
        i32
    };
    (b32) => {
        u32
    };
    (f32) => {
        f32
    };
    (u64) => {
        u64
    };
    (s64) => {
        i64
    };
    (b64) => {
        u64
    };
    (f64) => {
        f64
    };
    (pred) => {
        bool
    };
    (u16x2) => {
        [u16; 2]
    };
    (s16x2) => {
        [i16; 2]
    };
    (wide u16) => {
        u32
    };
    (wide s16) => {
        i32
    };
    (wide u32) => {
        u64
    };
    (wide s32) => {
        i64
    };
    (wide u64) => {
        u128
    };
    (wide s64) => {
        i128
    };
    (wide $other:ident) => {
        ()
    };
}
pub(super) use value;

/// Rows that differ in their last type, as an array. `T` stands for its name in the operands, and for the Rust type in
/// the operation; `W` for the Rust type of twice the width.
///
/// ```text
/// typed!("add", "d:T a:T b:T", [u16 u32 u64], |a: T, b: T| a.wrapping_add(b))
/// typed!("min{.relu}", "d:T a:T b:T", [s32], m => if m.has("relu") { each!(...) } else { each!(...) })
/// ```
macro_rules! typed {
    ($text:expr, $operands:expr, [$($ty:ident)*], $m:ident => $choose:expr) => {
        [$({
            #[allow(dead_code)]
            type T = $crate::table::typed::value!($ty);
            #[allow(dead_code)]
            type W = $crate::table::typed::value!(wide $ty);
            $crate::table::lanes(
                concat!($text, ".", stringify!($ty)),
                &$operands.replace('T', stringify!($ty)),
                |$m: &$crate::table::Mods| -> $crate::program::LaneFn { $choose },
            )
        }),*]
    };
    ($text:expr, $operands:expr, $types:tt, $($operation:tt)*) => {
        $crate::table::typed::typed!($text, $operands, $types, _m => $crate::lanes::each!($($operation)*))
    };
}
pub(super) use typed;
