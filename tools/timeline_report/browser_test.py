"""The report in a browser, used as a reader would: open, zoom, pan, search, hover, select, keys, light and dark."""

import re

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from tools.timeline_report import synthetic
from tools.timeline_report.browser import chromium
from tools.timeline_report.report import Report, html

GUTTER, RULER = 104, 24
"""Of draw.js."""

TENSOR_Y = RULER + 4 + 8
"""In the row of the first engine of a report of one core."""

EVENTS = 2000


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def load(driver, folder, timeline):
    path = folder / "report.html"
    path.write_text(html(Report("a kernel <b>", "its sizes", timeline)))
    driver.get_log("browser")
    driver.get(path.as_uri())
    return Page(driver)


@pytest.fixture(scope="module")
def timeline():
    return synthetic.timeline(EVENTS)


@pytest.fixture
def page(driver, tmp_path, timeline):
    opened = load(driver, tmp_path, timeline)
    yield opened
    assert driver.get_log("browser") == []


class Page:
    """What a reader does and sees."""

    def __init__(self, driver):
        self.driver = driver
        self.canvas = driver.find_element(By.ID, "canvas")
        self.until(lambda: self.text("range"))

    def until(self, true):
        return WebDriverWait(self.driver, 20, poll_frequency=0.02).until(lambda _: true())

    def text(self, name):
        return self.driver.find_element(By.ID, name).text

    def range_ns(self):
        """From and to of what is shown, as the page says."""
        found = re.fullmatch(r"([\d.,]+) (ns|µs|ms) to ([\d.,]+) (ns|µs|ms)", self.text("range"))
        assert found
        scale = {"ns": 1, "µs": 1e3, "ms": 1e6}
        numbers = [float(found[i].replace(",", "")) * scale[found[i + 1]] for i in (1, 3)]
        return tuple(numbers)

    def changed_range(self, before):
        self.until(lambda: self.range_ns() != before)
        return self.range_ns()

    def at(self, x, y):
        """Actions at a place of the canvas, from its upper left corner."""
        size = self.canvas.size
        return ActionChains(self.driver).move_to_element_with_offset(
            self.canvas, round(x - size["width"] / 2), round(y - size["height"] / 2)
        )

    def x_of(self, time_ns, shown):
        width = self.canvas.size["width"] - 2
        return GUTTER + (time_ns - shown[0]) / (shown[1] - shown[0]) * (width - GUTTER)

    def wheel(self, x, y, amount, key=None):
        self.canvas.location_once_scrolled_into_view  # noqa: B018, a property that scrolls
        size = self.canvas.size
        origin = ScrollOrigin.from_element(self.canvas, round(x - size["width"] / 2), round(y - size["height"] / 2))
        actions = ActionChains(self.driver)
        if key:
            actions = actions.key_down(key)
        actions = actions.scroll_from_origin(origin, 0, amount)
        if key:
            actions = actions.key_up(key)
        actions.perform()

    def keys(self, *keys):
        self.canvas.send_keys(*keys)

    def colours(self, y):
        """Distinct colours of a row of pixels right of the labels."""
        return self.driver.execute_script(
            """const canvas = document.getElementById("canvas"), ratio = devicePixelRatio;
            const copy = new OffscreenCanvas(canvas.width, 1).getContext("2d", { willReadFrequently: true });
            copy.drawImage(canvas, -arguments[0] * ratio, -arguments[1] * ratio);
            const data = copy.getImageData(0, 0, canvas.width - arguments[0] * ratio, 1).data;
            const found = new Set();
            for (let i = 0; i < data.length; i += 4) found.add(data.slice(i, i + 3).join());
            return [...found];""",
            GUTTER + 2,
            y,
        )

    def details(self):
        box = self.driver.find_element(By.ID, "details")
        names = [item.text for item in box.find_elements(By.TAG_NAME, "dt")]
        return dict(zip(names, (item.text for item in box.find_elements(By.TAG_NAME, "dd")), strict=True))


def test_it_opens_with_everything_in_view(page, timeline):
    assert page.driver.title == "a kernel <b>"
    assert page.driver.find_element(By.TAG_NAME, "h1").text == "a kernel <b>"
    start, end = page.range_ns()
    assert start == 0
    assert end == pytest.approx(timeline.total_ns, rel=1e-3)
    assert len(page.colours(TENSOR_Y)) > 1
    assert not page.driver.find_element(By.ID, "fit").is_enabled()
    headings = [heading.text for heading in page.driver.find_elements(By.TAG_NAME, "h2")]
    assert headings == ["Timeline", "Where the time goes", "Roofline"]


def test_it_asks_the_network_for_nothing(page):
    loaded = page.driver.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert [name for name in loaded if not name.startswith("data:")] == []


def test_the_wheel_zooms_about_the_pointer(page):
    before = page.range_ns()
    x = GUTTER + (page.canvas.size["width"] - GUTTER) / 4
    page.wheel(x, TENSOR_Y, -400)
    after = page.changed_range(before)
    quarter = [start + (end - start) / 4 for start, end in (before, after)]
    assert after[1] - after[0] < 0.8 * (before[1] - before[0])
    assert quarter[1] == pytest.approx(quarter[0], abs=0.02 * (after[1] - after[0]))
    page.wheel(x, TENSOR_Y, 10_000)
    page.wheel(x, TENSOR_Y, 10_000)
    page.until(lambda: page.range_ns() == before)


def test_dragging_pans_and_dragging_on_the_ruler_zooms_to_a_range(page):
    everything = page.range_ns()
    page.at(300, 10).click_and_hold().move_by_offset(200, 0).release().perform()
    zoomed = page.changed_range(everything)
    times = [everything[1] * (x - GUTTER) / (page.canvas.size["width"] - 2 - GUTTER) for x in (300, 500)]
    assert zoomed == pytest.approx(times, abs=0.01 * everything[1])
    page.at(600, 60).click_and_hold().move_by_offset(-100, 0).release().perform()
    panned = page.changed_range(zoomed)
    moved = 100 / (page.canvas.size["width"] - GUTTER) * (zoomed[1] - zoomed[0])
    assert panned[0] - zoomed[0] == pytest.approx(moved, rel=0.05)
    assert panned[1] - panned[0] == pytest.approx(zoomed[1] - zoomed[0], rel=0.01)


def test_shift_and_wheel_pan(page):
    everything = page.range_ns()
    page.keys("+")
    zoomed = page.changed_range(everything)
    page.wheel(500, TENSOR_Y, 120, Keys.SHIFT)
    panned = page.changed_range(zoomed)
    assert panned[0] > zoomed[0]
    assert panned[1] - panned[0] == pytest.approx(zoomed[1] - zoomed[0], rel=0.02)


def test_keys_do_what_the_mouse_does(page):
    everything = page.range_ns()
    page.keys("+")
    half = page.changed_range(everything)
    assert half[1] - half[0] == pytest.approx(everything[1] / 2, rel=0.01)
    page.keys(Keys.ARROW_RIGHT)
    right = page.changed_range(half)
    assert right[0] - half[0] == pytest.approx((half[1] - half[0]) / 4, rel=0.02)
    page.keys(Keys.ARROW_LEFT)
    assert page.changed_range(right) == half
    page.keys("0")
    assert page.changed_range(half) == everything


def test_buttons_zoom(page):
    everything = page.range_ns()
    page.driver.find_element(By.ID, "in").click()
    zoomed = page.changed_range(everything)
    page.driver.find_element(By.ID, "fit").click()
    assert page.changed_range(zoomed) == everything


def test_hovering_tells_what_the_timeline_says(page, timeline):
    event = next(event for event in range(timeline.events) if timeline.track[event] == 0)
    start, end = timeline.start_ns[event], timeline.end_ns[event]
    everything = page.range_ns()
    page.keys("]", Keys.ENTER)
    page.until(lambda: page.range_ns()[1] < 10 * end)
    assert page.range_ns() != everything
    page.at(page.x_of((start + end) / 2, page.range_ns()), TENSOR_Y).perform()
    page.until(lambda: page.driver.find_element(By.ID, "tooltip").is_displayed())
    tooltip = page.text("tooltip")
    record = timeline.record_of(event)
    for words in (record.op, f"tools/timeline_report/synthetic.py:{record.site.line}", "core 0 Tensor"):
        assert words in tooltip
    duration = re.search(r"duration\s+([\d.]+) ns", tooltip)
    assert duration
    assert float(duration[1]) == end - start
    assert "scores float32[128,512] ← weights bfloat16[128,128], keys bfloat16[128,512]" in tooltip
    page.at(50, TENSOR_Y).perform()
    page.until(lambda: not page.driver.find_element(By.ID, "tooltip").is_displayed())


def test_hovering_over_memory_tells_how_much_is_in_use(page, timeline):
    page.at(page.canvas.size["width"] - 4, page.canvas.size["height"] - 20).perform()
    page.until(lambda: "PSUM, core 0" in page.text("tooltip"))
    assert f"{int(timeline.psum_banks[0][-1, 1])} of 8 banks" in page.text("tooltip")


def test_searching_finds_and_goes_through_matches(page, timeline):
    box = page.driver.find_element(By.ID, "search")
    page.canvas.send_keys("/")
    assert page.driver.switch_to.active_element == box
    box.send_keys("MATMUL tensor")
    matmuls = [event for event in range(timeline.events) if timeline.record_of(event).op == "nc_matmul"]
    page.until(lambda: page.text("matches") == f"{len(matmuls)} matches")
    box.send_keys(Keys.ENTER)
    page.until(lambda: page.text("matches") == f"1 of {len(matmuls)} matches")
    assert page.details()["engine"] == "core 0 Tensor"
    box.send_keys(Keys.ENTER)
    page.until(lambda: page.text("matches") == f"2 of {len(matmuls)} matches")
    shown = page.range_ns()
    assert shown[0] <= timeline.start_ns[matmuls[1]] <= shown[1]
    box.send_keys(Keys.SHIFT, Keys.ENTER)
    box.send_keys(Keys.SHIFT, Keys.ENTER)
    page.until(lambda: page.text("matches") == f"{len(matmuls)} of {len(matmuls)} matches")
    box.send_keys(Keys.ESCAPE)
    page.until(lambda: page.text("matches") == "")


def test_a_search_for_what_is_not_there(page):
    page.driver.find_element(By.ID, "search").send_keys("no such thing")
    page.until(lambda: page.text("matches") == "0 matches")
    assert not page.driver.find_element(By.ID, "next").is_enabled()


def test_a_search_by_line_fades_the_rest(page):
    before = page.colours(TENSOR_Y)
    page.driver.find_element(By.ID, "search").send_keys("memset")
    page.until(lambda: page.colours(TENSOR_Y) != before)


def test_a_selected_event_leads_to_what_it_waited_for(page, timeline):
    tensor = [event for event in range(timeline.events) if timeline.track[event] == 0]
    event = next(event for event in tensor if timeline.blocker[event] >= 0)
    page.keys(*["]"] * (tensor.index(event) + 1))
    page.until(lambda: "waited for" in page.details())
    blocker = int(timeline.blocker[event])
    assert timeline.tracks[timeline.track[blocker]].name in page.details()["waited for"]
    page.canvas.send_keys("b")
    page.until(lambda: page.details()["engine"] == timeline.tracks[timeline.track[blocker]].name)
    needed_by = page.driver.find_elements(By.CSS_SELECTOR, "#details .links div:last-child li")
    waiting = [after for before, after in timeline.edges if before == blocker]
    assert len(needed_by) == min(len(waiting), 13)
    page.canvas.send_keys(Keys.ESCAPE)
    page.until(lambda: page.text("details") == "")


def test_dark_pages_are_drawn_in_dark_colours(page):
    light = page.colours(TENSOR_Y)
    emulate = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", emulate)
    page.until(lambda: not set(light) & set(page.colours(TENSOR_Y)))
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_small_window_shows_the_whole_width(page):
    page.driver.set_window_size(700, 900)
    try:
        page.until(lambda: page.canvas.size["width"] < 680)
        overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.driver.execute_script(overflow) == 0
    finally:
        page.driver.set_window_size(1400, 1000)


def test_100_000_events_of_two_cores(driver, tmp_path):
    timeline = synthetic.timeline(100_000, cores=2)
    page = load(driver, tmp_path, timeline)
    before = page.range_ns()
    page.keys("+", "+", "+", "+", "+", "+")
    page.changed_range(before)
    page.driver.find_element(By.ID, "search").send_keys("nc_matmul")
    expected = sum(timeline.record_of(event).op == "nc_matmul" for event in range(timeline.events))
    page.until(lambda: page.text("matches") == f"{expected:,} matches")
    assert driver.get_log("browser") == []


def test_an_empty_timeline_is_a_page(driver, tmp_path):
    page = load(driver, tmp_path, synthetic.timeline(0))
    page.keys("+", "]", "b", Keys.ENTER)
    assert driver.get_log("browser") == []
