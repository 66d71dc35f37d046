//! What `perf` prints: nccl-tests' header, rows and footer, column for column.

use std::io::{self, Write};

use super::kind::Kind;
use super::number::{fitting, general};
use super::settings::Settings;
use super::size::Step;

/// One rank as the header shows it.
pub(crate) struct RankLine {
    pub(crate) rank: usize,
    pub(crate) process: u32,
    pub(crate) host: String,
    pub(crate) transport: String,
}

/// What one half of a row shows: the call out of place, or in place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Half {
    pub(crate) microseconds: f64,
    pub(crate) algorithm_bandwidth: f64,
    pub(crate) bus_bandwidth: f64,
    /// Wrong elements over all ranks; `None` when nothing was checked.
    pub(crate) wrong: Option<u64>,
}

/// One row: a size, type, operation and root.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) bytes: usize,
    pub(crate) count: usize,
    pub(crate) type_name: &'static str,
    pub(crate) op: &'static str,
    pub(crate) root: i64,
    pub(crate) out_of_place: Half,
    pub(crate) in_place: Half,
}

/// The lines before the first row.
pub(crate) fn header(out: &mut dyn Write, kind: Kind, settings: &Settings, ranks: &[RankLine]) -> io::Result<()> {
    let (step, unit) = match settings.step() {
        Step::Bytes(bytes) => (bytes, "bytes"),
        Step::Factor(factor) => (factor, "factor"),
    };
    writeln!(out, "# warpweft version {}", env!("CARGO_PKG_VERSION"))?;
    writeln!(out, "# Collective test starting: {}", kind.program())?;
    writeln!(
        out,
        "# nThread 1 nGpus 0 minBytes {} maxBytes {} step: {step}({unit}) warmup iters: {} iters: {} agg iters: {} \
         validation: {} graph: 0",
        settings.minbytes, settings.maxbytes, settings.warmup_iters, settings.iters, settings.agg_iters, settings.check
    )?;
    if settings.blocking == 1 {
        writeln!(out, "# Blocking Enabled: wait and barrier after each inner iteration (-m) ")?;
    }
    writeln!(out, "#\n# Using devices")?;
    for line in ranks {
        writeln!(
            out,
            "#  Rank {:2} Group  0 Pid {:6} on {:>10} device  0 [cpu] transport {}",
            line.rank, line.process, line.host, line.transport
        )?;
    }
    writeln!(out, "#")?;
    write_columns(out)
}

fn write_columns(out: &mut dyn Write) -> io::Result<()> {
    let blank = "";
    writeln!(
        out,
        "# {blank:>10}  {blank:>12}  {blank:>8}  {blank:>6}  {blank:>6}           out-of-place                       in-place          "
    )?;
    let line = |out: &mut dyn Write, left: [&str; 5], half: [&str; 4]| {
        let [size, count, kind, op, root] = left;
        write!(out, "# {size:>10}  {count:>12}  {kind:>8}  {op:>6}  {root:>6}")?;
        for _ in 0..2 {
            let [time, algorithm, bus, wrong] = half;
            write!(out, "  {time:>7}  {algorithm:>6}  {bus:>6}  {wrong:>6}")?;
        }
        // nccl-tests ends its header lines with a blank (an empty column for a time stamp).
        writeln!(out, " ")
    };
    line(out, ["size", "count", "type", "redop", "root"], ["time", "algbw", "busbw", "#wrong"])?;
    line(out, ["(B)", "(elements)", "", "", ""], ["(us)", "(GB/s)", "(GB/s)", ""])
}

/// One row.
pub(crate) fn row(out: &mut dyn Write, row: &Row) -> io::Result<()> {
    write!(out, "{:12}  {:12}  {:>8}  {:>6}  {:6}", row.bytes, row.count, row.type_name, row.op, row.root)?;
    for half in [row.out_of_place, row.in_place] {
        let wrong = half.wrong.map_or_else(|| "N/A".to_owned(), |wrong| general(wrong as f64));
        write!(
            out,
            "  {}  {}  {}  {wrong:>6}",
            fitting(half.microseconds, 7),
            fitting(half.algorithm_bandwidth, 6),
            fitting(half.bus_bandwidth, 6)
        )?;
    }
    writeln!(out)?;
    // A reader follows a long run line by line.
    out.flush()
}

/// The lines after the last row: how many halves of rows had a wrong element, and the mean bus bandwidth of all halves.
pub(crate) fn footer(out: &mut dyn Write, kind: Kind, failures: usize, mean_bus_bandwidth: f64) -> io::Result<()> {
    let verdict = if failures == 0 { "OK" } else { "FAILED" };
    writeln!(out, "# {:<20} : {failures} {verdict}", "Out of bounds values")?;
    writeln!(out, "# {:<20} : {} ", "Avg bus bandwidth", general(mean_bus_bandwidth))?;
    writeln!(out, "#\n# Collective test concluded: {}", kind.program())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut bytes = Vec::new();
        write(&mut bytes).expect("a Vec takes everything");
        String::from_utf8(bytes).expect("the table is text")
    }

    #[test]
    fn the_columns_are_those_of_nccl_tests() {
        // Printed by all_reduce_perf of nccl-tests 2.18; the blanks at the ends of its lines are part of it.
        let theirs = concat!(
            "#                                                              out-of-place                       in-place          \n",
            "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong \n",
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         \n",
        );
        assert_eq!(text(|out| write_columns(out)), theirs);
    }

    #[test]
    fn rows_are_those_of_nccl_tests() {
        let half = |microseconds, algorithm_bandwidth, bus_bandwidth| Half {
            microseconds,
            algorithm_bandwidth,
            bus_bandwidth,
            wrong: Some(0),
        };
        let mut shown = Row {
            bytes: 67_108_864,
            count: 16_777_216,
            type_name: "float",
            op: "sum",
            root: -1,
            out_of_place: half(27.76, 37.78, 66.11),
            in_place: half(120.47, 139.26, 243.71),
        };
        assert_eq!(
            text(|out| row(out, &shown)),
            "    67108864      16777216     float     sum      -1    27.76   37.78   66.11       0   120.47  139.26  243.71       0\n"
        );
        shown.out_of_place.wrong = Some(1_234_567);
        shown.in_place.wrong = None;
        shown.root = 3;
        assert_eq!(
            text(|out| row(out, &shown)),
            "    67108864      16777216     float     sum       3    27.76   37.78   66.11  1.23457e+06   120.47  139.26  243.71     N/A\n"
        );
    }

    #[test]
    fn the_footer_gives_the_verdict() {
        assert_eq!(
            text(|out| footer(out, Kind::AllReduce, 0, 745.531)),
            "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 745.531 \n#\n# Collective test concluded: all_reduce_perf\n"
        );
        assert!(text(|out| footer(out, Kind::AllToAll, 2, 0.0)).starts_with("# Out of bounds values : 2 FAILED\n"));
    }
}
