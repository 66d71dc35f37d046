//! Names and what they stand for, in nested scopes.

use std::collections::HashMap;

use crate::program::Special;
use crate::text::tree::{Name, Variable};
use crate::types::{Space, Type};

/// Where a symbol of memory lies, as far as lowering has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    /// A module variable in global or constant memory: its index.
    Variable(u32, Space),
    /// Shared memory: its offset in the block's window.
    Shared(u32),
    /// In the frame of the function: `.local` variables, and `.param` variables of call sites.
    Frame(u32, Space),
    /// A parameter of the kernel, or of the device function, by its offset.
    KernelParam(u32),
    FunctionParam(u32),
    /// A function: its index among the module's tree functions.
    Function(u32),
    /// `.texref` and the like.
    Opaque,
}

impl Symbol {
    /// The space that the symbol lies in, and its name for messages.
    pub(super) fn space(self) -> Option<(Space, &'static str)> {
        Some(match self {
            Symbol::Variable(_, Space::Const) => (Space::Const, "const"),
            Symbol::Variable(..) => (Space::Global, "global"),
            Symbol::Shared(_) => (Space::Shared, "shared"),
            Symbol::Frame(_, Space::Param) | Symbol::KernelParam(_) | Symbol::FunctionParam(_) => {
                (Space::Param, "param")
            }
            Symbol::Frame(..) => (Space::Local, "local"),
            Symbol::Function(_) | Symbol::Opaque => return None,
        })
    }
}

/// What a name stands for in a body.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entity<'t> {
    /// A register: its type and number in its bank.
    Register(Type, u16),
    /// `%r<12>` by its prefix, or a register that nothing has used: no number yet.
    Range(Type, u32),
    Fresh(Type),
    /// A `.v2` or `.v4` register: type and number of its first element, and how many there are.
    Vector(Type, u16, u8),
    /// Something in memory, and the bytes it has.
    Memory(Symbol, u32),
    /// A label: its number in the function.
    Label(u32),
    Targets(&'t [Name]),
    Prototype,
}

/// The scopes of a body, innermost last.
#[derive(Default)]
pub(super) struct Scopes<'t> {
    stack: Vec<Scope<'t>>,
}

#[derive(Default)]
struct Scope<'t> {
    names: HashMap<&'t str, Entity<'t>>,
    ranges: HashMap<&'t str, (Type, u32)>,
}

/// What a look-up finds.
pub(super) enum Found<'t> {
    Entity(Entity<'t>),
    /// A register without a number: the scope that must keep it, and its type.
    New(usize, Type),
}

impl<'t> Scopes<'t> {
    pub(super) fn enter(&mut self) {
        self.stack.push(Scope::default());
    }

    pub(super) fn leave(&mut self) {
        self.stack.pop();
    }

    /// Declares a name in the innermost scope; false where it has one already.
    pub(super) fn declare(&mut self, name: &'t str, entity: Entity<'t>) -> bool {
        let Some(scope) = self.stack.last_mut() else { return false };
        match entity {
            Entity::Range(ty, count) => {
                let within = |known: &&str| range_index(known, name).is_some_and(|index| index < count);
                let free = !scope.names.keys().any(within);
                scope.ranges.insert(name, (ty, count)).is_none() && free
            }
            _ => scope.numbered(name).is_none() && scope.names.insert(name, entity).is_none(),
        }
    }

    /// What a name stands for.
    pub(super) fn find(&self, name: &str) -> Option<Found<'t>> {
        for (depth, scope) in self.stack.iter().enumerate().rev() {
            match scope.names.get(name) {
                Some(Entity::Fresh(ty)) => return Some(Found::New(depth, *ty)),
                Some(entity) => return Some(Found::Entity(*entity)),
                None => {}
            }
            if let Some(ty) = scope.numbered(name) {
                return Some(Found::New(depth, ty));
            }
        }
        None
    }

    /// Gives a register found as [`Found::New`] its number.
    pub(super) fn number(&mut self, depth: usize, name: &'t str, ty: Type, number: u16) {
        self.stack[depth].names.insert(name, Entity::Register(ty, number));
    }
}

impl Scope<'_> {
    /// The type of `name` where a range such as `%r<12>` declares it.
    fn numbered(&self, name: &str) -> Option<Type> {
        if self.ranges.is_empty() {
            return None;
        }
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        // `r1<5>` declares r10 to r14: every split is tried, the longest number first.
        (name.len() - digits.min(10)..name.len()).find_map(|at| {
            let prefix = &name[..at];
            let &(ty, count) = self.ranges.get(prefix)?;
            range_index(name, prefix).is_some_and(|index| index < count).then_some(ty)
        })
    }
}

/// The number of `name` in a range of registers with a prefix: 12 of `%r12` in `%r`.
fn range_index(name: &str, prefix: &str) -> Option<u32> {
    let number = name.strip_prefix(prefix)?;
    let canonical = number.bytes().all(|byte| byte.is_ascii_digit()) && (number.len() == 1 || !number.starts_with('0'));
    canonical.then(|| number.parse().ok()).flatten()
}

/// The special register of a name, with its type.
pub(super) fn special(name: &str) -> Option<(Special, Type)> {
    let name = name.strip_prefix('%')?;
    let axis = |rest: &str| match rest {
        ".x" => Some(0),
        ".y" => Some(1),
        ".z" => Some(2),
        ".w" => Some(3),
        _ => None,
    };
    let (stem, component) = name.find('.').map_or((name, None), |dot| (&name[..dot], axis(&name[dot..])));
    if let Some(component) = component {
        let special = match stem {
            "tid" => Special::Tid(component),
            "ntid" => Special::Ntid(component),
            "ctaid" => Special::CtaId(component),
            "nctaid" => Special::NctaId(component),
            "clusterid" => Special::ClusterId(component),
            "nclusterid" => Special::NclusterId(component),
            "cluster_ctaid" => Special::ClusterCtaId(component),
            "cluster_nctaid" => Special::ClusterNctaId(component),
            _ => return None,
        };
        return Some((special, Type::U32));
    }
    let special = match name {
        "laneid" => Special::LaneId,
        "warpid" => Special::WarpId,
        "nwarpid" => Special::NwarpId,
        "smid" => Special::SmId,
        "nsmid" => Special::NsmId,
        "lanemask_eq" => Special::LaneMaskEq,
        "lanemask_le" => Special::LaneMaskLe,
        "lanemask_lt" => Special::LaneMaskLt,
        "lanemask_ge" => Special::LaneMaskGe,
        "lanemask_gt" => Special::LaneMaskGt,
        "cluster_ctarank" => Special::ClusterCtaRank,
        "cluster_nctarank" => Special::ClusterNctaRank,
        "dynamic_smem_size" => Special::DynamicSharedSize,
        "total_smem_size" => Special::TotalSharedSize,
        "clock" => Special::Clock,
        "clock_hi" => Special::ClockHi,
        "globaltimer_lo" => Special::GlobalTimerLo,
        "globaltimer_hi" => Special::GlobalTimerHi,
        "gridid" => return Some((Special::GridId, Type::U64)),
        "clock64" => return Some((Special::Clock64, Type::U64)),
        "globaltimer" => return Some((Special::GlobalTimer, Type::U64)),
        "is_explicit_cluster" => return Some((Special::IsExplicitCluster, Type::Pred)),
        _ => return counted(name),
    };
    Some((special, Type::U32))
}

/// `%envreg0` to `%envreg31`, `%pm0` to `%pm7`, `%pm0_64`.
fn counted(name: &str) -> Option<(Special, Type)> {
    if let Some(number) = name.strip_prefix("envreg") {
        return number.parse().ok().filter(|number| *number < 32).map(|number| (Special::EnvReg(number), Type::B32));
    }
    let number = name.strip_prefix("pm")?;
    let (number, ty) = number.strip_suffix("_64").map_or((number, Type::U32), |number| (number, Type::U64));
    number.parse::<u8>().ok().filter(|number| *number < 8).map(|_| (Special::Pm, ty))
}

/// Whether a special register keeps its value while its block lives.
pub(super) fn constant(special: Special) -> bool {
    !matches!(
        special,
        Special::Clock
            | Special::ClockHi
            | Special::Clock64
            | Special::GlobalTimer
            | Special::GlobalTimerLo
            | Special::GlobalTimerHi
            | Special::Pm
    )
}

/// Whether a special register tells of clusters.
pub(super) fn clustered(special: Special) -> bool {
    matches!(
        special,
        Special::ClusterId(_)
            | Special::NclusterId(_)
            | Special::ClusterCtaId(_)
            | Special::ClusterNctaId(_)
            | Special::ClusterCtaRank
            | Special::ClusterNctaRank
            | Special::IsExplicitCluster
    )
}

/// Bytes of a variable: element times vector times dimensions.
pub(super) fn variable_bytes(variable: &Variable) -> Option<u64> {
    let element = u64::from(variable.ty.bytes()).checked_mul(u64::from(variable.vector.max(1)))?;
    variable.dims.iter().try_fold(element, |bytes, dim| bytes.checked_mul(*dim))
}
