"""The page and the Python client against the application itself, over a small index of a random model."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import httpx2
import pytest
import uvicorn

from diffretriever.client import ProblemError, Retries, SearchClient
from diffretriever.schemas.serve import PassageIn
from diffretriever.serving.api import make_api
from diffretriever.serving.guard import Keys
from tests.browser.driving import Page
from tests.browser.stub import STATIC
from tests.serving.serving_cases import QUERIES, local_service, random_encoder, small_index

KEY = "a-key-for-tests"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("app")
    index = small_index(random_encoder(folder / "model"), str(folder / "index"))
    api = make_api(local_service(index.uri), Keys.of(KEY), STATIC)
    server = uvicorn.Server(uvicorn.Config(api, log_level="warning", ws="none", loop="asyncio"))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def test_page_searches_the_application(browser: Page, address: str) -> None:
    browser.begin(address)
    browser.go("/", q=QUERIES[2], mode="hybrid", budget="adaptive")
    browser.one("#key").send_keys(KEY)
    browser.one(".key button").click()
    browser.until("return document.querySelector('.hit')")
    with SearchClient(address, api_key=KEY) as client:
        expected = client.search(QUERIES[2], mode="hybrid", budget="adaptive").results[0]
    assert browser.texts(".hit h2") == [hit.title for hit in expected.hits]
    assert browser.one(".slots strong").text.split()[0] == str(expected.budget.slots)
    browser.one(".hit .why").click()
    browser.explained()
    assert len(browser.all(".picture .line")) == expected.budget.slots
    assert all("401" in error for error in browser.errors())
    browser.driver.get(f"{address}/compare?q=heat")
    browser.until("return document.querySelectorAll('#list-b li').length")
    assert browser.errors() == []
    browser.leave()


def test_page_of_the_api_lists_all_operations_and_fields(browser: Page, address: str) -> None:
    browser.begin(address)
    browser.driver.get(f"{address}/docs")
    browser.until("return document.querySelector('.operation')")
    with httpx2.Client(base_url=address) as client:
        paths = client.get("/openapi.json").json()["paths"]
    asked = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert set(browser.texts(".operation > summary code")) == asked
    for summary in browser.all(".operation > summary"):
        summary.click()
    text = browser.one("#operations").text
    assert f"curl -X POST '{address}/search'" in text
    assert "urn:diffretriever:problem:content-type" in text
    assert "Number of the query slot, counted from 0." in text
    assert browser.errors() == []
    browser.leave()


def test_client_against_the_application(address: str) -> None:
    with SearchClient(address, api_key=KEY) as client:
        served = client.index()
        answer = client.search(QUERIES, k=3, budget=2, explain=True)
        assert [result.query for result in answer.results] == QUERIES
        assert all(len(result.hits) == 3 and result.budget.slots == 2 for result in answer.results)
        assert len(client.encode("heat", budget=2).results[0].slots) == 2
        with pytest.raises(ProblemError, match="k: ") as caught:
            client.search("heat", k=served.limits.max_k + 1)
        assert caught.value.field == "k"
        passage = PassageIn(id="a/b?c", title="An unheard-of thing", text="that nobody has written of")
        added = client.add_passages([passage])
        assert (added.added, client.index().index.version) == (1, added.version)
        assert client.delete_passage("a/b?c").deleted == 1
        with pytest.raises(ProblemError) as gone:
            client.delete_passage("a/b?c")
        assert gone.value.status == 404
    with SearchClient(address, retries=Retries(attempts=1)) as stranger, pytest.raises(ProblemError) as refused:
        stranger.search("heat")
    assert refused.value.status == 401
