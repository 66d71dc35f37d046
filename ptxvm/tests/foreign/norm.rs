//! Layer norm forward, backward with its locks, and RMS norm, as Triton compiles them.

use half::{bf16, f16};
use warpweft_ptxvm::report::Check;

use crate::numbers::{Bounded, F32, Numbers, Real, close, same, wide};
use crate::triton::Kernel;
use crate::vm::{Known, Ways};

/// Second-order terms of the bounds below: products of errors that are each below 1 %.
const SLACK: f64 = 1.01;

struct Row {
    y: Vec<Bounded>,
    mean: Bounded,
    rstd: Bounded,
}

/// The formula, and how far f32 with sums of n terms in any order can be from it.
fn layer_norm_row(x: &[f64], w: &[f64], b: &[f64], eps: f64) -> Row {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    // n additions, a division of 2 units in the last place.
    let mean_error = (n + 4.0) * F32 * x.iter().map(|x| x.abs()).sum::<f64>() / n;
    let centred: Vec<(f64, f64)> = x.iter().map(|x| (x - mean, mean_error + F32 * (x - mean).abs())).collect();
    let variance = centred.iter().map(|(c, _)| c * c).sum::<f64>() / n;
    let variance_error =
        centred.iter().map(|(c, e)| 2.0 * c.abs() * e + e * e).sum::<f64>() / n + (n + 6.0) * F32 * variance;
    let rstd = 1.0 / (variance + eps).sqrt();
    let rstd_relative = SLACK * variance_error / (2.0 * (variance + eps)) + 8.0 * F32;
    let y = centred.iter().zip(w.iter().zip(b)).map(|(&(c, error), (w, b))| {
        let scaled = c * rstd * w;
        let value = scaled + b;
        let error = (rstd * w).abs() * error + scaled.abs() * (rstd_relative + 3.0 * F32) + F32 * value.abs();
        Bounded { value, error: SLACK * error }
    });
    Row {
        y: y.collect(),
        mean: Bounded { value: mean, error: mean_error },
        rstd: Bounded { value: rstd, error: rstd * rstd_relative },
    }
}

fn forward<T: Real>(ways: &Ways, name: &str, rows: usize, columns: usize, stride: usize) {
    let kernel = Kernel::open(name);
    let eps = 1e-5f32;
    let mut numbers = Numbers::new(31);
    // A mean far from zero: the two-pass formula must not lose the variance under it.
    let x: Vec<T> = (0..rows * stride).map(|_| T::from_f64(5.0 + numbers.real(2.0))).collect();
    let (w, b) = (numbers.reals::<T>(columns, 1.5), numbers.reals::<T>(columns, 1.0));
    let per_row = wide(&x);
    let per_row = per_row.chunks(stride).map(|x| layer_norm_row(&x[..columns], &wide(&w), &wide(&b), eps.f64()));
    let wanted: Vec<Row> = per_row.collect();
    ways.each(|machine| {
        let (input, weight, bias) = (machine.upload(&x), machine.upload(&w), machine.upload(&b));
        let y = machine.zeros::<T>(rows * stride);
        let (mean, rstd) = (machine.output::<f32>(rows), machine.output::<f32>(rows));
        let call = kernel.on(machine).buffer("x", &input).buffer("y", &y).buffer("w", &weight).buffer("b", &bias);
        let call = call.buffer("mean", &mean).buffer("rstd", &rstd).floats(&[("eps", eps)]);
        call.integers(&[("stride", stride as i32), ("columns", columns as i32)]).launch([rows as u32, 1, 1]);
        for (got, wanted) in machine.download::<T>(&y).chunks(stride).zip(&wanted) {
            close("y", &got[..columns], &wanted.y);
        }
        let (means, rstds): (Vec<_>, Vec<_>) = wanted.iter().map(|row| (row.mean, row.rstd)).unzip();
        close("mean", &machine.download::<f32>(&mean), &means);
        close("rstd", &machine.download::<f32>(&rstd), &rstds);
    });
}

pub(crate) fn forward_f32(ways: &Ways) {
    forward::<f32>(ways, "layer_norm_f32", 4, 601, 613);
}

pub(crate) fn forward_f16(ways: &Ways) {
    forward::<f16>(ways, "layer_norm_f16", 3, 512, 512);
}

/// Triton loads a scalar in every thread of a block: here the flag "this row of partial sums was written".
const READS_ITS_FLAG: Known = Known {
    check: Check::Racecheck,
    kinds: &["read-after-write", "write-after-read"],
    kernel: "layer_norm_backward",
    instructions: &["ld.global", "atom.global"],
    only: |_| true,
    why: "every thread reads the flag, and where it was zero thread 0 then sets it, with no barrier between: another warp may \
          read it after its own block's write, and takes the branch that adds what memory holds. The sums are right all the \
          same, because the partial rows start as zero; with uninitialised rows they would not be",
};

/// dx of each row, and the sums over rows of dw and db in `GROUPS` partial rows, each added to under a lock.
pub(crate) fn backward(ways: &Ways) {
    let kernel = Kernel::open("layer_norm_backward");
    let weights_kernel = Kernel::open("layer_norm_weights");
    let groups = kernel.constant("GROUPS") as usize;
    let (rows, columns) = (14, 203);
    let mut numbers = Numbers::new(32);
    let x = numbers.reals::<f16>(rows * columns, 2.0);
    let (dy, w) = (numbers.reals::<f16>(rows * columns, 1.0), numbers.reals::<f16>(columns, 1.5));
    let ones = vec![1.0; columns];
    let statistics: Vec<Row> = wide(&x).chunks(columns).map(|x| layer_norm_row(x, &ones, &ones, 1e-5)).collect();
    let mean: Vec<f32> = statistics.iter().map(|row| row.mean.value as f32).collect();
    let rstd: Vec<f32> = statistics.iter().map(|row| row.rstd.value as f32).collect();
    let given = Given { x: wide(&x), dy: wide(&dy), w: wide(&w), mean: wide(&mean), rstd: wide(&rstd), columns };
    let (dx_wanted, dw_wanted, db_wanted) = (given.dx(), given.partial(groups, true), given.partial(groups, false));
    ways.each_knowing(&[READS_ITS_FLAG], |machine| {
        let (input, grad, weight) = (machine.upload(&x), machine.upload(&dy), machine.upload(&w));
        let (mean, rstd) = (machine.upload(&mean), machine.upload(&rstd));
        let (dx, locks) = (machine.output::<f16>(rows * columns), machine.zeros::<i32>(2 * groups));
        let (dw, db) = (machine.zeros::<f32>(groups * columns), machine.zeros::<f32>(groups * columns));
        let call = kernel.on(machine).buffer("dx", &dx).buffer("dy", &grad).buffer("dw", &dw).buffer("db", &db);
        let call = call.buffer("x", &input).buffer("w", &weight).buffer("mean", &mean).buffer("rstd", &rstd);
        let sizes = [("stride", columns as i32), ("columns", columns as i32)];
        call.buffer("locks", &locks).integers(&sizes).launch([rows as u32, 1, 1]);
        close("dx", &machine.download::<f16>(&dx), &dx_wanted);
        let (part_w, part_b) = (machine.download::<f32>(&dw), machine.download::<f32>(&db));
        close("partial dw", &part_w, &dw_wanted);
        close("partial db", &part_b, &db_wanted);
        same("locks", &machine.download::<i32>(&locks)[..groups], &vec![0; groups]);

        let (final_dw, final_db) = (machine.output::<f16>(columns), machine.output::<f16>(columns));
        let call = weights_kernel.on(machine).buffer("dw", &dw).buffer("db", &db);
        let call = call.buffer("final_dw", &final_dw).buffer("final_db", &final_db);
        let programs = columns.div_ceil(weights_kernel.constant("BLOCK") as usize) as u32;
        call.integers(&[("rows", groups as i32), ("columns", columns as i32)]).launch([programs, 1, 1]);
        close("dw", &machine.download::<f16>(&final_dw), &column_sums(&part_w, columns));
        close("db", &machine.download::<f16>(&final_db), &column_sums(&part_b, columns));
    });
}

/// The second stage alone, over more rows than one step of its loop takes.
pub(crate) fn column_sums_of_many_rows(ways: &Ways) {
    let kernel = Kernel::open("layer_norm_weights");
    let (rows, columns) = (71, 100);
    let mut numbers = Numbers::new(33);
    let (a, b) = (numbers.reals::<f32>(rows * columns, 1.0), numbers.reals::<f32>(rows * columns, 1.0));
    ways.each(|machine| {
        let (dw, db) = (machine.upload(&a), machine.upload(&b));
        let (final_dw, final_db) = (machine.output::<f16>(columns), machine.output::<f16>(columns));
        let call = kernel.on(machine).buffer("dw", &dw).buffer("db", &db);
        let call = call.buffer("final_dw", &final_dw).buffer("final_db", &final_db);
        call.integers(&[("rows", rows as i32), ("columns", columns as i32)]).launch([2, 1, 1]);
        close("dw", &machine.download::<f16>(&final_dw), &column_sums(&a, columns));
        close("db", &machine.download::<f16>(&final_db), &column_sums(&b, columns));
    });
}

fn column_sums(parts: &[f32], columns: usize) -> Vec<Bounded> {
    let rows = parts.len() / columns;
    let column = |at: usize| parts.iter().skip(at).step_by(columns).map(|x| x.f64());
    let sum = |at: usize| Bounded {
        value: column(at).sum(),
        error: column(at).map(f64::abs).sum::<f64>() * rows as f64 * F32,
    };
    (0..columns).map(sum).collect()
}

/// What the backward kernel is given, as f64.
struct Given {
    x: Vec<f64>,
    dy: Vec<f64>,
    w: Vec<f64>,
    mean: Vec<f64>,
    rstd: Vec<f64>,
    columns: usize,
}

impl Given {
    fn normal(&self, at: usize) -> f64 {
        (self.x[at] - self.mean[at / self.columns]) * self.rstd[at / self.columns]
    }

    fn dx(&self) -> Vec<Bounded> {
        let n = self.columns as f64;
        let mut result = Vec::new();
        for row in 0..self.mean.len() {
            let each = || {
                (row * self.columns..(row + 1) * self.columns)
                    .map(|at| (self.normal(at), self.w[at % self.columns] * self.dy[at]))
            };
            let along = each().map(|(normal, wg)| normal * wg).sum::<f64>() / n;
            let level = each().map(|(_, wg)| wg).sum::<f64>() / n;
            let along_error = each().map(|(normal, wg)| (normal * wg).abs()).sum::<f64>() / n * (n + 10.0) * F32;
            let level_error = each().map(|(_, wg)| wg.abs()).sum::<f64>() / n * (n + 6.0) * F32;
            let r = self.rstd[row];
            result.extend(each().map(|(normal, wg)| {
                let size = wg.abs() + (normal * along).abs() + level.abs();
                let error = r * (normal.abs() * along_error + level_error + 8.0 * F32 * size);
                Bounded { value: (wg - (normal * along + level)) * r, error: SLACK * error }
            }));
        }
        result
    }

    /// Row `g` of the partial sums is that of every row congruent to g.
    fn partial(&self, groups: usize, of_weights: bool) -> Vec<Bounded> {
        let rows = self.mean.len();
        let sum = |group: usize, column: usize| {
            let terms = (group..rows).step_by(groups).map(|row| {
                let at = row * self.columns + column;
                if of_weights { self.dy[at] * self.normal(at) } else { self.dy[at] }
            });
            let (value, size) = terms.fold((0.0, 0.0), |(sum, size), x| (sum + x, size + x.abs()));
            Bounded { value, error: size * (rows.div_ceil(groups) + 5) as f64 * F32 }
        };
        (0..groups * self.columns).map(|at| sum(at / self.columns, at % self.columns)).collect()
    }
}

pub(crate) fn rms(ways: &Ways) {
    let kernel = Kernel::open("rms_norm");
    let (rows, columns, eps) = (4, 400, 1e-6f32);
    let mut numbers = Numbers::new(34);
    let (x, residual) = (numbers.reals::<bf16>(rows * columns, 3.0), numbers.reals::<bf16>(rows * columns, 3.0));
    let w = numbers.reals::<bf16>(columns, 1.0);
    let sums: Vec<f64> = wide(&x).iter().zip(wide(&residual)).map(|(x, y)| x + y).collect();
    let kept: Vec<Bounded> = sums.iter().map(|&value| Bounded { value, error: F32 * value.abs() }).collect();
    let mut wanted = Vec::new();
    for v in sums.chunks(columns) {
        let n = columns as f64;
        let mean_square = v.iter().map(|v| v * v).sum::<f64>() / n;
        let r = 1.0 / (mean_square + eps.f64()).sqrt();
        // The sum is of positive terms; rsqrt.approx is within 2^-22.9.
        let relative = (n + 8.0) / 2.0 * F32 + 3.0 * F32 + 4.0 * F32;
        wanted.extend(
            v.iter().zip(wide(&w)).map(|(v, w)| Bounded { value: v * r * w, error: (v * r * w).abs() * relative }),
        );
    }
    ways.each(|machine| {
        let (input, weight, both) = (machine.upload(&x), machine.upload(&w), machine.upload(&residual));
        let y = machine.output::<bf16>(rows * columns);
        let call =
            kernel.on(machine).buffer("x", &input).buffer("residual", &both).buffer("y", &y).buffer("w", &weight);
        call.integers(&[("columns", columns as i32)]).floats(&[("eps", eps)]).launch([rows as u32, 1, 1]);
        close("residual", &machine.download::<bf16>(&both), &kept);
        close("y", &machine.download::<bf16>(&y), &wanted);
    });
}
