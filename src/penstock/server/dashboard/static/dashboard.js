// The little that HTML, htmx and the server do not do: charts, copying, the theme, one shortcut.
"use strict";

(function () {
  // -- live parts --------------------------------------------------------------------------------
  // Morphing must not close what the reader has opened.
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = function (name, node) {
    return !(name === "open" && node.tagName === "DETAILS");
  };

  function showConnection(isOn) {
    document.querySelectorAll(".live").forEach(function (badge) {
      badge.classList.toggle("on", isOn);
      badge.classList.toggle("off", !isOn);
      badge.textContent = isOn ? "live" : "disconnected";
    });
  }
  document.addEventListener("htmx:sseOpen", function () { showConnection(true); });
  document.addEventListener("htmx:sseError", function () { showConnection(false); });
  document.addEventListener("htmx:sseClose", function (event) {
    if (event.detail.type === "message") location.reload(); // the session ended: shows the login
  });
  document.addEventListener("htmx:sseMessage", drawCharts);

  // -- actions -----------------------------------------------------------------------------------
  document.addEventListener("htmx:afterSwap", function (event) {
    if (event.target.id !== "notice") return;
    document.querySelectorAll(".act[open]").forEach(function (act) { act.open = false; });
    event.target.scrollIntoView({ block: "nearest" });
  });
  document.addEventListener("toggle", function (event) {
    const opened = event.target;
    if (!opened.matches || !opened.matches(".act") || !opened.open) return;
    document.querySelectorAll(".act[open]").forEach(function (act) {
      if (act !== opened) act.open = false;
    });
    const first = opened.querySelector("input:not([type=hidden]), select, textarea, button");
    if (first) first.focus();
  }, true);

  function copyText(element) { // without TLS, browsers offer no clipboard: select the text instead
    if (navigator.clipboard) {
      return navigator.clipboard.writeText(element.textContent).then(function () { return true; });
    }
    getSelection().selectAllChildren(element);
    return Promise.resolve(document.execCommand("copy"));
  }

  document.addEventListener("click", function (event) {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      const from = copy.closest(".code").querySelector("pre");
      copyText(from).then(function (isCopied) {
        copy.textContent = isCopied ? "Copied" : "Press Ctrl+C";
        setTimeout(function () { copy.textContent = "Copy"; }, 1500);
      });
      return;
    }
    const fill = event.target.closest("[data-fill]");
    if (fill) { // the link leads to the form; the reader still has to type the confirmation
      const field = document.querySelector(fill.hash + " input[name=id]");
      field.value = fill.dataset.fill;
      field.dispatchEvent(new Event("input", { bubbles: true }));
      field.form.elements.confirm.focus();
      event.preventDefault();
      return;
    }
    if (event.target.closest("[data-stop]")) { // no further part of the search is asked for
      const row = event.target.closest("[data-searching]");
      htmx.trigger(row, "htmx:abort");
      row.querySelectorAll(".running").forEach(function (one) { one.hidden = true; });
      row.querySelectorAll(".stopped").forEach(function (one) { one.hidden = false; });
      return;
    }
    if (event.target.closest("[data-theme-toggle]")) {
      const root = document.documentElement;
      const isDark = root.dataset.theme
        ? root.dataset.theme === "dark"
        : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = isDark ? "light" : "dark";
      const path = document.body.dataset.prefix + "/";
      document.cookie = "penstock_theme=" + root.dataset.theme + "; path=" + path +
        "; max-age=31536000; samesite=strict";
      redrawCharts();
      return;
    }
    if (!event.target.closest(".act")) {
      document.querySelectorAll(".act[open]").forEach(function (act) { act.open = false; });
    }
  });

  document.addEventListener("keydown", function (event) {
    const isTyping = event.target.matches("input, textarea, select");
    if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const search = document.getElementById("find");
      if (search) { event.preventDefault(); search.focus(); search.select(); }
    }
    if (event.key === "Escape") {
      document.querySelectorAll(".act[open]").forEach(function (act) {
        act.open = false;
        act.querySelector("summary").focus();
      });
    }
  });
  document.addEventListener("change", function (event) {
    if (event.target.matches("[data-submits]")) event.target.form.requestSubmit();
  });

  // -- charts ------------------------------------------------------------------------------------
  const plots = new Map();
  const names = {
    rate: function (v) { return short(v) + "/s"; },
    count: short,
    seconds: function (v) { return v > 0 && v < 1 ? short(v * 1000) + " ms" : short(v) + " s"; },
    bytes: function (v) { return short(v / 1048576) + " MiB"; },
  };

  function short(value) {
    const steps = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
    for (const [size, letter] of steps) {
      if (Math.abs(value) >= size) return +(value / size).toPrecision(3) + letter;
    }
    return String(+value.toPrecision(3));
  }

  function colour(name) { // canvas does not know light-dark(): ask an element
    const probe = document.createElement("span");
    probe.className = "probe c-" + name;
    document.body.appendChild(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  function token(name) {
    const probe = document.createElement("span");
    probe.className = "probe";
    probe.style.color = "var(" + name + ")";
    document.body.appendChild(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  function drawCharts() {
    const source = document.getElementById("chart-data");
    if (!source) return;
    const data = JSON.parse(source.dataset.chart);
    const times = Array.from({ length: data.points }, function (_, i) { return data.start + i * data.step_s; });
    document.querySelectorAll(".plot").forEach(function (holder) {
      const series = holder.dataset.series.split(",").map(function (one) { return one.split(":"); });
      const columns = [times].concat(series.map(function (one) { return data.series[one[0]] || []; }));
      let plot = plots.get(holder);
      if (!plot) {
        plot = new uPlot(options(holder, series), columns, holder);
        plots.set(holder, plot);
      } else {
        plot.setData(columns);
      }
      showLast(holder, series, columns, columns[0].length - 1);
    });
  }

  function options(holder, series) {
    const say = names[holder.dataset.unit];
    const axis = { stroke: token("--muted"), grid: { stroke: token("--line"), width: 1 }, ticks: { show: false } };
    const font = "12px system-ui, sans-serif";
    return {
      width: holder.clientWidth,
      height: holder.clientHeight,
      padding: [8, 8, 0, 0],
      cursor: { y: false, points: { size: 6 }, sync: { key: "penstock" } },
      legend: { show: false },
      scales: { y: { range: function (u, low, high) { return [0, high > 0 ? high * 1.08 : 1]; } } },
      axes: [
        Object.assign({ font: font, space: 70, size: 28, values: function (u, marks) { return marks.map(clock(u)); } }, axis),
        Object.assign({ font: font, size: 62, values: function (u, marks) { return marks.map(say); } }, axis),
      ],
      series: [{}].concat(series.map(function (one) {
        return { label: one[2] || one[0], stroke: colour(one[1]), width: 1.6, points: { show: false }, spanGaps: false };
      })),
      hooks: {
        setCursor: [function (plot) {
          const at = plot.cursor.idx;
          showLast(holder, series, plot.data, at === null || at === undefined ? plot.data[0].length - 1 : at);
        }],
      },
    };
  }

  function clock(plot) { // hours and minutes; beyond a day, the day
    const two = function (number) { return String(number).padStart(2, "0"); };
    const isLong = plot.scales.x.max - plot.scales.x.min > 100000;
    return function (second) {
      const time = new Date(second * 1000);
      return isLong ? two(time.getMonth() + 1) + "-" + two(time.getDate())
        : two(time.getHours()) + ":" + two(time.getMinutes());
    };
  }

  function showLast(holder, series, columns, at) {
    const say = names[holder.dataset.unit];
    const values = holder.parentNode.querySelectorAll(".legend b");
    series.forEach(function (one, number) {
      const value = columns[number + 1][at];
      if (values[number]) values[number].textContent = value === null || value === undefined ? "–" : say(value);
    });
  }

  function redrawCharts() {
    plots.forEach(function (plot) { plot.destroy(); });
    plots.clear();
    drawCharts();
  }

  addEventListener("resize", function () {
    plots.forEach(function (plot, holder) {
      plot.setSize({ width: holder.clientWidth, height: holder.clientHeight });
    });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawCharts);
  drawCharts();

  // -- the login: a link from another site comes without the cookie; ask again from here ----------
  if (document.querySelector("[data-retry-login]")) {
    fetch(location.href, { method: "HEAD", credentials: "same-origin" }).then(function (answer) {
      if (answer.ok) location.reload();
    });
  }
})();
