//! A kernel that Triton compiled, and a call of it by the names of its arguments.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::corpus;
use crate::vm::{Buffer, Machine, Module, Parameter};

#[derive(Deserialize)]
struct Description {
    kernel: String,
    block: u32,
    shared: u32,
    params: Vec<Argument>,
    constants: BTreeMap<String, serde_json::Value>,
    scratch: Scratch,
}

#[derive(Deserialize)]
struct Argument {
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

/// Bytes that a launch must bring for what Triton itself appends.
#[derive(Deserialize)]
struct Scratch {
    global: u32,
    profile: u32,
}

pub(crate) struct Kernel {
    module: Module,
    description: Description,
}

impl Kernel {
    pub(crate) fn open(name: &str) -> Self {
        let stem = format!("triton_{name}");
        let description: Description = corpus::json(&format!("{stem}.json"));
        let scratch = &description.scratch;
        assert_eq!((scratch.global, scratch.profile), (0, 0), "{name} wants scratch memory, which no call here brings");
        Kernel { module: Module::open(&format!("{stem}.ptx")), description }
    }

    /// A constant that the kernel was compiled with.
    pub(crate) fn constant(&self, name: &str) -> i64 {
        self.description.constants[name].as_i64().unwrap_or_else(|| panic!("{name} is no integer"))
    }

    pub(crate) fn on<'a>(&'a self, machine: &'a Machine) -> Call<'a> {
        Call { kernel: self, machine, given: BTreeMap::new() }
    }
}

/// A launch in the making: every parameter must be given once, by name, in the type the kernel has it.
pub(crate) struct Call<'a> {
    kernel: &'a Kernel,
    machine: &'a Machine,
    given: BTreeMap<&'a str, (&'static str, Parameter)>,
}

impl<'a> Call<'a> {
    fn give(mut self, name: &'a str, kind: &'static str, value: Parameter) -> Self {
        assert!(self.given.insert(name, (kind, value)).is_none(), "{name} is given twice");
        self
    }

    pub(crate) fn buffer(self, name: &'a str, buffer: &Buffer) -> Self {
        self.give(name, "*", Parameter::pointer(buffer))
    }

    pub(crate) fn integers(self, values: &[(&'a str, i32)]) -> Self {
        values.iter().fold(self, |call, &(name, value)| call.give(name, "i32", Parameter::bytes(&value)))
    }

    pub(crate) fn long(self, name: &'a str, value: i64) -> Self {
        self.give(name, "i64", Parameter::bytes(&value))
    }

    pub(crate) fn floats(self, values: &[(&'a str, f32)]) -> Self {
        values.iter().fold(self, |call, &(name, value)| call.give(name, "fp32", Parameter::bytes(&value)))
    }

    pub(crate) fn launch(mut self, grid: [u32; 3]) {
        let description = &self.kernel.description;
        let mut parameters = Vec::new();
        for Argument { name, kind } in &description.params {
            if name == "global_scratch" || name == "profile_scratch" {
                parameters.push(Parameter::bytes(&0u64));
                continue;
            }
            let (given, value) = self.given.remove(name.as_str()).unwrap_or_else(|| panic!("{name} is not given"));
            assert!(kind.starts_with(given), "{name} is a {kind}, given as {given}");
            parameters.push(value);
        }
        assert!(self.given.is_empty(), "no such parameters: {:?}", self.given.keys());
        let block = [description.block, 1, 1];
        self.machine.launch(&self.kernel.module, &description.kernel, grid, block, description.shared, &parameters);
    }
}
