import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path("tools/python/count_tests.py").resolve()

PASSED = '<testcase name="a"/>'
FAILED = '<testcase name="b"><failure message="no"/></testcase>'
ERROR = '<testcase name="c"><error message="no"/></testcase>'
SKIPPED = '<testcase name="d"><skipped/></testcase>'


class Run:
    """Writes the events of a Bazel run, and the XML files that they name."""

    def __init__(self, folder):
        self.folder = folder / "a folder"
        self.folder.mkdir()
        self.events = []

    def declare(self, label, size="SMALL"):
        configured = {"targetKind": "py_test rule", "testSize": size} if size else {"targetKind": "py_library rule"}
        self.events.append({"id": {"targetConfigured": {"label": label}}, "configured": configured})
        return self

    def result(self, label, *cases, status="PASSED", shard=1, attempt=1, xml=None, cached=False):
        path = self.folder / f"{len(self.events)}.xml"
        path.write_text(xml if xml is not None else f"<testsuites><testsuite>{''.join(cases)}</testsuite></testsuites>")
        key = {"label": label, "run": 1, "shard": shard, "attempt": attempt}
        outputs = [{"name": "test.log", "uri": "file:///none"}, {"name": "test.xml", "uri": path.as_uri()}]
        result = {"testActionOutput": outputs, "status": status, "cachedLocally": cached}
        self.events.append({"id": {"testResult": key}, "testResult": result})
        return self

    def count(self, cut=b""):
        path = self.folder / "events.json"
        path.write_bytes("".join(json.dumps(event) + "\n" for event in self.events).encode() + cut)
        done = subprocess.run([sys.executable, SCRIPT, path], capture_output=True, text=True)
        return done.stdout, done.returncode, done.stderr


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


def test_passed_and_skipped_cases_over_targets_and_shards(run):
    run.declare("//a:a_test").declare("//b:b_test").declare("//b:lib", size=None)
    run.result("//a:a_test", PASSED, SKIPPED).result("//a:a_test", PASSED, shard=2, cached=True)
    run.result("//b:b_test", PASSED)
    assert run.count() == ("3 passed, 0 failed, 1 skipped\n", 0, "")


def test_no_mention_of_skipped_when_none_are(run):
    run.declare("//a:a_test").result("//a:a_test", PASSED)
    assert run.count()[0] == "1 passed, 0 failed\n"


def test_failures_and_errors_are_failed(run):
    run.declare("//a:a_test").result("//a:a_test", PASSED, FAILED, ERROR, status="FAILED")
    assert run.count()[:2] == ("1 passed, 2 failed\n", 1)


def test_last_attempt_counts(run):
    run.declare("//a:a_test").result("//a:a_test", FAILED, status="FAILED")
    run.result("//a:a_test", PASSED, attempt=2)
    assert run.count()[:2] == ("1 passed, 0 failed\n", 0)


@pytest.mark.parametrize("xml", ["", "<testsuites/>", "not xml"])
def test_a_test_that_did_not_pass_fails_whatever_its_xml_says(run, xml):
    run.declare("//a:a_test").result("//a:a_test", xml=xml, status="TIMEOUT")
    run.declare("//b:b_test").result("//b:b_test", PASSED)
    assert run.count()[:2] == ("1 passed, 1 failed\n", 1)


def test_unreadable_xml_of_a_passed_test_fails(run):
    run.declare("//a:a_test").result("//a:a_test", xml="<cut off")
    assert run.count()[:2] == ("0 passed, 1 failed\n", 1)


@pytest.mark.parametrize("missing", ["testActionOutput", "status"])
def test_a_result_without_a_field_fails(run, missing):
    run.declare("//a:a_test").result("//a:a_test", PASSED).declare("//b:b_test").result("//b:b_test", xml="")
    del run.events[-1]["testResult"][missing]
    assert run.count() == ("1 passed, 1 failed\n", 1, "")


@pytest.mark.parametrize("output", [{"name": "test.xml"}, {"uri": "file:///none"}, {}])
def test_an_output_without_a_field_fails(run, output):
    run.declare("//a:a_test").result("//a:a_test", PASSED).declare("//b:b_test").result("//b:b_test", PASSED)
    run.events[-1]["testResult"]["testActionOutput"] = [output]
    assert run.count() == ("1 passed, 1 failed\n", 1, "")


def test_xml_in_its_own_encoding(run):
    run.declare("//a:a_test").result("//a:a_test", PASSED)
    (run.folder / "1.xml").write_bytes(b'<?xml version="1.0" encoding="latin-1"?><s><testcase name="\xe9"/></s>')
    assert run.count() == ("1 passed, 0 failed\n", 0, "")
    (run.folder / "1.xml").write_bytes(b'<s><testcase name="\xe9"/></s>')
    assert run.count() == ("0 passed, 1 failed\n", 1, "")


@pytest.mark.parametrize("cut", [b'{"id": {"testRes', b'{"id": "\xc3', b"{"])
def test_events_that_break_off_fail_after_what_was_read(run, cut):
    run.declare("//a:a_test").result("//a:a_test", PASSED)
    counted, status, message = run.count(cut)
    assert (counted, status) == ("1 passed, 1 failed\n", 1)
    assert "events.json: " in message
    assert len(message.splitlines()) == 1
    run.declare("//b:b_test")
    counted, status, message = run.count(cut)
    assert (counted, status) == ("1 passed, 2 failed\n", 1)
    assert message.endswith("no result: //b:b_test\n")


def test_no_file_of_events(tmp_path):
    done = subprocess.run([sys.executable, SCRIPT, tmp_path / "none.json"], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("0 passed, 1 failed\n", 1)
    assert "No such file" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_test_without_result_fails_by_name(run):
    run.declare("//a:a_test").result("//a:a_test", PASSED).declare("//b:broken_test")
    assert run.count() == ("1 passed, 1 failed\n", 1, "no result: //b:broken_test\n")


def test_nothing_ran(run):
    assert run.count()[:2] == ("0 passed, 0 failed\n", 1)


def test_only_skipped_is_nothing_ran(run):
    run.declare("//a:a_test").result("//a:a_test", SKIPPED)
    assert run.count()[:2] == ("0 passed, 0 failed, 1 skipped\n", 1)
