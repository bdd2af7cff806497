"""The routes over a service, as a FastAPI application with its OpenAPI description; no server and no Ray in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi import Path as Place
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
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
from diffretriever.serving.description import answer
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
        service: that answers.
        keys: that requests need; `Keys()` asks for none.
        page: folder of the search page; None serves none.
        exposition: returns measurements in the text format of Prometheus; None serves none.
    """
    # FastAPI's own pages would load scripts from elsewhere.
    api = FastAPI(
        title=description.TITLE,
        summary=description.SUMMARY,
        version="1",
        openapi_tags=description.TAGS,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        # It would send a client, with its key, to wherever its Host header says.
        redirect_slashes=False,
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
    _add_problems(api)
    _add_routes(api, service)
    if page is not None:
        _add_page(api, page)
    if exposition is not None:
        _add_metrics(api, exposition)
    return api


def _add_routes(api: FastAPI, service: Service) -> None:
    keyed: dict[str, Any] = {"security": description.SECURITY}
    refused = description.refusals(*_REFUSED)
    writing = description.refusals(*_REFUSED, 403)

    @api.post("/search", tags=["search"], responses={**answer(description.FOUND), **refused}, openapi_extra=keyed)
    async def search(request: Annotated[SearchRequest, _body(description.SEARCHES)]) -> SearchResponse:
        """Rank passages for one query or several."""
        return await service.search(request)

    @api.post("/encode", tags=["search"], responses={**answer(description.ENCODED), **refused}, openapi_extra=keyed)
    async def encode(
        request: Annotated[EncodeRequest, _body({"query": ("One query", description.ENCODING)})],
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
        """Say what is searched, and what may be asked."""
        return await service.describe()

    @api.post("/passages", tags=["passages"], responses={**answer(description.ADDED), **writing}, openapi_extra=keyed)
    async def ingest(
        request: Annotated[IngestRequest, _body({"notes": ("Two passages", description.ADDING)})],
    ) -> IngestResponse:
        """Add passages, or put them in place of those with their ids."""
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
        """Answer while the process lives."""
        return Health(status="ok")

    @api.get("/readyz", tags=["service"], responses={**answer(description.WELL), **description.refusals(503)})
    async def ready() -> Health:
        """Answer while searches can be answered: a replica takes no requests before."""
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


def _body(examples: Mapping[str, tuple[str, BaseModel]]) -> Any:
    return Body(openapi_examples=description.bodies(examples))


def _add_metrics(api: FastAPI, exposition: Callable[[], Awaitable[str]]) -> None:
    # No operation of the interface: what it answers is described by Prometheus, and read by that.
    @api.get("/metrics", include_in_schema=False)
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(await exposition(), media_type="text/plain; version=0.0.4")


def _add_page(api: FastAPI, page: Path) -> None:
    @api.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(page / "index.html")

    @api.get("/compare", include_in_schema=False)
    async def compare() -> FileResponse:
        return FileResponse(page / "compare.html")

    @api.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(page / "docs.html")

    api.mount("/static", StaticFiles(directory=page), name="static")


def _add_problems(api: FastAPI) -> None:
    @api.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        return _response(error, request)

    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        sent = request.headers.get("content-type", "")
        # A body that is not said to be JSON has not been read.
        unread = isinstance(error.body, bytes) and error.body
        return _response(UnsupportedError(sent) if unread else _explained(error), request)

    @api.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return _response(_of_status(error), request)


def _response(error: RequestError, request: Request) -> Response:
    content = error.problem(request.url.path).model_dump_json()
    return Response(content, error.status, error.headers(), "application/problem+json")


def _explained(error: RequestValidationError) -> RequestError:
    errors = error.errors()
    first = errors[0]
    if first["type"] == "json_invalid":
        return MalformedError(f"the body is no JSON: {first['ctx']['error']}", "send one JSON object, encoded as UTF-8")
    field = _field(first)
    # Every alternative of a union (`adaptive`, a number) has said why it is not meant.
    messages = dict.fromkeys(str(each["msg"]) for each in errors if _field(each) == field)
    message = "; or: ".join(messages).removeprefix("Value error, ")
    return InvalidError(message, "see /openapi.json for what can be sent", field)


def _field(error: dict[str, Any]) -> str | None:
    """Return the place of an error in the body, without the names of a union's alternatives (`str`, `list[str]`)."""
    place = [str(part) for part in error["loc"][1:] if isinstance(part, int) or _is_name(part)]
    return ".".join(place) or None


def _is_name(part: str) -> bool:
    return part.isidentifier() and part not in {"str", "int", "float", "bool", "Filter"}


def _of_status(error: HTTPException) -> RequestError:
    if error.status_code == 404:
        return NotFoundError("nothing is at this path", "see /openapi.json for what can be asked")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return NotAllowedError("the path does not take this method", f"it takes {allowed}", allowed)
    return MalformedError(str(error.detail), "see /openapi.json for what can be sent")
