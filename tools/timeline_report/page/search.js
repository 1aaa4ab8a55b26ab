// Finds events whose instruction, line, operands or track contain what was typed, whatever its case.

class Search {
  constructor(timeline) {
    this.timeline = timeline;
    this.clear();
  }

  clear() {
    this.text = "";
    this.found = null; // a flag per event; null where nothing is searched
    this.matches = new Int32Array(0);
  }

  // All words must be found, in any order.
  look(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.clear();
    if (!words.length) return;
    this.text = text;
    const { name, line, operands, track } = this.timeline.events;
    const hits = words.map((word) => {
      const contains = (label) => label.toLowerCase().includes(word);
      return [this.timeline.names, this.timeline.lines, this.timeline.operands,
        this.timeline.tracks.map((one) => one.name)].map((labels) => labels.map(contains));
    });
    this.found = new Uint8Array(this.timeline.count);
    const matches = [];
    for (let i = 0; i < this.timeline.count; i++) {
      const found = hits.every(
        ([names, lines, texts, tracks]) => names[name[i]] || lines[line[i]] || texts[operands[i]] || tracks[track[i]]);
      if (found) {
        this.found[i] = 1;
        matches.push(i);
      }
    }
    this.matches = Int32Array.from(matches);
  }

  // The match after (or before) an event, going round at the end; -1 where there is none.
  step(from, forward) {
    const { matches } = this;
    if (!matches.length) return -1;
    const after = firstWhere(matches.length, (i) => matches[i] > from);
    if (forward) return matches[after % matches.length];
    const before = after - (after && matches[after - 1] === from ? 2 : 1);
    return matches.at(before);
  }
}
