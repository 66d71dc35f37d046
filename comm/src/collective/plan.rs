//! What an algorithm produces: for one rank, rounds of steps over elements.
//!
//! Rounds are strict: a round's local copies run first, then all its messages move at once, then its folds run, and
//! only then does the next round begin. Messages between two ranks arrive in the order in which they were sent.

use std::ops::Range;

/// A piece of memory that a step uses, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) place: Place,
    pub(crate) start: usize,
    pub(crate) len: usize,
}

/// Where a [`Span`] lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The n-th region that is only read.
    Input(usize),
    /// The n-th region that is written, and read where the call is in place.
    Output(usize),
    /// The executor's own memory, which keeps its contents from round to round of one operation.
    Temp,
}

/// One step of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A message to a peer.
    Send { peer: usize, from: Span },
    /// A message from a peer.
    Recv { peer: usize, into: Span, how: How },
    /// Own elements, before the round's messages.
    Copy { from: Span, into: Span },
    /// After the round's messages: `into` = the parts of all ranks combined in rank order, where the part of rank
    /// `position` is `own` and the others lie in `Temp` from `others` on, one after the other; an average divides.
    Fold { own: Span, position: usize, parts: usize, others: usize, into: Span },
}

/// What becomes of received elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// They are the result.
    Store,
    /// They are combined with `own`. `finish`: this was the last contribution, so that an average divides now.
    /// `behind`: the same round sends `own` to the same peer, and the result overwrites it; so the result must not
    /// get ahead of what has been sent.
    Reduce { own: Span, finish: bool, behind: bool },
}

/// The rounds of one operation on one rank. Reused from call to call, so that a call allocates nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    steps: Vec<Step>,
    ends: Vec<usize>,
    temp: usize,
}

impl Plan {
    pub(crate) fn clear(&mut self) {
        self.steps.clear();
        self.ends.clear();
        self.temp = 0;
    }

    pub(crate) fn send(&mut self, peer: usize, from: Span) {
        self.steps.push(Step::Send { peer, from });
    }

    pub(crate) fn recv(&mut self, peer: usize, into: Span, how: How) {
        if into.place == Place::Temp {
            self.temp = self.temp.max(into.start + into.len);
        }
        self.steps.push(Step::Recv { peer, into, how });
    }

    /// A copy between two places; nothing where there is nothing to copy.
    pub(crate) fn copy(&mut self, from: Span, into: Span) {
        if from != into && from.len > 0 {
            self.steps.push(Step::Copy { from, into });
        }
    }

    pub(crate) fn fold(&mut self, own: Span, position: usize, parts: usize, others: usize, into: Span) {
        self.steps.push(Step::Fold { own, position, parts, others, into });
    }

    /// Ends a round; one without steps is left out.
    pub(crate) fn end_round(&mut self) {
        if self.ends.last().copied().unwrap_or(0) < self.steps.len() {
            self.ends.push(self.steps.len());
        }
    }

    pub(crate) fn rounds(&self) -> usize {
        self.ends.len()
    }

    /// The indices of a round's steps.
    pub(crate) fn round(&self, round: usize) -> Range<usize> {
        let start = if round == 0 { 0 } else { self.ends[round - 1] };
        start..self.ends[round]
    }

    pub(crate) fn steps(&self, range: Range<usize>) -> &[Step] {
        &self.steps[range]
    }

    /// Elements that some steps send to others.
    pub(crate) fn sent(&self, range: Range<usize>) -> usize {
        let sent = |step: &Step| if let Step::Send { from, .. } = step { from.len } else { 0 };
        self.steps[range].iter().map(sent).sum()
    }

    /// Elements of `Temp` that the plan uses.
    pub(crate) fn temp(&self) -> usize {
        self.temp
    }
}

impl Span {
    pub(crate) fn new(place: Place, range: Range<usize>) -> Self {
        Self { place, start: range.start, len: range.end - range.start }
    }

    /// No elements: a message of this length still carries the operation's descriptor.
    pub(crate) const EMPTY: Span = Span { place: Place::Temp, start: 0, len: 0 };
}

/// The regions of a call as its plan sees them: what is read, and whether that is the result's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source(pub(crate) Place);

impl Source {
    /// The call has one region, which is read and overwritten.
    pub(crate) const IN_PLACE: Source = Source(OUTPUT);
    /// The call reads one region and writes another.
    pub(crate) const APART: Source = Source(Place::Input(0));

    pub(crate) fn span(self, range: Range<usize>) -> Span {
        Span::new(self.0, range)
    }
}

/// The result's region.
pub(crate) const OUTPUT: Place = Place::Output(0);

/// A part of the result.
pub(crate) fn output(range: Range<usize>) -> Span {
    Span::new(OUTPUT, range)
}

/// A part of the executor's own memory.
pub(crate) fn temp(range: Range<usize>) -> Span {
    Span::new(Place::Temp, range)
}

/// How elements are shared out: which rank owns which part of a region.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parts<'a> {
    /// `count` elements in `parts` parts whose sizes differ by at most one, the larger ones first.
    Even { count: usize, parts: usize },
    /// `each` elements for each of `parts`.
    Equal { each: usize, parts: usize },
    /// As many as are listed for each.
    Listed(&'a [usize]),
}

impl Parts<'_> {
    pub(crate) fn len(self) -> usize {
        match self {
            Parts::Even { parts, .. } | Parts::Equal { parts, .. } => parts,
            Parts::Listed(counts) => counts.len(),
        }
    }

    /// Where part `index` lies.
    pub(crate) fn range(self, index: usize) -> Range<usize> {
        match self {
            Parts::Even { count, parts } => {
                let (each, more) = (count / parts, count % parts);
                let start = index * each + index.min(more);
                start..start + each + usize::from(index < more)
            }
            Parts::Equal { each, .. } => index * each..(index + 1) * each,
            Parts::Listed(counts) => {
                let start = counts[..index].iter().sum();
                start..start + counts[index]
            }
        }
    }

    /// Elements of the largest part.
    pub(crate) fn largest(self) -> usize {
        match self {
            Parts::Even { .. } => self.range(0).len(),
            Parts::Equal { each, .. } => each,
            Parts::Listed(counts) => counts.iter().copied().max().unwrap_or(0),
        }
    }

    /// Piece `chunk` of part `index`, when parts are cut into pieces of `size`; empty past its end.
    pub(crate) fn piece(self, index: usize, chunk: usize, size: usize) -> Range<usize> {
        let part = self.range(index);
        let start = part.start.saturating_add(chunk.saturating_mul(size)).min(part.end);
        start..start.saturating_add(size).min(part.end)
    }
}
