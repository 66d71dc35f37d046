#!/usr/bin/env python3
"""Makes the goldens beside this file: losses and gradients of two tiny models, by PyTorch on a CPU in float32.

    python make.py        # needs torch; the committed files name the version that made them

Weights and tokens are integer formulas that the Rust test computes too (tests/goldens.rs), so only results are stored.
"""
import json, math, pathlib
import torch
import torch.nn.functional as F

L, H, C, T, B, V, STEPS = 2, 2, 16, 8, 3, 11, 10
KV, FF = 1, 64  # llama; FF is 8C/3 rounded up to a multiple of 64
PEAK, WARMUP, CLIP = 1e-2, 3, 0.5
EPS = 1e-5


def weight(index, shape, norm):
    """Element i of parameter `index`: a multiple of 1/1001 in [-1, 1], scaled; around 1 for the weight of a norm."""
    count = math.prod(shape)
    numbers = [((i * 7919 + index * 104729) % 2003 - 1001) / 1001 for i in range(count)]
    numbers = [1 + 0.25 * x for x in numbers] if norm else [0.25 * x for x in numbers]
    return torch.tensor(numbers, dtype=torch.float64).float().reshape(shape)


def token(step, i):
    return (i * i * 31 + i * 17 + step * 101 + i // 5) % V


def batch(step):
    """Inputs and targets of a step; every seventh target counts for nothing."""
    row = T + 1
    x = torch.tensor([[token(step, b * row + t) for t in range(row)] for b in range(B)])
    inputs, targets = x[:, :-1].contiguous(), x[:, 1:].contiguous().view(-1)
    targets[torch.arange(B * T) % 7 == 6] = -100
    return inputs, targets


def table(kind):
    """Names and shapes in order of first use."""
    if kind == "gpt2":
        rows = [("transformer.wte.weight", (V, C)), ("transformer.wpe.weight", (T, C))]
        for i in range(L):
            p = f"transformer.h.{i}."
            for name, shape in [("ln_1", (C,)), ("attn.c_attn", (3 * C, C)), ("attn.c_proj", (C, C)),
                                ("ln_2", (C,)), ("mlp.c_fc", (4 * C, C)), ("mlp.c_proj", (C, 4 * C))]:
                rows += [(p + name + ".weight", shape), (p + name + ".bias", shape[:1])]
        return rows + [("transformer.ln_f.weight", (C,)), ("transformer.ln_f.bias", (C,))]
    d = C // H
    rows = [("model.embed_tokens.weight", (V, C))]
    for i in range(L):
        p = f"model.layers.{i}."
        rows += [(p + "input_layernorm.weight", (C,)), (p + "self_attn.qkv_proj.weight", ((H + 2 * KV) * d, C)),
                 (p + "self_attn.o_proj.weight", (C, C)), (p + "post_attention_layernorm.weight", (C,)),
                 (p + "mlp.gate_up_proj.weight", (2 * FF, C)), (p + "mlp.down_proj.weight", (C, FF))]
    return rows + [("model.norm.weight", (C,))]


def attend(q, k, v):
    k, v = (z.repeat_interleave(q.size(1) // z.size(1), dim=1) for z in (k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(B, T, C)


def heads(z, n):
    return z.view(B, T, n, C // H).transpose(1, 2)


def gpt2(w, inputs):
    norm = lambda x, name: F.layer_norm(x, (C,), w[name + ".weight"], w[name + ".bias"], EPS)
    linear = lambda x, name: F.linear(x, w[name + ".weight"], w[name + ".bias"])
    x = w["transformer.wte.weight"][inputs] + w["transformer.wpe.weight"]
    for i in range(L):
        p = f"transformer.h.{i}."
        q, k, v = linear(norm(x, p + "ln_1"), p + "attn.c_attn").split(C, dim=-1)
        x = x + linear(attend(heads(q, H), heads(k, H), heads(v, H)), p + "attn.c_proj")
        x = x + linear(F.gelu(linear(norm(x, p + "ln_2"), p + "mlp.c_fc"), approximate="tanh"), p + "mlp.c_proj")
    return F.linear(norm(x, "transformer.ln_f"), w["transformer.wte.weight"])


def llama(w, inputs):
    d = C // H
    angles = torch.arange(T).double()[:, None] * 10000.0 ** (-torch.arange(0, d, 2).double() / d)
    cos, sin = angles.cos().float(), angles.sin().float()

    def rotate(z):
        a, b = z.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    norm = lambda x, name: F.rms_norm(x, (C,), w[name + ".weight"], EPS)
    x = w["model.embed_tokens.weight"][inputs]
    for i in range(L):
        p = f"model.layers.{i}."
        qkv = F.linear(norm(x, p + "input_layernorm"), w[p + "self_attn.qkv_proj.weight"])
        q, k, v = qkv.split([H * d, KV * d, KV * d], dim=-1)
        y = attend(rotate(heads(q, H)), rotate(heads(k, KV)), heads(v, KV))
        x = x + F.linear(y, w[p + "self_attn.o_proj.weight"])
        gate, up = F.linear(norm(x, p + "post_attention_layernorm"), w[p + "mlp.gate_up_proj.weight"]).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, w[p + "mlp.down_proj.weight"])
    return F.linear(norm(x, "model.norm"), w["model.embed_tokens.weight"])


def rate(step):
    if step <= WARMUP:
        return PEAK * step / WARMUP
    gone = min((step - WARMUP - 1) / max(STEPS - WARMUP - 1, 1), 1.0)
    return 0.1 * PEAK + 0.9 * PEAK * 0.5 * (1 + math.cos(math.pi * gone))


def make(kind, forward):
    w = {}
    for index, (name, shape) in enumerate(table(kind)):
        norm = len(shape) == 1 and name.endswith("weight")
        w[name] = weight(index, shape, norm).requires_grad_()
    groups = [{"params": [p for p in w.values() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in w.values() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95), eps=1e-8)
    losses, norms, gradients = [], [], {}
    for step in range(1, STEPS + 1):
        inputs, targets = batch(step)
        loss = F.cross_entropy(forward(w, inputs).view(-1, V), targets)
        optimizer.zero_grad()
        loss.backward()
        if step == 1:
            gradients = {name: [float(f"{x:.9g}") for x in p.grad.flatten().tolist()] for name, p in w.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(w.values(), CLIP).item())
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        optimizer.step()
        losses.append(loss.item())
    made = {"torch": torch.__version__, "losses": losses, "norms": norms, "gradients": gradients}
    path = pathlib.Path(__file__).with_name(f"{kind}.json")
    text = json.dumps(made, separators=(",", ":")).replace("],\"", "],\n\"").replace("{\"", "{\n\"")
    path.write_text(text + "\n")
    print(path.name, path.stat().st_size, "bytes; losses", losses[0], "to", losses[-1])


torch.set_num_threads(1)
make("gpt2", gpt2)
make("llama", llama)
