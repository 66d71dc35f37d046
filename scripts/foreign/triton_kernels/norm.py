"""Layer norm forward and backward, RMS norm. The backward's weight gradients are summed under locks, then in a second kernel."""
import triton
import triton.language as tl

from cases import case


@triton.jit
def layer_norm(x, y, w, b, mean, rstd, stride, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * stride
    y += row * stride
    part = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        part += tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32)
    mu = tl.sum(part, axis=0) / columns
    part = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32)
        centred = tl.where(at < columns, v - mu, 0.0)
        part += centred * centred
    r = 1.0 / tl.sqrt(tl.sum(part, axis=0) / columns + eps)
    tl.store(mean + row, mu)
    tl.store(rstd + row, r)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < columns
        scale = tl.load(w + at, mask=mask).to(tl.float32)
        shift = tl.load(b + at, mask=mask).to(tl.float32)
        v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(y + at, ((v - mu) * r * scale + shift).to(y.dtype.element_ty), mask=mask)


@triton.jit
def layer_norm_backward(dx, dy, dw, db, x, w, mean, rstd, locks, stride, columns,
                        GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    # dw and db: GROUPS rows of partial sums. locks: GROUPS locks, then GROUPS flags "this row of partial sums was written".
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    v = tl.load(x + row * stride + at, mask=mask, other=0.0).to(tl.float32)
    g = tl.load(dy + row * stride + at, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(w + at, mask=mask, other=0.0).to(tl.float32)
    r = tl.load(rstd + row)
    normal = tl.where(mask, (v - tl.load(mean + row)) * r, 0.0)
    wg = tl.where(mask, scale * g, 0.0)
    along = tl.sum(normal * wg, axis=0) / columns
    level = tl.sum(wg, axis=0) / columns
    tl.store(dx + row * stride + at, ((wg - (normal * along + level)) * r).to(dx.dtype.element_ty), mask=mask)

    group = row % GROUPS
    lock = locks + group
    written = lock + GROUPS
    part_w = g * normal
    part_b = g
    into_w = dw + group * columns + at
    into_b = db + group * columns + at
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(written) == 0:
        tl.atomic_xchg(written, 1)
    else:
        part_w += tl.load(into_w, mask=mask)
        part_b += tl.load(into_b, mask=mask)
    tl.store(into_w, part_w, mask=mask)
    tl.store(into_b, part_b, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def layer_norm_weights(dw, db, final_dw, final_db, rows, columns, BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    sum_w = tl.zeros((BLOCK_ROWS, BLOCK), dtype=tl.float32)
    sum_b = tl.zeros((BLOCK_ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, rows, BLOCK_ROWS):
        row = start + tl.arange(0, BLOCK_ROWS)
        mask = (row[:, None] < rows) & (at[None, :] < columns)
        sum_w += tl.load(dw + row[:, None] * columns + at[None, :], mask=mask, other=0.0)
        sum_b += tl.load(db + row[:, None] * columns + at[None, :], mask=mask, other=0.0)
    tl.store(final_dw + at, tl.sum(sum_w, axis=0).to(final_dw.dtype.element_ty), mask=at < columns)
    tl.store(final_db + at, tl.sum(sum_b, axis=0).to(final_db.dtype.element_ty), mask=at < columns)


@triton.jit
def rms_norm(x, residual, y, w, columns, eps, BLOCK: tl.constexpr):
    # The residual is added first and kept, as in a transformer's block.
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    mask = at < columns
    v = tl.load(x + row + at, mask=mask, other=0.0).to(tl.float32)
    v += tl.load(residual + row + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(residual + row + at, v.to(residual.dtype.element_ty), mask=mask)
    r = tl.rsqrt(tl.sum(v * v, axis=0) / columns + eps)
    scale = tl.load(w + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + row + at, (v * r * scale).to(y.dtype.element_ty), mask=mask)


def _forward(name, kind, block, warps, plain):
    rows = {"x": f"*{kind}", "y": f"*{kind}", "w": f"*{kind}", "b": f"*{kind}", "mean": "*fp32", "rstd": "*fp32"}
    return case(name, layer_norm, {**rows, "stride": "i32", "columns": "i32", "eps": "fp32"}, {"BLOCK": block},
                warps=warps, plain=plain)


CASES = [
    _forward("layer_norm_f32", "fp32", 256, 4, ("columns", "stride")),
    _forward("layer_norm_f16", "fp16", 512, 8, ()),
    case("layer_norm_backward", layer_norm_backward,
         {"dx": "*fp16", "dy": "*fp16", "dw": "*fp32", "db": "*fp32", "x": "*fp16", "w": "*fp16", "mean": "*fp32",
          "rstd": "*fp32", "locks": "*i32", "stride": "i32", "columns": "i32"},
         {"GROUPS": 4, "BLOCK": 256}, plain=("columns", "stride")),
    case("layer_norm_weights", layer_norm_weights,
         {"dw": "*fp32", "db": "*fp32", "final_dw": "*fp16", "final_db": "*fp16", "rows": "i32", "columns": "i32"},
         {"BLOCK_ROWS": 32, "BLOCK": 64}, plain=("rows", "columns")),
    case("rms_norm", rms_norm,
         {"x": "*bf16", "residual": "*bf16", "y": "*bf16", "w": "*bf16", "columns": "i32", "eps": "fp32"},
         {"BLOCK": 512}),
]
