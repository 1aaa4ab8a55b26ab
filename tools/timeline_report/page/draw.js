// Draws the timeline on a canvas. Events narrower than a pixel are summed per pixel column, so that the cost of a
// frame follows the width of the canvas and not the number of events.

const GUTTER = 104;
const RULER = 24;
const HEIGHTS = { engine: 24, "DMA queue": 9, collective: 16 };
const GAP = 1;
const OCCUPANCY = 44;
const CORE_HEADING = 20;
const SHADES = 8;
const FONT = '11px ui-monospace, Menlo, Consolas, monospace';
const LABEL_FONT = '11.5px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif';
const CHARACTER = 6.7; // width of FONT's, at most

const CLASSES = [
  [/transpose/, "transpose"],
  [/^dma|gather|scatter/, "dma"],
  [/matmul/, "matmul"],
  [/copy|shuffle|select/, "copy"],
  [/activation|exponential|reciprocal|rsqrt/, "activation"],
  [/reduce|bn_|max8|scan|find|partition_all/, "reduce"],
  [/memset|iota|rand|rng/, "fill"],
  [/barrier|sendrecv|all_|collective|permute/, "sync"],
  [/tensor_|quantize|dropout|affine/, "elementwise"],
];

function classOf(name) {
  const found = CLASSES.find(([pattern]) => pattern.test(name));
  return found ? found[1] : "other";
}

class Picture {
  constructor(canvas, timeline) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.timeline = timeline;
    this.classes = timeline.names.map(classOf);
    this.rows = this.layOut();
    this.height = this.rows.at(-1).top + this.rows.at(-1).height + 6;
    this.readTheme();
  }

  layOut() {
    const rows = [];
    let top = RULER;
    const { tracks, occupancy, byTrack } = this.timeline;
    const cores = [...new Set(tracks.map((track) => track.core))];
    const add = (row) => {
      rows.push({ ...row, top });
      top += row.height + GAP;
    };
    for (const core of cores) {
      if (cores.length > 1) add({ heading: `core ${core}`, height: CORE_HEADING });
      else top += 4;
      let kind = null;
      tracks.forEach((track, index) => {
        // An engine that does nothing is worth a row, one of many queues is not.
        if (track.core !== core || (track.kind !== "engine" && !byTrack[index].length)) return;
        if (kind && kind !== track.kind) top += 4;
        kind = track.kind;
        add({ track: index, label: track.short, height: HEIGHTS[kind] });
      });
      top += 4;
      for (const memory of occupancy) if (memory.core === core) add({ memory, label: memory.name, height: OCCUPANCY });
    }
    return rows;
  }

  // Colours come from the style sheet, which knows whether the page is light or dark.
  readTheme() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.theme = Object.fromEntries(
      ["card", "text", "quiet", "rule", "grid", "track", "accent", "event-text", "sbuf", "psum", "limit", "accent-soft"]
        .map((name) => [name, colour(name)]));
    this.colours = this.classes.map(colour);
    this.causes = this.timeline.causes.map((cause) => colour(`cause-${cause.key}`));
  }

  resize() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.parentElement.clientWidth;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  scale(view) {
    return (this.width - GUTTER) / (view.to - view.from);
  }

  x(view, time) {
    return GUTTER + (time - view.from) * this.scale(view);
  }

  time(view, x) {
    return view.from + (x - GUTTER) / this.scale(view);
  }

  draw(view, { found, selected, hovered, range }) {
    const { context, theme } = this;
    context.globalAlpha = 1;
    context.fillStyle = theme.card;
    context.fillRect(0, 0, this.width, this.height);
    this.drawRuler(view);
    context.save();
    context.beginPath();
    context.rect(GUTTER, RULER, this.width - GUTTER, this.height - RULER);
    context.clip();
    for (const row of this.rows) {
      if (row.memory) this.drawOccupancy(view, row);
      else if (row.track !== undefined) this.drawTrack(view, row, found);
    }
    if (selected >= 0) this.drawDependencies(view, selected);
    for (const [event, width] of [[hovered, 1], [selected, 2]]) if (event >= 0) this.outline(view, event, width);
    context.restore();
    this.drawLabels();
    if (range) this.drawRange(view, range);
  }

  drawRuler(view) {
    const { context, theme } = this;
    const step = niceStep(90 / this.scale(view));
    context.font = LABEL_FONT;
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step) {
      const x = Math.round(this.x(view, time)) + 0.5;
      context.fillStyle = theme.grid;
      context.fillRect(x - 0.5, RULER - 6, 1, this.height);
      context.fillStyle = theme.quiet;
      const text = formatTime(time, step);
      if (x + 4 + context.measureText(text).width < this.width) context.fillText(text, x + 4, RULER / 2);
    }
    context.fillStyle = theme.rule;
    context.fillRect(0, RULER - 1, this.width, 1);
  }

  drawLabels() {
    const { context, theme } = this;
    context.textBaseline = "middle";
    context.textAlign = "left";
    // Rows of queues are lower than text: the first one's name stands for itself and those below it.
    const isQueue = (row) => row && row.track !== undefined && this.timeline.tracks[row.track].kind === "DMA queue";
    this.rows.forEach((row, index) => {
      if (isQueue(row) && isQueue(this.rows[index - 1])) return;
      let last = index;
      while (isQueue(row) && isQueue(this.rows[last + 1])) last++;
      const label = row.heading || (last > index ? `${row.label} to ${this.rows[last].label.match(/\d*$/)}` : row.label);
      context.font = row.heading ? `600 ${LABEL_FONT}` : LABEL_FONT;
      context.fillStyle = row.heading ? theme.text : theme.quiet;
      context.fillText(label, 8, (row.top + this.rows[last].top + this.rows[last].height) / 2);
    });
    context.fillStyle = theme.rule;
    context.fillRect(GUTTER - 1, 0, 1, this.height);
  }

  drawTrack(view, row, found) {
    const { context, theme } = this;
    context.fillStyle = theme.track;
    context.fillRect(GUTTER, row.top, this.width - GUTTER, row.height);
    const stripe = row.height > 12 ? 3 : 2;
    this.drawGaps(view, row, stripe);
    const body = { top: row.top, height: row.height - (row.height > 12 ? stripe + 1 : 0) };
    this.drawEvents(view, row.track, body, found ? 0.22 : 1, null);
    if (found) this.drawEvents(view, row.track, body, 1, found);
  }

  // Calls `each(event, x, right)` for the events of a track that show; `found` leaves others out.
  visible(view, track, found, each) {
    const { start, end } = this.timeline.events;
    const ids = this.timeline.byTrack[track];
    const scale = this.scale(view);
    for (let i = firstWhere(ids.length, (k) => end[ids[k]] > view.from); i < ids.length; i++) {
      const event = ids[i];
      if (start[event] > view.to) break;
      if (found && !found[event]) continue;
      each(event, GUTTER + (start[event] - view.from) * scale, GUTTER + (end[event] - view.from) * scale);
    }
  }

  drawEvents(view, track, { top, height }, alpha, found) {
    const { context, theme } = this;
    const { name } = this.timeline.events;
    const right = this.width;
    const labels = [];
    // Of the pixel column being summed: which, how much of it is busy, with what most.
    let column = -1;
    let busy = 0;
    let longest = 0;
    let colour = "";
    const flush = () => {
      if (busy > 0) {
        const shade = found ? 1 : Math.ceil(Math.min(busy, 1) * SHADES) / SHADES;
        context.globalAlpha = alpha * (0.25 + 0.75 * shade);
        context.fillStyle = colour;
        context.fillRect(column, top, 1, height);
      }
      busy = longest = 0;
    };
    this.visible(view, track, found, (event, x, end) => {
      const width = end - x;
      if (width >= 1) {
        flush();
        context.globalAlpha = alpha;
        context.fillStyle = this.colours[name[event]];
        const from = Math.max(x, GUTTER - 1);
        const shown = Math.min(end, right + 1) - from;
        // A hairline between neighbours, as soon as there is room for one.
        context.fillRect(from, top, shown > 3 ? shown - 0.6 : shown, height);
        if (height >= 16 && shown > 24 && alpha === 1) labels.push(event, from, shown);
        return;
      }
      if (Math.floor(x) !== column) {
        flush();
        column = Math.floor(x);
      }
      busy += Math.max(width, 0.02);
      if (width >= longest) {
        longest = width;
        colour = this.colours[name[event]];
      }
    });
    flush();
    context.globalAlpha = alpha;
    context.font = FONT;
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = theme["event-text"];
    for (let i = 0; i < labels.length; i += 3) {
      const text = this.timeline.names[name[labels[i]]].slice(0, Math.floor((labels[i + 2] - 6) / CHARACTER));
      if (text.length > 2) context.fillText(text, labels[i + 1] + 3, top + height / 2 + 0.5);
    }
    context.globalAlpha = 1;
  }

  // Below each gap a stripe in the colour of what the event after it waited for.
  drawGaps(view, row, stripe) {
    const { context } = this;
    const { cause, start } = this.timeline.events;
    let reached = GUTTER;
    this.visible(view, row.track, null, (event, x, end) => {
      if (x - reached >= 0.75 && start[event] > 0 && this.causes[cause[event]]) {
        context.fillStyle = this.causes[cause[event]];
        context.fillRect(reached, row.top + row.height - stripe, x - reached, stripe);
      }
      reached = Math.max(reached, end);
    });
  }

  drawOccupancy(view, row) {
    const { context, theme } = this;
    const { times, values, capacity, key } = row.memory;
    const base = row.top + row.height - 2;
    const full = row.height - 6;
    context.fillStyle = theme.track;
    context.fillRect(GUTTER, row.top, this.width - GUTTER, row.height);
    context.fillStyle = theme[key];
    const first = Math.max(firstWhere(times.length, (i) => times[i] > view.from) - 1, 0);
    // The most of each pixel column, joined with its neighbours of the same height.
    let from = GUTTER;
    let column = GUTTER;
    let most = 0;
    let current = 0;
    const flush = (until) => {
      const height = (most / capacity) * full;
      context.globalAlpha = 0.35;
      context.fillRect(from, base - height, until - from, height);
      context.globalAlpha = 1;
      if (most > 0) context.fillRect(from, base - height, until - from, 1.2);
      from = until;
    };
    for (let i = first; i < times.length && times[i] <= view.to; i++) {
      const x = Math.max(Math.floor(this.x(view, times[i])), GUTTER);
      if (x > column) {
        flush(column + 1);
        most = current;
        if (x > column + 1) flush(x);
        column = x;
        most = current;
      }
      current = values[i];
      most = Math.max(most, current);
    }
    flush(column + 1);
    most = current;
    if (column + 1 < this.width) flush(Math.min(this.width, this.x(view, view.total)));
    context.fillStyle = theme.limit;
    context.globalAlpha = 0.6;
    context.fillRect(GUTTER, base - full, this.width - GUTTER, 1);
    context.globalAlpha = 1;
  }

  rowOf(event) {
    return this.rows.find((row) => row.track === this.timeline.events.track[event]);
  }

  outline(view, event, width) {
    const { context, theme } = this;
    const { start, end } = this.timeline.events;
    const row = this.rowOf(event);
    const x = this.x(view, start[event]);
    context.strokeStyle = theme.text;
    context.lineWidth = width;
    context.strokeRect(x, row.top + 0.5, Math.max(this.x(view, end[event]) - x, 2), row.height - 1);
  }

  drawDependencies(view, event) {
    for (const other of this.timeline.needs(event)) this.arrow(view, other, event, this.theme.accent);
    for (const other of this.timeline.neededBy(event)) this.arrow(view, event, other, this.theme.quiet);
  }

  arrow(view, from, to, colour) {
    const { context } = this;
    const { start, end } = this.timeline.events;
    const rows = [this.rowOf(from), this.rowOf(to)];
    const [y, targetY] = rows.map((row) => row.top + row.height / 2);
    const x = this.x(view, end[from]);
    const targetX = this.x(view, start[to]);
    const bend = Math.max(Math.min((targetX - x) / 2, 60), 8);
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.4;
    context.beginPath();
    context.moveTo(x, y);
    context.bezierCurveTo(x + bend, y, targetX - bend, targetY, targetX, targetY);
    context.stroke();
    context.beginPath();
    context.moveTo(targetX, targetY);
    context.lineTo(targetX - 6, targetY - 3);
    context.lineTo(targetX - 6, targetY + 3);
    context.fill();
  }

  drawRange(view, [from, to]) {
    const { context, theme } = this;
    const [x, right] = [from, to].sort((a, b) => a - b);
    context.fillStyle = theme["accent-soft"];
    context.fillRect(x, 0, right - x, this.height);
    context.fillStyle = theme.accent;
    const text = formatTime(this.time(view, right) - this.time(view, x), 1);
    context.font = LABEL_FONT;
    context.fillText(text, Math.min(x + 6, this.width - 80), RULER / 2);
  }

  // The row at a height.
  rowAt(y) {
    return this.rows.find((row) => y >= row.top && y < row.top + row.height + GAP);
  }

  // The event nearest to a place, up to 3 pixels away in its row; -1 for none.
  eventAt(view, x, y) {
    const row = this.rowAt(y);
    if (!row || row.track === undefined || x < GUTTER) return -1;
    const { start, end } = this.timeline.events;
    const ids = this.timeline.byTrack[row.track];
    const time = this.time(view, x);
    const after = firstWhere(ids.length, (i) => end[ids[i]] >= time);
    let best = -1;
    let distance = 3 / this.scale(view);
    for (const i of [after, after - 1]) {
      if (i < 0 || i >= ids.length) continue;
      const away = Math.max(start[ids[i]] - time, time - end[ids[i]], 0);
      if (away <= distance) [best, distance] = [ids[i], away];
    }
    return best;
  }
}
