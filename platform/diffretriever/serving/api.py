"""The routes over a service, as a FastAPI application with its OpenAPI description; no server and no Ray in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
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
    Problem,
    SearchRequest,
    SearchResponse,
)
from diffretriever.serving.guard import Guard, SafeHeaders
from diffretriever.serving.problems import (
    InvalidError,
    MalformedError,
    NotAllowedError,
    NotFoundError,
    RequestError,
)
from diffretriever.serving.service import Service

_REFUSED = (400, 401, 408, 413, 422, 503)
_PROBLEM: dict[str, Any] = {
    "model": Problem,
    "description": "What is wrong, and what to do",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def make_api(service: Service, key: bytes | None, page: Path | None) -> FastAPI:
    """Return the application.

    Args:
        service: that answers.
        key: `guard.key_digest` of the API key; None asks for none.
        page: folder of the search page; None serves none.
    """
    # Its pages of documentation would load scripts from elsewhere.
    api = FastAPI(title="DiffRetriever", version="1", docs_url=None, redoc_url=None)
    api.add_middleware(Guard, config=service.config, key=key)
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
    return api


def _add_routes(api: FastAPI, service: Service) -> None:
    refused: dict[int | str, dict[str, Any]] = dict.fromkeys(_REFUSED, _PROBLEM)

    @api.post("/search", responses=refused)
    async def search(request: SearchRequest) -> SearchResponse:
        """Rank passages for one query or several."""
        return await service.search(request)

    @api.post("/encode", responses=refused)
    async def encode(request: EncodeRequest) -> EncodeResponse:
        """Return the vectors and words of queries."""
        return await service.encode(request)

    @api.get("/index", responses=dict.fromkeys((401, 503), _PROBLEM))
    async def describe() -> IndexResponse:
        """Say what is searched, and what may be asked."""
        return await service.describe()

    @api.post("/passages", responses=refused)
    async def ingest(request: IngestRequest) -> IngestResponse:
        """Add passages, or put them in place of those with their ids."""
        return await service.ingest(request)

    @api.delete("/passages/{passage_id:path}", responses={**refused, 404: _PROBLEM})
    async def delete(passage_id: str) -> DeleteResponse:
        """Delete one passage."""
        return await service.delete(passage_id)

    @api.get("/healthz")
    async def alive() -> Health:
        """Answer while the process lives."""
        return Health(status="ok")

    @api.get("/readyz", responses={503: _PROBLEM})
    async def ready() -> Health:
        """Answer while searches can be answered: a replica takes no requests before."""
        await service.check()
        return Health(status="ok")


def _add_page(api: FastAPI, page: Path) -> None:
    @api.get("/", include_in_schema=False)
    async def index() -> FileResponse:
        return FileResponse(page / "index.html")

    @api.get("/compare", include_in_schema=False)
    async def compare() -> FileResponse:
        return FileResponse(page / "compare.html")

    api.mount("/static", StaticFiles(directory=page), name="static")


def _add_problems(api: FastAPI) -> None:
    @api.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        return _response(error, request)

    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _response(_explained(error), request)

    @api.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return _response(_of_status(error), request)


def _response(error: RequestError, request: Request) -> Response:
    content = error.problem(request.url.path).model_dump_json()
    return Response(content, error.status, error.headers(), "application/problem+json")


def _explained(error: RequestValidationError) -> RequestError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return MalformedError(f"the body is no JSON: {first['ctx']['error']}", "send one JSON object, encoded as UTF-8")
    field = _field(first)
    # Every alternative of a union (`adaptive`, a number) has said why it is not meant.
    messages = dict.fromkeys(str(each["msg"]) for each in error.errors() if _field(each) == field)
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
