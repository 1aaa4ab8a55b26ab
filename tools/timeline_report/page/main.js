// Wires the page: pointer, keys and buttons change the view; the picture follows once per frame.

const byId = (id) => document.getElementById(id);

function start() {
  const timeline = decodeTimeline(JSON.parse(byId("data").textContent));
  const canvas = byId("canvas");
  const view = new View(timeline.total_ns);
  const picture = new Picture(canvas, timeline);
  const search = new Search(timeline);
  const tooltip = new Tooltip(byId("tooltip"), byId("stage"));
  const shown = { found: null, selected: -1, hovered: -1, range: null };
  const details = new Details(byId("details"), timeline, (event) => {
    select(event);
    reveal(event);
  });
  let asked = false;

  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      picture.draw(view, shown);
      const step = (view.to - view.from) / 1000;
      byId("range").value = `${formatTime(view.from, step)} to ${formatTime(view.to, step)}`;
      byId("fit").disabled = view.from <= 0 && view.to >= view.total;
    });
  }

  function select(event) {
    shown.selected = event;
    details.show(event);
    tellMatches();
    redraw();
  }

  // Brings an event into view: at the zoom there is, unless it would be too narrow or too wide to see.
  function reveal(event, zoomTo = false) {
    const { start: begin, end, duration } = timeline.events;
    const width = view.to - view.from;
    const share = duration[event] / width;
    if (zoomTo || share > 0.5 || share < 0.004) {
      const around = Math.max(duration[event] * (zoomTo ? 1 : 8), 20);
      view.show(begin[event] - around, end[event] + around);
    } else if (begin[event] < view.from || end[event] > view.to) {
      view.show(begin[event] - width / 2, begin[event] + width / 2);
    }
    redraw();
  }

  function tellMatches() {
    const { matches, text } = search;
    const at = matches.indexOf(shown.selected);
    byId("matches").value = !text ? ""
      : `${at >= 0 ? `${formatCount(at + 1)} of ` : ""}${formatCount(matches.length)} ${matches.length === 1 ? "match" : "matches"}`;
    for (const id of ["previous", "next"]) byId(id).disabled = !matches.length;
  }

  function look(text) {
    search.look(text);
    shown.found = search.found;
    tellMatches();
    redraw();
  }

  function stepMatch(forward) {
    const event = search.step(shown.selected, forward);
    if (event >= 0) {
      select(event);
      reveal(event);
    }
  }

  function stepEvent(forward) {
    const { track } = timeline.events;
    const ids = timeline.byTrack[shown.selected < 0 ? 0 : track[shown.selected]];
    const at = shown.selected < 0 ? -1 : firstWhere(ids.length, (i) => ids[i] >= shown.selected);
    const next = ids[at + (forward ? 1 : -1)];
    if (next !== undefined) {
      select(next);
      reveal(next);
    }
  }

  function wirePointer() {
    let drag = null;
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("wheel", (event) => {
      const [x] = place(event);
      if (x < GUTTER) return;
      event.preventDefault();
      const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) view.pan(sideways / picture.scale(view));
      else view.zoom(Math.exp(Math.max(Math.min(event.deltaY, 240), -240) * 0.002), picture.time(view, x));
      hover(event);
      redraw();
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const [x, y] = place(event);
      canvas.setPointerCapture(event.pointerId);
      drag = { x, from: view.from, to: view.to, moved: false, zooms: event.shiftKey || y < RULER };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) {
        hover(event);
        return;
      }
      const [x] = place(event);
      drag.moved ||= Math.abs(x - drag.x) > 3;
      if (!drag.moved) return;
      tooltip.hide();
      if (drag.zooms) shown.range = [drag.x, Math.max(x, GUTTER)];
      else {
        canvas.classList.add("dragged");
        view.show(drag.from, drag.to);
        view.pan((drag.x - x) / picture.scale(view));
      }
      redraw();
    });
    const finish = (event) => {
      if (!drag) return;
      const { moved, zooms } = drag;
      drag = null;
      canvas.classList.remove("dragged");
      if (moved && zooms && shown.range) {
        const [from, to] = shown.range.map((x) => picture.time(view, x)).sort((a, b) => a - b);
        shown.range = null;
        view.show(from, to);
      } else if (!moved && event.type === "pointerup") select(picture.eventAt(view, ...place(event)));
      shown.range = null;
      redraw();
    };
    canvas.addEventListener("pointerup", finish);
    canvas.addEventListener("pointercancel", finish);
    canvas.addEventListener("dblclick", () => {
      if (shown.selected >= 0) reveal(shown.selected, true);
    });
    canvas.addEventListener("pointerleave", () => {
      tooltip.hide();
      shown.hovered = -1;
      redraw();
    });

    function hover(event) {
      const [x, y] = place(event);
      const found = picture.eventAt(view, x, y);
      const row = picture.rowAt(y);
      if (found >= 0) tooltip.show(x, y, describe(timeline, found).name, eventFacts(timeline, found));
      else if (row && row.memory && x >= GUTTER) showOccupancy(row.memory, x, y);
      else tooltip.hide();
      if (found !== shown.hovered) {
        shown.hovered = found;
        redraw();
      }
    }
  }

  function showOccupancy(memory, x, y) {
    const time = picture.time(view, x);
    const at = firstWhere(memory.times.length, (i) => memory.times[i] > time) - 1;
    const used = at < 0 ? 0 : memory.values[at];
    const share = ((100 * used) / memory.capacity).toFixed(1);
    tooltip.show(x, y, `${memory.name}, core ${memory.core}`, [
      ["at", formatTime(time)],
      ["in use", `${formatCount(used)} of ${formatCount(memory.capacity)} ${memory.unit}, ${share} %`],
    ]);
  }

  function wireKeys() {
    const quarter = () => (view.to - view.from) / 4;
    const keys = {
      ArrowLeft: () => view.pan(-quarter()),
      ArrowRight: () => view.pan(quarter()),
      "+": () => view.zoom(0.5),
      "=": () => view.zoom(0.5),
      "-": () => view.zoom(2),
      0: () => view.fit(),
      "[": () => stepEvent(false),
      "]": () => stepEvent(true),
      b: () => {
        const waited = shown.selected >= 0 ? timeline.events.blocker[shown.selected] : -1;
        if (waited >= 0) {
          select(waited);
          reveal(waited);
        }
      },
      Enter: () => shown.selected >= 0 && reveal(shown.selected, true),
      Escape: () => select(-1),
    };
    canvas.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
      redraw();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target === byId("search")) return;
      event.preventDefault();
      byId("search").focus();
    });
  }

  function wireToolbar() {
    const box = byId("search");
    box.addEventListener("input", () => look(box.value));
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter") stepMatch(!event.shiftKey);
      if (event.key === "Escape") {
        box.value = "";
        look("");
        canvas.focus();
      }
    });
    byId("next").addEventListener("click", () => stepMatch(true));
    byId("previous").addEventListener("click", () => stepMatch(false));
    for (const [id, act] of [["in", () => view.zoom(0.5)], ["out", () => view.zoom(2)], ["fit", () => view.fit()]]) {
      byId(id).addEventListener("click", () => {
        act();
        redraw();
      });
    }
  }

  function refreshLegend() {
    byId("legend").replaceChildren();
    fillLegend(byId("legend"), timeline, picture, (label) => {
      byId("search").value = label;
      look(label);
    });
  }

  wirePointer();
  wireKeys();
  wireToolbar();
  refreshLegend();
  tellMatches();
  new ResizeObserver(() => {
    picture.resize();
    redraw();
  }).observe(byId("stage"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    picture.readTheme();
    refreshLegend();
    redraw();
  });
  picture.resize();
  redraw();
}

start();
