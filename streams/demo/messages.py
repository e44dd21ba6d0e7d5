"""Formats the messages of the demo as JSON, from columns of numbers, by pure functions.

Each topic has other conventions. The pipeline file in `weft.streams.demo.shop` reads these messages.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

Ints = npt.NDArray[np.int64]
Columns = dict[str, Ints]
"""Parallel columns with one number per message; `weft.streams.demo.workload` creates them."""

START: Final = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
"""Time of the first events."""
DAYS: Final = 30

_COUNTRIES: Final = ("DE", "FR", "BR", "JP", "US", None)
_STATUSES: Final = ("new", "confirmed", "packed", "closed", "returned")
_CURRENCIES: Final = ("EUR", "BRL", "JPY", "USD")
_SKUS: Final[Sequence[Any]] = (["tea"], ["mug", "tea"], [], None, ["pot", "mug", "mug"], ['tin "No. 5"'], ["tea", None])
_METHODS: Final = ("card", "transfer", "wallet", "invoice")
_PAY_EVENTS: Final = ("authorized", "captured", "captured", "refunded")
_FEES: Final = (0.1, 0.25, 1.5, None, 12.345678, 0.0)
_CARRIERS: Final = ("DHL", "Correios", "ヤマト運輸", "UPS", None)
_ADDRESSES: Final = (
    {"city": "Köln", "zip": "50667"},
    {"city": "São Paulo", "zip": "01310-100"},
    {"city": "横浜", "zip": None},
    None,
    {"city": "Portland", "zip": "97201"},
)
_WEIGHTS: Final = (0.2, 1.75, 30.0, None, 2.5e-3)
_PAGES: Final = ("/cart", "/checkout", "/help?q=where+is+it", "/", None)
_DEVICES: Final[Sequence[Any]] = (["phone"], ["phone", "laptop"], [], ["tablet"])


def _choose(values: Sequence[Any], dice: Ints, digit: int) -> npt.NDArray[np.object_]:
    """Choose values by a digit (to base 7) of random numbers; columns of different digits are independent."""
    return _objects(values)[dice // 7**digit % len(values)]


def _objects(values: Sequence[Any], nulls: npt.NDArray[np.bool_] | None = None) -> npt.NDArray[np.object_]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    if nulls is not None:
        array[nulls] = None
    return array


def _amounts(cents: Ints) -> npt.NDArray[np.object_]:
    """Convert cents to amounts of money; a few are null."""
    return _objects((cents / 100).tolist(), cents % 50 == 0)


def _days(days: Ints) -> list[str]:
    return np.datetime_as_string(np.datetime64(START.date()) + days).tolist()


def _times(milliseconds: Ints, zone: str) -> list[str]:
    return [text + zone for text in np.datetime_as_string(milliseconds.astype("datetime64[ms]"), unit="ms").tolist()]


def _lines(**columns: Any) -> list[str]:
    """Format each row as a JSON object."""
    text = pd.DataFrame(columns).to_json(orient="records", lines=True, force_ascii=False)
    return text.removesuffix("\n").split("\n")


def format_orders(columns: Columns) -> list[str]:
    """Format change events as Debezium does: a deleted row is in ``before``, any other row in ``after``."""
    dice, deleted = columns["dice"], columns["delete"] == 1
    rows = pd.DataFrame(
        {
            "order_id": columns["key"],
            "customer_id": _objects((dice % 100_000).tolist(), dice % 97 == 0),
            "status": _choose(_STATUSES, dice, 1),
            "country": _choose(_COUNTRIES, dice, 0),
            "currency": _choose(_CURRENCIES, dice, 2),
            "amount": _amounts(columns["money"]),
            "skus": _choose(_SKUS, dice, 3),
            "gift": dice % 2 == 1,
            "ordered_on": _days(columns["day"]),
        }
    )
    images = rows.to_dict("records")
    return _lines(
        op=np.where(deleted, "d", np.where(columns["created"] == 1, "c", "u")),
        ts_ms=columns["ms"],
        source=[{"connector": "postgresql", "lsn": number} for number in columns["seq"].tolist()],
        before=_objects(images, ~deleted),
        after=_objects(images, deleted),
    )


def format_payments(columns: Columns) -> list[str]:
    """Format events of a payment provider. ``voided`` deletes the payment. Amounts are texts, as usual with money."""
    dice = columns["dice"]
    return _lines(
        order=columns["key"],
        event=np.where(columns["delete"] == 1, "voided", _choose(_PAY_EVENTS, dice, 1)),
        no=columns["seq"],
        at=_times(columns["ms"], "Z"),
        method=_choose(_METHODS, dice, 0),
        amount=[None if amount is None else f"{amount:.2f}" for amount in _amounts(columns["money"])],
        fee=_choose(_FEES, dice, 2),
    )


def format_shipments(columns: Columns) -> list[str]:
    """Format states of parcels. ``cancelled`` deletes the shipment."""
    dice = columns["dice"]
    return _lines(
        order_id=columns["key"],
        rev=columns["seq"],
        event_at=_times(columns["ms"], "+00:00"),
        cancelled=columns["delete"] == 1,
        carrier=_choose(_CARRIERS, dice, 0),
        tracking=[f"T{number:07d}" for number in (dice % 10_000_000).tolist()],
        address=_choose(_ADDRESSES, dice, 1),
        weight_kg=_choose(_WEIGHTS, dice, 2),
        delivered=dice // 3 % 2 == 1,
        promised=_days(columns["day"] + dice % 9),
    )


def format_clicks(columns: Columns) -> list[str]:
    """Format totals of a visit. ``expired`` is a delete that the table ignores."""
    dice = columns["dice"]
    return _lines(
        order_id=columns["key"],
        n=columns["seq"],
        us=columns["ms"] * 1000 + columns["ms"] % 997,
        expired=columns["delete"] == 1,
        views=dice % 97,
        seconds=columns["money"] / 128,
        page=_choose(_PAGES, dice, 0),
        devices=_choose(_DEVICES, dice, 1),
        bounce=dice // 5 % 2 == 1,
    )
