//! The plan checker: runs the plans of all ranks on symbols instead of numbers, over links that hold a single token.
//!
//! A symbol says which ranks' contributions an element holds, each once or more often, and for which element of the
//! result. So a finished run shows that each contribution arrived exactly once and where it belongs; that it finished
//! shows that no schedule of these links deadlocks it; and the elements counted on the links are those of the formula.

mod plans;
mod wrong;

use std::collections::VecDeque;

use super::plan::{How, Place, Plan, Span, Step};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Symbol {
    /// Ranks that contributed, a bit each.
    ranks: u64,
    /// A contribution arrived twice, or was mixed with one for another element.
    spoilt: bool,
    index: usize,
}

impl Symbol {
    const NOTHING: Symbol = Symbol { ranks: 0, spoilt: true, index: usize::MAX };

    fn of(rank: usize, index: usize) -> Self {
        Symbol { ranks: 1 << rank, spoilt: false, index }
    }

    fn of_all(world: usize, index: usize) -> Self {
        Symbol { ranks: u64::MAX >> (64 - world), spoilt: false, index }
    }

    fn with(self, other: Symbol) -> Self {
        let spoilt = self.spoilt || other.spoilt || self.ranks & other.ranks != 0 || self.index != other.index;
        Symbol { ranks: self.ranks | other.ranks, spoilt, index: self.index }
    }
}

/// What is on a link: the head of a message with its length, or one element of it.
enum Token {
    Head(usize),
    Element(Symbol),
}

#[derive(Clone, Copy, Default)]
struct Progress {
    begun: bool,
    moved: usize,
    done: bool,
}

struct Rank {
    plan: Plan,
    input: Vec<Symbol>,
    output: Vec<Symbol>,
    temp: Vec<Symbol>,
    round: usize,
    progress: Vec<Progress>,
}

impl Rank {
    fn new(plan: Plan, input: Vec<Symbol>, output: Vec<Symbol>) -> Self {
        let temp = vec![Symbol::NOTHING; plan.temp()];
        let mut rank = Rank { plan, input, output, temp, round: 0, progress: Vec::new() };
        rank.enter();
        rank
    }

    fn steps(&self) -> Vec<Step> {
        self.plan.steps(self.plan.round(self.round)).to_vec()
    }

    fn finished(&self) -> bool {
        self.round == self.plan.rounds()
    }

    fn place(&mut self, place: Place) -> &mut Vec<Symbol> {
        match place {
            Place::Input(_) => &mut self.input,
            Place::Output(_) => &mut self.output,
            Place::Temp => &mut self.temp,
        }
    }

    fn get(&mut self, span: Span, at: usize) -> Symbol {
        assert!(at < span.len);
        self.place(span.place)[span.start + at]
    }

    fn set(&mut self, span: Span, at: usize, symbol: Symbol) {
        assert!(at < span.len && !matches!(span.place, Place::Input(_)));
        self.place(span.place)[span.start + at] = symbol;
    }

    /// The beginning of a round: copies.
    fn enter(&mut self) {
        if self.finished() {
            return;
        }
        let steps = self.steps();
        self.progress = vec![Progress::default(); steps.len()];
        for (progress, step) in self.progress.clone().iter().zip(&steps) {
            assert!(!progress.done);
            if let Step::Copy { from, into } = *step {
                let symbols: Vec<Symbol> = (0..from.len).map(|at| self.get(from, at)).collect();
                symbols.into_iter().enumerate().for_each(|(at, symbol)| self.set(into, at, symbol));
            }
        }
    }

    /// The end of a round: folds.
    fn leave(&mut self) {
        for step in self.steps() {
            if let Step::Fold { own, position, parts, others, into } = step {
                for at in 0..into.len {
                    let mut sum = None;
                    for part in 0..parts {
                        let slot = part - usize::from(part > position);
                        let next =
                            if part == position { self.get(own, at) } else { self.temp[others + slot * into.len + at] };
                        assert_eq!(next.ranks, 1 << part, "folds are in rank order");
                        sum = Some(sum.map_or(next, |sum: Symbol| sum.with(next)));
                    }
                    self.set(into, at, sum.expect("a fold has parts"));
                }
            }
        }
        self.round += 1;
        self.enter();
    }
}

struct Network {
    ranks: Vec<Rank>,
    links: Vec<VecDeque<Token>>,
    sent: usize,
}

impl Network {
    /// Runs to the end. `order` says in which order ranks get to move, which must not matter.
    fn run(mut self, order: impl Fn(usize, usize) -> usize) -> Self {
        let world = self.ranks.len();
        for turn in 0.. {
            let mut moved = false;
            for index in 0..world {
                moved |= self.step(order(turn, index));
            }
            if self.ranks.iter().all(Rank::finished) {
                break;
            }
            assert!(moved, "deadlock: rounds {:?}", self.ranks.iter().map(|rank| rank.round).collect::<Vec<_>>());
        }
        assert!(self.links.iter().all(VecDeque::is_empty), "every message sent is received");
        self
    }

    /// Lets one rank look at all messages of its round once.
    fn step(&mut self, rank: usize) -> bool {
        if self.ranks[rank].finished() {
            return false;
        }
        let world = self.ranks.len();
        let steps = self.ranks[rank].steps();
        let (mut moved, mut all) = (false, true);
        let mut busy = vec![(false, false); world];
        for (index, step) in steps.iter().enumerate() {
            let progress = self.ranks[rank].progress[index];
            if progress.done {
                continue;
            }
            match *step {
                Step::Send { peer, from } if !busy[peer].0 => {
                    moved |= self.send(rank, index, peer, from);
                    busy[peer].0 = !self.ranks[rank].progress[index].done;
                }
                Step::Recv { peer, into, how } if !busy[peer].1 => {
                    moved |= self.recv(rank, index, peer, into, how, &steps);
                    busy[peer].1 = !self.ranks[rank].progress[index].done;
                }
                Step::Copy { .. } | Step::Fold { .. } => self.ranks[rank].progress[index].done = true,
                _ => {}
            }
            all &= self.ranks[rank].progress[index].done;
        }
        if all {
            self.ranks[rank].leave();
        }
        moved || all
    }

    fn send(&mut self, rank: usize, index: usize, peer: usize, from: Span) -> bool {
        let world = self.ranks.len();
        let link = &mut self.links[rank * world + peer];
        if !link.is_empty() {
            return false;
        }
        let mut progress = self.ranks[rank].progress[index];
        if progress.begun {
            let symbol = self.ranks[rank].get(from, progress.moved);
            link.push_back(Token::Element(symbol));
            progress.moved += 1;
            self.sent += 1;
        } else {
            link.push_back(Token::Head(from.len));
            progress.begun = true;
        }
        progress.done = progress.moved == from.len;
        self.ranks[rank].progress[index] = progress;
        true
    }

    fn recv(&mut self, rank: usize, index: usize, peer: usize, into: Span, how: How, steps: &[Step]) -> bool {
        let world = self.ranks.len();
        let mut progress = self.ranks[rank].progress[index];
        if let How::Reduce { behind: true, .. } = how {
            let send =
                steps[..index].iter().position(|step| matches!(step, Step::Send { peer: to, .. } if *to == peer));
            let send = self.ranks[rank].progress[send.expect("a send of the same round comes first")];
            if progress.begun && !send.done && progress.moved >= send.moved {
                return false;
            }
        }
        match self.links[peer * world + rank].pop_front() {
            None => return false,
            Some(Token::Head(len)) => {
                assert!(!progress.begun, "a message begins where one is expected");
                assert_eq!(len, into.len, "rank {rank} expects as much as rank {peer} sends");
                progress.begun = true;
            }
            Some(Token::Element(symbol)) => {
                assert!(progress.begun);
                let result = match how {
                    How::Store => symbol,
                    How::Reduce { own, finish, .. } => {
                        let sum = self.ranks[rank].get(own, progress.moved).with(symbol);
                        assert_eq!(
                            finish,
                            sum.ranks == Symbol::of_all(world, 0).ranks,
                            "an average divides the whole sum"
                        );
                        sum
                    }
                };
                self.ranks[rank].set(into, progress.moved, result);
                progress.moved += 1;
            }
        }
        progress.done = progress.moved == into.len;
        self.ranks[rank].progress[index] = progress;
        true
    }
}

/// Runs the plans that `plan` makes from the memory that `memory` gives, in several orders of the ranks; gives the
/// outputs and the elements sent, which must be the same each time.
fn simulate(
    world: usize,
    plan: impl Fn(&mut Plan, usize),
    memory: impl Fn(usize) -> (Vec<Symbol>, Vec<Symbol>),
) -> (Vec<Vec<Symbol>>, usize) {
    let orders: [fn(usize, usize, usize) -> usize; 3] =
        [|_, index, _| index, |_, index, world| world - 1 - index, |turn, index, world| (index + turn * 7) % world];
    let mut results = orders.iter().map(|order| {
        let ranks = (0..world).map(|rank| {
            let mut own = Plan::default();
            plan(&mut own, rank);
            let (input, output) = memory(rank);
            Rank::new(own, input, output)
        });
        let links = (0..world * world).map(|_| VecDeque::new()).collect();
        let network = Network { ranks: ranks.collect(), links, sent: 0 };
        let network = network.run(|turn, index| order(turn, index, world));
        (network.ranks.into_iter().map(|rank| rank.output).collect::<Vec<_>>(), network.sent)
    });
    let first = results.next().expect("there is an order");
    assert!(results.all(|other| other == first), "the order of the ranks does not matter");
    first
}

/// What `rank` contributes: `count` elements.
fn own(rank: usize, count: usize) -> Vec<Symbol> {
    (0..count).map(|index| Symbol::of(rank, index)).collect()
}
