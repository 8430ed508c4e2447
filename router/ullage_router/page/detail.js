// One replica in full, as pairs of a name and what there is to say.

const SOON_S = 300; // Of what is to come later, what happens now says nothing.

function factsOf({ row, share10, share60, perS, ttft }, recent) {
  const latest = recent.filter((one) => one.replica === row.id).slice(0, 3);
  const failures = Object.entries(row.failures)
    .map(([kind, n]) => `${n} ${kind}`)
    .join(", ");
  return [
    ["score", sum(row)],
    ["standing", [row.standing, row.say].filter(Boolean).join(": ")],
    ["its sidecar", row.sidecar ?? "none speaks for it"],
    ["address", row.url + (row.dp_rank === null ? "" : `, rank ${row.dp_rank}`)],
    ["serves", row.models.join(", ") || "unknown"],
    [
      "traffic",
      `${percent(share10) || "0"} of the last 10 s (${perS === null ? "?" : perS.toFixed(1)} a second), ${percent(share60) || "0"} of the last 60 s, ${count(row.dispatched)} in all`,
    ],
    [
      "first byte",
      ttft[0] === null
        ? "none in the last 60 s"
        : `half within ${seconds(ttft[0])}, nine of ten within ${seconds(ttft[1])}`,
    ],
    [
      "failed",
      failures || row.ejections
        ? `${failures || "0"}; put out ${some(row.ejections, "time")}`
        : "never",
    ],
    [
      "speed",
      [
        row.step_s && `${seconds(row.step_s)} a step`,
        row.decode_tokens_per_s && `${count(row.decode_tokens_per_s)} tokens/s made`,
        row.prefill_tokens_per_s && `${count(row.prefill_tokens_per_s)} tokens/s read`,
      ]
        .filter(Boolean)
        .join(", ") || "not learned yet",
    ],
    [
      "blocks",
      row.exhaustion_s === null
        ? "they do not fall"
        : row.exhaustion_s >= SOON_S
          ? "they fall slowly"
          : `gone in ${seconds(row.exhaustion_s)} if they go on falling`,
    ],
    [
      "latest",
      latest.map((one) => `${clock(one.at)} ${WHY[one.why] ?? one.why}`).join("; ") ||
        "not among the last decisions",
    ],
  ];
}

function sum({ capacity_score: score, parts, state }) {
  if (score === null) return "no score is known";
  if (!parts) return `${score}; its sidecar does not say what it is made of`;
  const { free, running, waiting, penalty, warm_up } = parts;
  return `(${free} free blocks + ${running} free slots + ${waiting} empty queue) × ${penalty} for its queue × ${warm_up} for its state (${state}) = ${score}`;
}
