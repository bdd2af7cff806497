"""What both clients are made with: the address, the key, how long to wait."""

from __future__ import annotations

from typing import Any

import httpx2

DEFAULT_URL = "http://localhost:8000"


def connection(url: str, api_key: str | None, timeout_s: float) -> dict[str, Any]:
    """Return the arguments of an HTTP client. The key travels in a header, and redirects are not followed with it.

    Raises:
        ValueError: the address is none of HTTP, the key cannot stand in a header, or the time is not positive.
    """
    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL as error:
        raise ValueError(f"url {url!r} is no address ({error}): give one such as {DEFAULT_URL}") from error
    if address.scheme not in {"http", "https"} or not address.host:
        raise ValueError(f"url {url!r} is no address of HTTP: give one such as {DEFAULT_URL}")
    if timeout_s <= 0:
        raise ValueError(f"timeout_s is {timeout_s}: give a number of seconds above 0")
    headers = {"accept": "application/json, application/problem+json", "content-type": "application/json"}
    if api_key is not None:
        if not api_key or not all("!" <= letter <= "~" for letter in api_key):
            raise ValueError("api_key: give printable ASCII characters without spaces")
        headers["authorization"] = f"Bearer {api_key}"
    return {"base_url": address, "headers": headers, "timeout": timeout_s, "follow_redirects": False}
