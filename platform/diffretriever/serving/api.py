"""Routes of a service, as a FastAPI application with its OpenAPI description. Needs neither a server nor Ray."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi import Path as PathParameter
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
from diffretriever.serving.description import body
from diffretriever.serving.guard import Guard, Keys, SecurityHeaders
from diffretriever.serving.problems import (
    InvalidError,
    MalformedError,
    NotAllowedError,
    NotFoundError,
    RequestError,
    UnsupportedError,
)
from diffretriever.serving.service import Service

_ERRORS = (400, 401, 408, 413, 415, 421, 422, 503)


def make_api(
    service: Service, keys: Keys, page: Path | None, exposition: Callable[[], Awaitable[str]] | None = None
) -> FastAPI:
    """Return the ASGI application of a service.

    Args:
        service: handles the requests.
        keys: API keys that requests need.
        page: folder of the search page. Default: no page.
        exposition: returns metrics in Prometheus text format. Default: no `/metrics`.
    """
    # FastAPI's pages load scripts from other sites; its redirects send the key to the site in the Host header.
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
    api.add_middleware(SecurityHeaders)
    if service.config.cors_origins:
        api.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.config.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],
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
    read_problems = description.problem_responses(*_ERRORS)
    write_problems = description.problem_responses(*_ERRORS, 403)

    @api.post("/search", tags=["search"], responses=read_problems, openapi_extra=keyed)
    async def search_passages(request: Annotated[SearchRequest, body(description.SEARCHING)]) -> SearchResponse:
        """Rank passages for one query or several."""
        return await service.search(request)

    @api.post("/encode", tags=["search"], responses=read_problems, openapi_extra=keyed)
    async def encode_queries(request: Annotated[EncodeRequest, body(description.ENCODING)]) -> EncodeResponse:
        """Return the vectors and weighted words of queries."""
        return await service.encode(request)

    @api.get("/index", tags=["service"], responses=description.problem_responses(401, 421, 503), openapi_extra=keyed)
    async def describe_index() -> IndexResponse:
        """Describe the index: version, collections, modes, metadata columns, search methods, limits."""
        return await service.describe()

    @api.post("/passages", tags=["passages"], responses=write_problems, openapi_extra=keyed)
    async def add_passages(request: Annotated[IngestRequest, body(description.ADDING)]) -> IngestResponse:
        """Add passages, or replace those with the same ids."""
        return await service.ingest(request)

    @api.delete(
        "/passages/{passage_id:path}",
        tags=["passages"],
        responses=write_problems | description.problem_responses(404),
        openapi_extra=keyed,
    )
    async def delete_passage(
        passage_id: Annotated[Name, PathParameter(description="Id of the passage.", examples=["note-1"])],
    ) -> DeleteResponse:
        """Delete a passage."""
        return await service.delete(passage_id)

    @api.get("/healthz", tags=["service"])
    async def check_liveness() -> Health:
        """Return status 200 while the process runs."""
        return Health(status="ok")

    @api.get("/readyz", tags=["service"], responses=description.problem_responses(503))
    async def check_readiness() -> Health:
        """Return status 200 if the server can search, otherwise 503."""
        await service.check()
        return Health(status="ok")

    @api.get("/openapi.json", include_in_schema=False)
    async def described(request: Request) -> JSONResponse:
        document = api.openapi()
        components = {
            kind: {**document["components"].get(kind, {}), **fields} for kind, fields in description.COMPONENTS.items()
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
        # FastAPI leaves a body unparsed if its content type is not JSON.
        return await _problem(request, UnsupportedError(request.headers.get("content-type", "")))
    errors = error.errors()
    first = errors[0]
    if first["type"] == "json_invalid":
        detail = f"the body is not JSON: {first['ctx']['error']}"
        return await _problem(request, MalformedError(detail, "send one JSON object, encoded as UTF-8"))
    field = _field(first)
    # Each alternative of a union (`adaptive`, a number) has a message.
    messages = dict.fromkeys(str(item["msg"]) for item in errors if _field(item) == field)
    detail = "; or: ".join(messages).removeprefix("Value error, ")
    return await _problem(request, InvalidError(detail, "see /openapi.json for valid requests", field))


async def _http(request: Request, error: Any) -> Response:
    if error.status_code == 404:
        problem: RequestError = NotFoundError("unknown path", "see /openapi.json for all paths")
    elif error.status_code == 405:
        problem = NotAllowedError((error.headers or {}).get("Allow", ""))
    else:
        problem = MalformedError(str(error.detail), "see /openapi.json for valid requests")
    return await _problem(request, problem)


def _field(error: dict[str, Any]) -> str | None:
    """Return the path of an error in the body, without the types of a union's alternatives."""
    types = {"str", "int", "float", "bool"}
    parts = [str(part) for part in error["loc"][1:]]
    return ".".join(part for part in parts if part.isdigit() or (part.isidentifier() and part not in types)) or None
