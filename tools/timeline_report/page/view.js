// The part of the timeline that is shown, and how times are written.

class View {
  constructor(total) {
    this.total = Math.max(total, 1);
    this.from = 0;
    this.to = this.total;
  }

  // Shows from `from` to `to` (ns), moved and cut so that it lies within the timeline; never less than 5 ns.
  show(from, to) {
    const width = Math.min(Math.max(to - from, 5), this.total);
    const middle = (from + to) / 2;
    this.from = Math.min(Math.max(middle - width / 2, 0), this.total - width);
    this.to = this.from + width;
  }

  // Zooms so that what is at `time` stays where it is.
  zoom(factor, time = (this.from + this.to) / 2) {
    const width = Math.min(Math.max((this.to - this.from) * factor, 5), this.total);
    const share = (time - this.from) / (this.to - this.from);
    const from = Math.min(Math.max(time - share * width, 0), this.total - width);
    this.show(from, from + width);
  }

  pan(by) {
    const width = this.to - this.from;
    const from = Math.min(Math.max(this.from + by, 0), this.total - width);
    this.show(from, from + width);
  }

  fit() {
    this.show(0, this.total);
  }
}

// A time in ns, as exactly as `step` (ns) can tell apart.
function formatTime(ns, step = 0.1) {
  const [unit, size] = ns >= 1e6 ? ["ms", 1e6] : ns >= 1e3 ? ["µs", 1e3] : ["ns", 1];
  const digits = Math.min(Math.max(Math.ceil(-Math.log10(step / size) - 1e-9), 0), 6);
  return `${(ns / size).toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
}

function formatCount(number) {
  return number.toLocaleString("en-US");
}

// 1, 2 or 5 times a power of ten, at least `smallest`.
function niceStep(smallest) {
  const power = 10 ** Math.floor(Math.log10(smallest));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= smallest * 0.9999);
}
