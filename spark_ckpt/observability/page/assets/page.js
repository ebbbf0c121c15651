"use strict";
// Everything that comes from a store goes into the page as text (textContent, setAttribute), never as markup.
const PARTS = ["barrier", "snapshot", "decision", "publish"];
const REFRESH_MS = 5000, PAGE = 25, MOST_BARS = 240;
const MOST_FAILURES = 3, LEFT = 58;
const STATUS_KINDS = { published: "good", publishing: "soft", deferred: "soft", abandoned: "soft" };
const embedded = document.getElementById("data");
const live = embedded === null;
let jobs = [], chosenJob = 0, chosenEpoch = null, first = 0, span = 100, fetchedAt = 0, seen = "", failures = 0;

function el(tag, attributes, ...children) {
  const made = document.createElementNS(SVG_TAGS.has(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml", tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, String(value));
  }
  for (const child of children.flat(2)) if (child !== null && child !== undefined) made.append(child);
  return made;
}
const SVG_TAGS = new Set(["svg", "g", "rect", "path", "text", "title"]);

// -- values as people read them
const number = (value) => value === null || value === undefined ? "–" : value.toLocaleString("en-US");
const counted = (value, what) => `${number(value)} ${what}${value === 1 ? "" : "s"}`;
const seconds = (ms) => ms === null || ms === undefined ? "–" : ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(2)} s`;
const moment = (ms) => ms ? new Date(ms).toISOString().replace("T", " ").slice(0, 19) + "Z" : "–";
function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let amount = bytes;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (amount < 1000) return unit === "B" ? `${bytes} B` : `${amount.toPrecision(3)} ${unit}`;
    amount /= 1000;
  }
  return `${number(Math.round(amount * 10) / 10)} TB`;
}
function since(ms, now) {
  const s = Math.max(0, Math.round((now - ms) / 1000));
  return s < 120 ? `${s} s ago` : s < 7200 ? `${Math.round(s / 60)} min ago` : s < 172800 ? `${Math.round(s / 3600)} h ago` : `${Math.round(s / 86400)} d ago`;
}
const said = (value) => typeof value === "string" ? value : JSON.stringify(value);

// -- data
function epochs(job) {
  if (!job.objects) job.objects = job.epochs.map((row) => Object.fromEntries(job.columns.map((name, at) => [name, row[at]])));
  return job.objects;
}
async function asked(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error || answer.statusText);
  return body;
}
async function closely(job, epoch) {
  job.details = job.details || {};
  if (job.newest && job.newest.epoch === epoch && !job.details[epoch]) job.details[epoch] = { epoch: job.newest };
  const known = job.details[epoch] || {};
  if (live && (!known.epoch || !known.back)) {
    const at = `api/jobs/${chosenJob}/epochs/${epoch}`;
    const [one, back] = await Promise.all([asked(at), asked(`${at}/restore`)].map((each) => each.catch((error) => ({ damage: error.message }))));
    job.details[epoch] = { epoch: one, back };
  }
  return job.details[epoch] || {};
}

// -- tables
function table(columns, rows, options = {}) {
  const head = el("tr", {}, columns.map(([title, kind]) => el("th", { class: kind, scope: "col" }, title)));
  const body = rows.map((row) => el("tr", options.attributes ? options.attributes(row) : {}, columns.map(([, kind, cell]) => {
    const value = cell(row);
    return value instanceof Node ? el("td", { class: kind }, value) : el("td", { class: kind }, String(value));
  })));
  return el("table", { id: options.id }, el("thead", {}, head), el("tbody", {}, body));
}

// -- parts of the page
// The server's clock, moved on since its answer: the browser's own clock may be wrong.
const nowOf = (job) => job.taken_ms + (live ? Math.round(performance.now() - fetchedAt) : 0);
const outbox = (job) => job.kind === "outbox";
function summary(job) {
  const rows = epochs(job), newest = rows.find((row) => row.epoch === job.latest), driver = job.driver;
  const runs = driver && driver.holds_lease;
  const tile = (name, value, kind) => [el("dt", {}, name), el("dd", { class: kind }, value)];
  const health = job.health, late = health.sinks.reduce((sum, each) => sum + each.late, 0);
  const ago = (ms) => since(ms, nowOf(job)), interval = health.interval_ms ? `; usually an epoch each ${seconds(health.interval_ms)}` : "";
  const tiles = [
    ["Newest published epoch", health.published ? `${health.published}, ${ago(health.published_ms)}` : "none yet", health.late ? "warn" : ""],
    [outbox(job) ? "Rows out per second" : "Rows per second", health.rows_per_second === null ? "–" : number(health.rows_per_second)],
    ["Lag", health.lag_rows === null ? "not known" : counted(health.lag_rows, "row")],
    ...health.sinks.map((each) => [`Sink ${each.name}`, each.late ? `${counted(each.late, "epoch")} unpublished` : each.waiting ? "publishing" : `epoch ${number(each.published)}`, each.late ? "warn" : ""]),
    ["Restarts in the last hour", number(health.restarts), health.restarts ? "warn" : ""],
    ["Newest epoch", newest ? `${job.latest}, ${ago(newest.created_ms)}` : "–"],
    ["Took", newest ? seconds(newest.duration_ms) : "–"],
    outbox(job) ? ["Newest batch", newest && newest.batch !== null ? `${newest.batch}` : "–"] : ["State", newest ? size(newest.state_bytes) : "–"],
    ["Kept epochs", number(rows.length)],
    ["Incarnation", driver ? String(Math.max(0, ...job.incarnations.map((each) => each.incarnation))) : "–"],
  ].map(([name, value, kind]) => el("div", {}, tile(name, value, kind)));
  const renewed = health.renewed_ms && !outbox(job) ? `; last sign of life ${ago(health.renewed_ms)}${interval}` : interval;
  const status = el("p", { id: "status", class: health.kind }, el("strong", {}, outbox(job) && runs ? "Runs or waits" : health.status), el("span", { class: "soft" }, ` ${health.reason}${renewed}`));
  const lease = driver ? `${driver.holder}, since ${moment(driver.since_ms)}; ` +
    (outbox(job) ? (runs ? "its process is not known to be gone" : "it has ended") : runs ? `lease until ${moment(driver.lease_until_ms)}` : driver.lease_until_ms ? `its lease ended ${moment(driver.lease_until_ms)}` : "its lease was freed") : "it has never run";
  return el("section", { id: "summary" }, el("h2", {}, `${outbox(job) ? "Outbox" : "Job"} ${job.job}`), status, el("dl", { class: "tiles" }, tiles), el("p", { class: "soft" }, lease), el("p", { class: "soft mono" }, job.store), standbys(job));
}

function standbys(job) {
  if (!job.standbys || !job.standbys.length) return null;
  const columns = [["standby", "wide", (each) => each.holder], ["waits since", "", (each) => moment(each.waits_since_ms)], ["follows epoch", "number", (each) => number(each.epoch)], ["warm", "", (each) => each.warm ? "yes" : "not yet"], ["told", "", (each) => moment(each.told_ms)]];
  return table(columns, job.standbys, { id: "standbys" });
}

function timeline(job) {
  const rows = epochs(job), canvas = el("canvas", { id: "timeline", role: "img", "aria-label": "Duration of epochs by part" });
  const label = el("output", { class: "soft", id: "pointed" }, "");
  const redraw = () => draw(canvas, rows);
  const widths = [[100, "100"], [1000, "1,000"], [Infinity, "all"]].map(([count, name]) => el("button", { type: "button", "aria-pressed": span === count, onclick: () => { span = count; show(); } }, name));
  const windowed = Math.min(span, rows.length);
  const slider = el("input", { type: "range", min: 0, max: Math.max(0, rows.length - windowed), value: Math.max(0, rows.length - windowed), "aria-label": "Oldest epoch shown" });
  slider.addEventListener("input", redraw);
  canvas.from = () => Math.min(Number(slider.value), Math.max(0, rows.length - windowed));
  canvas.count = windowed;
  const at = (event) => canvas.bars && canvas.bars[Math.floor((event.offsetX - LEFT) / canvas.each)];
  canvas.addEventListener("mousemove", (event) => {
    const row = at(event);
    label.textContent = row ? `epoch ${row.epoch}: ${seconds(row.duration_ms)}, ${row.reason}; ` + PARTS.map((part) => `${part} ${seconds(row[`${part}_ms`])}`).join(", ") + `; state ${size(row.state_bytes)}; ${number(row.rows_in)} rows in` : "";
  });
  canvas.addEventListener("click", (event) => { const row = at(event); if (row) choose(row.epoch); });
  const legend = el("div", { class: "row legend soft" }, [...PARTS, "unknown"].map((part) => el("span", { class: `part-${part}` }, part === "unknown" ? "not known" : part)));
  requestAnimationFrame(redraw);
  return el("section", {}, el("h2", {}, "Epochs"), el("div", { class: "row" }, el("span", { class: "soft" }, "Show"), widths, rows.length > windowed ? slider : null, label), canvas, legend, epochTable(job));
}

function draw(canvas, rows) {
  const shown = rows.slice(canvas.from(), canvas.from() + canvas.count), scale = window.devicePixelRatio || 1;
  const width = canvas.clientWidth, height = canvas.clientHeight, style = getComputedStyle(document.documentElement);
  canvas.width = width * scale; canvas.height = height * scale;
  const step = Math.max(1, Math.ceil(shown.length / MOST_BARS));
  canvas.bars = [];
  for (let at = 0; at < shown.length; at += step) canvas.bars.push(shown.slice(at, at + step).reduce((most, row) => total(row) > total(most) ? row : most));
  const paint = canvas.getContext("2d"), top = Math.max(1, ...canvas.bars.map(total)), each = canvas.each = Math.min(30, (width - LEFT) / Math.max(1, canvas.bars.length));
  paint.scale(scale, scale);
  paint.clearRect(0, 0, width, height);
  const room = height - 34;
  canvas.bars.forEach((row, at) => {
    let y = height - 16;
    const bar = (ms, part) => {
      const tall = ms / top * room;
      paint.fillStyle = style.getPropertyValue(`--${part}`);
      paint.fillRect(LEFT + at * each + .5, y - tall, Math.max(1, each - 1.5), tall);
      y -= tall;
    };
    const known = PARTS.filter((part) => row[`${part}_ms`] !== null);
    known.forEach((part) => bar(row[`${part}_ms`], part));
    bar(Math.max(0, total(row) - known.reduce((sum, part) => sum + row[`${part}_ms`], 0)), "unknown");
  });
  paint.fillStyle = paint.strokeStyle = style.getPropertyValue("--soft");
  paint.font = "12px system-ui, sans-serif";
  paint.textAlign = "right";
  for (const part of [0, .5, 1]) {
    const y = Math.round(height - 16 - part * room) + .5;
    paint.globalAlpha = part ? .25 : 1;
    paint.beginPath(); paint.moveTo(LEFT, y); paint.lineTo(width, y); paint.stroke();
    paint.globalAlpha = 1;
    paint.fillText(seconds(Math.round(top * part)), LEFT - 6, y + 4);
  }
  paint.textAlign = "left";
  if (step > 1) paint.fillText(`the slowest of ${step} epochs a bar`, LEFT + 4, 11);
  const clock = (row) => moment(row.created_ms).slice(11), length = canvas.bars.length;
  const marks = length * each > 420 ? [0, Math.floor(length / 2), length - 1] : length * each > 190 ? [0, length - 1] : length ? [0] : [];
  marks.forEach((at) => {
    const text = `${canvas.bars[at].epoch} · ${clock(canvas.bars[at])}`, x = LEFT + at * each, most = width - paint.measureText(text).width - 2;
    paint.fillText(text, Math.max(LEFT, Math.min(most, at && at === length - 1 ? x + each - paint.measureText(text).width : x)), height - 3);
  });
}
function total(row) {
  const parts = PARTS.reduce((sum, part) => sum + (row[`${part}_ms`] || 0), 0);
  return Math.max(row.duration_ms || 0, parts);
}

function epochTable(job) {
  const rows = [...epochs(job)].reverse();
  first = Math.min(first, Math.max(0, rows.length - 1));
  const turn = (by) => { first = Math.max(0, Math.min(rows.length - 1, first + by)); show(); };
  const ofJob = (...columns) => outbox(job) ? [] : columns;
  const columns = [
    ["epoch", "number", (row) => row.epoch], ...(outbox(job) ? [["batch", "number", (row) => row.batch]] : []), ["savepoint", "", (row) => row.savepoints.join(", ")], ["status", "", (row) => el("span", { class: STATUS_KINDS[row.status] || "warn" }, row.status)],
    ["decided", "", (row) => moment(row.created_ms)], ...ofJob(["why", "", (row) => row.reason]), ["took", "number", (row) => seconds(row.duration_ms)],
    ...ofJob(...PARTS.map((part) => [part, "number", (row) => seconds(row[`${part}_ms`])]), ["rows in", "number", (row) => number(row.rows_in)]),
    ["rows out", "number", (row) => number(row.rows_out)], ...ofJob(["state", "number", (row) => size(row.state_bytes)]),
    ["incarnation", "number", (row) => row.incarnation],
  ];
  const attributes = (row) => ({ tabindex: 0, "data-epoch": row.epoch, "aria-selected": row.epoch === chosenEpoch, onclick: () => choose(row.epoch), onkeydown: (event) => { if (event.key === "Enter") choose(row.epoch); } });
  const pages = rows.length > PAGE ? el("div", { class: "row" }, el("button", { type: "button", onclick: () => turn(-PAGE) }, "newer"), el("button", { type: "button", onclick: () => turn(PAGE) }, "older"),
    el("span", { class: "soft" }, `${first + 1} to ${Math.min(rows.length, first + PAGE)} of ${number(rows.length)}`)) : null;
  return rows.length ? el("div", {}, el("h3", {}, "Restore points"), pages, table(columns, rows.slice(first, first + PAGE), { id: "epochs", attributes })) : el("p", { class: "soft" }, outbox(job) ? "No epochs yet; the query's next batch is the first." : "No epochs yet; the job takes the first one when it starts.");
}

const shortened = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
function graph(detail) {
  const about = {};
  for (const each of detail.sources) about[`source/${each.name}`] = [each.name, each.lag === null ? "lag not known" : `${counted(each.lag, "row")} ${each.lag === 1 ? "waits" : "wait"}`];
  for (const each of detail.operators) about[`operator/${each.name}`] = [each.name, `state ${size(each.bytes)}, ${number(each.late_rows)} late`];
  for (const each of detail.edges) about[`edge/${each.name}`] = [each.name, `${counted(each.produced - each.consumed, "row")} in flight`];
  for (const each of detail.sinks) about[`sink/${each.name}`] = [each.name, `${counted(each.rows, "row")}${each.published ? "" : ", not published"}`];
  const nodes = new Map(detail.graph.map((node) => [node.id, node]));
  if (!nodes.size) return el("p", { class: "soft" }, "The epoch does not say how these are connected: an older version wrote it.");
  const depth = new Map();
  const depthOf = (id, seen) => {
    if (!depth.has(id)) {
      if (seen.has(id) || id.startsWith("source/")) return 0;
      const above = (nodes.get(id) ? nodes.get(id).inputs : []).map((input) => depthOf(input, new Set([...seen, id])) + 1);
      depth.set(id, Math.max(0, ...above));
    }
    return depth.get(id);
  };
  const columns = [];
  for (const id of nodes.keys()) (columns[depthOf(id, new Set())] = columns[depthOf(id, new Set())] || []).push(id);
  const place = new Map(), W = 210, H = 46, GX = 60, GY = 18;
  columns.forEach((ids, x) => ids.forEach((id, y) => place.set(id, [x * (W + GX) + 4, y * (H + GY) + 4])));
  const wide = columns.length * (W + GX) - GX + 8, tall = Math.max(...columns.map((ids) => (ids || []).length)) * (H + GY) + 4;
  const drawn = [];
  for (const node of nodes.values()) for (const input of node.inputs) {
    if (!place.has(input)) continue;
    const [ax, ay] = place.get(input), [bx, by] = place.get(node.id), sx = ax + W, sy = ay + H / 2, ty = by + H / 2;
    drawn.push(el("path", { d: `M${sx},${sy} C${sx + GX / 2},${sy} ${bx - GX / 2},${ty} ${bx - 7},${ty}` }), el("path", { class: "tip", d: `M${bx},${ty} l-8,-4 v8 z` }));
  }
  for (const [id, [x, y]] of place) {
    const [name, note] = about[id] || [id.split("/").slice(1).join("/"), ""];
    drawn.push(el("g", {}, el("rect", { x, y, width: W, height: H, rx: 6 }), el("text", { x: x + 10, y: y + 19 }, shortened(`${id.split("/")[0]} ${name}`, 27)), el("text", { x: x + 10, y: y + 36, class: "soft" }, shortened(note, 31)), el("title", {}, `${id}: ${note}`)));
  }
  return el("div", { class: "scroll" }, el("svg", { id: "graph", width: wide, height: tall, class: columns.length > 4 ? "wide" : null, viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": "The job's graph" }, drawn));
}

function incarnations(job) {
  const columns = [
    ["incarnation", "number", (each) => each.incarnation], ["began", "", (each) => moment(each.began_ms)], ["ended", "", (each) => moment(each.ended_ms)],
    ["began from", "", (each) => each.base ? `epoch ${each.base} (${each.restored_from})` : each.restored_from], ["kept epochs", "number", (each) => each.epochs],
    ["what ended it", "wide", (each) => el("span", { class: each.ended === "runs" ? "good" : each.ended.startsWith("in order") || each.ended === "stopped" ? "" : "warn" }, each.ended)], ["driver", "wide", (each) => each.holder],
  ];
  return el("section", {}, el("h2", {}, "Incarnations"), table(columns, [...job.incarnations].reverse(), { id: "incarnations" }));
}

async function closer(job, place) {
  const epoch = chosenEpoch || job.latest;
  if (!epoch) return;
  const { epoch: detail, back } = await closely(job, epoch);
  const made = el("div", { class: "columns" });
  if (!detail || detail.damage) made.append(el("section", {}, el("h2", {}, `Epoch ${epoch}`), el("p", { class: detail ? "bad mono" : "soft" }, detail ? detail.damage : "Not part of this report; `spark-ckpt show` tells it.")));
  else made.append(pictured(job, epoch, detail), restorePoint(job, epoch, back));
  place.replaceChildren(made, ...(live && detail && detail.operators && detail.operators.length ? [stateForm(job, detail)] : []));
}
function pictured(job, epoch, detail) {
  const sources = table([["source", "", (each) => each.name], ["reads on from", "wide", (each) => el("span", { title: said(each.cursor) }, each.position)], ["lag", "number", (each) => number(each.lag)]], detail.sources);
  const operators = table([["operator", "", (each) => each.name], ["state", "number", (each) => size(each.bytes)], ["key groups", "number", (each) => each.key_groups], ["late", "number", (each) => number(each.late_rows)],
    ["key", "wide", (each) => el("code", {}, each.key_schema)], ["value", "wide", (each) => el("code", {}, each.state_schema)]], detail.operators);
  const sinks = table([["sink", "", (each) => each.name], ["rows", "number", (each) => number(each.rows)], ["size", "number", (each) => size(each.bytes)], ["published", "", (each) => each.published ? "yes" : "not yet"]], detail.sinks);
  return el("section", { id: "closer" }, el("h2", {}, `Epoch ${epoch}${epoch === job.latest ? ", the newest" : ""}`), outbox(job) ? null : graph(detail), detail.sources.length ? [el("h3", {}, "Sources"), sources] : null, detail.operators.length ? [el("h3", {}, "Operators"), operators] : null, detail.sinks.length ? [el("h3", {}, "Sinks"), sinks] : null);
}
function restorePoint(job, epoch, back) {
  const title = el("h2", {}, `Going back to epoch ${epoch}`);
  if (!back) return el("section", { id: "back" }, title, el("p", { class: "soft" }, `spark-ckpt restore STORE ${epoch} --dry-run tells what it would mean.`));
  if (back.damage) return el("section", { id: "back" }, title, el("p", { class: "bad mono" }, back.damage));
  const sinks = Object.entries(back.sinks).flatMap(([name, lines]) => [el("h3", {}, `Sink ${name}`), el("ul", {}, lines.map((line) => el("li", {}, line)))]);
  return el("section", { id: "back" }, title, el("p", {}, el("code", {}, back.call)), el("ul", {}, back.lines.map((line) => el("li", {}, line)), outbox(job) ? null : el("li", {}, `${size(back.state_bytes)} of state are read`)), sinks, el("p", { class: "soft" }, "Nothing is changed by looking."));
}

function stateForm(job, detail) {
  const numbers = epochs(job).map((row) => row.epoch).reverse();
  const select = (name, values, chosen) => el("select", { name, "aria-label": name }, values.slice(0, 500).map((value) => el("option", { value, selected: value === chosen }, String(value))));
  const answer = el("div", { id: "state-answer" });
  const form = el("form", { id: "state", class: "row" }, "State of", select("operator", detail.operators.map((each) => each.name)), "where", el("input", { name: "key", placeholder: "column=value", "aria-label": "key" }),
    "at epoch", select("before", numbers, numbers[Math.min(1, numbers.length - 1)]), "and", select("after", numbers, numbers[0]), el("button", {}, "Look"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = new URLSearchParams(new FormData(form));
    answer.replaceChildren(el("p", { class: "soft" }, "Reading …"));
    try { answer.replaceChildren(sideBySide(await asked(`api/jobs/${chosenJob}/state?${given}`))); } catch (error) { answer.replaceChildren(el("p", { class: "bad mono" }, error.message)); }
  });
  return el("section", {}, el("h2", {}, "State of a key at two epochs"), form, answer);
}
function sideBySide(found) {
  const cell = (row, side, other) => el("code", { class: JSON.stringify(row[side]) === JSON.stringify(row[other]) ? "" : "changed" }, row[side] === null ? "no state" : said(row[side]));
  const columns = [["key", "wide", (row) => el("code", {}, said(row.key))], [`epoch ${found.before}`, "wide", (row) => cell(row, "before", "after")], [`epoch ${found.after}`, "wide", (row) => cell(row, "after", "before")]];
  return el("div", {}, el("p", { class: "soft" }, `${counted(found.matching, "key")} ${found.matching === 1 ? "matches" : "match"}; ${found.rows.length} shown, those that differ first`), table(columns, found.rows, { id: "keys" }));
}

// -- putting it together
function told(job) {
  const taken = document.getElementById("taken");
  taken.textContent = `as of ${moment(job.taken_ms)}${live ? "" : ", a report"}`;
  taken.className = "";
  document.title = `${job.health.status}: ${job.job} · spark_ckpt`;
}
function choose(epoch) { chosenEpoch = epoch; show(); }
function show() {
  const job = jobs[chosenJob], place = document.getElementById("job");
  document.getElementById("jobs").replaceChildren(...(jobs.length > 1 ? jobs.map((each, at) => el("button", { type: "button", "aria-pressed": at === chosenJob, onclick: () => { chosenJob = at; chosenEpoch = null; first = 0; show(); } }, each.job || each.store)) : []));
  if (job.error) { place.replaceChildren(el("section", {}, el("p", { id: "status", class: "warn" }, el("strong", {}, job.outage ? "Waiting for store" : "Cannot be read")), el("p", { class: "bad mono" }, job.error))); return; }
  told(job);
  const details = el("div", { id: "details" }, el("section", {}, el("p", { class: "soft" }, job.latest ? "Reading the epoch …" : "No epoch yet.")));
  place.replaceChildren(summary(job), timeline(job), details, incarnations(job));
  closer(job, details);
  document.body.dataset.ready ??= Math.round(performance.now());
}
// A change of the log draws everything again. Every answer draws the summary again, whose ages move on.
const shape = (job) => [job.latest, job.error, job.incarnations && job.incarnations.map((each) => each.ended), job.acked, job.savepoints, job.standbys, job.epochs && job.epochs.map((row) => row[1]).join()];
async function refresh() {
  const busy = () => document.activeElement.closest("form");
  try {
    const found = await asked("api/jobs"), now = JSON.stringify(found.map(shape));
    [jobs, fetchedAt, failures] = [found, performance.now(), 0];
    // A change that comes while the form is in use is drawn with the first answer after that.
    if (now !== seen && !busy()) { seen = now; show(); } else repaint();
  } catch (error) {
    failures += 1;
    const taken = document.getElementById("taken");
    taken.textContent = `no answer: ${error.message}`;
    taken.className = failures >= MOST_FAILURES ? "warn" : "";
    repaint();
  }
  setTimeout(refresh, REFRESH_MS);
}
function repaint() {
  const job = jobs[chosenJob], old = document.getElementById("summary");
  if (!job || job.error || !old) return;
  old.replaceWith(summary(job));
  document.body.dataset.repainted = Number(document.body.dataset.repainted || 0) + 1;
  if (!failures) told(job);
}
window.addEventListener("resize", () => { if (jobs.length && !document.activeElement.closest("form")) show(); });
if (live) refresh();
else { jobs = JSON.parse(embedded.textContent); show(); }
