"""``weft init``: what it asks on a terminal, what flags answer, and that its result runs as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.streams.support.pipelines import weft
from tests.streams.support.terminal import run
from weft.streams.pipeline.file.pipeline import load_pipeline

ORDERS = "order_id bigint, status string, total decimal(12,2), street string, city string, ts timestamp"
PAYMENTS = "order_id bigint, paid double, ts timestamp"


def init(folder: Path, *flags: str) -> dict[str, object]:
    done = weft("init", folder, "--no-look", *flags)
    assert done.exit_code == 0, done.output
    loaded: dict[str, object] = yaml.safe_load((folder / "pipeline.yaml").read_text())
    load_pipeline(folder / "pipeline.yaml")
    return loaded


def test_without_a_terminal_it_never_asks(tmp_path: Path) -> None:
    """Without topics it writes the commented example, as with --example."""
    assert weft("init", tmp_path / "a").exit_code == 0
    assert run([["init", tmp_path / "b", "--example"]]).errors == ""
    assert (tmp_path / "a/pipeline.yaml").read_text() == (tmp_path / "b/pipeline.yaml").read_text()
    failed = weft("init", tmp_path / "c", "--topic", "orders", "--no-look")
    assert failed.exit_code == 2
    assert "the fields of topic orders are not known" in failed.stderr
    assert "--fields 'orders=NAME TYPE, ...'" in failed.stderr
    named = ["--key", "number,orders=no,other=x", "--ordering", "orders=changed"]
    failed = weft("init", tmp_path / "c", "--topic", "orders", "--no-look", *named)
    assert "--fields 'orders=number TYPE, no TYPE, changed TYPE, ...'" in failed.stderr
    assert not (tmp_path / "c").exists()


def test_flags_answer_everything(tmp_path: Path) -> None:
    flags = ["--topic", "shop.orders,shop.payments", "--fields", f"shop.orders={ORDERS}"]
    flags += ["--fields", f"shop.payments={PAYMENTS}", "--key", "order_id", "--ordering", "shop.orders=ts"]
    flags += ["--group", "shop.orders=address: street, city", "--table", "s3://lake/w", "--brokers", "k:9092"]
    written = init(tmp_path / "new", *flags)
    table = written["table"]
    assert isinstance(table, dict)
    assert table["uri"] == "s3://lake/w"
    assert table["config"]["key"] == ["order_id"]
    assert table["config"]["columns"]["total"] == "decimal(12,2)"
    assert table["config"]["groups"] == {
        "orders": {"columns": ["status", "total", "orders_ts"], "ordering": ["orders_ts"]},
        "payments": {"columns": ["paid", "payments_ts"], "ordering": ["payments_ts"]},
        "address": {"columns": ["street", "city", "address_orders_ts"], "ordering": ["address_orders_ts"]},
    }
    assert table["config"]["streams"]["orders"] == {"groups": ["orders", "address"]}
    assert written["kafka"] == {"bootstrap.servers": "k:9092"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--key", "nothing"], "key: topic orders has no field 'nothing'"),
        (["--ordering", "orders=order_id"], "a key column orders nothing"),
        (["--ordering", "orders=when"], "ordering: topic orders has no field 'when'"),
        (["--ordering", "ts"], "--ordering 'ts' is not TOPIC=..."),
        (["--group", "orders=a: nothing"], "group a: topic orders has no field 'nothing'"),
        (["--group", "orders=street, city"], "is not GROUP: FIELD, FIELD"),
        (["--group", "orders=a: order_id"], "column 'order_id' is in the key"),
        (["--group", "orders=orders: city"], "there is already a group 'orders'"),
        (["--fields", "orders=order_id"], "'order_id' is not NAME TYPE"),
        (["--fields", "orders=order_id bigint, x nonsense"], "nonsense"),
        (["--registry", "http://r"], "--registry: format json has no schemas in a registry"),
        (["--format", "xml"], "there is no message format 'xml'"),
        (["--topic", "b.orders"], "two topics give the stream 'orders'"),
    ],
)
def test_a_wrong_flag_is_refused_and_nothing_is_written(tmp_path: Path, flags: list[str], message: str) -> None:
    given = ["--topic", "orders", "--no-look"]
    given += [] if "--fields" in flags else ["--fields", f"orders={ORDERS}"]
    done = weft("init", tmp_path / "new", *given, *flags)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert not (tmp_path / "new").exists()


def test_each_answer_is_checked_at_once_and_asked_again(tmp_path: Path) -> None:
    answers = ["localhost:1", "orders", "xml", "json", "order_id", ORDERS, "nothing", "order_id", "when", "ts", "-", ""]
    shown = run([["init", tmp_path / "new", "--no-look"]], standard_input="\n".join(answers) + "\n")
    for problem in ("there is no message format 'xml'", "'order_id' is not NAME TYPE", "has no field 'nothing'"):
        assert problem in shown.words.replace("\r\n", " ")
    assert "is written. Next: weft check" in shown.output
    pipeline = load_pipeline(tmp_path / "new/pipeline.yaml")
    assert pipeline.table.uri.endswith("/new/lake/new_wide")
    assert pipeline.config is not None
    assert pipeline.config.groups["orders"].ordering == ["ts"]


def test_the_summary_and_the_file_say_what_is_written(tmp_path: Path) -> None:
    flags = ["--topic", "visits,orders", "--fields", "visits=session_id bigint, page string, at timestamp"]
    flags += ["--fields", "orders=session_id bigint, total double, version int, at timestamp"]
    done = weft("init", tmp_path / "new", "--no-look", *flags, "--ordering", "orders=at")
    assert done.exit_code == 0, done.output
    told = ["visits: key: session_id", "visits: ordering: at", "orders: key: session_id", "orders: ordering: at"]
    assert done.stdout.splitlines()[:-1] == told
    text = (tmp_path / "new/pipeline.yaml").read_text()
    assert [line.removeprefix("# ") for line in text.splitlines() if line[2:] in told] == told
    groups = yaml.safe_load(text)["table"]["config"]["groups"]
    ordering = {name: group["ordering"] for name, group in groups.items()}
    assert ordering == {"visits": ["visits_at"], "orders": ["orders_at"]}
    assert weft("init", tmp_path / "other", "--no-look", *flags).stdout.splitlines()[3] == "orders: ordering: version"
