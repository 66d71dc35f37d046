"""Attention by tiles with online softmax, forward and backward; causal is by the flag. Heads lie one after another: (head, token, d)."""
import triton
import triton.language as tl

from cases import case


@triton.jit
def attention(q, k, v, out, lse, scale, tokens,
              D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, CAUSAL: tl.constexpr):
    head = tl.program_id(1).to(tl.int64) * tokens
    rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, D)
    query = tl.load(q + (head + rows[:, None]) * D + d[None, :], mask=rows[:, None] < tokens, other=0.0)
    # Powers of two are what the hardware has: the scale carries log2(e).
    to_log2 = scale * 1.4426950408889634
    largest = tl.full([BLOCK_Q], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    result = tl.zeros([BLOCK_Q, D], tl.float32)
    last = tokens
    if CAUSAL:
        last = tl.minimum(tokens, (tl.program_id(0) + 1) * BLOCK_Q)
    for start in range(0, last, BLOCK_K):
        keys = start + tl.arange(0, BLOCK_K)
        key = tl.load(k + (head + keys[None, :]) * D + d[:, None], mask=keys[None, :] < tokens, other=0.0)
        score = tl.dot(query, key) * to_log2
        seen = keys[None, :] < tokens
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        score = tl.where(seen, score, -float("inf"))
        higher = tl.maximum(largest, tl.max(score, axis=1))
        p = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(largest - higher)
        value = tl.load(v + (head + keys[:, None]) * D + d[None, :], mask=keys[:, None] < tokens, other=0.0)
        total = total * shrink + tl.sum(p, axis=1)
        result = tl.dot(p.to(value.dtype), value, result * shrink[:, None])
        largest = higher
    result = result / total[:, None]
    tl.store(out + (head + rows[:, None]) * D + d[None, :], result.to(out.dtype.element_ty), mask=rows[:, None] < tokens)
    tl.store(lse + head + rows, largest + tl.log2(total), mask=rows < tokens)


@triton.jit
def attention_delta(out, dout, delta, tokens, D: tl.constexpr, BLOCK: tl.constexpr):
    head = tl.program_id(1).to(tl.int64) * tokens
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = (head + rows[:, None]) * D + tl.arange(0, D)[None, :]
    o = tl.load(out + at, mask=rows[:, None] < tokens, other=0.0).to(tl.float32)
    g = tl.load(dout + at, mask=rows[:, None] < tokens, other=0.0).to(tl.float32)
    tl.store(delta + head + rows, tl.sum(o * g, axis=1), mask=rows < tokens)


@triton.jit
def attention_backward_keys(q, k, v, dout, dk, dv, lse, delta, scale, tokens,
                            D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, CAUSAL: tl.constexpr):
    # One program holds a tile of keys and walks the queries; scores are computed transposed, keys down.
    head = tl.program_id(1).to(tl.int64) * tokens
    keys = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    d = tl.arange(0, D)
    at = (head + keys[:, None]) * D + d[None, :]
    key = tl.load(k + at, mask=keys[:, None] < tokens, other=0.0)
    value = tl.load(v + at, mask=keys[:, None] < tokens, other=0.0)
    to_log2 = scale * 1.4426950408889634
    sum_k = tl.zeros([BLOCK_K, D], tl.float32)
    sum_v = tl.zeros([BLOCK_K, D], tl.float32)
    first = 0
    if CAUSAL:
        first = (tl.program_id(0) * BLOCK_K) // BLOCK_Q * BLOCK_Q
    for start in range(first, tokens, BLOCK_Q):
        rows = start + tl.arange(0, BLOCK_Q)
        seen = (rows[None, :] < tokens) & (keys[:, None] < tokens)
        if CAUSAL:
            seen = seen & (keys[:, None] <= rows[None, :])
        query = tl.load(q + (head + rows[None, :]) * D + d[:, None], mask=rows[None, :] < tokens, other=0.0)
        grad = tl.load(dout + (head + rows[:, None]) * D + d[None, :], mask=rows[:, None] < tokens, other=0.0)
        level = tl.load(lse + head + rows, mask=rows < tokens, other=0.0)
        inner = tl.load(delta + head + rows, mask=rows < tokens, other=0.0)
        p = tl.where(seen, tl.exp2(tl.dot(key, query) * to_log2 - level[None, :]), 0.0)
        sum_v = tl.dot(p.to(grad.dtype), grad, sum_v)
        dp = tl.dot(value, tl.trans(grad))
        ds = p * (dp - inner[None, :])
        sum_k = tl.dot(ds.to(query.dtype), tl.trans(query), sum_k)
    tl.store(dv + at, sum_v.to(dv.dtype.element_ty), mask=keys[:, None] < tokens)
    tl.store(dk + at, (sum_k * scale).to(dk.dtype.element_ty), mask=keys[:, None] < tokens)


@triton.jit
def attention_backward_queries(q, k, v, dout, dq, lse, delta, scale, tokens,
                               D: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, CAUSAL: tl.constexpr):
    head = tl.program_id(1).to(tl.int64) * tokens
    rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, D)
    at = (head + rows[:, None]) * D + d[None, :]
    query = tl.load(q + at, mask=rows[:, None] < tokens, other=0.0)
    grad = tl.load(dout + at, mask=rows[:, None] < tokens, other=0.0)
    level = tl.load(lse + head + rows, mask=rows < tokens, other=0.0)
    inner = tl.load(delta + head + rows, mask=rows < tokens, other=0.0)
    to_log2 = scale * 1.4426950408889634
    sum_q = tl.zeros([BLOCK_Q, D], tl.float32)
    last = tokens
    if CAUSAL:
        last = tl.minimum(tokens, (tl.program_id(0) + 1) * BLOCK_Q)
    for start in range(0, last, BLOCK_K):
        keys = start + tl.arange(0, BLOCK_K)
        seen = (keys[None, :] < tokens) & (rows[:, None] < tokens)
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        key = tl.load(k + (head + keys[None, :]) * D + d[:, None], mask=keys[None, :] < tokens, other=0.0)
        value = tl.load(v + (head + keys[None, :]) * D + d[:, None], mask=keys[None, :] < tokens, other=0.0)
        p = tl.where(seen, tl.exp2(tl.dot(query, key) * to_log2 - level[:, None]), 0.0)
        ds = p * (tl.dot(grad, value) - inner[:, None])
        sum_q = tl.dot(ds.to(key.dtype), tl.trans(key), sum_q)
    tl.store(dq + at, (sum_q * scale).to(dq.dtype.element_ty), mask=rows[:, None] < tokens)


def _all(kind, letter, d, causal, warps=4, stages=2):
    pointers = {name: f"*{kind}" for name in ("q", "k", "v", "out", "dout", "dq", "dk", "dv")}
    pointers |= {"lse": "*fp32", "delta": "*fp32"}
    tail = f"{letter}_{'causal' if causal else 'full'}"
    tiles = {"D": d, "BLOCK_Q": 64, "BLOCK_K": 32, "CAUSAL": causal}

    def made(name, function, names, constants):
        types = {name: pointers[name] for name in names} | {"scale": "fp32", "tokens": "i32"}
        if "scale" not in function.arg_names:
            del types["scale"]
        return case(f"{name}_{tail}", function, types, constants, warps=warps, stages=stages, plain=("tokens",))

    shared = ["q", "k", "v"]
    return [
        made("attention", attention, [*shared, "out", "lse"], tiles),
        made("attention_delta", attention_delta, ["out", "dout", "delta"], {"D": d, "BLOCK": 64}),
        made("attention_backward_keys", attention_backward_keys, [*shared, "dout", "dk", "dv", "lse", "delta"], tiles),
        made("attention_backward_queries", attention_backward_queries, [*shared, "dout", "dq", "lse", "delta"], tiles),
    ]


CASES = [*_all("bf16", "bf16", 64, False), *_all("bf16", "bf16", 64, True), *_all("fp16", "f16", 32, True, warps=8, stages=3)]
