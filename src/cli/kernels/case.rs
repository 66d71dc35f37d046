//! An op at one size in one type, which runs alike on every device.

use std::fmt;

use warpweft::device::{Buffer, DType, Device, Float, Stream};
use warpweft::kernels::KernelError;
use warpweft::kernels::philox::Philox4x32;

/// How large the cases are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// For a look at every path: seconds on a device in software.
    Small,
    /// What shows what a kernel moves, and not what a launch costs besides: seconds on a device in software.
    Counted,
    /// What fills a GPU.
    Large,
}

/// Arguments on a device, ready to run.
pub(crate) trait Work {
    /// Runs the op once.
    fn launch(&mut self, stream: &Stream) -> Result<(), KernelError>;

    /// Everything that it has written.
    fn outputs(&self, stream: &Stream) -> Result<Vec<f64>, KernelError>;
}

/// Makes the arguments on a device: the same on each.
type Make = Box<dyn Fn(&Device) -> Result<Box<dyn Work>, KernelError>>;

/// A case.
pub(crate) struct Case {
    /// The op.
    pub(crate) op: &'static str,
    /// Which call, and its sizes.
    pub(crate) what: String,
    /// Storage.
    pub(crate) dtype: DType,
    /// The least bytes that must be moved.
    pub(crate) bytes: u64,
    /// Floating-point operations of products; 0 where memory is what counts.
    pub(crate) flops: u64,
    /// The error allowed between two devices, in roundings of the storage type at the largest output.
    pub(crate) roundings: f64,
    pub(crate) make: Make,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.op, self.what, self.dtype)
    }
}

impl Case {
    /// The outputs of one run on a device.
    pub(crate) fn run(&self, device: &Device) -> Result<Vec<f64>, KernelError> {
        let (stream, mut work) = (device.stream(), (self.make)(device)?);
        work.launch(&stream)?;
        work.outputs(&stream)
    }
}

/// Half the distance of neighbours at 1.
pub(crate) fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 2f64.powi(-9),
        DType::F16 => 2f64.powi(-12),
        _ => 2f64.powi(-25),
    }
}

/// Numbers of the normal distribution.
pub(crate) fn normal<T: Float>(device: &Device, len: usize, seed: u64) -> Result<Buffer<T>, KernelError> {
    let generator = Philox4x32::new(seed, 0);
    let values: Vec<T> = (0..len as u64).map(|index| T::from_f64(generator.normal(index))).collect();
    Ok(device.upload(&values)?)
}

/// The elements of a buffer.
pub(crate) fn values<T: Float>(buffer: &Buffer<T>, stream: &Stream) -> Result<Vec<f64>, KernelError> {
    Ok(buffer.download(stream)?.into_iter().map(T::to_f64).collect())
}

/// Arrays on a device and the call that reads and writes them: what most ops need to be a case.
pub(crate) struct Arrays<T> {
    /// In the storage type.
    pub(crate) stored: Vec<Buffer<T>>,
    /// In f32 whatever the storage.
    pub(crate) floats: Vec<Buffer<f32>>,
    /// How many of `stored` and of `floats`, at their ends, the call writes.
    pub(crate) written: [usize; 2],
    /// The call.
    pub(crate) call: Call<T>,
}

/// A call of an op with its arrays.
pub(crate) type Call<T> = fn(&Stream, &mut Arrays<T>) -> Result<(), KernelError>;

impl<T: Float> Work for Arrays<T> {
    fn launch(&mut self, stream: &Stream) -> Result<(), KernelError> {
        (self.call)(stream, self)
    }

    fn outputs(&self, stream: &Stream) -> Result<Vec<f64>, KernelError> {
        let mut all = Vec::new();
        for buffer in &self.stored[self.stored.len() - self.written[0]..] {
            all.extend(values(buffer, stream)?);
        }
        for buffer in &self.floats[self.floats.len() - self.written[1]..] {
            all.extend(values(buffer, stream)?);
        }
        Ok(all)
    }
}
