//! Times of another library on the same device, of the cases that it has too.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use super::super::stop::Stop;
use super::case::Case;
use warpweft::device::DType;

/// A line of its own for the largest product of the other library.
const PRODUCT: &str = "library product";

/// What scripts/gpu-peer writes of a case.
#[derive(Debug, Deserialize)]
struct Line {
    op: String,
    case: String,
    dtype: String,
    us: f64,
    tflops: f64,
}

/// The times of the cases, and the most that products reach.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    micros: HashMap<[String; 3], f64>,
    /// Operations a second by type.
    products: HashMap<String, f64>,
}

impl Peers {
    /// From a file of JSON objects, one a line. A last line that was cut off is left out.
    pub(crate) fn read(path: &Path) -> Result<Self, Stop> {
        let said = |error: &dyn std::fmt::Display| Stop::failed(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| said(&error))?;
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let mut peers = Self::default();
        for line in whole.lines().filter(|line| line.starts_with('{')) {
            let line: Line = serde_json::from_str(line).map_err(|error| said(&error))?;
            if line.op == PRODUCT {
                let most = peers.products.entry(line.dtype.clone()).or_default();
                *most = most.max(line.tflops * 1e12);
            }
            peers.micros.insert([line.op, line.case, line.dtype], line.us);
        }
        Ok(peers)
    }

    /// The time of a case.
    pub(crate) fn micros(&self, case: &Case) -> Option<f64> {
        self.micros.get(&[case.op.to_owned(), case.what.clone(), case.dtype.to_string()]).copied()
    }

    /// Operations a second of the largest product of a type; f16's are those of bf16 where nothing else is known.
    pub(crate) fn product(&self, dtype: DType) -> Option<f64> {
        let of = |dtype: &str| self.products.get(dtype).copied();
        of(&dtype.to_string()).or_else(|| if dtype == DType::F16 { of("bf16") } else { None })
    }

    /// Those, in words.
    pub(crate) fn products(&self) -> String {
        let mut all: Vec<_> = self.products.iter().collect();
        all.sort_by(|a, b| a.0.cmp(b.0));
        let words = all.into_iter().map(|(dtype, flops)| format!("{:.1} TFLOP/s in {dtype}", flops / 1e12));
        match words.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => {
                "no other library's product was measured, so that no ceiling is known".to_owned()
            }
            words => format!("the other library's largest product reaches {words}"),
        }
    }
}
