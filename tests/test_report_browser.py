"""The report in a real browser: every chart draws, hover and legends work, nothing is fetched, nothing overflows.

Needs Chromium and its driver (Debian: chromium, chromium-driver); skipped where there is none.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import report_runs

import rayfl

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
_BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
_DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    _BROWSER is None or _DRIVER is None, reason="there is no Chromium with its driver on this machine"
)

#: Draws every chart that is on the page, shown or not, and returns what it drew: name, marks, size.
_CHARTS = """
return [...document.querySelectorAll('.plot')].filter((plot) => plot.offsetParent).map((plot) => ({
  name: plot.dataset.chart,
  drawn: Boolean(plot.querySelector('svg.main-svg')),
  marks: plot.querySelectorAll(
    '.scatterlayer path, .barlayer path, .heatmaplayer image, .hm image, .sankey-node, .plot image'
  ).length,
  width: plot.getBoundingClientRect().width,
  svg: plot.querySelector('svg.main-svg')?.getBoundingClientRect().width ?? 0,
}));
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    report_runs.study(folder)
    nasty = "x:<img src=http://evil.example/a.png><b>bold</b></script><script>window.hacked=1</script>"
    same = {"model.name": "mlp", "local.steps": 2}
    report_runs.written_run(folder, "hostile", 8, 4, method=nasty, extras={"recoveries": [nasty]}, **same)
    return rayfl.report(folder, folder / "report.html")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = _BROWSER
    profile = tmp_path_factory.mktemp("profile")
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        f"--user-data-dir={profile}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(_DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


def _open(browser: Any, page: Path, width: int) -> None:
    """Open the page as on a screen of that width, and scroll through it once, so that all charts are drawn."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get(page.as_uri())
    _scroll(browser)


def _scroll(browser: Any) -> None:
    height = browser.execute_script("return document.body.scrollHeight")
    for top in range(0, height + 900, 800):
        browser.execute_script(f"window.scrollTo({{top: {top}, behavior: 'instant'}})")
        time.sleep(0.03)
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if all(chart["drawn"] and chart["marks"] for chart in browser.execute_script(_CHARTS)):
            return
        time.sleep(0.1)


def _console(browser: Any) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


@pytest.mark.parametrize("width", [1280, 390])
def test_every_chart_draws_within_the_screen_and_nothing_complains(browser: Any, page: Path, width: int) -> None:
    _open(browser, page, width)
    charts = browser.execute_script(_CHARTS)
    names = {chart["name"] for chart in charts}
    assert {"curves-0", "paired", "ecdf", "cost-bytes", "clusters-clusters", "clusters-ari"} <= names
    assert [chart["name"] for chart in charts if not chart["drawn"] or not chart["marks"]] == []
    assert [chart["name"] for chart in charts if abs(chart["svg"] - chart["width"]) > 2] == []
    overflow = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0
    wide = browser.execute_script(
        "return [...document.querySelectorAll('main *')].filter((e) => !e.closest('.scroll, pre, .plot')"
        " && e.getBoundingClientRect().right > window.innerWidth + 1).map((e) => e.outerHTML.slice(0, 80))"
    )
    assert wide == []
    assert _console(browser) == []


def test_the_charts_of_each_run_draw_when_it_is_chosen(browser: Any, page: Path) -> None:
    _open(browser, page, 1280)
    seen: set[str] = set()
    runs = browser.execute_script(
        "return [...new Set([...document.querySelectorAll('select.run option')].map((option) => option.value))]"
    )
    assert len(runs) == 6
    for run in runs:
        browser.execute_script(
            "for (const list of document.querySelectorAll('select.run'))"
            " if ([...list.options].some((o) => o.value === arguments[0]))"
            " { list.value = arguments[0]; list.dispatchEvent(new Event('change')); break; }",
            run,
        )
        _scroll(browser)
        charts = browser.execute_script(_CHARTS)
        assert [chart["name"] for chart in charts if not chart["drawn"] or not chart["marks"]] == []
        seen |= {chart["name"] for chart in charts}
    every = set(report_runs.figures(page.read_text()))
    assert seen == every
    kinds = {name.rsplit("-", 1)[0] for name in every}
    assert {"sizes", "strip", "contingency", "similarity", "labels", "granularity", "tuning", "hopkins"} <= kinds
    assert _console(browser) == []


def test_hover_shows_the_value_of_a_label(browser: Any, page: Path) -> None:
    _open(browser, page, 1280)
    text = browser.execute_script(
        """
        const plot = document.getElementById('plot-curves-0');
        plot.scrollIntoView({block: 'center', behavior: 'instant'});
        const number = plot.data.findIndex((trace) => trace.name === 'fedac' && trace.showlegend !== false);
        const box = plot.querySelector('.nsewdrag').getBoundingClientRect();
        const x = box.left + plot._fullLayout.xaxis.d2p(plot.data[number].x[2]);
        const y = box.top + plot._fullLayout.yaxis.d2p(plot.data[number].y[2]);
        return [x, y, plot.data[number].y[2]];
        """
    )
    x, y, value = text
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})
    shown = ""
    for _ in range(50):
        shown = browser.execute_script(
            "return [...document.querySelectorAll('#plot-curves-0 .hoverlayer text')]"
            ".map((t) => t.textContent).join(' ')"
        )
        if shown:
            break
        time.sleep(0.1)
    assert "fedac" in shown
    assert f"{value:.4f}" in shown


def test_a_click_in_the_legend_hides_a_line_and_its_band(browser: Any, page: Path) -> None:
    _open(browser, page, 1280)
    count = (
        "return document.getElementById('plot-curves-0').data"
        ".filter((t, n) => document.getElementById('plot-curves-0')._fullData[n].visible === true"
        " && t.name === 'fedac').length"
    )
    assert browser.execute_script(count) == 2
    place = browser.execute_script(
        """
        const plot = document.getElementById('plot-curves-0');
        plot.scrollIntoView({block: 'center', behavior: 'instant'});
        const entry = [...plot.querySelectorAll('.legend .traces')].find((e) => e.textContent.trim() === 'fedac');
        const box = entry.querySelector('.legendtoggle').getBoundingClientRect();
        return [box.left + box.width / 2, box.top + box.height / 2];
        """
    )
    for kind in ("mousePressed", "mouseReleased"):
        event = {"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1}
        browser.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    limit = time.monotonic() + 5
    while browser.execute_script(count) and time.monotonic() < limit:
        time.sleep(0.1)
    assert browser.execute_script(count) == 0


def test_nothing_is_fetched_but_the_page_itself(browser: Any, page: Path) -> None:
    import json

    browser.get("about:blank")
    browser.get_log("performance")
    _open(browser, page, 1280)
    entries = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [e["params"]["request"]["url"] for e in entries if e["method"] == "Network.requestWillBeSent"]
    assert [url for url in sent if not url.startswith("data:")] == [page.as_uri()]
    assert browser.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)") in (
        [],
        ["data:,"],
    )


def test_a_hostile_name_is_text_and_nothing_else(browser: Any, page: Path) -> None:
    _open(browser, page, 1280)
    assert browser.execute_script("return window.hacked") is None
    assert browser.execute_script("return document.querySelectorAll('main img, main b').length") == 0
    legend = browser.execute_script(
        "return [...document.querySelectorAll('#plot-curves-0 .legendtext')].map((e) => e.textContent)"
    )
    assert any("<b>bold</b>" in text for text in legend)
