//! An op at one size in one type, which runs alike on every device.

use std::fmt;
use std::rc::Rc;

use warpweft::device::{Buffer, DType, Device, Float, Stream};
use warpweft::kernels::KernelError;
use warpweft::kernels::philox::{self, Philox4x32};

/// How large the cases are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// For a look at every path, seconds on a device in software; of products also one that is large for a device of so
    /// many multiprocessors.
    Small { multiprocessors: usize },
    /// What shows what a kernel moves, and not what a launch costs besides: seconds on a device in software.
    Counted { multiprocessors: usize },
    /// What fills a GPU.
    Large,
}

impl Size {
    /// The small sizes for a device.
    pub(crate) fn small(device: &Device) -> Self {
        let multiprocessors = device.properties().map_or(1, |properties| properties.multiprocessors as usize);
        Self::Small { multiprocessors }
    }

    /// The sizes that show what is moved, for a device.
    pub(crate) fn counted(device: &Device) -> Self {
        let multiprocessors = device.properties().map_or(1, |properties| properties.multiprocessors as usize);
        Self::Counted { multiprocessors }
    }

    /// Whether it is what shows what is moved.
    pub(crate) fn is_counted(self) -> bool {
        matches!(self, Self::Counted { .. })
    }

    /// Whether it is a look at every path.
    pub(crate) fn is_small(self) -> bool {
        matches!(self, Self::Small { .. })
    }
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
    /// A call with its arrays, made by `arrays` on any device, of which nothing else is said: no bytes, the same bits on every
    /// device.
    pub(crate) fn new<T: Float>(
        op: &'static str,
        what: String,
        arrays: impl Fn(&Device) -> Result<Arrays<T>, KernelError> + 'static,
    ) -> Self {
        let make = move |device: &Device| -> Result<Box<dyn Work>, KernelError> { Ok(Box::new(arrays(device)?)) };
        Self { op, what, dtype: T::DTYPE, bytes: 0, flops: 0, roundings: 0.0, make: Box::new(make) }
    }

    /// Of sizes that no access of 16 bytes fits: there for the answer, not for the traffic.
    pub(crate) fn edge(mut self) -> Self {
        self.what.push_str(", edge");
        self
    }

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

/// Arrays of more elements are made where they lie, which a measurement does not see. The host makes the others, so that
/// every device has the same ones.
const MANY: usize = 1 << 22;

/// Numbers of the normal distribution.
pub(crate) fn normal<T: Float>(device: &Device, len: usize, seed: u64) -> Result<Buffer<T>, KernelError> {
    let generator = Philox4x32::new(seed, 0);
    if len > MANY {
        let (stream, mut buffer) = (device.stream(), device.uninitialized(len)?);
        philox::normal(&stream, generator, 0, (0.0, 1.0), buffer.as_view_mut())?;
        stream.synchronize()?;
        return Ok(buffer);
    }
    let values: Vec<T> = (0..len as u64).map(|index| T::from_f64(generator.normal(index))).collect();
    Ok(device.upload(&values)?)
}

/// Their magnitudes; of many, numbers from 0 to 1.
pub(crate) fn positive(device: &Device, len: usize, seed: u64) -> Result<Buffer<f32>, KernelError> {
    let generator = Philox4x32::new(seed, 0);
    if len > MANY {
        let (stream, mut buffer) = (device.stream(), device.uninitialized(len)?);
        philox::uniform(&stream, generator, 0, (0.0, 1.0), buffer.as_view_mut())?;
        stream.synchronize()?;
        return Ok(buffer);
    }
    let values: Vec<f32> = (0..len as u64).map(|index| generator.normal(index).abs() as f32).collect();
    Ok(device.upload(&values)?)
}

/// Whole numbers from -2 to 2, of which sums are exact.
pub(crate) fn integers<T: Float>(device: &Device, len: usize, seed: u64) -> Result<Buffer<T>, KernelError> {
    let generator = Philox4x32::new(seed, 0);
    let values: Vec<T> = (0..len as u64).map(|index| T::from_f64(f64::from(generator.word(index) % 5) - 2.0)).collect();
    Ok(device.upload(&values)?)
}

/// Numbers below `end`.
pub(crate) fn indices(device: &Device, len: usize, end: usize) -> Result<Buffer<u32>, KernelError> {
    let generator = Philox4x32::new(1, 5);
    let values: Vec<u32> = (0..len as u64).map(|index| generator.word(index) % end as u32).collect();
    Ok(device.upload(&values)?)
}

/// The elements of a buffer.
pub(crate) fn values<T: Float>(buffer: &Buffer<T>, stream: &Stream) -> Result<Vec<f64>, KernelError> {
    Ok(buffer.download(stream)?.into_iter().map(T::to_f64).collect())
}

/// The numbers of a buffer.
pub(crate) fn numbers(buffer: &Buffer<u32>, stream: &Stream) -> Result<Vec<f64>, KernelError> {
    Ok(buffer.download(stream)?.into_iter().map(f64::from).collect())
}

/// Arrays on a device and the call that reads and writes them: what most ops need to be a case.
pub(crate) struct Arrays<T> {
    /// In the storage type.
    pub(crate) stored: Vec<Buffer<T>>,
    /// In f32 whatever the storage.
    pub(crate) floats: Vec<Buffer<f32>>,
    /// In f64.
    pub(crate) doubles: Vec<Buffer<f64>>,
    /// Tokens, places, experts.
    pub(crate) indices: Vec<Buffer<u32>>,
    /// How many of `stored`, `floats`, `doubles` and `indices`, at their ends, the call writes.
    pub(crate) written: [usize; 4],
    /// The call.
    pub(crate) call: Rc<Call<T>>,
}

/// A call of an op with its arrays.
pub(crate) type Call<T> = dyn Fn(&Stream, &mut Arrays<T>) -> Result<(), KernelError>;

/// A call that needs to know nothing but its arrays.
pub(crate) type Function<T> = fn(&Stream, &mut Arrays<T>) -> Result<(), KernelError>;

impl<T: Float> Arrays<T> {
    /// No arrays yet.
    pub(crate) fn of(call: impl Fn(&Stream, &mut Self) -> Result<(), KernelError> + 'static) -> Self {
        let (stored, floats, doubles, indices) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { stored, floats, doubles, indices, written: [0; 4], call: Rc::new(call) }
    }
}

impl<T: Float> Work for Arrays<T> {
    fn launch(&mut self, stream: &Stream) -> Result<(), KernelError> {
        let call = Rc::clone(&self.call);
        call(stream, self)
    }

    fn outputs(&self, stream: &Stream) -> Result<Vec<f64>, KernelError> {
        let [stored, floats, doubles, indices] = self.written;
        let mut all = Vec::new();
        for buffer in &self.stored[self.stored.len() - stored..] {
            all.extend(values(buffer, stream)?);
        }
        for buffer in &self.floats[self.floats.len() - floats..] {
            all.extend(values(buffer, stream)?);
        }
        for buffer in &self.doubles[self.doubles.len() - doubles..] {
            all.extend(values(buffer, stream)?);
        }
        for buffer in &self.indices[self.indices.len() - indices..] {
            all.extend(numbers(buffer, stream)?);
        }
        Ok(all)
    }
}
