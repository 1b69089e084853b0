import os
from pathlib import Path

from roll.config.knobs import knobs, section_at
from roll.config.reward import Reward
from roll.config.schema import Optimizer, SpecConfig, TaskSourceConfig

SNAPSHOT = Path(__file__).parents[1] / "knobs.txt"


def test_the_knobs_are_those_of_the_snapshot() -> None:
    """A new knob is a line in a reviewed file. ROLL_UPDATE_SNAPSHOTS=1 rewrites it."""
    found = "".join(f"{knob.key}: {knob.type} = {knob.default}\n" for knob in knobs())
    if os.environ.get("ROLL_UPDATE_SNAPSHOTS") == "1":
        SNAPSHOT.write_text(found, encoding="utf-8")
    assert SNAPSHOT.read_text(encoding="utf-8") == found, "run with ROLL_UPDATE_SNAPSHOTS=1 and review the difference"


def test_a_dotted_key_leads_to_its_section() -> None:
    assert section_at(["actor_train", "optimizer"]) is Optimizer
    assert section_at(["tasks", "0"]) is TaskSourceConfig
    assert section_at(["tasks", "0", "reward"]) is Reward
    assert section_at(["tasks", "0", "env"]) is SpecConfig
    assert section_at(["tasks"]) is None
    assert section_at(["rollout", "group_size"]) is None
    assert section_at(["nowhere", "at", "all"]) is None
