"""Cross-entropy with its gradient in place, and reductions over the whole grid by atomics."""
import triton
import triton.language as tl

from cases import case


@triton.jit
def cross_entropy(logits, targets, losses, columns, ignored, scale, smoothing, BLOCK: tl.constexpr):
    # The gradient overwrites the logits. A row whose target is `ignored` has loss 0 and gradient 0.
    row = tl.program_id(0).to(tl.int64)
    logits += row * columns
    target = tl.load(targets + row)
    if target == ignored:
        for start in range(0, columns, BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(logits + at, tl.zeros([BLOCK], logits.dtype.element_ty), mask=at < columns)
        tl.store(losses + row, 0.0)
        return
    largest = -float("inf")
    total = 0.0
    level = 0.0
    chosen = tl.load(logits + target).to(tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        seen = tl.maximum(largest, tl.max(x, axis=0))
        total = total * tl.exp(largest - seen) + tl.sum(tl.exp(x - seen), axis=0)
        level += tl.sum(tl.where(at < columns, x, 0.0), axis=0)
        largest = seen
    lse = largest + tl.log(total)
    tl.debug_barrier()
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits + at, mask=at < columns, other=-float("inf")).to(tl.float32)
        wanted = tl.where(at == target, 1.0 - smoothing, 0.0) + smoothing / columns
        tl.store(logits + at, ((tl.exp(x - lse) - wanted) * scale).to(logits.dtype.element_ty), mask=at < columns)
    tl.store(losses + row, lse - (1.0 - smoothing) * chosen - smoothing * level / columns)


@triton.jit
def grid_reduce(total, largest, smallest, count_positive, inp, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    x = tl.load(inp + at, mask=mask, other=0.0)
    tl.atomic_add(total, tl.sum(x, axis=0))
    tl.atomic_max(largest, tl.max(tl.where(mask, x, -float("inf")), axis=0))
    tl.atomic_min(smallest, tl.min(tl.where(mask, x, float("inf")), axis=0))
    tl.atomic_add(count_positive, tl.sum((mask & (x > 0)).to(tl.int32), axis=0))


@triton.jit
def last_block_sum(out, parts, arrived, inp, count, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    # Each program leaves its part; whoever arrives last adds them all, in a fixed order.
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(inp + at, mask=at < count, other=0.0).to(tl.float64)
    tl.store(parts + tl.program_id(0), tl.sum(x, axis=0))
    tl.debug_barrier()
    before = tl.atomic_add(arrived, 1, sem="acq_rel")
    if before == tl.num_programs(0) - 1:
        tl.debug_barrier()
        which = tl.arange(0, PARTS)
        every = tl.load(parts + which, mask=which < tl.num_programs(0), other=0.0, volatile=True)
        tl.store(out, tl.sum(every, axis=0))


CASES = [
    case("cross_entropy", cross_entropy,
         {"logits": "*bf16", "targets": "*i64", "losses": "*fp32", "columns": "i32", "ignored": "i32", "scale": "fp32",
          "smoothing": "fp32"}, {"BLOCK": 256}, plain=("columns", "ignored")),
    case("grid_reduce", grid_reduce,
         {"total": "*fp32", "largest": "*fp32", "smallest": "*fp32", "count_positive": "*i32", "inp": "*fp32", "count": "i32"},
         {"BLOCK": 512}, plain=("count",)),
    case("last_block_sum", last_block_sum,
         {"out": "*fp64", "parts": "*fp64", "arrived": "*i32", "inp": "*fp32", "count": "i32"}, {"BLOCK": 512, "PARTS": 16},
         plain=("count",)),
]
