"""Who may read the pages: the token of the link, then a cookie; and the headers that keep hostile texts harmless.

Only names of this machine are accepted as `Host`: a page of another site whose name resolves to this machine gets
nothing. The port is not compared, since `ssh -L` may forward another one.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable

from aiohttp import web

from roll.errors import ConfigError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "roll",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def check_host(host: str) -> None:
    """Raise `ConfigError` unless only this machine can connect to the address."""
    if host == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ConfigError(
            f"--host {host}: the page is for this machine only (loopback); leave --host out, and from another machine "
            "use `ssh -L 8765:127.0.0.1:8765 THIS-MACHINE` with --port 8765"
        )


class Guard:
    """Checks every request and completes every response."""

    def __init__(self, token: str) -> None:
        self._token, self._session = token, secrets.token_urlsafe(32)
        self._cookie = f"roll_watch_{secrets.token_hex(4)}"  # cookies are shared by all ports of a machine

    async def check(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The response of the handler, or a refusal."""
        if not _local(request.headers.get("Host", "")):
            return _refuse(
                request, 421, "this name is not one of this machine; open the link that `roll watch` printed"
            )
        if request.method not in ("GET", "HEAD"):
            return _refuse(request, 405, "the pages only read; use GET")
        token = request.query.get("token")
        if token is not None and _equal(token, self._token):
            return self._admit(request)
        if not self._known(request):
            return _refuse(request, 403, "no access; open the link with the token that `roll watch` printed")
        return await handler(request)

    def _known(self, request: web.Request) -> bool:
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(bearer.strip(), self._token):
            return True
        return _equal(request.cookies.get(self._cookie, ""), self._session)

    def _admit(self, request: web.Request) -> web.Response:
        """The same address without the token, which then is in no history and no referrer."""
        query = {name: value for name, value in request.query.items() if name != "token"}
        location = str(request.rel_url.with_query(query))
        response = web.Response(status=303, headers={"Location": "/" + location.lstrip("/\\")})
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="Lax", path="/")
        return response


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Signal handler that completes the headers of every response, also of errors."""
    response.headers.update(_HEADERS)


def _local(host: str) -> bool:
    """Whether the header names this machine by an address of the loopback or as `localhost`."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _equal(text: str, secret: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(text.encode("utf-8", "replace"), secret.encode())


def _refuse(request: web.Request, status: int, reason: str) -> web.Response:
    if request.path.startswith("/api/"):
        return web.json_response({"error": reason}, status=status)
    return web.Response(text=f"{reason}\n", status=status)
