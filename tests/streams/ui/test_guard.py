"""Who may ask: names of the server, other sites, tokens, and what a page may load."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from storage import Table
from storage.errors import InvalidInput
from streams.ui.guard import Access, host_name
from streams.ui.serve import TOKEN_VARIABLE, Serving, access_of
from tests.storage.shop import SHOP, append, orders
from tests.streams.ui.site import ACCESS, HOST, ORIGIN, client_of, make_site

TOKEN = "a-token-that-is-long-enough"


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    table = Table.create(tmp_path_factory.mktemp("ui") / "wide", SHOP)
    append(table, orders(1, 2))
    return table.uri


@pytest.fixture
def client(uri: str) -> TestClient:
    return client_of(make_site(uri))


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8088", "127.0.0.1.evil.example", "10.0.0.7", "", "[::1"]
)
def test_a_name_that_is_not_of_this_server_is_refused(client: TestClient, host: str) -> None:
    """DNS rebinding: the name of another site resolves to this machine, and its page asks for the rows."""
    answer = client.get("/data", headers={"Host": host})
    assert answer.status_code == 421
    assert "order" not in answer.text


@pytest.mark.parametrize("host", [HOST, "localhost:8088", "LOCALHOST", "127.0.0.1"])
def test_names_of_this_server_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": ORIGIN, "Sec-Fetch-Site": "cross-site"},
        {"Origin": ORIGIN, "Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_only_pages_of_this_server_may_change_something(uri: str, headers: dict[str, str]) -> None:
    client = client_of(make_site(uri, write=True))
    answer = client.post("/letters/replay", headers=headers)
    assert answer.status_code == 403
    assert "only pages of this server" in answer.text


def test_a_request_of_an_own_page_arrives(client: TestClient) -> None:
    answer = client.post("/letters/replay", headers={"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"})
    assert answer.status_code == 400
    assert "read-only" in answer.text


def test_another_site_may_link_to_a_page_but_not_embed_or_load_it(client: TestClient) -> None:
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/", headers=visit).status_code == 200
    assert client.get("/", headers={**visit, "Sec-Fetch-Dest": "iframe"}).status_code == 403
    script = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}
    assert client.get("/files/cells.json", headers=script).status_code == 403


@pytest.mark.parametrize("path", ["/", "/data", "/assets/weft.js", "/nothing", "/files/cells.json"])
def test_every_answer_forbids_foreign_and_inline_scripts(client: TestClient, path: str) -> None:
    answer = client.get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize(
    "path", ["/", "/timeline", "/files", "/data", "/row?key=1", "/changes", "/completeness", "/letters"]
)
def test_no_page_needs_what_the_policy_forbids(client: TestClient, path: str) -> None:
    text = client.get(path).text
    assert " style=" not in text
    assert " on" + "click" not in text
    assert "hx-on" not in text
    assert "<script>" not in text
    assert "http://" not in text.replace("http://www.w3.org", "").replace(ORIGIN, "")
    assert "https://" not in text


def test_without_the_token_nothing_is_shown(uri: str) -> None:
    access = Access(ACCESS.names, token=TOKEN, cookie="weft_8088")
    for path in ("/", "/data", "/assets/weft.js", "/events", "/?token=wrong", "/?token="):
        answer = client_of(make_site(uri), access).get(path)
        assert answer.status_code == 401, path
        assert "wide" not in answer.text
    wrong = client_of(make_site(uri), access, cookies={"weft_8088": "wrong"})
    assert wrong.get("/").status_code == 401


def test_the_token_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(uri: str) -> None:
    client = client_of(make_site(uri), Access(ACCESS.names, token=TOKEN, cookie="weft_8088"))
    answer = client.get(f"/data?limit=5&token={TOKEN}")
    assert answer.status_code == 303
    assert answer.headers["Location"] == "/data?limit=5"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert client.get("/data?limit=5").status_code == 200
    assert TOKEN not in client.get("/data?limit=5").text


def test_the_redirection_after_a_login_stays_on_this_server(uri: str) -> None:
    client = client_of(make_site(uri), Access(ACCESS.names, token=TOKEN))
    answer = client.get(f"//evil.example/x?token={TOKEN}")
    assert not answer.headers.get("Location", "").startswith("//")


def test_a_program_may_send_the_token_as_a_header(uri: str) -> None:
    client = client_of(make_site(uri), Access(ACCESS.names, token=TOKEN))
    assert client.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert client.get("/", headers={"Authorization": f"Bearer {TOKEN}x"}).status_code == 401


def test_a_token_is_needed_wherever_others_can_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert access_of(Serving(), 1).token == ""
    assert access_of(Serving("::1"), 1).token == ""
    assert not access_of(Serving(), 1).any_address
    for serving in (
        Serving("0.0.0.0"),
        Serving("10.0.0.7"),
        Serving("::"),
        Serving("example.org"),
        Serving(token=True),
    ):
        first, second = access_of(serving, 1).token, access_of(serving, 1).token
        assert len(first) >= 32
        assert first != second
    assert access_of(Serving("0.0.0.0"), 1).any_address


def test_the_token_of_the_environment_is_used_if_it_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert access_of(Serving(token=True), 1).token == TOKEN
    for bad in ("short", "with spaces and more of them", "semi;colon;semi;colon"):
        monkeypatch.setenv(TOKEN_VARIABLE, bad)
        with pytest.raises(InvalidInput, match=TOKEN_VARIABLE):
            access_of(Serving(token=True), 1)


def test_further_names_can_be_allowed(uri: str) -> None:
    access = access_of(Serving(allow_hosts=("Weft.Example.org",)), 8088)
    assert client_of(make_site(uri), access).get("/", headers={"Host": "weft.example.org"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "name"), [("A.b:80", "a.b"), ("[::1]:80", "::1"), ("x.", "x"), ("a@b", "b"), ("", ""), ("[", "")]
)
def test_the_name_of_a_host(host: str, name: str) -> None:
    assert host_name(host) == name


def test_assets_have_their_licences(client: TestClient) -> None:
    import streams.ui

    vendor = Path(streams.ui.__file__).with_name("assets") / "vendor"
    folders = [path for path in vendor.iterdir() if path.is_dir()]
    assert len(folders) == 3
    for folder in folders:
        assert (folder / "LICENSE").is_file(), folder
        for file in folder.iterdir():
            assert client.get(f"/assets/vendor/{folder.name}/{file.name}").status_code == 200


def test_every_file_of_the_page_is_in_the_wheel() -> None:
    import streams.ui

    folder = Path(streams.ui.__file__).parent
    project = tomllib.loads((folder.parents[1] / "pyproject.toml").read_text())
    packed = {
        path for pattern in project["tool"]["setuptools"]["package-data"]["streams.ui"] for path in folder.glob(pattern)
    }
    files = {path for path in folder.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    assert files == {path for path in packed if path.is_file()}
