"""Any causal language model of `transformers`, with the interface of the native decoder.

The trainer and generator of the native engine run it: they pass flat tokens and an `Attend`, and read hidden states.
Families differ in much that a caller cannot see, so `check_packing` compares each model with its own unpacked forward
pass before it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from roll.config.decoder import NUM_CHOSEN
from roll.config.lora import Lora
from roll.engines.hf.attention import NAME, attending, register
from roll.engines.hf.experts import ExpertLoad, RouterReplay, routers_of, scores_weight
from roll.engines.hf.names import checkpoint_views, named_tensors
from roll.engines.native.attention import AttentionOptions, Ragged
from roll.engines.native.decoder import Attend, CacheShape
from roll.engines.native.lora import AdaptedLinear, is_adapter
from roll.engines.native.mixed import Precision
from roll.engines.native.sampling import cap_logits
from roll.errors import ConfigError, one_line
from roll.weights.digest import Digest
from roll.weights.huggingface import classifier_config

_OLD_BUFFERS = (r"rotary_emb\.inv_freq$", r"\.attn\.(masked_)?bias$", r"\.attention\.(masked_)?bias$")
"""Names of tensors in files of early releases of `transformers`, which computes them."""
_CHECKED_LENGTHS = (5, 9)
_TOLERANCE = 1e-3
"""Largest relative difference of hidden states between packed and unpacked sequences."""


class HuggingFaceDecoder(nn.Module):
    """A model of transformers. `hidden` is its body; `head` maps its output to logits, or `score` to one value."""

    def __init__(self, model: Any, *, scored: bool = False) -> None:
        """With `scored` it has a score head instead of a language head: a critic or a reward model."""
        super().__init__()
        register()
        model.set_attn_implementation(NAME)
        self.model, self.config = model.eval(), model.config
        self.config.architectures = self.config.architectures or [type(model).__name__]  # vLLM chooses by it
        self.lora: Lora | None = None
        self.frozen_digest: Digest | None = None
        output = check_output(model)
        self.logit_scale, self.logit_cap = (1.0, None) if scored else _logit_options(model.config)
        self.score = nn.Parameter(torch.zeros(1, output.weight.shape[1])) if scored else None
        if scored:
            self.config = classifier_config(self.config)
            model.set_output_embeddings(None)
        self.views = checkpoint_views(model)
        self.expert_load = ExpertLoad(model)
        self._cache_shape: CacheShape | None = None
        for layer in layers_of(model):
            layer.forward = _Layer(layer, self.expert_load)

    @property
    def head(self) -> Tensor:
        """[vocab, hidden]"""
        return self.model.get_output_embeddings().weight

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    @property
    def cache_shape(self) -> CacheShape:
        """Found by computing one token; raises `ConfigError` if layers differ."""
        if self._cache_shape is None:
            seen: dict[int, tuple[int, int, int]] = {}

            def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, options: AttentionOptions | None = None) -> Tensor:
                seen[layer] = (k.shape[1], k.shape[2], v.shape[2])
                return q.new_zeros(len(q), q.shape[1] * v.shape[2])

            with torch.no_grad():
                zero = torch.zeros(1, dtype=torch.int64, device=self.device)
                self.hidden(zero, zero, attend)
            if sorted(seen) != list(range(len(layers_of(self.model)))) or len(set(seen.values())) != 1:
                raise ConfigError(
                    "actor_infer.backend: the layers of this model cache different tensors, which backend native does "
                    "not support; choose vllm"
                )
            heads, key_dim, value_dim = seen[0]
            self._cache_shape = CacheShape(layers=len(seen), kv_heads=heads, key_dim=key_dim, value_dim=value_dim)
        return self._cache_shape

    def hidden(
        self,
        ids: Tensor,
        positions: Tensor,
        attend: Attend,
        precision: Precision | None = None,
        experts: Tensor | None = None,
    ) -> Tensor:
        """[tokens] ids at [tokens] positions -> [tokens, hidden], normalised and scaled for `head`.

        `experts` [tokens, layers, k] are chosen instead of those of the routers, except where they are -1.
        """
        precision = precision or Precision()
        for layer in layers_of(self.model):
            layer.forward.precision = precision
        return self.run(ids, positions, attend, precision, experts)

    def run(
        self,
        ids: Tensor,
        positions: Tensor,
        attend: Attend,
        precision: Precision | None = None,
        experts: Tensor | None = None,
    ) -> Tensor:
        """As `hidden`, with the layers as they are; parameters outside of them have this precision."""
        for index, layer in enumerate(layers_of(self.model)):
            layer.forward.attend = attend
            layer.forward.experts = None if experts is None else experts[:, index].long()
        inputs = {"input_ids": ids.unsqueeze(0), "position_ids": positions.unsqueeze(0), "use_cache": False}
        body, rounded = self.model.base_model, dict[str, Tensor]()
        if precision is not None and precision.dtype is not None:
            layers = {id(each) for layer in layers_of(self.model) for each in layer.parameters()}
            rounded = {
                name: narrow(each, precision) for name, each in body.named_parameters() if id(each) not in layers
            }
        hidden: Tensor = functional_call(body, rounded, (), inputs).last_hidden_state[0]
        return hidden if self.logit_scale == 1 else hidden * self.logit_scale

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Views of all parameters by their names in files; a tied head is not named twice."""
        yield from named_tensors(self.model, self.views)
        if self.score is not None:
            yield "score.weight", self.score

    def attach(self, lora: Lora) -> None:
        """Add zero adapters to the projections that `lora` names, and freeze everything else."""
        if self.score is not None:
            raise ConfigError(
                "actor_train.lora: models with a score head have no adapters; remove it to train all weights"
            )
        linear = {name: each for name, each in self.model.named_modules() if type(each) is nn.Linear}
        chosen = {name: each for name, each in linear.items() if name.rpartition(".")[2] in lora.target_modules}
        missing = set(lora.target_modules) - {name.rpartition(".")[2] for name in chosen}
        if missing and ("target_modules" in lora.model_fields_set or not chosen):
            names = ", ".join(sorted({name.rpartition(".")[2] for name in linear if name != "lm_head"}))
            raise ConfigError(f"actor_train.lora.target_modules: the model has no {min(missing)}; choose from {names}")
        self.requires_grad_(False)
        self.lora = lora
        for name, each in chosen.items():
            if lora.rank > (least := min(each.weight.shape)):
                raise ConfigError(f"actor_train.lora.rank: {name} allows at most {least} (got {lora.rank}); lower it")
            parent, _, last = name.rpartition(".")
            setattr(self.model.get_submodule(parent), last, AdaptedLinear.around(each, lora))

    def adapter_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All adapters, named after their projections as peft does, without peft's prefix."""
        for name, parameter in self.model.named_parameters():
            if is_adapter(name):
                yield name, parameter

    @torch.no_grad()
    def load(self, tensors: Iterable[tuple[str, Tensor]], *, where: str) -> None:
        """Copy tensors in by their names in files; raises `ConfigError` for others, unless transformers ignores them.

        Files of a model's body, such as GPT-2's, have names without the prefix of the body.
        """
        targets, prefix = dict(self.named_tensors()), f"{self.model.base_model_prefix}."
        missing, tied = set(targets), set(getattr(self.model, "all_tied_weights_keys", None) or ())
        patterns = [*(getattr(self.model, "_keys_to_ignore_on_load_unexpected", None) or ()), *_OLD_BUFFERS]
        ignored = re.compile("|".join(patterns))
        for file_name, tensor in tensors:
            name = file_name if file_name in targets or prefix + file_name not in targets else prefix + file_name
            if name in tied or (name == "lm_head.weight" and self.score is not None):
                continue
            if name not in targets and ignored.search(name):
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


def empty_model(config: Any, dtype: torch.dtype = torch.float32, *, trust_remote_code: bool = False) -> Any:
    """A causal language model with random weights; raises `ConfigError` if transformers has none.

    Buffers that its files have, such as routers' biases, have 32 bits with any `dtype`, as in vLLM.
    """
    from transformers import AutoModelForCausalLM  # takes two seconds

    register()
    try:
        model = AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=NAME, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # noqa: BLE001 - code of a family, with values of a file
        reason = one_line(f"{type(error).__name__}: {error}")
        raise ConfigError(f"model: transformers cannot build it ({reason}); choose another model") from None
    for tensor in model.state_dict(keep_vars=True).values():
        if not isinstance(tensor, nn.Parameter) and tensor.is_floating_point():
            tensor.data = tensor.data.float()
    return model


def check_output(model: Any) -> Any:
    """The output layer of a model; raises `ConfigError` if there is none, or one with a bias."""
    output = model.get_output_embeddings()
    if output is None or getattr(output, "bias", None) is not None:
        raise ConfigError("model: its output layer has a bias, or it has none; choose another model")
    return output


def narrow(weight: Tensor, precision: Precision) -> Tensor:
    """A parameter as a forward pass of this precision uses it."""
    assert precision.dtype is not None
    return precision.round_weight(weight) if precision.exact else weight.to(precision.dtype)


class _Layer:
    """The forward pass of one layer: weights are rounded where they are used, activations recomputed if asked for.

    In 16 bits on a GPU it is compiled, once for all layers of a kind and any number of tokens. Layers with experts are
    not: their products depend on how many tokens each expert has.
    """

    def __init__(self, layer: nn.Module, load: ExpertLoad) -> None:
        self.layer, self.inner, self._load = layer, layer.forward, load
        self.precision = Precision()
        self.attend: Attend | None = None
        self.experts: Tensor | None = None
        for router in routers_of(layer):
            router.forward = partial(self._route, router.forward, len(scores_weight(router)))
        self._compiles = not any(name.endswith("experts") for name, _ in layer.named_modules())
        self._inside = False
        self._chosen: Tensor | None = None
        """Experts of the pass that is running."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return self.inner(*args, **kwargs)
        run = partial(self._run, self.attend, self.experts)
        if self.precision.checkpointing and torch.is_grad_enabled():
            return checkpoint(run, *args, use_reentrant=False, **kwargs)
        return run(*args, **kwargs)

    def _route(self, route: Any, num_experts: int, *args: Any, **kwargs: Any) -> Any:
        if self._chosen is None:
            return route(*args, **kwargs)
        with RouterReplay(self._chosen, num_experts) as replay:
            output = route(*args, **kwargs)
        self._load.add_replayed(replay.counts)
        return output

    def _run(self, attend: Any, experts: Tensor | None, *args: Any, **kwargs: Any) -> Any:
        self._inside, self._chosen = True, experts
        try:
            with nullcontext() if attend is None else attending(attend):
                if self.precision.dtype is None:
                    return self.inner(*args, **kwargs)
                rounded = {name: narrow(each, self.precision) for name, each in self.layer.named_parameters()}
                if self._compiles and args[0].is_cuda and not self.precision.exact:
                    _mark_tokens(args, kwargs)
                    return _compiled()(self.layer, rounded, args, kwargs)
                return functional_call(self.layer, rounded, args, kwargs)
        finally:
            self._inside, self._chosen = False, None


@cache
def _compiled() -> Any:
    return torch.compile(functional_call)


def _mark_tokens(args: Any, kwargs: Any) -> None:
    """Tell the compiler that the number of tokens, the second size of most inputs, differs between calls."""
    tensors = [
        each for value in (*args, *kwargs.values()) for each in (value if isinstance(value, tuple) else (value,))
    ]
    for each in tensors:
        if isinstance(each, Tensor) and each.ndim > 1 and each.shape[1] == args[0].shape[1]:
            cast(Any, torch)._dynamo.maybe_mark_dynamic(each, 1)


def layers_of(model: Any) -> list[Any]:
    """The layers of a model's body."""
    lists = [each for each in model.base_model.children() if isinstance(each, nn.ModuleList)]
    if len(lists) != 1:
        raise ConfigError("model: its body is not one list of layers; choose another model")
    return list(lists[0])


def _logit_options(config: Any) -> tuple[float, float | None]:
    """The factor and the soft cap of logits."""
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    return scale, getattr(config, "final_logit_softcapping", None)


@torch.no_grad()
def check_packing(decoder: HuggingFaceDecoder) -> None:
    """Raise `ConfigError` unless packed sequences give the logits that the model gives for each alone."""
    vocab, device = decoder.model.get_input_embeddings().weight.shape[0], decoder.device
    rows = [torch.arange(1, size + 1, device=device) * 7 % vocab for size in _CHECKED_LENGTHS]
    kind = f"model: model_type {decoder.config.model_type!r}"
    try:
        packed, alone = _packed(decoder, rows), _alone(decoder, rows)
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - code of a family
        reason = one_line(f"{type(error).__name__}: {error}")
        raise ConfigError(f"{kind}: it cannot compute packed sequences ({reason}); choose another model") from None
    error = float((packed - alone).abs().max() / alone.abs().max().clamp_min(1e-6))
    if not error < _TOLERANCE:
        raise ConfigError(
            f"{kind}: packed sequences differ from single ones by {error:.1g}: not only attention mixes tokens, or it "
            "is the model's own; choose another model"
        )


@torch.no_grad()
def check_replay(decoder: HuggingFaceDecoder) -> None:
    """Raise `ConfigError` unless every layer with experts takes those that it is given."""
    num, config = _CHECKED_LENGTHS[0], decoder.config
    layout, layers = Ragged((num,), device=decoder.device), layers_of(decoder.model)
    k = next((getattr(config, key) for key in NUM_CHOSEN if getattr(config, key, None)), 1)
    first = torch.arange(k, device=decoder.device).expand(num, len(layers), k)
    ids = torch.arange(num, device=decoder.device)
    with decoder.expert_load.counting():
        decoder.hidden(ids, layout.positions, layout.attend, experts=first)
    given, _ = decoder.expert_load.take_replayed().tolist()
    decoder.expert_load.totals()
    mixtures = sum(any(name.endswith("experts") for name, _ in layer.named_modules()) for layer in layers)
    if given < num * mixtures:
        raise ConfigError(
            f"actor_infer.router_replay: the routers of model_type {config.model_type!r} cannot be given experts; "
            "leave it out"
        )


def _packed(decoder: HuggingFaceDecoder, rows: list[Tensor]) -> Tensor:
    layout = Ragged(_CHECKED_LENGTHS, device=decoder.device)
    packed = decoder.hidden(torch.cat(rows), layout.positions, layout.attend)
    return cap_logits(packed @ decoder.head.t(), decoder.logit_cap) if decoder.score is None else packed


def _alone(decoder: HuggingFaceDecoder, rows: list[Tensor]) -> Tensor:
    decoder.model.set_attn_implementation("eager")
    for layer in layers_of(decoder.model):
        layer.forward.attend = layer.forward.experts = None
    try:
        whole = decoder.model.base_model if decoder.score is not None else decoder.model
        outputs = [whole(row.unsqueeze(0), use_cache=False) for row in rows]
    finally:
        decoder.model.set_attn_implementation(NAME)
    return torch.cat([each.last_hidden_state[0] if decoder.score is not None else each.logits[0] for each in outputs])
