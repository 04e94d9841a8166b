// Patches the page in place every few seconds, and sends what a button asks for to Airflow's own API.
"use strict";
(function () {
  const EVERY_MS = 4000;
  const root = document.body.dataset.root;
  const connection = document.getElementById("connection");
  let tag = null;
  let failedSince = null;

  function say(words) {
    connection.textContent = words;
    connection.hidden = !words;
  }

  function showAges() {
    for (const time of document.querySelectorAll("time[data-at]")) {
      const seconds = Math.max(0, Math.round(Date.now() / 1000 - Number(time.dataset.at)));
      const minutes = Math.round(seconds / 60);
      time.nextElementSibling.textContent = seconds < 120 ? `, ${seconds} s ago` : `, ${minutes} min ago`;
    }
  }

  async function refresh() {
    const headers = tag ? { "If-None-Match": tag } : {};
    const answer = await fetch(location.href, { headers, credentials: "same-origin", cache: "no-store" });
    if (answer.status === 401 || answer.status === 403) {
      say("You are signed out, or may not see this page any more: sign in again.");
      return;
    }
    if (!answer.ok && answer.status !== 304) throw new Error(String(answer.status));
    if (answer.status === 200) {
      tag = answer.headers.get("ETag");
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      const open = new Set([...document.querySelectorAll("main details[open]")].map((each) => each.id));
      for (const each of fresh.querySelectorAll("details")) each.open = each.open || open.has(each.id);
      Idiomorph.morph(document.querySelector("main"), fresh, { ignoreActiveValue: true });
    }
    failedSince = null;
    say("");
  }

  async function tick() {
    if (!document.hidden) {
      try {
        await refresh();
      } catch (_error) {
        failedSince = failedSince || new Date();
        say(`No answer from Airflow since ${failedSince.toISOString().slice(11, 19)}Z: this page may be out of date.`);
      }
      showAges();
    }
    setTimeout(tick, EVERY_MS);
  }

  // A page of Airflow: the frame may not navigate its parent, but the parent's own router may.
  function openInAirflow(path) {
    const base = new URL(root + "../", location.href).pathname;
    if (window.parent === window) {
      location.assign(base + path);
      return;
    }
    window.parent.history.pushState({}, "", base + path);
    window.parent.dispatchEvent(new PopStateEvent("popstate"));
  }

  const dialog = document.getElementById("press");
  const api = `${root}../api/v2/dags/`;
  let asked = null;

  function openDialog(button) {
    const { action, subject, dag, conf, approval, words } = button.dataset;
    // One identifier for one opening of the dialog: Airflow refuses the second of two presses.
    const id = `console__${subject}__${action}__${new Date().toISOString()}`.replace(/[^A-Za-z0-9_.~:+-]/g, "_");
    asked = approval ? { place: approval, answer: action } : { id, dag, conf: JSON.parse(conf) };
    document.getElementById("press-title").textContent = `${action} ${subject}`;
    document.getElementById("press-words").textContent = words || "";
    document.getElementById("press-answer").textContent = "";
    document.getElementById("press-reason").value = "";
    document.getElementById("press-send").disabled = false;
    dialog.showModal();
    document.getElementById("press-reason").focus();
  }

  function ask(path, method, body) {
    const headers = { "Content-Type": "application/json" };
    return fetch(api + path, { method, credentials: "same-origin", headers, body: JSON.stringify(body) });
  }

  // Each of these two says in words or a link what came of it, or returns Airflow's refusal.
  async function trigger(reason, output) {
    const { id, dag, conf } = asked;
    const body = { dag_run_id: id, logical_date: null, conf: { ...conf, reason }, note: reason };
    const answer = await ask(`${encodeURIComponent(dag)}/dagRuns`, "POST", body);
    if (!answer.ok && answer.status !== 409) return answer;
    const run = answer.ok ? (await answer.json()).dag_run_id : id;
    const link = document.createElement("a");
    link.href = "#";
    link.dataset.airflow = `dags/${encodeURIComponent(dag)}/runs/${encodeURIComponent(run)}`;
    link.textContent = "see the run";
    output.replaceChildren(answer.ok ? "Requested: " : "Requested before: ", link);
    return null;
  }

  async function decide(reason, output) {
    const answer = await ask(asked.place, "PATCH", { chosen_options: [asked.answer], params_input: { reason } });
    if (!answer.ok && answer.status !== 409) return answer;
    output.textContent = answer.ok ? "Answered: the job goes on in a moment." : "Somebody has answered it before.";
    return null;
  }

  async function send() {
    const reason = document.getElementById("press-reason").value.trim();
    const output = document.getElementById("press-answer");
    if (!reason) {
      output.textContent = "Write a reason first.";
      return;
    }
    document.getElementById("press-send").disabled = true;
    output.textContent = "Asking Airflow …";
    try {
      const refusal = await (asked.place ? decide : trigger)(reason, output);
      if (!refusal) return;
      output.textContent = `Airflow refused this (${refusal.status}): ${(await refusal.text()).slice(0, 300)}`;
    } catch (_error) {
      output.textContent = "Airflow does not answer: nothing was requested.";
    }
    document.getElementById("press-send").disabled = false;
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-airflow]");
    const button = event.target.closest("button[data-action]");
    if (link) {
      event.preventDefault();
      openInAirflow(link.dataset.airflow);
    } else if (button && dialog) {
      openDialog(button);
    }
  });
  if (dialog) {
    dialog.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      send();
    });
    document.getElementById("press-close").addEventListener("click", () => dialog.close());
  }
  showAges();
  setTimeout(tick, EVERY_MS);
})();
