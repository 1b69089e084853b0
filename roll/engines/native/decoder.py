"""A decoder-only transformer as plain functions over flat tokens, shared by the native trainer and generator.

Tokens of all sequences are stored end to end in one [tokens, hidden] row; only attention, which is passed in, sees
where sequences begin. Trainer and generator therefore run the same arithmetic and differ only in where keys and values
are stored. Projections that read the same input are fused, and all matrices are [in, out], which products with few
rows read several times faster. Hugging Face names and shapes appear at the boundary only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its customary name
from torch import Tensor, nn
from transformers import PretrainedConfig

from roll.config.decoder import decoder_fault, longest_sequence
from roll.config.lora import Lora
from roll.engines.native.fused import apply_rotary, rms_norm, silu_gate
from roll.errors import ConfigError
from roll.weights.digest import Digest
from roll.weights.huggingface import classifier_config

Attend = Callable[..., Tensor]
"""Layer, queries [tokens, heads, dim], keys and values [tokens, kv_heads, dim] -> [tokens, heads * dim].

Models of `transformers` also pass `AttentionOptions`.
"""


MODULE_OF = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "self_attn") | dict.fromkeys(
    ("gate_proj", "up_proj", "down_proj"), "mlp"
)
"""The module of each projection, by their Hugging Face names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """Sizes of the keys and values of one token."""

    layers: int
    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The sizes and options of a decoder."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    max_seq_len: int
    eps: float
    tied: bool
    qkv_bias: bool
    out_bias: bool
    qk_norm: bool
    init_std: float


def geometry(config: PretrainedConfig) -> Geometry:
    """The geometry of a Hugging Face config; unsupported architectures are refused."""
    hf: Any = config
    values = config.to_dict()
    if fault := decoder_fault(values):
        raise ConfigError(f"model: {fault}")
    kind = hf.model_type
    bias = bool(getattr(hf, "attention_bias", False))
    return Geometry(
        vocab=hf.vocab_size,
        hidden=hf.hidden_size,
        layers=hf.num_hidden_layers,
        heads=hf.num_attention_heads,
        kv_heads=hf.num_key_value_heads,
        head_dim=getattr(hf, "head_dim", None) or hf.hidden_size // hf.num_attention_heads,
        mlp=hf.intermediate_size,
        max_seq_len=int(longest_sequence(values)),
        eps=hf.rms_norm_eps,
        tied=bool(hf.tie_word_embeddings),
        qkv_bias=bias or kind == "qwen2",
        out_bias=bias and kind != "qwen2",
        qk_norm=kind == "qwen3",
        init_std=hf.initializer_range,
    )


class Layer(nn.Module):
    """One block: attention, then a gated feed-forward network, each with a residual connection."""

    norm_of_head: Tensor

    def __init__(self, shape: Geometry) -> None:
        super().__init__()
        self.shape = shape
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.norm_in = nn.Parameter(torch.ones(shape.hidden))
        self.qkv = nn.Parameter(torch.empty(shape.hidden, q + 2 * kv))
        self.qkv_bias = nn.Parameter(torch.zeros(q + 2 * kv)) if shape.qkv_bias else None
        self.qk_norm = nn.Parameter(torch.ones(2, shape.head_dim)) if shape.qk_norm else None
        norm_of_head = torch.tensor([0] * shape.heads + [1] * shape.kv_heads)
        self.register_buffer("norm_of_head", norm_of_head, persistent=False)
        self.out = nn.Parameter(torch.empty(q, shape.hidden))
        self.out_bias = nn.Parameter(torch.zeros(shape.hidden)) if shape.out_bias else None
        self.norm_mid = nn.Parameter(torch.ones(shape.hidden))
        self.gate_up = nn.Parameter(torch.empty(shape.hidden, 2 * shape.mlp))
        self.down = nn.Parameter(torch.empty(shape.mlp, shape.hidden))
        self.adapters: Any = None
        """Trained adapters by the name of their matrix, set by `roll.engines.native.lora`; None without adapters."""
        self.adapted = True
        """Whether adapters are enabled."""

    def mix(
        self, x: Tensor, rotate: Callable[[Tensor], Tensor], attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """`x` plus the output of attention."""
        shape = self.shape
        both = shape.heads + shape.kv_heads
        mixed = self._project("qkv", rms_norm(x, self.norm_in, shape.eps), self.qkv, self.qkv_bias)
        heads = mixed.view(len(x), both + shape.kv_heads, shape.head_dim)
        qk, v = heads.split_with_sizes((both, shape.kv_heads), 1)
        if self.qk_norm is not None:
            qk = rms_norm(qk, self.qk_norm.index_select(0, self.norm_of_head), shape.eps)
        q, k = rotate(qk).split_with_sizes((shape.heads, shape.kv_heads), 1)
        return self._project("out", attend(q, k, v), self.out, self.out_bias, onto=x)

    def feed(self, x: Tensor) -> Tensor:
        """`x` plus the output of the feed-forward network."""
        activated = silu_gate(self._project("gate_up", rms_norm(x, self.norm_mid, self.shape.eps), self.gate_up))
        return self._project("down", activated, self.down, onto=x)

    def adapter(self, name: str) -> Any:
        """The adapter of a matrix; None if it has none or adapters are disabled."""
        adapters = self.adapters
        return adapters[name] if adapters is not None and self.adapted and name in adapters else None

    def _project(
        self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, onto: Tensor | None = None
    ) -> Tensor:
        """`x` through a matrix and its adapter, added to `onto`, which a generator overwrites."""
        if self.adapters is not None and (adapter := self.adapter(name)) is not None:
            result: Tensor = adapter(x, weight, bias)
        elif bias is not None:
            result = torch.addmm(bias, x, weight)
        elif onto is not None and torch.is_inference_mode_enabled():
            return onto.addmm_(x, weight)
        else:
            result = x @ weight
        return result if onto is None else result.add_(onto)

    def pieces(self) -> Iterator[tuple[str, Tensor]]:
        """Views of this block's parameters by their Hugging Face names, without the layer's prefix."""
        shape = self.shape
        sizes = [shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.head_dim]
        yield "input_layernorm.weight", self.norm_in
        for name, part in zip("qkv", self.qkv.t().split(sizes), strict=True):
            yield f"self_attn.{name}_proj.weight", part
        if self.qkv_bias is not None:
            for name, part in zip("qkv", self.qkv_bias.split(sizes), strict=True):
                yield f"self_attn.{name}_proj.bias", part
        if self.qk_norm is not None:
            yield "self_attn.q_norm.weight", self.qk_norm[0]
            yield "self_attn.k_norm.weight", self.qk_norm[1]
        yield "self_attn.o_proj.weight", self.out.t()
        if self.out_bias is not None:
            yield "self_attn.o_proj.bias", self.out_bias
        yield "post_attention_layernorm.weight", self.norm_mid
        gate, up = self.gate_up.t().chunk(2)
        yield "mlp.gate_proj.weight", gate
        yield "mlp.up_proj.weight", up
        yield "mlp.down_proj.weight", self.down.t()


class Decoder(nn.Module):
    """A whole model. `hidden` is the body; `head` maps its output to logits, or `score` to one value."""

    cos: Tensor
    sin: Tensor
    logit_cap: float | None = None
    """The absolute value that logits are limited to; these families have none."""

    def __init__(self, config: PretrainedConfig, *, scored: bool = False) -> None:
        """With `scored` it has a score head instead of a language head: a critic or a reward model."""
        super().__init__()
        self.config, self.shape = classifier_config(config) if scored else config, geometry(config)
        self.lora: Lora | None = None
        """Its adapters; None if it has none."""
        self.frozen_digest: Digest | None = None
        """Digest of the frozen weights under adapters, computed on first use."""
        self.score = nn.Parameter(torch.zeros(1, self.shape.hidden)) if scored else None
        tied = self.shape.tied or scored
        self.embed = nn.Parameter(torch.empty(self.shape.vocab, self.shape.hidden))
        self.layers = nn.ModuleList([Layer(self.shape) for _ in range(self.shape.layers)])
        self.norm = nn.Parameter(torch.ones(self.shape.hidden))
        self.untied_head = None if tied else nn.Parameter(torch.empty(self.shape.vocab, self.shape.hidden))
        cos, sin = _rotations(config, self.shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @property
    def head(self) -> Tensor:
        """[vocab, hidden]"""
        return self.embed if self.untied_head is None else self.untied_head

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def cache_shape(self) -> CacheShape:
        shape = self.shape
        return CacheShape(
            layers=shape.layers, kv_heads=shape.kv_heads, key_dim=shape.head_dim, value_dim=shape.head_dim
        )

    def hidden(self, ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[tokens] ids at [tokens] positions -> [tokens, hidden], normalised for `head`."""
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)

        def rotate(x: Tensor) -> Tensor:
            return apply_rotary(x, cos, sin)

        x = F.embedding(ids, self.embed)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            x = layer.feed(layer.mix(x, rotate, lambda q, k, v, at=index: attend(at, q, k, v)))
        return rms_norm(x, self.norm, self.shape.eps)

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Views of all parameters by their Hugging Face names; a tied head is not named twice."""
        yield "model.embed_tokens.weight", self.embed
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            for name, tensor in layer.pieces():
                yield f"model.layers.{index}.{name}", tensor
        yield "model.norm.weight", self.norm
        if self.untied_head is not None:
            yield "lm_head.weight", self.untied_head
        if self.score is not None:
            yield "score.weight", self.score

    def adapter_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Views of all adapters, named after their projections as peft does, without peft's prefix."""
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            for adapter in () if layer.adapters is None else layer.adapters.values():
                for target, a, b in adapter.pairs():
                    module = f"model.layers.{index}.{MODULE_OF[target]}.{target}"
                    yield f"{module}.lora_A.weight", a
                    yield f"{module}.lora_B.weight", b

    @torch.no_grad()
    def load(self, tensors: Iterable[tuple[str, Tensor]], *, where: str) -> None:
        """Copy tensors in by their Hugging Face names; the names must match exactly."""
        targets = dict(self.named_tensors())
        missing = set(targets)
        for name, tensor in tensors:
            if (name == "lm_head.weight" and self.untied_head is None) or name.endswith("rotary_emb.inv_freq"):
                continue
            if name not in targets or targets[name].shape != tensor.shape:
                shape = tuple(tensor.shape)
                raise ConfigError(f"{where}: tensor {name} {shape} does not fit config.json; take both from one model")
            targets[name].copy_(tensor)
            missing.discard(name)
        if missing:
            raise ConfigError(
                f"{where}: tensor {min(missing)} is missing ({len(missing)} in all); the weights are incomplete"
            )

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Random weights: normal for matrices; norms are one and biases zero."""
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2 and not name.endswith(("norm", "score")):
                parameter.copy_(torch.empty(parameter.shape).normal_(0, self.shape.init_std, generator=generator))


def _rotations(config: PretrainedConfig, shape: Geometry) -> tuple[Tensor, Tensor]:
    """[max_seq_len, head_dim] each; the sine has the sign of the half it multiplies, so a rotation takes one roll."""
    parameters: dict[str, Any] = getattr(config, "rope_parameters", None) or {"rope_type": "default"}
    kind = parameters.get("rope_type", "default")
    scaling = 1.0
    if kind == "default":
        theta = parameters.get("rope_theta", 10_000.0)
        even = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device="cpu")
        frequencies = 1.0 / theta ** (even / shape.head_dim)
    else:
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # takes a second

        frequencies, scaling = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
    angles = torch.outer(torch.arange(shape.max_seq_len, dtype=torch.float32, device="cpu"), frequencies)
    cos, sin = angles.cos() * scaling, angles.sin() * scaling
    return torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
