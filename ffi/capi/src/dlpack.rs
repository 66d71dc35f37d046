//! DLPack: tensors of other libraries as arguments, and buffers as tensors of theirs. The layouts are those of `dlpack.h`, major
//! version 1, and of the struct without a version before it.

use std::ffi::c_void;
use std::sync::Arc;

use warpweft_device::{DType, Device, DeviceKind, Stream};

use crate::buffer::{Memory, Shared};
use crate::element::{count as product, dtype as type_of};
use crate::fault::{Fault, guard};
use crate::pointer::{Out, Ref, Text};

/// The major version: another one has another layout.
const MAJOR: u32 = 1;
/// Of the flags: the consumer does not write.
const READ_ONLY: u64 = 1;
/// More dimensions than any library has.
const MOST_DIMENSIONS: i32 = 64;

/// Kinds of memory.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const EXTENSION: i32 = 12;
const CUDA_MANAGED: i32 = 13;

/// `DLTensor`.
#[repr(C)]
pub struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
pub struct Unversioned {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<extern "C" fn(*mut Unversioned)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
pub struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// A tensor that shares a buffer's memory, and what it points to.
#[repr(C)]
struct Exported<M> {
    /// First, so that a pointer to it is one to all.
    managed: M,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    _memory: Arc<Memory>,
}

/// Frees what [`export`] made.
extern "C" fn delete<M>(managed: *mut M) {
    if managed.is_null() {
        return;
    }
    // SAFETY: the consumer calls this once, with the pointer that it got, which is to the whole.
    drop(unsafe { Box::from_raw(managed.cast::<Exported<M>>()) });
}

fn export<M>(
    buffer: &Ref<Shared>,
    ndim: i32,
    shape: &Ref<i64>,
    managed: impl FnOnce(Tensor) -> M,
    tensor_of: impl FnOnce(&mut M) -> &mut Tensor,
) -> Result<*mut M, Fault> {
    let memory = &buffer.get("buffer")?.0;
    let shape = dimensions(ndim, shape)?;
    let sizes: Vec<usize> = shape.iter().map(|&size| size as usize).collect();
    let count = product("shape", &sizes)?;
    if count != memory.count {
        return Err(wrong("shape", "its product", count, memory.count));
    }
    let ((device_type, device_id), (code, bits)) = (place(&memory.device), type_code(memory.dtype));
    let none = std::ptr::null_mut();
    let tensor = Tensor {
        data: memory.data,
        device_type,
        device_id,
        ndim,
        code,
        bits,
        lanes: 1,
        shape: none,
        strides: none,
        byte_offset: 0,
    };
    let strides = compact(shape);
    let mut all =
        Box::new(Exported { managed: managed(tensor), shape: shape.into(), strides, _memory: Arc::clone(memory) });
    let (shape, strides) = (all.shape.as_mut_ptr(), all.strides.as_mut_ptr());
    let tensor = tensor_of(&mut all.managed);
    (tensor.shape, tensor.strides) = (shape, strides);
    Ok(Box::into_raw(all).cast())
}

/// A buffer as a tensor.
#[unsafe(no_mangle)]
pub extern "C" fn ww_buffer_to_dlpack(
    buffer: Ref<Shared>,
    ndim: i32,
    shape: Ref<i64>,
    tensor: Out<*mut Versioned>,
) -> i32 {
    guard("ww_buffer_to_dlpack", || {
        tensor.check("tensor")?;
        let context = std::ptr::null_mut();
        let managed = |tensor| Versioned {
            major: MAJOR,
            minor: 0,
            context,
            deleter: Some(delete::<Versioned>),
            flags: 0,
            tensor,
        };
        tensor.set("tensor", export(&buffer, ndim, &shape, managed, |managed| &mut managed.tensor)?)
    })
}

/// A buffer as a tensor of the older form.
#[unsafe(no_mangle)]
pub extern "C" fn ww_buffer_to_dlpack_unversioned(
    buffer: Ref<Shared>,
    ndim: i32,
    shape: Ref<i64>,
    tensor: Out<*mut Unversioned>,
) -> i32 {
    guard("ww_buffer_to_dlpack_unversioned", || {
        tensor.check("tensor")?;
        let context = std::ptr::null_mut();
        let managed = |tensor| Unversioned { tensor, context, deleter: Some(delete::<Unversioned>) };
        tensor.set("tensor", export(&buffer, ndim, &shape, managed, |managed| &mut managed.tensor)?)
    })
}

/// A tensor as an argument.
#[unsafe(no_mangle)]
pub extern "C" fn ww_from_dlpack(
    stream: Ref<Stream>,
    argument: Text,
    tensor: Ref<Versioned>,
    dtype: i32,
    ndim: i32,
    shape: Ref<i64>,
    written: i32,
    data: Out<*mut c_void>,
) -> i32 {
    guard("ww_from_dlpack", || {
        let (stream, name) = (stream.get("stream")?, argument.get().ok_or(Fault::Null { argument: "argument" })?);
        data.check("data")?;
        // Of another version nothing but its number may be read.
        let given = tensor.get("tensor")?;
        if given.major != MAJOR {
            return Err(wrong(&name, "DLPack's major version", given.major, MAJOR));
        }
        if written != 0 && given.flags & READ_ONLY != 0 {
            return Err(wrong(&name, "the tensor", "read only", "writable"));
        }
        data.set(
            "data",
            address(stream.device(), &name, &given.tensor, type_of("dtype", dtype)?, dimensions(ndim, &shape)?)?,
        )
    })
}

/// A tensor of the older form as an argument.
#[unsafe(no_mangle)]
pub extern "C" fn ww_from_dlpack_unversioned(
    stream: Ref<Stream>,
    argument: Text,
    tensor: Ref<Unversioned>,
    dtype: i32,
    ndim: i32,
    shape: Ref<i64>,
    data: Out<*mut c_void>,
) -> i32 {
    guard("ww_from_dlpack_unversioned", || {
        let (stream, name) = (stream.get("stream")?, argument.get().ok_or(Fault::Null { argument: "argument" })?);
        data.check("data")?;
        let given = &tensor.get("tensor")?.tensor;
        data.set("data", address(stream.device(), &name, given, type_of("dtype", dtype)?, dimensions(ndim, &shape)?)?)
    })
}

/// Where the elements of a tensor begin that is what an argument must be.
fn address(device: &Device, name: &str, tensor: &Tensor, dtype: DType, shape: &[i64]) -> Result<*mut c_void, Fault> {
    let (kind, id) = place(device);
    let here = match (kind, tensor.device_type) {
        (CPU, CPU | CUDA_HOST) => true,
        (CUDA, CUDA | CUDA_MANAGED) => tensor.device_id == id || tensor.device_type == CUDA_MANAGED,
        (kind, theirs) => (kind, id) == (theirs, tensor.device_id),
    };
    if !here {
        let given = format!("{} (number {})", tensor.device_type, tensor.device_id);
        return Err(wrong(name, "its device type", given, format!("{kind} (number {id}), the stream's `{device}`")));
    }
    let (code, bits) = type_code(dtype);
    if (tensor.code, tensor.bits, tensor.lanes) != (code, bits, 1) {
        let words = |code: u8, bits: u8, lanes: u16| format!("code {code}, {bits} bits, {lanes} lanes");
        let given = words(tensor.code, tensor.bits, tensor.lanes);
        return Err(wrong(name, "its type", given, format!("{} ({dtype})", words(code, bits, 1))));
    }
    let (theirs, strides) = (numbers(name, tensor.ndim, tensor.shape)?, tensor.strides);
    if theirs != shape {
        return Err(wrong(name, "its shape", format!("{theirs:?}"), format!("{shape:?}")));
    }
    let empty = shape.contains(&0);
    if !strides.is_null() && !empty {
        let (strides, wanted) = (numbers(name, tensor.ndim, strides)?, compact(shape));
        // A dimension of one element is never stepped along.
        if (0..shape.len()).any(|at| shape[at] != 1 && strides[at] != wanted[at]) {
            let expected = format!("{wanted:?}, row-major without gaps; make it contiguous first");
            return Err(wrong(name, "its strides", format!("{strides:?}"), expected));
        }
    }
    if tensor.data.is_null() && !empty {
        return Err(wrong(name, "its data", "null", "an address"));
    }
    let offset = usize::try_from(tensor.byte_offset).ok();
    match offset.filter(|&offset| tensor.data.addr().checked_add(offset).is_some()) {
        Some(offset) => Ok(tensor.data.wrapping_byte_add(offset)),
        None => Err(wrong(name, "its byte offset", tensor.byte_offset, "inside the address space")),
    }
}

fn wrong(argument: &str, what: &'static str, given: impl ToString, expected: impl ToString) -> Fault {
    let (given, expected) = (given.to_string(), expected.to_string());
    Fault::Tensor { argument: argument.to_owned(), what, given, expected }
}

/// The numbers of a tensor's dimensions.
fn numbers<'a>(name: &str, ndim: i32, from: *const i64) -> Result<&'a [i64], Fault> {
    if !(0..=MOST_DIMENSIONS).contains(&ndim) {
        return Err(wrong(name, "its number of dimensions", ndim, format!("0 to {MOST_DIMENSIONS}")));
    }
    if ndim == 0 {
        return Ok(&[]);
    }
    if from.is_null() || !from.is_aligned() {
        return Err(wrong(name, "its shape or strides", format!("at {from:?}"), "a list of 64-bit numbers"));
    }
    // SAFETY: not null, aligned, few; a tensor has as many numbers there as dimensions, and lives during the call.
    Ok(unsafe { std::slice::from_raw_parts(from, ndim as usize) })
}

/// The sizes that the caller gives.
fn dimensions(ndim: i32, shape: &Ref<i64>) -> Result<&[i64], Fault> {
    if !(0..=MOST_DIMENSIONS).contains(&ndim) {
        return Err(wrong("ndim", "the number", ndim, format!("0 to {MOST_DIMENSIONS}")));
    }
    let shape = shape.list("shape", ndim as usize)?;
    match shape.iter().find(|&&size| size < 0) {
        Some(size) => Err(wrong("shape", "a size", size, "at least 0")),
        None => Ok(shape),
    }
}

/// Row-major strides, in elements.
fn compact(shape: &[i64]) -> Box<[i64]> {
    let mut strides = vec![1i64; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = strides[at].saturating_mul(shape[at]);
    }
    strides.into()
}

/// The kind and number of a device's memory.
fn place(device: &Device) -> (i32, i32) {
    let name = device.to_string();
    let number = name.split_once(':').and_then(|(_, number)| number.parse().ok()).unwrap_or(0);
    match device.kind() {
        DeviceKind::Cpu => (CPU, 0),
        DeviceKind::Cuda => (CUDA, number),
        _ => (EXTENSION, number),
    }
}

/// The code and bits of a type.
fn type_code(dtype: DType) -> (u8, u8) {
    let code = match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        DType::BF16 => 4,
        _ => 2,
    };
    (code, 8 * dtype.bytes() as u8)
}
