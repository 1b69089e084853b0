from urllib.parse import urlsplit

import pytest

from roll.errors import ConfigError
from roll.watch.access import POLICY, check_host
from tests.watch.runs import TOKEN, Client, eventful, serving

PATHS = ("/", "/api/runs", "/api/runs/run/overview", "/plain", "/assets/plain.css", "/no/such/page")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("runs")
    eventful(folder / "run")
    (folder / "secret.txt").write_text("secret")
    with serving(folder) as client:
        client.settle("run")
        yield client


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_there_is_no_access(client: Client, path: str) -> None:
    for credentials in ("", "Bearer", "Bearer x", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer \xff"):
        answer = client.get(path, Authorization=credentials)
        assert answer.status == 403 and b"the link" in answer.body, credentials
    assert client.get(f"{path}?token=wrong", Authorization="").status == 403
    assert client.get(path, Authorization="", Cookie="roll_watch_0=x").status == 403


def test_the_link_sets_a_cookie_and_leaves_the_address_without_the_token(client: Client) -> None:
    answer = client.get(f"/plain/run?token={TOKEN}&step=1", Authorization="")
    assert answer.status == 303 and answer.headers["Location"] == "/plain/run?step=1" and TOKEN not in str(answer)
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
    value = cookie.partition(";")[0]
    assert client.get("/api/runs", Authorization="", Cookie=value).status == 200
    assert client.get("/api/runs", Authorization="", Cookie=value + "x").status == 403


def test_the_link_never_leads_to_another_server(client: Client) -> None:
    for path in ("//evil.example/", "/\\evil.example/", "//evil.example/%2f.."):
        answer = client.get(f"{path}?token={TOKEN}", Authorization="")
        target = answer.headers.get("Location", "/")
        assert urlsplit(target).netloc == "" and not target.startswith(("//", "/\\")), target


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "", "[::2]"])
def test_a_name_that_is_not_of_this_machine_gets_nothing(client: Client, host: str) -> None:
    answer = client.get("/api/runs", Host=host)
    assert answer.status in (400, 421) and b"folder" not in answer.body


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9000", "[::1]:9000", "127.1.2.3"])
def test_forwarded_ports_of_this_machine_are_served(client: Client, host: str) -> None:
    assert client.get("/api/runs", Host=host).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_the_pages_only_read(client: Client, method: str) -> None:
    assert client.get("/api/runs", method=method).status == 405


def test_every_response_forbids_what_hostile_text_would_need(client: Client) -> None:
    answers = [client.get(path) for path in PATHS]
    answers += [
        client.get("/api/runs", Authorization=""),
        client.get("/api/runs/no/overview"),
        client.get("/", method="PUT"),
    ]
    for answer in answers:
        assert answer.headers["Content-Security-Policy"] == POLICY
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
    assert "unsafe" not in POLICY and "*" not in POLICY


@pytest.mark.parametrize(
    "path",
    [
        *("/assets/../server.py", "/assets/..%2fserver.py", "/assets/%2e%2e/access.py", "/assets//etc/passwd"),
        *("/assets/....//server.py", "/../../../etc/passwd", "/assets/index.html%00.css", "/assets/.."),
        *("/api/runs/..%2f..%2fetc/config", "/api/runs/../config", "/api/runs/%2e%2e/config", "/api/runs/./config"),
        *(
            "/api/runs/run%2f..%2f..%2fsecret.txt/config",
            "/api/runs/secret.txt/config",
            "/plain/..%2f..",
            "/plain/%2e%2e",
        ),
    ],
)
def test_no_address_leads_out_of_the_runs_and_the_assets(client: Client, path: str) -> None:
    answer = client.get(path)
    assert b"root:" not in answer.body and b"import " not in answer.body and b"secret\n" not in answer.body
    assert answer.status in (400, 404) or b"<!doctype html>" in answer.body[:20].lower()


def test_only_loopback_addresses_are_listened_on() -> None:
    for host in ("127.0.0.1", "::1", "localhost", "127.0.0.2"):
        check_host(host)
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        with pytest.raises(ConfigError, match="ssh -L"):
            check_host(host)
