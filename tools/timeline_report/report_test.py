"""The report's file: what it holds, and that it needs nothing else. The page itself is browser_test's."""

import base64
import json
import re
import tracemalloc

import numpy as np
import pytest

from devicetime.timeline import Cause
from tools.timeline_report import synthetic
from tools.timeline_report.report import Report, Section, html
from tools.timeline_report.roofline import point
from tools.timeline_report.summary import Table

TYPES = {"f64": "<f8", "f32": "<f4", "i32": "<i4", "u32": "<u4", "u16": "<u2", "u8": "u1"}


@pytest.fixture(scope="module")
def timeline():
    return synthetic.timeline(2000, cores=2)


def data(text):
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    return json.loads(found, parse_constant=pytest.fail)


def array(entry):
    return np.frombuffer(base64.b64decode(entry["base64"]), TYPES[entry["type"]])


def test_the_data_is_the_timeline(timeline):
    found = data(html(Report("t", "s", timeline)))
    events = {name: array(entry) for name, entry in found["events"].items()}
    assert np.array_equal(events["start"], timeline.start_ns)
    assert np.array_equal(events["start"] + events["duration"], timeline.end_ns)
    assert np.array_equal(events["visible"] + timeline.end_ns, timeline.visible_ns)
    for name in ("track", "cause", "blocker"):
        assert np.array_equal(events[name], getattr(timeline, name))
    assert np.array_equal(array(found["edges"]).reshape(-1, 2), timeline.edges)
    for event in (0, 7, timeline.events - 1):
        record = timeline.record_of(event)
        assert found["names"][events["name"][event]].split()[0] == record.op
        assert found["lines"][events["line"][event]].endswith(f"synthetic.py:{record.site.line}")
    assert [cause["key"] for cause in found["causes"]] == [cause.name for cause in Cause]
    memories = {(memory["name"], memory["core"]): memory for memory in found["occupancy"]}
    for core in range(2):
        for name, steps in (("SBUF", timeline.sbuf_bytes[core]), ("PSUM", timeline.psum_banks[core])):
            assert np.array_equal(array(memories[name, core]["times"]), steps[:, 0])
            assert np.array_equal(array(memories[name, core]["values"]), steps[:, 1])
    assert memories["SBUF", 0]["capacity"] == timeline.hardware.sbuf_usable_bytes_per_partition


def test_the_share_of_the_limit_is_the_rooflines(timeline):
    here = point("t", timeline)
    text = html(Report("t", "s", timeline))
    assert here.limit == "HBM"
    found = re.search(r"<dt>Share of the HBM limit</dt><dd><div class=\"value\">([^<]*)</div>", text)
    assert found
    assert found[1] == f"{here.share_of_limit:.0%}" != f"{here.tensor_seconds:.0%}"


def test_the_same_bytes_each_time(timeline):
    assert html(Report("t", "s", timeline)) == html(Report("t", "s", synthetic.timeline(2000, cores=2)))


def test_nothing_is_fetched_from_anywhere(timeline):
    text = html(Report("t", "s", timeline))
    assert re.findall(r"""(?:src|href)=["'](?!#|data:)""", text) == []
    assert "url(" not in text
    assert "import " not in text
    assert "{{" not in text


def test_words_of_kernels_never_become_markup(timeline):
    evil = "</script><b>&\"'"
    table = Table(evil, (evil, evil), ((evil, evil),), evil)
    text = html(Report(evil, evil, timeline, sections=(Section("Plan", (table,), evil),)))
    assert "<b>" not in text
    assert text.count("</script>") == 2
    assert text.count("&lt;/script&gt;&lt;b&gt;&amp;&quot;&#x27;") == 11


def test_sections_come_in_order_and_can_be_reached(timeline):
    plan = Section("The plan", (Table("p", ("a", "b"), (("1", "2"),)),), "as text")
    text = html(Report("t", "s", timeline, sections=(plan,)))
    assert re.findall(r'<a href="#([\w-]+)">', text) == ["timeline", "where-the-time-goes", "the-plan", "roofline"]
    assert re.findall(r'<section id="([\w-]+)"', text) == ["timeline", "where-the-time-goes", "the-plan", "roofline"]
    assert "<pre>as text</pre>" in text
    assert '<td class="text">1</td><td>2</td>' in text


def test_100_000_events_take_a_few_megabytes():
    timeline = synthetic.timeline(100_000, cores=2)
    tracemalloc.start()
    text = html(Report("t", "s", timeline))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(text) < 7_000_000
    assert peak < 60_000_000
