//! Kernel arguments: a typed value, and whether it fits the parameter that the kernel declares.

use half::{bf16, f16};

use super::{Buffer, SystemError};
use crate::program::{Function, Param};
use crate::types::Kind;

/// One argument, as the bytes that the kernel will read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    bytes: Vec<u8>,
    class: Class,
    name: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Integer,
    Float,
    Pointer,
    Raw,
}

/// What can be an argument of a kernel.
pub trait Argument {
    /// Its bytes and what they are.
    fn value(&self) -> Value;

    /// The memory that must live until the kernel has ended.
    fn keeps(&self) -> Option<Buffer> {
        None
    }
}

macro_rules! scalars {
    ($($ty:ty, $class:ident, $name:literal;)*) => {
        $(impl Argument for $ty {
            fn value(&self) -> Value {
                Value { bytes: self.to_le_bytes().to_vec(), class: Class::$class, name: $name }
            }
        })*
    };
}

scalars! {
    u8, Integer, "u8"; u16, Integer, "u16"; u32, Integer, "u32"; u64, Integer, "u64";
    i8, Integer, "s8"; i16, Integer, "s16"; i32, Integer, "s32"; i64, Integer, "s64";
    f32, Float, "f32"; f64, Float, "f64"; f16, Float, "f16"; bf16, Float, "bf16";
}

/// The address of a buffer; the buffer stays alive until the kernel has ended.
impl Argument for &Buffer {
    fn value(&self) -> Value {
        Pointer(self.address()).value()
    }

    fn keeps(&self) -> Option<Buffer> {
        Some((*self).clone())
    }
}

/// An address in device memory. Whoever passes it keeps the memory alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer(pub u64);

impl Argument for Pointer {
    fn value(&self) -> Value {
        Value { bytes: self.0.to_le_bytes().to_vec(), class: Class::Pointer, name: "pointer" }
    }
}

/// Bytes as they are: a struct parameter, or what another language has packed.
impl Argument for &[u8] {
    fn value(&self) -> Value {
        Value { bytes: self.to_vec(), class: Class::Raw, name: "bytes" }
    }
}

impl Argument for Value {
    fn value(&self) -> Value {
        self.clone()
    }
}

impl Value {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn words(&self) -> String {
        match self.class {
            Class::Raw => format!("{} raw bytes", self.bytes.len()),
            _ => format!("a value of type {} ({} bytes)", self.name, self.bytes.len()),
        }
    }

    /// Whether a parameter takes it: the size is right, and no float is passed for an integer or the reverse. Bits and
    /// arrays take anything of their size, as they carry structs and 16-bit floats.
    fn fits(&self, param: &Param) -> bool {
        let array = param.bytes != param.ty.bytes();
        let kind = if array { Kind::Bits } else { param.ty.kind() };
        let class = match self.class {
            Class::Integer => !matches!(kind, Kind::Float),
            Class::Float => !matches!(kind, Kind::Unsigned | Kind::Signed) || param.bytes == 2,
            Class::Pointer => !matches!(kind, Kind::Float),
            Class::Raw => true,
        };
        class && self.bytes.len() == param.bytes as usize
    }
}

fn wanted(param: &Param) -> String {
    if param.bytes != param.ty.bytes() {
        return format!("{} bytes (`.param {} {}[{}]`)", param.bytes, param.ty, param.name, elements(param));
    }
    let pointer = if param.pointer.is_some() { ", a pointer" } else { "" };
    format!("{} ({} bytes{pointer})", param.ty, param.bytes)
}

fn elements(param: &Param) -> u32 {
    param.bytes / param.ty.bytes().max(1)
}

/// Lays arguments out as the kernel reads them, once each fits its parameter.
pub(crate) fn pack(function: &Function, arguments: &[Value]) -> Result<Vec<u8>, SystemError> {
    let kernel = || function.name.clone();
    if arguments.len() != function.params.len() {
        return Err(SystemError::ArgumentCount {
            kernel: kernel(),
            given: arguments.len(),
            wanted: function.params.len(),
            params: names(function),
        });
    }
    let mut packed = vec![0; function.param_bytes as usize];
    for (index, (param, value)) in function.params.iter().zip(arguments).enumerate() {
        let slot = packed.get_mut(param.offset as usize..).and_then(|rest| rest.get_mut(..param.bytes as usize));
        match slot {
            Some(slot) if value.fits(param) => slot.copy_from_slice(&value.bytes),
            _ => {
                return Err(SystemError::Argument {
                    kernel: kernel(),
                    index,
                    name: param.name.clone(),
                    given: value.words(),
                    wanted: wanted(param),
                });
            }
        }
    }
    Ok(packed)
}

fn names(function: &Function) -> String {
    if function.params.is_empty() {
        return "none".to_owned();
    }
    let params = function.params.iter().map(|param| format!("{} {}", param.name, wanted(param)));
    params.collect::<Vec<_>>().join(", ")
}
