# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with random weights and real head dims: the same logits as eager."""

import flashprime
import pytest
import torch
import transformers
from flashprime.integrations import transformers as integration

SMALL = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_cache": True,
}
R1 = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 32}
# What reads them in the installed release, and its own head dims.
MODELS = {
    "DeepseekV2": R1 | {"q_lora_rank": None, "moe_layer_freq": 1},
    "DeepseekV3": R1 | {"q_lora_rank": 48},
    "Mistral4": R1 | {"qk_nope_head_dim": 64, "q_lora_rank": 48},
    "Glm4MoeLite": R1 | {"qk_nope_head_dim": 192, "v_head_dim": 256, "q_lora_rank": 48},
    "LongcatFlash": R1 | {"q_lora_rank": 48, "num_layers": 1, "ffn_hidden_size": 64,
                          "expert_ffn_hidden_size": 32, "moe_topk": 2, "zero_expert_num": 1},
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def registered():
    integration.register()
    integration.register()  # as often as one likes
    with pytest.raises(flashprime.UnsupportedError, match="name: got 'flashprime', wanted one"):
        integration.register("flashprime")


@pytest.fixture(scope="module", params=MODELS)
def models(request):
    """The same weights twice: eager and with FlashPrime."""
    kind = getattr(transformers, f"{request.param}Config")
    torch.manual_seed(0)
    eager = getattr(transformers, f"{request.param}ForCausalLM")(
        kind(**(SMALL | MODELS[request.param]), attn_implementation="eager")
    ).eval()
    ours = type(eager)(
        kind(**(SMALL | MODELS[request.param]), attn_implementation=integration.NAME)
    ).eval()
    ours.load_state_dict(eager.state_dict())
    assert ours.config._attn_implementation == integration.NAME
    return eager, ours


def tokens(batch, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 96, (batch, length), generator=generator)


def check_logits(ours, eager, rows=None):
    rows = torch.ones(eager.shape[:2], dtype=torch.bool) if rows is None else rows
    torch.testing.assert_close(ours[rows], eager[rows], rtol=2e-5, atol=2e-5)


@torch.no_grad()
@pytest.mark.parametrize("batch", [1, 3])
def test_gives_the_logits_of_eager(models, batch):
    eager, ours = models
    ids = tokens(batch, 23)
    check_logits(ours(ids).logits, eager(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_leaves_padding_out(models, side):
    eager, ours = models
    ids, mask = tokens(3, 17), torch.ones(3, 17, dtype=torch.long)
    for row, padding in enumerate([0, 5, 11]):
        columns = slice(0, padding) if side == "left" else slice(17 - padding, 17)
        ids[row, columns], mask[row, columns] = 0, 0
    options = {"attention_mask": mask}
    check_logits(ours(ids, **options).logits, eager(ids, **options).logits, mask.bool())


@torch.no_grad()
@pytest.mark.parametrize("padding", [0, 4])
def test_prefills_in_chunks_with_a_cache_and_decodes(models, padding):
    eager, ours = models
    ids, mask = tokens(2, 30), torch.ones(2, 30, dtype=torch.long)
    ids[0, :padding], mask[0, :padding] = 0, 0
    results = []
    for model in (eager, ours):
        cache, logits, begin = None, [], 0
        for length in (11, 7, 10, 1, 1):
            end = begin + length
            step = model(
                ids[:, begin:end],
                attention_mask=mask[:, :end],
                cache=cache,
                use_cache=True,
            )
            cache, begin = step.cache, end
            logits.append(step.logits)
        results.append(torch.cat(logits, 1))
    check_logits(results[1], results[0], mask.bool())


@torch.no_grad()
@pytest.mark.parametrize("cache", [None, "static"])
def test_generates_the_same_tokens(models, cache):
    eager, ours = models
    ids, mask = tokens(2, 12), torch.ones(2, 12, dtype=torch.long)
    ids[1, :5], mask[1, :5] = 0, 0
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": mask}
    if cache:
        options |= {"cache_implementation": cache, "disable_compile": True}
    wanted = eager.generate(ids, **options)
    assert torch.equal(ours.generate(ids, **options), wanted)
    assert wanted.shape[1] > 12


@torch.no_grad()
def test_keeps_packed_sequences_apart(models):
    eager, ours = models
    ids = tokens(1, 20)
    positions = torch.cat([torch.arange(7), torch.arange(13)])[None]
    packed = ours(ids, position_ids=positions, use_cache=False).logits
    apart = [eager(part, use_cache=False).logits for part in (ids[:, :7], ids[:, 7:])]
    check_logits(packed, torch.cat(apart, 1))


def test_says_what_it_does_not_compute(models):
    _, ours = models
    ids = tokens(1, 5)
    with pytest.raises(flashprime.UnsupportedError, match="wanted torch.no_grad"):
        ours(ids)
    with torch.no_grad():
        with pytest.raises(flashprime.UnsupportedError, match="attention_mask: got rank 4"):
            ours(ids, attention_mask=torch.zeros(1, 1, 5, 5))


def test_refuses_what_it_cannot_know_of_a_mask():
    from transformers.masking_utils import and_masks, causal_mask_function

    def own(batch, head, q, kv):
        return q == kv

    with pytest.raises(flashprime.UnsupportedError, match="mask: got one made of .*own"):
        integration.attention_mask(1, 4, 4, mask_function=and_masks(causal_mask_function, own))
    assert integration.attention_mask(1, 4, 4, mask_function=causal_mask_function) is None


@torch.no_grad()
@pytest.mark.parametrize(("argument", "value"), [("dropout", 0.1), ("softcap", 30.0),
                                                 ("s_aux", torch.ones(2)),
                                                 ("output_attentions", True)])  # fmt: skip
def test_refuses_arguments_by_name(argument, value):
    q, k, v = torch.randn(1, 2, 4, 24), torch.randn(1, 2, 4, 24), torch.randn(1, 2, 4, 8)
    with pytest.raises(flashprime.UnsupportedError, match=f"^{argument}: got"):
        integration.attention_forward(torch.nn.Module(), q, k, v, None, **{argument: value})
    with pytest.raises(flashprime.UnsupportedError, match="key: got 1 heads with 2"):
        integration.attention_forward(torch.nn.Module(), q, k[:, :1], v[:, :1], None)


@torch.no_grad()
def test_a_sliding_window_is_that_of_transformers():
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask, sliding_window_causal_mask_function

    q, k, v = torch.randn(2, 2, 9, 24), torch.randn(2, 2, 9, 24), torch.randn(2, 2, 9, 8)
    function = sliding_window_causal_mask_function(4)
    mask = sdpa_mask(batch_size=2, q_length=9, kv_length=9, mask_function=function,
                     allow_is_causal_skip=False)  # fmt: skip
    module = torch.nn.Module()
    module.is_causal = True
    wanted, _ = sdpa_attention_forward(module, q, k, v, mask)
    ours = integration.attention_mask(2, 9, 9, mask_function=function)
    out, _ = integration.attention_forward(module, q, k, v, ours, sliding_window=4)
    torch.testing.assert_close(out, wanted, rtol=0, atol=2e-6)
