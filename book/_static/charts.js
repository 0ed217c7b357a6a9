/* Replace each static chart by the live one, first those that the reader is near to.
   Colours of text and axes come from book.css, so a change of theme needs no redrawing. */
(() => {
  const here = document.currentScript.src;
  let vega;

  function loadVega() {
    if (window.vegaEmbed) return Promise.resolve();  // a page that has it inside
    vega ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = new URL("vega-bundle.js", here);
      script.onload = resolve;
      script.onerror = () => reject(new Error(`cannot load ${script.src}`));
      document.head.append(script);
    });
    return vega;
  }

  function menu(view) {
    const details = document.createElement("details");
    details.className = "vega-menu";
    details.innerHTML = "<summary>Save chart</summary>";
    for (const format of ["svg", "png"]) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = format.toUpperCase();
      button.addEventListener("click", async () => {
        const link = document.createElement("a");
        link.href = await view.toImageURL(format, 2);
        link.download = `chart.${format}`;
        link.click();
        details.open = false;
      });
      details.append(button);
    }
    return details;
  }

  const pending = new Set();

  async function draw(chart) {
    if (!pending.delete(chart)) return;
    await loadVega();
    const spec = JSON.parse(chart.querySelector('script[type="application/json"]').textContent);
    const live = document.createElement("div");
    const { view } = await vegaEmbed(live, spec, {
      mode: "vega-lite",
      renderer: "svg",
      actions: false,
      defaultStyle: false,
      tooltip: { theme: "custom", disableDefaultStyle: true },
    });
    live.className = "vega-target";
    chart.querySelector(".vega-target").replaceWith(live);
    // Out of the figure, which is one image to a screen reader.
    const choices = live.querySelector(".vega-bindings");
    if (choices) chart.append(choices);
    chart.append(menu(view));
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
      const [chart] = pending;
      if (chart === undefined) return;
      await draw(chart);
      later(drawNext);
    };
    later(drawNext);
  });
})();
