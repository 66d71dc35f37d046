"""Matrix products: pipelined tiles, split along k with atomic additions, and split along k under a lock."""
import triton
import triton.language as tl

from cases import case


@triton.jit
def matmul(a, b, c, m, n, k, stride_am, stride_bk, stride_cm,
           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
           PRECISION: tl.constexpr):
    # Programs walk the tiles of c in bands of GROUP rows, so that neighbours share tiles of b.
    program = tl.program_id(0)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    band = program // (GROUP * tiles_n)
    height = min(tiles_m - band * GROUP, GROUP)
    within = program % (GROUP * tiles_n)
    rows = (band * GROUP + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = (within // height) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    a_tile = a + rows[:, None] * stride_am + inner[None, :]
    b_tile = b + inner[:, None] * stride_bk + cols[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        left = tl.load(a_tile, mask=(rows[:, None] < m) & (inner[None, :] < k - start), other=0.0)
        right = tl.load(b_tile, mask=(inner[:, None] < k - start) & (cols[None, :] < n), other=0.0)
        total = tl.dot(left, right, total, input_precision=PRECISION)
        a_tile += BLOCK_K
        b_tile += BLOCK_K * stride_bk
    out = c + rows[:, None] * stride_cm + cols[None, :]
    tl.store(out, total.to(c.dtype.element_ty), mask=(rows[:, None] < m) & (cols[None, :] < n))


@triton.jit
def matmul_atomic(a, b, c, m, n, k, BLOCK: tl.constexpr, SPLITS: tl.constexpr):
    # c starts as zero; each split of k adds its share.
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(tl.program_id(2) * BLOCK, k, BLOCK * SPLITS):
        inner = start + tl.arange(0, BLOCK)
        left = tl.load(a + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(b + inner[:, None] * n + cols[None, :], mask=(inner[:, None] < k) & (cols[None, :] < n), other=0.0)
        total = tl.dot(left, right, total)
    tl.atomic_add(c + rows[:, None] * n + cols[None, :], total, mask=(rows[:, None] < m) & (cols[None, :] < n),
                  sem="relaxed")


@triton.jit
def matmul_turns(a, b, c, turns, m, n, k, BLOCK: tl.constexpr, SPLITS: tl.constexpr):
    # The splits of a tile add in their own order: each waits on the tile's word until it is its turn.
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    split = tl.program_id(2)
    turn = turns + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(split * BLOCK, k, BLOCK * SPLITS):
        inner = start + tl.arange(0, BLOCK)
        left = tl.load(a + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(b + inner[:, None] * n + cols[None, :], mask=(inner[:, None] < k) & (cols[None, :] < n), other=0.0)
        total = tl.dot(left, right, total)
    out = c + rows[:, None] * n + cols[None, :]
    mask = (rows[:, None] < m) & (cols[None, :] < n)
    while tl.atomic_cas(turn, split, split, sem="acquire") != split:
        pass
    if split != 0:
        total += tl.load(out, mask=mask, other=0.0)
    tl.store(out, total, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(turn, split + 1, sem="release")


def _matmul(name, kind, out, tiles, precision="tf32", warps=4, stages=3, plain=("m",)):
    sizes = {"m": "i32", "n": "i32", "k": "i32", "stride_am": "i32", "stride_bk": "i32", "stride_cm": "i32"}
    block_m, block_n, block_k = tiles
    return case(name, matmul, {"a": f"*{kind}", "b": f"*{kind}", "c": f"*{out}", **sizes},
                {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP": 4, "PRECISION": precision},
                warps=warps, stages=stages, plain=plain)


def _split(name, function, kind, extra):
    return case(name, function, {"a": f"*{kind}", "b": f"*{kind}", "c": "*fp32", **extra, "m": "i32", "n": "i32", "k": "i32"},
                {"BLOCK": 32, "SPLITS": 4}, stages=2)


CASES = [
    _matmul("matmul_bf16", "bf16", "bf16", (64, 64, 32)),
    _matmul("matmul_f16", "fp16", "fp16", (64, 64, 32)),
    _matmul("matmul_tf32", "fp32", "fp32", (64, 64, 32)),
    _matmul("matmul_tf32x3", "fp32", "fp32", (64, 64, 16), precision="tf32x3"),
    _matmul("matmul_ieee", "fp32", "fp32", (32, 32, 16), precision="ieee", stages=2),
    _matmul("matmul_f16_odd", "fp16", "fp32", (32, 64, 32), plain=("m", "n", "k", "stride_am", "stride_bk", "stride_cm")),
    _matmul("matmul_bf16_large", "bf16", "fp32", (128, 128, 64), warps=8, stages=4),
    _matmul("matmul_f16_one_warp", "fp16", "fp32", (16, 32, 16), warps=1, stages=5),
    _split("matmul_atomic", matmul_atomic, "bf16", {}),
    _split("matmul_turns", matmul_turns, "fp16", {"turns": "*i32"}),
]
