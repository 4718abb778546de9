# SPDX-License-Identifier: Apache-2.0
"""A model of transformers with FlashPrime as its attention; random weights, so that nothing is
downloaded."""

import flashprime.integrations.transformers
import torch
import transformers

flashprime.integrations.transformers.register()
config = transformers.DeepseekV3Config(
    vocab_size=128, hidden_size=64, intermediate_size=64, moe_intermediate_size=32,
    num_hidden_layers=2, first_k_dense_replace=2, num_attention_heads=4, num_key_value_heads=4,
    kv_lora_rank=32, q_lora_rank=48, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
    attn_implementation="prime_mla",
)  # fmt: skip
model = transformers.DeepseekV3ForCausalLM(config).eval()
prompt = torch.randint(3, 128, (2, 20))
tokens = model.generate(
    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=5, do_sample=False,
    eos_token_id=None, pad_token_id=0,
)  # fmt: skip
assert tokens.shape == (2, 25)
print("generated", tokens[:, 20:].tolist())
