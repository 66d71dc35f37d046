//! From an instruction's spelling to its form, once for each spelling of a module.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

use super::errors::{Errors, Wrong};
use crate::program::OperandSlot;
use crate::table::{Form, Mods, TABLE};
use crate::text::tree::Instruction;
use crate::types::{Target, Version};

/// A spelling that the table has.
pub(super) struct Decoded {
    pub(super) form: &'static Form,
    pub(super) mods: Mods,
    /// Elements of `.v2`, `.v4`, `.v8`: 1 otherwise.
    pub(super) vector: u8,
    /// Registers may be wider than the type: `ld`, `st`, `cvt`.
    pub(super) relaxed: bool,
    /// `add.s32`, for messages.
    pub(super) spelling: String,
}

/// The spellings met so far, and the shared layouts of operands.
pub(super) struct Spellings<'t> {
    version: Version,
    target: Target,
    known: HashMap<&'t str, Rc<Decoded>>,
    layouts: HashSet<Arc<[OperandSlot]>>,
}

impl<'t> Spellings<'t> {
    pub(super) fn new(version: Version, target: Target) -> Spellings<'t> {
        Spellings { version, target, known: HashMap::new(), layouts: HashSet::new() }
    }

    /// The form of an instruction; an error is noted where there is none or the module is too old for it.
    pub(super) fn decode(&mut self, instruction: &'t Instruction, errors: &mut Errors<'t>) -> Option<Rc<Decoded>> {
        let start = instruction.name.span.start;
        let end = instruction.modifiers.last().map_or(instruction.name.span.end, |last| last.span.end);
        let text = errors.text().get(start as usize..end as usize).unwrap_or_default();
        if let Some(decoded) = self.known.get(text) {
            return Some(Rc::clone(decoded));
        }
        let modifiers: Vec<&str> = instruction.modifiers.iter().map(|word| word.text.as_str()).collect();
        let decoded = match self.new_spelling(&instruction.name.text, &modifiers) {
            Ok(decoded) => Rc::new(decoded),
            Err(wrong) => {
                errors.push(start, wrong);
                return None;
            }
        };
        self.known.insert(text, Rc::clone(&decoded));
        Some(decoded)
    }

    /// A form by its parts, for the instructions that lowering inserts.
    pub(super) fn inserted(&mut self, text: &'static str) -> Option<Rc<Decoded>> {
        if let Some(decoded) = self.known.get(text) {
            return Some(Rc::clone(decoded));
        }
        let mut parts = text.split('.');
        let name = parts.next()?;
        let (form, mods) = TABLE.find(name, &parts.collect::<Vec<_>>())?;
        let decoded = Rc::new(Decoded { form, mods, vector: 1, relaxed: false, spelling: text.to_owned() });
        self.known.insert(text, Rc::clone(&decoded));
        Some(decoded)
    }

    fn new_spelling(&self, name: &str, modifiers: &[&str]) -> Result<Decoded, Wrong> {
        let spelling = std::iter::once(name).chain(modifiers.iter().copied()).collect::<Vec<_>>().join(".");
        let Some((form, mods)) = TABLE.find(name, modifiers) else { return Err(unknown(name, modifiers, spelling)) };
        self.enough(&spelling, form.version, form.target)?;
        let vector = [("v2", 2), ("v4", 4), ("v8", 8)].into_iter().find(|(word, _)| mods.has(word));
        let vector = vector.map_or(1, |(_, count)| count);
        for word in mods.words() {
            if let Some((needed, target)) = word_since(word) {
                self.enough(&format!(".{word}"), needed, target)?;
            }
        }
        // The 8-bit and bf16 conversions take registers of their own width only.
        let alternate = |word: &&str| matches!(*word, "bf16" | "bf16x2" | "tf32") || word.starts_with('e');
        let relaxed = match name {
            "ld" | "st" | "ldu" => true,
            "cvt" => !modifiers.iter().any(alternate),
            _ => false,
        };
        let decoded = Decoded { form, mods, vector, relaxed, spelling };
        if matches!(name, "ld" | "st") && super::memory::wide_vector(&decoded) {
            self.enough(&decoded.spelling, Version(8, 8), Target { sm: 100, specific: false })?;
        }
        if decoded.mods.has("v8") && !super::memory::wide_vector(&decoded) {
            let missing = "a type of 32 bits beside `.v8`";
            return Err(Wrong::Missing { spelling: decoded.spelling, missing });
        }
        Ok(decoded)
    }

    /// Whether the module's `.version` and `.target` have what needs these.
    fn enough(&self, what: &str, version: Version, needed: Target) -> Result<(), Wrong> {
        let (has, what) = (self.target, || what.to_owned());
        let enough = if needed.specific { has.specific && has.sm == needed.sm } else { has.sm >= needed.sm };
        if !enough {
            return Err(Wrong::NeedsTarget { what: what(), needed, has });
        }
        if self.version < version {
            return Err(Wrong::NeedsVersion { what: what(), needed: version, has: self.version });
        }
        Ok(())
    }

    /// A layout of operands, shared by all instructions that have it.
    pub(super) fn layout(&mut self, slots: &[OperandSlot]) -> Arc<[OperandSlot]> {
        match self.layouts.get(slots) {
            Some(layout) => Arc::clone(layout),
            None => {
                let layout: Arc<[OperandSlot]> = slots.into();
                self.layouts.insert(Arc::clone(&layout));
                layout
            }
        }
    }
}

/// Modifiers that are younger than most of the forms they stand in.
fn word_since(word: &str) -> Option<(Version, Target)> {
    let (major, minor, sm) = match word {
        "cluster" | "shared::cluster" => (7, 8, 90),
        "shared::cta" => (7, 8, 30),
        "param::entry" | "param::func" => (8, 3, 20),
        "relaxed" | "acquire" | "release" | "acq_rel" => (6, 0, 70),
        "mmio" => (8, 2, 70),
        "L2::cache_hint" => (7, 4, 80),
        "L2::64B" | "L2::128B" => (7, 4, 75),
        "L2::256B" => (7, 4, 80),
        _ if word.starts_with("L1::") => (7, 4, 70),
        _ => return None,
    };
    Some((Version(major, minor), Target { sm, specific: false }))
}

/// The first `.version` that has a `.target`.
pub(super) fn first_version(target: Target) -> Version {
    match (target.sm, target.specific) {
        (..75, _) => Version(1, 0),
        (75, _) => Version(6, 3),
        (80, _) => Version(7, 0),
        (..=86, _) => Version(7, 1),
        (87, _) => Version(7, 4),
        (88, _) => Version(9, 0),
        (..=89, _) | (90, false) => Version(7, 8),
        (90, true) => Version(8, 0),
        (..=101, _) => Version(8, 6),
        (..=120, _) => Version(8, 7),
        _ => Version(8, 8),
    }
}

/// Why the table has no such instruction, with what comes nearest.
fn unknown(name: &str, modifiers: &[&str], spelling: String) -> Wrong {
    if TABLE.named(name).next().is_none() {
        let nearest = TABLE.rows().iter().map(|form| form.name).min_by_key(|known| distance(known, name));
        let nearest = nearest.filter(|known| distance(known, name) <= 2).map(str::to_owned);
        return Wrong::UnknownInstruction { name: name.to_owned(), nearest };
    }
    let nearest = TABLE.named(name).min_by_key(|form| form.pattern.misfit(modifiers));
    Wrong::UnknownForm { spelling, name: name.to_owned(), nearest: nearest.map(|form| form.text.to_owned()) }
}

/// Edit distance of two short words.
fn distance(a: &str, b: &str) -> usize {
    if a.len().abs_diff(b.len()) > 2 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut corner = i;
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let next = (corner + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            corner = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}
