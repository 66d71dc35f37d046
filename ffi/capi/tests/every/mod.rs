//! Functions as the headers declare them, and the program that calls each with wrong arguments.

mod value;

use value::{initializer, is_array, null_is_allowed, nullable_in_place, settings, unlimited, works};

/// A function.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    /// Whether it is of the kernels, whose arrays lie on the device.
    pub(crate) kernel: bool,
}

/// An argument.
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// What stands before the name, a star at the end for each level of pointers.
    pub(crate) ty: String,
}

impl Parameter {
    pub(crate) fn is_pointer(&self) -> bool {
        self.ty.ends_with('*')
    }
}

/// The functions of a header that return a status.
fn functions(code: &str, kernel: bool) -> Vec<Function> {
    let mut found = Vec::new();
    for declaration in code.split("ww_status ").skip(1) {
        let Some((name, rest)) = declaration.split_once('(') else { continue };
        let Some((list, _)) = rest.split_once(')') else { continue };
        if !name.starts_with("ww_") {
            continue;
        }
        let parameters = list.split(',').map(|parameter| {
            let parameter = parameter.split_whitespace().collect::<Vec<_>>().join(" ");
            let at = parameter.rfind(|c: char| !(c.is_alphanumeric() || c == '_')).expect("a type and a name");
            let (ty, name) = parameter.split_at(at + 1);
            Parameter { name: name.to_owned(), ty: ty.trim().to_owned() }
        });
        found.push(Function { name: name.to_owned(), parameters: parameters.collect(), kernel });
    }
    // It ends the communicator that the others need.
    found.sort_by_key(|function| function.name == "ww_comm_abort");
    found
}

/// The program.
pub(crate) fn program(headers: &[String; 2]) -> String {
    let all: Vec<Function> =
        headers.iter().zip([false, true]).flat_map(|(code, kernel)| functions(code, kernel)).collect();
    assert!(all.len() > 80, "only {} functions were read", all.len());
    let mut text = "#include \"every.h\"\n\n".to_owned();
    all.iter().for_each(|function| text += &checks(function));
    text += "int main(int count, char **arguments) {\n  start(count, arguments);\n";
    for function in &all {
        text += &format!("  check_{}();\n", function.name);
    }
    text + "  if (wrong == 0) printf(\"%d calls, as they should be\\n\", calls);\n  return wrong != 0;\n}\n"
}

/// A C function that makes all calls of one.
fn checks(function: &Function) -> String {
    let Function { name, parameters, .. } = function;
    let list = parameters.iter().map(|of| format!("{}_", of.name)).collect::<Vec<_>>().join(", ");
    let call = format!("{name}({list})");
    let mut text = format!("static void check_{name}(void) {{\n");
    for of in parameters {
        text += &format!("  {} {}_ = {};\n", of.ty, of.name, initializer(function, of));
    }
    if works(name) {
        text += &format!("  fine(\"{name}\", \"as it is\", {call});\n");
    }
    for of in parameters {
        text += &wrong(function, of, &call);
    }
    text + "}\n\n"
}

/// The calls with one argument made wrong.
fn wrong(function: &Function, of: &Parameter, call: &str) -> String {
    let (name, argument) = (&function.name, &of.name);
    let mut text = String::new();
    let mut with = |value: &str, check: &str| {
        let ty = &of.ty;
        text += &format!("  {{ {ty} kept = {argument}_; {argument}_ = {value}; {check}; {argument}_ = kept; }}\n");
    };
    let refused = |kind: &str| format!("refused(\"{name}\", \"{argument}\", \"{kind}\", {call})");
    let code = |wrong: &[&str]| wrong.iter().map(|value| ((*value).to_owned(), refused("no such value"))).collect();
    let more: Vec<(String, String)> = match of.ty.as_str() {
        _ if of.is_pointer() => return pointers(function, of, call),
        "ww_dtype" if function.kernel => code(&["WW_F64", "99", "-1"]),
        "ww_dtype" | "ww_write" | "ww_activation" | "ww_rule" | "ww_score" | "ww_op" => code(&["99", "-1"]),
        // No array of that length fits into memory; which of the sizes or arrays is named is the call's to say.
        "size_t" if function.kernel && !unlimited(name, argument) => {
            vec![("SIZE_MAX".to_owned(), format!("refused(\"{name}\", NULL, \"SIZE_MAX as {argument}\", {call})"))]
        }
        _ => Vec::new(),
    };
    more.iter().for_each(|(value, check)| with(value, check));
    text
}

/// The calls with a pointer made wrong.
fn pointers(function: &Function, of: &Parameter, call: &str) -> String {
    let (name, argument, ty) = (&function.name, &of.name, &of.ty);
    let mut text = String::new();
    let with = |value: &str, check: String| {
        format!("  {{ {ty} kept = {argument}_; {argument}_ = {value}; {check}; {argument}_ = kept; }}\n")
    };
    let refused = |kind: &str| format!("refused(\"{name}\", \"{argument}\", \"{kind}\", {call})");
    match null_is_allowed(name, argument) {
        true if nullable_in_place(name, argument) => {}
        true => text += &with("NULL", format!("fine(\"{name}\", \"null as {argument}\", {call})")),
        false => text += &with("NULL", refused("null")),
    }
    if let Some(settings) = settings(ty) {
        let check = format!("refused(\"{name}\", \"{argument}.size\", \"a size that is none\", {call})");
        text += &format!(
            "  {{ size_t kept = {settings}_value.size; {settings}_value.size = 3; {check}; {settings}_value.size = kept; }}\n"
        );
    }
    if !is_array(function, of) {
        return text;
    }
    text += &with(&format!("({ty})((const char *){argument}_ + 1)"), refused("misaligned"));
    // What is written lies on no other argument.
    if !ty.starts_with("const") {
        let others = function.parameters.iter().filter(|other| other.name != *argument && is_array(function, other));
        for other in others {
            let check = format!("refused(\"{name}\", NULL, \"{argument} on top of {}\", {call})", other.name);
            text += &with(&format!("({ty}){}_", other.name), check);
        }
    }
    text
}
