// What the page says about an event: the tooltip beside the pointer and the panel of the selected one.

function element(tag, attributes = {}, ...children) {
  const made = Object.assign(document.createElement(tag), attributes);
  made.append(...children);
  return made;
}

function factList(facts) {
  const list = element("dl", { className: "facts" });
  for (const [name, value] of facts) list.append(element("dt", {}, name), element("dd", {}, value));
  return list;
}

function eventFacts(timeline, event) {
  const { start, duration, visible, cause, blocker } = timeline.events;
  const about = describe(timeline, event);
  const facts = [
    ["line", about.line],
    ["engine", about.track.name],
    ["start", formatTime(start[event])],
    ["duration", formatTime(duration[event])],
    ["results visible", `${formatTime(visible[event])} after its end`],
    ["began after", timeline.causes[cause[event]].words],
  ];
  if (blocker[event] >= 0) {
    const other = describe(timeline, blocker[event]);
    facts.push(["waited for", `${other.name}, ${other.line}, on ${other.track.name}`]);
  }
  if (about.operands) facts.splice(1, 0, ["operands", about.operands]);
  return facts;
}

class Tooltip {
  constructor(box, stage) {
    this.box = box;
    this.stage = stage;
  }

  show(x, y, title, facts) {
    this.box.replaceChildren(element("strong", {}, title), factList(facts));
    this.box.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = this.box;
    const right = this.stage.clientWidth;
    this.box.style.left = `${Math.max(x + 14 + width > right ? x - 14 - width : x + 14, 0)}px`;
    const below = y + 16;
    const fits = this.stage.getBoundingClientRect().top + below + height < window.innerHeight;
    this.box.style.top = `${fits ? below : y - 12 - height}px`;
  }

  hide() {
    this.box.hidden = true;
  }
}

const LISTED = 12;

class Details {
  constructor(box, timeline, go) {
    this.box = box;
    this.timeline = timeline;
    this.go = go;
  }

  show(event) {
    if (event < 0) {
      this.box.replaceChildren();
      return;
    }
    const { timeline } = this;
    const links = element("div", { className: "links" },
      this.list("Needs", timeline.needs(event)), this.list("Needed by", timeline.neededBy(event)));
    this.box.replaceChildren(
      element("strong", {}, describe(timeline, event).name), factList(eventFacts(timeline, event)), links);
  }

  list(title, events) {
    const items = Array.from(events.subarray(0, LISTED), (event) => {
      const about = describe(this.timeline, event);
      const text = `${about.name}, ${about.line}, ${about.track.name}`;
      return element("li", {}, element("button", { type: "button", className: "link", onclick: () => this.go(event) }, text));
    });
    if (events.length > LISTED) items.push(element("li", {}, `and ${formatCount(events.length - LISTED)} more`));
    if (!events.length) items.push(element("li", {}, "nothing"));
    return element("div", {}, element("h3", {}, title), element("ul", {}, ...items));
  }
}

// Instructions by the time they keep their tracks busy, then what gaps are coloured by.
function fillLegend(box, timeline, picture, look) {
  const busy = new Float64Array(timeline.names.length);
  const { name, duration, cause } = timeline.events;
  const causes = new Set();
  for (let i = 0; i < timeline.count; i++) {
    busy[name[i]] += duration[i];
    causes.add(cause[i]);
  }
  const order = Array.from(busy.keys()).sort((a, b) => busy[b] - busy[a]).slice(0, 16);
  const swatch = (colour, className = "") => {
    const mark = element("i", { className });
    mark.style.background = colour;
    return mark;
  };
  for (const index of order) {
    const label = timeline.names[index];
    const title = `${formatTime(busy[index], 1)} on all tracks; click to search`;
    box.append(element("button", { type: "button", title, onclick: () => look(label) }, swatch(picture.colours[index]), label));
  }
  box.append(element("hr"), element("span", {}, "gaps wait for"));
  timeline.causes.forEach(({ words }, index) => {
    if (causes.has(index) && picture.causes[index]) {
      const [name, meaning] = words.split(": ");
      box.append(element("span", { title: meaning }, swatch(picture.causes[index], "stripe"), name));
    }
  });
}
