"""A reward with bugs in it, in a whole run: each is told of the sample it befell, and the run goes on."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

REWARD = """\
import time

def score(task, reply):
    what = task.metadata.get("what", "")
    if what == "raises":
        return {}["nowhere"]
    if what == "hangs":
        time.sleep(1000)
    strange = {"nan": float("nan"), "text": "good", "huge": 1e30}
    return strange.get(what, len(reply) % 2)
"""
SAID = {
    "raises": "KeyError: 'nowhere' ({file}:6); fix the reward",
    "nan": "value is not finite and at most 1e+06 (got nan)",
    "text": "not a number (got 'good'); return a float or a Score",
    "huge": "value is not finite and at most 1e+06 (got 1e+30)",
    "hangs": "timed out after 1 s and was killed",
}


@pytest.mark.parametrize("workers", [0, 1])
def test_every_bug_of_a_reward_is_recorded_on_its_sample_and_the_run_continues(
    roll: Callable, folder: Path, workers: int
) -> None:
    module = folder / f"buggy_reward_{workers}.py"
    module.write_text(REWARD)
    bugs = [what for what in SAID if workers or what != "hangs"]
    rows = [{"id": what, "prompt": "1+1=", "answer": "2", "what": what} for what in bugs]
    rows += [{"id": f"fine-{number}", "prompt": "1+1=", "answer": "2"} for number in range(4)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = roll(
        "train", "run.yaml", "steps=2", "deterministic=false", "validation.tasks=[]", "checkpoint.every=0",
        f"tasks=[{{name: odd, data: tasks.jsonl, reward: '{module.stem}:score'}}]",
        "rollout={groups_per_step: 4, group_size: 2, max_seq_len: 32, max_new_tokens: 4, max_retries: 0}",
        f"rewards={{workers: {workers}, timeout_s: 1.0}}",
    )  # fmt: skip
    assert outcome.code == 0, outcome
    metrics = (folder / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(metrics[-1])["step"] == 2
    samples = roll("samples", "runs/tiny", "--last", "99").out.split("=== ")[1:]
    failed = [text for text in samples if "reward_failed | no reward | " in text]
    for what in bugs:
        of_task = [text for text in failed if f"| task {what}\n" in text]
        assert of_task and all(f"reward '{module.stem}:score' on task '{what}': " in text for text in of_task)
        assert all(SAID[what].format(file=module) in text for text in of_task)
    trained = [text for text in samples if "trained in step" in text]
    assert len(trained) == 2 * 4 * 2 and all("| task fine-" in text for text in trained)


def test_several_rewards_are_weighted_and_logged_one_by_one(roll: Callable, folder: Path) -> None:
    (folder / "classy_reward.py").write_text(
        "from roll.types import Score\n\n"
        "class Steady:\n"
        "    def __init__(self, level):\n        self.level, self.started = level, False\n\n"
        "    async def start(self):\n        self.started = True\n\n"
        "    async def stop(self):\n        open('stopped', 'a').write('once ')\n\n"
        "    def score(self, task, reply):\n"
        "        assert self.started\n        return Score(self.level, {'depth': 3.0})\n"
    )
    both = "[{kind: 'classy_reward:Steady', name: steady, level: 0.5, weight: 4}, {kind: exact, weight: 0}]"
    outcome = roll("train", "run.yaml", "steps=1", "validation.tasks=[]", f"tasks.0.reward={both}")
    assert outcome.code == 0, outcome
    found = json.loads((folder / "runs" / "tiny" / "metrics.jsonl").read_text().splitlines()[-1])
    assert found["reward/mean"] == 2.0 and found["reward/steady"] == 0.5
    assert found["reward/steady/depth"] == 3.0 and "reward/exact" in found
    assert (folder / "stopped").read_text() == "once "


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stop_that_fails_is_a_notice_and_the_run_ends_well(roll: Callable, folder: Path, workers: int) -> None:
    module = folder / f"stuck_reward_{workers}.py"
    module.write_text(
        "class Stuck:\n"
        "    def score(self, task, response):\n        return len(response) % 2\n\n"
        "    def stop(self):\n        raise OSError('the door is stuck')\n"
    )
    reward = f"{module.stem}:Stuck"
    settings = [
        "validation.tasks=[]",
        f"tasks.0.reward='{reward}'",
        f"rewards.workers={workers}",
        "deterministic=false",
    ]
    outcome = roll("train", "run.yaml", "steps=1", *settings)
    told = f"reward '{reward}': stop failed: OSError: the door is stuck ({module}:6); its scores are complete"
    assert outcome.fault(0) == told
    assert outcome.out.splitlines()[-2:] == ["model: runs/tiny/model", "learning curve: runs/tiny/curve.svg"]
    (folder / "responses.jsonl").write_text('{"response": "two"}\n')
    scored = roll("score", "responses.jsonl", "--reward", reward, "--workers", f"{workers}")
    assert scored.code == 0 and json.loads(scored.out)["score"] == 1.0
    assert told in scored.err.splitlines()
