//! Runs cases on the device and compares.

use warpweft_ptxvm::exec::{self, Divergence, HostFunctions, Launch, Options};
use warpweft_ptxvm::lower;
use warpweft_ptxvm::memory::{AddressSpace, DeviceId};
use warpweft_ptxvm::observe::Nobody;
use warpweft_ptxvm::program::Program;
use warpweft_ptxvm::types::Space;

use crate::case::{Case, Expectation};

const DEVICE: DeviceId = DeviceId(0);

/// Runs all, and fails with every wrong form's first wrong result.
pub(crate) fn check(cases: Vec<Case>) {
    let wrong: Vec<String> = cases.iter().filter_map(|case| one(case).err()).collect();
    assert!(wrong.is_empty(), "{} of {} forms:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

fn one(case: &Case) -> Result<(), String> {
    let name = case.file_name();
    let program = lower::compile(&case.ptx).map_err(|error| format!("{name}: {error}"))?;
    for divergence in [Divergence::Reconverge, Divergence::Independent] {
        let after = launched(case, &program, divergence);
        if matches!(case.expected, Expectation::Stops | Expectation::Refused) {
            match after {
                Err(error) if error.contains(case.form.as_str()) => continue,
                other => return Err(format!("{name}, {divergence:?}: nothing says `{}`: {other:?}", case.form)),
            }
        }
        let after = after.map_err(|error| format!("{name}, {divergence:?}: {error}"))?;
        compared(case, &after).map_err(|difference| format!("{name}, {divergence:?}: {difference}"))?;
        // Lanes go their own ways only where a module has branches, which those of one instruction have not.
        if !case.operands.is_empty() {
            break;
        }
    }
    Ok(())
}

/// The buffers after a launch.
fn launched(case: &Case, program: &Program, divergence: Divergence) -> Result<Vec<Vec<u8>>, String> {
    let memory = AddressSpace::new(&[1 << 30]).map_err(|error| error.to_string())?;
    let place = |bytes: &[u8]| {
        let address =
            memory.allocate(DEVICE, bytes.len().max(1) as u64, 256, "buffer").map_err(|error| error.to_string())?;
        memory.write(address, bytes).map_err(|error| error.to_string())?;
        Ok::<u64, String>(address)
    };
    let addresses: Vec<u64> = case.buffers.iter().map(|bytes| place(bytes)).collect::<Result<_, _>>()?;
    let mut variables = Vec::new();
    for variable in program.variables.iter().filter(|variable| matches!(variable.space, Space::Global | Space::Const)) {
        let mut bytes = variable.init.clone();
        bytes.resize(variable.bytes as usize, 0);
        variables.push(place(&bytes)?);
    }
    let mut params: Vec<u8> = addresses.iter().flat_map(|address| address.to_le_bytes()).collect();
    params.extend(&case.by_value);
    let function = program.functions.iter().position(|function| function.name == "test").ok_or("no entry `test`")?;
    let launch = Launch {
        program,
        variables: &variables,
        function: function as u32,
        grid: [case.launch.0, 1, 1],
        block: [case.launch.1, 1, 1],
        dynamic_shared: 0,
        params: &params,
        device: DEVICE,
        target: program.target,
        sms: 1,
        grid_id: 0,
    };
    let options = Options { divergence, seed: 3, limit: 10_000_000, ..Options::default() };
    let outcome = exec::run(&launch, &memory, &HostFunctions::new(), &options, &mut Nobody);
    if let Some(failure) = outcome.map_err(|error| error.to_string())?.failure {
        return Err(failure.to_string());
    }
    let read = |(address, bytes): (&u64, &Vec<u8>)| {
        let mut now = vec![0; bytes.len()];
        memory.read(*address, &mut now).map_err(|error| error.to_string())?;
        Ok(now)
    };
    addresses.iter().zip(&case.buffers).map(read).collect()
}

/// The first result that is not as expected.
fn compared(case: &Case, after: &[Vec<u8>]) -> Result<(), String> {
    if let Expectation::Buffers(buffers) = &case.expected {
        for (buffer, expected) in buffers {
            if let Some(at) = (0..expected.len()).find(|&at| after[*buffer][at] != expected[at]) {
                let word = at & !7;
                let end = (word + 8).min(expected.len());
                let (got, expected) = (&after[*buffer][word..end], &expected[word..end]);
                return Err(format!("buffer {buffer}, byte {word}: {got:02x?}, expected {expected:02x?}"));
            }
        }
        return Ok(());
    }
    for (at, sources) in case.sources.iter().enumerate() {
        let first = 8 * at * case.result_bits.len();
        let results = after[1][first..].chunks(8).take(case.result_bits.len());
        let got: Vec<u64> = results.map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes"))).collect();
        match &case.expected {
            Expectation::Bits(expected) if expected[at] != got => {
                return Err(format!("{sources:x?} gives {got:x?}, expected {:x?}", expected[at]));
            }
            Expectation::Accepted(accept) if !accept(sources, &got) => {
                return Err(format!("{sources:x?} gives {got:x?}, which the ISA does not allow"));
            }
            _ => {}
        }
    }
    Ok(())
}
