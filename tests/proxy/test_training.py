"""A program that knows the OpenAI client and nothing of this library is trained, from a file to the weights."""

import contextlib
import json
import re
from contextlib import closing
from pathlib import Path

import pytest

from roll.cli import main
from roll.config.load import load
from roll.errors import ConfigError
from roll.explain.run import explain
from roll.journal.events import ProxyRequestRefused
from roll.journal.records import TrajectoryQuery
from roll.journal.store import Reader
from roll.preflight import preflight

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE, AGENT = ROOT / "examples" / "agent.yaml", ROOT / "examples" / "agents" / "count.py"
PAGE = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
SMALL = ["threads=1", "rollout.groups_per_step=2", "rollout.group_size=2", "tracking.tensorboard=false"]
HOSTILE = """
import json, os, socket, urllib.error, urllib.parse, urllib.request
url, key, model = (os.environ[f"OPENAI_{name}"] for name in ("BASE_URL", "API_KEY", "MODEL"))
def ask(body, key=key):
    request = urllib.request.Request(url + "/chat/completions", body, {"Authorization": "Bearer " + key})
    try:
        return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return error.code
def body(**changes):
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "1"}], **changes}).encode()
def rude(text):
    address = urllib.parse.urlsplit(url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\n{text}".encode())
        return connection.recv(12) if "104857600" in text else b""
assert ask(b"{") == 400 and ask(body(model="gpt-9")) == 404 and ask(body(top_k=3)) == 400
assert ask(body(), "guess") == 401 and ask(body(), "s99." + key.partition(".")[2]) == 401
assert rude(f"Authorization: Bearer {key}\\r\\nContent-Length: 104857600\\r\\n\\r\\nx") == b"HTTP/1.1 413"
sent = body(seed=1).decode()
rude(f"Authorization: Bearer {key}\\r\\nContent-Length: {len(sent)}\\r\\n\\r\\n{sent}")  # and is gone
first = ask(body())
assert first in list("123456789") + [""] or len(first) == 2, first
assert ask(body()) == first
print(json.dumps({"reward": float(first == "2")}))
"""


def roll(folder: Path, *arguments: str) -> None:
    with contextlib.chdir(folder), pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code


def metrics_of(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["step"]]


def test_a_black_box_agent_trains_a_model_and_a_resumed_run_is_identical(tmp_path: Path) -> None:
    given = [str(EXAMPLE), f"tasks.0.agent.command=[python, {AGENT}]", *SMALL, "rollout.groups_per_step=1"]
    roll(tmp_path, "train", *given, "name=whole", "steps=3")
    found = metrics_of(tmp_path / "runs" / "whole")
    assert [(line["step"], line["proxy/requests"], line["proxy/refused"]) for line in found] == [
        (1, 6, 0),
        (2, 6, 0),
        (3, 6, 0),
    ], "two attempts with three replies each"
    assert all(line["env/count/branches"] == 1 for line in found), "a conversation that goes on is one segment"
    assert all(line["sampler_mismatch/max"] < 1e-3 for line in found), (
        "the trainer finds the tokens as likely as the sampler did"
    )
    with closing(Reader(tmp_path / "runs" / "whole" / "journal.db")) as journal:
        kept = list(journal.trajectories(TrajectoryQuery()))
    assert len(kept) == 6 and all(each.status.valid and each.reward is not None for each in kept)
    roll(tmp_path, "train", *given, "name=parted", "steps=2")
    roll(tmp_path, "resume", "runs/parted", "steps=3")
    again = metrics_of(tmp_path / "runs" / "parted")
    same = ("reward/mean", "loss/grad_norm", "length/mean", "loss/entropy")
    assert [[line.get(key) for key in same] for line in again] == [[line.get(key) for key in same] for line in found]


def test_invalid_requests_of_an_agent_are_recorded_and_the_run_continues(tmp_path: Path) -> None:
    (tmp_path / "hostile.py").write_text(HOSTILE)
    agent = "{command: [python, hostile.py], result: reward, timeout_s: 30}"
    held_out = f"validation.tasks=[{{name: count, limit: 1, agent: {agent}}}]"
    roll(tmp_path, "train", str(EXAMPLE), *SMALL, "steps=1", f"tasks.0.agent={agent}", held_out)
    (line,) = metrics_of(tmp_path / "runs" / "agent")
    assert line["proxy/refused"] >= 4 * 6 and "validation/count/reward" in line
    with closing(Reader(tmp_path / "runs" / "agent" / "journal.db")) as journal:
        events = [entry.event for entry in journal.events(ProxyRequestRefused)]
    assert {event.status for event in events} >= {400, 401, 404, 413}
    assert {event.session.partition("/")[0] for event in events} == {"", "train", "validate"}
    assert len(events) < sum(event.count for event in events), "the same again is a number"
    kept = [path.read_bytes() for path in (tmp_path / "runs" / "agent").rglob("*") if path.is_file()]
    assert not any(re.search(rb"s[0-9]+\.[0-9a-f]{64}", body) for body in kept), "no key is left in a file"


def test_attempts_of_an_agent_have_transcripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = HOSTILE.partition("assert")[0] + 'ask(body()); print(json.dumps({"reward": 0.5}))'
    (tmp_path / "once.py").write_text(code)
    agent = "{command: [python, once.py], result: reward}"
    roll(tmp_path, "rollout", str(EXAMPLE), f"tasks.0.agent={agent}", "--num", "2")
    told = capsys.readouterr().out
    assert "[observation] 1\n[assistant]" in told and "2 attempts: success 0.000, reward 0.500, 1.0 turns" in told


def test_the_page_has_the_files_as_they_are() -> None:
    for language, path in (("python", AGENT), ("yaml", EXAMPLE)):
        block, *_ = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        assert block == path.read_text(encoding="utf-8")


def test_the_run_is_explained_and_its_faults_are_found_before_it_starts(tmp_path: Path) -> None:
    run = load(EXAMPLE).run
    told = " ".join(explain(run).split())
    assert "attempted by the agent `python examples/agents/count.py` through the proxy" in told
    assert "rewards from the agent" in told and "32 responses" in told
    for changes, fault in (
        (["tasks.0.reward=exact"], "'reward', or `result: reward`"),
        (["tasks.0.env=guess_number"], "has both 'agent' and 'env'"),
        (["tasks.0.agent.command=[]"], "command"),
        (["tasks.0.agent.command=[bash]"], "preload: only `python` and a script"),
    ):
        with pytest.raises(ConfigError, match=fault):
            load(EXAMPLE, changes)
    for command, fault in (("[python, no.py]", "no such file: no.py"), ("[no-agent]", "no program named 'no-agent'")):
        with pytest.raises(ConfigError, match=fault), contextlib.chdir(tmp_path):
            preflight(load(EXAMPLE, [f"tasks.0.agent={{command: {command}, result: reward}}"]))
