/* Replace each static chart by the live one, first those that the reader is near to.
   Colours of text and axes come from book.css, so a change of theme needs no redrawing. */
(() => {
  const { src: here, nonce } = document.currentScript;
  let vega;

  function loadVega() {
    if (window.vegaEmbed) return Promise.resolve();  // a page that has it inside
    vega ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = new URL("vega-bundle.js", here);
      script.nonce = nonce;
      script.onload = resolve;
      script.onerror = () => reject(new Error(`cannot load ${script.src}`));
      document.head.append(script);
    });
    return vega;
  }

  /* What a chart draws, as CSV: the largest of its tables. */
  function asCsv(spec) {
    const rows = Object.values(spec.datasets ?? {}).reduce((a, b) => (b.length > a.length ? b : a), []);
    const names = Object.keys(rows[0] ?? {});
    const cell = (value) => (/[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : value ?? "");
    return [names, ...rows.map((row) => names.map((name) => row[name]))].map((row) => row.map(cell).join(",")).join("\n");
  }

  function menu(view, spec) {
    const details = document.createElement("details");
    details.className = "vega-menu";
    details.innerHTML = "<summary>Save chart</summary>";
    for (const format of ["svg", "png", "csv"]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = format.toUpperCase();
      button.addEventListener("click", async () => {
        const link = document.createElement("a");
        link.href = format === "csv"
          ? URL.createObjectURL(new Blob([asCsv(spec)], { type: "text/csv" }))
          : await view.toImageURL(format, 2);
        link.download = `chart.${format}`;
        link.click();
        details.open = false;
      });
      details.append(button);
    }
    if (JSON.stringify({ ...spec, datasets: 0 }).includes('"bind":"scales"')) {
      const hint = document.createElement("p");
      hint.textContent = "Drag the chart to move it, turn the wheel with shift to zoom, double-click to go back.";
      details.append(hint);
    }
    return details;
  }

  /* Lines of at most so many letters. */
  function wrapped(text, letters) {
    const lines = [""];
    for (const word of text.split(" ")) {
      const line = `${lines.at(-1)} ${word}`.trim();
      if (line.length > letters && lines.at(-1)) lines.push(word);
      else lines[lines.length - 1] = line;
    }
    return lines;
  }

  const NAMES = ["nominal", "ordinal"];

  /* Names that are in lines for a wide page leave a phone's plot a fifth of the room. */
  const ON_A_PHONE = 22;

  /* The names of a field, each in lines by `broken`, as an expression of Vega; rows become as high as they need. */
  function inLines(field, spec, broken) {
    const lines = {};
    for (const rows of Object.values(spec.datasets)) {
      for (const { [field]: name } of rows) if (name) lines[name] = broken(String(name));
    }
    const names = Object.values(lines);
    const high = 6 + 14 * Math.max(...names.map((each) => each.length));
    if (typeof spec.height === "number") {
      const shown = spec.usermeta?.step === field ? 1 : names.length;
      spec.height = Math.max(spec.height, shown * high);
    } else if (!spec.height.for) spec.height.step = Math.max(spec.height.step, high);
    return `(${JSON.stringify(lines)})[datum.label]`;
  }

  const atCommas = (name) => name.split(", ");
  const inShorterLines = (name) => wrapped(name.replaceAll("\n", " "), ON_A_PHONE);

  const isLabel = (layer) => layer.name?.startsWith("labels");

  /* Panels on a phone: two beside each other, or one whose rows have names. */
  function inFewerColumns(spec, room) {
    const letters = Math.floor((room - 24) / 7);
    const { step, letters: inRows } = spec.usermeta;
    const tail = step ? `, ${JSON.stringify(`${step}: `)} + chosen_step` : "";
    const lines = wrapped(spec.description, letters).map((line) => JSON.stringify(line));
    const subtitle = spec.title.subtitle && wrapped(spec.title.subtitle.join(" "), letters);
    spec.title = { ...spec.title, text: { expr: `[${lines}${tail}]` }, subtitle };
    const half = Math.floor((room - 90) / 2);
    const broken = (name) => wrapped(name.replaceAll("\n", " "), Math.floor(half / 7.4)).join("\n");
    const rows = spec.datasets[spec.data.name];
    if (!inRows) {
      for (const row of rows) row.panel = broken(row.panel);
      spec.facet.sort = spec.facet.sort.map(broken);
    }
    const longest = Math.max(...rows.flatMap((row) => row.panel.split("\n")).map((line) => line.length));
    spec.columns = inRows || 7.4 * longest > half ? 1 : 2;
    if (inRows) spec.spec.width = Math.floor(room - 7.4 * inRows) - 44;
    else spec.spec.width = spec.columns === 1 ? room - 90 : half;
    for (const { encoding } of spec.spec.layer) {
      if (encoding.x?.title) encoding.x.title = encoding.x.title.flatMap((line) => wrapped(line, letters - 8));
      if (inRows && encoding.x?.title) encoding.x.axis = { ...encoding.x.axis, titleAnchor: "end" };
      if (encoding.shape?.legend) encoding.shape.legend.columns = 1;
    }
    return spec;
  }

  /* Where there is less room than the chart was made for, as on a phone: as wide as the room, titles and
     long names broken into lines, one entry of a legend to a line, and a legend in place of names at lines. */
  function fitted(spec, room) {
    if (spec.facet) return room >= 680 ? spec : inFewerColumns(spec, room);
    const labelled = spec.layer?.some(isLabel);
    if (typeof spec.width !== "number" || room >= (labelled ? 680 : spec.width + 80)) return spec;
    if (labelled) {
      spec.layer = spec.layer.filter((layer) => !isLabel(layer));
      for (const each of spec.params) if (each.select?.type === "point") each.bind = "legend";
    }
    const letters = Math.floor((room - 24) / 7);
    const title = wrapped(spec.description, letters);
    const step = spec.usermeta?.step;
    const tail = step == null ? "" : `, ${JSON.stringify(`${step}: `)} + chosen_step`;
    spec.title = { ...spec.title, text: { expr: `[${title.map((line) => JSON.stringify(line))}${tail}]` } };
    const rows = spec.height?.step;  // of fixed height: it cannot be fitted, so its names get half of the room
    const areBroken = spec.usermeta?.letters > 0;  // they are in lines, and never cut
    const names = areBroken ? 6.5 * ON_A_PHONE : room / (rows ? 1.65 : 2.4);
    if (rows) {
      spec.width = Math.floor(room - names) - 44;
      // Its legend may reach to the left above the names, as they leave the plot little width.
      const legend = spec.config?.legend;
      spec.config = { ...spec.config, legend: { ...legend, layout: { top: { anchor: "end" } } } };
    } else {
      spec.autosize = { type: "fit-x", contains: "padding" };
      spec.width = room;
    }
    const hasNames = spec.layer?.some(({ encoding }) => NAMES.includes(encoding?.y?.type));
    const narrow = (part) => {
      for (const [key, value] of Object.entries(part)) {
        if (key === "data" || key === "datasets" || value === null || typeof value !== "object") continue;
        if (labelled && value.legend === null) value.legend = {};
        if (key === "legend") {
          if (value.orient === "right") value.orient = "bottom";
          Object.assign(value, { columns: 1, labelLimit: room - 50, titleLimit: room - 24 });
          const fits = Math.floor((room - 90) / 7.4);
          value.labelExpr ??= `length(datum.label) > ${fits} ? split(datum.label, ', ') : datum.label`;
        }
        if (key === "x" && value.title) value.title = wrapped([value.title].flat().join("; "), letters - 8);
        // A label at the left end would reach under the last name, which may have more lines than its row.
        if (key === "x" && (rows || hasNames) && value.axis !== null) value.axis = { ...value.axis, titleAnchor: "end", labelFlush: 12 };
        if (key === "x" && NAMES.includes(value.type) && value.axis !== null) {
          value.axis = { ...value.axis, labelAngle: -35, labelLimit: room / 3, labelExpr: "split(datum.label, ', ')" };
        }
        if (key === "y" && NAMES.includes(value.type) && value.axis !== null) {
          value.axis = { ...value.axis, labelLimit: areBroken ? 0 : rows ? names : room / 2 };
          if (areBroken) value.axis.labelExpr = inLines(value.field, spec, inShorterLines);
          else if (!rows) value.axis.labelExpr = inLines(value.field, spec, atCommas);
        }
        narrow(value);
      }
    };
    narrow(spec);
    return spec;
  }

  const pending = new Set();

  async function draw(chart) {
    if (!chart.clientWidth || !pending.delete(chart)) return;
    await loadVega();
    const spec = JSON.parse(chart.querySelector('script[type="application/json"]').textContent);
    const live = document.createElement("div");
    const { view } = await vegaEmbed(live, fitted(spec, chart.clientWidth - 8), {
      mode: "vega-lite",
      renderer: "svg",
      actions: false,
      defaultStyle: false,
      ast: true,  // expressions are interpreted: the page's policy allows no code made of text
      tooltip: { theme: "custom", disableDefaultStyle: true },
    });
    live.className = "vega-target";
    chart.querySelector(".vega-target").replaceWith(live);
    // Out of the figure, which is one image to a screen reader.
    const choices = live.querySelector(".vega-bindings");
    if (choices) chart.append(choices);
    chart.append(menu(view, spec));
    chart.dataset.live = "";
  }

  document.addEventListener("DOMContentLoaded", () => {
    const charts = document.querySelectorAll(".vega-chart");
    if (charts.length === 0) return;
    charts.forEach((chart) => pending.add(chart));
    const near = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) if (isIntersecting) draw(target);
    }, { rootMargin: "600px" });
    charts.forEach((chart) => near.observe(chart));

    // Then the others, one at a time, while the reader reads.
    const later = window.requestIdleCallback ?? ((work) => setTimeout(work, 200));
    const drawNext = async () => {
      const chart = [...pending].find((each) => each.clientWidth);  // not in a closed fold
      if (chart === undefined) return;
      await draw(chart);
      later(drawNext);
    };
    later(drawNext);
  });
})();
