"use strict";
// The console works without this file. It fetches the page anew and puts in what has changed, and chooses all rows.

(() => {
  const main = document.querySelector("main[data-refresh]");
  const text = document.getElementById("updates-text");
  const stop = document.getElementById("updates-stop");
  let stopped = false;

  // What somebody works in is left alone: a focused control, an opened text, a selection.
  const inUse = (part) => {
    const chosen = document.getSelection();
    return part.contains(document.activeElement) || part.querySelector("details[open]") !== null
      || (chosen !== null && !chosen.isCollapsed && part.contains(chosen.anchorNode));
  };

  const refresh = async () => {
    const answer = await fetch(location.href, { redirect: "error", cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of document.querySelectorAll("[data-live]")) {
      const next = fresh.getElementById(part.id);
      if (next && !inUse(part) && part.outerHTML !== next.outerHTML) part.replaceWith(document.importNode(next, true));
    }
    return fresh.querySelector("main[data-refresh]") !== null;
  };

  const tick = async (every) => {
    let goesOn = true;
    if (!document.hidden && !stopped) {
      try {
        goesOn = await refresh();
        document.body.classList.remove("stale");
        say(goesOn ? `Updates every ${every / 1000} s while it is shown.` : "It has come to rest.");
      } catch {
        document.body.classList.add("stale");
        say("This is not up to date: the console does not answer. Trying again.");
      }
    }
    if (goesOn && !stopped) setTimeout(tick, every, every);
  };

  const say = (words) => { if (text.textContent !== words) text.textContent = words; };

  if (main) {
    const every = Number(main.dataset.refresh) * 1000;
    stop.hidden = false;
    stop.addEventListener("click", () => {
      stopped = true;
      stop.hidden = true;
      say("Updating is stopped; reload the page to go on.");
    });
    setTimeout(tick, every, every);
  }

  for (const all of document.querySelectorAll("input[data-all]")) {
    const boxes = () => all.form.querySelectorAll(`input[type=checkbox][name="${all.dataset.all}"]`);
    all.closest("label").hidden = boxes().length === 0;
    all.addEventListener("change", () => boxes().forEach((box) => { box.checked = all.checked; }));
  }
})();
