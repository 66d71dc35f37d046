#!/usr/bin/env python3
"""Makes hf-*.* beside this file: tiny models as Hugging Face's transformers writes them, and what they say.

    python make_hf.py [NAME..]        # needs torch, transformers, safetensors
"""
import json, pathlib, shutil, sys, tempfile
import torch, transformers
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM
from safetensors.torch import save_file

TOKENS = [3, 18, 0, 7, 7, 11, 2, 5]


def make(name, model, drop=(), experts=False):
    if sys.argv[1:] and name not in sys.argv[1:]:
        return
    torch.manual_seed(7)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.25) if p.dim() > 1 else p.normal_(1.0, 0.25)
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                buffer.normal_(0, 0.25)
    here = pathlib.Path(__file__).parent
    state = {k: v.contiguous().clone() for k, v in model.state_dict().items() if k not in drop}
    if experts:  # in memory they are stacks; in the file each is a layer of its own
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            shutil.copy(pathlib.Path(folder) / "model.safetensors", here / f"{name}.safetensors")
    else:
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
make("hf-mixtral", MixtralForCausalLM(MixtralConfig(
    vocab_size=19, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=8, rms_norm_eps=1e-5, rope_theta=10000.0, num_local_experts=4, num_experts_per_tok=2,
    tie_word_embeddings=False)), experts=True)
# Sigmoid scores, a shared expert, biases for the choice: what DeepSeek-V3 has, with the attention of Llama.
make("hf-glm4-moe", Glm4MoeForCausalLM(Glm4MoeConfig(
    vocab_size=19, hidden_size=16, moe_intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=4, max_position_embeddings=8, rms_norm_eps=1e-5, n_routed_experts=5,
    num_experts_per_tok=2, n_shared_experts=2, n_group=1, topk_group=1, first_k_dense_replace=0, partial_rotary_factor=1.0,
    use_qk_norm=False, attention_bias=False, norm_topk_prob=True, routed_scaling_factor=1.0, tie_word_embeddings=False)),
    experts=True)
