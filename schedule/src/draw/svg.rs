//! The timeline as SVG: a row a rank, a box an operation.

use std::fmt::Write;

use crate::{Kind, Schedule};

const ROW: f64 = 26.0;
const LEFT: f64 = 64.0;
const WIDTH: f64 = 1600.0;

/// The timeline as a picture of its own, with a colour for each kind of operation; later chunks of a rank are darker.
pub fn svg(schedule: &Schedule) -> String {
    let proof = schedule.proof();
    let timeline = &proof.timeline;
    let scale = WIDTH / timeline.length();
    let height = ROW * (timeline.ranks() + 2) as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\">\n",
        LEFT + WIDTH + 10.0
    );
    let _ = writeln!(
        out,
        "<text x=\"4\" y=\"16\">{}: p {}, m {}, cost {:.3}, bubble {:.4}</text>",
        schedule.origin(),
        schedule.ranks(),
        schedule.micro_batches(),
        proof.cost,
        proof.bubble_rate
    );
    for rank in 0..timeline.ranks() {
        let y = ROW * (rank + 1) as f64;
        let _ = writeln!(out, "<text x=\"4\" y=\"{}\">rank {rank}</text>", y + 16.0);
        let first = schedule.placement().chunks_of(rank).next();
        for span in timeline.rank(rank) {
            let (x, width) = (LEFT + span.start * scale, (span.end - span.start) * scale);
            let operation = span.operation;
            let colour = colour(operation.kind, first == Some(operation.chunk));
            let _ = write!(
                out,
                "<rect x=\"{x:.2}\" y=\"{y}\" width=\"{width:.2}\" height=\"{}\" fill=\"{colour}\" stroke=\"#fff\" stroke-width=\"0.5\"><title>{operation}, {:.3} to {:.3}</title></rect>",
                ROW - 4.0,
                span.start,
                span.end
            );
            if width >= 16.0 {
                let _ = write!(out, "<text x=\"{:.2}\" y=\"{}\">{}</text>", x + 2.0, y + 15.0, operation.micro_batch);
            }
            out.push('\n');
        }
    }
    legend(&mut out, ROW * (timeline.ranks() + 1) as f64);
    out.push_str("</svg>\n");
    out
}

fn legend(out: &mut String, y: f64) {
    let kinds = [(Kind::F, "F"), (Kind::B, "B (input)"), (Kind::W, "W (weights)"), (Kind::BW, "B and W")];
    for (index, (kind, name)) in kinds.into_iter().enumerate() {
        let x = LEFT + 120.0 * index as f64;
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{}\" width=\"14\" height=\"14\" fill=\"{}\"/><text x=\"{}\" y=\"{}\">{name}</text>",
            y + 4.0,
            colour(kind, true),
            x + 20.0,
            y + 15.0
        );
    }
}

fn colour(kind: Kind, first: bool) -> &'static str {
    match (kind, first) {
        (Kind::F, true) => "#8ecae6",
        (Kind::F, false) => "#4ea5d9",
        (Kind::B, true) => "#ffb4a2",
        (Kind::B, false) => "#e5857b",
        (Kind::W, true) => "#b7e4c7",
        (Kind::W, false) => "#74c69d",
        (Kind::BW, true) => "#ffd6a5",
        (Kind::BW, false) => "#f4a261",
    }
}
