"""A GET request to a server that a test has started."""

from __future__ import annotations

import urllib.request
from typing import Final

SECONDS: Final = 120.0  # a busy machine may take long


def get(url: str, seconds: float = SECONDS) -> str:
    """Return the text of a response.

    Raises:
        urllib.error.HTTPError: The status is an error.
        OSError: There is no response in time.
    """
    with urllib.request.urlopen(url, timeout=seconds) as response:
        text: str = response.read().decode()
        return text
