"""PyTorch: scaled_dot_product_attention, and for a window also flex_attention, compiled;
nn.MultiheadAttention in inference mode, its fast path and its ordinary one; and the layer written
out with F.linear."""

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import linear, scaled_dot_product_attention

import scenes
from contender import Contender, nothing

NAME = "torch"


def start(threads):
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)
    torch.inference_mode().__enter__()
    return torch.__version__


def contender(way, function, prepare=nothing):
    return Contender(NAME, way, function, lambda: function().numpy(), prepare)


def ways(scene, operands):
    """Pairs of the name of a way and a function that makes it ready."""
    yield from (layer_ways if scene.is_layer else attention_ways)(scene, operands)


# ---- attention -----------------------------------------------------------------------------------

def attention_ways(scene, operands):
    q, k, v = map(torch.from_numpy, (operands.query, operands.key, operands.value))

    def sdpa(way, k=k, v=v, **options):
        def function():
            return scaled_dot_product_attention(q, k, v, **options)
        return way, lambda: contender(way, function)

    if scene.bias:
        yield sdpa("sdpa", attn_mask=torch.from_numpy(operands.bias))
    elif scene.lengths or scene.window:
        mask = operands.mask(scene)
        yield sdpa("sdpa, boolean mask", attn_mask=torch.from_numpy(mask))
        yield sdpa("sdpa, additive mask", attn_mask=torch.from_numpy(scenes.additive(mask)))
        if scene.window:
            yield "flex_attention", lambda: flex(scene, q, k, v)
    elif scene.G < scene.H:
        yield sdpa("sdpa, grouped", is_causal=scene.causal, enable_gqa=True)
        # Keys and values of a group are the same memory for all of its heads.
        spread = (scene.B, scene.G, scene.H // scene.G, scene.S, scene.D)
        shared = [t.unsqueeze(2).expand(spread).reshape(scene.B, scene.H, scene.S, scene.D)
                  for t in (k, v)]
        yield sdpa("sdpa, keys repeated beforehand", *shared, is_causal=scene.causal)
    else:
        yield sdpa("sdpa", is_causal=scene.causal)


def flex(scene, q, k, v):
    """It leaves out blocks that nobody sees; sdpa, which knows no window, computes everything."""
    def seen(b, h, i, j):
        return (j <= i) & (j > i - scene.window)

    mask = create_block_mask(seen, None, None, scene.L, scene.S, device="cpu")
    compiled = torch.compile(flex_attention)
    return contender("flex_attention", lambda: compiled(q, k, v, block_mask=mask))


# ---- layers --------------------------------------------------------------------------------------

def layer_ways(scene, operands):
    x = torch.from_numpy(operands.x)
    w_qkv = torch.cat([torch.from_numpy(w) for w in operands.weights[:3]])
    b_qkv = torch.cat([torch.from_numpy(b) for b in operands.biases[:3]])
    w_o, b_o = torch.from_numpy(operands.weights[3]), torch.from_numpy(operands.biases[3])
    heads = (scene.B, scene.L, 3, scene.H, scene.D)

    def written_out():
        q, k, v = linear(x, w_qkv, b_qkv).view(heads).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=scene.causal)
        return linear(mixed.transpose(1, 2).reshape(x.shape), w_o, b_o)

    module = torch.nn.MultiheadAttention(scene.E, scene.H, batch_first=True).eval()
    for name, weight in (("in_proj_weight", w_qkv), ("in_proj_bias", b_qkv)):
        setattr(module, name, torch.nn.Parameter(weight, requires_grad=False))
    module.out_proj.weight = torch.nn.Parameter(w_o, requires_grad=False)
    module.out_proj.bias = torch.nn.Parameter(b_o, requires_grad=False)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(scene.L) if scene.causal else None

    def attend():
        return module(x, x, x, need_weights=False, attn_mask=mask, is_causal=scene.causal)[0]

    for way, fast in (("MultiheadAttention, fast path", True), ("MultiheadAttention", False)):
        yield way, lambda way=way, fast=fast: contender(
            way, attend, lambda: torch.backends.mha.set_fastpath_enabled(fast))
    yield "linear, sdpa, linear", lambda: contender("linear, sdpa, linear", written_out)
