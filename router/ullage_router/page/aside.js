// All but the table of replicas: what is wrong, the figures, decisions, keys, sidecars.

const FEW = 4;

/** Lines about what is wrong, the worst first: [mood, text, …]. */
function wrong(page, in60) {
  const lines = [];
  const add = (mood, text, act) => lines.push({ mood, text, act });
  const { queue, overload, replicas, sidecars } = page;
  const refused = in60.counts((it) => it.queue.refused).reduce((sum, [, n]) => sum + n, 0);
  if (page.stopping) add("mild", "The router is stopping: it takes no new connection.");
  if (!replicas.length)
    add("bad", "There is no replica: none is configured, and no sidecar speaks of one.");
  else if (page.routing_by === "no_replica")
    add("bad", "No replica serves: every request is refused.");
  if (overload.state !== "open") {
    const wait = queue.length
      ? `${count(queue.length)} wait, the longest for ${seconds(queue.oldest_s)}`
      : "nobody waits now";
    add(
      "bad",
      `No replica has headroom, so the gate is ${overload.state}: ${wait}, ${count(refused)} refused in the last 60 s. It takes more capacity, or less load.`,
    );
  }
  const out = replicas.filter((row) => row.mood === "bad");
  if (out.length)
    add(
      "bad",
      `${out.length} of ${some(replicas.length, "replica")} ${out.length === 1 ? "gets" : "get"} nothing: ${grouped(out.map((row) => row.now))}.`,
      "show",
    );
  const passing = replicas.filter((row) => row.mood === "mild");
  if (passing.length)
    add(
      "mild",
      `${some(passing.length, "replica")} ${passing.length === 1 ? "is" : "are"} not what ${passing.length === 1 ? "it" : "they"} should be: ${grouped(passing.map((row) => row.now))}.`,
      "show",
    );
  const ill = sidecars.filter((sidecar) => sidecar.problem);
  for (const { url, problem } of ill.slice(0, FEW)) add("bad", `Sidecar ${url}: ${problem}.`);
  if (ill.length > FEW) add("bad", `And ${some(ill.length - FEW, "more sidecar")} with a problem.`);
  for (const { source, problem } of page.sources.filter((it) => it.problem).slice(0, FEW))
    add("mild", `The list ${source} is as before: ${problem}.`);
  if (page.routing_by === "own_counts" && sidecars.length)
    add("mild", "No sidecar speaks for any replica: it goes by its own counts of requests.");
  if (page.routing_by === "mixed")
    add("mild", "Some workers hear of the replicas' scores, others do not.");
  const silent = page.workers_silent ?? [];
  if (silent.length)
    add("bad", `Worker ${silent.join(", ")} gives no answer: what it does is missing here.`);
  const failing = replicas
    .map((row) => [row, failedIn(in60, row)])
    .filter(([, n]) => n)
    .sort((a, b) => b[1] - a[1]);
  for (const [row, n] of failing.slice(0, FEW))
    add("mild", `${row.id} failed ${some(n, "time")} in the last 60 s.`);
  if (failing.length > FEW)
    add("mild", `And ${some(failing.length - FEW, "more replica")} failed.`);
  return lines.sort((a, b) => (b.mood === "bad") - (a.mood === "bad"));
}

function failedIn(in60, row) {
  const before = in60.then.rows.get(keyOf(row))?.failures ?? {};
  if (!in60.s) return 0;
  return Object.entries(row.failures).reduce(
    (sum, [kind, n]) => sum + grown(n, before[kind] ?? 0),
    0,
  );
}

function grouped(words) {
  const counts = new Map();
  for (const each of words) counts.set(each, (counts.get(each) ?? 0) + 1);
  return [...counts].map(([each, n]) => `${n} ${each}`).join(", ");
}

function drawWrong(page, in60, show) {
  const lines = wrong(page, in60);
  if (!lines.length) {
    const all =
      page.replicas.length === 1 ? "The replica" : `All ${count(page.replicas.length)} replicas`;
    lines.push({
      mood: "good",
      text: `Nothing is wrong. ${all} may be given requests, and nobody waits.`,
    });
  }
  const at = $("wrong");
  while (at.children.length > lines.length) at.lastElementChild.remove();
  lines.forEach(({ mood, text, act }, i) => {
    const item =
      at.children[i] ??
      at.appendChild(
        el(
          "li",
          {},
          el("span"),
          el("button", { type: "button", text: "show them", onclick: show }),
        ),
      );
    mark(item, mood);
    say(item.firstElementChild, { good: "● ", mild: "▲ ", bad: "✕ " }[mood] + text);
    item.lastElementChild.hidden = !act;
  });
}

function drawFigures(page, in10, in60) {
  const { queue } = page;
  const [p50, p90] = in60.ttftOfAll;
  const scores = page.replicas.map((row) => row.capacity_score).filter((score) => score !== null);
  const mean = scores.length
    ? (scores.reduce((sum, score) => sum + score, 0) / scores.length).toFixed(2)
    : "–";
  const refused = in60.counts((it) => it.refusals);
  const tries = grown(page.second_tries, in60.then.page.second_tries);
  const denied = grown(page.second_tries_denied, in60.then.page.second_tries_denied);
  const figures = [
    [
      "sent",
      in10.sentPerS === null ? "…" : in10.sentPerS.toFixed(1) + "/s",
      "Requests sent to replicas, a second, over the last 10 s; second tries included",
    ],
    [
      "in flight",
      count(page.replicas.reduce((sum, row) => sum + row.in_flight, 0)),
      "Requests sent whose last byte has not come",
    ],
    ["clients", count(page.clients), "Open client connections"],
    ["mean score", mean, "Mean of the capacity scores that are known: 0 all full, 1 all empty"],
    [
      "first byte",
      p50 === null ? "–" : `${seconds(p50)} · ${seconds(p90)}`,
      "Time to first byte of the last 60 s, all replicas: half of the answers began within the first, nine of ten within the second; estimated from a histogram",
    ],
    [
      "gate",
      page.overload.state,
      `open: requests are decided at once; queueing: some wait for headroom; refusing: some were refused a moment ago. ${some(page.overload.episodes, "overload")} since the start`,
    ],
    [
      "waiting",
      `${count(queue.length)} of ${count(queue.max_requests)}` +
        (queue.length ? ` · ${seconds(queue.oldest_s)}` : ""),
      `Requests that wait for a replica with headroom, of the most that may, and how long the first has; ${queue.max_wait_s} s at most`,
    ],
    [
      "refused in 60 s",
      count(refused.reduce((sum, [, n]) => sum + n, 0)),
      `Answers given in a replica's place: ${refused.map(([code, n]) => `${n} ${code}`).join(", ") || "none"}. Since the start: ${
        Object.entries(page.refusals)
          .map(([code, n]) => `${n} ${code}`)
          .join(", ") || "none"
      }`,
    ],
    [
      "second tries in 60 s",
      count(tries) + (denied ? `, ${count(denied)} denied` : ""),
      "Requests sent to another replica after a first one failed; denied: the budget [retry] was used up",
    ],
  ];
  const at = $("figures");
  figures.forEach(([name, text, title], i) => {
    const pair = at.children[i] ?? at.appendChild(el("div", {}, el("dt"), el("dd")));
    say(pair.children[0], name);
    say(pair.children[1], text);
    hint(pair, title);
    mark(
      pair,
      (name === "gate" && text !== "open") || (name.startsWith("refused") && text !== "0")
        ? "bad"
        : "",
    );
  });
}

function drawTables(page, in60) {
  const several = (page.workers ?? []).length > 1;
  table(
    $("recent"),
    [
      ["time", "When, by the router's clock, in your time zone"],
      ["replica", "Who got it"],
      ["reason", "The rule that settled it"],
      ["score", "The replica's capacity score then", "n"],
      ["prompt", "Tokens of the prompt, estimated", "n"],
      ["waited", "Time in the queue", "n"],
      ["", "Second try: another replica had failed. The worker, where there are several"],
    ],
    page.recent.map((one) => [
      clock(one.at),
      one.replica ?? "–",
      {
        text: WHY[one.why] ?? one.why,
        title: one.why,
        className: one.replica === null ? "bad" : "",
      },
      one.score === null ? "" : one.score.toFixed(2),
      count(one.prompt_tokens),
      one.waited_s ? seconds(one.waited_s) : "",
      [one.second_try && "second try", several && `worker ${one.worker}`]
        .filter(Boolean)
        .join(", "),
    ]),
  );
  const lately = new Map(in60.counts((it) => it.decisions));
  const all = [...lately.values()].reduce((sum, n) => sum + n, 0);
  table(
    $("rules"),
    [
      ["reason", "The rule that settled it"],
      ["60 s", "Share of the last 60 s' decisions", "n"],
      ["in all", "Since the start", "n"],
    ],
    Object.entries(page.decisions)
      .filter(([, n]) => n)
      .sort((a, b) => b[1] - a[1])
      .map(([why, n]) => [
        { text: WHY[why] ?? why, title: why },
        all ? percent((lately.get(why) ?? 0) / all) : "",
        count(n),
      ]),
  );
  const by = page.way === "least_wait";
  $("hot-section").hidden = by;
  say($("no-hot"), page.hot_keys.length ? "" : "None.");
  table(
    $("hot"),
    [
      ["key", "The beginning of its hash"],
      ["a second", "How often it comes", "n"],
      ["homes", "How many replicas share it", "n"],
      ["first home", "Where it was at home at first"],
    ],
    page.hot_keys.map((key) => [
      key.key,
      key.per_s.toFixed(1),
      count(key.homes),
      key.home ?? "gone",
    ]),
  );
  table(
    $("sidecars"),
    [
      ["sidecar", "Its address"],
      ["how", "Pushes: it tells at once what changes; else it is asked at intervals"],
      ["what is wrong", "Why the latest look failed, or what was wrong with its document", "why"],
    ],
    [...page.sidecars]
      .sort((a, b) => Boolean(b.problem) - Boolean(a.problem))
      .map((it) => [
        it.url,
        it.problem ? "✕" : it.watched ? "pushes" : "is asked",
        { text: [it.problem, ...it.faults].filter(Boolean).join("; "), className: "why bad" },
      ]),
  );
}
