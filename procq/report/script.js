"use strict";
// The timeline that can be zoomed, and the filters.  Everything else is in the page without this.
(() => {
  const by = (id) => document.getElementById(id);
  const data = JSON.parse(by("track").textContent);
  const make = (name, parent, text) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  };

  const told = (seconds) => {
    if (seconds === 0) return "0 s";
    if (seconds < 0.0000995) return (seconds * 1e6).toPrecision(2) + " \u00b5s";
    if (seconds < 0.9995) return +(seconds * 1000).toPrecision(seconds < 0.1 ? 2 : 3) + " ms";
    if (seconds < 59.95) return +seconds.toPrecision(3) + " s";
    const whole = Math.round(seconds);
    const two = (n) => String(n).padStart(2, "0");
    if (whole < 3600) return Math.floor(whole / 60) + " min " + two(whole % 60) + " s";
    return Math.floor(whole / 3600) + " h " + two(Math.floor((whole % 3600) / 60)) + " min";
  };

  // --- the table of attempts -------------------------------------------------------------------

  const filters = by("filters");
  if (filters) {
    const rows = Array.from(by("rows").tBodies[0].rows);
    let texts = null; // read at the first search: it takes a while
    const apply = () => {
      const wanted = by("search").value.trim().toLowerCase();
      const outcome = by("outcome").value;
      texts = texts || rows.map((row) => [row.textContent.toLowerCase(), row.cells[3].textContent]);
      let found = 0;
      rows.forEach((row, nth) => {
        const [text, ended] = texts[nth];
        const fits = (!outcome || ended === outcome) && (!wanted || text.includes(wanted));
        row.hidden = !fits;
        found += fits;
      });
      by("found").textContent = wanted || outcome ? found.toLocaleString("en") + " of " + rows.length.toLocaleString("en") + " rows" : "";
    };
    let soon = 0;
    by("search").addEventListener("input", () => { clearTimeout(soon); soon = setTimeout(apply, 120); });
    by("outcome").addEventListener("change", apply);
    filters.hidden = false;
  }

  // --- the timeline ----------------------------------------------------------------------------

  const place = by("timeline-live");
  const count = data.start.length;
  if (place && count) {
    const starts = new Float64Array(count), ends = new Float64Array(count);
    const lanes = Int32Array.from(data.lane), types = Int32Array.from(data.type);
    const outcomes = new Uint8Array(count), numbers = new Int32Array(count).fill(1);
    for (let i = 0, at = 0; i < count; i++) {
      at += data.start[i];
      starts[i] = at * data.unit;
      ends[i] = (at + data.ran[i]) * data.unit;
    }
    for (const [i, outcome] of data.out) outcomes[i] = outcome;
    for (const [i, number] of data.nth) numbers[i] = number;
    const words = data.outcomes;
    const calm = new Set(["ok", "cancelled", "interrupted", "running"].map((word) => words.indexOf(word)));
    const wall = Math.max(data.wall, 1e-6);

    const tools = make("div", place);
    tools.className = "tools";
    const button = (text, label, act) => {
      const made = make("button", tools, text);
      made.type = "button";
      made.setAttribute("aria-label", label);
      made.addEventListener("click", act);
    };
    const choice = (label, choices) => {
      const outer = make("label", tools, label + " ");
      const select = make("select", outer);
      for (const [value, text] of choices) make("option", select, text).value = value;
      select.addEventListener("change", () => draw());
      return select;
    };
    const canvas = make("canvas", place);
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "application");
    canvas.setAttribute("aria-roledescription", "timeline");
    canvas.setAttribute("aria-label", "Timeline of " + count + " attempts in " + data.lanes.length + " lanes");
    canvas.setAttribute("aria-describedby", "timeline-keys timeline-told");
    const keys = make("p", place, "Keys: left and right pan, + and \u2212 zoom, 0 shows all, n and p go from attempt to attempt, f to the next one that failed. Mouse: drag to pan, Ctrl and wheel to zoom.");
    keys.id = "timeline-keys";
    keys.className = "note";
    const line = make("p", place);
    line.id = "timeline-told";
    line.setAttribute("role", "status");

    let from = 0, span = wall, picked = -1, asked = false;
    button("+", "zoom in", () => zoom(0.5));
    button("\u2212", "zoom out", () => zoom(2));
    button("\u2190", "pan left", () => pan(-0.3));
    button("\u2192", "pan right", () => pan(0.3));
    button("all", "show all", () => { from = 0; span = wall; draw(); });
    const used = Array.from(new Set(types)).sort((a, b) => a - b);
    const typeChoice = choice("type", [["", "all"], ...used.map((i) => [i, data.types[i][0].slice(0, 60)])]);
    const outcomeChoice = choice("outcome", [["", "all"], ["bad", "all that failed"], ...Array.from(new Set(outcomes)).sort().map((i) => [i, words[i]])]);

    let left = 4;
    const axis = 20;
    const laneHeight = Math.max(6, Math.min(24, Math.floor(560 / data.lanes.length)));
    const names = laneHeight >= 14;
    const height = data.lanes.length * laneHeight + axis;
    canvas.style.height = height + "px";

    const fits = (i) => (typeChoice.value === "" || types[i] === +typeChoice.value) &&
      (outcomeChoice.value === "" || (outcomeChoice.value === "bad" ? !calm.has(outcomes[i]) : outcomes[i] === +outcomeChoice.value));
    const keep = () => {
      span = Math.min(Math.max(span, wall / 1e6, 1e-6), wall);
      from = Math.min(Math.max(from, 0), wall - span);
    };
    const zoom = (factor, at = 0.5) => { const fixed = from + span * at; span *= factor; keep(); from = fixed - span * at; draw(); };
    const pan = (share) => { from += span * share; draw(); };

    // Patterns are drawn by hand, over the colour of the type: hatched, crossed, dotted.
    const pattern = (context, outcome, x, y, w, h, ink) => {
      const word = words[outcome];
      context.strokeStyle = context.fillStyle = ink;
      context.lineWidth = 1.5;
      if (w < 5) { context.fillRect(x - 1, y, Math.max(w, 3), Math.max(3, h * 0.25)); return; }
      context.save();
      context.beginPath();
      context.rect(x, y, w, h);
      context.clip();
      context.beginPath();
      const first = Math.max(x, -h) , last = Math.min(x + w, canvas.clientWidth + h);
      if (word === "memory") {
        for (let dx = first + 3; dx < last; dx += 6) for (let dy = y + 3; dy < y + h; dy += 6) context.rect(dx - 1, dy - 1, 2, 2);
        context.fill();
      } else {
        const step = word === "timeout" ? 6 : 10;
        for (let dx = first - h; dx < last; dx += step) {
          context.moveTo(dx, y + h); context.lineTo(dx + h, y);
          if (word === "crash" || word === "lost") { context.moveTo(dx, y); context.lineTo(dx + h, y + h); }
        }
        context.stroke();
      }
      context.restore();
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, w - 2, h - 2);
    };

    const nice = (least) => {
      const power = 10 ** Math.floor(Math.log10(least));
      return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least);
    };

    const paint = () => {
      asked = false;
      keep();
      const width = canvas.clientWidth, ratio = Math.min(window.devicePixelRatio || 1, 2);
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      const context = canvas.getContext("2d");
      context.scale(ratio, ratio);
      const style = getComputedStyle(document.documentElement);
      const look = (name) => style.getPropertyValue(name).trim();
      const text = look("--text"), dim = look("--dim"), rule = look("--line"), bad = look("--bad"), card = look("--card");
      const colors = [0, 1, 2, 3, 4, 5, 6, 7, 8].map((nth) => look("--t" + nth));
      left = names && width > 700 ? 110 : 4; // the lanes' names stand before them where there is room
      const room = width - left - 4, scale = room / span;
      const x = (t) => left + (t - from) * scale;
      context.font = "11px system-ui, sans-serif";

      context.fillStyle = dim;
      context.strokeStyle = rule;
      context.lineWidth = 1;
      const step = nice(span / Math.max(2, room / 110));
      for (let t = Math.ceil(from / step) * step; t <= from + span; t += step) {
        const at = Math.round(x(t)) + 0.5;
        context.beginPath(); context.moveTo(at, 0); context.lineTo(at, height - axis); context.stroke();
        const word = told(Math.abs(t) < step / 2 ? 0 : +t.toPrecision(12));
        context.fillText(word, Math.min(at + 2, width - context.measureText(word).width - 2), height - 6);
      }
      data.density.forEach((digits, lane) => {
        const wide = wall / digits.length;
        context.fillStyle = dim;
        for (let nth = Math.max(0, Math.floor(from / wide)); nth < digits.length && nth * wide < from + span; nth++) {
          context.globalAlpha = +digits[nth] / 9 * 0.4;
          context.fillRect(x(nth * wide), lane * laneHeight + 1, wide * scale + 0.5, laneHeight - 2);
        }
      });
      context.globalAlpha = 1;

      context.save();
      context.beginPath();
      context.rect(left, 0, room, height);
      context.clip();
      const filtered = typeChoice.value !== "" || outcomeChoice.value !== "";
      const covered = new Float64Array(data.lanes.length).fill(-1);
      const marked = [];
      for (let i = 0; i < count; i++) {
        if (starts[i] > from + span) break;
        if (ends[i] < from || (filtered && !fits(i))) continue;
        const begin = x(starts[i]), wide = Math.max((ends[i] - starts[i]) * scale, 0.5), lane = lanes[i];
        if (outcomes[i] && (!calm.has(outcomes[i]) || wide >= 5)) marked.push(i);
        if (begin + wide < covered[lane]) continue; // nothing of it would be seen
        covered[lane] = Math.max(covered[lane], Math.ceil(begin + wide));
        context.fillStyle = colors[data.types[types[i]][1]];
        const gap = wide > 4 ? 1 : 0;
        context.fillRect(begin, lane * laneHeight + 1, wide - gap, laneHeight - 2);
      }
      context.strokeStyle = dim;
      context.lineWidth = 0.75;
      context.beginPath();
      for (const [old, next] of data.again) {
        if ((starts[next] - ends[old]) * scale < 4 || starts[next] < from || ends[old] > from + span || (filtered && !fits(old))) continue;
        context.moveTo(x(ends[old]), (lanes[old] + 0.5) * laneHeight);
        context.lineTo(x(starts[next]), (lanes[next] + 0.5) * laneHeight);
      }
      context.stroke();
      for (const i of marked) {
        const begin = x(starts[i]), wide = Math.max((ends[i] - starts[i]) * scale, 0.5), y = lanes[i] * laneHeight + 1;
        if (!calm.has(outcomes[i])) { pattern(context, outcomes[i], begin, y, wide, laneHeight - 2, bad); continue; }
        context.save(); // cancelled, interrupted, running: hollow
        context.fillStyle = card;
        context.globalAlpha = 0.6;
        context.fillRect(begin + 2, y + 2, wide - 4, laneHeight - 6);
        context.globalAlpha = 1;
        context.setLineDash([4, 3]);
        context.strokeStyle = text;
        context.strokeRect(begin + 0.5, y + 0.5, wide - 2, laneHeight - 3);
        context.restore();
      }
      if (picked >= 0) {
        context.strokeStyle = text;
        context.lineWidth = 2;
        context.strokeRect(x(starts[picked]) - 1, lanes[picked] * laneHeight, Math.max((ends[picked] - starts[picked]) * scale, 2) + 2, laneHeight);
      }
      context.restore();
      if (names) {
        data.lanes.forEach((name, lane) => {
          const wide = context.measureText(name).width + 6;
          context.fillStyle = card;
          context.globalAlpha = 0.8;
          context.fillRect(4, lane * laneHeight + (laneHeight - 14) / 2, wide, 14);
          context.globalAlpha = 1;
          context.fillStyle = text;
          context.fillText(name, 7, lane * laneHeight + laneHeight / 2 + 4);
        });
      }
    };
    const draw = () => { if (!asked) { asked = true; requestAnimationFrame(paint); } };

    const tell = (i) => {
      line.textContent = "";
      if (i < 0) return;
      make("bdi", line, data.id[i]);
      line.append(": ");
      make("bdi", line, data.types[types[i]][0]);
      line.append(", attempt " + numbers[i] + ", " + words[outcomes[i]] + ", " + data.lanes[lanes[i]] +
        ", began at " + told(starts[i]) + ", ran " + told(ends[i] - starts[i]));
      const error = data.errors[i];
      if (error) { line.append(", "); make("bdi", line, error); }
    };
    const pick = (i) => {
      picked = i;
      if (i >= 0 && (ends[i] < from || starts[i] > from + span)) from = starts[i] - span / 2;
      tell(i);
      draw();
    };
    const go = (step, wanted) => {
      for (let i = picked < 0 && step < 0 ? count : picked; ;) {
        i += step;
        if (i < 0 || i >= count) return;
        if (fits(i) && wanted(i)) { pick(i); return; }
      }
    };
    const under = (event) => {
      const box = canvas.getBoundingClientRect();
      const lane = Math.floor((event.clientY - box.top) / laneHeight);
      const t = from + (event.clientX - box.left - left) / (box.width - left - 4) * span, slack = 3 * span / box.width;
      let best = -1, least = Infinity;
      for (let i = 0; i < count && starts[i] <= t + slack; i++) {
        if (lanes[i] !== lane || ends[i] < t - slack || !fits(i)) continue;
        const off = Math.max(starts[i] - t, t - ends[i], 0);
        if (off <= least) { best = i; least = off; }
      }
      return best;
    };

    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = {
        ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2),
        0: () => { from = 0; span = wall; draw(); }, Home: () => { from = 0; draw(); }, End: () => { from = wall; draw(); },
        n: () => go(1, () => true), p: () => go(-1, () => true), f: () => go(1, (i) => !calm.has(outcomes[i])),
        Escape: () => pick(-1),
      }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return; // the page scrolls
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 200))), (event.clientX - box.left - left) / (box.width - left - 4));
    }, { passive: false });
    let dragged = null;
    canvas.addEventListener("pointerdown", (event) => { dragged = { x: event.clientX, from, moved: false }; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointermove", (event) => {
      if (!dragged) { if (event.pointerType === "mouse" && picked < 0) tell(under(event)); return; }
      const moved = event.clientX - dragged.x;
      if (Math.abs(moved) > 3) dragged.moved = true;
      if (dragged.moved) { from = dragged.from - moved / (canvas.clientWidth - left - 4) * span; draw(); }
    });
    canvas.addEventListener("pointerup", (event) => { if (dragged && !dragged.moved) pick(under(event)); dragged = null; });
    canvas.addEventListener("pointercancel", () => { dragged = null; });
    canvas.addEventListener("dblclick", (event) => { const box = canvas.getBoundingClientRect(); zoom(0.25, (event.clientX - box.left) / box.width); });

    place.hidden = false;
    by("timeline-strip").hidden = true;
    new ResizeObserver(draw).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    // For those who test the page: what is seen.
    canvas.procq = { view: () => ({ from, span, wall, picked, count }) };
    paint();
  }
  document.documentElement.dataset.ready = "1";
  performance.mark("procq-ready");
})();
