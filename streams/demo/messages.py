"""Formats the messages of the demo as JSON, from columns of numbers. Each topic has other conventions.

Pure functions. They use f-strings because a JSON encoder takes ten times as long. The pipeline file in
`streams.demo.shop` reads these messages.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Columns = dict[str, Ints]
"""Parallel columns with one number per message; `streams.demo.workload` creates them."""

START: Final = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
"""Time of the first events."""
DAYS: Final = 30


class _Words:
    """A list of JSON values, one of which is chosen by a digit (to base 7) of a random number.

    Columns that use different digits of the same number are independent.
    """

    def __init__(self, digit: int, *values: Any) -> None:
        self._divisor = 7**digit
        self._values = np.array([json.dumps(value, ensure_ascii=False) for value in values], dtype=object)

    def of(self, dice: Ints) -> list[str]:
        return self._values[dice // self._divisor % len(self._values)].tolist()


_BOOLEANS: Final = np.array(["false", "true"], dtype=object)
_COUNTRY: Final = _Words(0, "DE", "FR", "BR", "JP", "US", None)
_STATUS: Final = _Words(1, "new", "confirmed", "packed", "closed", "returned")
_CURRENCY: Final = _Words(2, "EUR", "BRL", "JPY", "USD")
_SKUS: Final = _Words(3, ["tea"], ["mug", "tea"], [], None, ["pot", "mug", "mug"], ['tin "No. 5"'], ["tea", None])
_METHOD: Final = _Words(0, "card", "transfer", "wallet", "invoice")
_PAY_EVENT: Final = _Words(1, "authorized", "captured", "captured", "refunded")
_FEE: Final = _Words(2, 0.1, 0.25, 1.5, None, 12.345678, 0.0)
_CARRIER: Final = _Words(0, "DHL", "Correios", "ヤマト運輸", "UPS", None)
_ADDRESS: Final = _Words(
    1,
    {"city": "Köln", "zip": "50667"},
    {"city": "São Paulo", "zip": "01310-100"},
    {"city": "横浜", "zip": None},
    None,
    {"city": "Portland", "zip": "97201"},
)
_WEIGHT: Final = _Words(2, 0.2, 1.75, 30.0, None, 2.5e-3)
_TIER: Final = _Words(0, "new", "silver", "gold", None)
_NAME: Final = _Words(1, "Ann", "Bjørn", "Chloé", "大輔", 'Eve "E."', "Farouk")
_PAGE: Final = _Words(0, "/cart", "/checkout", "/help?q=where+is+it", "/", None)
_DEVICES: Final = _Words(1, ["phone"], ["phone", "laptop"], [], ["tablet"])


def _money(cents: Ints) -> list[str]:
    """Amounts with two digits; a few are null."""
    return [f"{value // 100}.{value % 100:02d}" if value % 50 else "null" for value in cents.tolist()]


def _days(days: Ints) -> list[str]:
    names = np.array([(START.date() + dt.timedelta(day)).isoformat() for day in range(2 * DAYS)], dtype=object)
    return names[days].tolist()


def _iso(milliseconds: Ints) -> list[str]:
    return np.datetime_as_string(milliseconds.astype("datetime64[ms]"), unit="ms").tolist()


def _numbers(numbers: Ints) -> list[str]:
    """Numbers; 0 is null."""
    return [str(value) if value else "null" for value in numbers.tolist()]


def format_orders(columns: Columns) -> list[str]:
    """Change events in the format of Debezium: a deleted row is in ``before``, any other row in ``after``."""
    dice = columns["dice"]
    fields = zip(
        columns["key"].tolist(),
        _numbers(columns["customer"]),
        _STATUS.of(dice),
        _COUNTRY.of(dice),
        _CURRENCY.of(dice),
        _money(columns["money"]),
        _SKUS.of(dice),
        _BOOLEANS[dice % 2].tolist(),
        _days(columns["day"]),
        strict=True,
    )
    images = [
        f'{{"order_id":{key},"customer_id":{customer},"status":{status},"country":{country},"currency":{currency},'
        f'"amount":{amount},"skus":{skus},"gift":{gift},"ordered_on":"{day}"}}'
        for key, customer, status, country, currency, amount, skus, gift, day in fields
    ]
    kinds = np.where(columns["delete"] == 1, "d", np.where(columns["created"] == 1, "c", "u")).tolist()
    return [
        f'{{"op":"{kind}","ts_ms":{ms},"source":{{"connector":"postgresql","lsn":{seq}}},'
        f'"before":{image if kind == "d" else "null"},"after":{image if kind != "d" else "null"}}}'
        for kind, ms, seq, image in zip(kinds, columns["ms"].tolist(), columns["seq"].tolist(), images, strict=True)
    ]


def format_payments(columns: Columns) -> list[str]:
    """Events of a payment provider. ``voided`` deletes the payment. Amounts are text, as is usual with money."""
    dice = columns["dice"]
    return [
        f'{{"order":{key},"event":{kind},"no":{seq},"at":"{moment}Z","method":{method},"amount":{amount},"fee":{fee}}}'
        for key, kind, seq, moment, method, amount, fee in zip(
            columns["key"].tolist(),
            np.where(columns["delete"] == 1, '"voided"', np.array(_PAY_EVENT.of(dice), dtype=object)).tolist(),
            columns["seq"].tolist(),
            _iso(columns["ms"]),
            _METHOD.of(dice),
            [text if text == "null" else f'"{text}"' for text in _money(columns["money"])],
            _FEE.of(dice),
            strict=True,
        )
    ]


def format_shipments(columns: Columns) -> list[str]:
    """States of parcels. ``cancelled`` deletes the shipment."""
    dice = columns["dice"]
    return [
        f'{{"order_id":{key},"rev":{seq},"event_at":"{moment}+00:00","cancelled":{cancelled},"carrier":{carrier},'
        f'"tracking":"T{parcel:07d}","address":{address},"weight_kg":{weight},"delivered":{delivered},'
        f'"promised":"{day}"}}'
        for key, seq, moment, cancelled, carrier, parcel, address, weight, delivered, day in zip(
            columns["key"].tolist(),
            columns["seq"].tolist(),
            _iso(columns["ms"]),
            _BOOLEANS[columns["delete"]].tolist(),
            _CARRIER.of(dice),
            (dice % 10_000_000).tolist(),
            _ADDRESS.of(dice),
            _WEIGHT.of(dice),
            _BOOLEANS[dice // 3 % 2].tolist(),
            _days(columns["day"] + dice % 9),
            strict=True,
        )
    ]


def format_clicks(columns: Columns) -> list[str]:
    """Totals of a visit. ``expired`` is a delete that the table ignores."""
    dice = columns["dice"]
    return [
        f'{{"order_id":{key},"n":{seq},"us":{us},"expired":{expired},"views":{views},"seconds":{seconds},'
        f'"page":{page},"devices":{devices},"bounce":{bounce}}}'
        for key, seq, us, expired, views, seconds, page, devices, bounce in zip(
            columns["key"].tolist(),
            columns["seq"].tolist(),
            (columns["ms"] * 1000 + columns["ms"] % 997).tolist(),
            _BOOLEANS[columns["delete"]].tolist(),
            (dice % 97).tolist(),
            (columns["money"] / 128).tolist(),
            _PAGE.of(dice),
            _DEVICES.of(dice),
            _BOOLEANS[dice // 5 % 2].tolist(),
            strict=True,
        )
    ]


def format_customers(columns: Columns) -> list[str]:
    """Versions of customers. ``closed`` deletes the customer. The credit is in cents."""
    dice = columns["dice"]
    return [
        f'{{"id":{key},"version":{seq},"changed_ms":{ms},"closed":{closed},"name":{name},"tier":{tier},'
        f'"credit_cents":{credit}}}'
        for key, seq, ms, closed, name, tier, credit in zip(
            columns["key"].tolist(),
            columns["seq"].tolist(),
            columns["ms"].tolist(),
            _BOOLEANS[columns["delete"]].tolist(),
            _NAME.of(dice),
            _TIER.of(dice),
            columns["money"].tolist(),
            strict=True,
        )
    ]
