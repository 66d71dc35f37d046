"""Sorting, scanning, counting and picking: networks of exchanges, shuffles, shared memory and atomics."""
import triton
import triton.language as tl

from cases import case


@triton.jit
def sort_rows(out, inp, columns, BLOCK: tl.constexpr, DESCENDING: tl.constexpr, FILL: tl.constexpr):
    row = tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    x = tl.load(inp + row + at, mask=at < columns, other=FILL)
    tl.store(out + row + at, tl.sort(x, descending=DESCENDING), mask=at < columns)


@triton.jit
def top_k(out, inp, columns, BLOCK: tl.constexpr, K: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(inp + tl.program_id(0) * columns + at, mask=at < columns, other=-float("inf"))
    tl.store(out + tl.program_id(0) * K + tl.arange(0, K), tl.topk(x, K))


@triton.jit
def cumsum_rows(out, inp, columns, BLOCK: tl.constexpr, REVERSE: tl.constexpr):
    row = tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    x = tl.load(inp + row + at, mask=at < columns, other=0)
    tl.store(out + row + at, tl.cumsum(x, axis=0, reverse=REVERSE), mask=at < columns)


@triton.jit
def _recur(a0, b0, a1, b1):
    return a0 * a1, a1 * b0 + b1


@triton.jit
def linear_recurrence(out, decay, inp, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    # h[t] = decay[t] h[t-1] + inp[t], as an associative scan along the columns of a tile.
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = rows[:, None] * columns + tl.arange(0, BLOCK)[None, :]
    mask = (tl.arange(0, BLOCK) < columns)[None, :]
    a = tl.load(decay + at, mask=mask, other=1.0)
    x = tl.load(inp + at, mask=mask, other=0.0)
    _, h = tl.associative_scan((a, x), 1, _recur)
    tl.store(out + at, h, mask=mask)


@triton.jit
def histogram(out, inp, count, BLOCK: tl.constexpr, BINS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(inp + at, mask=at < count, other=0)
    found = tl.histogram(x, BINS, mask=at < count)
    tl.atomic_add(out + tl.arange(0, BINS), found)


@triton.jit
def arg_extremes(out_min, out_max, values, inp, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(inp + row * columns + at, mask=at < columns, other=float("inf"))
    tl.store(out_min + row, tl.argmin(x, axis=0))
    y = tl.load(inp + row * columns + at, mask=at < columns, other=-float("inf"))
    best, place = tl.max(y, axis=0, return_indices=True)
    tl.store(out_max + row, place)
    tl.store(values + row, best)


@triton.jit
def gather_rows(out, table, index, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    source = tl.load(index + row).to(tl.int64)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(out + row * columns + at, tl.load(table + source * columns + at, mask=at < columns), mask=at < columns)


@triton.jit
def permute_within(out, inp, index, BLOCK: tl.constexpr):
    # A gather whose source is the tile itself: through shared memory or shuffles.
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.gather(tl.load(inp + at), tl.load(index + at), 0))


@triton.jit
def scatter_add(table, grad, index, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    target = tl.load(index + row)
    at = tl.arange(0, BLOCK)
    g = tl.load(grad + row * columns + at, mask=at < columns, other=0.0)
    tl.atomic_add(table + target * columns + at, g, mask=at < columns, sem="relaxed")


@triton.jit
def compact(out, places, counter, inp, count, BLOCK: tl.constexpr):
    # Keeps the odd elements; blocks take room at the end of `out` by one atomic each, in any order.
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(inp + at, mask=at < count, other=0)
    keep = (x & 1) == 1
    rank = tl.cumsum(keep.to(tl.int32), axis=0)
    base = tl.atomic_add(counter, tl.sum(keep.to(tl.int32), axis=0))
    tl.store(out + base + rank - 1, x, mask=keep)
    tl.store(places + at, base + rank - 1, mask=keep)


def _sort(name, kind, block, warps, descending, fill):
    return case(name, sort_rows, {"out": f"*{kind}", "inp": f"*{kind}", "columns": "i32"},
                {"BLOCK": block, "DESCENDING": descending, "FILL": fill}, warps=warps, plain=("columns",))


CASES = [
    _sort("sort_f32", "fp32", 256, 4, False, float("inf")),
    _sort("sort_i32_descending", "i32", 128, 2, True, -2147483648),
    _sort("sort_i64", "i64", 64, 1, False, 9223372036854775807),
    case("top_k", top_k, {"out": "*fp32", "inp": "*fp32", "columns": "i32"}, {"BLOCK": 256, "K": 16}, plain=("columns",)),
    case("cumsum_i32", cumsum_rows, {"out": "*i32", "inp": "*i32", "columns": "i32"}, {"BLOCK": 1024, "REVERSE": False},
         plain=("columns",)),
    case("cumsum_f64_reverse", cumsum_rows, {"out": "*fp64", "inp": "*fp64", "columns": "i32"}, {"BLOCK": 256, "REVERSE": True},
         plain=("columns",)),
    case("linear_recurrence", linear_recurrence, {"out": "*fp32", "decay": "*fp32", "inp": "*fp32", "columns": "i32"},
         {"ROWS": 8, "BLOCK": 64}, plain=("columns",)),
    case("histogram", histogram, {"out": "*i32", "inp": "*i32", "count": "i32"}, {"BLOCK": 512, "BINS": 64}, plain=("count",)),
    case("arg_extremes", arg_extremes, {"out_min": "*i32", "out_max": "*i32", "values": "*fp32", "inp": "*fp32", "columns": "i32"},
         {"BLOCK": 512}, plain=("columns",)),
    case("gather_rows", gather_rows, {"out": "*fp32", "table": "*fp32", "index": "*i32", "columns": "i32"}, {"BLOCK": 128},
         warps=2, plain=("columns",)),
    case("permute_within", permute_within, {"out": "*fp32", "inp": "*fp32", "index": "*i32"}, {"BLOCK": 256}),
    case("scatter_add_f32", scatter_add, {"table": "*fp32", "grad": "*fp32", "index": "*i32", "columns": "i32"}, {"BLOCK": 128},
         plain=("columns",)),
    case("scatter_add_f16", scatter_add, {"table": "*fp16", "grad": "*fp16", "index": "*i32", "columns": "i32"}, {"BLOCK": 128}),
    case("compact", compact, {"out": "*i32", "places": "*i32", "counter": "*i32", "inp": "*i32", "count": "i32"}, {"BLOCK": 256},
         plain=("count",)),
]
