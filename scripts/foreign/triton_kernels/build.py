"""Compiles every kernel of this folder with Triton, without a GPU: OUT/triton_NAME.ptx and, beside it, .json for the launcher.

    python build.py [--capability 80] OUT [NAME ...]

The JSON: kernel (entry name), block (threads), shared (bytes of dynamic shared memory), params (name and type of every kernel
parameter in order; what Triton appends is named global_scratch and profile_scratch and takes a null pointer when its bytes
are zero), constants, scratch (bytes a program).
"""
import argparse
import importlib
import json
import re
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

MODULES = ["matmul", "softmax", "norm", "attention", "random_numbers", "order", "loss", "elementwise"]


def compiled(case, capability):
    function = case.function
    signature, constants, attributes = {}, {}, {}
    for place, name in enumerate(function.arg_names):
        if name in case.constants:
            signature[name] = "constexpr"
            constants[(place,)] = case.constants[name]
            continue
        kind = case.types[name]
        signature[name] = kind
        if (kind.startswith("*") or kind in ("i32", "i64")) and name not in case.plain:
            attributes[(place,)] = [["tt.divisibility", 16]]
    if set(case.types) | set(case.constants) != set(function.arg_names):
        raise SystemExit(f"{case.name}: its types and constants are not the function's arguments")
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": case.warps, "num_stages": case.stages, **case.options}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def described(case, kernel):
    ptx, metadata = kernel.asm["ptx"], kernel.metadata
    params = [{"name": name, "type": case.types[name]} for name in case.function.arg_names if name in case.types]
    params += [{"name": "global_scratch", "type": "*i8"}, {"name": "profile_scratch", "type": "*i8"}]
    entry = re.search(r"\.visible \.entry (\w+)\(([^)]*)\)", ptx)
    declared = entry.group(2).count(".param")
    if declared != len(params):
        raise SystemExit(f"{case.name}: the PTX has {declared} parameters, the description {len(params)}")
    return {
        "kernel": entry.group(1),
        "block": case.warps * 32,
        "shared": metadata.shared,
        "params": params,
        "constants": {name: value for name, value in case.constants.items() if isinstance(value, (int, str))},
        "scratch": {"global": metadata.global_scratch_size, "profile": metadata.profile_scratch_size},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--capability", type=int, default=80)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cases = [case for module in MODULES for case in importlib.import_module(module).CASES]
    for case in cases:
        if options.names and case.name not in options.names:
            continue
        kernel = compiled(case, options.capability)
        stem = options.out / f"triton_{case.name}"
        stem.with_suffix(".ptx").write_text(kernel.asm["ptx"])
        stem.with_suffix(".json").write_text(json.dumps(described(case, kernel), indent=1) + "\n")


if __name__ == "__main__":
    main()
