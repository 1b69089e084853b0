import pytest

from roll.tracking.glossary import GLOSSARY, describe

EMITTED = [
    "reward/mean",
    "domain/sums/reward",
    "reward/std",
    "domain/sums/std",
    "domain/sums/groups",
    "domain/sums/uniform",
    "trained/groups",
    "trained/uniform",
    "validation/std",
    "validation/tasks",
    "validation/sums/std",
    "validation/sums/tasks",
    "rewarded/sums/length",
    "rewarded/sums/distinct",
    "rewarded/sums/identical",
    "rewarded/sums/vocabulary",
    "hacks/notices",
    "domain/game/reward/x",
    "policy/crosses/loss/grad_norm",
    "validation/reward",
    "validation/sums/reward",
    "validation/sums/accuracy",
    "validation/accuracy",
    "validation/length",
    "validation/failed",
    "validation/sums/failed",
    "validation/pass@4",
    "validation/majority",
    "validation/sums/pass@4",
    "validation/sums/majority",
    "loss/surprise",
    "loss/policy",
    "loss/ratio",
    "loss/clip_fraction",
    "loss/grad_norm",
    "loss/entropy",
    "loss/lr",
    "loss/refused",
    "sampler_mismatch/mean",
    "sampler_mismatch/max",
    "staleness/mean",
    "staleness/max",
    "length/mean",
    "length/max",
    "length/truncated",
    "tokens/generated",
    "tokens/trained",
    "speed/tokens_per_s",
    "failed/env_failed",
    "time/wait",
    "time/update",
    "time/publish",
    "time/validate",
    "time/checkpoint",
    "time/step",
    "env/guess_number/success",
    "reward/format",
    "reward/steady/depth",
    "reward/part/mean",
    "sft/loss",
    "sft/turns",
    "sft/tokens",
    "sft/accuracy",
]


@pytest.mark.parametrize("name", EMITTED)
def test_every_metric_has_a_meaning(name: str):
    assert describe(name)


def test_the_closest_pattern_explains():
    assert describe("reward/mean") == GLOSSARY["reward/mean"]
    assert describe("reward/format") == GLOSSARY["reward/*"]
    assert describe("validation/sums/reward") == GLOSSARY["validation/*/reward"]
    assert describe("time/teleport") == GLOSSARY["time/*"]


def test_an_unknown_metric_has_none():
    assert describe("luck") is None
