"""One kernel to compile: the function, the types of its run-time arguments, its constants."""
from dataclasses import dataclass, field


@dataclass
class Case:
    name: str
    function: object
    types: dict
    constants: dict
    warps: int = 4
    stages: int = 3
    plain: tuple = ()
    options: dict = field(default_factory=dict)


def case(name, function, types, constants, warps=4, stages=3, plain=(), **options):
    """`types` are the run-time arguments in order; those in `plain` are not promised to be divisible by 16."""
    return Case(name, function, types, constants, warps, stages, tuple(plain), options)
