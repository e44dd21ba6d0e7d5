"""Who may ask: names of the server, other sites, tokens, and what a page may load."""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.storage.support.shop import SHOP, append, orders
from tests.streams.ui.site import ACCESS, HOST, ORIGIN, client_of, make_site
from weft import Table
from weft.storage.errors import InvalidInput
from weft.streams.ui.application import build_application
from weft.streams.ui.guard import Access, Guard, parse_authority
from weft.streams.ui.serve import TOKEN_VARIABLE, Serving, access_of

TOKEN = "a-token-that-is-long-enough"


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    table = Table.create(tmp_path_factory.mktemp("ui") / "wide", SHOP)
    append(table, orders(1, 2))
    return table.uri


@pytest.fixture
def client(uri: str) -> TestClient:
    return client_of(make_site(uri))


# Values that other servers have taken for a name of theirs: the port was not parsed, a parser of URLs was asked, or the
# text behind the brackets was left out.
FOREIGN_HOSTS = [
    *("evil.example", "evil.example:8088", "127.0.0.1.evil.example", "10.0.0.7", "", "[::1"),
    *("localhost:8088.evil.example", "localhost:8088@evil.example", "127.0.0.1:8088.evil.example", "localhost:"),
    *("localhost:65536", "localhost:99999", "localhost:-1", "localhost:0x50", "localhost:80:80", "localhost:8o"),
    *("evil.example@localhost", "user:word@localhost", "@localhost", "localhost@evil.example"),
    *("localhost/evil.example", "localhost/.evil.example", "localhost?evil.example", "localhost#.evil.example"),
    *("localhost\\.evil.example", "localhost,evil.example", "localhost evil.example", "localhost;evil.example"),
    *("[127.0.0.1]", "[localhost]", "::1", "[::1]evil.example", "[::1]]", "[::1].evil.example:8088", "[::1%25lo]"),
    *(
        "localhost..",
        ".localhost",
        "local\thost",
        "localhost%00.evil.example",
        "http://localhost",
        "0x7f.1",
        "2130706433",
    ),
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_name_that_is_not_of_this_server_is_refused(client: TestClient, host: str) -> None:
    """DNS rebinding: the name of another site resolves to this machine, and its page asks for the rows."""
    answer = client.get("/data", headers={"Host": host})
    assert answer.status_code == 421
    assert "order" not in answer.text


@pytest.mark.parametrize("host", [HOST, "localhost:8088", "LOCALHOST", "127.0.0.1", "localhost.", "localhost.:65535"])
def test_names_of_this_server_are_answered(client: TestClient, host: str) -> None:
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["[::1]", "[::1]:8088", "[2001:DB8::1]:8088", "10.0.0.7:8088"])
def test_addresses_are_answered_where_others_can_connect(uri: str, host: str) -> None:
    client = client_of(make_site(uri), Access(ACCESS.names, any_address=True))
    assert client.get("/", headers={"Host": host}).status_code == 200
    assert client.get("/", headers={"Host": f"{host}.evil.example"}).status_code == 421


@pytest.mark.parametrize("hosts", [(), (HOST, HOST), (HOST, "evil.example"), ("evil.example", HOST)], ids=str)
def test_a_request_with_none_or_several_hosts_is_refused(uri: str, hosts: tuple[str, ...]) -> None:
    """A proxy in between may have looked at another one of them."""
    statuses = []

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [(b"host", host.encode()) for host in hosts]
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": headers}
    asyncio.run(Guard(build_application(make_site(uri), ACCESS), ACCESS)(scope, receive, send))
    assert statuses[0] == 421


@given(text=st.text(st.sampled_from("localhost127.0.0.1[]:@/?#%\\.,; \t\x00évil٣"), max_size=40))
@example(text="localhost:٨٠")
def test_a_host_is_read_as_its_only_reading_or_not_at_all(text: str) -> None:
    authority = parse_authority(text)
    if authority is not None:
        name = f"[{authority.name}]" if ":" in authority.name else authority.name
        port = text.rpartition(":")[2] if authority.port is not None else None
        assert text.lower() in {name + dot + (f":{port}" if port else "") for dot in ("", ".")}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": f"{ORIGIN}.evil.example"},
        {"Origin": f"{ORIGIN}/"},
        {"Origin": f"http://user@{HOST}"},
        {"Origin": f"ftp://{HOST}"},
        {"Origin": HOST},
        {"Origin": f"{ORIGIN} {ORIGIN}"},
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


@pytest.mark.parametrize("name", ["weft.example.org:443", "https://weft.example.org", "a,b", "*.example.org", ""])
def test_an_allowed_host_that_no_request_can_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="--allow-host"):
        access_of(Serving(allow_hosts=(name,)), 8088)


@pytest.mark.parametrize(
    ("host", "authority"),
    [("A.b:80", ("a.b", 80)), ("[::1]:80", ("::1", 80)), ("x.", ("x", None)), ("a@b", None), ("", None), ("[", None)],
)
def test_the_name_and_port_of_a_host(host: str, authority: tuple[str, int | None] | None) -> None:
    assert parse_authority(host) == authority


@pytest.mark.parametrize(
    ("host", "origin"),
    [("localhost", "https://localhost"), ("localhost:443", "https://localhost"), ("LOCALHOST", "http://localhost:80")],
)
def test_the_port_of_a_scheme_may_be_left_out(uri: str, host: str, origin: str) -> None:
    """Behind a proxy with TLS the origin has another scheme than this server."""
    client = client_of(make_site(uri))
    assert client.post("/letters/replay", headers={"Host": host, "Origin": origin}).status_code == 400


def test_assets_have_their_licences(client: TestClient) -> None:
    import weft.streams.ui

    vendor = Path(weft.streams.ui.__file__).with_name("assets") / "vendor"
    folders = [path for path in vendor.iterdir() if path.is_dir()]
    assert len(folders) == 3
    for folder in folders:
        assert (folder / "LICENSE").is_file(), folder
        for file in folder.iterdir():
            assert client.get(f"/assets/vendor/{folder.name}/{file.name}").status_code == 200


def test_every_file_of_the_page_is_in_the_wheel() -> None:
    import weft.streams.ui

    folder = Path(weft.streams.ui.__file__).resolve().parent
    project = tomllib.loads((folder.parents[1] / "pyproject.toml").read_text())
    packed = {
        path
        for pattern in project["tool"]["setuptools"]["package-data"]["weft.streams.ui"]
        for path in folder.glob(pattern)
    }
    files = {path for path in folder.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    assert files == {path for path in packed if path.is_file()}
