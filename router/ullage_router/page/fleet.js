// The table of replicas: a row each, kept from look to look, filtered, sorted, one open in full.

class Fleet {
  #lines = new Map();
  #sorted = { by: 1, down: false };
  #open = null;
  #at = null; // The row that the keyboard is at.
  #detail = el("tr", { className: "detail" }, el("td", { colSpan: COLUMNS.length }));
  #floor = 0;

  constructor() {
    this.head = $("fleet").tHead.rows[0];
    this.body = $("fleet").tBodies[0];
    COLUMNS.forEach((column, i) => {
      const button = el("button", { type: "button", text: column.name, title: column.title });
      button.addEventListener("click", () => this.#sortBy(i));
      this.head.append(el("th", { scope: "col", className: column.kind ?? "" }, button));
    });
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr");
      if (row && row !== this.#detail && !String(getSelection())) this.#go(row, true);
    });
    this.body.addEventListener("keydown", (event) => this.#key(event));
    $("filter").addEventListener("input", () => this.arrange());
    $("troubled").addEventListener("change", () => this.arrange());
  }

  draw(page, in10, in60) {
    this.page = page;
    this.#floor = page.floor;
    const seen = new Set();
    const widest = Math.max(
      ...[in10, in60].flatMap((it) => [...it.bySent.keys()].map((key) => it.share(key) ?? 0)),
      1e-9,
    );
    for (const row of page.replicas) {
      const key = keyOf(row);
      seen.add(key);
      const line = this.#lines.get(key) ?? this.#made(key);
      Object.assign(line, {
        row,
        share10: in10.share(key),
        share60: in60.share(key),
        ttft: in60.ttft(key),
        perS: in10.s ? in10.bySent.get(key) / in10.s : null,
        widest,
      });
      this.#fill(line);
    }
    for (const key of [...this.#lines.keys()].filter((key) => !seen.has(key)))
      this.#lines.delete(key);
    this.arrange();
  }

  /** Those that are to be seen, in order. */
  arrange() {
    if (!this.page) return;
    const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const only = $("troubled").checked;
    const all = [...this.#lines.values()];
    const kept = all.filter(
      (line) => (!only || troubled(line.row)) && words.every((each) => line.text.includes(each)),
    );
    const { by, down } = this.#sorted;
    const value = COLUMNS[by].sort;
    kept.sort((a, b) => compared(value(a), value(b), down) || collator.compare(a.row.id, b.row.id));
    if (!kept.some((line) => line.key === this.#open)) this.#open = null;
    const rows = kept.map((line) => line.tr);
    const at = kept.findIndex((line) => line.key === this.#open);
    if (at >= 0) {
      this.#inFull(kept[at]);
      rows.splice(at + 1, 0, this.#detail);
    }
    if (!kept.some((line) => line.tr === this.#at)) this.#at = kept[0]?.tr ?? null;
    for (const line of all) {
      line.tr.tabIndex = line.tr === this.#at ? 0 : -1;
      line.tr.ariaExpanded = line.key === this.#open;
    }
    inOrder(this.body, rows);
    const bad = all.filter((line) => troubled(line.row)).length;
    say(
      $("shown"),
      `${kept.length === all.length ? some(all.length, "replica") : `${kept.length} of ${some(all.length, "replica")}`}, ${bad} with a problem`,
    );
    [...this.head.cells].forEach((cell, i) => {
      cell.ariaSort = i === by ? (down ? "descending" : "ascending") : "none";
    });
  }

  onlyTroubled(on = !$("troubled").checked) {
    $("troubled").checked = on;
    this.arrange();
  }

  enter() {
    this.#at?.focus();
  }

  #made(key) {
    const cells = COLUMNS.map((column) =>
      el(column.kind === "name" ? "th" : "td", { className: column.kind ?? "" }),
    );
    cells[1].scope = "row";
    const parts = Object.fromEntries(
      ["free", "running", "waiting", "held", "floor"].map((name) => [
        name,
        el("i", { className: name }),
      ]),
    );
    const bar = el("span", { className: "meter" }, ...Object.values(parts));
    bar.ariaHidden = "true";
    const number = el("b");
    cells[2].append(bar, number);
    const line = { key, cells, parts, number, tr: el("tr", {}, ...cells) };
    this.#lines.set(key, line);
    return line;
  }

  #fill(line) {
    const { row, cells } = line;
    COLUMNS.forEach((column, i) => {
      if (column.of) say(cells[i], column.of(line));
    });
    mark(line.tr, row.mood);
    hint(cells[0], `standing: ${row.standing}; its sidecar says: ${row.state ?? "nothing"}`);
    hint(cells[1], row.url + (row.dp_rank === null ? "" : `, rank ${row.dp_rank}`));
    hint(cells.at(-1), row.say);
    for (const [i, share] of [
      [4, line.share10],
      [5, line.share60],
    ])
      cells[i].style.backgroundSize = `${(100 * (share ?? 0)) / line.widest}% 2px`;
    this.#meter(line);
    line.text = [row.id, row.url, row.now, row.state, row.say, ...row.models]
      .join(" ")
      .toLowerCase();
  }

  #meter({ row, parts, number, cells }) {
    const score = row.capacity_score;
    say(number, score === null ? "–" : score.toFixed(2));
    hint(cells[2], sum(row));
    const made = row.parts;
    const factor = made ? made.penalty * made.warm_up : 1;
    const width = (part, share) => (part.style.width = `${(100 * share).toFixed(1)}%`);
    for (const name of ["free", "running", "waiting"])
      width(parts[name], made ? made[name] * factor : 0);
    if (!made) width(parts.free, score ?? 0);
    mark(parts.free, made ? "free" : "whole");
    width(parts.held, made ? (made.free + made.running + made.waiting) * (1 - factor) : 0);
    parts.floor.style.left = `${100 * this.#floor}%`;
  }

  #inFull(line) {
    const list =
      this.#detail.cells[0].firstElementChild ?? this.#detail.cells[0].appendChild(el("dl"));
    factsOf(line, this.page.recent).forEach(([name, text], i) => {
      const pair = list.children[i] ?? list.appendChild(el("div", {}, el("dt"), el("dd")));
      say(pair.children[0], name);
      say(pair.children[1], text);
    });
  }

  #sortBy(i) {
    const again = this.#sorted.by === i;
    this.#sorted = { by: i, down: again ? !this.#sorted.down : Boolean(COLUMNS[i].down) };
    this.arrange();
  }

  #key(event) {
    const rows = [...this.body.rows].filter((row) => row !== this.#detail);
    const at = rows.indexOf(this.#at);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (to !== undefined) this.#go(rows[Math.min(Math.max(to, 0), rows.length - 1)], false);
    else if (event.key === "Enter" || event.key === " ") this.#go(this.#at, true);
    else if (event.key === "Escape") this.#close();
    else return;
    event.preventDefault();
  }

  #go(row, toggle) {
    this.#at = row;
    if (toggle) {
      const { key } = [...this.#lines.values()].find((line) => line.tr === row);
      this.#open = this.#open === key ? null : key;
    }
    this.arrange();
    row.focus();
  }

  #close() {
    this.#open = null;
    this.arrange();
  }
}
