//! Rows of control flow: branches, calls, and the ways a thread ends.

use super::{Build, Form, row};

pub(super) fn rows(out: &mut Vec<Form>) {
    out.extend([
        row("bra{.uni}", "@target", Build::Branch),
        row("brx.idx{.uni}", "a:u32 @targets", Build::BranchIndexed).since(6, 0, 30),
        row("call{.uni}", "...", Build::Call),
        row("ret{.uni}", "", Build::Return),
        row("exit", "", Build::Exit),
        row("trap", "", Build::Trap),
        row("brkpt", "", Build::Breakpoint).since(1, 0, 11),
        row("nanosleep.u32", "a:u32", Build::Sleep).since(6, 3, 70),
        row("pmevent", "#a", Build::Nothing).since(1, 4, 10),
        row("pmevent.mask", "#a", Build::Nothing).since(3, 0, 20),
        row("activemask.b32", "d:b32", Build::ActiveMask).since(6, 2, 30),
    ]);
}
