//! The kernels of the table: their launches, of fixed sizes, and what must come of them.

use warpweft_ptxvm::system::{Buffer, Device, Launch, Module};
use warpweft_ptxvm::types::Target;

/// Steps of the product.
pub(crate) const STEPS: u64 = 5;
/// Rows of softmax and layer norm, and their length: the last warp of a layer norm has lanes without work.
const ROWS: u32 = 6;
const COLUMNS: u32 = 1000;
const EPSILON: f32 = 1e-5;

type Verify = fn(&Case);

/// A launch that can be made again.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    device: Device,
    module: Module,
    grid: u32,
    block: u32,
    /// The result first.
    buffers: Vec<Buffer>,
    integer: Option<u32>,
    float: Option<f32>,
    verify: Verify,
}

impl Case {
    pub(crate) fn launch(&self) -> Launch {
        let kernel = self.module.kernel(self.name).expect("the kernel");
        let launch = kernel.launch([self.grid, 1, 1], [self.block, 1, 1]);
        let launch = self.buffers.iter().fold(launch, |launch, buffer| launch.arg(buffer));
        let launch = self.integer.into_iter().fold(launch, Launch::arg);
        self.float.into_iter().fold(launch, Launch::arg)
    }

    pub(crate) fn verify(&self) {
        (self.verify)(self);
    }

    fn words(&self, buffer: usize) -> Vec<u32> {
        self.device.download(&self.buffers[buffer]).expect("whole words")
    }

    fn floats(&self, buffer: usize) -> Vec<f64> {
        self.words(buffer).into_iter().map(|bits| f32::from_bits(bits).into()).collect()
    }
}

/// The table's kernels.
pub(crate) fn cases() -> Vec<Case> {
    let values = spread(ROWS * COLUMNS);
    let (weight, bias) = (spread(COLUMNS), spread(2 * COLUMNS).split_off(COLUMNS as usize));
    let integers: Vec<u32> = (0..3 * 4 * 512u32).map(|at| at.wrapping_mul(2_654_435_761)).collect();
    // Whole numbers of at most 3 bits as bf16: every sum is exact.
    let short = |rows: u32| -> Vec<u16> {
        let whole = |at: u32| (f32::to_bits((at * 7 % 13) as f32 - 6.0) >> 16) as u16;
        (0..rows * 16 * STEPS as u32).map(whole).collect()
    };
    let row_bytes = u64::from(ROWS * COLUMNS) * 4;
    let new = |name, text, (grid, block), out: u64, verify| Building::new(name, text, grid, block, out, verify);
    vec![
        new("softmax", include_str!("softmax.ptx"), (ROWS, 128), row_bytes, softmax).input(&values).integer(COLUMNS),
        new("layer_norm", include_str!("layer_norm.ptx"), (ROWS, 128), row_bytes, layer_norm)
            .input(&values)
            .input(&weight)
            .input(&bias)
            .integer(COLUMNS)
            .float(EPSILON),
        new("scan", include_str!("scan.ptx"), (3, 128), 3 * 4 * 2048, scan).input(&integers).integer(4),
        new("conflicts", include_str!("transpose.ptx"), (2, 32), 8192, transposed).input(&integers[..2048]),
        new("padded", include_str!("transpose.ptx"), (2, 32), 8192, transposed).input(&integers[..2048]),
        new("product", include_str!("product.ptx"), (1, 32), 512, product)
            .input(&short(16))
            .input(&short(8))
            .integer(STEPS as u32),
    ]
    .into_iter()
    .map(|building| building.0)
    .collect()
}

/// Values between -2 and 2, none like its neighbour.
fn spread(count: u32) -> Vec<f32> {
    (0..count).map(|at| (at.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 22) as f32 - 2.0).collect()
}

struct Building(Case);

impl Building {
    fn new(name: &'static str, text: &str, grid: u32, block: u32, out: u64, verify: Verify) -> Building {
        let device = Device::new(Target::SM_80).expect("a device");
        let module = device.load(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let buffers = vec![device.allocate(out).expect("memory")];
        Building(Case { name, device, module, grid, block, buffers, integer: None, float: None, verify })
    }

    fn input<T: bytemuck::Pod>(mut self, values: &[T]) -> Building {
        let buffer = self.0.device.upload(values).expect("memory");
        self.0.buffers.push(buffer);
        self
    }

    fn integer(mut self, value: u32) -> Building {
        self.0.integer = Some(value);
        self
    }

    fn float(mut self, value: f32) -> Building {
        self.0.float = Some(value);
        self
    }
}

/// In units of half an f32 ulp: the argument of ex2 (6 at most) is rounded twice and its factor once (2 * 6 + 6 / 2, times ln 2), ex2
/// twice that of its last place, a sum adds 10, reciprocal and product 3; above and below the fraction: less than 40.
const NEAR: f64 = 20.0 * f32::EPSILON as f64;

fn softmax(case: &Case) {
    let (out, rows) = (case.floats(0), case.floats(1));
    for (out, row) in out.chunks(COLUMNS as usize).zip(rows.chunks(COLUMNS as usize)) {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        for (got, x) in out.iter().zip(row) {
            let expected = x.exp() / sum;
            assert!((got - expected).abs() <= NEAR * expected, "softmax: {got} for {expected}");
        }
    }
}

fn layer_norm(case: &Case) {
    let [out, rows, weight, bias] = [0, 1, 2, 3].map(|buffer| case.floats(buffer));
    let count = f64::from(COLUMNS);
    for (out, row) in out.chunks(COLUMNS as usize).zip(rows.chunks(COLUMNS as usize)) {
        let mean = row.iter().sum::<f64>() / count;
        let variance = row.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count;
        let deviation = (variance + f64::from(EPSILON)).sqrt();
        for (at, (got, x)) in out.iter().zip(row).enumerate() {
            let expected = (x - mean) / deviation * weight[at] + bias[at];
            // No value is beyond 2 in magnitude, so the product is at most 2 * 2 / deviation, and the bias 2.
            let bound = NEAR * (4.0 / deviation + 2.0);
            assert!((got - expected).abs() <= bound, "layer norm: {got} for {expected}");
        }
    }
}

fn scan(case: &Case) {
    let (out, values) = (case.words(0), case.words(1));
    for (out, segment) in out.chunks(2048).zip(values.chunks(2048)) {
        let sums = segment.iter().scan(0u32, |sum, &value| {
            *sum = sum.wrapping_add(value);
            Some(*sum)
        });
        assert!(out.iter().copied().eq(sums), "scan");
    }
}

fn transposed(case: &Case) {
    let (out, tiles) = (case.words(0), case.words(1));
    for (at, &got) in out.iter().enumerate() {
        let (tile, row, column) = (at / 1024, at / 32 % 32, at % 32);
        assert_eq!(got, tiles[tile * 1024 + column * 32 + row], "{}: row {row}, column {column}", case.name);
    }
}

fn product(case: &Case) {
    let k = 16 * STEPS as usize;
    let halves = |buffer: usize| -> Vec<f64> {
        let whole = |word: u32| [word << 16, word & 0xffff_0000].map(|bits| f64::from(f32::from_bits(bits)));
        case.words(buffer).into_iter().flat_map(whole).collect()
    };
    let (out, a, b) = (case.floats(0), halves(1), halves(2));
    for (at, &got) in out.iter().enumerate() {
        let (row, column) = (at / 8, at % 8);
        let expected: f64 = (0..k).map(|k_at| a[row * k + k_at] * b[column * k + k_at]).sum();
        assert_eq!(got, expected, "product: row {row}, column {column}");
    }
}
