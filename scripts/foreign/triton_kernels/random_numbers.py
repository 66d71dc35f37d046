"""Philox: dropout whose mask is a function of seed and position, uniform integers, normal numbers."""
import triton
import triton.language as tl

from cases import case


@triton.jit
def dropout(out, inp, count, keep, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    x = tl.load(inp + at, mask=mask)
    kept = tl.rand(seed, at) < keep
    tl.store(out + at, tl.where(kept, x / keep, 0.0), mask=mask)


@triton.jit
def random_integers(out, count, seed, BLOCK: tl.constexpr):
    # The four words of each position.
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a, b, c, d = tl.randint4x(seed, at)
    mask = at < count
    tl.store(out + at, a, mask=mask)
    tl.store(out + count + at, b, mask=mask)
    tl.store(out + 2 * count + at, c, mask=mask)
    tl.store(out + 3 * count + at, d, mask=mask)


@triton.jit
def random_normal(out, count, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.randn(seed, at), mask=at < count)


CASES = [
    case("dropout", dropout, {"out": "*fp32", "inp": "*fp32", "count": "i32", "keep": "fp32", "seed": "i32"}, {"BLOCK": 1024},
         plain=("count", "seed")),
    case("random_integers", random_integers, {"out": "*i32", "count": "i32", "seed": "i64"}, {"BLOCK": 256},
         plain=("count", "seed")),
    case("random_normal", random_normal, {"out": "*fp32", "count": "i32", "seed": "i32"}, {"BLOCK": 256},
         plain=("count", "seed")),
]
