"""The compare page in Chromium, on recorded answers."""

from __future__ import annotations

from tests.browser.driving import Page
from tests.browser.stub import TIDES, Stub, recorded, titles

SIDES = {"q": TIDES, "a.mode": "hybrid", "a.budget": "adaptive", "b.mode": "dense", "b.budget": 8}


def expected_moves() -> list[str]:
    before = {hit.id: hit.rank for hit in recorded(TIDES).results[0].hits}
    told = []
    for hit in recorded(TIDES, "dense", 8).results[0].hits:
        if hit.id not in before:
            told.append("only here")
        elif before[hit.id] == hit.rank:
            told.append("same rank")
        else:
            step = before[hit.id] - hit.rank
            told.append(f"{abs(step)} {'higher' if step > 0 else 'lower'}")
    return told


def test_two_configurations_side_by_side(page: Page, stub: Stub) -> None:
    page.go("/compare", **SIDES)
    page.until("return document.querySelectorAll('.moves path').length")
    left, right = recorded(TIDES), recorded(TIDES, "dense", 8)
    assert page.texts("#list-a h3") == titles(left)
    assert page.texts("#list-b h3") == titles(right)
    assert page.texts(".list h2") == ["Hybrid, adaptive", "Dense, 8 slots"]
    assert page.texts("#list-b .move") == expected_moves()
    both = set(titles(left)) & set(titles(right))
    same = expected_moves().count("same rank")
    assert page.one("#agreement").text == f"{len(both)} of 10 passages are in both lists, {same} at the same rank."
    assert {(each.mode, each.budget, each.explain) for each in stub.asked} == {
        ("hybrid", "adaptive", False),
        ("dense", 8, False),
    }
    assert page.accessibility_faults() == []
    ends = page.run(
        "const top = document.querySelector('.moves').getBoundingClientRect().top;"
        "const middle = (list, id) => { const item = [...document.querySelectorAll(`#${list} li`)]"
        "  .find(li => li.dataset.id === id).getBoundingClientRect(); return item.top + item.height / 2 - top; };"
        "return [...document.querySelectorAll('.moves path')].map(path => {"
        "  const [from, to] = [path.getPointAtLength(0), path.getPointAtLength(path.getTotalLength())];"
        "  return [from.y - middle('list-a', path.dataset.id), to.y - middle('list-b', path.dataset.id)]; });"
    )
    assert len(ends) == len(both)
    assert all(abs(end) < 1 for pair in ends for end in pair), "lines join the same passage"
    page.one("label:has([name='b-budget'][value=adaptive])").click()
    page.one("label:has([name='b-mode'][value=hybrid])").click()
    page.until("return document.getElementById('agreement').textContent.startsWith('Both sides')")
    assert set(page.texts("#list-b .move")) == {"same rank"}
    assert "b.mode=hybrid" in page.driver.current_url
