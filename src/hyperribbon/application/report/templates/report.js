(() => {
  "use strict";
  const root = document.documentElement;
  root.classList.add("scripted");
  const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];

  function save(name, content, type) {
    const link = document.createElement("a");
    link.href = content.startsWith("data:") ? content : URL.createObjectURL(new Blob([content], { type }));
    link.download = name;
    link.click();
  }

  function tool(place, label, act) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "tool";
    button.textContent = label;
    button.addEventListener("click", () => act(button));
    place.append(button);
    place.hidden = false;
    return button;
  }

  // Theme: the reader's system decides until the button is used.
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const themeButton = document.getElementById("theme");
  function showTheme() {
    themeButton.textContent = isDark() ? "Light" : "Dark";
    all(".drawn .chart").forEach((chart) => Plotly.relayout(chart, colours()));
  }
  themeButton.hidden = false;
  themeButton.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    showTheme();
  });
  prefersDark.addEventListener("change", showTheme);

  function colours() {
    const style = getComputedStyle(root);
    const ink = style.getPropertyValue("--ink").trim();
    const line = style.getPropertyValue("--line").trim();
    const axis = { color: ink, gridcolor: line, zerolinecolor: line, linecolor: line };
    const layout = { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", "font.color": ink };
    for (const name of ["xaxis", "yaxis", "scene.xaxis", "scene.yaxis", "scene.zaxis"]) {
      for (const [key, value] of Object.entries(axis)) layout[`${name}.${key}`] = value;
    }
    for (const name of ["scene.xaxis", "scene.yaxis", "scene.zaxis"]) {
      layout[`${name}.backgroundcolor`] = "rgba(0,0,0,0)";
    }
    return layout;
  }

  const hasWebGL = (() => {
    try {
      return Boolean(document.createElement("canvas").getContext("webgl"));
    } catch {
      return false;
    }
  })();

  // The chart library is large: it is read when the first chart is shown, not when the page opens.
  function loadPlotly() {
    const source = document.getElementById("plotly");
    if (typeof Plotly === "undefined" && source) {
      const script = document.createElement("script");
      script.textContent = source.textContent;
      document.body.append(script);
      source.remove();
    }
    return typeof Plotly !== "undefined";
  }

  // A chart is drawn when its tab is first shown; where it cannot be, its image stays.
  function draw(figure) {
    const data = figure.querySelector(".chart-data");
    const chart = figure.querySelector(".chart");
    if (!data || figure.dataset.state || !loadPlotly()) return;
    const content = JSON.parse(data.textContent);
    const image = figure.querySelector("img");
    figure.dataset.state = "drawn";
    if (content.data.some((trace) => /3d|surface|gl$/.test(trace.type || "")) && !hasWebGL && image) {
      figure.dataset.state = "image";
      return;
    }
    if (!image) figure.querySelector(".canvas").classList.add("bare");
    figure.classList.add("drawn");
    const layout = { ...content.layout, autosize: true };
    delete layout.width;
    delete layout.height;
    const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
    Plotly.newPlot(chart, content.data, layout, options).then(() => Plotly.relayout(chart, colours()));
    const tools = figure.querySelector(".tools");
    for (const axis of (chart.dataset.toggles || "").split(" ").filter(Boolean)) {
      const key = `${axis}axis.type`;
      const isLog = () => chart.layout[`${axis}axis`].type === "log";
      const button = tool(tools, `log ${axis}`, () => {
        const type = isLog() ? "linear" : "log";
        Plotly.relayout(chart, { [key]: type, [`${axis}axis.dtick`]: null, [`${axis}axis.autorange`]: true });
        button.setAttribute("aria-pressed", String(type === "log"));
      });
      button.setAttribute("aria-pressed", String(isLog()));
    }
  }

  // Tabs.
  const tabs = all("[role=tab]");
  const panels = all("[role=tabpanel]");
  function show(index, focus = false) {
    tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === index));
      tab.tabIndex = i === index ? 0 : -1;
    });
    panels.forEach((panel, i) => panel.classList.toggle("current", i === index));
    if (focus) tabs[index].focus();
    requestAnimationFrame(() => setTimeout(() => all(".picture", panels[index]).forEach(draw)));
  }
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => show(index));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) show((index + step + tabs.length) % tabs.length, true);
    });
  });

  // Downloads: every figure as SVG (or the PNG it is), every table as CSV.
  all(".picture").forEach((figure) => {
    const image = figure.querySelector("img");
    if (!image) return;
    const kind = image.src.startsWith("data:image/svg") ? "svg" : "png";
    tool(figure.querySelector(".tools"), kind.toUpperCase(), () => save(`${figure.dataset.name}.${kind}`, image.src));
  });
  const quote = (text) => `"${text.trim().replace(/\s+/g, " ").replace(/"/g, '""')}"`;
  all(".table, .claims").forEach((block) => {
    tool(block.querySelector(".tools"), "CSV", () => {
      const rows = all("tr", block).map((row) => [...row.cells].map((cell) => quote(cell.innerText)).join(","));
      save(`${block.dataset.name}.csv`, rows.join("\r\n") + "\r\n", "text/csv");
    });
  });

  // Claims by verdict, origin and paper: a row shows when no button that is off speaks of it.
  all(".claims").forEach((block) => {
    const buttons = all(".filters button", block);
    const speaksOf = (button, row) => Object.entries(button.dataset).every(([key, value]) => row.dataset[key] === value);
    buttons.forEach((button) => {
      button.addEventListener("click", () => {
        button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
        const off = buttons.filter((other) => other.getAttribute("aria-pressed") === "false");
        all("tbody tr", block).forEach((row) => (row.hidden = off.some((other) => speaksOf(other, row))));
      });
    });
  });

  showTheme();
  show(0);
})();
