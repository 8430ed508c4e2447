// Into the document, and only what has changed. Rule: whatever came over the wire is text.

const $ = (id) => document.getElementById(id);

function el(name, { text, title, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  if (text !== undefined) made.textContent = text;
  if (title) made.title = title;
  made.append(...children);
  return made;
}

function say(at, text) {
  if (at.textContent !== text) at.textContent = text;
}

function hint(at, text) {
  if (at.title !== text) at.title = text;
}

function mark(at, name) {
  if (at.className !== name) at.className = name;
}

/** Where an order has changed, put the elements into it; the one with the focus keeps it. */
function inOrder(parent, children) {
  const same =
    parent.children.length === children.length &&
    children.every((child, i) => parent.children[i] === child);
  if (same) return;
  const focused = document.activeElement;
  parent.replaceChildren(...children);
  if (focused && parent.contains(focused)) focused.focus({ preventScroll: true });
}

/** A small table of texts; `rows`: lists of cells, each a text or {text, title, className}. */
function table(at, heads, rows) {
  const [head, body] = [at.tHead, at.tBodies[0]];
  if (!head.rows.length) {
    const cells = heads.map(([text, title, className = ""]) =>
      el("th", { text, title, className, scope: "col" }),
    );
    head.append(el("tr", {}, ...cells));
  }
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, i) => {
    const row = body.rows[i] ?? body.insertRow();
    cells.forEach((cell, j) => {
      const it = row.cells[j] ?? row.insertCell();
      const {
        text,
        title = "",
        className = heads[j][2] ?? "",
      } = typeof cell === "object" ? cell : { text: cell };
      say(it, text);
      hint(it, title);
      mark(it, className);
    });
  });
  at.hidden = !rows.length;
}
