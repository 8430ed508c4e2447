// How things are called on this page. Pure.

const WHY = {
  score: "headroom: drawn by score",
  own_counts: "no sidecar speaks: by own counts",
  affinity: "its beginning is known there",
  affinity_by_chance: "its key's replica has little room, and kept it by chance",
  new_key: "a new beginning: as its key prefers",
  wait: "drawn among the shortest waits",
  key_moved: "its key's replica is full or gone: the key moves",
  key_spilled: "its key's replica has little room: the key stays",
  hot_key: "a hot key: shared by several",
  full: "refused: no replica has headroom",
  no_replica: "refused: no replica serves",
};

const WAY = {
  least_wait: "where its first token is expected soonest",
  weighted: "drawn at odds of the score",
  highest: "the highest score",
  two_choices: "the one of two with fewer requests",
  least_in_flight: "the one with the fewest requests",
  round_robin: "in turns",
};

const GLYPH = {
  serving: "●",
  ramping: "◐",
  slow: "◑",
  silent: "○",
  stalled: "◌",
  starting: "◔",
  warming: "◔",
  draining: "▽",
  full: "■",
  "left out": "⊘",
  lost: "?",
  hung: "✕",
  down: "✕",
};

const troubled = (row) => row.mood !== "good" || row.say !== "";

const percent = (share) => {
  if (share === null || share === undefined) return "";
  if (share === 0) return "0";
  if (share > 0 && share < 0.001) return "<0.1 %";
  return (100 * share).toFixed(share < 0.0995 ? 1 : 0) + " %";
};

const seconds = (s) => {
  if (s === null || s === undefined) return "";
  if (s === Infinity) return ">320 s";
  if (s < 0.0995) return Math.round(1000 * s) + " ms";
  return s.toFixed(s < 9.95 ? 2 : 0) + " s";
};

const count = (n) => (n === null || n === undefined ? "" : Math.round(n).toLocaleString("en"));

const clock = (unixS) => new Date(1000 * unixS).toTimeString().slice(0, 8);

function span(s) {
  const parts = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const at = parts.findIndex(([size]) => s >= size);
  if (at < 0) return "0 s";
  const [[size, name], next] = [parts[at], parts[at + 1]];
  const rest = next ? Math.floor((s % size) / next[0]) : 0;
  return `${Math.floor(s / size)} ${name}` + (rest ? ` ${rest} ${next[1]}` : "");
}

const some = (n, one, more = one + "s") => `${count(n)} ${n === 1 ? one : more}`;
