"""Makes the HTML report of a timeline: one file that needs no network and nothing beside it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from devicetime.predict import Prediction
from devicetime.timeline import Cause, Timeline
from tools.timeline_report import roofline_svg, summary, where
from tools.timeline_report.labels import Labels
from tools.timeline_report.roofline import Point, point
from tools.timeline_report.summary import Table

_PAGE = Path(__file__).parent / "page"
_SCRIPTS = ("data.js", "view.js", "search.js", "draw.js", "panels.js", "main.js")
"""In an order in which each uses what those before it define."""

_TYPES = {"f64": "<f8", "f32": "<f4", "i32": "<i4", "u32": "<u4", "u16": "<u2", "u8": "u1"}

_CAUSES = {
    Cause.none: "nothing: it is the first",
    Cause.engine: "the event before it on its track",
    Cause.dependency: "dependency: what it reads was not there",
    Cause.buffer_reuse: "buffer reuse: what it overwrites was still in use",
    Cause.queue: "queue: its DMA waited to be issued or for a DMA engine",
    Cause.bandwidth: "bandwidth: its bytes shared HBM or the DMA engines",
    Cause.semaphore: "semaphore: the latency between engines",
    Cause.collective: "collective: other ranks or the other core",
    Cause.order: "order: the kernel asked for it",
}


@dataclass(frozen=True)
class Figure:
    """A number at the top of the report, and a few words about it."""

    name: str
    value: str
    remark: str


@dataclass(frozen=True)
class Section:
    """Tables and preformatted text under a heading."""

    heading: str
    tables: tuple[Table, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Report:
    """What a report shows beside the timeline.

    Attributes:
        title: the kernel and the shape.
        subtitle: sizes and target, in a line.
        timeline: as predicted.
        prediction: what the timeline was made from, where the report is to say what would help.
        compared: further points of the roofline.
        sections: the plan and whatever else the kernel has to say.
    """

    title: str
    subtitle: str
    timeline: Timeline
    prediction: Prediction | None = None
    compared: tuple[Point, ...] = ()
    sections: tuple[Section, ...] = ()


def html(report: Report) -> str:
    """The whole file's text; the same report gives the same."""
    here = point(report.title, report.timeline)
    why = where.tables(report.prediction, report.timeline) if report.prediction else ()
    sections = [Section("Where the time goes", (*summary.tables(report.timeline), *why)), *report.sections]
    parts = {
        "title": escape(report.title),
        "subtitle": escape(report.subtitle),
        "style": (_PAGE / "page.css").read_text(),
        "script": "\n".join((_PAGE / name).read_text() for name in _SCRIPTS),
        "figures": "\n".join(map(_figure, _figures(report.timeline, here))),
        "links": "\n".join(
            f'<a href="#{_anchor(name)}">{escape(name)}</a>'
            for name in ("Timeline", *(section.heading for section in sections), "Roofline")
        ),
        "sections": "\n".join([*map(_section, sections), _roofline(here, report.compared)]),
        "footer": f"Times are simulated for {report.timeline.hardware.name}; no Trainium was used.",
        # Nothing in it can end the script element.
        "data": json.dumps(_data(report.timeline), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    template = (_PAGE / "page.html").read_text()
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _figures(timeline: Timeline, here: Point) -> list[Figure]:
    hardware, rate = timeline.hardware, here.hbm_bytes / max(here.seconds, 1e-12)
    sbuf = max((steps[:, 1].max() for steps in timeline.sbuf_bytes if len(steps)), default=0)
    usable = hardware.sbuf_usable_bytes_per_partition
    banks = max((steps[:, 1].max() for steps in timeline.psum_banks if len(steps)), default=0)
    found = [
        Figure("Predicted time", f"{timeline.total_ns / 1e3:,.1f} µs", f"simulated, {_cores(len(timeline.streams))}"),
        Figure("Tensor Engine busy", f"{summary.busy_share(timeline, 'Tensor'):.0%}", "of the time"),
        Figure("HBM", f"{rate / 1e9:,.0f} GB/s", f"{rate / here.hbm_bytes_per_s:.0%} of the cores' share, on average"),
        Figure("SBUF peak", f"{sbuf / 1024:,.1f} KiB", f"per partition, of {usable / 1024:,.1f} usable"),
        Figure("PSUM peak", f"{banks:.0f} banks", f"of {hardware.psum_banks}"),
        Figure("Instructions", f"{sum(map(len, timeline.streams)):,}", f"{timeline.events:,} events on the tracks"),
    ]
    if here.seconds:
        alone = {"PE": "matrix products at peak rate", "HBM": "HBM bytes at the full share"}[here.limit]
        found.insert(
            1, Figure(f"Share of the {here.limit} limit", f"{here.share_of_limit:.0%}", f"{alone}, of the time")
        )
    return found


def _cores(count: int) -> str:
    return "1 core" if count == 1 else f"{count} cores"


def _figure(figure: Figure) -> str:
    value, remark = escape(figure.value), escape(figure.remark)
    return (
        f"    <div><dt>{escape(figure.name)}</dt>"
        f'<dd><div class="value">{value}</div><div class="remark">{remark}</div></dd></div>'
    )


def _anchor(heading: str) -> str:
    return re.sub(r"\W+", "-", heading.lower())


def _section(section: Section) -> str:
    anchor = _anchor(section.heading)
    tables = "\n".join(map(_table, section.tables))
    text = f"<pre>{escape(section.text)}</pre>" if section.text else ""
    heading = f'<h2 id="{anchor}-heading">{escape(section.heading)}</h2>'
    return (
        f'<section id="{anchor}" aria-labelledby="{anchor}-heading">{heading}<div class="tables">{tables}</div>'
        f"{text}</section>"
    )


def _table(table: Table) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        styles = [' class="text"'] * table.text_columns + [""] * (len(cells) - table.text_columns)
        made = (f"<{tag}{style}>{escape(cell)}</{tag}>" for style, cell in zip(styles, cells, strict=True))
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(row("td", cells) for cells in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f"<div><h3>{escape(table.title)}</h3><table><thead>{row('th', table.header)}</thead>"
        f"<tbody>{body}</tbody></table>{note}</div>"
    )


_ROOFS = (
    "Roofs: peak rates of the Tensor Engine and share of HBM bandwidth of all cores together, as documented; the solid "
    "one is of the products that this kernel has most of. Dots: predicted."
)
_NO_ROOFLINE = "No matrix products or no HBM traffic: there is no roofline."


def _roofline(here: Point, compared: Iterable[Point]) -> str:
    points = [one for one in (here, *compared) if one.flops and one.hbm_bytes and one.seconds]
    heading = '<h2 id="roofline-heading">Roofline</h2>'
    drawn = roofline_svg.svg(points) if points else ""
    note = f'<p class="note">{_ROOFS if points else _NO_ROOFLINE}</p>'
    return f'<section id="roofline" aria-labelledby="roofline-heading">{heading}{drawn}{note}</section>'


def _data(timeline: Timeline) -> dict[str, Any]:
    """What the page's script reads; see page/data.js."""
    names, lines, operands, of_event = _labels(timeline)
    start, end = timeline.start_ns, timeline.end_ns
    hardware = timeline.hardware
    memories = (
        ("SBUF", "bytes per partition", hardware.sbuf_usable_bytes_per_partition, timeline.sbuf_bytes),
        ("PSUM", "banks", hardware.psum_banks, timeline.psum_banks),
    )
    return {
        "total_ns": timeline.total_ns,
        "tracks": [
            {"name": track.name, "short": track.short_name, "kind": track.kind.value, "core": track.core}
            for track in timeline.tracks
        ],
        "names": names,
        "lines": lines,
        "operands": operands,
        "causes": [{"key": cause.name, "words": _CAUSES[cause]} for cause in Cause],
        "events": {
            "start": _array(start, "f64"),
            "duration": _array(end - start, "f32"),
            "visible": _array(timeline.visible_ns - end, "f32"),
            "track": _array(timeline.track, "u16"),
            "name": _array(of_event[:, 0], "u16"),
            "line": _array(of_event[:, 1], "u32"),
            "operands": _array(of_event[:, 2], "u32"),
            "cause": _array(timeline.cause, "u8"),
            "blocker": _array(timeline.blocker, "i32"),
        },
        "edges": _array(timeline.edges.reshape(-1), "i32"),
        "occupancy": [
            {
                "name": name,
                "key": name.lower(),
                "unit": unit,
                "core": core,
                "capacity": capacity,
                "times": _array(steps[:, 0], "f64"),
                "values": _array(steps[:, 1], "f64"),
            }
            for name, unit, capacity, cores in memories
            for core, steps in enumerate(cores)
        ],
    }


def _labels(timeline: Timeline) -> tuple[list[str], list[str], list[str], np.ndarray]:
    """Distinct instructions, lines and operands, and of each event its three numbers among them: int [events, 3]."""
    labels = Labels()
    found: tuple[dict[str, int], dict[str, int], dict[str, int]] = ({}, {}, {})
    of_event = np.zeros((timeline.events, 3), np.int64)
    for core, stream in enumerate(timeline.streams):
        numbers = np.zeros((len(stream), 3), np.int64)
        for index, record in enumerate(stream):
            texts = labels.instruction(record), labels.line(record), labels.operands(record)
            numbers[index] = [known.setdefault(text, len(known)) for known, text in zip(found, texts, strict=True)]
        mine = timeline.core == core
        of_event[mine] = numbers[timeline.record[mine]]
    names, lines, operands = (list(known) for known in found)
    return names, lines, operands, of_event


def _array(values: np.ndarray, kind: str) -> dict[str, str]:
    return {"type": kind, "base64": base64.b64encode(np.asarray(values, _TYPES[kind]).tobytes()).decode()}
