//! The table of a model's parameters: names, shapes, initial values, layouts, and where each lies in a rank's memory.
//!
//! Every rank has the table of the whole model. Parameters are kept in [units](Unit), which are read, summed and updated at
//! once: a rank holds those of its stage, and of each parameter its [`Portion`].

use std::ops::Range;

use crate::model::portion::Portion;
use crate::parallel::layout::{Axes, Axis, Layout, Placement};

/// A parameter: its index in the [`Table`], in order of first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub(crate) usize);

impl TensorId {
    /// The index.
    pub const fn index(self) -> usize {
        self.0
    }
}

/// A unit: its index in the [`Table`], in order of first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitId(pub(crate) usize);

/// What a parameter holds before the first step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normally distributed around 0 with this standard deviation.
    Normal(f64),
    /// Zeros.
    Zeros,
    /// Ones.
    Ones,
}

/// A parameter that a layer enters.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its name, as Hugging Face's models have it where they have the same tensor.
    pub name: String,
    /// Sizes of the whole tensor, outermost first.
    pub shape: Vec<usize>,
    /// Initial values.
    pub init: Init,
    /// What this rank holds.
    pub portion: Portion,
    /// How it lies over the ranks.
    pub layout: Layout,
    /// Axes over which each rank applies it to some rows or heads, so that its gradient there is a summand.
    pub seen_in_part: Axes,
    /// Whether its initial values go on where those of the entry before it end, as parts of one tensor's do.
    pub continues: bool,
}

impl Entry {
    /// A parameter that every rank of a stage has whole, and applies to all it has.
    pub fn replicated(name: String, shape: Vec<usize>, init: Init) -> Self {
        let portion = Portion::whole(&shape);
        Self { name, shape, init, portion, layout: Layout::REPLICATED, seen_in_part: Axes::NONE, continues: false }
    }
}

/// One parameter.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// What its layer entered.
    pub entry: Entry,
    /// How often a backward pass adds to its gradient: twice for an embedding that is the output projection too.
    pub uses: usize,
    /// Whether two layers use it, wherever they are.
    pub shared: bool,
    /// The unit it belongs to.
    pub unit: UnitId,
    /// Of its initial values: the number of their random stream, and the place of the first in it.
    pub random: (u64, u64),
    offset: usize,
    held: usize,
}

impl Parameter {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.entry.name
    }

    /// Sizes of the whole tensor.
    pub fn shape(&self) -> &[usize] {
        &self.entry.shape
    }

    /// Elements of the whole tensor.
    pub fn elements(&self) -> usize {
        self.entry.shape.iter().product()
    }

    /// Elements that this rank holds where it holds the unit.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Whether this rank holds none of it.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Where it lies in its unit's memory.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.held
    }

    /// Whether AdamW decays it: matrices are, vectors (biases and norms) are not.
    pub fn decays(&self) -> bool {
        self.entry.shape.len() > 1
    }

    /// Whether it is a stack of experts, which a token goes to some of.
    pub fn is_of_experts(&self) -> bool {
        self.entry.layout.over(Axis::Ep) != Placement::Replicated
    }

    /// Whether two opposite stages of the pipeline hold it, each of which sees a part of its uses.
    pub fn is_on_opposite_stages(&self) -> bool {
        self.entry.seen_in_part.has(Axis::Pp)
    }

    /// The layout of its gradient after a backward pass.
    pub fn local_gradient(&self) -> Layout {
        self.entry.layout.of_local_gradient(self.entry.seen_in_part)
    }
}

/// Parameters that are read, summed and updated together.
#[derive(Clone, Debug)]
pub struct Unit {
    /// What it is, in messages and traces.
    pub name: String,
    /// Its parameters.
    pub parameters: Range<usize>,
    /// Elements that this rank holds of them.
    pub elements: usize,
    /// Whether it lies on this rank's stage.
    pub here: bool,
    /// The axes over which other ranks hold the same.
    pub copies: Axes,
}

impl Unit {
    /// Its parameters' ids, in the order of its memory.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = TensorId> + use<> {
        self.parameters.clone().map(TensorId)
    }
}

/// All parameters of a model.
#[derive(Clone, Debug, Default)]
pub struct Table {
    parameters: Vec<Parameter>,
    units: Vec<Unit>,
    streams: u64,
}

impl Table {
    /// Begins a unit, to which the entries from here on belong. `copies` are the axes over which other ranks hold the
    /// same parameters: [`Axes::TOKENS`], or less for experts.
    pub(crate) fn begin_unit(&mut self, name: impl Into<String>, here: bool, copies: Axes) -> UnitId {
        let first = self.parameters.len();
        self.units.push(Unit { name: name.into(), parameters: first..first, elements: 0, here, copies });
        UnitId(self.units.len() - 1)
    }

    /// Enters parameters into the unit begun last; they lie side by side, in this order.
    ///
    /// # Panics
    /// Before the first unit: a mistake in the model's code.
    pub(crate) fn group<const N: usize>(&mut self, group: [Entry; N]) -> [TensorId; N] {
        group.map(|entry| {
            let index = self.units.len() - 1;
            let random = match self.parameters.last().filter(|_| entry.continues) {
                Some(before) => (before.random.0, before.random.1 + before.elements() as u64),
                None => {
                    self.streams += 1;
                    (self.streams - 1, 0)
                }
            };
            let unit = &mut self.units[index];
            let (offset, held) = (unit.elements, entry.portion.len());
            unit.elements += held;
            unit.parameters.end += 1;
            self.parameters.push(Parameter {
                entry,
                uses: 1,
                shared: false,
                unit: UnitId(index),
                random,
                offset,
                held,
            });
            TensorId(self.parameters.len() - 1)
        })
    }

    /// Says that one more layer uses a parameter; where `apart`, on another stage, which then holds it too.
    pub(crate) fn use_again(&mut self, id: TensorId, apart: bool, here: bool) {
        let parameter = &mut self.parameters[id.0];
        parameter.shared = true;
        let unit = &mut self.units[parameter.unit.0];
        if apart {
            parameter.entry.seen_in_part = parameter.entry.seen_in_part.with(Axis::Pp);
            unit.here |= here;
        } else {
            parameter.uses += 1;
        }
    }

    /// Says that the model is there twice: what a stage holds, the opposite one holds too.
    pub(crate) fn hold_twice(&mut self) {
        for parameter in &mut self.parameters {
            parameter.entry.seen_in_part = parameter.entry.seen_in_part.with(Axis::Pp);
        }
    }

    /// Whether opposite stages hold the same, all of it.
    pub fn is_there_twice(&self) -> bool {
        self.parameters.iter().all(Parameter::is_on_opposite_stages)
    }

    /// The parameters in order of first use, which is the order of their ids.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// One parameter.
    pub fn get(&self, id: TensorId) -> &Parameter {
        &self.parameters[id.0]
    }

    /// The units in order of first use, which is the order of their ids.
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// The units that this rank holds.
    pub fn units_here(&self) -> impl Iterator<Item = (UnitId, &Unit)> {
        self.units.iter().enumerate().filter(|(_, unit)| unit.here).map(|(index, unit)| (UnitId(index), unit))
    }

    /// Elements of all parameters of the whole model.
    pub fn elements(&self) -> usize {
        self.parameters.iter().map(Parameter::elements).sum()
    }

    /// Elements that this rank holds.
    pub fn elements_here(&self) -> usize {
        self.units_here().map(|(_, unit)| unit.elements).sum()
    }

    /// The id of the parameter of that name.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        self.parameters.iter().position(|parameter| parameter.name() == name).map(TensorId)
    }

    /// Every id with its parameter, in order of first use.
    pub fn iter(&self) -> impl Iterator<Item = (TensorId, &Parameter)> {
        self.parameters.iter().enumerate().map(|(index, parameter)| (TensorId(index), parameter))
    }

    /// Every parameter that this rank holds, with its id.
    pub fn iter_here(&self) -> impl Iterator<Item = (TensorId, &Parameter)> {
        self.iter().filter(|(_, parameter)| self.units[parameter.unit.0].here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_holds_its_parameters_in_order_and_without_gaps() {
        let mut table = Table::default();
        let entry = |name: &str, shape: &[usize]| Entry::replicated(name.to_owned(), shape.to_vec(), Init::Zeros);
        table.begin_unit("embedding", true, Axes::TOKENS);
        let [tok] = table.group([entry("tok", &[5, 2])]);
        table.begin_unit("block", true, Axes::TOKENS);
        let [q, kv, b] =
            table.group([entry("q", &[3, 2]), Entry { continues: true, ..entry("kv", &[2, 2]) }, entry("b", &[3])]);
        table.use_again(tok, false, true);
        assert_eq!(table.get(tok).range(), 0..10);
        assert_eq!((table.get(q).range(), table.get(kv).range(), table.get(b).range()), (0..6, 6..10, 10..13));
        assert_eq!((table.elements(), table.elements_here()), (23, 23));
        assert_eq!((table.get(tok).uses, table.get(q).uses), (2, 1));
        assert_eq!([tok, q, kv, b].map(|id| table.get(id).random), [(0, 0), (1, 0), (1, 6), (2, 0)]);
        assert!(table.get(q).decays() && !table.get(b).decays());
        assert_eq!(table.find("b"), Some(b));
    }
}
