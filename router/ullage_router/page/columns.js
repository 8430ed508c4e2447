// What the table of replicas shows, a column each: how it is told, and what it sorts by.

const collator = new Intl.Collator("en", { numeric: true });

const COLUMNS = [
  {
    name: "state",
    title:
      "What the replica is for this router: serving, ramping (its score is discounted after a warm-up), slow (it computes prompts less than half as fast as is usual), silent (no score: by the router's own counts), full (its score is not above the floor), left out (it failed, or was filled a moment ago), draining, warming, starting, lost, hung, down",
    of: (it) => GLYPH[it.row.now] + " " + it.row.now,
    sort: (it) => ["bad", "mild", "good"].indexOf(it.row.mood) + it.row.now,
  },
  {
    name: "replica",
    title: "node/engine as its sidecar calls it, else its address",
    kind: "name",
    of: (it) => it.row.id,
    sort: (it) => it.row.id,
  },
  {
    name: "score",
    title:
      "Capacity score in its latest snapshot: 0 full, 1 empty. What the bar is made of stands above; the rest of its width is load",
    kind: "score",
    down: true,
    sort: (it) => it.row.capacity_score,
  },
  {
    name: "in flight",
    title: "Requests sent there by this router whose last byte has not come",
    kind: "n",
    down: true,
    of: (it) => count(it.row.in_flight),
    sort: (it) => it.row.in_flight,
  },
  {
    name: "share 10 s",
    title: "Of the requests that were sent to replicas in the last 10 s",
    kind: "n share",
    down: true,
    of: (it) => percent(it.share10),
    sort: (it) => it.share10,
  },
  {
    name: "60 s",
    title: "Share of the requests of the last 60 s",
    kind: "n share wide",
    down: true,
    of: (it) => percent(it.share60),
    sort: (it) => it.share60,
  },
  {
    name: "TTFT p50",
    title:
      "Time to first byte of the answer that half of the last 60 s' answers were under, estimated from a histogram",
    kind: "n medium",
    down: true,
    of: (it) => seconds(it.ttft[0]),
    sort: (it) => it.ttft[0],
  },
  {
    name: "p90",
    title: "Time to first byte that nine of ten answers of the last 60 s were under",
    kind: "n",
    down: true,
    of: (it) => seconds(it.ttft[1]),
    sort: (it) => it.ttft[1],
  },
  {
    name: "running",
    title: "Sequences that run, of the most that may at once (max_num_seqs)",
    kind: "n medium",
    down: true,
    of: (it) => count(it.row.running) + (it.row.max_num_seqs ? "/" + it.row.max_num_seqs : ""),
    sort: (it) => it.row.running,
  },
  {
    name: "waiting",
    title: "Requests that wait in the engine",
    kind: "n medium",
    down: true,
    of: (it) => count(it.row.waiting),
    sort: (it) => it.row.waiting,
  },
  {
    name: "free",
    title: "Free share of its KV blocks, smoothed; what falls fast counts as gone",
    kind: "n medium",
    of: (it) => percent(it.row.free_block_ratio),
    sort: (it) => it.row.free_block_ratio,
  },
  {
    name: "age",
    title: "Age of its latest snapshot",
    kind: "n wide",
    down: true,
    of: (it) => seconds(it.row.age_s),
    sort: (it) => it.row.age_s,
  },
  {
    name: "why not, or what else",
    title: "Why it gets no request, and what its sidecar says of its state",
    kind: "why",
    of: (it) => it.row.say,
    sort: (it) => it.row.say,
  },
];

/** Unknown comes last, whichever way. */
function compared(a, b, down) {
  const [lost, other] = [a ?? null, b ?? null].map((value) => value === null || value === "");
  if (lost || other) return lost - other;
  const order = typeof a === "string" ? collator.compare(a, b) : a - b;
  return down ? -order : order;
}
