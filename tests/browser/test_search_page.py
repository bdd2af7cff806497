"""The search page in Chromium, on recorded answers."""

from __future__ import annotations

from tests.browser.driving import Page
from tests.browser.stub import TIDES, Stub, recorded, titles


def test_typed_query_is_answered(page: Page, stub: Stub) -> None:
    page.go("/")
    assert page.focused() == "q"
    assert page.one("#welcome").is_displayed()
    page.search(TIDES)
    answer = recorded(TIDES)
    assert page.texts(".hit h2") == titles(answer)
    assert not page.one("#welcome").is_displayed()
    assert page.texts(".hit .main dd") == [f"{hit.score:.4f}" for hit in answer.results[0].hits]
    assert page.one(".slots").text.startswith(f"{answer.results[0].budget.slots} query slots")
    assert "chosen by “rule”" in page.one(".slots").text
    assert f"{round(answer.timings_ms.total)} ms in total" in page.one(".times").text
    assert page.run("return document.getElementById('status').textContent").startswith("10 passages in ")
    assert (stub.asked[-1].mode, stub.asked[-1].budget, stub.asked[-1].explain) == ("hybrid", "adaptive", True)


def test_explanation_shows_slots_and_words(page: Page) -> None:
    page.go("/", q=TIDES, mode="dense", budget=8)
    page.settled()
    page.one(".hit .why").click()
    page.explained()
    hit = recorded(TIDES, "dense", 8).results[0].hits[0]
    assert hit.explanation is not None
    assert page.one("#drawer-title").text == hit.title
    assert len(page.all(".picture .line")) == len(hit.explanation.slots) == 8
    assert len(page.all(".picture .dot.query")) == 8
    matched = {slot.passage_slot for slot in hit.explanation.slots}
    assert len(page.all(".picture .dot.passage")) == len(matched)
    assert len(page.all(".picture .dot.idle")) == len(hit.explanation.passage_slots) - len(matched)
    page.one("summary").click()
    page.until("return document.querySelector('details').open")
    rows = page.run("return [...document.querySelectorAll('details tbody tr')].map(row => row.textContent)")
    assert all(slot.words[0].word in row for slot, row in zip(hit.explanation.slots, rows, strict=True))
    assert page.texts(".shared > span:first-child") == [term.word for term in hit.explanation.terms]
    assert page.one(".text").text == hit.text
    assert page.accessibility_faults() == []


def test_budget_and_mode_change_the_ranking(page: Page, stub: Stub) -> None:
    page.go("/", q=TIDES, mode="dense")
    page.settled()
    page.one("label:has([name=budget][value=fixed])").click()
    page.run("const s = document.getElementById('slots'); s.value = 8; s.dispatchEvent(new Event('input'));")
    page.run("document.getElementById('slots').dispatchEvent(new Event('change', {bubbles: true}))")
    page.until("return document.querySelectorAll('.dots i').length === 8")
    assert page.texts(".hit h2") == titles(recorded(TIDES, "dense", 8))
    assert page.one(".slots").text == "8 query slots as requested"
    assert page.one("#slots").get_attribute("aria-valuetext") == "8 slots"
    page.one("label:has([name=mode][value=sparse])").click()
    page.until("return location.search.includes('mode=sparse')")
    page.settled()
    page.one("label:has([name=budget][value=adaptive])").click()
    page.until("return document.querySelectorAll('.hit').length === 3")
    assert page.texts(".hit h2") == titles(recorded(TIDES, "sparse"))
    assert stub.asked[-1].budget == "adaptive"


def choose(page: Page, choice: str, address: str) -> None:
    """Click the label of a choice, and wait for the search whose address has this text."""
    page.one(f"label:has({choice})").click()
    page.until(f"return location.search.includes({address!r})")
    page.settled()


def test_scores_with_bm25_are_offered_where_the_server_does(page: Page, stub: Stub) -> None:
    page.go("/", q=TIDES, mode="dense+bm25")
    page.settled()
    assert stub.asked[-1].mode == "hybrid", "this one offers none"
    assert page.texts("#controls legend") == ["Score", "Query slots"]
    further = ["bm25", "dense+bm25", "sparse+bm25", "dense+sparse+bm25"]
    stub.index = {**stub.index, "further_modes": further}
    page.go("/", q=TIDES, mode="dense+bm25")
    page.settled()
    assert page.texts("#controls legend") == ["Score", "BM25", "Query slots"]
    choose(page, "[name=mode][value=hybrid]", "mode=dense%2Bsparse%2Bbm25")
    assert page.texts(".hit .scores .main dt")[0] == "sum"
    assert page.accessibility_faults() == []
    choose(page, "[name=bm25][value=alone]", "mode=bm25")
    assert page.run("return document.querySelector('[name=mode]').matches(':disabled')")
    choose(page, "[name=bm25][value=without]", "mode=hybrid")
    asked = [each.mode for each in stub.asked]
    assert asked[-4:] == ["dense+bm25", "dense+sparse+bm25", "bm25", "hybrid"]
    page.go("/compare", **{"q": TIDES, "a.mode": "bm25", "b.mode": "dense+bm25"})
    page.until("return document.querySelectorAll('#list-b li').length")
    assert [text.split(",")[0] for text in page.texts(".list h2")] == ["BM25", "Dense + BM25"]


def test_metadata_filters(page: Page, stub: Stub) -> None:
    page.go("/", q="dated", filter="year > 1")
    page.settled()
    assert stub.asked[-1].filter is None, "there is nothing to filter by"
    stub.index = {**stub.index, "metadata": {"year": "int64", "lang": "string"}}
    page.go("/", q="dated", filter="year > 1")
    page.settled()
    assert stub.asked[-1].filter == "year > 1"
    assert page.texts(".source")[0].endswith(" · year 2020 · free false")
    page.run(
        "const f = document.querySelector('#filter'); f.value = \"lang = 'en'\";"
        "f.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    page.until("return location.search.includes('filter=lang')")
    page.settled()
    assert stub.asked[-1].filter == "lang = 'en'"
    page.run(
        "const s = document.querySelector('#controls select'); s.value = 'household';"
        "s.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    page.until("return location.search.includes('collection=household')")
    page.settled()
    assert stub.asked[-1].filter == "(lang = 'en') AND collection = 'household'"


def test_retriever_without_slots_has_no_switches_for_them(page: Page, stub: Stub) -> None:
    stub.index = {
        **stub.index,
        "query_budget": None,
        "adaptive": None,
        "modes": ["dense"],
        "default_mode": "dense",
        "collections": {"c": 16},
    }
    page.go("/", q="plain")
    page.settled()
    assert page.texts("#controls legend") == ["Score"]
    assert page.all("#controls select") == page.all(".slots") == []
    assert (stub.asked[-1].mode, stub.asked[-1].budget) == ("dense", None)
    page.one(".hit .why").click()
    page.explained()
    assert page.texts(".picture .query text:not(.note)")[0] == "\N{EN DASH}"
    page.go("/compare", q="plain")
    page.until("return document.querySelectorAll('#list-b li').length")
    assert page.texts(".list h2") == ["Dense", "Dense"]
