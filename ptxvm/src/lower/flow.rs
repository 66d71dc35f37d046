//! The control flow of a function: basic blocks, and where the paths of a branch meet again.

use crate::program::{Action, Instruction};

/// Basic blocks in the order of the text.
pub(super) struct Graph {
    pub(super) blocks: Vec<Block>,
}

/// A run of instructions that is entered at its first and left at its last.
pub(super) struct Block {
    pub(super) first: u32,
    /// One past the last.
    pub(super) end: u32,
    pub(super) successors: Vec<u32>,
    pub(super) predecessors: Vec<u32>,
}

/// No block.
const NONE: u32 = u32::MAX;

impl Graph {
    pub(super) fn new(code: &[Instruction]) -> Graph {
        let mut leads = vec![false; code.len() + 1];
        leads[0] = true;
        for (at, instruction) in code.iter().enumerate() {
            match &instruction.action {
                Action::Branch(branch) => leads[branch.target as usize] = true,
                Action::BranchIndexed { targets, .. } => {
                    targets.iter().for_each(|target| leads[*target as usize] = true);
                }
                Action::Return | Action::Exit | Action::Trap if instruction.guard.is_none() => {}
                _ => continue,
            }
            leads[at + 1] = true;
        }
        let mut blocks: Vec<Block> = Vec::new();
        let mut block_of = vec![0u32; code.len()];
        for at in 0..code.len() {
            if leads[at] {
                blocks.push(Block { first: at as u32, end: 0, successors: Vec::new(), predecessors: Vec::new() });
            }
            block_of[at] = blocks.len() as u32 - 1;
        }
        let count = blocks.len();
        for at in 0..count {
            let end = blocks.get(at + 1).map_or(code.len() as u32, |next| next.first);
            blocks[at].end = end;
            let successors = successors(&code[end as usize - 1], end, &block_of);
            for &to in &successors {
                blocks[to as usize].predecessors.push(at as u32);
            }
            blocks[at].successors = successors;
        }
        Graph { blocks }
    }

    /// For each block, the block where every path from it that goes on comes together: its immediate post-dominator.
    ///
    /// Paths that end early (`exit`, `trap`, a second `ret`, a loop without end) do not count, because no lane comes
    /// back from them: were they counted, the lanes that stay would not meet again before the end. So the graph is cut
    /// into regions: the blocks that can reach the main end, then those of the rest that can reach another, and so on.
    pub(super) fn meeting_points(&self) -> Vec<Option<u32>> {
        let count = self.blocks.len();
        let mut meets = vec![None; count];
        let mut region = vec![false; count];
        let mut done = vec![false; count];
        let mut roots = self.ends(&done);
        while let Some(root) = roots.next_root(&done) {
            let order = self.reach_back(root, &done, &mut region);
            self.dominate(root, &order, &region, &mut meets);
            for &block in &order {
                done[block as usize] = true;
                region[block as usize] = false;
            }
        }
        meets
    }

    /// Blocks that end threads: the one that most blocks can reach first, then from the last to the first.
    fn ends(&self, done: &[bool]) -> Roots {
        // More candidates than these are compared by nothing but their place.
        const MOST_COMPARED: usize = 32;
        let ends: Vec<u32> =
            (0..self.blocks.len() as u32).filter(|&at| self.blocks[at as usize].successors.is_empty()).collect();
        let mut scratch = vec![false; self.blocks.len()];
        let mut reached = |root: u32| {
            let order = self.reach_back(root, done, &mut scratch);
            order.iter().for_each(|&block| scratch[block as usize] = false);
            order.len()
        };
        let compared = ends.iter().rev().take(MOST_COMPARED);
        let main = compared.map(|&end| (reached(end), end)).max().map(|(_, end)| end);
        let ends = ends.into_iter().filter(|end| Some(*end) != main).chain(main).collect();
        Roots { ends, last: self.blocks.len() as u32 }
    }

    /// The blocks that can reach `root`, not counting those done, in post-order of the reversed graph.
    fn reach_back(&self, root: u32, done: &[bool], region: &mut [bool]) -> Vec<u32> {
        let mut order = Vec::new();
        let mut stack = vec![(root, 0usize)];
        region[root as usize] = true;
        while let Some((block, next)) = stack.last_mut() {
            match self.blocks[*block as usize].predecessors.get(*next) {
                Some(&from) => {
                    *next += 1;
                    if !done[from as usize] && !std::mem::replace(&mut region[from as usize], true) {
                        stack.push((from, 0));
                    }
                }
                None => {
                    order.push(*block);
                    stack.pop();
                }
            }
        }
        order
    }

    /// Immediate post-dominators in a region (Cooper, Harvey and Kennedy's iteration on the reversed graph).
    fn dominate(&self, root: u32, order: &[u32], region: &[bool], meets: &mut [Option<u32>]) {
        let mut number = std::collections::HashMap::with_capacity(order.len());
        for (at, &block) in order.iter().enumerate() {
            number.insert(block, at as u32);
        }
        let top = order.len() as u32 - 1;
        let mut dominator = vec![NONE; order.len()];
        dominator[top as usize] = top;
        let meet = |dominator: &[u32], mut a: u32, mut b: u32| {
            while a != b {
                while a < b {
                    a = dominator[a as usize];
                }
                while b < a {
                    b = dominator[b as usize];
                }
            }
            a
        };
        let mut changed = true;
        while changed {
            changed = false;
            for at in (0..top).rev() {
                let block = &self.blocks[order[at as usize] as usize];
                let mut new = NONE;
                for to in block.successors.iter().filter(|to| region[**to as usize]) {
                    let to = number[to];
                    if dominator[to as usize] != NONE {
                        new = if new == NONE { to } else { meet(&dominator, new, to) };
                    }
                }
                changed |= dominator[at as usize] != new;
                dominator[at as usize] = new;
            }
        }
        for (at, &block) in order.iter().enumerate() {
            if block != root && dominator[at] != NONE {
                meets[block as usize] = Some(order[dominator[at] as usize]);
            }
        }
    }
}

/// Where regions begin: ends of threads, then the last block of what is left (a loop without end).
struct Roots {
    ends: Vec<u32>,
    last: u32,
}

impl Roots {
    fn next_root(&mut self, done: &[bool]) -> Option<u32> {
        if let Some(end) = self.ends.pop() {
            return Some(end);
        }
        while self.last > 0 {
            self.last -= 1;
            if !done[self.last as usize] {
                return Some(self.last);
            }
        }
        None
    }
}

fn successors(last: &Instruction, next: u32, block_of: &[u32]) -> Vec<u32> {
    let mut list: Vec<u32> = match &last.action {
        Action::Branch(branch) => vec![block_of[branch.target as usize]],
        Action::BranchIndexed { targets, .. } => targets.iter().map(|target| block_of[*target as usize]).collect(),
        _ => Vec::new(),
    };
    let ends = matches!(
        last.action,
        Action::Branch(_) | Action::BranchIndexed { .. } | Action::Return | Action::Exit | Action::Trap
    );
    if !(ends && last.guard.is_none())
        && let Some(&block) = block_of.get(next as usize)
    {
        list.push(block);
    }
    list.sort_unstable();
    list.dedup();
    list
}
