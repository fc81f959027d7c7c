// Draws each chart when it comes near the screen, and shows the blocks of the chosen run.
"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("report-data").textContent);
  const NARROW = 560; // pixels; the style sheet has the same limit
  const config = {
    displaylogo: false,
    responsive: true,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
    toImageButtonOptions: { format: "svg" },
  };

  // On a phone: less margin and smaller text, and a taller chart, so that its legend has room below.
  function fitted(figure, width) {
    const layout = structuredClone(figure.layout);
    let height = layout.height;
    const named = figure.data.filter((trace) => trace.showlegend !== false && trace.name !== undefined);
    const shown = layout.showlegend === false ? 0 : named.length;
    if (shown > 0) {
      const longest = Math.max(...named.map((trace) => trace.name.length));
      const perRow = Math.max(1, Math.floor((width - 70) / (longest * 6.6 + 48)));
      const rows = Math.ceil(shown / perRow);
      height += 20 * (rows - 1);
      // The legend stands right below the title of the axis, whatever the height of the chart is.
      const inside = height - layout.margin.t - layout.margin.b - 20 * rows;
      layout.legend = { ...layout.legend, y: -52 / Math.max(inside, 80) };
    }
    layout.height = height;
    if (width < NARROW) {
      layout.font = { ...layout.font, size: 11 };
      layout.margin = { ...layout.margin, ...layout.meta?.narrow_margin };
      layout.modebar = { ...layout.modebar, orientation: "v" };
    }
    return layout;
  }

  function draw(plot) {
    if (plot.dataset.drawn) return;
    plot.dataset.drawn = "yes";
    const figure = figures[plot.dataset.chart];
    const narrow = plot.clientWidth < NARROW;
    Plotly.newPlot(plot, figure.data, fitted(figure, plot.clientWidth), { ...config, displayModeBar: !narrow });
  }

  const near = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
    { rootMargin: "600px" },
  );
  const plots = [...document.querySelectorAll(".plot")];
  plots.forEach((plot) => near.observe(plot));
  window.addEventListener("beforeprint", () => plots.filter((plot) => plot.offsetParent).forEach(draw));

  // Legends wrap differently after a phone is turned: lay out again what is drawn.
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    plots
      .filter((plot) => plot.dataset.drawn && plot.offsetParent)
      .forEach((plot) => Plotly.relayout(plot, { height: fitted(figures[plot.dataset.chart], plot.clientWidth).height }));
  });

  // One choice for the whole page: all lists show the same run.
  const lists = [...document.querySelectorAll("select.run")];
  function choose(run) {
    document.querySelectorAll(".variant").forEach((block) => {
      const options = [...block.parentElement.children].filter((other) => other.classList.contains("variant"));
      const here = options.some((other) => other.dataset.run === run);
      if (here) block.hidden = block.dataset.run !== run;
    });
    lists.forEach((list) => {
      if ([...list.options].some((option) => option.value === run)) list.value = run;
    });
    plots
      .filter((plot) => plot.dataset.drawn && plot.offsetParent)
      .forEach((plot) => Plotly.Plots.resize(plot));
  }
  lists.forEach((list) => list.addEventListener("change", () => choose(list.value)));

  if (window.innerWidth < 860) document.getElementById("contents").open = false;
})();
