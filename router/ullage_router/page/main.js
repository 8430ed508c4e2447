// Looks every second while it is seen, and says so when nobody answers.

const EVERY_MS = 1000;
const WITHIN_MS = 5000;

const past = new History();
const fleet = new Fleet();
let lastMs = null;
let lostMs = null;
let timer = null;
let looking = false;

async function look() {
  const answer = await fetch("status", {
    cache: "no-store",
    signal: AbortSignal.timeout(WITHIN_MS),
  });
  const page = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(page.error?.message ?? `status ${answer.status}`);
  return page;
}

function draw(page) {
  past.take(page, performance.now() / 1000);
  const [in10, in60] = [past.since(10), past.since(60)];
  drawWrong(page, in60, () => fleet.onlyTroubled(true));
  drawFigures(page, in10, in60);
  fleet.draw(page, in10, in60);
  drawTables(page, in60);
  const workers = page.workers ? `, ${some(page.workers.length, "worker")}` : "";
  const restarts = page.restarts ? ` (${some(page.restarts, "restart")})` : "";
  say(
    $("about"),
    `${page.version} at ${location.host}, up ${span(page.uptime_s)}${workers}${restarts}; chooses ${WAY[page.way] ?? page.way}`,
  );
  hint($("about"), `choose.way = ${page.way}, choose.floor = ${page.floor}`);
  const bad = page.replicas.filter((row) => row.mood === "bad").length;
  const trouble = bad || page.overload.state !== "open";
  document.title = `${trouble ? "✕ " : ""}${page.replicas.length - bad}/${page.replicas.length} · Ullage router`;
}

async function turn() {
  if (looking) return;
  looking = true;
  clearTimeout(timer);
  const beganMs = performance.now();
  try {
    draw(await look());
    [lastMs, lostMs] = [Date.now(), null];
  } catch (error) {
    lostMs ??= lastMs ?? Date.now();
    lost(error);
  }
  standing();
  looking = false;
  if (!document.hidden)
    timer = setTimeout(turn, Math.max(0, EVERY_MS - (performance.now() - beganMs)));
}

function lost(error) {
  const why =
    error.name === "TimeoutError"
      ? `it gives no answer within ${WITHIN_MS / 1000} s`
      : error.message;
  say(
    $("lost"),
    `✕ The router does not answer since ${clock(lostMs / 1000)} (for ${span((Date.now() - lostMs) / 1000)}): ${why}.${lastMs ? " What stands below is as of then." : ""}`,
  );
  document.title = "✕ no answer · Ullage router";
}

function standing() {
  $("lost").hidden = lostMs === null;
  document.body.classList.toggle("stale", lostMs !== null);
  say($("live"), document.hidden ? "paused" : lostMs === null ? "● live" : "✕ no answer");
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else turn();
  standing();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target === $("filter");
  if (event.key === "Escape" && typing) {
    $("filter").value = "";
    fleet.arrange();
    fleet.enter();
  } else if (event.key === "ArrowDown" && (typing || event.target === document.body)) fleet.enter();
  else if (typing) return;
  else if (event.key === "/") $("filter").focus();
  else if (event.key === "p") fleet.onlyTroubled();
  else return;
  event.preventDefault();
});

turn();
