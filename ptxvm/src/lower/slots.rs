//! Every register that an instruction names, wherever it keeps its number.

use crate::program::{Action, Address, AddressBase, Bank, Barrier, BarrierKind, Instruction, Members};
use crate::table::Role;

/// Visits the registers of an instruction: number, bank, written or read.
pub(super) fn each(instruction: &mut Instruction, mut visit: impl FnMut(&mut u16, Bank, Role)) {
    for (slot, shape) in instruction.operands.0.iter_mut().zip(instruction.layout.iter()) {
        visit(slot, shape.bank, shape.role);
    }
    if let Some((slot, _)) = &mut instruction.guard {
        visit(slot, Bank::Predicate, Role::Source);
    }
    match &mut instruction.action {
        Action::Collective { members: Members::Mask(slot), .. } => visit(slot, Bank::Narrow, Role::Source),
        Action::Load(access) | Action::Store(access) => address(&mut access.address, &mut visit),
        Action::Atomic(atomic) => address(&mut atomic.address, &mut visit),
        Action::LoadMatrix { address: from, .. } => address(from, &mut visit),
        Action::CopyAsync { to, from, source_bytes, ignore_source, .. } => {
            address(to, &mut visit);
            address(from, &mut visit);
            if let Some(slot) = source_bytes {
                visit(slot, Bank::Narrow, Role::Source);
            }
            if let Some(slot) = ignore_source {
                visit(slot, Bank::Predicate, Role::Source);
            }
        }
        Action::BranchIndexed { index, .. } => visit(index, Bank::Narrow, Role::Source),
        Action::Barrier(barrier) => self::barrier(barrier, &mut visit),
        Action::WarpBarrier { mask } => visit(mask, Bank::Narrow, Role::Source),
        _ => {}
    }
}

fn address(address: &mut Address, visit: &mut impl FnMut(&mut u16, Bank, Role)) {
    match &mut address.base {
        AddressBase::Wide(slot) => visit(slot, Bank::Wide, Role::Source),
        AddressBase::Narrow(slot) => visit(slot, Bank::Narrow, Role::Source),
        _ => {}
    }
}

fn barrier(barrier: &mut Barrier, visit: &mut impl FnMut(&mut u16, Bank, Role)) {
    visit(&mut barrier.id, Bank::Narrow, Role::Source);
    if let Some(slot) = &mut barrier.threads {
        visit(slot, Bank::Narrow, Role::Source);
    }
    match &mut barrier.kind {
        BarrierKind::Popc { source, .. } | BarrierKind::And { source, .. } | BarrierKind::Or { source, .. } => {
            visit(source, Bank::Predicate, Role::Source);
        }
        BarrierKind::Sync | BarrierKind::Arrive => {}
    }
}
