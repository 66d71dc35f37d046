//! What one rank has of a step's tensors, taken down while the step goes on.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use warpweft_device::{Buffer, Element, Float, View};

use super::{Kind, What};
use crate::TrainError;
use crate::checkpoint::{Held, Piece};
use crate::model::{MicroBatch, Pass, Table, UnitId, held};
use crate::optimizer::Optimizer;
use crate::parallel::mesh::Mesh;
use crate::parallel::plan::Plan;

/// Takes a step down. Of ranks that hold the same, the first does.
pub(crate) struct Recorder {
    what: What,
    /// Sequences of the step, over all ranks.
    batch: usize,
    /// Tokens of a sequence.
    tokens: usize,
    /// Where in a sequence this rank's tokens are.
    places: Vec<Range<usize>>,
    /// The sequences of this rank and those that share them.
    mine: Range<usize>,
    pieces: Mutex<Vec<Piece>>,
}

impl Recorder {
    /// For a step over `batch` sequences of `tokens` tokens, of which this rank has `mine`.
    pub(crate) fn new(what: What, (batch, tokens): (usize, usize), mine: Range<usize>, mesh: &Mesh) -> Self {
        let mut places: Vec<Range<usize>> = Vec::new();
        for place in mesh.places(tokens).into_iter().map(|place| place as usize) {
            match places.last_mut() {
                Some(last) if last.end == place => last.end += 1,
                _ => places.push(place..place + 1),
            }
        }
        Self { what, batch, tokens, places, mine, pieces: Mutex::default() }
    }

    /// What it takes down.
    pub(crate) fn what(&self) -> What {
        self.what
    }

    /// All that was taken down.
    pub(crate) fn into_pieces(self) -> Vec<Piece> {
        self.pieces.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, piece: Piece) {
        if !piece.held.is_empty() {
            self.pieces.lock().unwrap_or_else(PoisonError::into_inner).push(piece);
        }
    }

    /// The tokens and targets of this rank's sequences, where it is the first that has them.
    pub(crate) fn sequences(&self, mesh: &Mesh, inputs: &[u32], targets: &[u32]) {
        let place = mesh.place();
        if !self.what.has(Kind::Input) || place.pp + place.cp + place.tp > 0 {
            return;
        }
        for (which, values) in [("tokens", inputs), ("targets", targets)] {
            let held = Held::rows(&[self.batch, self.tokens], self.mine.clone());
            if held.len() == values.len() {
                self.push(Piece::new(Kind::Input.of(which), held, values));
            }
        }
    }

    /// Rows of a micro-batch, `width` elements each: those of the stream that this rank has, or where `whole` all of its tokens.
    fn rows<T, E: Element>(
        &self,
        name: String,
        (micro, pass): (&MicroBatch<'_>, &Pass<'_, T>),
        (values, width): (View<'_, E>, Option<usize>),
        rows: Range<usize>,
    ) -> Result<(), TrainError> {
        let first = micro.first_sample as usize;
        let (mut shape, each) = (vec![self.batch, self.tokens], width.unwrap_or(1));
        shape.extend(width);
        let portion = Held::rows(&shape, first..first + pass.batch).portion.only(1, self.places.clone());
        let held = Held { shape, portion, part: rows.start * each..rows.end * each };
        self.push(Piece::new(name, held, &values.to_host()?));
        Ok(())
    }

    /// The rows of the residual stream in `buffer`, or of its error.
    pub(crate) fn stream<T: Float>(
        &self,
        (kind, which): (Kind, &str),
        (micro, pass): (&MicroBatch<'_>, &Pass<'_, T>),
        buffer: &Buffer<T>,
        channels: usize,
    ) -> Result<(), TrainError> {
        let rows = pass.stream_rows();
        let all = rows.len() == pass.rows();
        if !self.what.has(kind) || all && micro.mesh.place().tp > 0 {
            return Ok(());
        }
        let values = pass.stream_of(buffer, channels)?;
        self.rows(kind.of(which), (micro, pass), (values, Some(channels)), rows)
    }

    /// The loss of every token.
    pub(crate) fn losses<T: Float>(
        &self,
        micro: &MicroBatch<'_>,
        pass: &Pass<'_, T>,
        losses: &Buffer<f32>,
    ) -> Result<(), TrainError> {
        if !self.what.has(Kind::Loss) || micro.mesh.place().tp > 0 {
            return Ok(());
        }
        self.rows(Kind::Loss.of("token"), (micro, pass), (pass.of(losses, 1)?, None), 0..pass.rows())
    }

    /// Something of each parameter: what this rank has of a unit is `of(unit)`.
    pub(crate) fn parameters<'v, E: Element>(
        &self,
        kind: Kind,
        (table, plan, optimizer): (&Table, &Plan, &Optimizer),
        of: impl Fn(UnitId) -> Result<View<'v, E>, TrainError>,
    ) -> Result<(), TrainError> {
        if !self.what.has(kind) {
            return Ok(());
        }
        for (id, unit) in table.units_here() {
            let mine = optimizer.mine(id)?;
            let values = of(id)?;
            let values = values.to_host()?;
            for (id, held, at) in held(table, unit, &mine).filter(|(id, ..)| plan.parameters[id.index()].counted) {
                self.push(Piece::new(kind.of(table.get(id).name()), held, &values[at]));
            }
        }
        Ok(())
    }
}
