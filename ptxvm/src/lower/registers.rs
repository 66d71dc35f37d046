//! Which registers may share a place: liveness in the graph, then a linear scan over the intervals.
//!
//! Lanes write only where they are active, so a place is shared lane by lane: what counts is the liveness of one
//! thread, as on a scalar machine. A guarded write keeps the old value of the lanes that skip it, so it ends no
//! interval. A destination never shares the place of a source of its own instruction (only the text can ask for that).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::flow::Graph;
use super::pool::{Pool, preset_register};
use super::slots;
use crate::program::{Bank, Instruction, Preset};
use crate::registers::Counts;
use crate::table::Role;

/// Where a register is needed: the first and the last instruction. Empty where `first > last`.
#[derive(Clone, Copy)]
struct Interval {
    first: u32,
    last: u32,
}

impl Interval {
    const EMPTY: Interval = Interval { first: u32::MAX, last: 0 };

    fn extend(&mut self, at: u32) {
        self.first = self.first.min(at);
        self.last = self.last.max(at);
    }
}

/// What the registers of a function come to.
pub(super) struct Placed {
    pub(super) counts: Counts,
    pub(super) presets: Vec<Preset>,
    /// 32-bit registers live at the widest point.
    pub(super) live: u32,
}

/// Gives every register its place, and writes the places into the code.
pub(super) fn place(code: &mut [Instruction], graph: &Graph, pool: &Pool, compact: bool) -> Placed {
    let intervals = Liveness::new(code, graph, pool.counts()).intervals(code, graph);
    let mut presets = pool.presets().to_vec();
    let live = widest(&intervals, &presets, pool, code.len());
    let mut places: [Vec<u16>; 3] = Default::default();
    let mut counts = [0u16; 3];
    for bank in [Bank::Narrow, Bank::Wide, Bank::Predicate] {
        let at = bank as usize;
        (places[at], counts[at]) = if compact {
            compacted(bank, &intervals[at], &mut presets, pool)
        } else {
            ((0..intervals[at].len()).map(|number| number as u16).collect(), intervals[at].len() as u16)
        };
    }
    for instruction in code.iter_mut() {
        slots::each(instruction, |slot, bank, _| *slot = places[bank as usize][usize::from(*slot)]);
    }
    for preset in &mut presets {
        let (bank, slot) = preset_register(preset);
        *slot = places[bank as usize][usize::from(*slot)];
    }
    let [narrow, wide, predicates] = counts;
    Placed { counts: Counts { narrow, wide, predicates }, presets, live }
}

/// Registers of a bank in as few places as the scan finds. Constants come first: they live everywhere.
fn compacted(bank: Bank, intervals: &[Interval], presets: &mut [Preset], pool: &Pool) -> (Vec<u16>, u16) {
    let mut places = vec![0u16; intervals.len()];
    let mut fixed = vec![false; intervals.len()];
    let mut count = 0u16;
    let presets = presets.iter_mut().map(|preset| {
        let (bank, slot) = preset_register(preset);
        (bank, *slot)
    });
    for (_, slot) in presets.chain(pool.sinks()).filter(|(of, _)| *of == bank) {
        places[usize::from(slot)] = count;
        fixed[usize::from(slot)] = true;
        count += 1;
    }
    let needed = |number: &usize| !fixed[*number] && intervals[*number].first <= intervals[*number].last;
    let mut order: Vec<usize> = (0..intervals.len()).filter(needed).collect();
    order.sort_unstable_by_key(|&number| (intervals[number].first, number));
    let mut active: BinaryHeap<Reverse<(u32, u16)>> = BinaryHeap::new();
    let mut free: BinaryHeap<Reverse<u16>> = BinaryHeap::new();
    for number in order {
        let Interval { first, last } = intervals[number];
        while let Some(&Reverse((end, place))) = active.peek()
            && end < first
        {
            active.pop();
            free.push(Reverse(place));
        }
        let place = free.pop().map_or_else(
            || {
                count += 1;
                count - 1
            },
            |Reverse(place)| place,
        );
        places[number] = place;
        active.push(Reverse((last, place)));
    }
    (places, count)
}

/// The most 32-bit registers that are live at once, constants not counted.
fn widest(intervals: &[Vec<Interval>; 3], presets: &[Preset], pool: &Pool, length: usize) -> u32 {
    let mut change = vec![0i64; length + 1];
    let mut constants: std::collections::HashSet<(Bank, u16)> = pool.sinks().collect();
    constants.extend(presets.iter().cloned().map(|mut preset| {
        let (bank, slot) = preset_register(&mut preset);
        (bank, *slot)
    }));
    for (bank, weight) in [(Bank::Narrow, 1), (Bank::Wide, 2)] {
        for (number, interval) in intervals[bank as usize].iter().enumerate() {
            if interval.first < interval.last && !constants.contains(&(bank, number as u16)) {
                change[interval.first as usize] += weight;
                change[interval.last as usize] -= weight;
            }
        }
    }
    let running = change.iter().scan(0, |sum, change| {
        *sum += change;
        Some(*sum)
    });
    u32::try_from(running.max().unwrap_or(0)).unwrap_or(0)
}

/// Liveness at the borders of blocks, of the registers that cross one. All banks in one numbering.
struct Liveness {
    base: [u32; 3],
    total: usize,
    /// The registers that some block reads before it writes them, and each one's place among them.
    crossing: Vec<u32>,
    index: Vec<u32>,
    words: usize,
    /// Bits of each block: live where it begins, live where it ends.
    live_in: Vec<u64>,
    live_out: Vec<u64>,
}

const NOT_CROSSING: u32 = u32::MAX;

impl Liveness {
    fn new(code: &mut [Instruction], graph: &Graph, counts: [u32; 3]) -> Liveness {
        let base = [0, counts[0], counts[0] + counts[1]];
        let total = counts.iter().sum::<u32>() as usize;
        let mut liveness = Liveness {
            base,
            total,
            crossing: Vec::new(),
            index: vec![NOT_CROSSING; total],
            words: 0,
            live_in: Vec::new(),
            live_out: Vec::new(),
        };
        let (reads, kills) = liveness.local(code, graph);
        liveness.words = liveness.crossing.len().div_ceil(64);
        liveness.solve(graph, &reads, &kills);
        liveness
    }

    fn number(&self, slot: u16, bank: Bank) -> u32 {
        self.base[bank as usize] + u32::from(slot)
    }

    /// For each block: registers read before they are written, and registers surely written.
    fn local(&mut self, code: &mut [Instruction], graph: &Graph) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
        let mut written_in = vec![u32::MAX; self.total];
        let mut read_in = vec![u32::MAX; self.total];
        let (mut reads, mut kills) = (Vec::new(), Vec::new());
        for (at, block) in graph.blocks.iter().enumerate() {
            let at = at as u32;
            let (mut read, mut kill) = (Vec::new(), Vec::new());
            for instruction in &mut code[block.first as usize..block.end as usize] {
                let guarded = instruction.guard.is_some();
                let base = self.base;
                let mut writes: [u32; 16] = [0; 16];
                let mut count = 0;
                slots::each(instruction, |slot, bank, role| {
                    let number = base[bank as usize] + u32::from(*slot);
                    // A guarded write lets the old value through: as if it read it.
                    let keeps = role == Role::Destination && guarded;
                    if (role == Role::Source || keeps)
                        && written_in[number as usize] != at
                        && std::mem::replace(&mut read_in[number as usize], at) != at
                    {
                        read.push(number);
                    }
                    if role == Role::Destination && !guarded {
                        writes[count] = number;
                        count += 1;
                    }
                });
                for &number in &writes[..count] {
                    if std::mem::replace(&mut written_in[number as usize], at) != at {
                        kill.push(number);
                    }
                }
            }
            for &number in &read {
                if self.index[number as usize] == NOT_CROSSING {
                    self.index[number as usize] = self.crossing.len() as u32;
                    self.crossing.push(number);
                }
            }
            reads.push(read);
            kills.push(kill);
        }
        (reads, kills)
    }

    /// The usual backward iteration, from the last block to the first until nothing changes.
    fn solve(&mut self, graph: &Graph, reads: &[Vec<u32>], kills: &[Vec<u32>]) {
        let (words, blocks) = (self.words, graph.blocks.len());
        self.live_in = vec![0; words * blocks];
        self.live_out = vec![0; words * blocks];
        let mut keeps = vec![u64::MAX; words * blocks];
        for at in 0..blocks {
            for &number in &reads[at] {
                let bit = self.index[number as usize] as usize;
                self.live_in[at * words + bit / 64] |= 1 << (bit % 64);
            }
            for &number in &kills[at] {
                let bit = self.index[number as usize] as usize;
                if bit != NOT_CROSSING as usize {
                    keeps[at * words + bit / 64] &= !(1 << (bit % 64));
                }
            }
        }
        let mut waiting = vec![true; blocks];
        let mut stack: Vec<u32> = (0..blocks as u32).collect();
        while let Some(block) = stack.pop() {
            let at = block as usize;
            waiting[at] = false;
            for &to in &graph.blocks[at].successors {
                for word in 0..words {
                    self.live_out[at * words + word] |= self.live_in[to as usize * words + word];
                }
            }
            let mut changed = false;
            let range = at * words..(at + 1) * words;
            let outs = self.live_out[range.clone()].iter().zip(&keeps[range.clone()]);
            for (live, (out, keep)) in self.live_in[range].iter_mut().zip(outs) {
                let new = *live | out & keep;
                changed |= new != *live;
                *live = new;
            }
            if changed {
                for &from in &graph.blocks[at].predecessors {
                    if !std::mem::replace(&mut waiting[from as usize], true) {
                        stack.push(from);
                    }
                }
            }
        }
    }

    /// The interval of every register, bank by bank.
    fn intervals(&self, code: &mut [Instruction], graph: &Graph) -> [Vec<Interval>; 3] {
        let mut all = vec![Interval::EMPTY; self.total];
        for (at, block) in graph.blocks.iter().enumerate() {
            for (bits, place) in [(&self.live_in, block.first), (&self.live_out, block.end - 1)] {
                for word in 0..self.words {
                    let mut set = bits[at * self.words + word];
                    while set != 0 {
                        let bit = word * 64 + set.trailing_zeros() as usize;
                        set &= set - 1;
                        all[self.crossing[bit] as usize].extend(place);
                    }
                }
            }
        }
        for (at, instruction) in code.iter_mut().enumerate() {
            slots::each(instruction, |slot, bank, _| {
                all[self.number(*slot, bank) as usize].extend(at as u32);
            });
        }
        let wide = self.base[1] as usize;
        let predicates = self.base[2] as usize;
        [all[..wide].to_vec(), all[wide..predicates].to_vec(), all[predicates..].to_vec()]
    }
}
