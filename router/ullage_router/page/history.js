// What was counted between two looks. Pure: the moment is an argument, in seconds.
//
// Rules
// * A count that falls has begun anew (its replica left and came back): what it shows is new.
// * After a restart, or when other workers answer than before, all is counted from then on.

const KEPT_S = 60;

const keyOf = (row) => row.url + "|" + row.dp_rank;

const grown = (now, then) => (then === undefined || now < then ? now : now - then);

function continues(page, before) {
  const who = (it) => JSON.stringify([it.workers, it.restarts]);
  return page.uptime_s >= before.uptime_s && who(page) === who(before);
}

class History {
  #looks = [];

  take(page, atS) {
    const last = this.#looks.at(-1);
    if (last && !continues(page, last.page)) this.#looks = [];
    while (this.#looks.length > 1 && this.#looks[1].atS <= atS - KEPT_S) this.#looks.shift();
    const rows = new Map(page.replicas.map((row) => [keyOf(row), row]));
    this.#looks.push({ atS, page, rows });
  }

  /** What has come in the last `windowS` seconds, or since the first look. */
  since(windowS) {
    const now = this.#looks.at(-1);
    const oldest = now.atS - windowS - 0.5; // A look may come a little late.
    const then = this.#looks.find((look) => look.atS >= oldest);
    return new Since(now, then);
  }
}

class Since {
  constructor(now, then) {
    this.now = now;
    this.then = then;
    this.s = now.atS - then.atS;
    this.sent = 0;
    this.bySent = new Map();
    for (const [key, row] of now.rows) {
      const count = this.s ? grown(row.dispatched, then.rows.get(key)?.dispatched) : 0;
      this.bySent.set(key, count);
      this.sent += count;
    }
  }

  /** The replica's share of all that was sent, 0..1; null: nothing was. */
  share(key) {
    return this.sent ? this.bySent.get(key) / this.sent : null;
  }

  get sentPerS() {
    return this.s ? this.sent / this.s : null;
  }

  /** How far counts by name grew, those that did: [name, by how many]. */
  counts(of) {
    const then = of(this.then.page);
    return Object.entries(of(this.now.page))
      .map(([name, count]) => [name, grown(count, then[name] ?? 0)])
      .filter(([, count]) => count > 0);
  }

  /** Answers begun, by bucket of their time to first byte. */
  firstBytes(key) {
    const before = this.then.rows.get(key)?.first_byte_counts;
    const counts = this.now.rows.get(key).first_byte_counts;
    if (!this.s) return counts.map(() => 0);
    const anew = !before || counts.some((count, i) => count < before[i]);
    return counts.map((count, i) => (anew ? count : count - before[i]));
  }

  /** Times to first byte that half, and nine of ten, were under: [p50, p90]. */
  ttft(key) {
    return this.#both(this.firstBytes(key));
  }

  get ttftOfAll() {
    const sums = this.now.page.first_byte_bounds_s.concat(0).map(() => 0);
    for (const key of this.now.rows.keys())
      this.firstBytes(key).forEach((count, i) => (sums[i] += count));
    return this.#both(sums);
  }

  #both(counts) {
    const bounds = this.now.page.first_byte_bounds_s;
    return [quantile(counts, bounds, 0.5), quantile(counts, bounds, 0.9)];
  }
}

/** Estimated within its bucket; null: of nothing; Infinity: beyond the last bound. */
function quantile(counts, bounds, q) {
  const wanted = q * counts.reduce((sum, count) => sum + count, 0);
  if (!wanted) return null;
  let passed = 0;
  for (let i = 0; i < bounds.length; i++) {
    if (counts[i] && passed + counts[i] >= wanted) {
      const from = i ? bounds[i - 1] : 0;
      return from + ((bounds[i] - from) * (wanted - passed)) / counts[i];
    }
    passed += counts[i];
  }
  return Infinity;
}
