//! The modifiers of a form, and what an instruction chose among them.

use crate::types::Type;

/// The modifiers that a form has.
#[derive(Debug)]
pub struct Pattern {
    /// Types, in the order of the text.
    types: Vec<Type>,
    /// Modifiers of which one must stand there.
    required: Vec<Vec<&'static str>>,
    /// Modifiers of which at most one may.
    optional: Vec<Vec<&'static str>>,
}

/// What an instruction chose among its form's modifiers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mods {
    /// Modifiers without dots and without types.
    words: Vec<&'static str>,
    /// Types in order.
    pub types: Vec<Type>,
}

impl Mods {
    /// Whether a modifier stands there, without its dot: `has("sat")`, `has("shared::cta")`.
    pub fn has(&self, word: &str) -> bool {
        self.words.contains(&word)
    }

    /// All modifiers but the types.
    pub fn words(&self) -> &[&'static str] {
        &self.words
    }
}

impl Pattern {
    /// Reads `{.a|.b}.rn(.c|.d).f32`.
    pub(super) fn parse(text: &'static str) -> Pattern {
        let mut pattern = Pattern { types: Vec::new(), required: Vec::new(), optional: Vec::new() };
        let mut rest = text;
        while !rest.is_empty() {
            let (part, after) = match rest.as_bytes()[0] {
                b'{' => rest.split_at(rest.find('}').map_or(rest.len(), |end| end + 1)),
                b'(' => rest.split_at(rest.find(')').map_or(rest.len(), |end| end + 1)),
                _ => rest.split_at(rest[1..].find(['.', '{', '(']).map_or(rest.len(), |end| end + 1)),
            };
            let words: Vec<&'static str> =
                part.trim_matches(['{', '}', '(', ')']).split('|').map(|word| word.trim_start_matches('.')).collect();
            match (part.as_bytes()[0], Type::from_name(words[0])) {
                (b'{', _) => pattern.optional.push(words),
                (b'.', Some(ty)) => pattern.types.push(ty),
                _ => pattern.required.push(words),
            }
            rest = after;
        }
        pattern
    }

    /// The types of the form, in order.
    pub fn types(&self) -> &[Type] {
        &self.types
    }

    /// What `modifiers` chose, where they are this form's.
    pub fn matches(&self, modifiers: &[&str]) -> Option<Mods> {
        let mut mods = Mods::default();
        // One bit for each group that has chosen: the required ones first.
        let mut chosen: u64 = 0;
        for word in modifiers {
            let groups = self.required.iter().chain(&self.optional).enumerate();
            let free = |(at, group): (usize, &Vec<&'static str>)| {
                (chosen >> at & 1 == 0)
                    .then(|| group.iter().find(|known| *known == word))
                    .flatten()
                    .map(|&known| (at, known))
            };
            if let Some((at, known)) = groups.into_iter().find_map(free) {
                chosen |= 1 << at;
                mods.words.push(known);
            } else {
                mods.types.push(Type::from_name(word)?);
            }
        }
        let required = (1 << self.required.len()) - 1;
        (chosen & required == required && mods.types == self.types).then_some(mods)
    }

    /// How many words have to change until `modifiers` are this form's, about.
    pub fn misfit(&self, modifiers: &[&str]) -> usize {
        let known = |word: &&&str| {
            let group = |group: &Vec<&'static str>| group.contains(word);
            self.required.iter().any(group)
                || self.optional.iter().any(group)
                || Type::from_name(word).is_some_and(|ty| self.types.contains(&ty))
        };
        let fit = modifiers.iter().filter(known).count();
        let missing = |group: &&Vec<&'static str>| !modifiers.iter().any(|word| group.contains(word));
        let types = modifiers.iter().filter_map(|word| Type::from_name(word)).collect::<Vec<_>>();
        2 * (modifiers.len() - fit)
            + self.required.iter().filter(missing).count()
            + self.types.iter().filter(|ty| !types.contains(ty)).count()
    }

    /// How many combinations of choices there are.
    pub fn combinations(&self) -> u64 {
        let required = self.required.iter().map(|group| group.len() as u64);
        let optional = self.optional.iter().map(|group| group.len() as u64 + 1);
        required.chain(optional).fold(1, u64::saturating_mul)
    }

    /// A combination of choices by its number, spelled with dots: 0 leaves out all that can be.
    pub fn spelling(&self, mut number: u64) -> String {
        let mut text = String::new();
        let groups = self.required.iter().map(|group| (group, 0));
        for (group, optional) in groups.chain(self.optional.iter().map(|group| (group, 1))) {
            let choices = group.len() as u64 + optional;
            let choice = (number % choices).checked_sub(optional);
            number /= choices;
            if let Some(word) = choice.and_then(|choice| group.get(choice as usize)) {
                text.extend([".", word]);
            }
        }
        text.extend(self.types.iter().flat_map(|ty| [".", ty.name()]));
        text
    }

    /// Every combination of choices, spelled with dots, for coverage and documentation.
    pub fn spellings(&self) -> impl Iterator<Item = String> {
        (0..self.combinations()).map(|number| self.spelling(number))
    }
}
