"""Metrics as Prometheus would scrape them, and the alerts that fire on them.

`Series` keeps the samples of the metrics that the rules of ``deploy/prometheus/alerts.yaml`` name. `fired` gives them
to promtool, which evaluates the rules, as Prometheus does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.tools import debian_program

ALERTS: Final = Path(__file__).parents[3] / "deploy/prometheus/alerts.yaml"
SCRAPE_SECONDS: Final = 5
EVALUATION_SECONDS: Final = 5
PROMTOOL_SECONDS: Final = 300
_METRIC: Final = re.compile(r"\b(?:weft_[a-z_]+|up)\b")
_FIRED: Final = re.compile(r'alertname="(\w+)"(?:, part="([\w-]+)")?')


class Series:
    """Samples by series, one for each scrape; None where a series was absent."""

    def __init__(self) -> None:
        rules = [rule["expr"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
        self._named = {name for rule in rules for name in _METRIC.findall(rule)}
        self._samples: dict[str, list[float | None]] = {}
        self.scrapes = 0
        self.unanswered = 0
        self.values: dict[tuple[str, str], float] = {}
        """The values of the last scrape that succeeded, by name and part; the part of a table's metrics is ""."""

    def add(self, text: str | None) -> None:
        """Add one scrape: the text of the page, or None if it did not answer."""
        self.unanswered += text is None
        found = {'up{job="weft"}': float(text is not None)}
        if text is not None:
            self.values = {}
        for family in text_string_to_metric_families(text or ""):
            for name, labels, value, *_ in family.samples:
                self.values[name, labels.get("part", "")] = value
                if name in self._named:
                    inside = ", ".join(f'{label}="{text}"' for label, text in sorted(labels.items()))
                    found[f"{name}{{{inside}}}"] = value
        for series in self._samples.keys() | found.keys():
            samples = self._samples.setdefault(series, [None] * self.scrapes)
            samples.append(found.get(series))
        self.scrapes += 1

    def write_test(self, path: Path, rules: Path = ALERTS) -> None:
        """Write a test for promtool that expects no alert, so that it prints each that has fired."""
        seconds = self.scrapes * SCRAPE_SECONDS
        series = [
            {"series": name, "values": " ".join("_" if value is None else f"{value:g}" for value in samples)}
            for name, samples in sorted(self._samples.items())
        ]
        ever = f'count by (alertname, part) (last_over_time(ALERTS{{alertstate="firing"}}[{seconds + 60}s]))'
        test = {
            "name": "the soak",
            "interval": f"{SCRAPE_SECONDS}s",
            "input_series": series,
            "promql_expr_test": [{"expr": ever, "eval_time": f"{seconds}s", "exp_samples": []}],
        }
        whole = {"rule_files": [str(rules)], "evaluation_interval": f"{EVALUATION_SECONDS}s", "tests": [test]}
        path.write_text(yaml.safe_dump(whole, width=10**9), encoding="utf-8")


def fired(series: Series, folder: Path, rules: Path = ALERTS) -> set[tuple[str, str]]:
    """Alerts that have fired at some time, with their part; "" for those without one.

    Args:
        series: The samples.
        folder: Gets the file for promtool.
        rules: File of alert rules.

    Raises:
        Unavailable: promtool is not installed and cannot be fetched.
        RuntimeError: promtool refuses the file.
    """
    found = shutil.which("promtool")
    promtool = Path(found) if found else debian_program("prometheus", "promtool")
    test = folder / "alerts_test.yaml"
    series.write_test(test, rules)
    done = subprocess.run(
        [promtool, "test", "rules", test], capture_output=True, text=True, timeout=PROMTOOL_SECONDS, check=False
    )
    printed = done.stdout + done.stderr
    _, got, answer = printed.partition("got:")
    if not got and "SUCCESS" not in printed:
        raise RuntimeError(f"promtool: {printed[-1_000:]}")
    return {(alert, part) for alert, part in _FIRED.findall(answer)}


def judge_alerts(
    fired_alerts: set[tuple[str, str]], required: Mapping[tuple[str, str], str], allowed: set[tuple[str, str]]
) -> Iterator[str]:
    """What is wrong with the alerts that fired.

    Args:
        fired_alerts: From `fired`.
        required: Alerts that must have fired, with the reason.
        allowed: Alerts that may fire besides.
    """
    for (alert, part), why in required.items():
        if (alert, part) not in fired_alerts:
            yield f"{alert} did not fire for {part}: {why}"
    for alert, part in sorted(fired_alerts - required.keys() - allowed):
        yield f"{alert} fired for {part or 'the table'} without a reason"
