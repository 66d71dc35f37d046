//! What CUB's own host code launched for one call, as `scripts/foreign/cub/recorder.cpp` wrote it down, and its replay.

use std::collections::BTreeMap;

use bytemuck::Pod;
use serde::Deserialize;

use crate::corpus;
use crate::vm::{Buffer, Machine, Module, Parameter};

#[derive(Deserialize)]
struct Written {
    module: String,
    buffers: BTreeMap<String, usize>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Step {
    Launch { kernel: String, grid: [u32; 3], block: [u32; 3], shared: u32, params: Vec<Raw> },
    Memset { memset: Memset },
}

#[derive(Deserialize)]
struct Raw {
    bytes: String,
    pointers: Vec<Pointer>,
}

#[derive(Deserialize)]
struct Pointer {
    at: usize,
    ptr: String,
    offset: u64,
}

#[derive(Deserialize)]
struct Memset {
    ptr: String,
    offset: u64,
    bytes: u64,
    value: u8,
}

pub(crate) struct Recording {
    module: Module,
    written: Written,
}

/// The buffers after the last step.
pub(crate) struct After<'a> {
    machine: &'a Machine,
    buffers: BTreeMap<&'a str, Buffer>,
}

impl Recording {
    pub(crate) fn open(case: &str) -> Self {
        let written: Written = corpus::json(&format!("{case}.json"));
        Recording { module: Module::open(&written.module), written }
    }

    /// Elements of `T` in a buffer.
    pub(crate) fn count<T>(&self, buffer: &str) -> usize {
        self.written.buffers[buffer] / size_of::<T>()
    }

    /// Runs every step on fresh buffers. Those that are not given hold undefined bytes, as fresh memory does.
    pub(crate) fn replay<'a>(&'a self, machine: &'a Machine, inputs: &[(&str, &[u8])]) -> After<'a> {
        let given: BTreeMap<&str, &[u8]> = inputs.iter().copied().collect();
        if let Some(name) = given.keys().find(|name| !self.written.buffers.contains_key(**name)) {
            panic!("there is no buffer {name}");
        }
        let make = |(name, &bytes): (&'a String, &usize)| {
            let buffer = match given.get(name.as_str()) {
                Some(input) => {
                    assert_eq!(input.len(), bytes, "bytes of {name}");
                    machine.upload(input)
                }
                None => machine.output::<u8>(bytes),
            };
            (name.as_str(), buffer)
        };
        let buffers: BTreeMap<&str, Buffer> = self.written.buffers.iter().map(make).collect();
        for step in &self.written.steps {
            match step {
                Step::Launch { kernel, grid, block, shared, params } => {
                    let parameters: Vec<Parameter> = params.iter().map(|raw| raw.with(&buffers)).collect();
                    machine.launch(&self.module, kernel, *grid, *block, *shared, &parameters);
                }
                Step::Memset { memset } => {
                    machine.fill(&buffers[memset.ptr.as_str()], memset.offset, memset.bytes, memset.value);
                }
            }
        }
        After { machine, buffers }
    }
}

impl After<'_> {
    pub(crate) fn read<T: Pod>(&self, buffer: &str) -> Vec<T> {
        self.machine.download(&self.buffers[buffer])
    }
}

impl Raw {
    fn with(&self, buffers: &BTreeMap<&str, Buffer>) -> Parameter {
        let digits = |at: usize| u8::from_str_radix(&self.bytes[at..at + 2], 16).expect("hexadecimal digits");
        let mut bytes: Vec<u8> = (0..self.bytes.len()).step_by(2).map(digits).collect();
        for Pointer { at, ptr, offset } in &self.pointers {
            let address = buffers[ptr.as_str()].address() + offset;
            bytes[*at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
        Parameter::raw(bytes)
    }
}
