//! Where the results go: the table on the terminal and, on request, nccl-tests' JSON.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::kind::Kind;
use super::settings::Settings;
use super::table::{self, Half, RankLine, Row};

/// Takes the results of a run as they come.
pub(crate) struct Report<'a> {
    kind: Kind,
    settings: &'a Settings,
    out: &'a mut dyn Write,
    json: Option<(PathBuf, File)>,
    devices: Vec<Value>,
    results: Vec<Value>,
    failures: usize,
    bus_bandwidths: Vec<f64>,
}

impl<'a> Report<'a> {
    /// Writes the header. `json` is a new file for the whole.
    pub(crate) fn new(
        kind: Kind,
        settings: &'a Settings,
        ranks: &[RankLine],
        json: Option<(PathBuf, File)>,
        out: &'a mut dyn Write,
    ) -> io::Result<Self> {
        if let Some((path, _)) = &json {
            writeln!(out, "# Writing JSON output to {}", path.display())?;
        }
        table::header(out, kind, settings, ranks)?;
        let devices = ranks.iter().map(|line| {
            json!({"rank": line.rank, "group": 0, "pid": line.process, "hostname": line.host, "device": 0,
                   "device_hex": "cpu", "device_info": format!("transport {}", line.transport)})
        });
        let devices = devices.collect();
        Ok(Self { kind, settings, out, json, devices, results: Vec::new(), failures: 0, bus_bandwidths: Vec::new() })
    }

    /// One row.
    pub(crate) fn row(&mut self, row: &Row) -> io::Result<()> {
        table::row(self.out, row)?;
        for half in [row.out_of_place, row.in_place] {
            self.failures += usize::from(half.wrong.is_some_and(|wrong| wrong > 0));
            self.bus_bandwidths.push(half.bus_bandwidth);
        }
        if self.json.is_some() {
            let half = |half: Half| {
                json!({"time": half.microseconds, "alg_bw": half.algorithm_bandwidth, "bus_bw": half.bus_bandwidth,
                       "nwrong": half.wrong})
            };
            self.results.push(json!({
                "size": row.bytes, "count": row.count, "type": row.type_name, "redop": row.op,
                "root": format!("{:6}", row.root), "out_of_place": half(row.out_of_place), "in_place": half(row.in_place),
                "actual_iterations": self.settings.iters, "experiment_name": self.kind.program(),
            }));
        }
        Ok(())
    }

    /// Writes the footer and the JSON file; returns how many halves of rows had a wrong element.
    pub(crate) fn finish(mut self) -> io::Result<usize> {
        let mean = self.bus_bandwidths.iter().sum::<f64>() / self.bus_bandwidths.len().max(1) as f64;
        table::footer(self.out, self.kind, self.failures, mean)?;
        if let Some((_, mut file)) = self.json.take() {
            serde_json::to_writer(&mut file, &self.document(mean))?;
            file.write_all(b"\n")?;
            file.sync_all()?;
        }
        Ok(self.failures)
    }

    /// The whole run under the keys of version 2 of nccl-tests' JSON, where they have a meaning here.
    fn document(&self, mean: f64) -> Value {
        let settings = self.settings;
        let step = if settings.stepfactor > 1 {
            ("step_factor", settings.stepfactor)
        } else {
            ("step_bytes", settings.stepbytes)
        };
        json!({
            "version": 2,
            "args": std::env::args().collect::<Vec<_>>(),
            "warpweft_version": env!("CARGO_PKG_VERSION"),
            "config": {
                "nthreads": 1, "ngpus": 0, "minimum_bytes": settings.minbytes, "maximum_bytes": settings.maxbytes,
                step.0: step.1, "warmup_iters": settings.warmup_iters, "iterations": settings.iters,
                "aggregated_iterations": settings.agg_iters, "validation": settings.check, "graph": 0,
                "blocking_collectives": (settings.blocking == 1).to_string(), "devices": self.devices,
            },
            "results": self.results,
            "out_of_bounds": {"count": self.failures, "okay": (self.failures == 0).to_string()},
            "average_bus_bandwidth": {"bandwidth": mean, "okay": "unchecked"},
        })
    }
}

/// A new file of that name, or of the name with the first free number behind it.
pub(crate) fn create_new(path: &Path) -> io::Result<(PathBuf, File)> {
    let numbered = (0..).map(|number| PathBuf::from(format!("{}.{number}", path.display())));
    for candidate in std::iter::once(path.to_path_buf()).chain(numbered) {
        match OpenOptions::new().write(true).create_new(true).open(&candidate) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", candidate.display()))),
            Ok(file) => return Ok((candidate, file)),
        }
    }
    unreachable!("there are more numbers than files")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_exists_is_kept() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("results.json");
        std::fs::write(&path, "older").expect("the folder can be written");
        let (first, _) = create_new(&path).expect("a free name");
        let (second, _) = create_new(&path).expect("another");
        assert_eq!(first, folder.path().join("results.json.0"));
        assert_eq!(second, folder.path().join("results.json.1"));
        assert_eq!(std::fs::read_to_string(&path).expect("it is still there"), "older");
        let error = create_new(&folder.path().join("no/such")).expect_err("no such folder");
        assert!(error.to_string().contains("no/such"), "{error}");
    }
}
