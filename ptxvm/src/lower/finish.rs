//! A lowered body becomes a function: labels to places, paths to meeting points, registers to slots.

use super::body::Body;
use super::errors::Wrong;
use super::flow::Graph;
use super::registers;
use crate::program::{Action, Function};
use crate::registers::Counts;

/// The most registers of one bank that a function may name.
const MOST_REGISTERS: u64 = 1 << 16;

impl Body<'_, '_> {
    /// The function. Where errors were noted it is never run, and its code is left out.
    pub(super) fn finish(self, compact: bool) -> Function {
        let tree = self.tree;
        let at = tree.name.span.start;
        if let Some(count) = self.pool.overflow() {
            let what = "the number of registers that a function names";
            self.errors.push(at, Wrong::TooMuch { what, value: u64::from(count), most: MOST_REGISTERS });
        }
        let (shared_bytes, dynamic_shared) = self.module.shared.of(self.index);
        let end = |param: &crate::program::Param| param.offset.saturating_add(param.bytes);
        let mut function = Function {
            name: tree.name.text.clone(),
            entry: tree.entry,
            param_bytes: self.params.last().map_or(0, end),
            params: self.params,
            code: Vec::new(),
            registers: Counts::default(),
            preset: Vec::new(),
            shared_bytes,
            dynamic_shared,
            local_bytes: self.frame_bytes,
            returns: self.returns,
            required_block: tree.required_block,
            max_block: tree.max_block,
            min_blocks: tree.min_blocks,
            live_registers: 0,
            refused: self.refused,
            line: self.errors.line(at),
        };
        if self.errors.any() {
            return function;
        }
        let mut code = self.code;
        let place = |label: &mut u32| *label = self.labels[*label as usize].unwrap_or_default();
        for instruction in &mut code {
            match &mut instruction.action {
                Action::Branch(branch) => place(&mut branch.target),
                Action::BranchIndexed { targets, .. } => targets.iter_mut().for_each(place),
                _ => {}
            }
        }
        let graph = Graph::new(&code);
        let meets = graph.meeting_points();
        let length = code.len() as u32;
        for (block, meets) in graph.blocks.iter().zip(meets) {
            let meeting = meets.map_or(length, |to| graph.blocks[to as usize].first);
            match &mut code[block.end as usize - 1].action {
                Action::Branch(branch) => branch.reconverge = meeting,
                Action::BranchIndexed { reconverge, .. } => *reconverge = meeting,
                _ => {}
            }
        }
        let placed = registers::place(&mut code, &graph, &self.pool, compact);
        function.registers = placed.counts;
        function.preset = placed.presets;
        function.live_registers = placed.live;
        function.code = code;
        function
    }
}
