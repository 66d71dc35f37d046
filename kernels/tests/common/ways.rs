//! Every way in which the software device can run a kernel, all of which a right kernel answers alike.

use std::sync::LazyLock;

use bytemuck::cast_slice;
use warpweft_device::{Device, Element};

use super::On;
use super::trial::sample;

/// Seeds of schedules and of late copies.
const SEEDS: u64 = sample(2, 8) as u64;

impl On {
    /// A device by its name.
    pub(crate) fn open(name: &str) -> Self {
        let device = Device::open(name).unwrap();
        let stream = device.stream();
        Self { device, stream }
    }

    /// A software device of compute capability 8.0 under every check.
    pub(crate) fn software() -> Self {
        Self::open("software?check=all")
    }

    /// The same, where NaNs are what must come out.
    pub(crate) fn software_with_nans() -> Self {
        Self::open("software?check=memcheck,initcheck,racecheck,synccheck,asynccheck,deadlock")
    }
}

/// A device of each way, opened once for a test program: its kernels are loaded once.
static EVERY_WAY: LazyLock<Vec<(String, On)>> = LazyLock::new(|| every_way().map(opened).collect());

/// Two ways far apart.
static TWO_WAYS: LazyLock<Vec<(String, On)>> = LazyLock::new(|| {
    let ways = ["&async=eager", "&divergence=independent&async=latest&schedule=reverse&seed=5"];
    ways.into_iter().map(|way| opened(way.to_owned())).collect()
});

/// Each way on a device of one multiprocessor, for which the products of matrices choose large tiles.
static EVERY_WAY_ON_ONE: LazyLock<Vec<(String, On)>> =
    LazyLock::new(|| every_way().map(|way| opened(format!("&multiprocessors=1{way}"))).collect());

fn opened(way: String) -> (String, On) {
    let on = On::open(&format!("software?check=all{way}"));
    (way, on)
}

/// Both ways to diverge, three of asynchrony and eight seeds, as settings of a device.
fn every_way() -> impl Iterator<Item = String> {
    let pairs = ["reconverge", "independent"].into_iter().flat_map(|divergence| {
        ["eager", "latest", "random"].map(|asynchrony| format!("&divergence={divergence}&async={asynchrony}"))
    });
    pairs.flat_map(|pair| (0..SEEDS).map(move |seed| format!("{pair}&schedule=random&seed={seed}")))
}

#[track_caller]
fn same_bits<T: Element>(ways: &[(String, On)], work: impl Fn(&On) -> Vec<T>) -> Vec<T> {
    let first = work(&ways[0].1);
    for (way, on) in &ways[1..] {
        assert!(cast_slice::<T, u8>(&first) == cast_slice::<T, u8>(&work(on)), "{way}: other bytes");
    }
    first
}

/// Runs `work` in every way, asserts that it returns the same bits and that no check reports anything, and returns them:
/// for tiles up to 128 by 128.
#[track_caller]
pub(crate) fn same_bits_in_every_way<T: Element>(work: impl Fn(&On) -> Vec<T>) -> Vec<T> {
    same_bits(&EVERY_WAY, work)
}

/// The same on a device of one multiprocessor.
#[track_caller]
pub(crate) fn same_bits_in_every_way_on_one<T: Element>(work: impl Fn(&On) -> Vec<T>) -> Vec<T> {
    same_bits(&EVERY_WAY_ON_ONE, work)
}

/// The same in two ways far apart, for larger shapes.
#[track_caller]
pub(crate) fn same_bits_in_two_ways<T: Element>(work: impl Fn(&On) -> Vec<T>) -> Vec<T> {
    same_bits(&TWO_WAYS, work)
}

/// The ways to run in, for results of any kind: `Ways::EVERY` for tiles, `Ways::TWO` for larger shapes.
#[derive(Clone, Copy)]
pub(crate) struct Ways(fn() -> &'static [(String, On)]);

impl Ways {
    pub(crate) const EVERY: Ways = Ways(|| &EVERY_WAY);
    pub(crate) const TWO: Ways = Ways(|| &TWO_WAYS);

    /// Runs `work` in all of them, asserts that its results are equal, and returns them. (Bits that compare equal and are not,
    /// zeros of two signs, come from no other order of the same sum.)
    #[track_caller]
    pub(crate) fn same<R: PartialEq>(self, work: impl Fn(&On) -> R) -> R {
        let ways = (self.0)();
        let first = work(&ways[0].1);
        for (way, on) in &ways[1..] {
            assert!(first == work(on), "{way}: other results");
        }
        first
    }
}
