// Decodes the report's data: parallel arrays with an entry per event, in order of start.

const ARRAYS = {
  f64: Float64Array, f32: Float32Array, i32: Int32Array, u32: Uint32Array, u16: Uint16Array, u8: Uint8Array,
};

function decodeArray({ type, base64 }) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new ARRAYS[type](bytes.buffer);
}

function decodeTimeline(data) {
  const timeline = { ...data, events: {}, occupancy: [] };
  for (const [name, array] of Object.entries(data.events)) timeline.events[name] = decodeArray(array);
  const { start, duration, track } = timeline.events;
  timeline.count = start.length;
  timeline.events.end = start.map((begin, i) => begin + duration[i]);
  timeline.edges = decodeArray(data.edges);
  timeline.needs = neighbours(timeline.edges, 1, timeline.count);
  timeline.neededBy = neighbours(timeline.edges, 0, timeline.count);
  timeline.byTrack = group(track, data.tracks.length);
  timeline.occupancy = data.occupancy.map(
    (memory) => ({ ...memory, times: decodeArray(memory.times), values: decodeArray(memory.values) }));
  return timeline;
}

// Lists of indices by key, each an array in ascending order.
function group(keys, count) {
  const sizes = new Uint32Array(count);
  for (const key of keys) sizes[key]++;
  const lists = Array.from(sizes, (size) => new Int32Array(size));
  sizes.fill(0);
  for (let i = 0; i < keys.length; i++) lists[keys[i]][sizes[keys[i]]++] = i;
  return lists;
}

// The other ends of the edges whose end number `side` (0 or 1) is a given event.
function neighbours(edges, side, count) {
  const first = new Uint32Array(count + 1);
  for (let i = side; i < edges.length; i += 2) first[edges[i] + 1]++;
  for (let i = 0; i < count; i++) first[i + 1] += first[i];
  const others = new Int32Array(edges.length / 2);
  const filled = first.slice();
  for (let i = 0; i < edges.length; i += 2) others[filled[edges[i + side]]++] = edges[i + 1 - side];
  return (event) => others.subarray(first[event], first[event + 1]);
}

// Where `at` is first true of 0 to count - 1, given that it stays true from there on.
function firstWhere(count, at) {
  let low = 0;
  let high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (at(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

function describe(timeline, event) {
  const { name, line, operands, track } = timeline.events;
  return {
    name: timeline.names[name[event]],
    line: timeline.lines[line[event]],
    operands: timeline.operands[operands[event]],
    track: timeline.tracks[track[event]],
  };
}
