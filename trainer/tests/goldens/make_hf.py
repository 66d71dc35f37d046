#!/usr/bin/env python3
"""Makes hf-llama.* and hf-gpt2.* beside this file: tiny models as Hugging Face's transformers writes them, and what they say.

    python make_hf.py        # needs torch, transformers, safetensors
"""
import json, pathlib
import torch, transformers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from safetensors.torch import save_file

TOKENS = [3, 18, 0, 7, 7, 11, 2, 5]


def make(name, model, drop=()):
    torch.manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.25) if p.dim() > 1 else p.normal_(1.0, 0.25)
    here = pathlib.Path(__file__).parent
    state = {k: v.contiguous().clone() for k, v in model.state_dict().items() if k not in drop}
    save_file(state, here / f"{name}.safetensors", metadata={"format": "pt"})
    model.eval()
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0]
    made = {"torch": torch.__version__, "transformers": transformers.__version__, "tokens": TOKENS,
            "logits": [[float(f"{x:.9g}") for x in row] for row in logits.tolist()]}
    (here / f"{name}.json").write_text(json.dumps(made, separators=(",", ":")).replace("],[", "],\n[") + "\n")


make("hf-llama", LlamaForCausalLM(LlamaConfig(
    vocab_size=19, hidden_size=16, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=8, rms_norm_eps=1e-5, tie_word_embeddings=False)))
make("hf-gpt2", GPT2LMHeadModel(GPT2Config(vocab_size=19, n_positions=8, n_embd=16, n_layer=2, n_head=4)))
