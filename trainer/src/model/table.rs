//! The table of a model's parameters: names, shapes, initial values, layouts, and where each lies in flat memory.
//!
//! The layers enter their parameters as the model is built, in groups that belong together (a weight and its bias). Flat
//! memory holds the groups in reverse order of use, so that a backward pass fills it from the front.

use std::ops::Range;

use crate::parallel::layout::Layout;

/// A parameter: its index in the [`Table`], in order of first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TensorId(pub(crate) usize);

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

/// One parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Its name, as Hugging Face's models have it where they have the same tensor.
    pub name: String,
    /// Sizes, outermost first: `[outputs, inputs]` for a linear layer.
    pub shape: Vec<usize>,
    /// Initial values.
    pub init: Init,
    /// How it lies over the ranks.
    pub layout: Layout,
    /// How often a backward pass adds to its gradient: twice for an embedding that is the output projection too.
    pub uses: usize,
    group: usize,
    offset: usize,
}

impl Parameter {
    /// Elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it holds no element; never so in a checked model.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it lies in flat memory.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }

    /// Whether AdamW decays it: matrices are, vectors (biases and norms) are not.
    pub fn decays(&self) -> bool {
        self.shape.len() > 1
    }
}

/// All parameters of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    parameters: Vec<Parameter>,
    groups: Vec<Range<usize>>,
}

impl Table {
    /// Enters a group of parameters, each `(name, shape, initial values)`; gives their ids. They stay side by side, in
    /// this order, in flat memory.
    pub(crate) fn group<const N: usize>(&mut self, group: [(String, Vec<usize>, Init); N]) -> [TensorId; N] {
        let first = self.parameters.len();
        let index = self.groups.len();
        for (name, shape, init) in group {
            let layout = Layout::REPLICATED;
            self.parameters.push(Parameter { name, shape, init, layout, uses: 1, group: index, offset: 0 });
        }
        self.groups.push(first..first + N);
        std::array::from_fn(|member| TensorId(first + member))
    }

    /// Says that one more layer uses a parameter.
    pub(crate) fn use_again(&mut self, id: TensorId) {
        self.parameters[id.0].uses += 1;
    }

    /// Places the groups in flat memory, last used first.
    pub fn place(&mut self) {
        let mut offset = 0;
        for group in self.groups.iter().rev() {
            for parameter in &mut self.parameters[group.clone()] {
                parameter.offset = offset;
                offset += parameter.len();
            }
        }
    }

    /// The parameters in order of first use, which is the order of their ids.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// One parameter.
    pub fn get(&self, id: TensorId) -> &Parameter {
        &self.parameters[id.0]
    }

    /// Elements of all parameters.
    pub fn elements(&self) -> usize {
        self.parameters.iter().map(Parameter::len).sum()
    }

    /// The ids in the order of flat memory.
    pub fn flat_order(&self) -> impl Iterator<Item = TensorId> + '_ {
        self.groups.iter().rev().flat_map(|group| group.clone().map(TensorId))
    }

    /// The group of a parameter: groups are numbered in order of first use.
    pub(crate) fn group_of(&self, id: TensorId) -> usize {
        self.parameters[id.0].group
    }

    /// The id of the parameter of that name.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        self.parameters.iter().position(|parameter| parameter.name == name).map(TensorId)
    }

    /// Every id with its parameter, in order of first use.
    pub fn iter(&self) -> impl Iterator<Item = (TensorId, &Parameter)> {
        self.parameters.iter().enumerate().map(|(index, parameter)| (TensorId(index), parameter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_memory_holds_the_groups_backwards_and_without_gaps() {
        let mut table = Table::default();
        let entry = |name: &str, shape: &[usize]| (name.to_owned(), shape.to_vec(), Init::Zeros);
        let [tok] = table.group([entry("tok", &[5, 2])]);
        let [w, b] = table.group([entry("w", &[3, 2]), entry("b", &[3])]);
        table.use_again(tok);
        table.place();
        assert_eq!(table.get(w).range(), 0..6);
        assert_eq!(table.get(b).range(), 6..9);
        assert_eq!(table.get(tok).range(), 9..19);
        assert_eq!(table.elements(), 19);
        assert_eq!(table.flat_order().collect::<Vec<_>>(), [w, b, tok]);
        assert_eq!((table.get(tok).uses, table.get(w).uses), (2, 1));
        assert!(table.get(w).decays() && !table.get(b).decays());
        assert_eq!(table.find("b"), Some(b));
    }
}
