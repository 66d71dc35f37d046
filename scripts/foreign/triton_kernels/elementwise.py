"""Functions of single elements: activations from libdevice, rotary positions in double, integer division, narrow formats, AdamW."""
import triton
import triton.language as tl
from triton.language.extra import libdevice

from cases import case


@triton.jit
def gelu(erf_out, tanh_out, grad, inp, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    x = tl.load(inp + at, mask=mask)
    cdf = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    tl.store(erf_out + at, x * cdf, mask=mask)
    tl.store(grad + at, cdf + x * 0.3989422804014327 * tl.exp(-0.5 * x * x), mask=mask)
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    tl.store(tanh_out + at, 0.5 * x * (1.0 + libdevice.tanh(inner)), mask=mask)


@triton.jit
def swiglu(out, gate, up, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    g = tl.load(gate + at, mask=mask).to(tl.float32)
    u = tl.load(up + at, mask=mask).to(tl.float32)
    tl.store(out + at, (g * tl.sigmoid(g) * u).to(out.dtype.element_ty), mask=mask)


@triton.jit
def rope(out, inp, heads, base, HALF: tl.constexpr):
    # One program a (token, head); angles in double, halves rotated against each other.
    token = tl.program_id(0)
    row = (token * heads + tl.program_id(1)) * 2 * HALF
    pair = tl.arange(0, HALF)
    turn = libdevice.pow(base.to(tl.float64), -pair.to(tl.float64) / HALF)
    angle = token.to(tl.float64) * turn
    c = libdevice.cos(angle).to(tl.float32)
    s = libdevice.sin(angle).to(tl.float32)
    x = tl.load(inp + row + pair).to(tl.float32)
    y = tl.load(inp + row + HALF + pair).to(tl.float32)
    tl.store(out + row + pair, x * c - y * s)
    tl.store(out + row + HALF + pair, y * c + x * s)


@triton.jit
def float_functions(out, inp, count, BLOCK: tl.constexpr):
    # Row r of `out` is function r.
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    x = tl.load(inp + at, mask=mask, other=1.0)
    tl.store(out + at, tl.exp(x), mask=mask)
    tl.store(out + count + at, tl.log(tl.abs(x) + 0.5), mask=mask)
    tl.store(out + 2 * count + at, tl.sqrt_rn(tl.abs(x)), mask=mask)
    tl.store(out + 3 * count + at, tl.sin(x), mask=mask)
    tl.store(out + 4 * count + at, tl.cos(x), mask=mask)
    tl.store(out + 5 * count + at, tl.floor(x) + tl.ceil(x * 0.5), mask=mask)
    tl.store(out + 6 * count + at, libdevice.atan2(x, 1.5), mask=mask)
    tl.store(out + 7 * count + at, libdevice.log1p(tl.abs(x)), mask=mask)
    tl.store(out + 8 * count + at, libdevice.pow(tl.abs(x), 1.25), mask=mask)
    tl.store(out + 9 * count + at, tl.div_rn(1.0, x), mask=mask)
    tl.store(out + 10 * count + at, tl.fma(x, x, 0.1), mask=mask)
    tl.store(out + 11 * count + at, libdevice.rint(x), mask=mask)


@triton.jit
def integer_functions(out, left, right, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    a = tl.load(left + at, mask=mask, other=1)
    b = tl.load(right + at, mask=mask, other=1)
    tl.store(out + at, a // b, mask=mask)
    tl.store(out + count + at, a % b, mask=mask)
    tl.store(out + 2 * count + at, tl.umulhi(a.to(tl.uint64, bitcast=True), b.to(tl.uint64, bitcast=True)).to(tl.int64), mask=mask)
    tl.store(out + 3 * count + at, libdevice.popc(a.to(tl.int32)).to(tl.int64) + libdevice.clz(b.to(tl.int32)), mask=mask)
    tl.store(out + 4 * count + at, (a >> 7) ^ (b << 3), mask=mask)
    tl.store(out + 5 * count + at, tl.minimum(a, b) - tl.maximum(a, -b), mask=mask)


@triton.jit
def narrow_formats(wide, packed, scales, inp, count, BLOCK: tl.constexpr):
    # Per block: the largest element scales to int8; and through the two 8-bit float formats and back.
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    x = tl.load(inp + at, mask=mask, other=0.0)
    scale = tl.maximum(tl.max(tl.abs(x), axis=0) / 127.0, 1e-20)
    tl.store(scales + tl.program_id(0), scale)
    tl.store(packed + at, libdevice.rint(x / scale).to(tl.int8), mask=mask)
    tl.store(wide + at, x.to(tl.float8e5).to(tl.float32), mask=mask)
    tl.store(wide + count + at, x.to(tl.float16).to(tl.float32), mask=mask)
    tl.store(wide + 2 * count + at, x.to(tl.bfloat16).to(tl.float32), mask=mask)
    tl.store(wide + 3 * count + at, x.to(tl.int32).to(tl.float32), mask=mask)


@triton.jit
def transpose(out, inp, rows, columns, BLOCK: tl.constexpr):
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(inp + r[:, None] * columns + c[None, :], mask=(r[:, None] < rows) & (c[None, :] < columns))
    tl.store(out + c[:, None] * rows + r[None, :], tl.trans(x), mask=(c[:, None] < columns) & (r[None, :] < rows))


@triton.jit
def adamw(weight, master, m, v, grad, step, lr, beta1, beta2, eps, decay, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    t = tl.load(step).to(tl.float32)
    g = tl.load(grad + at, mask=mask).to(tl.float32)
    w = tl.load(master + at, mask=mask)
    m1 = beta1 * tl.load(m + at, mask=mask) + (1.0 - beta1) * g
    v1 = beta2 * tl.load(v + at, mask=mask) + (1.0 - beta2) * g * g
    m_hat = m1 / (1.0 - libdevice.pow(beta1, t))
    v_hat = v1 / (1.0 - libdevice.pow(beta2, t))
    w -= lr * (m_hat / (tl.sqrt(v_hat) + eps) + decay * w)
    tl.store(m + at, m1, mask=mask)
    tl.store(v + at, v1, mask=mask)
    tl.store(master + at, w, mask=mask)
    tl.store(weight + at, w.to(weight.dtype.element_ty), mask=mask)


@triton.jit
def dequantized_matmul(x, packed, scales, out, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    # Weights are 4-bit, two to a byte along k (low nibble first), offset by 8, one scale a column.
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    scale = tl.load(scales + cols, mask=cols < n, other=0.0)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        left = tl.load(x + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)
        byte = tl.load(packed + (inner[:, None] // 2) * n + cols[None, :], mask=(inner[:, None] < k) & (cols[None, :] < n), other=8)
        nibble = (byte >> ((inner[:, None] % 2) * 4).to(tl.uint8)) & 0xF
        right = (nibble.to(tl.float32) - 8.0).to(tl.float16)
        total = tl.dot(left, right, total)
    tl.store(out + rows[:, None] * n + cols[None, :], total * scale[None, :], mask=(rows[:, None] < m) & (cols[None, :] < n))


def _flat(name, function, pointers, scalars, block, plain=("count",), **options):
    return case(name, function, {**pointers, **scalars}, {"BLOCK": block}, plain=plain, **options)


CASES = [
    _flat("gelu", gelu, {"erf_out": "*fp32", "tanh_out": "*fp32", "grad": "*fp32", "inp": "*fp32"}, {"count": "i32"}, 256),
    _flat("swiglu", swiglu, {"out": "*bf16", "gate": "*bf16", "up": "*bf16"}, {"count": "i32"}, 512, plain=()),
    case("rope", rope, {"out": "*fp32", "inp": "*fp32", "heads": "i32", "base": "fp32"}, {"HALF": 32}, warps=1, plain=("heads",)),
    _flat("float_functions", float_functions, {"out": "*fp32", "inp": "*fp32"}, {"count": "i32"}, 128),
    _flat("integer_functions", integer_functions, {"out": "*i64", "left": "*i64", "right": "*i64"}, {"count": "i32"}, 128),
    _flat("narrow_formats", narrow_formats, {"wide": "*fp32", "packed": "*i8", "scales": "*fp32", "inp": "*fp32"},
          {"count": "i32"}, 256),
    case("transpose", transpose, {"out": "*fp32", "inp": "*fp32", "rows": "i32", "columns": "i32"}, {"BLOCK": 32},
         plain=("rows", "columns")),
    _flat("adamw", adamw, {"weight": "*bf16", "master": "*fp32", "m": "*fp32", "v": "*fp32", "grad": "*bf16", "step": "*i32"},
          {"lr": "fp32", "beta1": "fp32", "beta2": "fp32", "eps": "fp32", "decay": "fp32", "count": "i32"}, 256),
    case("dequantized_matmul", dequantized_matmul,
         {"x": "*fp16", "packed": "*u8", "scales": "*fp32", "out": "*fp32", "m": "i32", "n": "i32", "k": "i32"},
         {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}, stages=2, plain=("m",)),
]
