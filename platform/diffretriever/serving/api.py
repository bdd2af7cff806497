"""The routes of a service, as a FastAPI application with its OpenAPI description. It needs neither a server nor Ray."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi import Path as Place
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from diffretriever.schemas.serve import (
    DeleteResponse,
    EncodeRequest,
    EncodeResponse,
    Health,
    IndexResponse,
    IngestRequest,
    IngestResponse,
    Name,
    SearchRequest,
    SearchResponse,
)
from diffretriever.serving import description
from diffretriever.serving.description import answer, body
from diffretriever.serving.guard import Guard, Keys, SafeHeaders
from diffretriever.serving.problems import (
    InvalidError,
    MalformedError,
    NotAllowedError,
    NotFoundError,
    RequestError,
    UnsupportedError,
)
from diffretriever.serving.service import Service

_REFUSED = (400, 401, 408, 413, 415, 421, 422, 503)


def make_api(
    service: Service, keys: Keys, page: Path | None, exposition: Callable[[], Awaitable[str]] | None = None
) -> FastAPI:
    """Return the application.

    Args:
        service: answers.
        keys: that requests need.
        page: folder of the search page; None: no page.
        exposition: returns measurements in the text format of Prometheus; None: no `/metrics`.
    """
    # FastAPI's own pages load scripts from other sites. Its redirects go to the site in the Host header, with the key.
    api = FastAPI(
        title="DiffRetriever",
        summary="Search an index of passages, change it, and encode queries.",
        version="1",
        openapi_tags=description.TAGS,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={RequestError: _problem, RequestValidationError: _invalid, HTTPException: _http},
    )
    api.add_middleware(Guard, config=service.config, keys=keys, load=service.load)
    api.add_middleware(SafeHeaders)
    if service.config.cors_origins:
        api.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.config.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "X-API-Key", "Content-Type"],
        )
    _add_routes(api, service)
    if page is not None:
        for path, file in (("/", "index.html"), ("/compare", "compare.html"), ("/docs", "docs.html")):
            api.add_route(path, partial(_file, page / file), include_in_schema=False)
        api.mount("/static", StaticFiles(directory=page), name="static")
    if exposition is not None:

        @api.get("/metrics", include_in_schema=False)
        async def metrics() -> PlainTextResponse:
            return PlainTextResponse(await exposition(), media_type="text/plain; version=0.0.4")

    return api


def _add_routes(api: FastAPI, service: Service) -> None:
    keyed: dict[str, Any] = {"security": description.SECURITY}
    refused = description.refusals(*_REFUSED)
    writing = description.refusals(*_REFUSED, 403)

    @api.post("/search", tags=["search"], responses={**answer(description.FOUND), **refused}, openapi_extra=keyed)
    async def search(request: Annotated[SearchRequest, body(description.SEARCHING)]) -> SearchResponse:
        """Rank passages for one query or several."""
        return await service.search(request)

    @api.post("/encode", tags=["search"], responses={**answer(description.ENCODED), **refused}, openapi_extra=keyed)
    async def encode(
        request: Annotated[EncodeRequest, body(description.ENCODING)],
    ) -> EncodeResponse:
        """Return the vectors and words of queries."""
        return await service.encode(request)

    @api.get(
        "/index",
        tags=["service"],
        responses={**answer(description.DESCRIBED), **description.refusals(401, 421, 503)},
        openapi_extra=keyed,
    )
    async def describe() -> IndexResponse:
        """Describe the index: version, passages by collection, modes, search methods, limits."""
        return await service.describe()

    @api.post("/passages", tags=["passages"], responses={**answer(description.ADDED), **writing}, openapi_extra=keyed)
    async def ingest(
        request: Annotated[IngestRequest, body(description.ADDING)],
    ) -> IngestResponse:
        """Add passages, or replace those with their ids."""
        return await service.ingest(request)

    @api.delete(
        "/passages/{passage_id:path}",
        tags=["passages"],
        responses={**answer(description.DELETED), **writing, **description.refusals(404)},
        openapi_extra=keyed,
    )
    async def delete(
        passage_id: Annotated[Name, Place(description="Id of the passage.", examples=["note-1"])],
    ) -> DeleteResponse:
        """Delete one passage."""
        return await service.delete(passage_id)

    @api.get("/healthz", tags=["service"], responses=answer(description.WELL))
    async def alive() -> Health:
        """Answer while the process is alive."""
        return Health(status="ok")

    @api.get("/readyz", tags=["service"], responses={**answer(description.WELL), **description.refusals(503)})
    async def ready() -> Health:
        """Answer while searches can be answered."""
        await service.check()
        return Health(status="ok")

    @api.get("/openapi.json", include_in_schema=False)
    async def described(request: Request) -> JSONResponse:
        document = api.openapi()
        components = {
            kind: {**document["components"].get(kind, {}), **further}
            for kind, further in description.COMPONENTS.items()
        }
        servers = [{"url": request.scope.get("root_path", "") or "/", "description": "This server"}]
        return JSONResponse({**document, "servers": servers, "components": components})


async def _file(path: Path, _: Request) -> FileResponse:
    return FileResponse(path)


async def _problem(request: Request, error: Any) -> Response:
    response: Response = error.response(request.url.path)
    return response


async def _invalid(request: Request, error: Any) -> Response:
    if isinstance(error.body, bytes) and error.body:
        # FastAPI does not parse a body whose content type is not JSON.
        return await _problem(request, UnsupportedError(request.headers.get("content-type", "")))
    errors = error.errors()
    first = errors[0]
    if first["type"] == "json_invalid":
        detail = f"the body is no JSON: {first['ctx']['error']}"
        return await _problem(request, MalformedError(detail, "send one JSON object, encoded as UTF-8"))
    field = _field(first)
    # Each alternative of a union (`adaptive`, a number) has a message.
    messages = dict.fromkeys(str(each["msg"]) for each in errors if _field(each) == field)
    detail = "; or: ".join(messages).removeprefix("Value error, ")
    return await _problem(request, InvalidError(detail, "see /openapi.json for what can be sent", field))


async def _http(request: Request, error: Any) -> Response:
    if error.status_code == 404:
        problem: RequestError = NotFoundError("nothing is at this path", "see /openapi.json for all paths")
    elif error.status_code == 405:
        problem = NotAllowedError((error.headers or {}).get("Allow", ""))
    else:
        problem = MalformedError(str(error.detail), "see /openapi.json for what can be sent")
    return await _problem(request, problem)


def _field(error: dict[str, Any]) -> str | None:
    """Return the position of an error in the body, without the types of a union's alternatives (`str`, `list[str]`)."""
    types = {"str", "int", "float", "bool", "Filter"}
    parts = [str(part) for part in error["loc"][1:]]
    return ".".join(part for part in parts if part.isdigit() or (part.isidentifier() and part not in types)) or None
