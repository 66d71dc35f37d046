"""Softmax of rows: a whole row in registers, programs that take several rows, and rows of any length in two passes."""
import triton
import triton.language as tl

from cases import case


@triton.jit
def softmax(out, inp, rows, columns, stride, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    # Program p takes rows p, p + programs, ...; the loop is pipelined when STAGES is more than 1.
    lanes = tl.arange(0, BLOCK)
    mask = lanes < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        x = tl.load(inp + row * stride + lanes, mask=mask, other=-float("inf")).to(tl.float32)
        e = tl.exp(x - tl.max(x, axis=0))
        y = e / tl.sum(e, axis=0)
        tl.store(out + row * stride + lanes, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def softmax_online(out, inp, columns, scale, BLOCK: tl.constexpr):
    # One pass finds the largest element and the sum that goes with it, the second writes.
    row = tl.program_id(0).to(tl.int64) * columns
    largest = -float("inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(inp + row + at, mask=at < columns, other=-float("inf")).to(tl.float32) * scale
        seen = tl.maximum(largest, tl.max(x, axis=0))
        total = total * tl.exp(largest - seen) + tl.sum(tl.exp(x - seen), axis=0)
        largest = seen
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(inp + row + at, mask=at < columns, other=-float("inf")).to(tl.float32) * scale
        tl.store(out + row + at, (tl.exp(x - largest) / total).to(out.dtype.element_ty), mask=at < columns)


@triton.jit
def softmax_backward(dx, y, dy, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    mask = at < columns
    p = tl.load(y + row + at, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(dy + row + at, mask=mask, other=0.0).to(tl.float32)
    d = p * (g - tl.sum(p * g, axis=0))
    tl.store(dx + row + at, d.to(dx.dtype.element_ty), mask=mask)


def _rows(name, kind, block, stages, warps, plain=("rows",)):
    return case(name, softmax, {"out": f"*{kind}", "inp": f"*{kind}", "rows": "i32", "columns": "i32", "stride": "i32"},
                {"BLOCK": block, "STAGES": stages}, warps=warps, plain=plain)


CASES = [
    _rows("softmax_f32", "fp32", 1024, 1, 4, plain=("rows", "columns", "stride")),
    _rows("softmax_bf16", "bf16", 512, 3, 4),
    _rows("softmax_f16_one_warp", "fp16", 64, 2, 1, plain=("rows", "columns", "stride")),
    case("softmax_online", softmax_online, {"out": "*fp32", "inp": "*fp32", "columns": "i32", "scale": "fp32"},
         {"BLOCK": 256}, plain=("columns",)),
    case("softmax_backward", softmax_backward, {"dx": "*bf16", "y": "*bf16", "dy": "*bf16", "columns": "i32"},
         {"BLOCK": 512}, plain=("columns",)),
]
