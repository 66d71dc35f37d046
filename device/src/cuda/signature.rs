//! What a kernel takes, read from its PTX. The driver reads as many bytes of each argument as the kernel declares and
//! checks nothing, so a launch is checked here.

/// A parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Param {
    pub(super) name: String,
    pub(super) bytes: usize,
}

/// The names of all kernels in PTX, and their parameters.
pub(super) fn kernels(ptx: &str) -> Vec<(String, Vec<Param>)> {
    let text = without_comments(ptx);
    let mut found = Vec::new();
    for (at, _) in text.match_indices(".entry") {
        let rest = &text[at + ".entry".len()..];
        if !rest.starts_with(char::is_whitespace) {
            continue;
        }
        let name: String = rest.trim_start().chars().take_while(|&c| is_name(c)).collect();
        let after = rest.trim_start()[name.len()..].trim_start();
        let list = after.strip_prefix('(').and_then(|list| list.split_once(')')).map_or("", |(list, _)| list);
        found.push((name, list.split(',').filter_map(param).collect()));
    }
    found
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%')
}

/// `.param .align 8 .b8 name[24]`, `.param .u64 .ptr .global .align 16 name`.
fn param(text: &str) -> Option<Param> {
    let mut bytes = None;
    let mut name = String::new();
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            // Its number is the next word.
            ".align" => drop(words.next()),
            _ if word.starts_with('.') => bytes = bytes.or(size_of_type(&word[1..])),
            _ => name.push_str(word),
        }
    }
    let (name, count) = match name.split_once('[') {
        Some((name, count)) => (name.to_owned(), count.trim_end_matches(']').parse().ok()?),
        None => (name, 1),
    };
    Some(Param { name, bytes: bytes? * count })
}

fn size_of_type(name: &str) -> Option<usize> {
    let bits: usize = match name {
        "pred" => return None,
        "f16x2" | "bf16x2" => 32,
        _ => name.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse().ok()?,
    };
    matches!(name.as_bytes()[0], b'b' | b'u' | b's' | b'f').then_some(bits / 8)
}

fn without_comments(ptx: &str) -> String {
    let mut out = String::with_capacity(ptx.len());
    let mut rest = ptx;
    while let Some(at) = rest.find("/") {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        rest = match rest.as_bytes().get(1) {
            Some(b'/') => rest.find('\n').map_or("", |end| &rest[end..]),
            Some(b'*') => rest[2..].find("*/").map_or("", |end| &rest[end + 4..]),
            _ => {
                out.push('/');
                &rest[1..]
            }
        };
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(name: &str, bytes: usize) -> Param {
        Param { name: name.to_owned(), bytes }
    }

    #[test]
    fn parameters_are_read_as_compilers_write_them() {
        let ptx = "
            // .entry not_this(.param .u32 x)
            .visible .entry _Z3addPfS_(
                .param .u64 .ptr .global .align 16 _Z3addPfS__param_0, /* , */
                .param .align 8 .b8 s[24],
                .param .f32 c, .param .b16 h
            )
            .maxntid 128, 1, 1
            { ret; }
            .entry nothing() { ret; }
            .entry bare { ret; }";
        let all = kernels(ptx);
        let wanted = vec![given("_Z3addPfS__param_0", 8), given("s", 24), given("c", 4), given("h", 2)];
        let named = |name: &str, params: Vec<Param>| (name.to_owned(), params);
        assert_eq!(all, [named("_Z3addPfS_", wanted), named("nothing", vec![]), named("bare", vec![])]);
    }
}
