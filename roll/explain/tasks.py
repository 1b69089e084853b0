"""What the sources of a run's tasks mean, in words: what they are made of, and what differs from the run."""

from __future__ import annotations

from collections.abc import Iterator

from roll.config.algorithm import OwnAlgorithm
from roll.config.proxy import Agent
from roll.config.reward import Reward
from roll.config.schema import Rollout, Run, Source
from roll.config.section import Named
from roll.explain.formulas import called, in_words


def sources_in_words(run: Run) -> list[tuple[str, str]]:
    """By name: its part of the groups, what it is made of, and whatever is not as in the run."""
    total = sum(source.share for source in run.tasks)
    return [
        (
            source.name,
            "; ".join([f"{100 * source.share / total:.3g} % of the groups", *_made_of(source), *_own(run, source)]),
        )
        for source in run.tasks
    ]


def sampled_from(temperature: float, top_p: float, top_k: int) -> str:
    """The distribution that tokens are sampled from."""
    if temperature == 0:
        return "nothing: greedy, always the likeliest token"
    cuts = [f"the {top_k} likeliest tokens"] if top_k else []
    cuts += [f"the fewest tokens that hold {top_p:g} of the probability"] if top_p < 1 else []
    start = (
        f"softmax(logits / {temperature:g})" if temperature != 1 else "softmax(logits), the model's own distribution"
    )
    return f"{start}, cut to {' and '.join(cuts)}, in sampler and trainer alike" if cuts else start


def replies_of(run: Run) -> str:
    """How many replies an attempt has: one where the environment ends with the first."""
    once = [source.name for source in run.tasks if source.env.kind == "single_turn" and source.agent is None]
    if len(once) == len(run.tasks):
        return "1 reply"
    return f"{run.rollout.max_turns} replies" + (f" (1 in {', '.join(once)})" if once else "")


def _made_of(source: Source) -> Iterator[str]:
    limit = f", the first {source.limit}" if source.limit else ""
    yield ("made by the environment" if source.data is None else f"from {_called(source.data)}") + limit
    yield f"env {_called(source.env)}" if source.agent is None else _by_agent(source.agent)
    giver = "environment" if source.agent is None else "agent"
    yield f"rewards from the {giver}" if source.reward is None else f"rewarded by {_rewarded(source.reward)}"


def _by_agent(agent: Agent) -> str:
    judged = {"reply": "the model's last reply", "stdout": "what it writes", "reward": "itself"}[agent.result]
    limit = f"killed after {agent.timeout_s:g} s"
    return f"attempted by the agent `{' '.join(agent.command)}` through the proxy, {limit}; it is judged by {judged}"


def _own(run: Run, source: Source) -> Iterator[str]:
    """Everything that the source says in place of the run, or beyond it."""
    yield from _left_out(source)
    yield from _order(source)
    if source.max_new_tokens is not None:
        yield f"at most {source.max_new_tokens} new tokens a reply, not {run.rollout.max_new_tokens}"
    if source.given("temperature", "top_p", "top_k"):
        yield f"sampled from {_sampled(run.rollout, source)}"
    if source.filters is not None:
        own = ", ".join(in_words("filters", named) for named in source.filters)
        yield f"filters of its own: {own}" if own else "no filters, whatever the algorithm's are"
    if source.algorithm is not None:
        yield from _credited(source.algorithm)


def _credited(own: OwnAlgorithm) -> Iterator[str]:
    """What it has of the algorithm for itself."""
    yield "credit of its own, every mean and deviation being over its own trajectories"
    for part, value in own.parts.items():
        if part == "whiten":
            yield "advantages whitened" if value else "advantages not whitened"
        elif part == "clip":
            yield "advantages not clipped" if value == "none" else f"A = clip(A, -{value:g}, {value:g})"
        elif part == "advantage":
            yield f"advantage {in_words(part, value)}"
        else:
            yield f"{part} {', then '.join(in_words(part, named) for named in value) or 'none'}"
    if own.weight != 1:
        yield f"the losses of its tokens count {own.weight:g} times"


def _left_out(source: Source) -> Iterator[str]:
    if source.dedup is not None:
        how = "" if source.dedup == "exact" else ", up to case, spaces and forms of characters"
        yield f"prompts that came before or are held out are left out{how}"
    if source.max_prompt_tokens is not None:
        yield f"prompts of over {source.max_prompt_tokens} tokens are left out"


def _order(source: Source) -> Iterator[str]:
    if source.sampling is not None:
        sampling = source.sampling
        yield (
            f"drawn more often the nearer their pass rate is to {sampling.target:g}, "
            f"{100 * sampling.exploration:.3g} % of the draws from those drawn least often"
        )
    if source.curriculum is not None:
        curriculum = source.curriculum
        yield f"easy ones first, by {curriculum.by!r}: after {curriculum.steps} draws all can be drawn"


def _sampled(rollout: Rollout, source: Source) -> str:
    return sampled_from(
        rollout.temperature if source.temperature is None else source.temperature,
        rollout.top_p if source.top_p is None else source.top_p,
        rollout.top_k if source.top_k is None else source.top_k,
    )


def _rewarded(reward: Reward) -> str:
    parts = [f"{part.weight:g} x {called(part)}" for part in reward.rewards]
    return " + ".join(parts) or called(reward)


def _called(named: Named) -> str:
    if named.kind in ("jsonl", "parquet") and set(named.arguments) == {"path"}:
        return str(named.arguments["path"])
    return called(named)
